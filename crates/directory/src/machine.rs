//! The cluster map as Raft's state machine, and the watch channel through which the node sees it.

use std::io::Cursor;
use std::sync::Arc;

use openraft::storage::{RaftSnapshotBuilder, RaftStateMachine, Snapshot};
use openraft::{EntryPayload, OptionalSend, StorageError, StorageIOError};
use staves_model::mutant::{Mutant, planted};
use staves_model::{ClusterMap, NodeId};
use tokio::sync::watch;

use crate::store::{Store, StoredSnapshot};
use crate::types::{Applied, LogEntry, LogId, Proposal, SnapshotMeta, StoredMembership, Types};

/// The state machine: a pure map, applied in the order of the log. It lies in memory; after a restart it
/// is made again from the last snapshot and the log.
pub(crate) struct Machine {
    state: AppliedState,
    store: Store,
    map_watch: watch::Sender<Arc<ClusterMap>>,
}

#[derive(Clone)]
struct AppliedState {
    map: Arc<ClusterMap>,
    applied: Option<LogId>,
    membership: StoredMembership,
}

impl Machine {
    /// From the store's snapshot, or empty.
    pub fn load(
        store: Store,
        map_watch: watch::Sender<Arc<ClusterMap>>,
    ) -> Result<Machine, String> {
        let mut state = AppliedState {
            map: Arc::default(),
            applied: None,
            membership: StoredMembership::default(),
        };
        if let Some(snapshot) = store.snapshot() {
            state = AppliedState::from_snapshot(&snapshot.meta, &snapshot.map)?;
            map_watch.send_replace(state.map.clone());
        }
        Ok(Machine {
            state,
            store,
            map_watch,
        })
    }

    fn apply_one(&mut self, entry: LogEntry) -> Applied {
        let term = entry.log_id.leader_id.term;
        self.state.applied = Some(entry.log_id);
        match entry.payload {
            EntryPayload::Blank => Applied::Blank,
            EntryPayload::Normal(proposal) => self.propose(term, &proposal),
            EntryPayload::Membership(membership) => {
                self.state.membership = StoredMembership::new(Some(entry.log_id), membership);
                Applied::Blank
            }
        }
    }

    fn propose(&mut self, term: u64, proposal: &Proposal) -> Applied {
        let other = proposal.term.is_some_and(|wanted| wanted != term);
        if other && !planted(Mutant::OtherTermApplied) {
            return Applied::Deposed;
        }
        // Copies the map once a batch at most: the window holds the other reference.
        let map = Arc::make_mut(&mut self.state.map);
        let result = map.apply(proposal.expected, &proposal.change);
        let revision = map.revision;
        match result {
            Ok(outcome) => Applied::Done { outcome, revision },
            Err(refusal) => Applied::Refused { refusal, revision },
        }
    }

    fn show(&self) {
        self.map_watch.send_if_modified(|shown| {
            let newer = !Arc::ptr_eq(shown, &self.state.map) && **shown != *self.state.map;
            if newer {
                *shown = self.state.map.clone();
            }
            newer
        });
    }
}

impl AppliedState {
    fn from_snapshot(meta: &SnapshotMeta, map: &[u8]) -> Result<AppliedState, String> {
        let map: ClusterMap = postcard::from_bytes(map)
            .map_err(|e| format!("the snapshot of the cluster map cannot be read: {e}"))?;
        Ok(AppliedState {
            map: Arc::new(map),
            applied: meta.last_log_id,
            membership: meta.last_membership.clone(),
        })
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Builder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId>, StoredMembership), StorageError<NodeId>> {
        Ok((self.state.applied, self.state.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Applied>, StorageError<NodeId>>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let answers = entries
            .into_iter()
            .map(|entry| self.apply_one(entry))
            .collect();
        self.show();
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder {
            state: self.state.clone(),
            store: self.store.clone(),
        }
    }

    async fn begin_receiving_snapshot(
        &mut self,
    ) -> Result<Box<Cursor<Vec<u8>>>, StorageError<NodeId>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError<NodeId>> {
        let failed = |reason: String| {
            StorageIOError::write_snapshot(
                Some(meta.signature()),
                openraft::AnyError::error(reason),
            )
        };
        let map = Arc::new(snapshot.into_inner());
        let state = AppliedState::from_snapshot(meta, &map).map_err(failed)?;
        let stored = StoredSnapshot {
            meta: meta.clone(),
            map,
        };
        self.store
            .save_snapshot(stored)
            .await
            .map_err(|e| failed(e.to_string()))?;
        let before = std::mem::replace(&mut self.state, state);
        if planted(Mutant::InstalledWithoutIndex) {
            self.state.applied = before.applied;
        }
        self.show();
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<Snapshot<Types>>, StorageError<NodeId>> {
        Ok(self.store.snapshot().map(readable))
    }
}

/// Writes a snapshot of the map as it was when the builder was made.
pub(crate) struct Builder {
    state: AppliedState,
    store: Store,
}

impl RaftSnapshotBuilder<Types> for Builder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError<NodeId>> {
        let failed = |reason: String| {
            StorageIOError::write_snapshot(None, openraft::AnyError::error(reason))
        };
        let map = postcard::to_stdvec(&*self.state.map).map_err(|e| failed(e.to_string()))?;
        let meta = SnapshotMeta {
            last_log_id: self.state.applied,
            last_membership: match planted(Mutant::SnapshotWithoutMembership) {
                true => StoredMembership::default(),
                false => self.state.membership.clone(),
            },
            snapshot_id: match self.state.applied {
                Some(id) => format!("{}-{}", id.leader_id, id.index),
                None => "empty".into(),
            },
        };
        let stored = StoredSnapshot {
            meta,
            map: Arc::new(map),
        };
        self.store
            .save_snapshot(stored.clone())
            .await
            .map_err(|e| failed(e.to_string()))?;
        Ok(readable(stored))
    }
}

fn readable(stored: StoredSnapshot) -> Snapshot<Types> {
    let bytes = Arc::unwrap_or_clone(stored.map);
    Snapshot {
        meta: stored.meta,
        snapshot: Box::new(Cursor::new(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use openraft::{CommittedLeaderId, EntryPayload};
    use staves_model::{Change, ClusterId, NodeId, Revision};

    use super::*;

    fn entry(term: u64, index: u64, proposal: Proposal) -> LogEntry {
        let log_id = LogId::new(CommittedLeaderId::new(term, NodeId(1)), index);
        LogEntry {
            log_id,
            payload: EntryPayload::Normal(proposal),
        }
    }

    /// A deposed leader's decision takes no effect when a later one orders it.
    #[tokio::test]
    async fn a_proposal_holds_in_its_own_term_only() {
        let store = Store::open(None).expect("memory");
        let (tx, map_watch) = watch::channel(Arc::default());
        let mut machine = Machine::load(store, tx).expect("empty");
        let change = Change::Bootstrap {
            cluster: ClusterId(7),
        };
        let proposal = Proposal {
            expected: None,
            term: Some(3),
            change,
        };
        let late = machine
            .apply([entry(4, 1, proposal.clone())])
            .await
            .expect("applied");
        assert_eq!(late, [Applied::Deposed]);
        assert_eq!(map_watch.borrow().cluster, ClusterId(0));
        let kept = machine
            .apply([entry(3, 2, proposal)])
            .await
            .expect("applied");
        assert!(
            matches!(
                kept[..],
                [Applied::Done {
                    revision: Revision(1),
                    ..
                }]
            ),
            "{kept:?}"
        );
        assert_eq!(map_watch.borrow().cluster, ClusterId(7));
    }

    #[tokio::test]
    async fn a_snapshot_makes_the_same_map_elsewhere() {
        let (tx, _window) = watch::channel(Arc::default());
        let mut one = Machine::load(Store::open(None).expect("memory"), tx).expect("empty");
        let change = Change::Bootstrap {
            cluster: ClusterId(7),
        };
        one.apply([entry(1, 1, Proposal::unconditional(change))])
            .await
            .expect("applied");
        let snapshot = one
            .get_snapshot_builder()
            .await
            .build_snapshot()
            .await
            .expect("built");

        let store = Store::open(None).expect("memory");
        let (tx, map_watch) = watch::channel(Arc::default());
        let mut other = Machine::load(store.clone(), tx).expect("empty");
        other
            .install_snapshot(&snapshot.meta, snapshot.snapshot)
            .await
            .expect("installed");
        assert_eq!(map_watch.borrow().cluster, ClusterId(7));
        assert_eq!(other.state.applied, one.state.applied);
        // And after a restart.
        let (tx, map_watch) = watch::channel(Arc::default());
        Machine::load(store, tx).expect("the snapshot");
        assert_eq!(map_watch.borrow().cluster, ClusterId(7));
        let torn = Box::new(Cursor::new(b"torn".to_vec()));
        assert!(other.install_snapshot(&snapshot.meta, torn).await.is_err());
        assert_eq!(other.state.map.cluster, ClusterId(7));
    }
}
