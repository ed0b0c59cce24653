//! Free memory of nodes, and the members that fit into it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use thiserror::Error;

use crate::ids::NodeId;
use crate::map::{ClusterMap, Medium, Pool};
use crate::units::{bytes, count};

/// The memory in use on each node that reported.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// The reports. A node without one counts as empty.
    pub nodes: BTreeMap<NodeId, NodeUsage>,
}

/// The memory in use on one node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeUsage {
    /// Bytes of pages of all pools in memory.
    pub used_bytes: u64,
    /// Bytes of pages of each pool, by the pool's name.
    pub pools: BTreeMap<String, u64>,
}

impl Usage {
    /// Bytes of a pool on a node, if the node reported them.
    pub(super) fn of_pool(&self, node: NodeId, pool: &Pool) -> Option<u64> {
        self.nodes.get(&node)?.pools.get(&pool.name).copied()
    }

    /// Bytes of all pools on a medium of a node, as far as it reported them.
    fn on(&self, node: NodeId, medium: Medium, map: &ClusterMap) -> u64 {
        match medium {
            Medium::Ram => self.nodes.get(&node).map_or(0, |node| node.used_bytes),
            Medium::Disk => {
                let on_disk = |pool: &&Pool| pool.medium == Medium::Disk;
                let pools = map.pools.values().filter(on_disk);
                pools.filter_map(|pool| self.of_pool(node, pool)).sum()
            }
        }
    }
}

/// Bytes that a pool may still take of each node that may hold buckets.
pub struct FreeMemory {
    nodes: BTreeMap<NodeId, u64>,
}

impl FreeMemory {
    /// The free memory of a pool: what its own budget and the node's memory leave.
    pub fn of(map: &ClusterMap, usage: &Usage, pool: &Pool) -> FreeMemory {
        let free = map.homes_of(pool).map(|node| {
            let used = usage.on(node.id, pool.medium, map);
            let used_of_pool = usage.of_pool(node.id, pool).unwrap_or(0);
            let of_pool = pool.node_budget_bytes.saturating_sub(used_of_pool);
            let free = node.bytes_on(pool.medium).saturating_sub(used);
            (node.id, of_pool.min(free))
        });
        FreeMemory {
            nodes: free.collect(),
        }
    }

    /// Nodes with so many bytes left.
    #[cfg(test)]
    pub(super) fn with(free: impl IntoIterator<Item = (u64, u64)>) -> FreeMemory {
        let free = free.into_iter().map(|(node, bytes)| (NodeId(node), bytes));
        FreeMemory {
            nodes: free.collect(),
        }
    }

    /// The number of nodes that may hold buckets of the pool.
    pub(super) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes left on all of them.
    pub(super) fn left(&self) -> u64 {
        self.nodes.values().copied().fold(0, u64::saturating_add)
    }

    /// Bytes left on a node, if it may hold buckets.
    pub(super) fn left_on(&self, node: NodeId) -> Option<u64> {
        self.nodes.get(&node).copied()
    }

    /// Bytes left on the emptiest node that is not in the group.
    pub(super) fn most(&self, in_group: impl Fn(NodeId) -> bool) -> u64 {
        let others = self.nodes.iter().filter(|(node, _)| !in_group(**node));
        others.map(|(_, free)| *free).max().unwrap_or(0)
    }

    /// Frees bytes on a node.
    pub(super) fn free(&mut self, node: NodeId, bytes: u64) {
        if let Some(free) = self.nodes.get_mut(&node) {
            *free = free.saturating_add(bytes);
        }
    }

    /// Takes bytes of a node; returns those that it does not have.
    pub(super) fn take(&mut self, node: NodeId, bytes: u64) -> u64 {
        let Some(free) = self.nodes.get_mut(&node) else {
            return bytes;
        };
        let missing = bytes.saturating_sub(*free);
        *free = free.saturating_sub(bytes);
        missing
    }

    /// Places members of so many bytes on different nodes outside of the group, the emptiest first; returns the bytes
    /// of those that fit nowhere.
    pub(super) fn place(
        &mut self,
        bytes: u64,
        members: usize,
        in_group: impl Fn(NodeId) -> bool,
    ) -> u64 {
        self.place_first_on(|_| false, bytes, members, in_group)
    }

    /// As [`FreeMemory::place`], with preferred nodes before all others.
    pub(super) fn place_first_on(
        &mut self,
        preferred: impl Fn(NodeId) -> bool,
        bytes: u64,
        members: usize,
        in_group: impl Fn(NodeId) -> bool,
    ) -> u64 {
        let able = self.nodes.iter().map(|(node, free)| (*free, *node));
        let mut able: Vec<(u64, NodeId)> = able
            .filter(|(free, node)| *free >= bytes && !in_group(*node))
            .collect();
        able.sort_by_key(|(free, node)| (!preferred(*node), Reverse(*free), *node));
        able.truncate(members);
        for (_, node) in &able {
            self.take(*node, bytes);
        }
        (members - able.len()) as u64 * bytes
    }
}

/// Buckets of a pool for which no node has room; with `outside_group` only a node outside of a bucket's group could
/// take it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "{} of pool '{pool}' (of about {} each) would find no node with room{}, and all that may take buckets have {} left for \
     the pool: give it more memory ('staves pool set {pool} --memory'), add a node, or delete what is not needed",
    count(*buckets, "bucket"), bytes(*bucket_bytes),
    if *outside_group { " that has no part in the group" } else { "" }, bytes(*left_bytes)
)]
#[allow(missing_docs)] // the text says it
pub struct NoRoom {
    pub pool: String,
    pub buckets: usize,
    pub bucket_bytes: u64,
    pub left_bytes: u64,
    pub outside_group: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_go_to_different_nodes_with_room_the_emptiest_first() {
        let mut free = FreeMemory::with([(1, 10), (2, 30), (3, 20), (4, 5)]);
        assert_eq!(free.place(10, 2, |node| node == NodeId(2)), 0);
        assert_eq!(free.left(), 45, "nodes 3 and 1 took one each");
        assert_eq!(free.place(10, 3, |_| false), 10, "only nodes 2 and 3 fit");
        assert_eq!(free.take(NodeId(4), 7), 2);
        free.free(NodeId(4), 3);
        assert_eq!(free.place(3, 1, |node| node != NodeId(4)), 0);
        assert_eq!(free.place(1, 1, |node| node != NodeId(4)), 1);
    }
}
