//! Requests for registers that wait at a node.

use crate::event::Place;

/// A write that waits for stable.
pub struct WaitingWrite {
    pub(crate) client: Place,
    pub(crate) number: u64,
    pub(crate) seq: u64,
}

/// A read that waits for a lease, and then for what it saw to be stable. The lease must hold when it
/// is answered too: the value would be one that an order explains, but no deposed data bucket speaks.
pub struct WaitingRead {
    pub(crate) client: Place,
    pub(crate) number: u64,
    pub(crate) register: usize,
    pub(crate) seen: Option<(u64, u64)>,
}

/// The requests that wait at a node.
#[derive(Default)]
pub struct Waiting {
    /// Writes.
    pub writes: Vec<WaitingWrite>,
    /// Reads.
    pub reads: Vec<WaitingRead>,
}
