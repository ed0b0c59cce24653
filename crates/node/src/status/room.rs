//! Pools without room for more pages, and what is short: their own budget, the memory of a node, or its disks.

use std::collections::{BTreeMap, BTreeSet};

use staves_model::Medium;
use staves_model::units::bytes;
use staves_store::EXTENT_BYTES;

use super::disks::disk_name;
use super::names::full_name;
use super::sentence::listed;
use super::{NodeFacts, NodeStatus, PoolFacts, PoolStatus, StatusReport};
use crate::disk::{DiskFacts, DiskState};

/// One extent may be left that no bucket gets: what a bucket needs is set aside at all its members, or at none.
const NOBODYS_BYTES: u64 = EXTENT_BYTES as u64;
/// A bucket that grows needs one extent at least.
const GROWTH_BYTES: u64 = EXTENT_BYTES as u64;

/// The part of a node that leaves a pool no room.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Shortage {
    /// The pool has taken all that it may take of a node.
    Budget,
    /// All pools in memory have taken the node's.
    Memory,
    /// All pools on disk have taken the node's disks.
    Disks,
}

/// A pool that has room for no more pages, with the nodes where, by what is short there.
pub(super) struct FullPool<'a> {
    pub(super) name: &'a str,
    pub(super) nodes: BTreeMap<Shortage, Vec<&'a NodeStatus>>,
}

/// Bytes that are left of each of the two that bound a pool at a node.
struct RoomLeft {
    of_budget: u64,
    of_node: u64,
    /// The node's part that the second is of.
    part: Shortage,
}

impl RoomLeft {
    fn of(pool: &PoolStatus, facts: &NodeFacts, of_pool: &PoolFacts) -> RoomLeft {
        let left = |used: u64, of: u64| match of {
            0 => u64::MAX,
            of => of.saturating_sub(used),
        };
        if pool.medium != Medium::Disk.word() {
            return RoomLeft {
                of_budget: left(of_pool.used_bytes, of_pool.budget_bytes),
                of_node: left(facts.used_bytes, facts.budget_bytes),
                part: Shortage::Memory,
            };
        }
        // A bucket lies on one disk.
        let most = usable(&facts.disks).map(|disk| left(disk.reserved_bytes, disk.bytes));
        RoomLeft {
            of_budget: left(of_pool.used_bytes, pool.node_budget_bytes),
            of_node: most.max().unwrap_or(u64::MAX),
            part: Shortage::Disks,
        }
    }

    /// The shorter of the two, if a bucket that needs so much does not get it.
    fn short_of(&self, needed: u64) -> Option<Shortage> {
        let (least, which) = match self.of_budget <= self.of_node {
            true => (self.of_budget, Shortage::Budget),
            false => (self.of_node, self.part),
        };
        (least < needed.saturating_add(NOBODYS_BYTES)).then_some(which)
    }
}

/// The disks that buckets may grow on.
fn usable(disks: &[DiskFacts]) -> impl Iterator<Item = &DiskFacts> {
    disks.iter().filter(|disk| {
        let is_used = matches!(disk.state, DiskState::Healthy | DiskState::Draining);
        is_used && disk.bytes > 0
    })
}

/// The part of a node that leaves a pool no further page there.
pub(super) fn shortage(
    pool: &PoolStatus,
    facts: &NodeFacts,
    of_pool: &PoolFacts,
) -> Option<Shortage> {
    RoomLeft::of(pool, facts, of_pool).short_of(GROWTH_BYTES)
}

/// The pools that have no room and need more. Pages that are taken say little by
/// themselves: those of deleted keys are kept for the next ones.
pub(super) fn full(report: &StatusReport) -> Vec<FullPool<'_>> {
    let full = report.pools.iter().filter_map(|pool| {
        let here = || facts_of(report, pool);
        let is_dense = here().any(|(_, _, of_pool)| of_pool.dense_buckets > 0);
        let mut nodes: BTreeMap<Shortage, Vec<&NodeStatus>> = BTreeMap::new();
        for (node, facts, of_pool) in here().filter(|_| is_dense) {
            if let Some(which) = shortage(pool, facts, of_pool) {
                nodes.entry(which).or_default().push(node);
            }
        }
        if nodes.is_empty() {
            nodes = lacking(report, pool);
        }
        let name = &pool.name;
        (!nodes.is_empty()).then_some(FullPool { name, nodes })
    });
    full.collect()
}

/// Writes are refused as well while some room is left, but not what a bucket needs at all its members at once: the nodes
/// that do not have that now, or those that asked for it where that is not known.
fn lacking<'a>(
    report: &'a StatusReport,
    pool: &PoolStatus,
) -> BTreeMap<Shortage, Vec<&'a NodeStatus>> {
    let mut nodes: BTreeMap<Shortage, Vec<&NodeStatus>> = BTreeMap::new();
    let lack = || facts_of(report, pool).filter(|(_, _, of_pool)| of_pool.lacking_buckets > 0);
    let needed = lack().map(|(_, _, of_pool)| of_pool.lacking_bytes).min();
    let Some(needed) = needed else {
        return nodes;
    };
    let holders = facts_of(report, pool).filter(|(_, _, of_pool)| of_pool.used_bytes > 0);
    for (node, facts, of_pool) in holders.filter(|_| needed > 0) {
        if let Some(which) = RoomLeft::of(pool, facts, of_pool).short_of(needed) {
            nodes.entry(which).or_default().push(node);
        }
    }
    let is_silent = |node: &NodeStatus| node.up && node.facts.is_none();
    let is_unknown = needed == 0 || report.nodes.iter().any(is_silent);
    if nodes.is_empty() && is_unknown {
        for (node, facts, of_pool) in lack() {
            let which = RoomLeft::of(pool, facts, of_pool).short_of(u64::MAX);
            let which = which.unwrap_or(Shortage::Budget);
            nodes.entry(which).or_default().push(node);
        }
    }
    nodes
}

/// The nodes that are up and report on a pool.
fn facts_of<'a>(
    report: &'a StatusReport,
    pool: &PoolStatus,
) -> impl Iterator<Item = (&'a NodeStatus, &'a NodeFacts, &'a PoolFacts)> {
    let up = report.nodes.iter().filter(|node| node.up);
    let name = pool.name.clone();
    up.filter_map(move |node| {
        let facts = node.facts.as_ref()?;
        let of_pool = facts.pools.iter().find(|of| of.pool == name)?;
        Some((node, facts, of_pool))
    })
}

/// The pools without room, each with what is short, where, and the remedy.
pub(super) fn sentences(report: &StatusReport) -> Vec<String> {
    let of = |full: FullPool<'_>| {
        let pool = report.pools.iter().find(|pool| pool.name == full.name);
        let each = full.nodes.into_iter();
        let texts = each.filter_map(|(which, nodes)| Some(text(report, pool?, which, &nodes)));
        texts.collect::<Vec<_>>()
    };
    full(report).into_iter().flat_map(of).collect()
}

fn text(
    report: &StatusReport,
    pool: &PoolStatus,
    which: Shortage,
    nodes: &[&NodeStatus],
) -> String {
    let names = nodes.iter().map(|node| full_name(&report.nodes, node));
    let at = listed(&names.collect::<Vec<_>>());
    let (name, is_on_disk) = (&pool.name, pool.medium == Medium::Disk.word());
    let (fail, delete) = match &pool.kind[..] {
        "memory" if is_on_disk => ("writes to new places fail with ENOSPC", "delete a volume"),
        "memory" => ("writes to new places fail", "delete a region or a volume"),
        "log" => ("appends fail with out-of-memory", "trim or delete logs"),
        _ => ("writes fail with OOM", "delete keys"),
    };
    match which {
        Shortage::Budget if is_on_disk => format!(
            "pool '{name}' has used up its {} of the disks on {at} ({fail}: {delete}, or give it more with 'staves pool set {name} --memory')",
            bytes(pool.node_budget_bytes)
        ),
        Shortage::Budget => {
            format!(
                "pool '{name}' has used up its memory on {at} ({fail}: {delete}, or give it more)"
            )
        }
        Shortage::Memory => format!(
            "all pools together have used up the memory of {at}, and pool '{name}' gets no more ({fail}: {delete}, also of other pools, or add nodes)"
        ),
        Shortage::Disks => {
            let disks = full_disks(report, nodes);
            format!(
                "{} left for pool '{name}' ({fail}: {delete}, also of other pools, add a disk with 'staves disk add', or nodes with disks)",
                no_room_on(&disks)
            )
        }
    }
}

fn no_room_on(disks: &[String]) -> String {
    let has = if disks.len() == 1 { "has" } else { "have" };
    format!("{} {has} no room", listed(disks))
}

/// The disks of nodes, with what all pools take of them.
fn full_disks(report: &StatusReport, nodes: &[&NodeStatus]) -> Vec<String> {
    let of_node = |node: &&NodeStatus| {
        let name = full_name(&report.nodes, node);
        let disks = node.facts.as_ref().map(|facts| &facts.disks[..]);
        let disks = disks.unwrap_or_default();
        let names = usable(disks).map(|disk| {
            format!(
                "{} (pools have reserved {} of {})",
                disk_name(&name, disk, disks.len()),
                bytes(disk.reserved_bytes),
                bytes(disk.bytes)
            )
        });
        names.collect::<BTreeSet<_>>()
    };
    nodes.iter().flat_map(of_node).collect()
}

/// A warning for each pool of which copies wait for room on nodes where there is none left.
pub(super) fn copies_without_room(report: &StatusReport) -> Vec<String> {
    let mut warnings = Vec::new();
    for pool in &report.pools {
        let mut waiting: BTreeMap<Shortage, (u32, Vec<&NodeStatus>)> = BTreeMap::new();
        for (node, facts, of_pool) in facts_of(report, pool) {
            let lacks = pool.copies_without_node.get(&node.id).copied();
            let (Some(lacks), Some(which)) = (lacks, shortage(pool, facts, of_pool)) else {
                continue;
            };
            let (most, nodes) = waiting.entry(which).or_default();
            *most = (*most).max(lacks);
            nodes.push(node);
        }
        for (which, (most, nodes)) in waiting {
            let copies = match most {
                1 => "1 copy waits".to_owned(),
                n => format!("{n} copies wait"),
            };
            let why = why_copies_wait(report, pool, which, &nodes);
            warnings.push(format!("{copies} for {why}"));
        }
    }
    warnings
}

fn why_copies_wait(
    report: &StatusReport,
    pool: &PoolStatus,
    which: Shortage,
    nodes: &[&NodeStatus],
) -> String {
    let names = nodes.iter().map(|node| full_name(&report.nodes, node));
    let at = listed(&names.collect::<Vec<_>>());
    let (name, is_on_disk) = (&pool.name, pool.medium == Medium::Disk.word());
    let what = if is_on_disk { "room" } else { "memory" };
    match which {
        Shortage::Budget => format!(
            "{what} on {at}, where pool '{name}' has used up its own: delete what is not needed, give the pool more \
             ('staves pool set {name} --memory'), or add nodes"
        ),
        Shortage::Memory => format!(
            "memory on {at}, where all pools together have used it up: delete what is not needed, or add nodes"
        ),
        Shortage::Disks => format!(
            "room on {at} for pool '{name}': {}: delete what is not needed, add a disk ('staves disk add'), or nodes with disks",
            no_room_on(&full_disks(report, nodes))
        ),
    }
}
