//! Restarts from the data folder.

use std::time::Duration;

use staves_model::NodeState;

use crate::test_cluster::{PATIENCE, TestCluster, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_alone_finds_its_map_again() {
    let cluster = TestCluster::new();
    let a = cluster.start("a", &[]).await;
    a.touch(PATIENCE).await.expect("commits");
    let before = a.map();
    let term = a.directory.status().term;
    cluster.kill(&a).await;
    let again = cluster.start("a", &[]).await;
    assert_eq!(again.life.cluster, a.life.cluster);
    assert_eq!(again.id(), a.id());
    assert!(again.life.incarnation > a.life.incarnation);
    let after = again.map();
    assert_eq!(
        after.nodes[&a.id()].draining,
        before.nodes[&a.id()].draining
    );
    assert!(after.revision > before.revision);
    assert!(again.directory.status().term >= term, "the vote was kept");
    cluster.kill(&again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_cluster_stops_and_starts() {
    let cluster = TestCluster::new();
    let nodes = cluster.found(3).await;
    nodes[0].touch(PATIENCE).await.expect("commits");
    let before = nodes[0].map();
    cluster.kill_all(&nodes).await;
    // At once: one alone has no majority, and waits.
    let starts =
        ["a", "b", "c"].map(|name| cluster.open(cluster.options(name, &[])).expect("opens"));
    let lives = starts.map(|(directory, _)| {
        tokio::spawn(async move { (directory.start().await.expect("comes back"), directory) })
    });
    let draining = |m: &staves_model::ClusterMap| m.nodes.values().filter(|n| n.draining).count();
    let mut back = Vec::new();
    for (start, old) in lives.into_iter().zip(&nodes) {
        let (life, directory) = start.await.expect("no panic");
        assert_eq!(life.node, old.id());
        let map = directory.map().borrow().clone();
        assert_eq!(draining(&map), draining(&before));
        back.push(directory);
    }
    for directory in back {
        directory.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_bounded_and_a_newcomer_gets_the_snapshot() {
    let mut cluster = TestCluster::new();
    cluster.adjust = |options| options.times.snapshot_entries = 20;
    let nodes = cluster.found(3).await;
    for i in 0..150 {
        nodes[i % 3].touch(PATIENCE).await.expect("commits");
    }
    let revision = nodes[0].map().revision;
    let late = cluster.start("d", &["b"]).await;
    assert!(late.map().revision > revision);
    assert_eq!(late.map().nodes.len(), 4);
    // And it is found again after a restart.
    cluster.kill(&nodes[2]).await;
    let again = cluster.start("c", &["a"]).await;
    assert!(again.map().revision > revision);
    assert!(
        again
            .map()
            .nodes
            .values()
            .all(|n| n.state == NodeState::Up || n.id == again.id())
    );
    for c in [&nodes[0], &nodes[1], &late, &again] {
        cluster.kill(c).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voter_that_missed_much_catches_up_when_it_returns() {
    let mut cluster = TestCluster::new();
    cluster.adjust = |options| options.times.snapshot_entries = 20;
    let nodes = cluster.found(3).await;
    cluster.kill(&nodes[2]).await;
    for _ in 0..100 {
        nodes[1].touch(PATIENCE).await.expect("two of three commit");
    }
    let revision = nodes[1].map().revision;
    let back = cluster.start("c", &["a"]).await;
    eventually("it has all it missed", || back.map().revision >= revision).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(back.directory.status().voters.len(), 3);
    for c in [&nodes[0], &nodes[1], &back] {
        cluster.kill(c).await;
    }
}
