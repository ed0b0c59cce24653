//! Whether a drain can ever finish: the buckets must have somewhere to go.

use staves_model::{ClusterMap, Group, Node, NodeId, NodeState, Pool};
use staves_node::status::{StatusReport, drain_waits_for};

use crate::explain::Own;
use crate::failure::Failure;
use crate::output::{bytes, count};
use crate::room::Room;

/// Refuses a drain that could never end, or after which the nodes that are left could not hold the data. A warning
/// if buckets fit nowhere as things are.
pub fn may_drain(
    map: &ClusterMap,
    report: &StatusReport,
    node: &Node,
) -> Result<Option<String>, Failure> {
    let stays =
        |other: &&Node| other.id != node.id && other.state == NodeState::Up && !other.draining;
    let homes: Vec<&Node> = map.nodes.values().filter(stays).collect();
    let refused = |text: String| {
        let who = format!("node {} ({}) cannot be drained", node.id, node.name);
        let text = format!("{who}: {text}; nothing was changed (--force drains all the same)");
        Err(Failure::Own(Own::NeedsForce, text))
    };
    if map.groups.is_empty() {
        return Ok(None);
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
    if let Some((other, waits)) = held_up(map, &drained) {
        return refused(format!(
            "node {} ({}) drains, too, and could then not be emptied: {waits}",
            other.id, other.name
        ));
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
    Ok(room_elsewhere(map, report, node).map(|text| format!("the drain cannot end: {text}")))
}

/// Another node whose drain could end before, and what it waits for then.
fn held_up<'a>(map: &'a ClusterMap, drained: &ClusterMap) -> Option<(&'a Node, String)> {
    let others = map.nodes.values().filter(|other| other.draining);
    let mut others = others.filter(|other| drain_waits_for(map, other.id).is_none());
    others.find_map(|other| Some((other, drain_waits_for(drained, other.id)?)))
}

/// Whether what a node holds of pools with m > 1 would fit on the others that may take it: those with no part in the same
/// group. (With m = 1 a group may do with fewer copies.) By what nodes say that they use; a bucket counts as the mean of
/// the node's buckets of the pool.
pub fn room_elsewhere(map: &ClusterMap, report: &StatusReport, node: &Node) -> Option<String> {
    let row = report.nodes.iter().find(|row| row.id == node.id.0)?;
    let mut gone = map.clone();
    gone.nodes.get_mut(&node.id)?.draining = true;
    let mut coded = map.pools.values().filter(|pool| pool.scheme.m > 1);
    coded.find_map(|pool| {
        let in_group = |group: &Group, id: NodeId| group.listed().any(|(_, x)| x.node.home() == id);
        let groups = pool.groups.iter().filter_map(|id| map.groups.get(id));
        let held: Vec<&Group> = groups.filter(|group| in_group(group, node.id)).collect();
        let pools = &row.facts.as_ref()?.pools;
        let used = pools.iter().find(|of| of.pool == pool.name)?.used_bytes;
        let size = used.checked_div(held.len() as u64)?;
        let mut room = Room::of(&gone, report, pool);
        let has = room.left();
        // Where there is no such node at all, it is not memory that is missing.
        let homes = || {
            gone.nodes
                .values()
                .filter(|n| n.state == NodeState::Up && !n.draining)
        };
        let may_move = |group: &&&Group| homes().any(|home| !in_group(group, home.id));
        let stuck = held.iter().filter(may_move);
        let stuck = stuck.filter(|group| room.place(size, 1, |id| in_group(group, id)) > 0);
        told_of_stuck(pool, stuck.count(), size, has)
    })
}

fn told_of_stuck(pool: &Pool, stuck: usize, size: u64, has: u64) -> Option<String> {
    (stuck > 0).then(|| {
        format!(
            "{} of pool '{name}' (of about {} each) would find no node with room that has no part in the group, and all that \
             may take buckets have {} left for the pool: give it more memory ('staves pool set {name} --memory'), add a node, \
             or delete what is not needed",
            count(stuck, "bucket"),
            bytes(size),
            bytes(has),
            name = pool.name,
        )
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::{
        Change, ClusterId, Epoch, Medium, MemberSlot, NewEpoch, PoolKind, REGION_BUCKET_BYTES,
    };
    use staves_node::status::{DirectoryFacts, NodeFacts, PoolFacts};

    const MIB: u64 = 1 << 20;

    /// A pool 2+1 with one group on nodes 1 to 3 of so many.
    fn map(nodes: u64) -> ClusterMap {
        let mut map = ClusterMap::default();
        let cluster = ClusterId(1);
        map.apply(None, &Change::Bootstrap { cluster })
            .expect("new");
        for node in 1..=nodes {
            let up = Change::NodeUp {
                id: None,
                name: format!("n{node}"),
                zone: None,
                native: format!("n{node}:1600"),
                resp: format!("n{node}:6379"),
                admin: format!("n{node}:1680"),
                memory_bytes: 1 << 30,
                durable: true,
            };
            map.apply(None, &up).expect("new");
        }
        let pool = Change::CreatePool {
            name: "mem".into(),
            kind: PoolKind::Memory {
                regions: Vec::new(),
            },
            scheme: "2+1".parse().expect("a scheme"),
            medium: Medium::Ram,
            node_budget_bytes: 64 * MIB,
            buckets: 0,
            may_start_empty: false,
        };
        map.apply(None, &pool).expect("new");
        let region = Change::CreateRegion {
            pool: "mem".into(),
            name: "r".into(),
            size_bytes: REGION_BUCKET_BYTES,
        };
        map.apply(None, &region).expect("new");
        let group = *map.groups.keys().next().expect("one");
        let life = |n| Some((NodeId(n), map.nodes[&NodeId(n)].incarnation));
        let epoch = Epoch(1);
        let new = NewEpoch {
            group,
            epoch,
            members: vec![life(1), life(2), life(3)],
            kept: vec![None; 3],
            leader: MemberSlot(0),
            fresh: true,
        };
        map.apply(None, &Change::CommitEpochs(vec![new]))
            .expect("sound");
        map.apply(None, &Change::Open { group, epoch })
            .expect("opens");
        map
    }

    fn report(map: &ClusterMap, used: &[u64]) -> StatusReport {
        let facts = (1..).zip(used).map(|(node, used)| NodeFacts {
            node,
            used_bytes: used * MIB,
            budget_bytes: 1 << 30,
            pools: vec![PoolFacts {
                pool: "mem".into(),
                used_bytes: used * MIB,
                budget_bytes: 64 * MIB,
            }],
            ..NodeFacts::default()
        });
        StatusReport::new(map, NodeId(1), DirectoryFacts::default(), facts)
    }

    /// Regression: a drain that no node had room for was accepted without a word.
    #[test]
    fn a_drain_without_room_is_told_of_with_numbers() {
        let map = map(4);
        let node = &map.nodes[&NodeId(1)];
        let judged = |used: &[u64]| may_drain(&map, &report(&map, used), node);
        assert_eq!(judged(&[30, 30, 30, 20]), Ok(None));
        let warning = judged(&[30, 30, 30, 40]).expect("nothing is lost");
        let warning = warning.expect("24 MiB are left");
        for part in [
            "cannot end",
            "1 bucket of pool 'mem'",
            "30.0 MiB",
            "pool set mem",
        ] {
            assert!(warning.contains(part), "{part}: {warning}");
        }
    }

    /// Regression: two drains were accepted that together left a group too few nodes.
    #[test]
    fn a_second_drain_does_not_take_the_node_that_the_first_needs() {
        let mut map = map(4);
        let drain = |node| Change::Drain {
            node: NodeId(node),
            on: true,
        };
        map.apply(None, &drain(1)).expect("known");
        let report = report(&map, &[1, 1, 1, 1]);
        let judged = |node| may_drain(&map, &report, &map.nodes[&NodeId(node)]);
        let why = judged(4)
            .expect_err("node 1's bucket goes there")
            .to_string();
        for part in [
            "node 4 (n4) cannot be drained",
            "node 1 (n1) drains, too",
            "--force",
        ] {
            assert!(why.contains(part), "{part}: {why}");
        }
        let five = self::map(5);
        let mut two = five.clone();
        two.apply(None, &drain(1)).expect("known");
        assert!(held_up(&five, &two).is_none(), "nobody drained before");
    }
}
