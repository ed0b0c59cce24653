//! The store as openraft's log.

use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;

use openraft::storage::{LogFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{OptionalSend, StorageError, StorageIOError};
use staves_model::NodeId;
use staves_model::mutant::{Mutant, planted};

use super::{Held, Store, encode, writer};
use crate::types::{LogEntry, LogId, Types, Vote};

/// Most bytes of entries in one append request: it must cross the network within a heartbeat.
const APPEND_BYTES_MAX: usize = 256 << 10;

fn write_failed(e: io::Error) -> StorageError<NodeId> {
    StorageIOError::write_logs(&e).into()
}

impl RaftLogReader<Types> for Store {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<LogEntry>, StorageError<NodeId>> {
        Ok(self
            .memory
            .lock()
            .entries
            .range(range)
            .map(|(_, held)| held.entry.clone())
            .collect())
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<LogEntry>, StorageError<NodeId>> {
        let memory = self.memory.lock();
        let mut room = APPEND_BYTES_MAX;
        let mut entries = Vec::new();
        for held in memory.entries.range(start..end).map(|(_, held)| held) {
            // The first always goes: an empty answer would stop replication.
            if held.bytes > room && !entries.is_empty() {
                break;
            }
            room = room.saturating_sub(held.bytes);
            entries.push(held.entry.clone());
        }
        Ok(entries)
    }
}

impl Store {
    /// The entry at this index, if the log has it.
    pub(crate) fn log_id(&self, index: u64) -> Option<LogId> {
        let memory = self.memory.lock();
        memory.entries.get(&index).map(|held| held.entry.log_id)
    }

    /// The last entry that is known to be committed: at a start, what the file says.
    pub(crate) fn last_committed(&self) -> Option<LogId> {
        self.memory.lock().committed
    }

    /// Gives up a lead of the life before: it is to be elected again. Raft would go on leading its term at once, and if the folder is an
    /// older copy it would put other entries in the place of those that it had committed and lost.
    pub(crate) async fn give_up_lead(&self, me: NodeId) -> Result<(), StorageError<NodeId>> {
        let vote = self.memory.lock().vote;
        match vote {
            Some(vote) if vote.committed && vote.leader_id.voted_for() == Some(me) => {
                let vote = Vote::new(vote.leader_id.get_term(), me);
                self.clone().save_vote(&vote).await
            }
            _ => Ok(()),
        }
    }
}

impl RaftLogStorage<Types> for Store {
    type LogReader = Store;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError<NodeId>> {
        let memory = self.memory.lock();
        Ok(LogState {
            last_purged_log_id: memory.purged,
            last_log_id: memory.last_log(),
        })
    }

    async fn get_log_reader(&mut self) -> Store {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError<NodeId>> {
        let save = async {
            if !planted(Mutant::VoteNotPersisted) {
                self.put("vote", encode(vote)?).await?;
            }
            self.memory.lock().vote = Some(*vote);
            Ok(())
        };
        save.await
            .map_err(|e: io::Error| StorageIOError::write_vote(&e).into())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError<NodeId>> {
        Ok(self.memory.lock().vote)
    }

    // A hint: it reaches the file with the next append, for it saves time at a start and decides nothing.
    async fn save_committed(&mut self, id: Option<LogId>) -> Result<(), StorageError<NodeId>> {
        self.memory.lock().committed = id;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError<NodeId>> {
        Ok(self.memory.lock().committed)
    }

    async fn append<I>(
        &mut self,
        entries: I,
        flushed: LogFlushed<Types>,
    ) -> Result<(), StorageError<NodeId>>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut encoded = Vec::new();
        {
            let mut memory = self.memory.lock();
            for entry in entries {
                let bytes = encode(&entry).map_err(write_failed)?;
                let index = entry.log_id.index;
                memory.entries.insert(
                    index,
                    Held {
                        entry,
                        bytes: bytes.len(),
                    },
                );
                encoded.push((index, bytes));
            }
        }
        Store::append(self, encoded, flushed);
        Ok(())
    }

    async fn truncate(&mut self, id: LogId) -> Result<(), StorageError<NodeId>> {
        let from = id.index;
        let kept = u64::from(planted(Mutant::TruncateLeavesOne));
        drop(self.memory.lock().entries.split_off(&(from + kept)));
        self.write(move |done| writer::Job::Truncate { from, done })
            .await
            .map_err(write_failed)
    }

    async fn purge(&mut self, id: LogId) -> Result<(), StorageError<NodeId>> {
        {
            let mut memory = self.memory.lock();
            memory.entries = memory.entries.split_off(&(id.index + 1));
            memory.purged = Some(id);
        }
        self.write(move |done| writer::Job::Purge { upto: id, done })
            .await
            .map_err(write_failed)
    }
}
