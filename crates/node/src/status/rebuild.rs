//! The progress of rebuilding, or the nodes that it waits for.

use staves_model::{Medium, Scheme};

use super::{NodeStatus, PoolStatus, StatusReport};

pub(super) fn rebuild(report: &StatusReport) -> Option<String> {
    let short = || report.pools.iter().filter(|pool| pool.short > 0);
    if let Some(rebuild) = report.rebuild {
        let left = match rebuild.seconds_left {
            Some(seconds) => format!(", about {seconds} s left"),
            None => String::new(),
        };
        return Some(format!("rebuilding, {} % done{left}", rebuild.percent));
    }
    // Nobody fills anything: either it is about to begin, or there is nobody to do it.
    let waits = short()
        .map(|pool| (nodes_lacking(report, pool), pool))
        .filter(|(lacking, _)| *lacking > 0)
        .max_by_key(|(lacking, _)| *lacking);
    if let Some((lacking, pool)) = waits {
        let with_disks = match (pool.medium == Medium::Disk.word(), lacking) {
            (false, _) => "",
            (true, 1) => " with a disk",
            (true, _) => " with disks",
        };
        let of = match short().count() {
            1 => String::new(),
            _ => format!(" of pool '{}'", pool.name),
        };
        let are = match lacking {
            1 => "there is 1 node".to_owned(),
            n => format!("there are {n} nodes"),
        };
        return Some(format!(
            "nothing{of} to rebuild on until {are} more{with_disks}"
        ));
    }
    let homes = |pool: &PoolStatus| homes(report, pool);
    let is_beside = short().any(|pool| homes(pool) < nodes_wanted(pool));
    is_beside.then(|| {
        "what is missing is rebuilt on the nodes there are, as far as they have room, once their groups \
         have been calm for 5 s"
            .into()
    })
}

/// The nodes without which nothing of a pool can be rebuilt. In memory a node may hold two members of a group (m > 1), parity as
/// the second only after a while; on disk none does.
fn nodes_lacking(report: &StatusReport, pool: &PoolStatus) -> usize {
    let (homes, wanted) = (homes(report, pool), nodes_wanted(pool));
    let may_double = data_buckets(pool) > 1 && (pool.medium != Medium::Disk.word());
    match may_double && 2 * homes >= wanted {
        true => 0,
        false => wanted.saturating_sub(homes),
    }
}

/// The nodes that may hold buckets of a pool now.
fn homes(report: &StatusReport, pool: &PoolStatus) -> usize {
    let on_disk = pool.medium == Medium::Disk.word();
    let is_home = |node: &&NodeStatus| {
        let has_place = !on_disk || node.disk_bytes > 0;
        node.up && !node.draining && has_place
    };
    report.nodes.iter().filter(is_home).count()
}

/// The nodes that a pool's groups take, as far as there are nodes at all.
fn nodes_wanted(pool: &PoolStatus) -> usize {
    usize::from(pool.parity_possible) + data_buckets(pool)
}

fn data_buckets(pool: &PoolStatus) -> usize {
    let scheme = pool.scheme.parse::<Scheme>();
    scheme.map_or(1, |scheme| usize::from(scheme.m))
}
