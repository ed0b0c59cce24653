//! The thread that owns the file: writes all waiting requests in one durable transaction, then acknowledges them.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use openraft::storage::LogFlushed;
use parking_lot::Mutex;
use redb::{Database, Durability};
use staves_model::mutant::{Mutant, planted};

use super::{LOG, META, SNAPSHOT, encode};
use crate::types::{LogId, Types};

/// Most requests in one transaction.
const BATCH_MAX: usize = 64;

/// The receiver of a request's acknowledgement, once it is durable.
pub(super) enum Done {
    Flushed(LogFlushed<Types>),
    Reply(tokio::sync::oneshot::Sender<io::Result<()>>),
}

impl Done {
    fn complete(self, result: io::Result<()>) {
        match self {
            Done::Flushed(flushed) => flushed.log_io_completed(result),
            // The receiver may be gone (shut down); no other needs it.
            Done::Reply(tx) => drop(tx.send(result)),
        }
    }
}

/// One request to the file.
pub(super) enum Job {
    Append {
        entries: Vec<(u64, Vec<u8>)>,
        committed: Option<LogId>,
        done: Done,
    },
    Put {
        key: &'static str,
        value: Vec<u8>,
        done: Done,
    },
    /// Drops entries from this index on.
    Truncate { from: u64, done: Done },
    /// Drops entries up to this one.
    Purge { upto: LogId, done: Done },
    Snapshot {
        meta: Vec<u8>,
        map: Arc<Vec<u8>>,
        done: Done,
    },
}

/// The thread and the way to it.
pub(super) struct Writer {
    // Unbounded, yet bounded: each of Raft's few tasks waits for its request before it makes another.
    tx: Mutex<Option<Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    pub fn spawn(db: Database) -> io::Result<Writer> {
        let (tx, rx) = channel();
        let thread = std::thread::Builder::new()
            .name("directory-store".into())
            .spawn(move || run(db, rx))?;
        Ok(Writer {
            tx: Mutex::new(Some(tx)),
            thread: Mutex::new(Some(thread)),
        })
    }

    pub fn send(&self, job: Job) {
        let refused = match &*self.tx.lock() {
            Some(tx) => tx.send(job).err().map(|e| e.0),
            None => Some(job),
        };
        if let Some(job) = refused {
            job.done().complete(Err(closed()));
        }
    }

    /// Waits for what was asked before, then lets go of the file.
    pub fn close(&self) {
        drop(self.tx.lock().take());
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

pub(super) fn closed() -> io::Error {
    io::Error::other("the directory's store is closed")
}

impl Job {
    fn done(self) -> Done {
        match self {
            Job::Append { done, .. }
            | Job::Put { done, .. }
            | Job::Truncate { done, .. }
            | Job::Purge { done, .. }
            | Job::Snapshot { done, .. } => done,
        }
    }
}

fn run(db: Database, rx: Receiver<Job>) {
    while let Ok(first) = rx.recv() {
        let mut batch = vec![first];
        while batch.len() < BATCH_MAX {
            match rx.try_recv() {
                Ok(job) => batch.push(job),
                Err(_) => break,
            }
        }
        let result = write(&db, &batch).map_err(|e| e.to_string());
        if let Err(reason) = &result {
            tracing::error!(%reason, "the directory's store cannot be written");
        }
        for job in batch {
            job.done()
                .complete(result.clone().map_err(io::Error::other));
        }
    }
}

fn write(db: &Database, batch: &[Job]) -> io::Result<()> {
    let other = |e: redb::Error| io::Error::other(e);
    let mut tx = db.begin_write().map_err(|e| other(e.into()))?;
    // The planted bug: entries count as durable before they are.
    let append = |job: &Job| matches!(job, Job::Append { .. });
    let durability = if planted(Mutant::DirectoryLogNotSynced) && batch.iter().all(append) {
        Durability::None
    } else {
        Durability::Immediate
    };
    tx.set_durability(durability).map_err(|e| other(e.into()))?;
    for job in batch {
        apply(&tx, job)?;
    }
    tx.commit().map_err(|e| other(e.into()))
}

fn apply(tx: &redb::WriteTransaction, job: &Job) -> io::Result<()> {
    let encoded = match job {
        Job::Append {
            committed: Some(id),
            ..
        } => Some(("committed", encode(id)?)),
        Job::Purge { upto, .. } if !planted(Mutant::PurgeNotStored) => {
            Some(("purged", encode(upto)?))
        }
        _ => None,
    };
    let go = || -> Result<(), redb::Error> {
        if let Some((key, value)) = &encoded {
            tx.open_table(META)?.insert(*key, value.as_slice())?;
        }
        match job {
            Job::Append { entries, .. } => {
                let mut log = tx.open_table(LOG)?;
                for (index, bytes) in entries {
                    log.insert(index, bytes.as_slice())?;
                }
            }
            Job::Put { key, value, .. } => {
                tx.open_table(META)?.insert(*key, value.as_slice())?;
            }
            Job::Truncate { .. } if planted(Mutant::TruncateNotStored) => {}
            Job::Truncate { from, .. } => {
                tx.open_table(LOG)?.retain_in(*from.., |_, _| false)?;
            }
            Job::Purge { upto, .. } => {
                tx.open_table(LOG)?.retain_in(..=upto.index, |_, _| false)?;
            }
            Job::Snapshot { meta, map, .. } => {
                let mut table = tx.open_table(SNAPSHOT)?;
                table.insert("meta", meta.as_slice())?;
                table.insert("map", map.as_slice())?;
            }
        }
        Ok(())
    };
    go().map_err(io::Error::other)
}
