//! The room that the journal of a node's disk has for updates, as its members know it.
//!
//! A delta that was made or taken in is never refused by the disk, so none is while there is little room: first data buckets make no more, then
//! copies take in no more. What is left is for what was on its way, and for the records with which room is made.

use std::sync::atomic::{AtomicU8, Ordering};

/// Members made with the same options share it.
#[derive(Debug, Default)]
pub struct DiskRoom {
    level: AtomicU8,
}

/// Data buckets make no more updates.
const LITTLE: u8 = 1;
/// Nor do copies take any in.
const NONE: u8 = 2;

impl DiskRoom {
    /// So many bytes of so many are taken.
    pub fn set_taken(&self, taken: u64, of: u64) {
        let level = match taken {
            taken if taken >= of / 16 * 11 => NONE,
            taken if taken >= of / 2 => LITTLE,
            _ => 0,
        };
        self.level.store(level, Ordering::Relaxed);
    }

    /// True if a data bucket may make an update.
    pub fn admits(&self) -> bool {
        self.level.load(Ordering::Relaxed) < LITTLE
    }

    /// True if a copy may take in a delta, and a member that is being filled may ask for pages.
    pub(crate) fn takes_in(&self) -> bool {
        self.level.load(Ordering::Relaxed) < NONE
    }
}
