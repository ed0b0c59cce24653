//! Pools: may one be made or set so, by its kind, its scheme and the memory of the nodes?

use thiserror::Error;

use super::memory::Usage;
use crate::change::Change;
use crate::ids::{NodeId, ServiceId};
use crate::map::{ClusterMap, Medium, Pool, PoolKind};
use crate::scheme::{EXTENT_BYTES, Scheme};
use crate::units::{bytes, count, with_unit};

/// The reason why a pool or region may not be made or set so.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[allow(missing_docs)] // the texts say it
pub enum PoolRefusal {
    #[error(
        "pool '{pool}' cannot have {} of each node: the largest node has {}",
        with_unit(*budget),
        with_unit(*largest)
    )]
    AboveLargestNode {
        pool: String,
        budget: u64,
        largest: u64,
    },
    #[error(
        "pool '{pool}' cannot do with {} of each node: {of_each} of its members lie on each of {nodes} nodes and take \
         {} each {}; give it {} or more{}",
        with_unit(*budget),
        with_unit(*each),
        if *each > EXTENT_BYTES as u64 { "as soon as they are used" } else { "from the start" },
        with_unit(*least),
        if *is_new { ", or fewer buckets" } else { "" }
    )]
    BelowItsBuckets {
        pool: String,
        budget: u64,
        of_each: usize,
        nodes: usize,
        each: u64,
        least: u64,
        is_new: bool,
    },
    #[error(
        "pool '{pool}' cannot do with {} of each node: it takes {} of node {node} ({name}) now{}; give it {} or more, or \
         delete some of what it holds first; nothing was changed",
        bytes(*budget), bytes(*used), other_nodes(*others), with_unit(*used)
    )]
    BelowUsage {
        pool: String,
        budget: u64,
        node: NodeId,
        name: String,
        used: u64,
        others: usize,
    },
    #[error(
        "pool '{pool}' cannot have the scheme {scheme}: {what} keeps whole copies, so give it 1+k, for \
         example 1+2"
    )]
    CacheNeedsCopies {
        pool: String,
        scheme: Scheme,
        what: &'static str,
    },
    #[error(
        "pool '{pool}' cannot have the scheme {scheme}: files come from their source again, so that a files pool has none"
    )]
    FilesHaveNoScheme { pool: String, scheme: Scheme },
    #[error(
        "region '{region}' cannot begin: pool '{pool}' with its scheme {scheme} needs {} nodes, and {homes} take buckets",
        scheme.m
    )]
    TooFewNodesToBegin {
        region: String,
        pool: String,
        scheme: Scheme,
        homes: usize,
    },
}

/// Buckets of a new cache for which none were asked.
const CACHE_BUCKETS: u32 = 64;
/// Units of a new pool of logs for which none were asked.
const LOG_UNITS: u32 = 8;
/// Buckets of a new files pool for which none were asked: a small multiple of the nodes that there may be.
const FILES_BUCKETS: u32 = 1024;
/// Bytes that a unit of logs takes on each of its members with its first records: what it keeps for trims and for the next appends included.
pub const LOG_UNIT_BYTES: u64 = 10 * EXTENT_BYTES as u64;
/// The scheme of a new pool for which none was asked.
const SCHEME: Scheme = Scheme { m: 1, k: 2 };

/// An option that pools of this kind do not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoSuchOption {
    /// The buckets of a memory pool come with its regions.
    BucketsOfMemory,
    /// A files pool has no redundancy: what it loses comes from its source again.
    SchemeOfFiles,
}

/// The scheme and the buckets of a new pool, asked for or usual.
pub fn new_pool_shape(
    kind: &PoolKind,
    scheme: Option<Scheme>,
    buckets: Option<u32>,
) -> Result<(Scheme, u32), NoSuchOption> {
    match (kind, scheme, buckets) {
        (PoolKind::Memory { .. }, _, Some(_)) => Err(NoSuchOption::BucketsOfMemory),
        (PoolKind::Files(_), Some(_), _) => Err(NoSuchOption::SchemeOfFiles),
        (PoolKind::Slots(ServiceId::LOG), ..) => {
            Ok((scheme.unwrap_or(SCHEME), buckets.unwrap_or(LOG_UNITS)))
        }
        (PoolKind::Cache | PoolKind::Slots(_), ..) => {
            Ok((scheme.unwrap_or(SCHEME), buckets.unwrap_or(CACHE_BUCKETS)))
        }
        (PoolKind::Memory { .. }, ..) => Ok((scheme.unwrap_or(SCHEME), 0)),
        (PoolKind::Files(_), ..) => Ok((Scheme::NONE, buckets.unwrap_or(FILES_BUCKETS))),
    }
}

/// Rejects a change of pools that the map would take, and that would do no good: a budget or a scheme that does not
/// fit, or a region that could not begin.
pub fn check_change(map: &ClusterMap, change: &Change) -> Result<(), PoolRefusal> {
    let (pool, kind, scheme, budget, buckets, is_new) = match change {
        Change::CreatePool {
            name,
            kind,
            scheme,
            node_budget_bytes,
            buckets,
            ..
        } => {
            let budget = Some(*node_budget_bytes);
            (name, kind, *scheme, budget, *buckets as usize, true)
        }
        Change::SetPool {
            name,
            scheme,
            node_budget_bytes,
        } => {
            let Some(pool) = map.pool_named(name) else {
                return Ok(()); // the map rejects it
            };
            let (scheme, buckets) = (scheme.unwrap_or(pool.scheme), pool.groups.len());
            (name, &pool.kind, scheme, *node_budget_bytes, buckets, false)
        }
        Change::CreateRegion { pool, name, .. } => return check_region(map, pool, name),
        _ => return Ok(()),
    };
    let pool = pool.clone();
    let medium = match change {
        Change::CreatePool { medium, .. } => *medium,
        _ => map
            .pool_named(&pool)
            .map_or(Medium::Ram, |pool| pool.medium),
    };
    let largest = map.nodes.values().map(|node| node.bytes_on(medium)).max();
    let largest = largest.unwrap_or(0);
    // That no node has a disk is said by the map.
    if let Some(budget) = budget.filter(|budget| *budget > largest && largest > 0) {
        return Err(PoolRefusal::AboveLargestNode {
            pool,
            budget,
            largest,
        });
    }
    let nodes = map.nodes.len().max(1);
    let of_each = (buckets * scheme.width().min(nodes)).div_ceil(nodes);
    let row = kind.row();
    let is_of_logs = row.service == Some(ServiceId::LOG);
    let each = if is_of_logs {
        LOG_UNIT_BYTES
    } else {
        EXTENT_BYTES as u64
    };
    let least = of_each as u64 * each;
    match budget {
        // Each bucket takes so much from the start: below that nothing could ever be written.
        Some(budget) if row.has_slots && budget < least => Err(PoolRefusal::BelowItsBuckets {
            pool,
            budget,
            of_each,
            nodes,
            each,
            least,
            is_new,
        }),
        _ if row.has_slots && scheme.m != 1 => Err(PoolRefusal::CacheNeedsCopies {
            pool,
            scheme,
            what: if is_of_logs {
                "a pool of logs"
            } else {
                "a key-value pool"
            },
        }),
        _ if row.service.is_none() && scheme != Scheme::NONE => {
            Err(PoolRefusal::FilesHaveNoScheme { pool, scheme })
        }
        _ => Ok(()),
    }
}

/// Rejects a region whose groups could not begin: at once, not when it is first used.
fn check_region(map: &ClusterMap, pool: &str, region: &str) -> Result<(), PoolRefusal> {
    let Some(pool) = map.pool_named(pool) else {
        return Ok(()); // the map rejects it
    };
    let homes = map.homes().count();
    if homes >= usize::from(pool.scheme.m) {
        return Ok(());
    }
    Err(PoolRefusal::TooFewNodesToBegin {
        region: region.to_owned(),
        pool: pool.name.clone(),
        scheme: pool.scheme,
        homes,
    })
}

/// A change of pools that the operator should know more about.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[allow(missing_docs)] // the texts say it
pub enum PoolWarning {
    #[error(
        "{noun} '{region}' bears fewer losses than {scheme} says until there are {} nodes{with_disks}; those that are up and not \
         draining are {homes}: add nodes{with_disks}",
        scheme.width()
    )]
    TooFewNodes {
        noun: &'static str,
        with_disks: &'static str,
        region: String,
        scheme: Scheme,
        homes: usize,
    },
    #[error("no loss at all with {then}: what a node holds of it is gone with the node")]
    BearsNoLoss { then: Scheme },
    #[error("the loss of {} with {then}, and not of {now} any more", count(then.k, "node"))]
    BearsLess { now: u8, then: Scheme },
    /// The first pool to come has the memory.
    #[error(
        "all pools together may take {} of each node, and node {node} ({name}) has {}: who comes first has it",
        bytes(*pools), bytes(*memory)
    )]
    Overcommitted {
        pools: u64,
        node: NodeId,
        name: String,
        memory: u64,
    },
    /// The same, of disks.
    #[error(
        "all pools on disk together may take {} of each node, and the disk of node {node} ({name}) takes {}: who comes first has it, \
         and then a write that needs more is refused (ENOSPC)",
        bytes(*pools), bytes(*disk)
    )]
    DiskOvercommitted {
        pools: u64,
        node: NodeId,
        name: String,
        disk: u64,
    },
}

/// Compares the nodes that may hold buckets with those that a region's scheme asks for.
pub fn too_few_nodes(map: &ClusterMap, region: &str, scheme: Scheme) -> Option<PoolWarning> {
    let known = map.region_named(region);
    let is_volume = known.is_some_and(|(_, region)| region.volume.is_some());
    let on_disk = known.is_some_and(|(pool, _)| pool.medium == Medium::Disk);
    let homes = map.homes().filter(|node| !on_disk || node.disk_bytes > 0);
    let homes = homes.count();
    (homes < scheme.width()).then_some(PoolWarning::TooFewNodes {
        noun: if is_volume { "volume" } else { "region" },
        with_disks: if on_disk { " with disks" } else { "" },
        region: region.to_owned(),
        scheme,
        homes,
    })
}

/// Compares two schemes of a pool: one with fewer copies or less parity than the one before.
pub fn bears_less(now: Scheme, then: Scheme) -> Option<PoolWarning> {
    let less = now.m == then.m && then.k < now.k;
    less.then_some(match then.k {
        0 => PoolWarning::BearsNoLoss { then },
        _ => PoolWarning::BearsLess { now: now.k, then },
    })
}

/// Compares the budgets of all pools with the smallest node.
pub fn overcommitted(map: &ClusterMap) -> Option<PoolWarning> {
    let in_memory = map.pools.values().filter(|pool| pool.medium == Medium::Ram);
    let budgets = in_memory.map(|pool| pool.node_budget_bytes);
    let pools = budgets.fold(0, u64::saturating_add);
    let least = map.nodes.values().min_by_key(|node| node.memory_bytes)?;
    (pools > least.memory_bytes).then(|| PoolWarning::Overcommitted {
        pools,
        node: least.id,
        name: least.name.clone(),
        memory: least.memory_bytes,
    })
}

/// Compares the budgets of all pools on disk with the smallest disk.
pub fn disk_overcommitted(map: &ClusterMap) -> Option<PoolWarning> {
    let on_disk = map
        .pools
        .values()
        .filter(|pool| pool.medium == Medium::Disk);
    let pools = on_disk
        .map(|pool| pool.node_budget_bytes)
        .fold(0, u64::saturating_add);
    let disks = map.nodes.values().filter(|node| node.disk_bytes > 0);
    let least = disks.min_by_key(|node| node.disk_bytes)?;
    (pools > least.disk_bytes).then(|| PoolWarning::DiskOvercommitted {
        pools,
        node: least.id,
        name: least.name.clone(),
        disk: least.disk_bytes,
    })
}

/// Rejects a budget below what a pool takes of a node: nothing would be freed by it, and what is lost next would find
/// no memory to be rebuilt in. Of files it lets go.
pub fn holds_usage(
    map: &ClusterMap,
    usage: &Usage,
    pool: &str,
    budget: u64,
) -> Result<(), PoolRefusal> {
    let of_files = |pool: &Pool| matches!(pool.kind, PoolKind::Files(_));
    if map.pool_named(pool).is_some_and(of_files) {
        return Ok(());
    }
    let used = usage.nodes.iter();
    let used = used.map(|(node, used)| (*node, used.pools.get(pool).copied().unwrap_or(0)));
    let over: Vec<(NodeId, u64)> = used.filter(|(_, used)| *used > budget).collect();
    let Some((node, used)) = over.iter().copied().max_by_key(|(_, used)| *used) else {
        return Ok(());
    };
    let name = map.nodes.get(&node).map(|node| node.name.clone());
    Err(PoolRefusal::BelowUsage {
        pool: pool.to_owned(),
        budget,
        node,
        name: name.unwrap_or_default(),
        used,
        others: over.len() - 1,
    })
}

fn other_nodes(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => " (and of 1 other node more than that budget, too)".to_owned(),
        n => format!(" (and of {n} other nodes more than that budget, too)"),
    }
}

#[cfg(test)]
mod tests;
