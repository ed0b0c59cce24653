//! Whether members that are to be made find memory: what nodes have left for a pool, against what buckets take.

use std::collections::BTreeMap;

use staves_model::{ClusterMap, Node, NodeId, NodeState, Pool};
use staves_node::status::StatusReport;

/// Bytes that a pool may still take of each node that may hold its buckets.
pub struct Room {
    free: BTreeMap<NodeId, u64>,
}

impl Room {
    /// By what the nodes say. One that does not say counts as empty: what is not known refuses nothing.
    pub fn of(map: &ClusterMap, report: &StatusReport, pool: &Pool) -> Room {
        let home = |node: &&Node| node.state == NodeState::Up && !node.draining;
        let free = |node: &Node| {
            let row = report.nodes.iter().find(|row| row.id == node.id.0);
            let facts = row.and_then(|row| row.facts.as_ref());
            let of_pool = facts.and_then(|f| f.pools.iter().find(|p| p.pool == pool.name));
            let left = |budget: u64, used: Option<u64>| budget.saturating_sub(used.unwrap_or(0));
            let of_pool = left(pool.node_budget_bytes, of_pool.map(|p| p.used_bytes));
            of_pool.min(left(node.memory_bytes, facts.map(|f| f.used_bytes)))
        };
        let homes = map.nodes.values().filter(home);
        Room {
            free: homes.map(|node| (node.id, free(node))).collect(),
        }
    }

    /// Nodes with so many bytes left.
    #[cfg(test)]
    pub fn with(free: impl Iterator<Item = (u64, u64)>) -> Room {
        Room {
            free: free.map(|(node, bytes)| (NodeId(node), bytes)).collect(),
        }
    }

    /// How many nodes may hold buckets.
    pub fn nodes(&self) -> usize {
        self.free.len()
    }

    /// What is left on all of them.
    pub fn left(&self) -> u64 {
        self.free.values().sum()
    }

    /// What a node will not hold any more.
    pub fn give(&mut self, node: NodeId, bytes: u64) {
        if let Some(free) = self.free.get_mut(&node) {
            *free = free.saturating_add(bytes);
        }
    }

    /// What a node will hold besides; the bytes for which it has no room.
    pub fn take(&mut self, node: NodeId, bytes: u64) -> u64 {
        let Some(free) = self.free.get_mut(&node) else {
            return bytes;
        };
        let missing = bytes.saturating_sub(*free);
        *free = free.saturating_sub(bytes);
        missing
    }

    /// What is left on a node, if it may hold buckets.
    pub fn left_on(&self, node: NodeId) -> Option<u64> {
        self.free.get(&node).copied()
    }

    /// What the emptiest node has left of those that are not in the group.
    pub fn most(&self, in_group: impl Fn(NodeId) -> bool) -> u64 {
        let others = self.free.iter().filter(|(node, _)| !in_group(**node));
        others.map(|(_, free)| *free).max().unwrap_or(0)
    }

    /// So many members of these bytes on different nodes, of those that are not in the group, the emptiest first; the
    /// bytes of those for which there is no room.
    pub fn place(&mut self, bytes: u64, members: usize, in_group: impl Fn(NodeId) -> bool) -> u64 {
        self.place_first_on(|_| false, bytes, members, in_group)
    }

    /// The same, on these nodes before all others.
    pub fn place_first_on(
        &mut self,
        first: impl Fn(NodeId) -> bool,
        bytes: u64,
        members: usize,
        in_group: impl Fn(NodeId) -> bool,
    ) -> u64 {
        let mut nodes: Vec<(u64, NodeId)> = self
            .free
            .iter()
            .filter(|(node, free)| !in_group(**node) && **free >= bytes)
            .map(|(node, free)| (*free, *node))
            .collect();
        nodes.sort_by_key(|(free, node)| (!first(*node), std::cmp::Reverse(*free), *node));
        nodes.truncate(members);
        for (_, node) in &nodes {
            self.take(*node, bytes);
        }
        (members - nodes.len()) as u64 * bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_go_to_different_nodes_with_room_the_emptiest_first() {
        let mut room = Room::with([(1, 10), (2, 30), (3, 20), (4, 5)].into_iter());
        assert_eq!(room.place(10, 2, |node| node == NodeId(2)), 0);
        assert_eq!(room.left(), 45, "nodes 3 and 1 took one each");
        assert_eq!(
            room.place(10, 3, |_| false),
            10,
            "node 2 and 3, and nobody else"
        );
        assert_eq!(room.take(NodeId(4), 7), 2);
        room.give(NodeId(4), 3);
        assert_eq!(room.place(3, 1, |node| node != NodeId(4)), 0);
        assert_eq!(room.place(1, 1, |node| node != NodeId(4)), 1);
    }
}
