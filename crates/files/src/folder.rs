//! A folder as a source.
//!
//! A file server that is gone may hold every thread that asks it, for ever; callers wait a bounded time.
//! `folder/local.rs` makes the calls to the file system, on the threads of `folder/workers.rs`. `folder/in_flight.rs`
//! records the calls that hold a thread now.
//!
//! **Outages.** The folder is away while it answers nothing at all, or fails for its own root as it does for a name. Names are answered
//! from `stat_cache.rs` meanwhile. One name that takes long, or fails, is an error: it may have changed.

mod in_flight;
mod lease;
mod local;
mod witness;
mod workers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;

use self::in_flight::{InFlight, Operation};
use self::local::LocalFolder;
pub(crate) use self::workers::Workers;
use crate::entry::{Keep, Reader, Seek, SourceError, Stat};
use crate::outage::{Availability, Outage};
use crate::stat_cache::{ListRecord, NameLimits, StatCache};
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
    availability: Availability,
}

impl Folder {
    /// Looks at nothing yet.
    pub fn new(place: &str) -> Folder {
        Folder::within(place, NameLimits::default())
    }

    /// The same, with bounds for what is known of its names.
    pub fn within(place: &str, limits: NameLimits) -> Folder {
        let path = place.to_owned();
        let look = move || {
            // The kernel's own cache would not show that the file server is gone.
            let flags = AtFlags::STATX_FORCE_SYNC;
            let _ = rustix::fs::statx(CWD, &*path, flags, StatxFlags::BASIC_STATS);
        };
        Folder {
            local: Arc::new(LocalFolder::new(place)),
            workers: Workers::new(place, look),
            stats: StatCache::new(limits.cached),
            in_flight: InFlight::default(),
            availability: Availability::default(),
        }
    }

    /// Its path.
    pub fn place(&self) -> &str {
        self.local.place()
    }

    /// Checks that the folder is there.
    pub async fn check(&self) -> Result<(), SourceError> {
        let (local, asked) = (self.local.clone(), Instant::now());
        let checked = self.workers.run(0, move |_| local.probe()).await;
        match &checked {
            Err(SourceError::Unreachable { .. }) => drop(self.unanswered(asked, &checked)),
            _ => self.availability.answered(),
        }
        checked
    }

    /// See [`crate::Source::outage`].
    pub fn outage(&self) -> Option<Outage> {
        self.availability.outage()
    }

    /// See [`crate::Source::probe`].
    pub async fn probe(&self, idle: Duration) {
        if self.outage().is_some() || !self.availability.answered_within(idle) {
            let _ = self.check().await;
        }
    }

    /// See [`crate::Source::stat`]. During an outage, the last answer.
    pub fn stat(&self, path: &[u8]) -> Result<Stat, SourceError> {
        self.stat_with(path, LocalFolder::stat)
    }

    /// See [`crate::Source::stat_to_open`]. During an outage, the last answer.
    pub fn stat_to_open(&self, path: &[u8]) -> Result<Stat, SourceError> {
        self.stat_with(path, LocalFolder::stat_to_open)
    }

    fn stat_with(
        &self,
        path: &[u8],
        stat: fn(&LocalFolder, &[u8]) -> Result<Stat, SourceError>,
    ) -> Result<Stat, SourceError> {
        let (local, in_flight, name) =
            (self.local.clone(), self.in_flight.clone(), path.to_owned());
        let asked = Instant::now();
        let refused = self.in_flight.refuse(self.place(), Operation::Stat, path);
        let answer = refused.and_then(|()| {
            self.workers.call(move |_| {
                let _at = in_flight.enter(Operation::Stat, &name);
                stat(&local, &name)
            })
        });
        let outage = self.judge(asked, &answer);
        self.remembered(path, answer, outage.as_ref())
    }

    /// The folder's outage, if that is why there is no answer to a question.
    fn judge<T>(&self, asked: Instant, answer: &Result<T, SourceError>) -> Option<Outage> {
        if !matches!(answer, Err(SourceError::Unreachable { .. })) {
            self.availability.answered();
            return None;
        }
        if !self.workers.is_silent() {
            let local = self.local.clone();
            // A call that is late says nothing of the folder, nor does one fault of a disk.
            let root = self.workers.call(move |_| local.probe());
            if !matches!(root, Err(SourceError::Unreachable { .. })) {
                return None;
            }
        }
        Some(self.unanswered(asked, answer))
    }

    fn unanswered<T>(&self, asked: Instant, answer: &Result<T, SourceError>) -> Outage {
        let since = self.workers.silent_since().unwrap_or(asked);
        let why = answer.as_ref().err().map(ToString::to_string);
        self.availability.unanswered(since, why.unwrap_or_default())
    }

    /// The answer about a path or, in an outage, the last one.
    fn remembered(
        &self,
        path: &[u8],
        answer: Result<Stat, SourceError>,
        outage: Option<&Outage>,
    ) -> Result<Stat, SourceError> {
        match (&answer, outage) {
            (Ok(stat), _) => self.stats.insert(path, Some(stat)),
            (Err(SourceError::Unreachable { .. }), Some(outage)) => {
                return self.stats.get(path, outage).ok_or(()).or(answer);
            }
            (Err(SourceError::Unreachable { .. }), None) => {}
            (Err(_), _) => self.stats.insert(path, None),
        }
        answer
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

    /// See [`crate::Source::gather`]. During an outage, the last list.
    pub fn gather<T: Clone + Send + 'static>(
        &self,
        path: &[u8],
        names_max: usize,
        into: T,
        add: impl Fn(&mut T, &[u8], Stat) + Send + Sync + 'static,
    ) -> Result<T, SourceError> {
        let asked = Instant::now();
        let add = Arc::new(add);
        let listed = self.list(path, names_max, into.clone(), add.clone());
        let outage = self.judge(asked, &listed);
        let known = outage.and_then(|outage| self.stats.list(path, &outage));
        match (listed, known) {
            (Ok((all, record)), _) => {
                self.stats.insert_list(path, record);
                Ok(all)
            }
            (Err(_), Some(known)) if known.len() <= names_max => {
                let mut all = into;
                for (name, stat) in known.iter() {
                    add(&mut all, name, stat.clone());
                }
                Ok(all)
            }
            (Err(error), _) => Err(error),
        }
    }

    fn list<T: Send + 'static>(
        &self,
        path: &[u8],
        names_max: usize,
        mut into: T,
        add: Arc<impl Fn(&mut T, &[u8], Stat) + Send + Sync + 'static>,
    ) -> Result<(T, ListRecord), SourceError> {
        self.in_flight.refuse(self.place(), Operation::List, path)?;
        let (local, in_flight, path) =
            (self.local.clone(), self.in_flight.clone(), path.to_owned());
        let mut record = self.stats.record();
        self.workers.call(move |signs| {
            let at = in_flight.enter(Operation::List, &path);
            let goes_on = || {
                at.goes_on();
                signs.give();
            };
            let each = |name: &[u8], stat: Stat| {
                record.add(name, &stat);
                add(&mut into, name, stat);
            };
            local.list(&path, goes_on, names_max.min(NAMES_MAX), each)?;
            Ok((into, record))
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
        let asked = Instant::now();
        self.in_flight
            .refuse(self.place(), Operation::Read, &file.path)?;
        let (local, in_flight, file) = (self.local.clone(), self.in_flight.clone(), file.clone());
        let read = move |_: &_| {
            let _at = in_flight.enter(Operation::Read, &file.path);
            local.read(&file, from, len, reader)
        };
        let read = self.workers.run(len, read).await;
        match &read {
            Err(SourceError::Unreachable { .. }) if self.workers.is_silent() => {
                self.unanswered(asked, &read);
            }
            Err(SourceError::Unreachable { .. }) => {}
            _ => self.availability.answered(),
        }
        read
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
        let outage = Outage {
            since: Instant::now(),
            why: String::new(),
            was_reached: true,
        };
        assert_eq!(folder.judge(Instant::now(), &late()), None, "it answers");
        assert_eq!(folder.remembered(b"a", late(), None), late());
        assert_eq!(folder.remembered(b"a", late(), Some(&outage)), Ok(was));
        let unknown = folder.remembered(b"b", late(), Some(&outage));
        assert_eq!(unknown, late(), "nothing is known");
        // What is gone is not remembered.
        std::fs::remove_file(dir.path().join("a")).unwrap();
        assert!(folder.stat(b"a").is_err());
        assert_eq!(folder.remembered(b"a", late(), Some(&outage)), late());
    }
}
