//! Advice on drains, on small maps.

use super::*;
use crate::change::Change;
use crate::policy::testing::{MIB, mem, usage};
use crate::testing::{cluster_with_pool, create_pool, set_drain, start_group};

fn drain(node: u64) -> Change {
    set_drain(node, true)
}

/// Regression: a drain that no node had room for was accepted without a word.
#[test]
fn a_drain_without_room_is_warned_of_with_numbers() {
    let map = mem(4);
    let judged = |used: &[u64]| may_drain(&map, &usage(used), &map.nodes[&NodeId(1)]);
    assert_eq!(judged(&[30, 30, 30, 20]), Ok(None));
    let warning = judged(&[30, 30, 30, 40]).expect("nothing is lost");
    let warning = warning.expect("24 MiB are left");
    assert_eq!((warning.buckets, warning.bucket_bytes), (1, 30 * MIB));
    assert_eq!(warning.left_bytes, (34 + 34 + 24) * MIB);
    let text = warning.to_string();
    for part in ["1 bucket of pool 'mem'", "30.0 MiB", "pool set mem"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Regression: two drains were accepted that together left a group too few nodes.
#[test]
fn a_second_drain_does_not_take_the_node_that_the_first_needs() {
    let mut map = mem(4);
    map.apply(None, &drain(1)).expect("known");
    let why = may_drain(&map, &usage(&[1; 4]), &map.nodes[&NodeId(4)]);
    let why = why.expect_err("node 1's bucket goes there");
    let other = matches!(&why, DrainRefusal::BlocksOther { node, waits, .. } if *node == NodeId(1) && waits.homes == 2);
    assert!(other, "{why:?}");
    let text = why.to_string();
    assert!(text.starts_with("node 1 (n1) drains, too"), "{text}");
    let five = mem(5);
    let mut two = five.clone();
    two.apply(None, &drain(1)).expect("known");
    assert!(
        blocked_drain(&five, &two).is_none(),
        "no node drained before"
    );
}

#[test]
fn a_drain_without_another_node_is_rejected() {
    let mut map = mem(3);
    let judged = |map: &ClusterMap| may_drain(map, &Usage::default(), &map.nodes[&NodeId(1)]);
    let waits = judged(&map).expect_err("each of the others has a part");
    assert!(matches!(&waits, DrainRefusal::Waits(waits) if waits.homes == 2));
    assert!(waits.to_string().contains("all 2 others that are up"));
    for node in [2, 3] {
        map.apply(None, &drain(node)).expect("known");
    }
    assert_eq!(judged(&map), Err(DrainRefusal::NoOtherNode));
}

/// Regression: the memory of a second pool, empty, was counted as room for what the first one holds.
#[test]
fn the_memory_of_another_pool_is_no_room() {
    let mut map = mem(4);
    let mut cache = create_pool("cache", "1+2", 1, true);
    if let Change::CreatePool {
        node_budget_bytes, ..
    } = &mut cache
    {
        *node_budget_bytes = 32 * MIB;
    }
    map.apply(None, &cache).expect("new");
    let group = map.groups.keys().last().expect("the cache's").0;
    start_group(&mut map, group, &[1, 2, 3]);
    let judged = |used: u64| {
        let mut usage = usage(&[0; 4]);
        for node in usage.nodes.values_mut() {
            node.used_bytes = used * MIB;
            node.pools.insert("cache".into(), used * MIB);
        }
        may_drain(&map, &usage, &map.nodes[&NodeId(1)])
    };
    assert_eq!(judged(15), Ok(None));
    let why = judged(30).expect_err("120 MiB on three nodes").to_string();
    for part in [
        "the data of pool 'cache' takes about 120 MiB",
        "the 3 nodes that are left may hold 96.0 MiB",
        "pool set cache",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
}

/// A node may report any amount, and a pool may be given any.
#[test]
fn numbers_that_nodes_made_up_end_no_process() {
    let map = mem(4);
    let mut usage = usage(&[1; 4]);
    for node in usage.nodes.values_mut() {
        node.used_bytes = u64::MAX;
        node.pools.insert("mem".into(), u64::MAX);
    }
    assert!(may_drain(&map, &usage, &map.nodes[&NodeId(1)]).is_err());
}

/// So many nodes, and a pool `cache` of one bucket on two of them.
fn two_copies(nodes: u64) -> ClusterMap {
    let mut map = cluster_with_pool(nodes, "1+1", 1);
    start_group(&mut map, 1, &[1, 2]);
    map
}

/// Regression: a drain of one of two nodes ended, and left one copy of two.
#[test]
fn a_drain_that_costs_copies_is_refused() {
    let judged =
        |map: &ClusterMap, node| may_drain(map, &Usage::default(), &map.nodes[&NodeId(node)]);
    assert_eq!(judged(&two_copies(3), 1), Ok(None), "node 3 takes it");
    let why = judged(&two_copies(2), 1).expect_err("each has a copy");
    let copies = |why: &DrainRefusal| match why {
        DrainRefusal::Copies(copies) => (copies.buckets, copies.homes),
        other => panic!("{other:?}"),
    };
    assert_eq!(copies(&why), (1, 1));
    let text = why.to_string();
    for part in [
        "1 bucket of pool 'cache' (1+1) would stay with fewer copies",
        "on 2 nodes and 1 node would be left",
        "add or resume a node, or keep fewer copies ('staves pool set cache --scheme')",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // A pool of one copy, and a node without a part in anything.
    let mut one = cluster_with_pool(2, "1+0", 1);
    start_group(&mut one, 1, &[1]);
    assert_eq!((judged(&one, 1), judged(&one, 2)), (Ok(None), Ok(None)));
    // A copy that is missing already is no reason to give up another.
    let mut few = cluster_with_pool(2, "1+2", 1);
    start_group(&mut few, 1, &[1, 2]);
    assert_eq!(copies(&judged(&few, 2).expect_err("of three")), (1, 1));
}

/// Regression: a node without a disk was taken for one that could have a bucket on disk.
#[test]
fn a_node_without_a_disk_takes_no_copy_on_disk() {
    let mut map = two_copies(3);
    for pool in map.pools.values_mut() {
        pool.medium = Medium::Disk;
    }
    let judged = |map: &ClusterMap| may_drain(map, &Usage::default(), &map.nodes[&NodeId(1)]);
    assert_eq!(judged(&map), Ok(None));
    map.nodes.get_mut(&NodeId(3)).expect("known").disk_bytes = 0;
    let text = judged(&map).expect_err("node 3 has no disk").to_string();
    for part in [
        "1 node with a disk would be left",
        "resume a node with a disk",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for group in map.groups.values_mut() {
        group.m = 2;
    }
    let text = judged(&map).expect_err("no joiner").to_string();
    assert!(
        text.ends_with("start or resume another node with a disk"),
        "{text}"
    );
}

/// Regression: the second of two drains took the node that the first one's copy was to go to.
#[test]
fn a_second_drain_does_not_cost_the_first_ones_copies() {
    let mut map = two_copies(3);
    map.apply(None, &drain(1)).expect("known");
    let judged = |map: &ClusterMap| may_drain(map, &Usage::default(), &map.nodes[&NodeId(3)]);
    let why = judged(&map).expect_err("node 1's copy goes there");
    let text = why.to_string();
    assert!(
        matches!(&why, DrainRefusal::CopiesOfOther { node, .. } if *node == NodeId(1)),
        "{text}"
    );
    assert!(
        text.starts_with("node 1 (n1) drains, too: 1 bucket of pool 'cache'"),
        "{text}"
    );
    // One that is lost has none.
    let mut lost = map.clone();
    lost.groups.values_mut().for_each(|group| group.lost = true);
    assert_eq!(judged(&lost), Ok(None));
}
