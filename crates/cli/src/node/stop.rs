//! Whether what a node holds can be made anew once it has stopped.

use staves_model::{ClusterMap, Group, MemberSlot, Node, NodeId, NodeState, whole_buckets};
use staves_node::status::StatusReport;

use super::drain::told_of_stuck;
use crate::room::Room;
use staves_cli_common::output::count;

/// That the nodes that stay have no room for some of what this one holds, and for how many data buckets nobody answers
/// then. By what nodes say that they use; a bucket counts as the mean of the node's buckets of the pool.
pub fn not_made_anew(map: &ClusterMap, report: &StatusReport, node: &Node) -> Option<String> {
    let row = report.nodes.iter().find(|row| row.id == node.id.0)?;
    let (id, mut gone) = (node.id, map.clone());
    gone.nodes.get_mut(&id)?.state = NodeState::Down;
    map.pools.values().find_map(|pool| {
        let groups = pool.groups.iter().filter_map(|id| map.groups.get(id));
        let held = groups.filter(|group| !group.lost).flat_map(|group| {
            let here = group.listed().filter(move |(_, x)| x.id.node == id);
            here.map(move |(slot, _)| (group, slot))
        });
        let held: Vec<(&Group, MemberSlot)> = held.collect();
        let pools = &row.facts.as_ref()?.pools;
        let used = pools.iter().find(|of| of.pool == pool.name)?.used_bytes;
        let size = used.checked_div(held.len() as u64)?;
        let mut room = Room::of(&gone, report, pool);
        let has = room.left();
        let (mut stuck, mut unanswered) = (0, 0);
        for (group, slot) in held {
            let fits = |home: NodeId| may_make(group, slot, home);
            // Where there is no such node at all, it is not memory that is missing.
            let homes = gone.nodes.values().filter(|n| n.state == NodeState::Up);
            let any = homes.filter(|n| !n.draining).any(|n| fits(n.id));
            if any && room.place(size, 1, |home| !fits(home)) > 0 {
                stuck += 1;
                unanswered += usize::from(nobody_answers(&gone, group, slot));
            }
        }
        let told = told_of_stuck(pool, stuck, size, has, "with room")?;
        let and = match unanswered {
            0 => String::new(),
            n => format!(
                ", and nobody answers for {} of them",
                count(n, "data bucket")
            ),
        };
        Some(format!(
            "until it is back, its buckets are not made anew{and}: {told}"
        ))
    })
}

/// Whether a node may make a bucket of the group anew: it has no part in the group, or one (m > 1) beside which a data
/// bucket finds its place.
fn may_make(group: &Group, slot: MemberSlot, home: NodeId) -> bool {
    let parts = group.listed().filter(|(_, x)| x.id.node == home);
    parts.count() <= usize::from(is_coded_data(group, slot))
}

fn is_coded_data(group: &Group, slot: MemberSlot) -> bool {
    group.m > 1 && group.bucket_slot(slot).0 < group.m
}

/// Whether the group has no parity bucket to spare, the place of which a data bucket would take.
fn nobody_answers(gone: &ClusterMap, group: &Group, slot: MemberSlot) -> bool {
    let whole = whole_buckets(group.m, &group.members, |x| gone.runs(x.id));
    is_coded_data(group, slot) && whole <= usize::from(group.m)
}

#[cfg(test)]
mod tests {
    use super::super::drain::tests::{map, report};
    use super::*;

    /// Regression: on as many nodes as a group has members, nothing was said of a data bucket that no node had room for.
    #[test]
    fn a_stop_without_room_for_a_second_part_says_that_nobody_answers() {
        let map = map(3);
        let told = |node, used: &[u64]| {
            not_made_anew(&map, &report(&map, used), &map.nodes[&NodeId(node)])
        };
        assert_eq!(told(1, &[20; 3]), None, "44 MiB are left of the pool's 64");
        let text = told(1, &[40; 3]).expect("24 MiB are left");
        for part in [
            "until it is back",
            "nobody answers for 1 data bucket",
            "1 bucket of pool 'mem'",
            "40.0 MiB",
            "no node with room,",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // Parity beside data would save nothing, so no memory is missing for it.
        assert_eq!(told(3, &[40; 3]), None);
        // With a node more it would be made there, had that the room.
        let four = super::super::drain::tests::map(4);
        let report = report(&four, &[40, 40, 40, 40]);
        let text = not_made_anew(&four, &report, &four.nodes[&NodeId(3)]).expect("no room");
        assert!(!text.contains("nobody answers"), "{text}");
    }
}
