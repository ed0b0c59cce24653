//! A folder as a source.
//!
//! `folder/plain.rs` asks the file system; `folder/workers.rs` is who does that: a file server that is gone may hold whoever
//! asks it, for ever, and whoever wants something of it does not wait that long; `folder/held.rs` is what holds somebody now, and
//! `folder/lately.rs` what was said before.

mod held;
mod lately;
mod plain;
mod workers;

use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;

use self::held::{Asked, Held};
use self::lately::Lately;
use self::plain::Plain;
pub(crate) use self::workers::Workers;
use crate::source::{Keep, SourceError, Stat, Whom};
use crate::version::FileVersion;

/// Names of one folder, at most.
const NAMES_MAX: usize = 4_000_000;

/// A folder of this machine. Each call ends within some seconds, whatever the file system does.
#[derive(Debug)]
pub struct Folder {
    plain: Arc<Plain>,
    workers: Workers,
    lately: Lately,
    held: Held,
}

impl Folder {
    /// Looks at nothing yet.
    pub fn new(place: &str) -> Folder {
        let path = place.to_owned();
        let look = move || {
            // What the kernel remembers of it would say nothing of whether the file server is there.
            let flags = AtFlags::STATX_FORCE_SYNC;
            let _ = rustix::fs::statx(CWD, &*path, flags, StatxFlags::BASIC_STATS);
        };
        Folder {
            plain: Arc::new(Plain::new(place)),
            workers: Workers::new(place, look),
            lately: Lately::default(),
            held: Held::default(),
        }
    }

    /// Its path.
    pub fn place(&self) -> &str {
        self.plain.place()
    }

    /// Checks that the folder is there.
    pub async fn check(&self) -> Result<(), SourceError> {
        let plain = self.plain.clone();
        self.workers.run(0, move |_| plain.check()).await
    }

    /// See [`crate::Source::stat`]. While nothing comes from the folder, what it said lately.
    pub fn stat(&self, path: &[u8]) -> Result<Stat, SourceError> {
        let (plain, held, asked) = (self.plain.clone(), self.held.clone(), path.to_owned());
        self.held.refuse(self.place(), Asked::Stat, path)?;
        let said = self.workers.call(move |_| {
            let _at = held.enter(Asked::Stat, &asked);
            plain.stat(&asked)
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
            Ok(stat) => self.lately.said(path, Some(stat)),
            // One name that takes long, while others are answered, is no silence: it may have changed.
            Err(SourceError::Unreachable { .. }) if is_silent => {
                return self.lately.of(path).ok_or(()).or(said);
            }
            Err(SourceError::Unreachable { .. }) => {}
            Err(_) => self.lately.said(path, None),
        }
        said
    }

    /// See [`crate::Source::gather`].
    pub fn gather<T: Send + 'static>(
        &self,
        path: &[u8],
        names_max: usize,
        mut into: T,
        add: impl Fn(&mut T, &[u8], Stat) + Send + 'static,
    ) -> Result<T, SourceError> {
        self.held.refuse(self.place(), Asked::List, path)?;
        let (plain, held, path) = (self.plain.clone(), self.held.clone(), path.to_owned());
        self.workers.call(move |signs| {
            let at = held.enter(Asked::List, &path);
            let goes_on = || {
                at.goes_on();
                signs.give();
            };
            let each = |name: &[u8], stat| add(&mut into, name, stat);
            plain.list(&path, goes_on, names_max.min(NAMES_MAX), each)?;
            Ok(into)
        })
    }

    /// See [`crate::Source::read`].
    pub async fn read(
        &self,
        file: &FileVersion,
        from: u64,
        len: usize,
        whom: Whom,
    ) -> Result<(Bytes, Keep), SourceError> {
        self.held.refuse(self.place(), Asked::Read, &file.path)?;
        let (plain, held, file) = (self.plain.clone(), self.held.clone(), file.clone());
        let read = move |_: &_| {
            let _at = held.enter(Asked::Read, &file.path);
            plain.read(&file, from, len, whom)
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
            plain::no_folder(&path, errno.unwrap_or(Errno::IO))
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
