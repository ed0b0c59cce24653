//! Many maps, and what is said of them.

use staves_model::{
    ClusterId, Epoch, GroupId, Incarnation, LastOpen, Member, MemberSlot, PoolId, PoolKind,
    Revision,
};

use super::*;

struct Cluster {
    map: ClusterMap,
    directory: DirectoryFacts,
}

/// `nodes` nodes and a pool of 8 buckets whose members go round the nodes.
fn cluster(nodes: u64, scheme: &str) -> Cluster {
    let scheme: staves_model::Scheme = scheme.parse().expect("a scheme");
    let width = scheme.width().min(nodes as usize) as u64;
    let group = |bucket: u32| {
        let members: Vec<Option<Member>> = (0..width)
            .map(|slot| {
                let node = (u64::from(bucket) + slot) % nodes + 1;
                Some(Member {
                    node: NodeId(node),
                    incarnation: Incarnation(node),
                    complete: true,
                })
            })
            .collect();
        Group {
            id: GroupId(bucket),
            pool: PoolId(1),
            bucket,
            m: scheme.m,
            epoch: Epoch(1),
            open: true,
            leader: MemberSlot(0),
            kept: vec![None; members.len()],
            last_open: LastOpen {
                epoch: Epoch(1),
                members: members.clone(),
            },
            members,
            fresh: false,
            lost: false,
            revision: Revision(1),
        }
    };
    let node = |id: u64| Node {
        id: NodeId(id),
        incarnation: Incarnation(id),
        name: format!("n{id}"),
        zone: None,
        native: format!("10.0.0.{id}:1600"),
        resp: format!("10.0.0.{id}:6379"),
        admin: format!("10.0.0.{id}:1680"),
        memory_bytes: 1 << 30,
        durable: true,
        state: NodeState::Up,
        draining: false,
    };
    let pool = Pool {
        id: PoolId(1),
        name: "cache".into(),
        kind: PoolKind::Cache,
        scheme,
        medium: Medium::Ram,
        node_budget_bytes: 1 << 29,
        groups: (0..8).map(GroupId).collect(),
        may_start_empty: true,
    };
    let voters = match nodes {
        1 | 2 => 1,
        3 | 4 => 3,
        _ => 5,
    };
    Cluster {
        map: ClusterMap {
            cluster: ClusterId(7),
            revision: Revision(9),
            nodes: (1..=nodes).map(|id| (NodeId(id), node(id))).collect(),
            pools: [(PoolId(1), pool)].into(),
            groups: (0..8).map(|b| (GroupId(b), group(b))).collect(),
            ..ClusterMap::default()
        },
        directory: DirectoryFacts {
            leader: Some(1),
            voters: (1..=voters).collect(),
            term: 3,
            silent: Vec::new(),
        },
    }
}

impl Cluster {
    fn report(&self) -> StatusReport {
        StatusReport::new(&self.map, NodeId(1), self.directory.clone(), [])
    }

    fn says(&self) -> (State, String) {
        let report = self.report();
        (report.state, report.sentence)
    }

    fn down(&mut self, node: u64) {
        self.map.nodes.get_mut(&NodeId(node)).expect("a node").state = NodeState::Down;
    }

    /// Its buckets go on with the members that are left.
    fn taken_over(&mut self, node: u64) {
        for group in self.groups() {
            group
                .members
                .retain(|m| m.is_none_or(|m| m.node != NodeId(node)));
            group.last_open.members = group.members.clone();
        }
    }

    fn groups(&mut self) -> impl Iterator<Item = &mut Group> {
        self.map.groups.values_mut()
    }
}

fn said(state: State, sentence: &str) -> (State, String) {
    (state, sentence.to_owned())
}

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
        "Healthy: 5 nodes up; every bucket has all its copies; no node may be lost."
    );
}

#[test]
fn few_nodes_bear_less_and_the_sentence_says_why() {
    assert_eq!(
        cluster(1, "1+2").says(),
        said(
            State::Healthy,
            "Healthy: 1 node up; every bucket has all its copies; no node may be lost \
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

#[test]
fn a_killed_node_is_told_with_what_is_rebuilt() {
    let mut five = cluster(5, "1+2");
    five.down(3);
    five.directory.voters = vec![1, 2, 4];
    let (state, sentence) = five.says();
    assert_eq!(state, State::Degraded);
    // Of 8 buckets on 5 nodes in turn, n3 is the primary of two and a copy of four.
    assert_eq!(
        sentence,
        "Degraded: 4 nodes up, n3 down; 2 of 8 buckets of pool 'cache' moving on to new members; \
         4 of 8 buckets of pool 'cache' short of complete copies; any 1 more node may be lost."
    );
    // Its places are taken by n5 where it was not a member, and n5 is filling.
    for group in five.groups() {
        let has = |node| group.listed().any(|(_, m)| m.node == NodeId(node));
        let free = [5, 4, 2, 1].into_iter().find(|node| !has(*node));
        let free = free.expect("three of five nodes hold a group");
        for member in group
            .members
            .iter_mut()
            .flatten()
            .filter(|m| m.node == NodeId(3))
        {
            *member = Member {
                node: NodeId(free),
                incarnation: Incarnation(free),
                complete: false,
            };
        }
        group.last_open.members = group.members.clone();
    }
    let facts = NodeFacts {
        node: 5,
        filling_pages: 1000,
        missing_pages: 370,
        pages_per_second: 90,
        ..NodeFacts::default()
    };
    let report = StatusReport::new(&five.map, NodeId(1), five.directory.clone(), [facts]);
    assert!(
        report
            .sentence
            .contains("; rebuilding, 63 % done, about 5 s left; any 1 more node"),
        "{}",
        report.sentence
    );
    for group in five.groups() {
        group
            .members
            .iter_mut()
            .flatten()
            .for_each(|m| m.complete = true);
        group.last_open.members = group.members.clone();
    }
    assert_eq!(
        five.says(),
        said(
            State::Degraded,
            "Degraded: 4 nodes up, n3 down; any 1 more node may be lost (the directory has 3 voters)."
        ),
        "a node is missed until it is back or forgotten"
    );
}

#[test]
fn a_node_that_is_down_is_missed_until_it_is_forgotten() {
    let mut five = cluster(5, "1+0");
    five.directory.voters = vec![1, 2, 3];
    for group in five.groups() {
        let at_home = |m: &Member| m.node != NodeId(5);
        let members = group.members.iter_mut().chain(&mut group.last_open.members);
        members.flatten().filter(|m| !at_home(m)).for_each(|m| {
            (m.node, m.incarnation) = (NodeId(1), Incarnation(1));
        });
    }
    assert_eq!(five.says().0, State::Healthy);
    five.down(5);
    let (state, sentence) = five.says();
    assert_eq!(state, State::Degraded);
    assert!(
        sentence.starts_with("Degraded: 4 nodes up, n5 down; "),
        "{sentence}"
    );
    five.map.nodes.remove(&NodeId(5));
    assert_eq!(five.says().0, State::Healthy);
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
fn a_pool_that_is_full_somewhere_is_told() {
    let three = cluster(3, "1+2");
    let says = |of_pool: u64, of_node: u64| {
        let facts = |node: u64| NodeFacts {
            node,
            used_bytes: of_node,
            budget_bytes: 1 << 30,
            pools: vec![PoolFacts {
                pool: "cache".into(),
                used_bytes: of_pool,
                budget_bytes: 1 << 29,
            }],
            ..NodeFacts::default()
        };
        let facts = [facts(1), facts(3)];
        let report = StatusReport::new(&three.map, NodeId(1), three.directory.clone(), facts);
        (report.state, report.sentence)
    };
    let extent = EXTENT_BYTES as u64;
    assert_eq!(says((1 << 29) - extent, 1 << 29).0, State::Healthy);
    // By its own budget, or because others have the node's memory.
    for full in [
        says((1 << 29) - extent + 1, 1 << 29),
        says(1 << 20, 1 << 30),
    ] {
        assert_eq!(full.0, State::Critical);
        assert!(full.1.starts_with("Critical: 3 nodes up; "), "{}", full.1);
        assert!(
            full.1
                .contains("; pool 'cache' has used up its memory on n1 and n3 ("),
            "{}",
            full.1
        );
    }
}

#[test]
fn a_node_that_stops_is_not_called_drained() {
    let mut five = cluster(5, "1+1");
    five.map.nodes.get_mut(&NodeId(4)).expect("n4").draining = true;
    let facts = NodeFacts {
        node: 4,
        stopping: true,
        ..NodeFacts::default()
    };
    let report = StatusReport::new(&five.map, NodeId(1), five.directory.clone(), [facts]);
    assert!(
        report
            .sentence
            .starts_with("Healthy: 5 nodes up, n4 stopping; "),
        "{}",
        report.sentence
    );
    assert_eq!(report.nodes[3].state(), "stopping");
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
}

/// A node that holds two members of a group takes both with it, and that is counted and told.
#[test]
fn two_members_on_one_node_are_told() {
    let mut six = cluster(6, "4+2");
    assert!(!six.says().1.contains("two members"));
    six.down(6);
    for group in six.groups() {
        for x in group.members.iter_mut().flatten() {
            if x.node == NodeId(6) {
                (x.node, x.incarnation) = (NodeId(1).shadow(), Incarnation(1));
            }
        }
        group.last_open.members = group.members.clone();
    }
    let report = six.report();
    assert_eq!((report.pools[0].doubled, report.pools[0].whole), (8, 8));
    assert_eq!(report.pools[0].tolerates, Some(1), "n1 takes two of two");
    let says =
        "8 of 8 buckets of pool 'cache' with two members on one node, until another node comes";
    assert!(report.sentence.contains(says), "{}", report.sentence);
    let of = |id: u64| {
        let node = report.nodes.iter().find(|node| node.id == id);
        node.map(|node| node.primaries + node.copies)
    };
    assert_eq!((of(1), of(2), of(6)), (Some(16), Some(8), Some(0)));
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
        .filter(|g| g.members[0].is_some_and(|m| m.node == NodeId(2)))
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

fn memory_pool(id: u32, regions: &[(&str, u32, u32)]) -> Pool {
    let region = |(name, first, count): &(&str, u32, u32)| staves_model::Region {
        id: staves_model::RegionId(*first),
        name: (*name).to_owned(),
        size_bytes: 1,
        loading: false,
        stretches: vec![staves_model::Stretch {
            first: GroupId(*first),
            count: *count,
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
    // And alone it says nothing of buckets; the directory still bears something.
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
            .contains("'staves memory delete' gives it up")
    );
}

/// Regression: a bucket that no node had room for was told of as one that moves.
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
/// says that everything is answered.
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
        let left = |x: &Option<Member>| x.filter(|x| x.node != NodeId(6));
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

/// Regression: of a load that was broken off nothing was said but that copies were short.
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
        .for_each(|region| region.loading = region.name == "a");
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
    };
    let facts = NodeFacts {
        node: 2,
        pools: vec![full],
        ..NodeFacts::default()
    };
    let report = StatusReport::new(&three.map, NodeId(1), three.directory.clone(), [facts]);
    assert!(
        report
            .sentence
            .contains("used up its memory on n2 (writes to new places fail: delete a region"),
        "{}",
        report.sentence
    );
}

#[test]
fn a_directory_without_a_leader_is_told() {
    let mut three = cluster(3, "1+1");
    three.directory.leader = None;
    three.down(2);
    three.down(3);
    let (state, sentence) = three.says();
    assert_eq!(state, State::Critical);
    assert!(
        sentence.starts_with(
            "Critical: 1 node up by the last map that a majority knew, n2 and n3 down; "
        ),
        "{sentence}"
    );
    assert!(
        sentence.contains(
            "; the directory has no majority: of its 3 voters n2 and n3 do not answer: nothing can be repaired"
        ),
        "{sentence}"
    );
}

#[test]
fn a_lost_majority_names_the_voters_that_do_not_answer() {
    // Nobody can find them dead: the map has them as up.
    let mut three = cluster(3, "1+1");
    three.directory.leader = None;
    let facts = NodeFacts {
        node: 1,
        ..NodeFacts::default()
    };
    let mut report = StatusReport::new(&three.map, NodeId(1), three.directory.clone(), [facts]);
    report.silent(&[1, 2, 3]);
    assert_eq!(report.state, State::Critical);
    let said = "Critical: 3 nodes up by the last map that a majority knew, of which n2 and n3 do not \
                answer; the directory has no majority: of its 3 voters n2 and n3 do not answer: ";
    assert!(report.sentence.starts_with(said), "{}", report.sentence);
    let states: Vec<_> = report.nodes.iter().map(NodeStatus::state).collect();
    assert_eq!(states, ["up", "silent", "silent"]);
    report.silent(&[3]);
    let said = "the directory has no leader that answers: of its 3 voters n3 does not answer";
    assert_eq!(report.undecided().as_deref(), Some(said));
    report.directory.leader = Some(1);
    assert_eq!(report.undecided(), None);
}

/// Regression: for half a second after a kill all was said to be whole, though a node did not answer.
#[test]
fn a_silent_node_is_told_before_it_is_found_dead() {
    let mut three = cluster(3, "1+1");
    three.directory.silent = vec![SilentNode { node: 3, ms: 340 }];
    let mut report = three.report();
    assert_eq!(report.state, State::Degraded);
    let said = "Degraded: 3 nodes up, of which 1 node silent for 0.3 s (n3); any 1 more node";
    assert!(report.sentence.starts_with(said), "{}", report.sentence);
    assert_eq!(report.nodes[2].state(), "silent");
    // It answers whoever asks: a cut between two is not a death.
    let facts = NodeFacts {
        node: 3,
        ..NodeFacts::default()
    };
    let other = StatusReport::new(&three.map, NodeId(3), DirectoryFacts::default(), [facts]);
    report.absorb(other);
    assert_eq!(
        (report.state, report.nodes[2].silent_ms),
        (State::Healthy, None)
    );
    // Who is only out of the tool's reach is no fault.
    three.directory.silent.clear();
    let mut report = three.report();
    report.silent(&[2]);
    assert_eq!(
        (report.state, report.nodes[1].state()),
        (State::Healthy, "silent")
    );
}

/// A drain that cannot end says what it waits for.
#[test]
fn a_drain_without_a_node_to_take_the_buckets_says_so() {
    let draining = |nodes: u64, scheme: &str, drained: &[u64]| {
        let mut cluster = cluster(nodes, scheme);
        for node in drained {
            let node = cluster.map.nodes.get_mut(&NodeId(*node));
            node.expect("a node").draining = true;
        }
        cluster.report()
    };
    let row = |report: &StatusReport| report.nodes[1].waits_for.clone();
    let report = draining(3, "2+1", &[2]);
    let waits = row(&report).expect("every other node is in each group");
    for part in [
        "8 buckets",
        "'cache' (2+1)",
        "all 2 others",
        "start or resume",
    ] {
        assert!(waits.contains(part), "{part}: {waits}");
    }
    assert!(
        report.sentence.contains("(n2 waits: 8 buckets"),
        "{}",
        report.sentence
    );
    assert_eq!(row(&draining(5, "2+1", &[2])), None);
    let waits = row(&draining(4, "2+1", &[1, 2])).expect("of two homes, some groups have both");
    assert!(!waits.contains("no other node"), "{waits}");
    assert_eq!(
        row(&draining(3, "1+1", &[2])),
        None,
        "copies may become fewer"
    );
    let waits = row(&draining(2, "1+1", &[1, 2])).expect("all drain");
    assert!(waits.contains("no other node is up"), "{waits}");
}

#[test]
fn a_node_is_drained_once_nothing_depends_on_it() {
    let mut five = cluster(5, "1+1");
    five.map.nodes.get_mut(&NodeId(4)).expect("n4").draining = true;
    for group in five.groups() {
        // Its successors are listed; until their epoch is open, they take from it.
        group.open = false;
        group.epoch = Epoch(2);
        let members = group.members.iter_mut();
        members
            .filter(|x| x.is_some_and(|x| x.node == NodeId(4)))
            .for_each(|x| *x = None);
    }
    let state = |five: &Cluster| five.report().nodes[3].state();
    assert_eq!(state(&five), "draining");
    for group in five.groups() {
        group.last_open.members = group.members.clone();
    }
    assert_eq!(state(&five), "drained");
}

#[test]
fn draining_is_told_and_is_no_fault() {
    let mut five = cluster(5, "1+1");
    five.map.nodes.get_mut(&NodeId(4)).expect("n4").draining = true;
    assert_eq!(
        five.says(),
        said(
            State::Healthy,
            "Healthy: 5 nodes up, n4 draining (3 buckets left to move); every bucket has all its \
             copies; any 1 more node may be lost."
        )
    );
}

#[test]
fn a_drained_node_is_told_with_the_way_back() {
    let mut five = cluster(5, "1+1");
    five.map.nodes.get_mut(&NodeId(4)).expect("n4").draining = true;
    five.map.groups.values_mut().for_each(|group| {
        let gone = |member: &Member| member.node == NodeId(4);
        let members = group.members.iter_mut().chain(&mut group.last_open.members);
        members
            .filter(|member| member.as_ref().is_some_and(gone))
            .for_each(|member| *member = None);
    });
    let (_, sentence) = five.says();
    assert!(
        sentence
            .contains(": 5 nodes up, n4 drained (to give buckets again: 'staves node resume'); "),
        "{sentence}"
    );
    assert!(!sentence.contains("draining"), "{sentence}");
}

#[test]
fn many_names_are_cut_short() {
    let mut ten = cluster(10, "1+2");
    (1..=7).for_each(|id| ten.down(id));
    assert!(
        ten.says()
            .1
            .contains("3 nodes up, n1, n2, n3, n4, n5 and 2 others down;")
    );
    let mut ten = cluster(10, "1+2");
    (9..=10).for_each(|id| ten.down(id));
    assert!(ten.says().1.contains("8 nodes up, n9 and n10 down;"));
}

#[test]
fn before_there_is_a_cluster() {
    let report = StatusReport::new(
        &ClusterMap::default(),
        NodeId(0),
        DirectoryFacts::default(),
        [],
    );
    assert_eq!(report.state, State::Degraded);
    assert_eq!(
        report.sentence,
        "Starting: the node has not joined a cluster yet."
    );
}

#[test]
fn answers_of_several_nodes_are_joined() {
    let five = cluster(5, "1+2");
    let of = |node: u64, keys: u64, revision: u64, leader: Option<u64>| {
        let facts = NodeFacts {
            node,
            keys,
            ..NodeFacts::default()
        };
        let mut map = five.map.clone();
        map.revision = Revision(revision);
        let directory = DirectoryFacts {
            leader,
            ..five.directory.clone()
        };
        StatusReport::new(&map, NodeId(node), directory, [facts])
    };
    let mut report = of(1, 10, 9, None);
    assert_eq!(report.state, State::Critical);
    report.absorb(of(2, 20, 11, Some(2)));
    report.absorb(of(3, 30, 10, Some(1)));
    assert_eq!((report.revision, report.state), (11, State::Healthy));
    assert_eq!(report.directory.leader, Some(2));
    let keys: Vec<_> = report
        .nodes
        .iter()
        .map(|n| n.facts.as_ref().map(|f| f.keys))
        .collect();
    assert_eq!(keys, [Some(10), Some(20), Some(30), None, None]);
}

/// Regression: a node without a data folder ended, its cluster with it, and was started again at its address, where it
/// founded another. Whoever asked the other node was told that all was well.
#[test]
fn an_answer_of_another_cluster_is_not_taken_in() {
    let ours = cluster(2, "1+1");
    let directory = DirectoryFacts {
        leader: None,
        ..ours.directory.clone()
    };
    let facts = |node| NodeFacts {
        node,
        ..NodeFacts::default()
    };
    let mut report = StatusReport::new(&ours.map, NodeId(2), directory, [facts(2)]);
    let mut other = cluster(1, "1+1");
    other.map.cluster = ClusterId(0xbad);
    other.map.revision = Revision(1000);
    let other = StatusReport::new(&other.map, NodeId(1), other.directory, [facts(1)]);
    let before = report.clone();
    report.absorb(other);
    report.silent(&[1]);
    assert_eq!(
        (report.state, report.revision),
        (State::Critical, before.revision)
    );
    assert!(report.nodes[0].silent, "{}", report.sentence);
}

#[test]
fn the_report_survives_json() {
    let report = cluster(3, "1+2").report();
    let json = serde_json::to_string(&report).expect("serializes");
    assert_eq!(
        serde_json::from_str::<StatusReport>(&json).expect("parses"),
        report
    );
    assert!(json.contains("\"state\":\"healthy\""));
}
