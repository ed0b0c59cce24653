//! Pools that are short, moving, full or lost, and the losses that they bear.

use super::*;

#[test]
fn a_healthy_cluster_says_what_it_bears() {
    assert_eq!(
        cluster(5, "1+2").says(),
        said(
            State::Healthy,
            "Healthy: 5 nodes up; every bucket has all its copies; any 2 more nodes may be lost."
        )
    );
    assert_eq!(
        cluster(5, "1+1").says().1,
        "Healthy: 5 nodes up; every bucket has all its copies; any 1 more node may be lost."
    );
    assert_eq!(
        cluster(5, "1+0").says().1,
        "Healthy: 5 nodes up; every bucket has all its copies; no node may be lost \
         (pool 'cache' has 1+0: what a node holds of it is gone with the node)."
    );
}

#[test]
fn few_nodes_bear_less_and_the_sentence_says_why() {
    assert_eq!(
        cluster(1, "1+2").says(),
        said(
            State::Healthy,
            "Healthy: 1 node up; every bucket has the copies that there are nodes for; no node may be lost \
             (pool 'cache' asks for 1+2: add nodes)."
        )
    );
    // Two nodes have one voter: the directory is what limits.
    assert_eq!(
        cluster(2, "1+1").says().1,
        "Healthy: 2 nodes up; every bucket has all its copies; no node may be lost \
         (the directory has 1 voter)."
    );
    assert_eq!(
        cluster(3, "1+2").says().1,
        "Healthy: 3 nodes up; every bucket has all its copies; any 1 more node may be lost \
         (the directory has 3 voters)."
    );
}

/// Regression: nothing but the failure of programs said that a source was away.
#[test]
fn a_source_that_is_away_is_warned_of_once_with_who_has_no_answer() {
    let away = |node: u64, by: &str, for_ms: u64| NodeFacts {
        node,
        away: vec![AwayFacts {
            dataset: "genomes".into(),
            by: by.into(),
            for_ms,
            why: format!("it hangs ({for_ms})"),
        }],
        ..NodeFacts::default()
    };
    let three = cluster(3, "1+2");
    let facts = [away(1, "", 35_000), away(2, "lab1:/mnt", 71_900)];
    let report = StatusReport::new(&three.map, NodeId(1), three.directory.clone(), facts);
    assert_eq!(
        report.state,
        State::Healthy,
        "nothing of the cluster's is lost"
    );
    assert_eq!(
        report.warnings,
        [
            "the source of dataset 'genomes' is away: it has not answered lab1:/mnt, n1 for 71 s (it hangs (71900)); what is in memory is read, and \
             opened if it was looked at in the 5 minutes before, until the source has been away for 15 minutes; all else fails until it answers"
        ]
    );
    let many = (0..9).map(|i| away(1, &format!("lab{i}:/mnt"), i).away);
    let facts = NodeFacts {
        node: 1,
        away: many.flatten().collect(),
        ..NodeFacts::default()
    };
    let report = StatusReport::new(&three.map, NodeId(1), three.directory.clone(), [facts]);
    let told = &report.warnings[0];
    assert!(told.contains("lab3:/mnt and 5 more for 0 s"), "{told}");
}

/// Regression: 4+2 on five nodes bears one loss, and nothing but that number said so.
#[test]
fn a_pool_with_fewer_nodes_than_it_asks_for_is_warned_of() {
    assert_eq!(cluster(6, "4+2").report().warnings, [""; 0]);
    let five = cluster(5, "4+2").report();
    assert_eq!((five.state, five.tolerates), (State::Healthy, Some(1)));
    assert_eq!(
        five.warnings,
        [
            "pool 'cache' has less than the 4+2 that it asks for, which takes 6 nodes, and 5 hold buckets: add nodes"
        ]
    );
    assert!(
        five.sentence
            .contains("that there are nodes for; any 1 more"),
        "{}",
        five.sentence
    );
    // A node that is drained holds nothing; one that is down is expected back, and missed as such.
    let mut three = cluster(3, "1+2");
    three.down(3);
    assert_eq!(three.report().warnings, [""; 0]);
    let last = three.map.nodes.get_mut(&NodeId(3)).expect("a node");
    (last.state, last.draining) = (NodeState::Up, true);
    assert_eq!(three.report().warnings.len(), 1);
}

#[test]
fn pools_that_may_take_more_than_a_node_has_are_warned_of() {
    let mut three = cluster(3, "1+2");
    three
        .map
        .nodes
        .get_mut(&NodeId(2))
        .expect("a node")
        .memory_bytes = 1 << 28;
    let report = three.report();
    assert_eq!(report.state, State::Healthy);
    assert_eq!(report.warnings.len(), 1);
    let says = "all pools together may take 512 MiB of each node, and node 2 (n2) has 256 MiB";
    assert!(
        report.warnings[0].starts_with(says),
        "{:?}",
        report.warnings
    );
}

/// Regression: `--memory 64MiB` made 16 buckets of 64 for good, and only the log of the first start said so.
#[test]
fn a_first_pool_with_fewer_buckets_than_asked_for_is_warned_of() {
    let three = cluster(3, "1+2");
    let has = three.report().pools[0].buckets;
    let asked = |buckets| {
        let name = "cache".to_owned();
        three
            .report()
            .with_first_pool(crate::status::FirstPool { name, buckets })
    };
    assert_eq!(asked(has).warnings, [""; 0]);
    let fewer = asked(4 * has);
    assert_eq!(fewer.warnings.len(), 1);
    let says = format!(
        "pool 'cache' has {has} buckets and not the {} asked for",
        4 * has
    );
    assert!(fewer.warnings[0].starts_with(&says), "{fewer:?}");
    // Whichever node answers first: the one that asked for it tells the others' readers, too.
    let mut other = three.report();
    other.absorb(fewer.clone());
    assert_eq!(other.warnings, fewer.warnings);
}

#[test]
fn a_cluster_that_serves_nothing_is_not_healthy() {
    let mut three = cluster(3, "1+2");
    three.map.pools.clear();
    three.map.groups.clear();
    let (state, sentence) = three.says();
    assert_eq!(state, State::Degraded);
    assert!(
        sentence.contains("; there is no pool, so nothing is served: "),
        "{sentence}"
    );

    let mut three = cluster(3, "1+2");
    three
        .map
        .nodes
        .values_mut()
        .for_each(|node| node.draining = true);
    let (state, sentence) = three.says();
    assert_eq!(state, State::Degraded);
    assert!(
        sentence.contains("; no node may hold buckets: "),
        "{sentence}"
    );
}

#[test]
fn copies_that_have_no_node_to_go_to_are_told_so() {
    let mut three = cluster(3, "1+2");
    three.down(3);
    three.taken_over(3);
    assert_eq!(
        three.says(),
        said(
            State::Degraded,
            "Degraded: 2 nodes up, n3 down; 8 of 8 buckets of pool 'cache' short of complete copies; \
             nothing to rebuild on until there is 1 node more; 1 of the directory's 3 voters down; no \
             node may be lost (the directory has 3 voters)."
        )
    );
}

/// With m > 1 what is lost is rebuilt beside other members, parity after a while: until then it is not said that nodes are
/// missing.
#[test]
fn parity_that_waits_for_calm_is_told_so() {
    let mut six = cluster(6, "4+2");
    for node in [5, 6] {
        six.down(node);
        six.taken_over(node);
    }
    let sentence = six.says().1;
    assert!(
        sentence.contains("once their groups have been calm for 5 s"),
        "{sentence}"
    );
    assert!(!sentence.contains("nothing to rebuild on"), "{sentence}");
    // On disk no node takes two buckets of a group: they wait for nodes.
    six.map.pools.get_mut(&PoolId(1)).expect("a pool").medium = Medium::Disk;
    let nodes = six.map.nodes.values_mut();
    nodes.for_each(|node| node.disk_bytes = 1 << 30);
    let sentence = six.says().1;
    assert!(
        sentence.contains("; nothing to rebuild on until there are 2 nodes more with disks;"),
        "{sentence}"
    );
    // Two nodes hold four members at most.
    let mut two = cluster(6, "2+4");
    for node in 3..=6 {
        two.down(node);
        two.taken_over(node);
    }
    let sentence = two.says().1;
    assert!(sentence.contains("nothing to rebuild on"), "{sentence}");
}

#[test]
fn buckets_in_motion_are_told() {
    let mut five = cluster(5, "1+2");
    for group in five.groups().take(3) {
        group.epoch = Epoch(2);
        group.open = false;
    }
    let (state, sentence) = five.says();
    assert_eq!(state, State::Degraded);
    assert!(
        sentence.contains("; 3 of 8 buckets of pool 'cache' moving on to new members; any 2 more")
    );
    // Regression: writes stood still for 42 s, and status said "unanswered: 0".
    five.directory.unopened = vec![0, 2, 7];
    let report = five.report();
    assert_eq!(
        (report.state, report.pools[0].unanswered),
        (State::Critical, 3),
        "the last is open, and has not been for long"
    );
    // Regression: two more nodes could be lost, it said.
    assert_eq!(report.tolerates, Some(0), "{}", report.sentence);
    for says in [
        "3 of 8 buckets of pool 'cache' with a data bucket that nobody answers for",
        "1 of 8 buckets of pool 'cache' moving on to new members",
    ] {
        assert!(report.sentence.contains(says), "{}", report.sentence);
    }
}

/// A node that holds two members of a group takes both with it, and that is counted and reported.
#[test]
fn two_members_on_one_node_are_told() {
    let mut six = cluster(6, "4+2");
    assert!(!six.says().1.contains("two members"));
    six.down(6);
    for group in six.groups() {
        for x in group.members.iter_mut().flatten() {
            if x.id.node == NodeId(6) {
                x.id = MemberId::new(NodeId(1), Incarnation(1)).second();
            }
        }
        group.last_open.members = group.members.clone();
    }
    let report = six.report();
    assert_eq!((report.pools[0].doubled, report.pools[0].whole), (8, 8));
    assert_eq!(report.pools[0].tolerates, Some(1), "n1 takes two of two");
    let says = "8 of 8 buckets of pool 'cache' with two members on one node, which one loss takes together: start 1 more \
                node, or bring back one that is down";
    assert!(report.sentence.contains(says), "{}", report.sentence);
    let of = |id: u64| {
        let node = report.nodes.iter().find(|node| node.id == id);
        node.map(|node| node.primaries + node.copies)
    };
    assert_eq!((of(1), of(2), of(6)), (Some(16), Some(8), Some(0)));
    // Regression: all was said to be well once the node was back, while its buckets were still being filled there: whoever went on to the
    // next node then lost them.
    six.map.nodes.get_mut(&NodeId(6)).expect("a node").state = NodeState::Up;
    let report = six.report();
    assert_eq!((report.state, report.pools[0].short), (State::Degraded, 8));
    let says = "every bucket has all its copies";
    assert!(!report.sentence.contains(says), "{}", report.sentence);
    let says = "one of them is filled on another node if that has room: if it stays so, give the pool more memory, or add a node";
    assert!(report.sentence.contains(says), "{}", report.sentence);
    // A drained node would do.
    six.map.nodes.get_mut(&NodeId(6)).expect("a node").draining = true;
    let report = six.report();
    let says = "start 1 more node, or resume one that is drained ('staves node resume')";
    assert!(report.sentence.contains(says), "{}", report.sentence);
}

#[test]
fn a_new_pool_has_not_begun() {
    let mut five = cluster(5, "1+2");
    for group in five.groups() {
        group.epoch = Epoch(0);
        group.open = false;
        group.members.clear();
        group.last_open = LastOpen::default();
    }
    let report = five.report();
    assert_eq!(report.state, State::Degraded);
    assert!(
        report
            .sentence
            .contains("8 of 8 buckets of pool 'cache' not begun yet")
    );
    assert_eq!(report.tolerates, Some(0));
}

#[test]
fn what_is_lost_is_said_plainly() {
    let mut five = cluster(5, "1+0");
    five.down(2);
    for group in five
        .groups()
        .filter(|g| g.members[0].is_some_and(|m| m.id.node == NodeId(2)))
    {
        group.lost = true;
    }
    let report = five.report();
    assert_eq!((report.state, report.tolerates), (State::Critical, None));
    assert_eq!(
        report.sentence,
        "Critical: 4 nodes up, n2 down; 2 of 8 buckets of pool 'cache' lost more members than 1+0 bears \
         and start empty; 1 of the directory's 5 voters down; no further loss is borne."
    );
    five.map
        .pools
        .get_mut(&PoolId(1))
        .expect("the pool")
        .may_start_empty = false;
    assert!(
        five.says()
            .1
            .contains("bears and wait for the return of a node that holds their data;")
    );
}
