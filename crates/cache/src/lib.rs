//! The key-value service: what the bytes of a cache pool's bucket mean, and the commands on them.
//!
//! **Promises.** Each command on one key is atomic and linearizable: a write is answered once every copy
//! has it, a read returns only what every copy has, and only under a lease (I7, I8). A retried request
//! takes effect once (I9). A write that finds no memory changes nothing anywhere. A large value is
//! there whole or not at all. Answers and errors are Redis's, in meaning and in words.
//!
//! **Path of the data.** A door calls [`Bucket::submit_with`]. A read of a settled key under a lease is
//! answered there and then, out of the pages. A write is decided (`command`) against the key's old
//! value, given a place (`write`), and becomes one delta of the group (`edit`): append the new record,
//! mark the old one dead. Its answer waits in `waiting` until the group's low watermark has passed it;
//! [`Bucket::step`], which the driver calls with whatever arrives, lets it go. At each copy the same
//! delta passes through [`Kv::note`], so that the copy has the index when it is promoted.
//!
//! **Invariants.** The index is what a scan of the pages would find, at the data bucket and at every
//! complete copy, after each delta ([`Bucket::check`]). A key has at most one live record. A chunk of a
//! large value is named by one live record, belongs to a write in progress, or is about to be given
//! back. Nothing waits past its deadline, and what waits is bounded in number and in bytes.
//!
//! **Layout.** `record`: the bytes, drawn. `index`, `segments`, `kv`: what is known of them.
//! `command`, `answer`: what commands mean. `edit`, `compact`: changes. `waiting`, `bucket`, `write`,
//! `large`: the machine.
//!
//! **Not here.** Agreement between members (`staves-group`), routing of keys to buckets and the RESP
//! door (`staves-node`), expiry and eviction (records have room for the first, segments for the second).
//! Pools with m > 1: deltas here replace bytes.

mod answer;
mod bucket;
mod command;
mod compact;
mod edit;
mod index;
mod kv;
mod large;
mod record;
mod segments;
mod waiting;
mod write;

use std::time::Duration;

pub use answer::{AnswerRef, KEPT_ANSWER_BYTES_MAX, Refused};
pub use bucket::{Bucket, BucketEffects, Stats};
pub use kv::Kv;
pub use waiting::Ask;

/// What an operator or a test may set.
#[derive(Clone, Debug)]
pub struct Options {
    /// Longest value.
    pub value_bytes_max: usize,
    /// Longest record that lies in one piece; a longer value is cut into chunks. At most, and by
    /// default, what fits into a segment.
    pub inline_bytes_max: usize,
    /// Bytes of a chunk; at most, and by default, what fits into a segment.
    pub chunk_bytes: usize,
    /// Chunks of a large value written in one step.
    pub chunks_per_step: usize,
    /// Most bytes that one compaction writes.
    pub compaction_bytes_max: usize,
    /// Compaction begins when so many percent of the segments' bytes are waste.
    pub waste_percent_max: u64,
    /// Answers that wait for the copies: most of them, and most bytes of values in them.
    pub waiting_max: usize,
    /// See `waiting_max`.
    pub waiting_bytes_max: usize,
    /// Requests that could not begin: most of them, and most bytes (one request may pass it).
    pub parked_max: usize,
    /// See `parked_max`.
    pub parked_bytes_max: usize,
    /// Memory that was asked for and not granted for so long is refused. Longer than it takes to remove
    /// a copy that has died, which is no refusal.
    pub grant_wait: Duration,
    /// Memory that was refused is not asked for again for so long.
    pub refused_for: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            value_bytes_max: staves_wire::cache::VALUE_BYTES_MAX,
            inline_bytes_max: record::SEGMENT_ROOM,
            chunk_bytes: record::SEGMENT_ROOM,
            chunks_per_step: 64,
            compaction_bytes_max: 1 << 20,
            waste_percent_max: 40,
            waiting_max: 65_536,
            waiting_bytes_max: 64 << 20,
            parked_max: 4096,
            parked_bytes_max: 32 << 20,
            grant_wait: Duration::from_millis(1000),
            refused_for: Duration::from_millis(2000),
        }
    }
}
