//! What a drain waits for that nothing but a person can bring.

use staves_model::{ClusterMap, Group, Member, NodeId, NodeState};

/// What the drain of a node cannot go on without; `None` if it does not drain, or if every bucket that it still
/// holds has somewhere to go, as far as nodes are concerned.
pub fn drain_waits_for(map: &ClusterMap, node: NodeId) -> Option<String> {
    let drained = map.nodes.get(&node)?;
    if !drained.draining || drained.state == NodeState::Down {
        return None;
    }
    let homes: Vec<NodeId> = map
        .nodes
        .values()
        .filter(|n| n.state == NodeState::Up && !n.draining)
        .map(|n| n.id)
        .collect();
    let listed = |group: &Group, node: NodeId| {
        let is = |(_, x): (_, &Member)| x.node.home() == node;
        group.listed().any(is)
    };
    // With m = 1 a group may do with fewer copies while it has any home at all. With m > 1 who comes stands
    // beside who goes, so that it must be a node that has no part in the group.
    let stays = |group: &&Group| {
        let every_home_has_it = homes.iter().all(|home| listed(group, *home));
        listed(group, node) && every_home_has_it && (group.m > 1 || homes.is_empty())
    };
    let stuck: Vec<&Group> = map.groups.values().filter(stays).collect();
    let first = stuck.first()?;
    let pool = map.pools.get(&first.pool)?;
    let buckets = match stuck.len() {
        1 => "1 bucket has".to_owned(),
        n => format!("{n} buckets have"),
    };
    Some(match homes.len() {
        0 => format!(
            "no other node is up and not draining, so {buckets} nowhere to go: start or resume one"
        ),
        n => format!(
            "{buckets} nowhere to go, because pool '{}' ({}) keeps the buckets of a group on different nodes \
             and all {n} others that are up and not draining are in the group: start or resume another node",
            pool.name, pool.scheme
        ),
    })
}
