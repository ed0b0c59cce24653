//! Drains: could one ever end, and what does it wait for?

use std::fmt;

use thiserror::Error;

mod copies;

pub use copies::FewerCopies;

use super::memory::{FreeMemory, NoRoom, Usage};
use crate::ids::NodeId;
use crate::map::{ClusterMap, Group, Medium, Node, NodeState, Pool};
use crate::scheme::Scheme;
use crate::units::bytes;

/// Buckets of a draining node that no other node can take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DrainWait {
    /// The number of these buckets.
    pub buckets: usize,
    /// The pool of the first of them.
    pub pool: String,
    /// That pool's scheme.
    pub scheme: Scheme,
    /// The medium of that pool.
    pub medium: Medium,
    /// Nodes that may hold buckets of the pool; each has a part in the group already.
    pub homes: usize,
}

/// The buckets that keep a drain from going on. `None` if the node does not drain, or if each bucket that it still
/// holds has a node to go to.
pub fn drain_waits_for(map: &ClusterMap, node: NodeId) -> Option<DrainWait> {
    let drained = map.nodes.get(&node)?;
    if !drained.draining || drained.state == NodeState::Down {
        return None;
    }
    // With m = 1 a group may do with fewer copies while it has any home at all. With m > 1 the joiner stands beside
    // the member that goes, so it must be a node without a part in the group.
    let stays = |pool: &Pool, group: &Group| {
        let every_home_has_it = || map.homes_of(pool).all(|home| group.lists(home.id));
        let alone = || map.homes_of(pool).next().is_none();
        group.lists(node) && every_home_has_it() && (group.m > 1 || alone())
    };
    let stuck = map.pools.values().flat_map(|pool| {
        let stuck = map.groups_of(pool).filter(move |group| stays(pool, group));
        stuck.map(move |_| pool)
    });
    let stuck: Vec<&Pool> = stuck.collect();
    let pool = stuck.first()?;
    Some(DrainWait {
        buckets: stuck.len(),
        pool: pool.name.clone(),
        scheme: pool.scheme,
        medium: pool.medium,
        homes: map.homes_of(pool).count(),
    })
}

/// The words behind "node" where only one that has the medium will do.
fn with_medium(medium: Medium) -> &'static str {
    match medium {
        Medium::Ram => "",
        Medium::Disk => " with a disk",
    }
}

impl fmt::Display for DrainWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buckets = match self.buckets {
            1 => "1 bucket has".to_owned(),
            n => format!("{n} buckets have"),
        };
        let with = with_medium(self.medium);
        let homes = match self.homes {
            0 => {
                return write!(
                    f,
                    "no other node{with} is up and not draining, so {buckets} nowhere to go: start or resume one"
                );
            }
            1 => "the 1 other that is up and not draining is in the group".to_owned(),
            n => format!("all {n} others that are up and not draining are in the group"),
        };
        write!(
            f,
            "{buckets} nowhere to go, because pool '{}' ({}) keeps the buckets of a group on different nodes and \
             {homes}: start or resume another node{with}",
            self.pool, self.scheme,
        )
    }
}

/// The reason why a drain would never end, or would leave too little memory for the data.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[allow(missing_docs)] // the texts say it
pub enum DrainRefusal {
    #[error(
        "no other node is up and not draining, so its buckets have nowhere to go: start or resume another node first"
    )]
    NoOtherNode,
    #[error("{0}")]
    Waits(DrainWait),
    #[error("{0}")]
    Copies(FewerCopies),
    #[error("node {node} ({name}) drains, too, and could then not be emptied: {waits}")]
    BlocksOther {
        node: NodeId,
        name: String,
        waits: DrainWait,
    },
    #[error("node {node} ({name}) drains, too: {copies}")]
    CopiesOfOther {
        node: NodeId,
        name: String,
        copies: FewerCopies,
    },
    #[error(
        "the data of pool '{pool}' takes about {} and {} hold {} of it: add nodes, give the pool more memory ('staves \
         pool set {pool} --memory'), or keep fewer copies",
        bytes(*needs), nodes_left(*homes), bytes(*has)
    )]
    PoolTooLarge {
        pool: String,
        needs: u64,
        has: u64,
        homes: usize,
    },
    #[error(
        "the data of all pools takes about {} and {} hold {}: add nodes, or keep fewer copies",
        bytes(*needs), nodes_left(*homes), bytes(*has)
    )]
    AllTooLarge { needs: u64, has: u64, homes: usize },
}

fn nodes_left(nodes: usize) -> String {
    match nodes {
        1 => "the 1 node that is left may".to_owned(),
        n => format!("the {n} nodes that are left may"),
    }
}

/// Rejects a drain that could never end, that would leave buckets with fewer copies than their pool's scheme says, or
/// after which the nodes that stay could not hold the data. Otherwise the buckets that fit nowhere at present.
pub fn may_drain(
    map: &ClusterMap,
    usage: &Usage,
    node: &Node,
) -> Result<Option<NoRoom>, DrainRefusal> {
    if map.groups.is_empty() {
        return Ok(None);
    }
    if !map.homes().any(|home| home.id != node.id) {
        return Err(DrainRefusal::NoOtherNode);
    }
    let drained = with_drained(map, node.id);
    if let Some(waits) = drain_waits_for(&drained, node.id) {
        return Err(DrainRefusal::Waits(waits));
    }
    if let Some(copies) = FewerCopies::after(&drained, node.id) {
        return Err(DrainRefusal::Copies(copies));
    }
    if let Some(refusal) = blocked_drain(map, &drained) {
        return Err(refusal);
    }
    match too_much_data(map, usage, node.id) {
        Some(refusal) => Err(refusal),
        None => Ok(no_room_after_drain(map, usage, node)),
    }
}

/// The map as it would be with a node drained.
fn with_drained(map: &ClusterMap, node: NodeId) -> ClusterMap {
    let mut map = map.clone();
    if let Some(node) = map.nodes.get_mut(&node) {
        node.draining = true;
    }
    map
}

/// Another node whose drain could end before with all copies kept, and cannot then.
fn blocked_drain(map: &ClusterMap, drained: &ClusterMap) -> Option<DrainRefusal> {
    let mut others = map.nodes.values().filter(|other| other.draining);
    others.find_map(|other| {
        let (node, name) = (other.id, other.name.clone());
        if drain_waits_for(map, node).is_none()
            && let Some(waits) = drain_waits_for(drained, node)
        {
            return Some(DrainRefusal::BlocksOther { node, name, waits });
        }
        if FewerCopies::after(map, node).is_some() {
            return None; // it costs copies without this drain, too
        }
        let copies = FewerCopies::after(drained, node)?;
        Some(DrainRefusal::CopiesOfOther { node, name, copies })
    })
}

/// The buckets of a node that would not fit on the others without a part in the same group. A bucket counts as the
/// mean of the node's buckets of the pool.
pub fn no_room_after_drain(map: &ClusterMap, usage: &Usage, node: &Node) -> Option<NoRoom> {
    let gone = with_drained(map, node.id);
    map.pools.values().find_map(|pool| {
        let held: Vec<&Group> = map.groups_of(pool).filter(|g| g.lists(node.id)).collect();
        let bucket_bytes = usage
            .of_pool(node.id, pool)?
            .checked_div(held.len() as u64)?;
        let mut free = FreeMemory::of(&gone, usage, pool);
        let left_bytes = free.left();
        // Without any such node it is not memory that is missing.
        let may_move = |group: &&&Group| gone.homes_of(pool).any(|home| !group.lists(home.id));
        let stuck = held.iter().filter(may_move);
        let stuck = stuck.filter(|group| free.place(bucket_bytes, 1, |id| group.lists(id)) > 0);
        let buckets = stuck.count();
        (buckets > 0).then(|| NoRoom {
            pool: pool.name.clone(),
            buckets,
            bucket_bytes,
            left_bytes,
            outside_group: true,
        })
    })
}

/// The pool whose data, or with it that of all pools, the nodes that are left could not hold.
fn too_much_data(map: &ClusterMap, usage: &Usage, gone: NodeId) -> Option<DrainRefusal> {
    let sum = |bytes: &dyn Fn(&Node) -> u64| {
        let homes = map.homes().filter(|home| home.id != gone);
        homes.map(bytes).fold(0, u64::saturating_add)
    };
    let (mut in_memory, mut on_disk) = (0u64, 0u64);
    for pool in map.pools.values().filter(|pool| !pool.groups.is_empty()) {
        let homes = map.homes_of(pool).filter(|home| home.id != gone).count();
        let needs = needed(map, usage, pool, homes);
        let has = sum(&|node| node.bytes_on(pool.medium).min(pool.node_budget_bytes));
        if needs > has {
            let pool = pool.name.clone();
            return Some(DrainRefusal::PoolTooLarge {
                pool,
                needs,
                has,
                homes,
            });
        }
        let all = match pool.medium {
            Medium::Ram => &mut in_memory,
            Medium::Disk => &mut on_disk,
        };
        *all = all.saturating_add(needs);
    }
    let of = [(Medium::Ram, in_memory), (Medium::Disk, on_disk)];
    let of = of.map(|(medium, needs)| (needs, sum(&|node| node.bytes_on(medium))));
    let over = of.into_iter().find(|(needs, has)| needs > has);
    let homes = map.homes().filter(|home| home.id != gone).count();
    over.map(|(needs, has)| DrainRefusal::AllTooLarge { needs, has, homes })
}

/// Bytes that the pages of a pool will take on so many nodes: a group has no more members than there are nodes.
fn needed(map: &ClusterMap, usage: &Usage, pool: &Pool, homes: usize) -> u64 {
    let used = usage.nodes.keys().filter_map(|n| usage.of_pool(*n, pool));
    let used = used.fold(0, u64::saturating_add);
    let members = |group: &Group| group.listed().count();
    let now: usize = map.groups_of(pool).map(members).sum();
    let then: usize = map.groups_of(pool).map(|g| members(g).min(homes)).sum();
    let needed = (u128::from(used) * then as u128).checked_div(now as u128);
    needed.map_or(0, |bytes| u64::try_from(bytes).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
