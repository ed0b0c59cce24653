//! The memory service: flat bytes in the pages of a data bucket, and what is done to them.
//!
//! **Promises.** Each operation on one bucket is atomic and linearizable: a write is answered once every
//! parity bucket has it, a read returns only what they have, and only under a lease (I7, I8). A retried
//! request takes effect once (I9). A write that finds no memory changes nothing anywhere. What was
//! never written reads as zeroes and takes up no memory. While a lost bucket is rebuilt it answers all
//! the same: a page that is asked for is rebuilt first (row H6).
//!
//! **Path of the data.** A region's offset names a bucket and an offset in it (`staves_model::Region`).
//! A door calls [`Bucket::submit`]. `chunks` says where the chunk lies in the bucket's pages; a write to a
//! chunk that has no place yet takes the next one, in the same delta. Reads of pages that everybody has
//! are answered at once; all else waits, in `waiting` for the low watermark, in the queue for memory, for the log,
//! for a lease or for pages that are being rebuilt. [`Bucket::step`], which the driver calls with whatever
//! arrives, lets it go.
//!
//! **Invariants.** A chunk has at most one place and a place at most one chunk; places are taken in
//! order, so that data buckets of a group that hold much take up as many extents at parity as the
//! fullest of them. Nothing waits past its deadline, and what waits is bounded in number and in bytes.
//!
//! **Layout.** `chunks`: where chunks lie, drawn. `room`: memory for them. `waiting`: who waits. `bucket`: the
//! machine; `execute`: what operations do.
//!
//! **Not here.** Agreement between members (`staves-group`), which bucket a byte is in
//! (`staves-model`), regions and how they are cut into operations (`staves-client`).

mod bucket;
mod chunks;
mod execute;
mod room;
mod waiting;

use std::time::Duration;

pub use bucket::{Ask, Bucket, Stats};

/// Answers to requests that were not answered at once, by token.
pub type Answers = Vec<(u64, staves_wire::cache::Answer)>;

/// What an operator or a test may set.
#[derive(Clone, Debug)]
pub struct Options {
    /// Answers that wait for parity: most of them, and most bytes in them.
    pub waiting_max: usize,
    /// See `waiting_max`.
    pub waiting_bytes_max: usize,
    /// Requests that could not begin: most of them, and most bytes (one request may pass it).
    pub parked_max: usize,
    /// See `parked_max`.
    pub parked_bytes_max: usize,
    /// Memory that was asked for and not granted for so long is refused. Longer than it takes to remove
    /// a member that has died, which is no refusal.
    pub grant_wait: Duration,
    /// Memory that was refused is not asked for again for so long.
    pub refused_for: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            waiting_max: 65_536,
            waiting_bytes_max: 64 << 20,
            parked_max: 4096,
            parked_bytes_max: 32 << 20,
            grant_wait: Duration::from_millis(1000),
            refused_for: Duration::from_millis(2000),
        }
    }
}
