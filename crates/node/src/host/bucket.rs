//! A bucket of either service, as the driver sees it.

use staves_group::{Event, Member};
use staves_memory::Memory;
use staves_model::Time;
use staves_service::BucketEffects;

/// One bucket: the pool's kind says which.
#[allow(clippy::large_enum_variant)] // each lies once in a cell, which lies on the heap
pub(crate) enum Bucket {
    /// Keys and values.
    Cache(staves_cache::Bucket),
    /// Bytes of regions.
    Memory(staves_memory::Bucket),
}

/// What a bucket did and holds, in numbers.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) reads: u64,
    pub(crate) hits: u64,
    pub(crate) writes: u64,
    /// Keys, and bytes of keys and values; both only where it serves.
    pub(crate) keys: u64,
    pub(crate) live_bytes: u64,
    pub(crate) region_reads: u64,
    pub(crate) region_writes: u64,
    pub(crate) region_bytes: u64,
}

impl Bucket {
    /// The group's member.
    pub(crate) fn member(&self) -> &Member {
        match self {
            Bucket::Cache(bucket) => bucket.member(),
            Bucket::Memory(bucket) => bucket.member(),
        }
    }

    /// Whether it answers requests.
    pub(crate) fn serving(&self) -> bool {
        match self {
            Bucket::Cache(bucket) => bucket.serving(),
            Bucket::Memory(bucket) => bucket.serving(),
        }
    }

    /// Whether a further step would find something to do at once.
    pub(crate) fn has_work(&self) -> bool {
        match self {
            Bucket::Cache(bucket) => bucket.has_work(),
            Bucket::Memory(bucket) => bucket.has_work(),
        }
    }

    pub(crate) fn step(&mut self, now: Time, event: Event, out: &mut BucketEffects) {
        match self {
            Bucket::Cache(bucket) => bucket.step(now, event, out),
            Bucket::Memory(bucket) => bucket.step(now, event, out),
        }
    }

    /// Sends what submits have made since the last flush.
    pub(crate) fn flush(&mut self, now: Time, out: &mut BucketEffects) {
        match self {
            Bucket::Cache(bucket) => bucket.flush(now, out),
            Bucket::Memory(bucket) => bucket.flush(now, out),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        match self {
            Bucket::Cache(bucket) => {
                let (cache, stats) = (bucket.service(), bucket.service().stats());
                Counts {
                    reads: stats.reads,
                    hits: stats.hits,
                    writes: stats.writes,
                    keys: cache.count(),
                    live_bytes: cache.bytes(),
                    ..Counts::default()
                }
            }
            Bucket::Memory(bucket) => Counts {
                region_reads: bucket.service().stats().reads,
                region_writes: bucket.service().stats().writes,
                region_bytes: Memory::written_bytes(bucket.member()),
                ..Counts::default()
            },
        }
    }
}
