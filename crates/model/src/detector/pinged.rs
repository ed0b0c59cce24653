//! The nodes that a node pings.

use std::collections::BTreeSet;

use crate::ids::NodeId;
use crate::map::{ClusterMap, Group, NodeState};

/// Most nodes that one node pings.
pub const PINGED_MAX: usize = 32;

/// Some of the nodes, from the one after `node` in the circle of ids on, `skip` further each round.
pub(super) fn circle_from(
    node: NodeId,
    mut nodes: Vec<NodeId>,
    skip: usize,
    count: usize,
) -> Vec<NodeId> {
    nodes.sort_unstable();
    if nodes.is_empty() {
        return nodes;
    }
    let after = nodes.partition_point(|n| *n <= node);
    let start = (after + skip) % nodes.len();
    nodes.rotate_left(start);
    nodes.truncate(count);
    nodes
}

/// The nodes that a node pings: all that are up, so that it is known who reaches whom; where these are more than [`PINGED_MAX`], the
/// next two and the one before it in the circle of their ids, and the peers of its groups, at most so many. By id.
pub fn whom_to_ping(map: &ClusterMap, me: NodeId) -> Vec<NodeId> {
    let up = map
        .nodes
        .values()
        .filter(|n| n.state == NodeState::Up && n.id != me);
    let circle = circle_from(me, up.map(|n| n.id).collect(), 0, usize::MAX);
    let next = if circle.len() <= PINGED_MAX {
        PINGED_MAX
    } else {
        2
    };
    let mut pinged: BTreeSet<NodeId> = circle
        .iter()
        .take(next)
        .chain(circle.last())
        .copied()
        .collect();
    let mut peers = BTreeSet::new();
    let mine = |g: &&Group| g.members.iter().flatten().any(|x| x.id.node == me);
    let groups = map.groups.values().filter(|_| pinged.len() < circle.len());
    for group in groups.filter(mine) {
        peers.extend(group.members.iter().flatten().map(|x| x.id.node));
    }
    // In the order of the circle, so that with very many peers each is pinged by somebody.
    for peer in circle.iter().filter(|n| peers.contains(n)) {
        if pinged.len() >= PINGED_MAX {
            break;
        }
        pinged.insert(*peer);
    }
    pinged.into_iter().collect()
}
