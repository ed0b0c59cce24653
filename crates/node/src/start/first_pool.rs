//! The pool that a new cluster starts with.

use staves_model::{Change, Medium, PoolKind};

use crate::config::Config;
use crate::status::FirstPool;

/// Memory that a bucket should have on average: it takes memory in extents of 256 KiB, one of them from
/// the start.
const BUCKET_BYTES_MIN: u64 = 2 << 20;

/// The buckets of a pool of so many bytes a node: as many as wanted, but fewer where they would
/// be so small that extents hardly filled would take all the memory.
pub(super) fn buckets_for(node_budget_bytes: u64, wanted: u32) -> u32 {
    let mut buckets = wanted;
    while buckets > 1 && u64::from(buckets) * BUCKET_BYTES_MIN > node_budget_bytes {
        buckets /= 2;
    }
    buckets
}

/// Tells where a start is not quite what was asked for.
pub(crate) fn tell_differences(config: &Config) {
    let (wanted, buckets) = (
        config.buckets,
        buckets_for(config.memory.0 / 2, config.buckets),
    );
    if buckets < wanted && config.join.is_empty() {
        tracing::warn!(
            buckets,
            wanted,
            "little memory: the first pool of a new cluster gets fewer buckets, for good, as each takes some memory even where it \
             holds little; give more memory, or ask for fewer"
        );
    }
}

/// The first pool that a node asks for which begins a cluster, or began it.
pub(crate) fn asked_first_pool(config: &Config) -> Option<FirstPool> {
    let (name, buckets) = (config.pool.clone(), config.buckets);
    let begins = config.join.is_empty();
    begins.then_some(FirstPool { name, buckets })
}

/// The pool that a new cluster starts with: half of each node's memory, with as many copies as there are nodes.
pub(super) fn first_pool(config: &Config) -> Change {
    Change::CreatePool {
        name: config.pool.clone(),
        kind: PoolKind::Cache,
        scheme: config.scheme,
        medium: Medium::Ram,
        node_budget_bytes: config.memory.0 / 2,
        buckets: buckets_for(config.memory.0 / 2, config.buckets),
        may_start_empty: true,
    }
}
