//! The node that a new log's sequencer is to be on.

use staves_cli_common::cluster::{Cluster, find_node};
use staves_cli_common::failure::Failure;
use staves_model::{ClusterMap, NodeId};
use staves_wire::ErrorCode;

/// The node of that name or id, or one of that zone; none if neither was asked for. Known before the log is made.
pub fn home(
    session: &Cluster,
    node: Option<&str>,
    zone: Option<&str>,
) -> anyhow::Result<Option<NodeId>> {
    if node.is_none() && zone.is_none() {
        return Ok(None);
    }
    let map = session.map()?;
    if let Some(node) = node {
        let node = find_node(&map, node)?;
        let refused = || {
            let text = format!(
                "the sequencer cannot be on node {} ({}), which is down or drained: choose another of 'staves node list'; no log was made",
                node.id, node.name
            );
            Failure::Wire(ErrorCode::Refused, text)
        };
        return match node.is_home() {
            true => Ok(Some(node.id)),
            false => Err(refused().into()),
        };
    }
    let found = zone.and_then(|zone| in_zone(&map, zone));
    found.map(Some).ok_or_else(|| {
        let zone = zone.unwrap_or_default();
        let text = format!(
            "no node of zone '{zone}' is up and not drained: 'staves node list' shows the zones; no log was made"
        );
        Failure::Wire(ErrorCode::Refused, text).into()
    })
}

/// A node of a zone, another for each process that asks.
fn in_zone(map: &ClusterMap, zone: &str) -> Option<NodeId> {
    let homes = map
        .homes()
        .filter(|home| home.zone.as_deref() == Some(zone));
    let homes: Vec<NodeId> = homes.map(|home| home.id).collect();
    let turn = (std::process::id() as usize).checked_rem(homes.len())?;
    homes.get(turn).copied()
}
