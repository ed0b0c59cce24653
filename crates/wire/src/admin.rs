//! The messages of people's tools to a node.

use bytes::Bytes;
use staves_model::{Epoch, GroupId, HashSlot, Incarnation, Label, MemberSlot, NodeId, PoolId};

use crate::codec::{wire_enum, wire_struct};

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

/// Has a node do something with one of its disks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskChange {
    /// The node.
    pub node: NodeId,
    /// The disk's folder there, from the root.
    pub folder: String,
    /// The change that is asked for.
    pub action: DiskAction,
}

/// A change of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskAction {
    /// Make it, with so many bytes of pages, and use it.
    Add(u64),
    /// Bring what is on it elsewhere.
    Drain,
    /// Let it take buckets again.
    Resume,
    /// Take it out: it has nothing any more, or failed.
    Remove,
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
    /// It holds their data bucket; else a parity bucket (a copy).
    pub data: bool,
}

/// The keys that a node holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyRangeAnswer {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// Its spans, in order of pool and slot.
    pub spans: Vec<KeySpan>,
}

/// Names a group, to ask a node for its part in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupTarget {
    /// The group.
    pub group: GroupId,
}

/// A node's part in a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupStateAnswer {
    /// A JSON document.
    pub json: Bytes,
}

/// Asks a node for the sums of pages of its part in a group, for scrubbing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupSums {
    /// The group.
    pub group: GroupId,
    /// The member: a node may hold two of a group.
    pub slot: MemberSlot,
    /// The first page.
    pub page: u32,
    /// The number of pages; the node may send fewer.
    pub count: u32,
}

/// Sums of pages, with the pages' labels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupSumsAnswer {
    /// The node's member slot.
    pub slot: MemberSlot,
    /// The open epoch.
    pub epoch: Epoch,
    /// The end of its page table: no page from here on was ever written.
    pub end: u32,
    /// Of those that are here.
    pub sums: Vec<PageSum>,
}

/// One page's sum, with its labels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageSum {
    /// The page.
    pub page: u32,
    /// Its label of each stream; `None` for streams that it says nothing of.
    pub labels: Vec<Option<Label>>,
    /// The sum; empty for a page that is all zero.
    pub sum: Bytes,
}

/// Tells a parity bucket that a page of it is not the code of the data: it makes it anew from the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupMend {
    /// The group.
    pub group: GroupId,
    /// The node's member slot.
    pub slot: MemberSlot,
    /// The page.
    pub page: u32,
    /// The labels with which it was seen to be wrong: with others nothing is done.
    pub labels: Vec<Option<Label>>,
}

// On the wire.

wire_struct!(GroupTarget { group });
wire_struct!(GroupStateAnswer { json });
wire_struct!(GroupSums {
    group,
    slot,
    page,
    count
});
wire_struct!(GroupMend {
    group,
    slot,
    page,
    labels
});
wire_struct!(GroupSumsAnswer {
    slot,
    epoch,
    end,
    sums
});
wire_struct!(PageSum { page, labels, sum });

wire_struct!(StatusAnswer { json });
wire_struct!(NodeTarget { node });
wire_struct!(DiskChange {
    node,
    folder,
    action
});
wire_enum!(DiskAction { 0 => Add(bytes), 1 => Drain, 2 => Resume, 3 => Remove });
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
