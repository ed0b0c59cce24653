//! The store under openraft's own tests of storage, and opened again after each kind of write.

use std::path::Path;

use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{CommittedLeaderId, RaftLogReader, StorageError};
use staves_model::NodeId;
use tempfile::TempDir;
use tokio::sync::watch;

use super::super::Store;
use crate::machine::Machine;
use crate::types::{LogEntry, LogId, Types, Vote};

/// Stores in files, each in a folder of its own.
struct InFiles;

impl StoreBuilder<Types, Store, Machine, TempDir> for InFiles {
    async fn build(&self) -> Result<(TempDir, Store, Machine), StorageError<NodeId>> {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(Some(folder.path())).expect("a new file");
        let machine = Machine::load(store.clone(), watch::channel(Default::default()).0);
        Ok((folder, store, machine.expect("empty")))
    }
}

#[test]
fn openrafts_own_suite_of_tests_passes() {
    Suite::test_all(InFiles).expect("no error of the store");
}

fn id(index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(2, NodeId(1)), index)
}

fn entries(indexes: impl Iterator<Item = u64>) -> Vec<LogEntry> {
    let blank = |index| LogEntry {
        log_id: id(index),
        payload: openraft::EntryPayload::Blank,
    };
    indexes.map(blank).collect()
}

/// All that Raft asks a store for.
async fn seen(store: &mut Store) -> String {
    let log = store.try_get_log_entries(..).await.expect("entries");
    let indexes: Vec<_> = log.iter().map(|entry| entry.log_id).collect();
    let state = store.get_log_state().await.expect("its ends");
    let vote = store.read_vote().await.expect("a vote");
    format!("{indexes:?} {state:?} {vote:?}")
}

async fn open(folder: &Path) -> Store {
    Store::open(Some(folder)).expect("it opens")
}

/// After each write the process ends: what the next one reads is what this one had.
#[tokio::test]
async fn a_store_that_is_opened_again_is_what_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path()).await;
    for step in 0..5 {
        let what = match step {
            0 => {
                let written = store.blocking_append(entries(0..20)).await;
                written.expect("written");
                "an append"
            }
            1 => {
                store.truncate(id(15)).await.expect("cut");
                "a truncation"
            }
            2 => {
                store.purge(id(6)).await.expect("purged");
                "a purge"
            }
            3 => {
                store
                    .save_vote(&Vote::new(9, NodeId(3)))
                    .await
                    .expect("a vote");
                "a vote"
            }
            _ => {
                // All of it: what is left of the log is the mark of its end.
                store.purge(id(14)).await.expect("purged");
                "a purge of all"
            }
        };
        let before = seen(&mut store).await;
        store.close().await;
        drop(store);
        store = open(folder.path()).await;
        let after = seen(&mut store).await;
        assert_eq!(
            before, after,
            "{what} is otherwise after it was opened again"
        );
    }
}
