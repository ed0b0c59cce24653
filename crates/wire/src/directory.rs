//! Messages to, from and about the directory: the map, proposals, failure evidence.
//!
//! What the directory's own crates define (Raft's requests, `Change`, `ClusterMap`) travels as their
//! bytes: this crate carries it and does not look into it.

use bytes::{BufMut, Bytes, BytesMut};
use staves_model::{ClusterMap, Incarnation, NodeId, Revision};
pub use staves_model::{Evidence, Sign};

use crate::codec::{DecodeError, Reader, Wire, check_group, check_pool, wire_enum, wire_struct};

/// Most bytes of a name, zone or address.
pub const NAME_BYTES_MAX: usize = 255;

/// The kind of one of Raft's requests.
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
    /// Its kind.
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

/// The outcome of a proposal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Proposed {
    /// It took effect.
    Applied {
        /// The map's revision since then.
        revision: Revision,
        /// The change's own outcome (ids that were given and the like), in the directory's bytes.
        outcome: Bytes,
    },
    /// It was refused; nothing changed.
    Refused {
        /// The map's revision.
        revision: Revision,
        /// The reason.
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

/// Signs of other nodes' life or death, for the directory's leader. Answered by `Done`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The node that saw them; 0 for a client.
    pub from: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// The signs.
    pub seen: Vec<Evidence>,
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
impl Wire for Sign {
    fn put(&self, out: &mut BytesMut) {
        match self {
            // Nodes say to each other how late one answers; here it did not in time.
            Sign::Silent | Sign::Slow => {
                out.put_u8(0);
                // The length of the silence, which has lost its meaning.
                out.put_u32_le(0);
            }
            Sign::Refused => out.put_u8(1),
            Sign::Failed => out.put_u8(2),
            Sign::Alive => out.put_u8(3),
        }
    }

    fn take(from: &mut Reader) -> Result<Sign, DecodeError> {
        match u8::take(from)? {
            0 => u32::take(from).map(|_| Sign::Silent),
            1 => Ok(Sign::Refused),
            2 => Ok(Sign::Failed),
            3 => Ok(Sign::Alive),
            tag => Err(DecodeError::Tag {
                what: "Sign",
                tag: u64::from(tag),
            }),
        }
    }
}

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
