//! Names of things: each a newtype, so that an epoch is never taken for a sequence number.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id!(
    /// One `staves` process's place in the cluster. Kept across restarts where there is a data folder.
    /// The directory hands out small numbers.
    NodeId(u64), "n"
);
id!(
    /// One of the disks of a node. A node without disks keeps members in memory, under the two ids below.
    DiskId(u32), "d"
);
id!(
    /// The life of a node: raised by the directory each time that the node's process starts.
    Incarnation(u64), "i"
);
id!(
    /// A group's membership version. It fences everything older.
    Epoch(u64), "e"
);
id!(
    /// A pool: a named container with a kind, a scheme, a medium and a budget.
    PoolId(u32), "p"
);
id!(
    /// A region of a memory pool: flat bytes with a name.
    RegionId(u32), "m"
);
id!(
    /// A group of m data and k parity buckets.
    GroupId(u32), "g"
);
id!(
    /// The cluster map's version: raised by every change that takes effect.
    Revision(u64), "r"
);
id!(
    /// A member's position in its group: `0..m` are data buckets, `m..` are parity (copies when m = 1).
    MemberSlot(u8), "s"
);
id!(
    /// A service on groups, by its number on the wire.
    ServiceId(u8), "service "
);

impl ServiceId {
    /// Key-value records in hash slots.
    pub const CACHE: ServiceId = ServiceId(1);
    /// Flat bytes in regions.
    pub const MEMORY: ServiceId = ServiceId(2);
    /// Logs: its pools are of the kind that the map knows by the service's number alone.
    pub const LOG: ServiceId = ServiceId(3);

    /// True if a kind of pools is this service's alone.
    pub fn has_kind(self) -> bool {
        matches!(self, ServiceId::CACHE | ServiceId::MEMORY)
    }

    /// A word for people.
    pub fn word(self) -> &'static str {
        match self {
            ServiceId::CACHE => "key-value",
            ServiceId::MEMORY => "memory",
            ServiceId::LOG => "log",
            _ => "unknown",
        }
    }
}

id!(
    /// One of the 16,384 hash slots of a key-value pool.
    HashSlot(u16), "h"
);
id!(
    /// The sender of requests: one id per client (or per door of a node) and life of it.
    ClientId(u64), "c"
);

impl NodeId {
    /// Ids of nodes are below this.
    pub const END: NodeId = NodeId(1 << 62);
}

impl From<u64> for NodeId {
    fn from(id: u64) -> NodeId {
        NodeId(id)
    }
}

impl DiskId {
    /// The node's memory.
    pub const MEMORY: DiskId = DiskId(0);
    /// The node's memory again, for a second member of the same group (m > 1) where nodes are too few.
    pub const SECOND: DiskId = DiskId(1);
}

/// A member of a group: one life of a node, and the disk that holds the member's pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct MemberId {
    /// The node.
    pub node: NodeId,
    /// The disk of that node.
    pub disk: DiskId,
    /// The life of that node. Another life is another member.
    pub incarnation: Incarnation,
}

impl MemberId {
    /// A member in the memory of a node.
    pub fn new(node: NodeId, incarnation: Incarnation) -> MemberId {
        MemberId {
            node,
            disk: DiskId::MEMORY,
            incarnation,
        }
    }

    /// The second member of the same group in the memory of the same node.
    pub fn second(self) -> MemberId {
        MemberId {
            disk: DiskId::SECOND,
            ..self
        }
    }

    /// The node and its disk, in whatever life.
    pub fn place(self) -> (NodeId, DiskId) {
        (self.node, self.disk)
    }

    /// True if it is the second member that its node holds.
    pub fn is_second(self) -> bool {
        self.disk == DiskId::SECOND
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{self}{:?}", self.incarnation)
    }
}

/// The node, with a mark if it is the second member that the node holds.
impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.is_second() { "'" } else { "" };
        write!(f, "{}{mark}", self.node)
    }
}

/// The cluster's own name, made at bootstrap; a node of another cluster is refused. Shown as 16 hexadecimal digits
/// wherever it is shown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterId(pub u64);

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cl{self}")
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Incarnation {
    /// The life of a member that its node has no more; no node has it.
    pub const NONE: Incarnation = Incarnation(0);
}

impl Epoch {
    /// The epoch after this one.
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

impl Revision {
    /// The revision after this one.
    pub fn next(self) -> Revision {
        Revision(self.0 + 1)
    }
}

impl MemberSlot {
    /// As an index into a group's member list.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A delta's label: made once by its data bucket, never changed. Labels compare as pairs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Label {
    /// The epoch in which the data bucket made the delta.
    pub epoch: Epoch,
    /// Its number in the data bucket's stream, from 1; 0 is "never written".
    pub seq: u64,
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch.0, self.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: logs and errors named a cluster in decimal digits, JSON in hexadecimal ones.
    #[test]
    fn a_cluster_is_shown_in_one_form_everywhere() {
        assert_eq!(ClusterId(0x5eed).to_string(), "0000000000005eed");
        assert_eq!(format!("{:?}", ClusterId(0x5eed)), "cl0000000000005eed");
    }
}
