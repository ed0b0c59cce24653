//! Entries of the tables at the map's end: of volumes that several clients share.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{Incarnation, NodeId, RegionId};

/// The use of one such volume.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SharedVolume {
    /// The session that the present use began with: copies of the volume raise its number, and the same clients go on.
    pub began: u64,
    /// The doors through which clients write, by node.
    pub doors: BTreeMap<NodeId, SharedDoor>,
}

/// A door through which clients write to a shared volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SharedDoor {
    /// The life of its node.
    pub incarnation: Incarnation,
    /// The revision with which its last client began to write.
    pub joined: u64,
}

/// The shared volumes of a map.
pub type SharedVolumes = BTreeMap<RegionId, SharedVolume>;
