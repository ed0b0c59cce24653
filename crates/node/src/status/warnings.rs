//! Warnings: all that is less than was asked for, although nothing is wrong.

use std::collections::{BTreeMap, BTreeSet};

use staves_files_server::facts::{ANSWER_AGE_MAX, OUTAGE_MAX};
use staves_model::policy::PoolWarning;
use staves_model::{Medium, Scheme};

use super::disks::disks;
use super::names::full_name;
use super::room::copies_without_room;
use super::unheard::cut_links;
use super::{NodeStatus, PoolStatus, StatusReport};

/// The pools that lack nodes, memory that is promised more than once, a first pool of fewer buckets than asked for, sources that are away, nodes that do not hear each other, and copies that wait for memory.
pub(super) fn warnings(report: &StatusReport) -> Vec<String> {
    let lacks = report.pools.iter().filter_map(|pool| report.lacks(pool));
    let budgets = overcommitted(report)
        .into_iter()
        .chain(disk_overcommitted(report));
    let away = report.away().into_values();
    let pools = lacks.chain(budgets).chain(fewer_buckets(report));
    let pools = pools.chain(away);
    pools
        .chain(unheard(report))
        .chain(cut_links(report))
        .chain(copies_without_room(report))
        .chain(disks(report))
        .collect()
}

/// The nodes that did not answer the asker, though others hear of them: nobody has seen what they hold. Where the directory has no leader the
/// sentence names them.
fn unheard(report: &StatusReport) -> Option<String> {
    let unheard = |node: &&NodeStatus| node.up && node.silent && node.silent_ms.is_none();
    let names = report.nodes.iter().filter(unheard);
    let names: Vec<String> = names.map(|node| full_name(&report.nodes, node)).collect();
    (!names.is_empty() && report.directory.leader.is_some()).then(|| {
        format!(
            "{} did not answer this command within 1 s, though other nodes hear from there: what is said of it is what the map has",
            names.join(", ")
        )
    })
}

impl StatusReport {
    /// The nodes that a pool's scheme asks for, if there are fewer: each member of a group wants one of its own. Nodes
    /// that are down are expected back.
    pub fn lacks(&self, pool: &PoolStatus) -> Option<String> {
        let scheme: Scheme = pool.scheme.parse().ok()?;
        let on_disk = pool.medium == Medium::Disk.word();
        let homes = self.nodes.iter().filter(|node| !node.draining);
        let homes = homes.filter(|node| !on_disk || node.disk_bytes > 0).count();
        let lacks = !pool.has_sources() && homes < scheme.width();
        let with_disks = if on_disk { " with disks" } else { "" };
        lacks.then(|| {
            format!(
                "pool '{}' has less than the {scheme} that it asks for, which takes {} nodes{with_disks}, and {} hold buckets: add nodes{with_disks}",
                pool.name,
                scheme.width(),
                homes
            )
        })
    }
}

/// Most askers of a source that are listed.
const ASKERS_MAX: usize = 4;

impl StatusReport {
    /// The datasets whose source is away, each with who has no answer, since when, why, and what still works.
    pub fn away(&self) -> BTreeMap<String, String> {
        let mut all: BTreeMap<&str, (u64, &str, BTreeSet<&str>)> = BTreeMap::new();
        for node in &self.nodes {
            for one in node.facts.iter().flat_map(|facts| &facts.away) {
                let (ms, why, askers) = all.entry(&one.dataset).or_default();
                if one.for_ms >= *ms {
                    (*ms, *why) = (one.for_ms, &one.why);
                }
                askers.insert(match one.by.is_empty() {
                    true => &node.name,
                    false => &one.by,
                });
            }
        }
        let described = all.into_iter().map(|(dataset, (ms, why, askers))| {
            let listed: Vec<&str> = askers.iter().take(ASKERS_MAX).copied().collect();
            let rest = match askers.len() - listed.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let text = format!(
                "the source of dataset '{dataset}' is away: it has not answered {}{rest} for {} s ({why}); what is in memory is read, and opened \
                 if it was looked at in the {} minutes before, until the source has been away for {} minutes; all else fails until it answers",
                listed.join(", "),
                ms / 1000,
                ANSWER_AGE_MAX.as_secs() / 60,
                OUTAGE_MAX.as_secs() / 60,
            );
            (dataset.to_owned(), text)
        });
        described.collect()
    }
}

/// That the first pool has fewer buckets than were asked for: there was little memory when it was made.
fn fewer_buckets(report: &StatusReport) -> Option<String> {
    let wanted = report.first_pool.as_ref()?;
    let pool = report.pools.iter().find(|pool| pool.name == wanted.name)?;
    let fewer = pool.kind == "cache" && pool.buckets < wanted.buckets;
    fewer.then(|| {
        format!(
            "pool '{}' has {} buckets and not the {} asked for, because the first node had little memory when it was made; \
             that number stays, and with more nodes or memory the load is spread less evenly: make another pool ('staves \
             pool create NAME --buckets {}'), or ask for {} with '--buckets'",
            pool.name, pool.buckets, wanted.buckets, wanted.buckets, pool.buckets
        )
    })
}

/// That the budgets of all pools on disk are more than the smallest disk takes.
fn disk_overcommitted(report: &StatusReport) -> Option<String> {
    let on_disk = report
        .pools
        .iter()
        .filter(|p| p.medium == Medium::Disk.word());
    let pools = on_disk
        .map(|pool| pool.node_budget_bytes)
        .fold(0, u64::saturating_add);
    let disks = report.nodes.iter().filter(|node| node.disk_bytes > 0);
    let least = disks.min_by_key(|node| node.disk_bytes)?;
    let warning = PoolWarning::DiskOvercommitted {
        pools,
        node: staves_model::NodeId(least.id),
        name: least.name.clone(),
        disk: least.disk_bytes,
    };
    (pools > least.disk_bytes).then(|| warning.to_string())
}

/// That the budgets of all pools are more than the smallest node has.
fn overcommitted(report: &StatusReport) -> Option<String> {
    let in_memory = report
        .pools
        .iter()
        .filter(|p| p.medium != Medium::Disk.word());
    let budgets = in_memory.map(|pool| pool.node_budget_bytes);
    let pools = budgets.fold(0, u64::saturating_add);
    let least = |node: &&NodeStatus| node.memory_bytes;
    let least = report.nodes.iter().min_by_key(least)?;
    let warning = PoolWarning::Overcommitted {
        pools,
        node: staves_model::NodeId(least.id),
        name: least.name.clone(),
        memory: least.memory_bytes,
    };
    (pools > least.memory_bytes).then(|| warning.to_string())
}
