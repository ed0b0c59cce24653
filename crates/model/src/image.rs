//! Images: snapshots and clones of volumes.
//!
//! An image is a region with a name, a size and a session of its own, whose stretches are those of the volume that it was copied from:
//! the buckets tell them apart by their numbers, and keep what several have once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::RegionId;

/// Most images of the volumes that share buckets. A bucket bears a few more, so that some that are not known any more do no harm.
pub const IMAGES_MAX: usize = 60;
/// Most images of all volumes together: each is in every map that is sent.
pub const IMAGES_OF_ALL_MAX: usize = 1024;

/// The images of a map, by region.
pub type Images = BTreeMap<RegionId, Image>;

/// One image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Image {
    /// Its number in the buckets; 0 for the volume that they were made for.
    pub number: u32,
    /// The origin: its own id for the volume that the buckets were made for.
    pub of: RegionId,
    /// Its kind.
    pub kind: ImageKind,
    /// Its state.
    pub state: ImageState,
    /// The time of the copy by the clock of who asked for it, in milliseconds since 1970.
    pub at_ms: u64,
}

/// The kind of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ImageKind {
    /// The volume that the buckets were made for.
    Original,
    /// Nobody writes to it.
    Snapshot,
    /// A volume like others.
    Clone,
}

/// The state of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ImageState {
    /// The buckets are being told. Nobody opens it yet, and its origin is not written to meanwhile.
    Copying {
        /// The origin's session after the copy; 0 if nobody writes to that.
        session: u64,
        /// Those that are copied together: the first of them.
        together: RegionId,
    },
    /// In use.
    Ready,
    /// The buckets give back what no other image has.
    Deleting,
}

impl Image {
    /// True while the buckets are being told of it.
    pub fn is_copying(&self) -> bool {
        matches!(self.state, ImageState::Copying { .. })
    }
}

/// A copy of a volume that is to be made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeCopy {
    /// The volume or the snapshot that is copied.
    pub of: String,
    /// The name of the copy: of a snapshot the part behind the `@`.
    pub name: String,
}

/// The name of a snapshot.
pub fn snapshot_name(volume: &str, snapshot: &str) -> String {
    format!("{volume}@{snapshot}")
}
