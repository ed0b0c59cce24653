//! The units of logs of a node.

use serde::Serialize;
use staves_cli_common::output;
use staves_model::{ClusterMap, MemberId, Node, ServiceId};

/// The units of logs that a node holds, of one pool.
#[derive(Serialize)]
pub struct HeldUnits {
    pool: String,
    primaries: usize,
    copies: usize,
}

/// By the map, like the keys.
pub fn held(map: &ClusterMap, node: &Node) -> Vec<HeldUnits> {
    let member = MemberId::new(node.id, node.incarnation);
    let logs = map
        .pools
        .values()
        .filter(|pool| pool.kind.service() == Some(ServiceId::LOG));
    let held = logs.map(|pool| {
        let slots = map
            .groups_of(pool)
            .filter_map(|group| group.slot_of(member));
        let (primaries, copies): (Vec<_>, Vec<_>) = slots.partition(|slot| slot.0 < pool.scheme.m);
        HeldUnits {
            pool: pool.name.clone(),
            primaries: primaries.len(),
            copies: copies.len(),
        }
    });
    held.filter(|held| held.primaries + held.copies > 0)
        .collect()
}

/// None if there are no units.
pub fn table(units: &[HeldUnits]) -> Option<String> {
    let rows = units.iter().map(|held| {
        let (primaries, copies) = (held.primaries.to_string(), held.copies.to_string());
        vec![held.pool.clone(), primaries, copies]
    });
    let headings = ["pool of logs", "units as primary ", "as copy "];
    (!units.is_empty()).then(|| output::table(&headings, rows))
}
