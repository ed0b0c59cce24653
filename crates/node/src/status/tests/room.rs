//! Pools without room: what is short, where, and until when.

use super::*;

#[test]
fn a_pool_that_is_full_somewhere_is_told() {
    let three = cluster(3, "1+2");
    let says_with = |dense_buckets: u64, of_pool: u64, of_node: u64| {
        let facts = |node: u64| NodeFacts {
            node,
            used_bytes: of_node,
            budget_bytes: 1 << 30,
            pools: vec![PoolFacts {
                pool: "cache".into(),
                used_bytes: of_pool,
                budget_bytes: 1 << 29,
                dense_buckets,
                ..PoolFacts::default()
            }],
            ..NodeFacts::default()
        };
        let facts = [facts(1), facts(3)];
        let report = StatusReport::new(&three.map, NodeId(1), three.directory.clone(), facts);
        (report.state, report.sentence)
    };
    let says = |of_pool, of_node| says_with(1, of_pool, of_node);
    let extent = EXTENT_BYTES as u64;
    // Its buckets hold all pages there are, and each has room in those.
    assert_eq!(says_with(0, 1 << 29, 1 << 30).0, State::Healthy);
    assert_eq!(says((1 << 29) - 2 * extent, 1 << 29).0, State::Healthy);
    let own = "; pool 'cache' has used up its memory on n1 and n3 (";
    let all = "; all pools together have used up the memory of n1 and n3, and pool 'cache' gets no more (";
    // By its own budget, or because others have the node's memory.
    for (full, why) in [
        (says((1 << 29) - 2 * extent + 1, 1 << 29), own),
        // Regression: writes were refused with one extent left everywhere, and status was healthy.
        (says((1 << 29) - extent, 1 << 29), own),
        (says(1 << 20, 1 << 30), all),
    ] {
        assert_eq!(full.0, State::Critical);
        assert!(full.1.starts_with("Critical: 3 nodes up; "), "{}", full.1);
        assert!(full.1.contains(why), "{}", full.1);
    }
}

/// Regression: of a full pool of logs it was said that keys should be deleted.
#[test]
fn a_full_pool_of_logs_is_told_to_be_trimmed() {
    let mut three = cluster(3, "1+2");
    let pool = three.map.pools.get_mut(&PoolId(1)).expect("a pool");
    pool.name = "logs".into();
    pool.kind = PoolKind::Slots(staves_model::ServiceId::LOG);
    for (medium, short) in [(Medium::Ram, "its memory"), (Medium::Disk, "of the disks")] {
        let pool = three.map.pools.get_mut(&PoolId(1)).expect("a pool");
        (pool.medium, pool.node_budget_bytes) = (medium, 1 << 29);
        let facts = NodeFacts {
            node: 1,
            used_bytes: 1 << 29,
            budget_bytes: 1 << 30,
            pools: vec![PoolFacts {
                pool: "logs".into(),
                used_bytes: 1 << 29,
                budget_bytes: 1 << 29,
                dense_buckets: 1,
                ..PoolFacts::default()
            }],
            ..NodeFacts::default()
        };
        let directory = three.directory.clone();
        let report = StatusReport::new(&three.map, NodeId(1), directory, [facts]);
        let says = &report.sentence;
        let fail = "(appends fail with out-of-memory: trim or delete logs, or give it more";
        assert!(says.contains(fail) && says.contains(short), "{says}");
    }
}

const MIB: u64 = 1 << 20;

/// Three nodes with disks, and a pool on them that may take 64 MiB of each.
fn on_disks() -> Cluster {
    let mut three = cluster(3, "1+1");
    let pool = three.map.pools.get_mut(&PoolId(1)).expect("a pool");
    pool.name = "vols".into();
    pool.kind = PoolKind::Memory {
        regions: Vec::new(),
    };
    (pool.medium, pool.node_budget_bytes) = (Medium::Disk, 64 * MIB);
    let nodes = three.map.nodes.values_mut();
    nodes.for_each(|node| node.disk_bytes = 100 * MIB);
    three
}

/// A node whose disks of 100 MiB have so much reserved, and where the pool has so much of it.
fn with_disks(node: u64, of_pool: u64, reserved: &[u64]) -> NodeFacts {
    let disk = |(at, reserved): (usize, &u64)| DiskFacts {
        folder: format!("/mnt/{at}"),
        bytes: 100 * MIB,
        reserved_bytes: reserved * MIB,
        ..DiskFacts::default()
    };
    NodeFacts {
        node,
        // Memory is another matter.
        used_bytes: 64 * MIB,
        budget_bytes: 64 * MIB,
        disks: reserved.iter().enumerate().map(disk).collect(),
        pools: vec![PoolFacts {
            pool: "vols".into(),
            used_bytes: of_pool * MIB,
            budget_bytes: 64 * MIB,
            dense_buckets: 1,
            ..PoolFacts::default()
        }],
        ..NodeFacts::default()
    }
}

/// Regression: a pool on disk was said to have used up its memory, whatever was short.
#[test]
fn a_pool_on_disk_says_whether_its_own_room_or_a_disk_is_used_up() {
    let three = on_disks();
    let says = |facts: Vec<NodeFacts>| {
        let report = StatusReport::new(&three.map, NodeId(1), three.directory.clone(), facts);
        (report.state, report.sentence)
    };
    let free = says(vec![
        with_disks(1, 20, &[40]),
        with_disks(2, 20, &[100, 40]),
    ]);
    assert_eq!(free.0, State::Healthy, "{}", free.1);
    let (state, sentence) = says(vec![with_disks(1, 64, &[80]), with_disks(2, 20, &[40])]);
    assert_eq!(state, State::Critical);
    let own = "pool 'vols' has used up its 64.0 MiB of the disks on n1 (writes to new places fail with ENOSPC: delete a volume, or give it more with \
               'staves pool set vols --memory')";
    assert!(sentence.contains(own), "{sentence}");
    let (state, sentence) = says(vec![
        with_disks(1, 1, &[100]),
        with_disks(2, 1, &[100, 100]),
    ]);
    assert_eq!(state, State::Critical);
    for part in [
        "the disk of n1 (pools have reserved 100 MiB of 100 MiB), the disk /mnt/0 of n2 (pools have reserved",
        "have no room left for pool 'vols' (writes to new places fail with ENOSPC: delete a volume, also of other pools, add a disk with 'staves disk add'",
    ] {
        assert!(sentence.contains(part), "{part}: {sentence}");
    }
    assert!(!sentence.contains("memory"), "{sentence}");
}

/// Regression: status was critical for ten seconds more after a discard had given back what a write had not found.
#[test]
fn a_write_that_found_no_room_counts_while_there_is_none_for_it() {
    let three = on_disks();
    let state = |free: u64, lacking_bytes: u64| {
        let mut first = with_disks(1, 64 - free, &[64]);
        (first.pools[0].lacking_buckets, first.pools[0].lacking_bytes) = (1, lacking_bytes);
        let facts = [first, with_disks(2, 20, &[40]), with_disks(3, 20, &[40])];
        StatusReport::new(&three.map, NodeId(1), three.directory.clone(), facts).state
    };
    assert_eq!(state(2, 4 * MIB), State::Critical);
    assert_eq!(state(8, 4 * MIB), State::Healthy);
    // A node that does not say how much it was.
    assert_eq!(state(8, 0), State::Critical);
}

#[test]
fn copies_that_wait_for_a_disk_are_told_so() {
    let mut three = on_disks();
    let group = three.map.groups.get_mut(&GroupId(3)).expect("a group");
    group.members.truncate(1);
    group.last_open.members = group.members.clone();
    let home = group.members[0].expect("one is left").id.node.0;
    let facts = (1..=3).map(|node| match node == home {
        true => with_disks(node, 20, &[40]),
        false => with_disks(node, 20, &[100]),
    });
    let report = StatusReport::new(&three.map, NodeId(1), three.directory.clone(), facts);
    let warned = report
        .warnings
        .iter()
        .find(|w| w.starts_with("1 copy waits for room on "));
    let warned = warned.expect("a warning");
    assert!(
        warned.contains("have no room: delete what is not needed, add a disk"),
        "{warned}"
    );
}
