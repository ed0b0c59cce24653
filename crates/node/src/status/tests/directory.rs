//! The directory, and how the views of several nodes become one.

use super::*;

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
/// founded another. The other node reported that all was well.
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
