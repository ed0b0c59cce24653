//! Nodes that answer, but late.

use std::collections::BTreeSet;

use crate::ids::NodeId;
use crate::map::{ClusterMap, Group, NodeState};

/// True if every group in which this node is complete has what it needs without it and without those, and one member more: to take it out
/// because it is slow costs no data then, even if another node dies before what it had is made anew.
pub(super) fn is_spare(map: &ClusterMap, node: NodeId, gone: &BTreeSet<NodeId>) -> bool {
    let stays = |id: NodeId| {
        let up = map.nodes.get(&id).is_some_and(|n| n.state == NodeState::Up);
        up && id != node && !gone.contains(&id)
    };
    let complete = |group: &Group, is: &dyn Fn(NodeId) -> bool| {
        let members = group.members.iter().flatten();
        members.filter(|m| m.complete && is(m.id.node)).count()
    };
    let has_it = |group: &&Group| complete(group, &|id| id == node) > 0;
    let mut groups = map.groups.values().filter(has_it);
    groups.all(|group| complete(group, &stays) > usize::from(group.m))
}
