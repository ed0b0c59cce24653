//! Pools that hold regions.

use super::*;

fn memory_pool(id: u32, regions: &[(&str, u32, u32)]) -> Pool {
    let region = |(name, first, count): &(&str, u32, u32)| staves_model::Region {
        id: staves_model::RegionId(*first),
        name: (*name).to_owned(),
        volume: None,
        size_bytes: 1,
        stretches: vec![staves_model::Stretch {
            first: GroupId(*first),
            count: *count,
            state: staves_model::StretchState::Written,
            bucket_bytes: staves_model::REGION_BUCKET_BYTES_MIN,
        }],
    };
    Pool {
        id: PoolId(id),
        name: "memory".into(),
        kind: PoolKind::Memory {
            regions: regions.iter().map(region).collect(),
        },
        scheme: "4+2".parse().expect("a scheme"),
        medium: Medium::Ram,
        node_budget_bytes: 1 << 29,
        groups: vec![],
        may_start_empty: false,
    }
}

#[test]
fn a_pool_without_regions_limits_nothing() {
    let mut five = cluster(5, "1+2");
    let before = five.says();
    five.map.pools.insert(PoolId(2), memory_pool(2, &[]));
    assert_eq!(five.says(), before);
    // And alone it has no buckets to report; the directory still bears something.
    five.map.pools.remove(&PoolId(1));
    five.map.groups.clear();
    let bare = said(
        State::Healthy,
        "Healthy: 5 nodes up; any 2 more nodes may be lost.",
    );
    assert_eq!(five.says(), bare);
}

#[test]
fn lost_regions_are_named_with_what_to_do() {
    let mut five = cluster(5, "4+0");
    let mut pool = memory_pool(1, &[("a", 0, 3), ("b", 3, 5)]);
    pool.groups = (0..8).map(GroupId).collect();
    five.map.pools.insert(PoolId(1), pool);
    five.map.groups.get_mut(&GroupId(1)).expect("a group").lost = true;
    let report = five.report();
    assert_eq!(report.pools[0].lost_regions, ["a"]);
    let says = "1 of 8 buckets of pool 'memory' lost more members than 4+2 bears: bytes of region 'a' are gone";
    assert!(report.sentence.contains(says), "{}", report.sentence);
    assert!(
        report
            .sentence
            .contains("of a volume 'staves volume delete', gives it up")
    );
}

/// Regression: a bucket that no node had room for was reported as one that moves.
#[test]
fn a_bucket_that_waits_for_a_node_is_told_of() {
    let eight = |nodes: u64, vacant: &[(u32, usize)]| {
        let mut some = cluster(nodes, "4+2");
        let mut pool = memory_pool(1, &[("a", 0, 8)]);
        pool.groups = (0..8).map(GroupId).collect();
        some.map.pools.insert(PoolId(1), pool);
        for (group, slot) in vacant {
            let group = some.map.groups.get_mut(&GroupId(*group)).expect("a group");
            group.members[*slot] = None;
            group.last_open.members[*slot] = None;
        }
        some.report()
    };
    assert_eq!(eight(8, &[]).pools[0].waiting, []);
    let report = eight(8, &[(5, 3)]);
    let says =
        "; bucket 3 of group 5 of pool 'memory' waits for a node with room: add one, or give";
    assert!(report.sentence.contains(says), "{}", report.sentence);
    let report = eight(7, &[(1, 4), (5, 3), (2, 5)]);
    let says = "; bucket 3 of group 5 of pool 'memory' and 2 others wait for a node with room";
    assert!(report.sentence.contains(says), "{}", report.sentence);
    assert_eq!(report.pools[0].waiting.len(), 3);
}

/// Regression: reads of a data bucket failed for want of a node with room, and the cluster was only `Degraded`, which
/// reports that everything is answered.
#[test]
fn a_data_bucket_that_nobody_answers_for_is_critical() {
    let without = |nodes: u64, scheme: &str, slots: &[usize]| {
        let mut some = cluster(nodes, scheme);
        let mut pool = memory_pool(1, &[("a", 0, 8)]);
        pool.groups = (0..8).map(GroupId).collect();
        pool.scheme = scheme.parse().expect("a scheme");
        some.map.pools.insert(PoolId(1), pool);
        let group = some.map.groups.get_mut(&GroupId(5)).expect("a group");
        for slot in slots {
            group.members[*slot] = None;
            group.last_open.members[*slot] = None;
        }
        some.report()
    };
    for nodes in [3, 4] {
        let data = without(nodes, "2+1", &[1]);
        assert_eq!(data.state, State::Critical, "{}", data.sentence);
        let says = "; 1 of 8 buckets of pool 'memory' with a data bucket that nobody answers for; bucket 1 of group 5";
        assert!(data.sentence.contains(says), "{}", data.sentence);
        assert_eq!((data.pools[0].changing, data.pools[0].unanswered), (1, 1));
        let parity = without(nodes, "2+1", &[2]);
        assert_ne!(parity.state, State::Critical, "{}", parity.sentence);
    }
    // Parity to spare gives its place up to the data bucket.
    let spare = without(6, "4+2", &[1]);
    assert_eq!(spare.state, State::Degraded, "{}", spare.sentence);
    assert_eq!(without(6, "4+2", &[1, 4]).state, State::Critical);
}

#[test]
fn buckets_that_there_are_no_nodes_for_wait_for_one_if_they_hold_data() {
    let mut five = cluster(6, "4+2");
    let mut pool = memory_pool(1, &[("a", 0, 8)]);
    pool.groups = (0..8).map(GroupId).collect();
    five.map.pools.insert(PoolId(1), pool);
    five.map.nodes.remove(&NodeId(6));
    for group in five.groups() {
        let left = |x: &Option<Member>| x.filter(|x| x.id.node != NodeId(6));
        group.members = group.members.iter().map(left).collect();
        group.last_open.members = group.members.clone();
    }
    let report = five.report();
    let waiting = &report.pools[0].waiting;
    assert_eq!(
        waiting.len(),
        4,
        "of 8 groups 4 had data there: {waiting:?}"
    );
    assert!(
        waiting.iter().all(|w| w.bucket < 4 && !w.has_nodes),
        "{waiting:?}"
    );
    assert!(
        report.sentence.contains("wait for another node"),
        "{}",
        report.sentence
    );
}

/// Regression: of a load that was broken off nothing was reported but that copies were short.
#[test]
fn a_region_without_parity_is_named_with_what_to_do() {
    let mut eight = cluster(8, "4+0");
    let mut pool = memory_pool(1, &[("a", 0, 3), ("b", 3, 5)]);
    pool.groups = (0..8).map(GroupId).collect();
    let PoolKind::Memory { regions } = &mut pool.kind else {
        unreachable!("made so");
    };
    regions
        .iter_mut()
        .filter(|region| region.name == "a")
        .for_each(|region| region.stretches[0].state = staves_model::StretchState::Loading);
    eight.map.pools.insert(PoolId(1), pool);
    let report = eight.report();
    assert_eq!(report.pools[0].loading_regions, ["a"]);
    for part in ["region 'a' has no parity", "'staves memory protect'"] {
        assert!(
            report.sentence.contains(part),
            "{part}: {}",
            report.sentence
        );
    }
    let of_b = report.pools[0].waiting.iter().all(|w| w.group >= 3);
    assert!(of_b, "parity that is not to be there is not waited for");
}

#[test]
fn a_full_memory_pool_is_not_told_to_delete_keys() {
    let mut three = cluster(3, "1+1");
    three.map.pools.insert(PoolId(2), memory_pool(2, &[]));
    let full = PoolFacts {
        pool: "memory".into(),
        used_bytes: 1 << 20,
        budget_bytes: 1 << 20,
        dense_buckets: 1,
        ..PoolFacts::default()
    };
    let facts = NodeFacts {
        node: 2,
        pools: vec![full],
        ..NodeFacts::default()
    };
    let report = StatusReport::new(&three.map, NodeId(1), three.directory.clone(), [facts]);
    assert!(
        report.sentence.contains(
            "used up its memory on n2 (writes to new places fail: delete a region or a volume"
        ),
        "{}",
        report.sentence
    );
}

/// Regression: writes were refused for want of memory with some of it left on every node, and status was healthy: no node had what a
/// bucket needs at all its members at once.
#[test]
fn a_pool_whose_writes_find_no_memory_is_told_whatever_is_left() {
    let mut three = cluster(3, "1+1");
    three.map.pools.insert(PoolId(2), memory_pool(2, &[]));
    let facts = |node: u64, used: u64, lacking_buckets: u64| NodeFacts {
        node,
        pools: vec![PoolFacts {
            pool: "memory".into(),
            used_bytes: used << 20,
            budget_bytes: 64 << 20,
            dense_buckets: 1,
            lacking_buckets,
            ..PoolFacts::default()
        }],
        ..NodeFacts::default()
    };
    let says = |facts: [NodeFacts; 2]| {
        let report = StatusReport::new(&three.map, NodeId(1), three.directory.clone(), facts);
        (report.state, report.sentence)
    };
    assert_eq!(says([facts(1, 62, 0), facts(2, 62, 0)]).0, State::Healthy);
    let (state, sentence) = says([facts(1, 62, 0), facts(2, 62, 1)]);
    assert_eq!(state, State::Critical);
    assert!(
        sentence.contains("used up its memory on n2 ("),
        "{sentence}"
    );
    // Where one is full that one is meant, and not the one that asked it for more.
    let (_, sentence) = says([facts(1, 64, 0), facts(2, 40, 1)]);
    assert!(
        sentence.contains("used up its memory on n1 ("),
        "{sentence}"
    );
}
