//! The key-value service: what the bytes of a cache pool's bucket mean, and the commands on them.
//!
//! **Promises.** Each command on one key is atomic and linearizable, as `staves-service` promises. A write
//! that finds no memory changes nothing anywhere. A large value is there whole or not at all. Answers and
//! errors are Redis's, in meaning and in words.
//!
//! **Path of the data.** A door submits an operation to the [`Bucket`]. A read of a settled key under a
//! lease is answered at once, out of the pages. A write is decided (`command`) against the key's old
//! value, given a place (`write`), and becomes one delta of the group (`edit`): the new record over the
//! old one where it fits, else at the end of a segment, with a mark that the old one is dead. At each copy
//! the same delta passes through [`Kv::note`], so that the copy has the index when it is promoted.
//!
//! **Invariants.** The index is what a scan of the pages would find, at the data bucket and at every
//! complete copy, after each delta (`Bucket::check`). A key has at most one live record. A chunk of a
//! large value is named by one live record, belongs to a write in progress, or is about to be given
//! back.
//!
//! **Layout.** `record`: the bytes, drawn. `index`, `segments`, `kv`, `scan`: what is known of them.
//! `command`: what commands mean. `edit`, `compact`: changes. `cache`, `write`, `large`: the service.
//!
//! **Not here.** The bucket around the service (`staves-service`), routing of keys to buckets and the RESP
//! door (`staves-node`), expiry and eviction (records have room for the first, segments for the second).
//! Pools with m > 1: deltas here replace bytes.

mod cache;
mod command;
mod compact;
mod edit;
mod index;
mod kv;
mod large;
mod record;
mod scan;
mod segments;
mod write;

use staves_service::Limits;

pub use cache::{Cache, Stats};
pub use kv::Kv;

/// A bucket of a cache pool, at a data bucket or at a copy of it.
pub type Bucket = staves_service::Bucket<Cache>;

/// The options of a cache pool's buckets.
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
    /// Bounds on what waits, and on waits for memory.
    pub limits: Limits,
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
            limits: Limits::default(),
        }
    }
}
