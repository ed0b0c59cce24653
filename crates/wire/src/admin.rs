//! What people's tools ask of a node.

use bytes::Bytes;
use staves_model::{HashSlot, Incarnation, NodeId, PoolId};

use crate::codec::wire_struct;

/// The cluster's state as the node sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatusAnswer {
    /// A JSON document, the one that `/api/v1/status` serves.
    pub json: Bytes,
}

/// Names a node: to drain, to resume, to stop, or to ask for its key ranges (row X5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeTarget {
    /// The node.
    pub node: NodeId,
}

/// A run of a pool's hash slots that a node holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeySpan {
    /// The pool.
    pub pool: PoolId,
    /// The first hash slot.
    pub first: HashSlot,
    /// The last.
    pub last: HashSlot,
    /// Whether it holds their data bucket; else a parity bucket (a copy).
    pub data: bool,
}

/// Which keys a node holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyRangeAnswer {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// What it holds, in order of pool and slot.
    pub spans: Vec<KeySpan>,
}

// On the wire.

wire_struct!(StatusAnswer { json });
wire_struct!(NodeTarget { node });
wire_struct!(KeySpan {
    pool,
    first,
    last,
    data
});
wire_struct!(KeyRangeAnswer {
    node,
    incarnation,
    spans
});
