//! Buckets without a node that perhaps only an operator can bring.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use staves_model::units::count;
use staves_model::{ClusterMap, Group, Medium, MemberSlot, Node, Pool, Scheme, whole_buckets};

use super::down::seconds_awaited;
use super::names::full_name;
use super::{NodeStatus, PoolStatus, StatusReport};

/// Buckets whose writes wait.
pub(super) fn waits_for_copies(pool: &PoolStatus) -> String {
    let scheme = pool.scheme.parse::<Scheme>();
    if scheme.is_ok_and(|scheme| scheme.m > 1) {
        return format!(
            "that bear the loss of fewer than {}, for which writes to them wait ('staves pool set --min-copies' changes that)",
            count(u64::from(pool.copies_min.saturating_sub(1)), "node")
        );
    }
    format!(
        "with fewer than the {} complete copies that its writes wait for ('staves pool set --min-copies' changes that)",
        pool.copies_min
    )
}

/// The buckets that serve, and whose writes wait because they have fewer complete copies than the pool wants.
pub(super) fn unwritable(map: &ClusterMap, pool: &Pool) -> u32 {
    let copies_min = map.copies_min(pool.id);
    let waits = |group: &&Group| group.open && !group.lost && group.lacks_copies(copies_min);
    map.groups_of(pool).filter(waits).count() as u32
}

/// A bucket that no node holds, and that is not made anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WaitingBucket {
    /// Its group.
    pub group: u32,
    /// Its place in the group: data buckets first.
    pub bucket: u8,
    /// There are nodes without a part in the group: they lack the room, or are asked next.
    pub has_nodes: bool,
}

/// A group on disk of which too few complete members run, or that waits for what was not flushed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AwaitedDisks {
    /// The group.
    pub group: u32,
    /// The nodes whose disks have it. One of them is enough.
    pub nodes: Vec<u64>,
    /// Enough members run, and these may hold what a volume with write-back has not flushed: they are waited for, for a time.
    #[serde(default)]
    pub unflushed: bool,
}

/// True if no node answers for a data bucket of a group that serves, and none will until a node has room for it: where
/// there is parity to spare, that gives its place up. Nor is one answered for that lies on disks of nodes that are down.
pub(super) fn unanswered(map: &ClusterMap, group: &Group) -> bool {
    let m = usize::from(group.m);
    let whole = whole_buckets(group.m, &group.members, |x| map.runs(x.id));
    let vacant = || group.members.iter().take(m).any(Option::is_none);
    let vacated = group.open && whole == m && vacant();
    !group.lost && (vacated || !map.awaited_disks(group).is_empty())
}

/// The nodes that may hold buckets of a pool.
fn homes<'a>(map: &'a ClusterMap, pool: &Pool) -> impl Iterator<Item = &'a Node> {
    let on_disk = pool.medium == Medium::Disk;
    map.homes()
        .filter(move |node| !on_disk || node.disk_bytes > 0)
}

/// Most waiting buckets of a pool that are listed one by one.
const WAITING_MAX: usize = 64;

/// The buckets of a pool's groups that no node holds, as far as the nodes there are could hold them (m > 1). With
/// m = 1 a copy that is missing is one less; it is reported as such.
pub(super) fn waiting(map: &ClusterMap, pool: &Pool) -> Vec<WaitingBucket> {
    let mut waiting = Vec::new();
    let groups = map.groups_of(pool);
    for group in groups.filter(|g| g.open && !g.lost && g.m > 1) {
        let width = match pool.is_loading(group.id) {
            true => group.m.into(),
            false => pool.scheme.width(),
        };
        let free = homes(map, pool)
            .filter(|home| !group.lists(home.id))
            .count();
        let vacant = (0..width).filter(|s| group.member(MemberSlot(*s as u8)).is_none());
        // Parity that there are no nodes for is no bucket that anybody expects.
        let expected = |s: &usize| *s < usize::from(group.m) || free > 0;
        waiting.extend(vacant.filter(expected).map(|slot| WaitingBucket {
            group: group.id.0,
            bucket: slot as u8,
            has_nodes: free > 0,
        }));
        if waiting.len() >= WAITING_MAX {
            waiting.truncate(WAITING_MAX);
            break;
        }
    }
    waiting
}

/// The groups of a pool that wait for disks, and whose.
pub(super) fn awaited_disks(map: &ClusterMap, pool: &Pool) -> Vec<AwaitedDisks> {
    let groups = map.groups_of(pool).filter(|group| !group.lost);
    let awaited = groups.map(|group| AwaitedDisks {
        group: group.id.0,
        nodes: map.awaited_disks(group).iter().map(|node| node.0).collect(),
        unflushed: map.complete_sources_up(group) >= usize::from(group.m),
    });
    let awaited = awaited.filter(|awaited| !awaited.nodes.is_empty());
    awaited.take(WAITING_MAX).collect()
}

/// Groups that lie on disks of nodes that are down: the first of them, with the nodes of which one is enough.
pub(super) fn waits_for_disks(report: &StatusReport, pool: &PoolStatus) -> Option<String> {
    let (groups, first) = awaited(pool, false)?;
    let names = node_names(report, &first.nodes);
    let whose = match names.len() {
        1 => "whose disk has it: start that node",
        _ => "whose disks have it: start one of them",
    };
    Some(format!("{groups} for {}, {whose}", names.join(" or ")))
}

/// Groups that wait for nodes which may hold what volumes with write-back have not flushed, and for how long at most.
pub(super) fn waits_for_unflushed(report: &StatusReport, pool: &PoolStatus) -> Option<String> {
    let (groups, first) = awaited(pool, true)?;
    let names = node_names(report, &first.nodes);
    let until = match names.len() {
        1 => "until that node is back",
        _ => "until enough of them are back",
    };
    let seconds = seconds_awaited(report, &first.nodes);
    Some(format!(
        "{groups} for {}, which may hold writes that were answered and not flushed (write-back): {until}, and for {seconds} s more at most",
        names.join(" or ")
    ))
}

/// The groups that wait, in words, and the first of them.
fn awaited(pool: &PoolStatus, unflushed: bool) -> Option<(String, &AwaitedDisks)> {
    let all = pool.awaited_disks.iter();
    let mut all = all.filter(|one| one.unflushed == unflushed);
    let first = all.next()?;
    let others = match all.count() {
        0 => " waits".to_owned(),
        1 => " and 1 other wait".to_owned(),
        n => format!(" and {n} others wait"),
    };
    let groups = format!("group {} of pool '{}'{others}", first.group, pool.name);
    Some((groups, first))
}

fn node_names(report: &StatusReport, ids: &[u64]) -> Vec<String> {
    let name = |id: &u64| {
        let node = report.nodes.iter().find(|node| node.id == *id);
        node.map_or(format!("node {id}"), |node| full_name(&report.nodes, node))
    };
    ids.iter().map(name).collect()
}

/// For each node the copies (m = 1) that it may be given: of groups that lack one and have none there.
pub(super) fn copies_without_node(map: &ClusterMap, pool: &Pool) -> BTreeMap<u64, u32> {
    let mut lacking = BTreeMap::new();
    let width = pool.scheme.width();
    let short = |g: &&Group| g.open && !g.lost && g.m == 1 && g.listed().count() < width;
    for group in map.groups_of(pool).filter(short) {
        for home in homes(map, pool).filter(|home| !group.lists(home.id)) {
            *lacking.entry(home.id.0).or_default() += 1;
        }
    }
    lacking
}

/// The remedy for buckets with two members on one node.
pub(super) fn doubled(report: &StatusReport, pool: &PoolStatus) -> String {
    let width = pool.scheme.parse().map_or(0, |s: Scheme| s.width());
    let on_disk = pool.medium == Medium::Disk.word();
    let has_place = |node: &&NodeStatus| !on_disk || node.disk_bytes > 0;
    let nodes = || report.nodes.iter().filter(has_place);
    let homes = nodes().filter(|node| node.up && !node.draining).count();
    let head = "with two members on one node, which one loss takes together";
    if homes >= width {
        let what = if on_disk {
            "larger disks"
        } else {
            "more memory"
        };
        return format!(
            "{head}: one of them is filled on another node if that has room: if it stays so, give the pool {what}, or add a node"
        );
    }
    let back = if nodes().any(|node| !node.up) {
        ", or bring back one that is down"
    } else if nodes().any(|node| node.draining) {
        ", or resume one that is drained ('staves node resume')"
    } else {
        ""
    };
    let (lack, with_disks) = (width - homes, if on_disk { " with disks" } else { "" });
    let nodes = if lack == 1 { "node" } else { "nodes" };
    format!("{head}: start {lack} more {nodes}{with_disks}{back}")
}
