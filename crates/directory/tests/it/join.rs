//! Starts (row D6).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use staves_directory::{DirectoryError, Proposal, StoreError};
use staves_model::testing::create_pool;
use staves_model::{Change, NodeId, NodeState, Refusal};

use crate::test_cluster::{PATIENCE, TestCluster, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d6_a_node_alone_makes_a_cluster() {
    let cluster = TestCluster::new();
    let a = cluster.start("a", &[]).await;
    assert_eq!(a.id(), NodeId(1));
    let map = a.map();
    assert_eq!(map.cluster, a.life.cluster);
    assert_eq!(map.nodes[&a.id()].incarnation, a.life.incarnation);
    assert_eq!(a.directory.status().voters, [a.id()]);
    cluster.kill(&a).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d6_several_join_at_once_knowing_one_address() {
    let cluster = TestCluster::new();
    let nodes = cluster.found(5).await;
    let mut ids: Vec<u64> = nodes.iter().map(|c| c.id().0).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3, 4, 5], "one id each, none twice");
    let revision = nodes[0].map().revision;
    for c in &nodes {
        eventually("every node has the whole map", || {
            c.map().revision >= revision
        })
        .await;
        assert!(c.map().nodes.values().all(|n| n.state == NodeState::Up));
    }
    cluster.kill_all(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d6_joins_survive_a_lossy_network() {
    let cluster = TestCluster::new();
    cluster.net.drop_one_of(7);
    let nodes = cluster.found(3).await;
    cluster.net.drop_one_of(0);
    assert_eq!(
        nodes[0].map().nodes.len(),
        3,
        "a join asked for twice makes one node"
    );
    cluster.kill_all(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d6_a_node_comes_back_under_its_id_in_a_new_life() {
    let cluster = TestCluster::new();
    let nodes = cluster.found(3).await;
    let gone = nodes[2].clone();
    cluster.kill(&gone).await;
    eventually("the dead node is seen", || nodes[0].sees_down(gone.id())).await;
    let back = cluster.start("c", &["a"]).await;
    assert_eq!(back.id(), gone.id());
    assert!(back.life.incarnation > gone.life.incarnation);
    eventually("it is up for all", || !nodes[0].sees_down(gone.id())).await;
    for c in [&nodes[0], &nodes[1], &back] {
        cluster.kill(c).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_changes_are_made_once() {
    let mut cluster = TestCluster::new();
    cluster.adjust = |options| {
        options.first_changes = vec![create_pool("cache", "1+2", 4, true)];
    };
    let a = cluster.start("a", &[]).await;
    let b = cluster.start("b", &["a"]).await;
    assert!(b.map().pool_named("cache").is_some());
    let delete = Proposal::unconditional(Change::DeletePool {
        name: "cache".into(),
    });
    b.directory
        .propose(delete, PATIENCE)
        .await
        .expect("deleted");
    cluster.kill(&a).await;
    let a = cluster.start("a", &[]).await;
    assert!(
        a.map().pool_named("cache").is_none(),
        "a restart does not bring it back"
    );
    cluster.kill(&b).await;
    cluster.kill(&a).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_folder_is_new_each_time_and_does_not_vote() {
    let cluster = TestCluster::new();
    let a = cluster.start("a", &[]).await;
    let mut options = cluster.options("b", &["a"]);
    options.data_dir = None;
    let first = cluster.try_start(options.clone()).await.expect("joins");
    cluster.kill(&first).await;
    let second = cluster.try_start(options).await.expect("joins again");
    assert_ne!(first.id(), second.id());
    eventually("its former life is over", || a.sees_down(first.id())).await;
    eventually("it follows", || {
        a.directory.status().learners.contains(&second.id())
    })
    .await;
    eventually("its former id does not", || {
        !a.directory.status().learners.contains(&first.id())
    })
    .await;
    assert_eq!(a.directory.status().voters, [a.id()]);
    cluster.kill(&second).await;
    cluster.kill(&a).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_volatile_votes_a_cluster_in_memory_has_three_voters() {
    let mut cluster = TestCluster::new();
    cluster.adjust = |options| {
        options.data_dir = None;
        options.volatile_votes = true;
    };
    let nodes = cluster.found(3).await;
    cluster.kill(&nodes[0]).await;
    nodes[1].touch(PATIENCE).await.expect("two of three go on");
    cluster.kill_all(&nodes[1..]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_cluster_is_refused() {
    let cluster = TestCluster::new();
    let a = cluster.start("a", &[]).await;
    let b = cluster.start("b", &[]).await;
    assert_ne!(a.life.cluster, b.life.cluster);
    // B gets a second node, whose folder then names B's cluster.
    let c = cluster.start("c", &["b"]).await;
    cluster.kill(&c).await;
    cluster.kill(&b).await;
    let mut options = cluster.options("c", &["a"]);
    options.times.join = Duration::from_secs(5);
    let refused = cluster.try_start(options).await.err().expect("refused");
    let text = refused.to_string();
    assert!(
        matches!(refused, DirectoryError::OtherCluster { ours, theirs }
        if ours == b.life.cluster && theirs == a.life.cluster),
        "{text}"
    );
    cluster.kill(&a).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_node_is_told_so_when_it_returns() {
    let cluster = TestCluster::new();
    let nodes = cluster.found(3).await;
    let gone = nodes[2].clone();
    cluster.kill(&gone).await;
    eventually("it is seen dead", || nodes[0].sees_down(gone.id())).await;
    let forget = Proposal::unconditional(Change::ForgetNode { node: gone.id() });
    nodes[1]
        .directory
        .propose(forget, PATIENCE)
        .await
        .expect("forgotten");
    eventually("two nodes have one voter", || {
        nodes[0].directory.status().voters.len() == 1
    })
    .await;
    let refused = cluster
        .try_start(cluster.options("c", &["a"]))
        .await
        .err()
        .expect("refused");
    assert!(
        matches!(refused, DirectoryError::Removed { node } if node == gone.id()),
        "{refused}"
    );
    // Its old vote and log disturb nobody.
    nodes[0].touch(PATIENCE).await.expect("the cluster goes on");
    cluster.kill_all(&nodes[..2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_of_a_running_node_is_refused() {
    let cluster = TestCluster::new();
    let a = cluster.start("a", &[]).await;
    let mut options = cluster.options("z", &["a"]);
    options.node.native = a.addr.clone();
    // Not plugged in: the address is A's.
    let other = TestCluster::new();
    let elsewhere = other.options("z", &[]);
    options.data_dir = elsewhere.data_dir;
    let directory = cluster.open_unplugged(options).expect("opens");
    let refused = directory.start().await.expect_err("refused");
    assert!(
        matches!(refused, DirectoryError::AddressTaken { node, .. } if node == a.id()),
        "{refused}"
    );
    directory.stop().await;
    cluster.kill(&a).await;
}

/// Regression: a node that found nobody to join logged nothing until it gave up, and did not say then that a cluster's first
/// node has nobody to join.
#[tokio::test]
async fn who_finds_nobody_to_join_says_so_while_it_waits_and_when_it_gives_up() {
    let cluster = TestCluster::new();
    let (log, _here) = Log::of_this_thread();
    tokio::select! {
        started = cluster.try_start(cluster.options("b", &["a"])) => panic!("{:?}", started.map(|_| ())),
        _ = eventually("it says what it waits for", || log.has("waits for a cluster at a:1600")) => {}
    }
    assert!(log.has("leave `join` out on the first node"));

    let mut options = cluster.options("c", &["a"]);
    options.times.join = Duration::from_millis(100);
    let error = cluster
        .try_start(options)
        .await
        .err()
        .expect("nobody is there");
    assert!(matches!(error, DirectoryError::NoLeader { .. }), "{error}");
    let error = error.to_string();
    assert!(
        error.contains("leave `join` out on the first node"),
        "{error}"
    );
}

/// The same of a node that belongs to a cluster, whose other voters are gone.
#[tokio::test]
async fn who_has_no_majority_says_so_while_it_waits() {
    let cluster = TestCluster::new();
    let nodes = cluster.found(3).await;
    cluster.kill_all(&nodes).await;
    let (log, _here) = Log::of_this_thread();
    tokio::select! {
        started = cluster.try_start(cluster.options("c", &["a"])) => panic!("{:?}", started.map(|_| ())),
        _ = eventually("it says what it waits for", || log.has("waits for a majority of its directory")) => {}
    }
    assert!(log.has("start its voters again"));
}

/// A captured log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Of what runs on this thread, until the guard is dropped.
    fn of_this_thread() -> (Log, tracing::subscriber::DefaultGuard) {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
        let guard = tracing::subscriber::set_default(subscriber.finish());
        (log, guard)
    }

    fn has(&self, text: &str) -> bool {
        let bytes = self.0.lock().expect("no test panicked");
        String::from_utf8_lossy(&bytes).contains(text)
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no test panicked").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_in_use_and_another_format_are_refused() {
    let cluster = TestCluster::new();
    let a = cluster.start("a", &[]).await;
    let locked = cluster
        .open_unplugged(cluster.options("a", &[]))
        .err()
        .expect("locked");
    assert!(
        matches!(locked, DirectoryError::Store(StoreError::Locked { .. })),
        "{locked}"
    );
    let holder = format!("process {}", std::process::id());
    assert!(locked.to_string().contains(&holder), "{locked}");
    cluster.kill(&a).await;
    let path = cluster.folder("a").join("directory.redb");
    for format in [9u32, 1] {
        let db = redb::Database::create(&path).expect("closed in order");
        let meta: redb::TableDefinition<&str, &[u8]> = redb::TableDefinition::new("meta");
        let tx = db.begin_write().expect("write");
        tx.open_table(meta)
            .expect("table")
            .insert("format", format.to_le_bytes().as_slice())
            .expect("put");
        tx.commit().expect("commit");
        drop(db);
        let refused = cluster
            .open_unplugged(cluster.options("a", &[]))
            .err()
            .expect("another format");
        let newer = matches!(
            refused,
            DirectoryError::Store(StoreError::NewerFormat { found: 9, .. })
        );
        let former = matches!(
            refused,
            DirectoryError::Store(StoreError::FormerFormat { found: 1, .. })
        );
        assert!(if format == 9 { newer } else { former }, "{refused}");
    }
    std::fs::write(&path, b"no database").expect("overwritten");
    let bad = cluster
        .open_unplugged(cluster.options("a", &[]))
        .err()
        .expect("unreadable");
    assert!(
        matches!(bad, DirectoryError::Store(StoreError::Unreadable { .. })),
        "{bad}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_reach_the_proposer_and_nothing_waits_for_ever() {
    let cluster = TestCluster::new();
    let nodes = cluster.found(2).await;
    let forget = Proposal::unconditional(Change::ForgetNode {
        node: nodes[0].id(),
    });
    let refused = nodes[1]
        .directory
        .propose(forget, PATIENCE)
        .await
        .expect_err("it is up");
    assert!(
        matches!(refused, DirectoryError::Refused(Refusal::NodeIsUp { .. })),
        "{refused}"
    );
    let stale = Proposal::at(
        staves_model::Revision(1),
        Change::Drain {
            node: NodeId(1),
            on: true,
        },
    );
    let refused = nodes[1]
        .directory
        .propose(stale, PATIENCE)
        .await
        .expect_err("the map moved on");
    assert!(
        matches!(refused, DirectoryError::Refused(Refusal::MapMovedOn { .. })),
        "{refused}"
    );

    cluster.kill(&nodes[0]).await;
    let begun = std::time::Instant::now();
    let late = nodes[1]
        .touch(Duration::from_millis(300))
        .await
        .expect_err("no leader");
    assert!(
        matches!(
            late,
            DirectoryError::NoLeader { .. } | DirectoryError::Unknown { .. }
        ),
        "{late}"
    );
    assert!(begun.elapsed() < Duration::from_secs(3));
    cluster.kill(&nodes[1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_bytes_are_answered_and_harm_nothing() {
    let cluster = TestCluster::new();
    let a = cluster.start("a", &[]).await;
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    for len in 0..400usize {
        let bytes: Vec<u8> = (0..len)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                x as u8
            })
            .collect();
        a.directory.handle(bytes.into()).await;
    }
    a.touch(PATIENCE).await.expect("it still serves");
    cluster.kill(&a).await;
}
