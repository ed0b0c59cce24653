//! The calls of a group's members to the directory.

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, GroupId, Incarnation, MemberSlot};

/// A call to the directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DirectoryCall {
    /// All listed members hold the cut: open the epoch.
    Open {
        /// The group.
        group: GroupId,
        /// The epoch to open.
        epoch: Epoch,
    },
    /// All pages of this member are here.
    Complete {
        /// The group.
        group: GroupId,
        /// The open epoch.
        epoch: Epoch,
        /// The member.
        slot: MemberSlot,
        /// Its life.
        incarnation: Incarnation,
    },
    /// These members have not answered for too long, or cannot hold the bucket: go on without them.
    Stuck {
        /// The group.
        group: GroupId,
        /// The epoch in which they are listed.
        epoch: Epoch,
        /// The member slots.
        slots: Vec<MemberSlot>,
    },
}
