//! Whether a drain can ever finish: the buckets must have somewhere to go.

use staves_model::{ClusterMap, Group, Node, NodeId, NodeState, Pool};
use staves_node::status::{StatusReport, drain_waits_for};

use crate::room::Room;
use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;
use staves_cli_common::output::{bytes, count};

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
    if let Some(short) = short_of_room(map, report, &homes) {
        return refused(short);
    }
    Ok(room_elsewhere(map, report, node).map(|text| format!("the drain cannot end: {text}")))
}

/// Another node whose drain could end before, and what it waits for then.
fn held_up<'a>(map: &'a ClusterMap, drained: &ClusterMap) -> Option<(&'a Node, String)> {
    let others = map.nodes.values().filter(|other| other.draining);
    let mut others = others.filter(|other| drain_waits_for(map, other.id).is_none());
    others.find_map(|other| Some((other, drain_waits_for(drained, other.id)?)))
}

/// Whether what a node holds would fit on the others that may take it: those with no part in the same group. By what
/// nodes say that they use; a bucket counts as the mean of the node's buckets of the pool.
pub fn room_elsewhere(map: &ClusterMap, report: &StatusReport, node: &Node) -> Option<String> {
    let row = report.nodes.iter().find(|row| row.id == node.id.0)?;
    let mut gone = map.clone();
    gone.nodes.get_mut(&node.id)?.draining = true;
    map.pools.values().find_map(|pool| {
        let in_group = |group: &Group, id: NodeId| group.listed().any(|(_, x)| x.id.node == id);
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
        let such = "with room that has no part in the group";
        told_of_stuck(pool, stuck.count(), size, has, such)
    })
}

/// That so many buckets of this size would find no such node.
pub fn told_of_stuck(pool: &Pool, stuck: usize, size: u64, has: u64, such: &str) -> Option<String> {
    (stuck > 0).then(|| {
        format!(
            "{} of pool '{name}' (of about {} each) would find no node {such}, and all that may take buckets have {} left for the pool: give it more memory ('staves pool set {name} --memory'), add a node, \
             or delete what is not needed",
            count(stuck, "bucket"),
            bytes(size),
            bytes(has),
            name = pool.name,
        )
    })
}

/// Why these nodes could not hold the data that there is: a pool's own memory is too little for its buckets, or the
/// nodes' memory for those of all pools.
fn short_of_room(map: &ClusterMap, report: &StatusReport, homes: &[&Node]) -> Option<String> {
    let left = match homes.len() {
        1 => "the 1 node that is left may".to_owned(),
        n => format!("the {n} nodes that are left may"),
    };
    let pools = || map.pools.values().filter(|pool| !pool.groups.is_empty());
    let mut all = 0;
    for pool in pools() {
        let needs = needed(map, report, pool, homes.len());
        let has: u64 = homes
            .iter()
            .map(|node| node.memory_bytes.min(pool.node_budget_bytes))
            .sum();
        if needs > has {
            return Some(format!(
                "the data of pool '{name}' takes about {} and {left} hold {} of it: add nodes, give the pool more \
                 memory ('staves pool set {name} --memory'), or keep fewer copies",
                bytes(needs),
                bytes(has),
                name = pool.name,
            ));
        }
        all += needs;
    }
    let has: u64 = homes.iter().map(|node| node.memory_bytes).sum();
    (all > has).then(|| {
        format!(
            "the data of all pools takes about {} and {left} hold {}: add nodes, or keep fewer copies",
            bytes(all),
            bytes(has)
        )
    })
}

/// What the pages that a pool uses now will take on so many nodes, by what the nodes say: a bucket has no
/// more copies than there are nodes for them.
fn needed(map: &ClusterMap, report: &StatusReport, pool: &Pool, homes: usize) -> u64 {
    let facts = report.nodes.iter().filter_map(|node| node.facts.as_ref());
    let of_pool = facts.flat_map(|facts| facts.pools.iter().filter(|of| of.pool == pool.name));
    let used: u64 = of_pool.map(|of| of.used_bytes).sum();
    let groups = || pool.groups.iter().filter_map(|id| map.groups.get(id));
    let members = |group: &Group| group.listed().count();
    let now: usize = groups().map(members).sum();
    let then: usize = groups().map(|g| members(g).min(homes)).sum();
    match now {
        0 => 0,
        _ => (u128::from(used) * then as u128 / now as u128) as u64,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use staves_model::{
        Change, ClusterId, Epoch, Medium, MemberSlot, NewEpoch, PoolKind, REGION_BUCKET_BYTES,
    };
    use staves_node::status::{DirectoryFacts, NodeFacts, PoolFacts};

    const MIB: u64 = 1 << 20;

    /// A pool 2+1 with one group on nodes 1 to 3 of so many.
    pub fn map(nodes: u64) -> ClusterMap {
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
        let life = |n| {
            Some(staves_model::MemberId::new(
                NodeId(n),
                map.nodes[&NodeId(n)].incarnation,
            ))
        };
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

    pub fn report(map: &ClusterMap, used: &[u64]) -> StatusReport {
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

    /// Regression: the memory of a second pool, empty, was counted as room for what the first one holds.
    #[test]
    fn the_memory_of_another_pool_is_no_room() {
        let cache = |name: &str| Change::CreatePool {
            name: name.into(),
            kind: PoolKind::Cache,
            scheme: "1+2".parse().expect("a scheme"),
            medium: Medium::Ram,
            node_budget_bytes: 32 * MIB,
            buckets: 1,
            may_start_empty: true,
        };
        let mut map = map(4);
        map.apply(None, &cache("cache")).expect("new");
        let group = *map.groups.keys().last().expect("the cache's");
        let life = |n| {
            Some(staves_model::MemberId::new(
                NodeId(n),
                map.nodes[&NodeId(n)].incarnation,
            ))
        };
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
        let judged = |used: u64| {
            let mut report = report(&map, &[0; 4]);
            for facts in report.nodes.iter_mut().filter_map(|n| n.facts.as_mut()) {
                facts.used_bytes = used * MIB;
                facts.pools.push(PoolFacts {
                    pool: "cache".into(),
                    used_bytes: used * MIB,
                    budget_bytes: 32 * MIB,
                });
            }
            may_drain(&map, &report, &map.nodes[&NodeId(1)])
        };
        assert_eq!(judged(15), Ok(None));
        let why = judged(30).expect_err("120 MiB on three nodes").to_string();
        for part in [
            "the data of pool 'cache' takes about 120 MiB",
            "the 3 nodes that are left may hold 96.0 MiB",
            "pool set cache",
            "--force",
        ] {
            assert!(why.contains(part), "{part}: {why}");
        }
    }
}
