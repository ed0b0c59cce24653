//! Whether a drain can ever finish: the buckets must have somewhere to go.

use staves_model::{ClusterMap, Node, NodeState};
use staves_node::status::{StatusReport, drain_waits_for};

use crate::explain::Own;
use crate::failure::Failure;
use crate::output::bytes;

/// Refuses a drain after which the nodes that are left could not hold the data.
pub fn may_drain(map: &ClusterMap, report: &StatusReport, node: &Node) -> Result<(), Failure> {
    let stays =
        |other: &&Node| other.id != node.id && other.state == NodeState::Up && !other.draining;
    let homes: Vec<&Node> = map.nodes.values().filter(stays).collect();
    let refused = |text: String| {
        let who = format!("node {} ({}) cannot be drained", node.id, node.name);
        let text = format!("{who}: {text}; nothing was changed (--force drains all the same)");
        Err(Failure::Own(Own::NeedsForce, text))
    };
    if map.groups.is_empty() {
        return Ok(());
    }
    if homes.is_empty() {
        return refused(
            "no other node is up and not draining, so its buckets have nowhere to go: start or \
             resume another node first"
                .into(),
        );
    }
    let mut drained = map.clone();
    if let Some(node) = drained.nodes.get_mut(&node.id) {
        node.draining = true;
    }
    if let Some(waits) = drain_waits_for(&drained, node.id) {
        return refused(waits);
    }
    let (needed, room) = (needed(map, report, homes.len()), room(map, &homes));
    if needed > room {
        let left = match homes.len() {
            1 => "the 1 node that is left may".to_owned(),
            n => format!("the {n} nodes that are left may"),
        };
        return refused(format!(
            "the data takes about {} and {left} hold {}: add nodes, give the pools more memory, or \
             keep fewer copies",
            bytes(needed),
            bytes(room)
        ));
    }
    Ok(())
}

/// What the pages that are used now will take on so many nodes, by what the nodes say: a bucket has no
/// more copies than there are nodes for them.
fn needed(map: &ClusterMap, report: &StatusReport, homes: usize) -> u64 {
    let facts = report.nodes.iter().filter_map(|node| node.facts.as_ref());
    let used: u64 = facts.map(|facts| facts.used_bytes).sum();
    let members = |group: &staves_model::Group| group.listed().count();
    let now: usize = map.groups.values().map(members).sum();
    let then: usize = map.groups.values().map(|g| members(g).min(homes)).sum();
    match now {
        0 => 0,
        _ => (u128::from(used) * then as u128 / now as u128) as u64,
    }
}

/// What these nodes may hold for all pools.
fn room(map: &ClusterMap, homes: &[&Node]) -> u64 {
    let pools: u64 = map.pools.values().map(|pool| pool.node_budget_bytes).sum();
    homes.iter().map(|node| node.memory_bytes.min(pools)).sum()
}
