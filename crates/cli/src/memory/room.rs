//! The memory that a region's members report: asked before a load, and where parity is not made in time.

use staves_model::ClusterMap;
use staves_model::policy::RegionUsage;
use staves_node::group_state::GroupState;
use staves_wire::Message;
use staves_wire::admin::GroupTarget;

use staves_cli_common::cluster::Cluster;

/// Asks all members of a region for the extents that they have reserved. `None`: there is no such region.
pub fn region_usage<'a>(
    cluster: &Cluster,
    map: &'a ClusterMap,
    name: &str,
) -> Option<RegionUsage<'a>> {
    let (_, region) = map.region_named(name)?;
    let (mut members, mut asks) = (Vec::new(), Vec::new());
    for group in region.groups().filter_map(|id| map.groups.get(&id)) {
        for (slot, member) in group.listed() {
            if let Some(node) = map.node_of(member) {
                let message = Message::GroupState(GroupTarget { group: group.id });
                members.push((group.id, slot));
                asks.push((node.native.clone(), message));
            }
        }
    }
    let answers = members.into_iter().zip(cluster.ask_all(asks));
    let extents = answers.filter_map(|((group, slot), answer)| match answer {
        Ok(Message::GroupStateAnswer(answer)) => {
            let state = serde_json::from_slice::<GroupState>(&answer.json).ok()?;
            // A node may hold two members of a group.
            let state = state.of_slot(slot.0)?;
            Some(((group, slot), state.extents_reserved))
        }
        _ => None,
    });
    RegionUsage::new(map, name, extents.collect())
}
