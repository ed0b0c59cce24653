//! Buckets and copies that wait, and the reason.

use super::*;

/// Regression: a node that came back to a pool whose memory was used up did not get all its copies back, and status said how many were
/// short, but not why.
#[test]
fn copies_that_wait_for_memory_are_told_with_the_node() {
    let warned = |short: &[u32], free: u64| {
        let mut three = cluster(3, "1+2");
        for group in three.groups().filter(|g| short.contains(&g.id.0)) {
            group
                .members
                .retain(|m| m.is_none_or(|m| m.id.node != NodeId(2)));
            group.last_open.members = group.members.clone();
        }
        let facts = |node: u64| NodeFacts {
            node,
            budget_bytes: 1 << 30,
            pools: vec![PoolFacts {
                pool: "cache".into(),
                used_bytes: (1 << 29) - free,
                budget_bytes: 1 << 29,
                ..PoolFacts::default()
            }],
            ..NodeFacts::default()
        };
        let facts = [facts(1), facts(2), facts(3)];
        let directory = three.directory.clone();
        StatusReport::new(&three.map, NodeId(1), directory, facts).warnings
    };
    let extent = EXTENT_BYTES as u64;
    assert!(warned(&[], 0).is_empty(), "all copies are there");
    assert!(warned(&[3], 8 * extent).is_empty(), "there is memory");
    assert_eq!(
        warned(&[3, 5], extent),
        [
            "2 copies wait for memory on n2, where pool 'cache' has used up its own: delete what is not needed, give the pool more \
             ('staves pool set cache --memory'), or add nodes"
        ]
    );
    assert!(warned(&[4], 0)[0].starts_with("1 copy waits for memory on n2, "));
}

/// Regression: where a cut kept a bucket from the only node without a part in its group, status asked for memory.
#[test]
fn a_bucket_that_waits_behind_a_cut_is_told_so() {
    let mut five = cluster(5, "2+2");
    let group = five.map.groups.get_mut(&GroupId(6)).expect("a group");
    group.members[3] = None;
    group.last_open.members[3] = None;
    let sentence = |silent: &[(u64, u64)]| five.report_of_all(silent).sentence;
    let says = "bucket 3 of group 6 of pool 'cache' waits for a node with room";
    let (whole, cut) = (sentence(&[]), sentence(&[(3, 12_000)]));
    assert!(whole.contains(&format!("{says}: add one")), "{whole}");
    let says = format!("{says} that its others reach: mend the network, add one");
    assert!(cut.contains(&says), "{cut}");
}

/// No member of them runs, and none is lost: the nodes that may bring them back are named.
#[test]
fn groups_on_disks_of_nodes_that_are_down_wait_for_those() {
    let mut three = cluster(3, "1+1");
    let pool = three.map.pools.get_mut(&PoolId(1)).expect("a pool");
    pool.medium = Medium::Disk;
    assert!(!three.report().sentence.contains("disk"));
    three.down(1);
    three.down(2);
    let report = three.report();
    let pool = &report.pools[0];
    let awaited = pool.awaited_disks.iter().map(|a| (a.group, &a.nodes[..]));
    let awaited: Vec<_> = awaited.collect();
    assert_eq!(awaited, [(0, &[1, 2][..]), (3, &[1, 2]), (6, &[1, 2])]);
    assert_eq!(
        (pool.lost, pool.unanswered, &pool.medium[..]),
        (0, 3, "disk")
    );
    assert_eq!(report.state, State::Critical);
    let says = "group 0 of pool 'cache' and 2 others wait for n1 or n2, whose disks have it: start one of them";
    assert!(report.sentence.contains(says), "{}", report.sentence);
    // One of them comes back with an empty disk.
    let first = three.map.nodes.get_mut(&NodeId(1)).expect("a node");
    (first.incarnation, first.state) = (Incarnation(9), NodeState::Up);
    let sentence = three.report().sentence;
    let says = "wait for n2, whose disk has it: start that node";
    assert!(sentence.contains(says), "{sentence}");
}

/// Regression: status said of a volume with write-back that its node is to be started, and not that it goes on without after a minute.
#[test]
fn groups_that_wait_for_what_was_not_flushed_say_for_how_long() {
    let mut three = cluster(3, "1+1");
    let mut pool = three.map.pools[&PoolId(1)].clone();
    pool.medium = Medium::Disk;
    let stretch = staves_model::Stretch {
        first: GroupId(0),
        count: 8,
        state: staves_model::StretchState::Written,
        bucket_bytes: staves_model::REGION_BUCKET_BYTES_MIN,
    };
    pool.kind = PoolKind::Memory {
        regions: vec![staves_model::Region {
            id: staves_model::RegionId(5),
            name: "disk".into(),
            volume: None,
            size_bytes: 1,
            stretches: vec![stretch],
        }],
    };
    three.map.pools.insert(PoolId(1), pool);
    let tables = &mut three.map.volumes;
    let writeback = staves_model::Writeback::default();
    tables
        .writeback
        .insert(staves_model::RegionId(5), writeback);
    // Node 1 is back in a later life, with what its disk had: its copy of the group's last epoch counts for nothing unflushed.
    tables.broken.insert(GroupId(0), [NodeId(1)].into());
    three.down(2);
    three.directory.down = vec![SilentNode {
        node: 2,
        ms: 17_100,
    }];
    let report = three.report();
    let pool = &report.pools[0];
    assert_eq!(pool.awaited_disks.len(), 1, "{:?}", pool.awaited_disks);
    assert!(pool.awaited_disks[0].unflushed);
    let says = "group 0 of pool 'cache' waits for n2, which may hold writes that were answered and not flushed (write-back): until that node is back, and for 43 s more at most";
    assert!(report.sentence.contains(says), "{}", report.sentence);
    assert!(!report.sentence.contains("start"), "{}", report.sentence);
    three.directory.unflushed_wait_ms = 20_000;
    let sentence = three.report().sentence;
    assert!(sentence.contains("for 3 s more at most"), "{sentence}");
}
