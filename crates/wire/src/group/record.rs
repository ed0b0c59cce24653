//! Records of the journal of a node's disk: the deltas that its members of groups take in, and where they stand.
//!
//! ```text
//! record    group (4), then a tag (1) and
//!           0 delta      stream (1), synced by all (8), the delta as it is on the wire
//!           1 snapshot   join (8), epoch (8), whole (1), slot (1), the group's entry of the map, reserved extents (4), copied deltas (4), streams: prefix (8), requests
//!           2 gone       nothing
//!           3 copied     as a delta
//! ```

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use staves_model::{Epoch, Group, GroupId, MemberSlot};

use super::{Delta, DoneRequest};
use crate::codec::{DecodeError, Wire, decode_whole, wire_enum, wire_struct};

/// A record of one member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalRecord {
    /// Its group.
    pub group: GroupId,
    /// The record.
    pub record: MemberRecord,
}

/// The content of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemberRecord {
    /// The next delta of a stream.
    Delta {
        /// The data bucket's member slot.
        stream: u8,
        /// Every listed member has synced the stream up to here.
        purgeable: u64,
        /// The delta.
        delta: Delta,
    },
    /// The member's stand. All that its streams have beyond it is dropped.
    Snapshot(MemberSnapshot),
    /// It is a member no more.
    Gone,
    /// A delta once more, for the snapshot that follows: what came before that is let go, and the delta is still needed.
    Copied {
        /// The data bucket's member slot.
        stream: u8,
        /// Every listed member has synced the stream up to here.
        purgeable: u64,
        /// The delta.
        delta: Delta,
    },
}

/// All that a member keeps beside its pages and its log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberSnapshot {
    /// The epoch in which it joined: pages of an earlier membership do not count.
    pub join: Epoch,
    /// The epoch to whose cut it was brought last.
    pub epoch: Epoch,
    /// It joined with every page: all were zero.
    pub whole: bool,
    /// Its member slot.
    pub slot: MemberSlot,
    /// The directory's entry by which it stands.
    pub view: Arc<Group>,
    /// Extents that it has reserved.
    pub reserved_extents: u32,
    /// The log is that of so many copied deltas, which come right before; 0: it goes on.
    pub copied: u32,
    /// Every stream of the group.
    pub streams: Vec<SnapshotStream>,
}

/// A stream at a member's snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotStream {
    /// Every delta up to here was received.
    pub prefix: u64,
    /// The request table as of `prefix`.
    pub requests: Vec<DoneRequest>,
}

wire_struct!(JournalRecord { group, record });
wire_enum!(MemberRecord {
    0 => Delta { stream, purgeable, delta },
    1 => Snapshot(snapshot),
    2 => Gone,
    3 => Copied { stream, purgeable, delta },
});
wire_struct!(MemberSnapshot {
    join,
    epoch,
    whole,
    slot,
    view,
    reserved_extents,
    copied,
    streams
});
wire_struct!(SnapshotStream { prefix, requests });

impl JournalRecord {
    /// Appends its bytes.
    pub fn encode(&self, out: &mut BytesMut) {
        self.put(out);
    }

    /// Reads one.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn decode(bytes: Bytes) -> Result<JournalRecord, DecodeError> {
        decode_whole(bytes)
    }
}
