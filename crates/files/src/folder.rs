//! A folder as a source.
//!
//! A file server that is gone may hold every thread that asks it, for ever; callers wait a bounded time.
//! `folder/local.rs` makes the calls to the file system, on the threads of `folder/workers.rs`. `folder/in_flight.rs`
//! records the calls that hold a thread now, `folder/stat_cache.rs` the folder's earlier answers.

mod in_flight;
mod lease;
mod local;
mod stat_cache;
mod witness;
mod workers;

use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;

use self::in_flight::{InFlight, Operation};
use self::local::LocalFolder;
use self::stat_cache::StatCache;
pub(crate) use self::workers::Workers;
use crate::entry::{Keep, Reader, Seek, SourceError, Stat};
use crate::version::FileVersion;

/// Names of one folder, at most.
const NAMES_MAX: usize = 4_000_000;

/// A folder of this machine. Each call ends within some seconds, whatever the file system does.
#[derive(Debug)]
pub struct Folder {
    local: Arc<LocalFolder>,
    workers: Workers,
    stats: StatCache,
    in_flight: InFlight,
}

impl Folder {
    /// Looks at nothing yet.
    pub fn new(place: &str) -> Folder {
        let path = place.to_owned();
        let look = move || {
            // The kernel's own cache would not show that the file server is gone.
            let flags = AtFlags::STATX_FORCE_SYNC;
            let _ = rustix::fs::statx(CWD, &*path, flags, StatxFlags::BASIC_STATS);
        };
        Folder {
            local: Arc::new(LocalFolder::new(place)),
            workers: Workers::new(place, look),
            stats: StatCache::default(),
            in_flight: InFlight::default(),
        }
    }

    /// Its path.
    pub fn place(&self) -> &str {
        self.local.place()
    }

    /// Checks that the folder is there.
    pub async fn check(&self) -> Result<(), SourceError> {
        let local = self.local.clone();
        self.workers.run(0, move |_| local.check()).await
    }

    /// See [`crate::Source::stat`]. While the folder is silent, its last cached answer.
    pub fn stat(&self, path: &[u8]) -> Result<Stat, SourceError> {
        self.stat_with(path, LocalFolder::stat)
    }

    /// See [`crate::Source::stat_to_open`]. While the folder is silent, its last cached answer.
    pub fn stat_to_open(&self, path: &[u8]) -> Result<Stat, SourceError> {
        self.stat_with(path, LocalFolder::stat_to_open)
    }

    fn stat_with(
        &self,
        path: &[u8],
        stat: fn(&LocalFolder, &[u8]) -> Result<Stat, SourceError>,
    ) -> Result<Stat, SourceError> {
        let (local, in_flight, asked) =
            (self.local.clone(), self.in_flight.clone(), path.to_owned());
        let refused = self.in_flight.refuse(self.place(), Operation::Stat, path);
        let said = refused.and_then(|()| {
            self.workers.call(move |_| {
                let _at = in_flight.enter(Operation::Stat, &asked);
                stat(&local, &asked)
            })
        });
        self.believe(path, said, self.workers.is_silent())
    }

    /// The answer about a path or, of a folder that is silent, its last cached answer.
    fn believe(
        &self,
        path: &[u8],
        said: Result<Stat, SourceError>,
        is_silent: bool,
    ) -> Result<Stat, SourceError> {
        match &said {
            Ok(stat) => self.stats.insert(path, Some(stat)),
            // One name that takes long, while others are answered, is no silence: it may have changed.
            Err(SourceError::Unreachable { .. }) if is_silent => {
                return self.stats.get(path).ok_or(()).or(said);
            }
            Err(SourceError::Unreachable { .. }) => {}
            Err(_) => self.stats.insert(path, None),
        }
        said
    }

    /// See [`crate::Source::seek`].
    pub fn seek(
        &self,
        file: &FileVersion,
        from: u64,
        what: Seek,
    ) -> Result<Option<u64>, SourceError> {
        self.in_flight
            .refuse(self.place(), Operation::Stat, &file.path)?;
        let (local, in_flight, file) = (self.local.clone(), self.in_flight.clone(), file.clone());
        self.workers.call(move |_| {
            let _at = in_flight.enter(Operation::Stat, &file.path);
            local.seek(&file, from, what)
        })
    }

    /// See [`crate::Source::gather`].
    pub fn gather<T: Send + 'static>(
        &self,
        path: &[u8],
        names_max: usize,
        mut into: T,
        add: impl Fn(&mut T, &[u8], Stat) + Send + 'static,
    ) -> Result<T, SourceError> {
        self.in_flight.refuse(self.place(), Operation::List, path)?;
        let (local, in_flight, path) =
            (self.local.clone(), self.in_flight.clone(), path.to_owned());
        self.workers.call(move |signs| {
            let at = in_flight.enter(Operation::List, &path);
            let goes_on = || {
                at.goes_on();
                signs.give();
            };
            let each = |name: &[u8], stat| add(&mut into, name, stat);
            local.list(&path, goes_on, names_max.min(NAMES_MAX), each)?;
            Ok(into)
        })
    }

    /// See [`crate::Source::read`].
    pub async fn read(
        &self,
        file: &FileVersion,
        from: u64,
        len: usize,
        reader: Reader,
    ) -> Result<(Bytes, Keep), SourceError> {
        self.in_flight
            .refuse(self.place(), Operation::Read, &file.path)?;
        let (local, in_flight, file) = (self.local.clone(), self.in_flight.clone(), file.clone());
        let read = move |_: &_| {
            let _at = in_flight.enter(Operation::Read, &file.path);
            local.read(&file, from, len, reader)
        };
        self.workers.run(len, read).await
    }
}

/// A folder's path without links, asked for as cautiously.
pub fn whole_path(text: &str) -> Result<String, SourceError> {
    let place = text.to_owned();
    let malformed = move |reason: String| SourceError::Malformed {
        text: place.clone(),
        reason,
    };
    let path = text.to_owned();
    Workers::new(text, || ()).call(move |_| {
        let path = std::fs::canonicalize(&path).map_err(|error| {
            let errno = Errno::from_io_error(&error);
            local::no_folder(&path, errno.unwrap_or(Errno::IO))
        })?;
        let path = path.into_os_string().into_string();
        path.map_err(|_| malformed("its path is not UTF-8".into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a name whose answer was late, while others were answered, was taken for what it had been before, and its old
    /// version opened.
    #[test]
    fn a_late_answer_of_a_folder_that_answers_is_no_silence() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), [7]).unwrap();
        let folder = Folder::new(dir.path().to_str().unwrap());
        let was = folder.stat(b"a").unwrap();
        let late = || {
            Err(SourceError::Unreachable {
                place: "a".into(),
                reason: "it is late".into(),
            })
        };
        assert_eq!(folder.believe(b"a", late(), false), late());
        assert_eq!(folder.believe(b"a", late(), true), Ok(was));
        assert_eq!(
            folder.believe(b"b", late(), true),
            late(),
            "nothing is known"
        );
        // What is gone is not remembered.
        std::fs::remove_file(dir.path().join("a")).unwrap();
        assert!(folder.stat(b"a").is_err());
        assert_eq!(folder.believe(b"a", late(), true), late());
    }
}
