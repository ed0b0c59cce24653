//! The entries of Raft's log, and the names of openraft's types with ours filled in.

use std::io::Cursor;

use serde::{Deserialize, Serialize};
use staves_model::{Change, NodeId, Outcome, Refusal, Revision};

openraft::declare_raft_types!(
    /// openraft's type parameters: proposals in, verdicts out.
    pub(crate) Types:
        D = Proposal,
        R = Applied,
        NodeId = staves_model::NodeId,
        Node = openraft::BasicNode,
);

pub(crate) type Raft = openraft::Raft<Types>;
pub(crate) type LogEntry = openraft::Entry<Types>;
pub(crate) type LogId = openraft::LogId<NodeId>;
pub(crate) type Vote = openraft::Vote<NodeId>;
pub(crate) type StoredMembership = openraft::StoredMembership<NodeId, openraft::BasicNode>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<NodeId, openraft::BasicNode>;
pub(crate) type Metrics = openraft::RaftMetrics<NodeId, openraft::BasicNode>;

/// A change and the conditions on which it may take effect.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Proposal {
    /// Refused if the map has moved on from this revision; `None` if the change carries its own conditions.
    pub expected: Option<Revision>,
    /// Refused unless it is ordered in this term. What a leader decides on its volatile knowledge (leases,
    /// failure evidence) must not take effect in a later term, when that knowledge is no longer whole.
    pub term: Option<u64>,
    /// The change.
    pub change: Change,
}

impl Proposal {
    /// A change that holds whatever the map's revision.
    pub fn unconditional(change: Change) -> Proposal {
        Proposal {
            expected: None,
            term: None,
            change,
        }
    }

    /// A change that was decided on this revision of the map.
    pub fn at(expected: Revision, change: Change) -> Proposal {
        Proposal {
            expected: Some(expected),
            term: None,
            change,
        }
    }
}

/// The outcome of a log entry when it was applied. The same on every node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Applied {
    /// It took effect.
    Done {
        /// Its result.
        outcome: Outcome,
        /// The map's revision since then.
        revision: Revision,
    },
    /// The map's rules refused it; nothing changed.
    Refused {
        /// The reason.
        refusal: Refusal,
        /// The map's revision.
        revision: Revision,
    },
    /// It was ordered in another term than its proposer led; nothing changed.
    Deposed,
    /// No proposal: an entry of Raft's own.
    Blank,
}
