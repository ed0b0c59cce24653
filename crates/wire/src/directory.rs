//! Messages to, from and about the directory: the map, proposals, joining, leases, failure evidence.
//!
//! What the directory's own crates define (Raft's requests, `Change`, `ClusterMap`) travels as their
//! bytes: this crate carries it and does not look into it.

use bytes::Bytes;
use staves_model::{
    ClusterId, ClusterMap, Epoch, GroupId, Incarnation, MemberSlot, NodeId, Revision, Time,
};

use crate::codec::{DecodeError, check_group, check_pool, wire_enum, wire_struct};

/// Most bytes of a name, zone or address.
pub const NAME_BYTES_MAX: usize = 255;

/// Which of Raft's requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RaftKind {
    /// AppendEntries.
    Append,
    /// RequestVote.
    Vote,
    /// InstallSnapshot.
    Snapshot,
}

/// A request of Raft between voters. Answered by [`RaftAnswer`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Raft {
    /// Which.
    pub kind: RaftKind,
    /// Its bytes.
    pub body: Bytes,
}

/// Raft's answer, in its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RaftAnswer {
    /// Its bytes.
    pub body: Bytes,
}

/// Asks the directory's leader to make a change. Answered by [`Proposed`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Propose {
    /// Refuse if the map has moved on from here (`None`: the change carries its own conditions).
    pub expected: Option<Revision>,
    /// The change's bytes.
    pub change: Bytes,
}

/// What became of a proposal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Proposed {
    /// It took effect.
    Applied {
        /// The map's revision since then.
        revision: Revision,
        /// What it yielded (ids handed out and the like), in the directory's bytes.
        outcome: Bytes,
    },
    /// It was refused; nothing changed.
    Refused {
        /// The map's revision.
        revision: Revision,
        /// Why.
        reason: String,
    },
    /// The node asked does not lead; perhaps it knows who does.
    NotLeader {
        /// The leader, as far as known, and its native address.
        leader: Option<(NodeId, String)>,
    },
}

/// Asks any node for its map. Answered by [`MapAnswer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GetMap {
    /// The revision that the asker has (0: none).
    pub known: Revision,
    /// Wait up to this long for one that is newer; 0 answers at once.
    pub wait_ms: u32,
}

/// A node's map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapAnswer {
    /// Its revision (in the frame header's `epoch`).
    pub revision: Revision,
    /// The `ClusterMap` in postcard; `None` if it is not newer than what the asker has.
    pub map: Option<Bytes>,
}

impl MapAnswer {
    /// The answer to one who knows `known`: the map, unless that is as new.
    pub fn new(map: &ClusterMap, known: Revision) -> MapAnswer {
        let newer = (map.revision > known).then(|| {
            let bytes = postcard::to_allocvec(map)
                .expect("a ClusterMap is plain data: postcard writes it to memory without fail");
            Bytes::from(bytes)
        });
        MapAnswer {
            revision: map.revision,
            map: newer,
        }
    }

    /// The map, if it is newer than what was known; groups and pools that break the rules of their type are
    /// refused.
    pub fn read(&self) -> Result<Option<ClusterMap>, DecodeError> {
        let wrong = |reason| DecodeError::Invalid {
            what: "a cluster map",
            reason,
        };
        let Some(bytes) = &self.map else {
            return Ok(None);
        };
        let (map, rest) = postcard::take_from_bytes::<ClusterMap>(bytes)
            .map_err(|_| wrong("its bytes do not decode"))?;
        if !rest.is_empty() {
            return Err(wrong("bytes are left after its end"));
        }
        map.groups
            .values()
            .try_for_each(check_group)
            .map_err(wrong)?;
        map.pools.values().try_for_each(check_pool).map_err(wrong)?;
        Ok(Some(map))
    }
}

/// A starting node asks to be part of the cluster (again). Answered by [`Joined`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Join {
    /// The cluster that its data folder belongs to; 0 if it belongs to none yet.
    pub cluster: ClusterId,
    /// Its id from its data folder; `None` asks for a new one.
    pub node: Option<NodeId>,
    /// The incarnation of its last life, from its data folder; 0 if none.
    pub last_incarnation: Incarnation,
    /// A name for people.
    pub name: String,
    /// Its zone.
    pub zone: Option<String>,
    /// Where the native protocol is reached.
    pub native: String,
    /// Where RESP is reached.
    pub resp: String,
    /// Where the admin HTTP door is reached.
    pub admin: String,
    /// Memory for pages, in bytes.
    pub memory_bytes: u64,
    /// Whether it keeps its vote on disk.
    pub durable: bool,
}

/// Welcome to the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joined {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node's id.
    pub node: NodeId,
    /// This life of it.
    pub incarnation: Incarnation,
    /// The map's revision since then.
    pub revision: Revision,
    /// Something of the directory's own that the joiner needs (its first map, the voters), in its bytes.
    pub extra: Bytes,
}

/// A node leaves for good (or for now) and says so. Answered by `Done`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leave {
    /// The node.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
}

/// A node asks the directory's leader for leases of its data buckets, all at once. Answered by [`Lease`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseRequest {
    /// Who asks.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// The asker's clock, echoed: the lease counts from here (GROUP, promises and leases).
    pub clock: Time,
    /// The data buckets and the open epochs that it serves them in.
    pub wanted: Vec<(GroupId, Epoch)>,
}

/// The leases that were granted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lease {
    /// The echoed clock.
    pub clock: Time,
    /// The map's revision at the directory's leader (in the frame header's `epoch`).
    pub revision: Revision,
    /// Granted, of those wanted.
    pub granted: Vec<(GroupId, Epoch)>,
}

/// What somebody saw of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sign {
    /// No answer for this long, in milliseconds.
    Silent(u32),
    /// The connection was refused: nobody listens there.
    Refused,
    /// The connection broke.
    Reset,
    /// It answered.
    Alive,
}

/// One observation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Evidence {
    /// Of this node.
    pub node: NodeId,
    /// And this life of it.
    pub incarnation: Incarnation,
    /// What was seen.
    pub sign: Sign,
}

/// What a node (or a client) saw of others, for the directory's leader. Answered by `Done`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Who saw it; 0 for a client.
    pub from: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// What it saw.
    pub seen: Vec<Evidence>,
}

/// The directory's leader asks a second node to look (row D5). Answered by [`ProbeAnswer`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// The suspect.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Where it should be.
    pub addr: String,
}

/// What the second node saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeAnswer {
    /// The suspect.
    pub node: NodeId,
    /// What was seen.
    pub sign: Sign,
}

/// What a group's member wants of the directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DirectoryCall {
    /// The leader of an epoch: all hold the cut, open it (GROUP rule 11).
    Open {
        /// The group.
        group: GroupId,
        /// The epoch.
        epoch: Epoch,
    },
    /// A joiner: all my pages are done (GROUP rule 16).
    Complete {
        /// The group.
        group: GroupId,
        /// The epoch.
        epoch: Epoch,
        /// The joiner's member slot.
        slot: MemberSlot,
        /// Its life.
        incarnation: Incarnation,
    },
    /// A leader or data bucket: these members do not go along; leave them out.
    Stuck {
        /// The group.
        group: GroupId,
        /// The epoch.
        epoch: Epoch,
        /// Their member slots.
        slots: Vec<MemberSlot>,
    },
}

/// Calls of many members of one node, together. Answered by `Done` once each was decided; the caller
/// sees by the map what became of each, and calls again until then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Calls {
    /// Who calls.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// What its members want.
    pub calls: Vec<DirectoryCall>,
}

// On the wire.

wire_enum!(RaftKind { 0 => Append, 1 => Vote, 2 => Snapshot });
wire_struct!(Raft { kind, body });
wire_struct!(RaftAnswer { body });
wire_struct!(Propose { expected, change });
wire_enum!(Proposed {
    0 => Applied { revision, outcome },
    1 => Refused { revision, reason },
    2 => NotLeader { leader },
});
wire_struct!(GetMap { known, wait_ms });
wire_struct!(MapAnswer [revision] { map });
wire_struct!(Join {
    cluster,
    node,
    last_incarnation,
    name,
    zone,
    native,
    resp,
    admin,
    memory_bytes,
    durable,
});
wire_struct!(Joined {
    cluster,
    node,
    incarnation,
    revision,
    extra
});
wire_struct!(Leave { node, incarnation });
wire_struct!(LeaseRequest {
    node,
    incarnation,
    clock,
    wanted
});
wire_struct!(Lease [revision] { clock, granted });
wire_enum!(Sign { 0 => Silent(ms), 1 => Refused, 2 => Reset, 3 => Alive });
wire_struct!(Evidence {
    node,
    incarnation,
    sign
});
wire_struct!(Report {
    from,
    incarnation,
    seen
});
wire_struct!(Probe {
    node,
    incarnation,
    addr
});
wire_struct!(ProbeAnswer { node, sign });
wire_enum!(DirectoryCall {
    0 => Open { group, epoch },
    1 => Complete { group, epoch, slot, incarnation },
    2 => Stuck { group, epoch, slots },
});
wire_struct!(Calls {
    node,
    incarnation,
    calls
});
