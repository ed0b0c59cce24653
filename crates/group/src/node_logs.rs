//! The logs of all members of a node together, and their bound.
//!
//! While a copy does not answer, the logs of its groups grow at every other member: each to its own bound, and a node
//! has dozens of members. So they share one, too. A data bucket makes no more updates when three quarters are taken; copies
//! take in what was made meanwhile, up to the bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A member counts its bytes in steps of so many: all members of a node count in one place.
const STEP_BYTES: usize = 16 << 10;

/// Members made with the same options share it.
#[derive(Debug)]
pub struct NodeLogs {
    bytes_max: usize,
    held: AtomicUsize,
}

impl NodeLogs {
    /// With a bound of so many bytes.
    pub fn new(bytes_max: usize) -> NodeLogs {
        NodeLogs {
            bytes_max,
            held: AtomicUsize::new(0),
        }
    }

    /// Bytes of deltas that the logs of its members hold, to some KiB for each.
    pub fn held_bytes(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// True if a data bucket may make an update of this weight.
    pub(crate) fn has_room_for(&self, weight: usize) -> bool {
        self.held_bytes().saturating_add(weight) <= self.bytes_max - self.bytes_max / 4
    }

    /// Bytes that copies may still take in.
    pub(crate) fn free_bytes(&self) -> usize {
        self.bytes_max.saturating_sub(self.held_bytes())
    }
}

/// The bytes in the logs of one member, as its node counts them.
#[derive(Debug)]
pub(crate) struct CountedLogs {
    of: Arc<NodeLogs>,
    counted: usize,
}

impl CountedLogs {
    pub(crate) fn new(of: Arc<NodeLogs>) -> CountedLogs {
        CountedLogs { of, counted: 0 }
    }

    pub(crate) fn set(&mut self, bytes: usize) {
        let counted = bytes / STEP_BYTES * STEP_BYTES;
        if counted > self.counted {
            let more = counted - self.counted;
            self.of.held.fetch_add(more, Ordering::Relaxed);
        } else if counted < self.counted {
            self.of
                .held
                .fetch_sub(self.counted - counted, Ordering::Relaxed);
        }
        self.counted = counted;
    }
}

impl Drop for CountedLogs {
    fn drop(&mut self) {
        self.set(0);
    }
}
