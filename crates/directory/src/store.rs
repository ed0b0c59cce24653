//! The state that Raft must find again after a crash: vote, log, snapshot, and the identity of their node.
//!
//! One redb file, `directory.redb` in the node's data folder. Its tables:
//!
//! ```text
//! meta      &str -> bytes     "format"    u32 LE, see FORMAT
//!                             "identity"  postcard Identity (cluster, node, founder)
//!                             "file"      postcard Mark: the file that this was written to
//!                             "vote"      postcard Vote
//!                             "purged"    postcard LogId: the last entry dropped from the log's head
//!                             "committed" postcard LogId: a hint, written with whatever comes next
//! log       u64   -> bytes    index -> postcard LogEntry
//! snapshot  &str -> bytes     "meta"      postcard SnapshotMeta
//!                             "map"       postcard ClusterMap
//! ```
//!
//! One thread owns the file and does all writing, in the order of the requests, many in one transaction
//! where many wait; every transaction is durable before it is acknowledged. Reads never touch the file:
//! the log since the last snapshot is held in memory, which compaction bounds (`Times::snapshot_entries`).
//! A node without a data folder runs the same code on redb's memory backend.

pub(crate) mod damage;
mod file;
mod log;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openraft::storage::LogFlushed;
use parking_lot::Mutex;
use redb::{Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use staves_model::{ClusterId, NodeId};

use self::damage::Damage;
pub(crate) use self::file::Mark;
use self::file::StoreFile;
use crate::error::StoreError;
use crate::types::{LogEntry, LogId, SnapshotMeta, Types, Vote};

/// The file's name in the data folder.
pub(crate) const FILE: &str = "directory.redb";
/// The layout that this program writes and reads. Format 1 named members without a disk; in format 2
/// a region was loaded as a whole; in format 3 each opening was an entry of its own; format 4 had no volumes,
/// and format 5 no claims of nodes that start.
const FORMAT: u32 = 6;
/// The permissions of the data folder: all for its owner.
const OWNERS: u32 = 0o700;
/// redb's page cache. The log is in memory anyway.
const CACHE_BYTES: usize = 4 << 20;

const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
const LOG: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("log");
const SNAPSHOT: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("snapshot");

/// The node that the state belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub cluster: ClusterId,
    pub node: NodeId,
    /// This node made the cluster: if Raft's log is still empty, it has to begin it.
    pub founder: bool,
}

/// A snapshot of the map, as stored and sent.
#[derive(Clone)]
pub(crate) struct StoredSnapshot {
    pub meta: SnapshotMeta,
    pub map: Arc<Vec<u8>>,
}

/// An entry with its encoded length, by which batches are bounded.
struct Held {
    entry: LogEntry,
    bytes: usize,
}

/// The readable side: what the file holds, or will once the writer gets there.
#[derive(Default)]
struct StoreState {
    identity: Option<Identity>,
    mark: Option<Mark>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    entries: BTreeMap<u64, Held>,
    snapshot: Option<StoredSnapshot>,
}

impl StoreState {
    fn last_log(&self) -> Option<LogId> {
        let last = self.entries.last_key_value();
        last.map(|(_, held)| held.entry.log_id).or(self.purged)
    }
}

/// Handle to a node's directory state; clones share it.
#[derive(Clone)]
pub(crate) struct Store {
    memory: Arc<Mutex<StoreState>>,
    writer: Arc<writer::Writer>,
    /// Its file, if it has one.
    pub(crate) file: Option<Arc<StoreFile>>,
}

impl Store {
    /// Opens `folder`, or memory if there is none.
    pub fn open(folder: Option<&Path>) -> Result<Store, StoreError> {
        let (db, path, file) = match folder {
            Some(folder) => {
                let path = folder.join(FILE);
                let db = open_file(folder, &path)?;
                let file = StoreFile::of(&path).map_err(|e| unreadable(&path, &e))?;
                (db, path, Some(Arc::new(file)))
            }
            None => (open_memory()?, PathBuf::from("(memory)"), None),
        };
        check_format(&db, &path)?;
        let memory = load(&db).map_err(|e| unreadable(&path, &e))?;
        let writer = writer::Writer::spawn(db).map_err(|e| unreadable(&path, &e))?;
        Ok(Store {
            memory: Arc::new(Mutex::new(memory)),
            writer: Arc::new(writer),
            file,
        })
    }

    pub fn identity(&self) -> Option<Identity> {
        self.memory.lock().identity
    }

    /// True if this was written to another file: the folder was copied or restored, and may be an older state. Not to be seen where the file
    /// was overwritten in place, or its whole disk set back.
    pub fn is_copied(&self) -> bool {
        let written = self.memory.lock().mark;
        let file = self.file.as_ref().map(|file| file.mark);
        written.is_some() && file.is_some() && written != file
    }

    /// This file has the newest state of its node. Durable when it returns.
    pub async fn save_mark(&self) -> io::Result<()> {
        let Some(mark) = self.file.as_ref().map(|file| file.mark) else {
            return Ok(());
        };
        if self.memory.lock().mark != Some(mark) {
            self.put("file", encode(&mark)?).await?;
            self.memory.lock().mark = Some(mark);
        }
        Ok(())
    }

    /// Durable when it returns.
    pub async fn save_identity(&self, identity: Identity) -> io::Result<()> {
        self.save_mark().await?;
        self.put("identity", encode(&identity)?).await?;
        self.memory.lock().identity = Some(identity);
        Ok(())
    }

    /// The end of the log.
    pub fn last_log(&self) -> Option<LogId> {
        self.memory.lock().last_log()
    }

    pub fn snapshot(&self) -> Option<StoredSnapshot> {
        self.memory.lock().snapshot.clone()
    }

    /// Replaces the snapshot; durable when it returns.
    pub async fn save_snapshot(&self, snapshot: StoredSnapshot) -> io::Result<()> {
        let meta = encode(&snapshot.meta)?;
        let map = snapshot.map.clone();
        self.write(move |done| writer::Job::Snapshot { meta, map, done })
            .await?;
        self.memory.lock().snapshot = Some(snapshot);
        Ok(())
    }

    /// Ends the writer and lets go of the file. Later writes fail.
    pub async fn close(&self) {
        let writer = self.writer.clone();
        // Joining a thread blocks; the last transaction may be under way.
        let _ = tokio::task::spawn_blocking(move || writer.close()).await;
    }

    async fn put(&self, key: &'static str, value: Vec<u8>) -> io::Result<()> {
        self.write(move |done| writer::Job::Put { key, value, done })
            .await
    }

    async fn write(&self, job: impl FnOnce(writer::Done) -> writer::Job) -> io::Result<()> {
        let (tx, rx) = tokio::sync::oneshot::channel();
        self.writer.send(job(writer::Done::Reply(tx)));
        rx.await.unwrap_or_else(|_| Err(writer::closed()))
    }

    fn append(&self, entries: Vec<(u64, Vec<u8>)>, flushed: LogFlushed<Types>) {
        let committed = self.memory.lock().committed;
        self.writer.send(writer::Job::Append {
            entries,
            committed,
            done: writer::Done::Flushed(flushed),
        });
    }
}

fn open_file(folder: &Path, path: &Path) -> Result<Database, StoreError> {
    make_folder(folder).map_err(|e| unreadable(folder, &e))?;
    // Taken for a new file it would found a new cluster, or forget a vote.
    if std::fs::metadata(path).is_ok_and(|file| file.len() == 0) {
        return Err(unreadable(
            path,
            &"it is empty, so it was cut off; restore it, or remove the folder to begin the node anew",
        ));
    }
    let locked = || StoreError::Locked {
        path: path.to_owned(),
        holder: crate::folder_owner::read(folder).map(|holder| holder.pid),
    };
    match damage::look(path) {
        Ok(()) => {}
        Err(Damage::InUse) => return Err(locked()),
        Err(Damage::Found(reason)) => return Err(unreadable(path, &reason)),
    }
    Builder::new()
        .set_cache_size(CACHE_BYTES)
        .create(path)
        .map_err(|e| match e {
            DatabaseError::DatabaseAlreadyOpen => locked(),
            e => unreadable(path, &e),
        })
}

/// Makes a data folder, if it is not there. Only its owner may read it: it is the node's identity, and its part of the directory.
///
/// # Errors
/// Those of the system; a folder that is open to others and none of a node.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(OWNERS).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = std::fs::metadata(folder)?;
    if !found.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let mut permissions = found.permissions();
    let others = permissions.mode() & 0o077;
    if others == 0 {
        return Ok(());
    }
    if let Some(file) = file_of_others(folder)? {
        return Err(io::Error::other(format!(
            "it is open to others, has no data of a node, and holds '{}': a data folder is its owner's alone, so give one of its own \
             (it is made if it is not there)",
            file.display()
        )));
    }
    permissions.set_mode(OWNERS);
    match std::fs::set_permissions(folder, permissions) {
        Ok(()) => {
            tracing::info!(folder = %folder.display(), "the data folder was open to others: it is its owner's now (0700)")
        }
        // A volume may belong to somebody else and be lent to us.
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "the data folder is open to others, and stays so")
        }
    }
    Ok(())
}

/// A file in the folder, if the folder is not a node's. A new file system has a folder of its own in it.
fn file_of_others(folder: &Path) -> io::Result<Option<PathBuf>> {
    if folder.join(FILE).exists() {
        return Ok(None);
    }
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        if name != "lost+found" {
            return Ok(Some(name.into()));
        }
    }
    Ok(None)
}

fn open_memory() -> Result<Database, StoreError> {
    Builder::new()
        .set_cache_size(CACHE_BYTES)
        .create_with_backend(redb::backends::InMemoryBackend::new())
        .map_err(|e| unreadable(Path::new("(memory)"), &e))
}

fn unreadable(path: &Path, reason: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unreadable {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// Refuses a file of a newer or a former program, and marks a new file as ours.
fn check_format(db: &Database, path: &Path) -> Result<(), StoreError> {
    let check = || -> Result<Option<u32>, redb::Error> {
        let tx = db.begin_write()?;
        let found = {
            let mut meta = tx.open_table(META)?;
            tx.open_table(LOG)?;
            tx.open_table(SNAPSHOT)?;
            let found = meta.get("format")?.map(|v| v.value().to_vec());
            match found {
                None => {
                    meta.insert("format", FORMAT.to_le_bytes().as_slice())?;
                    Some(FORMAT)
                }
                Some(v) => v.try_into().ok().map(u32::from_le_bytes),
            }
        };
        tx.commit()?;
        Ok(found)
    };
    match check().map_err(|e| unreadable(path, &e))? {
        Some(FORMAT) => Ok(()),
        Some(found) if found < FORMAT => Err(StoreError::FormerFormat {
            path: path.to_owned(),
            found,
            known: FORMAT,
        }),
        Some(found) => Err(StoreError::NewerFormat {
            path: path.to_owned(),
            found,
            known: FORMAT,
        }),
        None => Err(unreadable(path, &"its format mark is not four bytes")),
    }
}

fn load(db: &Database) -> io::Result<StoreState> {
    let tx = db.begin_read().map_err(io::Error::other)?;
    let meta = tx.open_table(META).map_err(io::Error::other)?;
    let mut memory = StoreState {
        identity: read(&meta, "identity")?,
        mark: read(&meta, "file")?,
        vote: read(&meta, "vote")?,
        committed: read(&meta, "committed")?,
        purged: read(&meta, "purged")?,
        ..StoreState::default()
    };
    let log = tx.open_table(LOG).map_err(io::Error::other)?;
    for row in log.iter().map_err(io::Error::other)? {
        let (index, bytes) = row.map_err(io::Error::other)?;
        let entry: LogEntry = decode(bytes.value(), "log entry")?;
        memory.entries.insert(
            index.value(),
            Held {
                entry,
                bytes: bytes.value().len(),
            },
        );
    }
    let snapshot = tx.open_table(SNAPSHOT).map_err(io::Error::other)?;
    let map = snapshot
        .get("map")
        .map_err(io::Error::other)?
        .map(|v| v.value().to_vec());
    memory.snapshot = match (read(&snapshot, "meta")?, map) {
        (Some(meta), Some(map)) => Some(StoredSnapshot {
            meta,
            map: Arc::new(map),
        }),
        _ => None,
    };
    Ok(memory)
}

fn read<T: DeserializeOwned>(
    table: &impl ReadableTable<&'static str, &'static [u8]>,
    key: &'static str,
) -> io::Result<Option<T>> {
    let value = table.get(key).map_err(io::Error::other)?;
    value.map(|v| decode(v.value(), key)).transpose()
}

fn encode<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(io::Error::other)
}

fn decode<T: DeserializeOwned>(bytes: &[u8], what: &str) -> io::Result<T> {
    postcard::from_bytes(bytes)
        .map_err(|e| io::Error::other(format!("the stored {what} cannot be read: {e}")))
}
