//! GROUP rule 13 on real nodes: members that do not reach the directory go quiet.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use staves_hunts::{Hunt, hunt};
use staves_model::mutant::Mutant;
use staves_model::planner::START_EMPTY_AFTER;
use staves_model::{Group, GroupId, NodeId, hash_slot};
use staves_testkit::cluster::{Parse, TestCluster};
use staves_testkit::resp::Reply;

/// Two nodes that hold a bucket together and no more of it, the data bucket's first.
fn pair(group: &Group) -> Option<[NodeId; 2]> {
    let mut members = group.members.iter().flatten().map(|x| x.id.node);
    Some([members.next()?, members.next()?])
}

/// Two of five nodes are left, which reach each other and no majority: they answer for what they hold together by each other's
/// promises, but not when the rest of the cluster could have begun it anew.
#[test]
fn members_that_are_cut_off_from_the_directory_stop_in_time() {
    let mut cluster = TestCluster::start_with(5, |_, config| {
        config.scheme = "1+1".parse().expect("a scheme");
        config.buckets = 64;
        config.request_ms = "300ms".parse_millis();
    });
    let map = cluster.nodes[0].map();
    let mut by_pair: BTreeMap<[NodeId; 2], GroupId> = BTreeMap::new();
    for group in map.groups.values() {
        by_pair.extend(pair(group).map(|pair| (pair, group.id)));
    }
    let (left, group) = by_pair.pop_first().expect("some pair");
    let pool = map.pool_named("cache").expect("the first pool").id;
    let is_theirs = |key: &String| {
        let found = map.group_of(pool, hash_slot(key.as_bytes()));
        found.is_some_and(|found| found.id == group)
    };
    let key = (0..).map(|at| format!("k{at}")).find(is_theirs);
    let get = format!("GET {}", key.as_ref().expect("endless"));
    let mut client = cluster.nodes[cluster.position(left[0])].client();
    let set = format!("SET {} 1", key.expect("endless"));
    assert_eq!(client.ask(&set), Reply::Ok);
    std::thread::scope(|scope| {
        let others = cluster.nodes.iter_mut();
        for node in others.filter(|node| !left.contains(&node.id)) {
            scope.spawn(|| node.kill());
        }
    });
    // Whatever contact there was, it was before.
    let alone = Instant::now();
    let mut answered = 0;
    while alone.elapsed() < START_EMPTY_AFTER + Duration::from_secs(2) {
        let asked = alone.elapsed();
        if !matches!(client.ask(&get), Reply::Error(_)) {
            answered += 1;
            assert!(asked < START_EMPTY_AFTER, "answered after {asked:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(answered > 0, "their promises hold without the directory");
}

#[test]
fn a_planted_bug_of_contact_is_seen() {
    hunt(&[Hunt {
        mutant: Mutant::ContactWithoutAnswer,
        test: "quiet::members_that_are_cut_off_from_the_directory_stop_in_time",
        shows: "answered after",
    }]);
}
