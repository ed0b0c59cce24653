//! The calls of a group's members to the directory.

use serde::{Deserialize, Serialize};

use crate::change::GroupStep;
use crate::ids::{Epoch, GroupId, MemberSlot};

/// A call to the directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DirectoryCall {
    /// The group has come to this step: take it.
    Step(GroupStep),
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

impl From<GroupStep> for DirectoryCall {
    fn from(step: GroupStep) -> DirectoryCall {
        DirectoryCall::Step(step)
    }
}
