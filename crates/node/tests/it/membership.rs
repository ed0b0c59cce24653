//! Joining, leaving, coming back, draining, and what changes while a cluster serves (rows D1, D2, D6, X1,
//! X3, X5, X6).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use staves_client::{Client as Native, ClientOptions};
use staves_model::{Change, MemberSlot};
use staves_wire::Message;
use staves_wire::admin::NodeTarget;
use staves_wire::cache::OwnedOp;
use staves_wire::service::Answer;

use staves_testkit::cluster::{TestCluster, TestNode, config};
use staves_testkit::resp::{Reply, RespClient};
use staves_testkit::{SetAtEnd, wait_until};

/// Rows D6 (several join at once, knowing one address), D1 (any node takes any key), D2 (one map).
#[test]
fn d6_three_join_at_once_and_d1_any_node_takes_any_key() {
    let cluster = TestCluster::start(4);
    for i in 0..200 {
        let mut client = cluster.nodes[i % 4].client();
        assert_eq!(client.ask(&format!("SET k{i} {i}")), Reply::Ok);
    }
    for (at, node) in cluster.nodes.iter().enumerate() {
        let mut client = node.client();
        for i in 0..200 {
            assert_eq!(
                client.ask(&format!("GET k{i}")),
                Reply::text(&i.to_string())
            );
        }
        assert_eq!(client.ask("DBSIZE"), Reply::Int(200), "at node {at}");
        let keys: Vec<String> = (0..50).map(|i| format!("k{i}")).collect();
        let Reply::Array(values) = client.ask(&format!("MGET {}", keys.join(" "))) else {
            panic!("an array")
        };
        let wanted: Vec<Reply> = (0..50).map(|i| Reply::text(&i.to_string())).collect();
        assert_eq!(values, wanted);
    }
    wait_until("one map is known to all (row D2)", || {
        let first = cluster.nodes[0].map();
        cluster.nodes.iter().all(|c| c.map() == first)
    });
    assert!(
        cluster.nodes.iter().all(|c| c.data_buckets() > 0),
        "buckets went to all"
    );
}

/// Row D6: a node comes back under its id, with no change to the others; a killed one too.
#[test]
fn d6_a_node_leaves_and_comes_back() {
    let mut cluster = TestCluster::start(3);
    let mut client = cluster.nodes[0].client();
    for i in 0..100 {
        assert_eq!(client.ask(&format!("SET k{i} {i}")), Reply::Ok);
    }
    let id = cluster.nodes[2].id;
    for orderly in [true, false] {
        if orderly {
            cluster.nodes[2].leave();
        } else {
            cluster.nodes[2].kill();
        }
        wait_until("the others go on without it", || {
            let status = cluster.nodes[0].status();
            status.nodes.iter().any(|n| n.id == id.0 && !n.up)
        });
        for i in 0..100 {
            assert_eq!(client.ask(&format!("INCR k{i}")).is_error(), None);
        }
        let config = config(Some(&cluster.folders[2]), &[&cluster.nodes[0]]);
        cluster.nodes[2] = TestNode::start(config);
        assert_eq!(cluster.nodes[2].id, id, "its folder says who it is");
        cluster.settle();
        wait_until("it has buckets again", || {
            cluster.nodes[2].data_buckets() > 0
        });
        assert_eq!(cluster.nodes[2].client().ask("DBSIZE"), Reply::Int(100));
    }
    assert_eq!(client.ask("GET k7"), Reply::text("9"));
}

#[test]
fn d6_a_node_of_another_cluster_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut other = TestNode::start(config(Some(&folder), &[]));
    other.leave();
    let founder = TestNode::start(config(None, &[]));
    let error = TestNode::try_start(config(Some(&folder), &[&founder]));
    let text = error.err().expect("it is refused").to_string();
    assert!(text.contains("data folder belongs to cluster"), "{text}");
    assert_eq!(founder.map().nodes.len(), 1);
}

#[test]
fn d6_nodes_of_two_clusters_cannot_be_joined_at_once() {
    let (one, two) = (
        TestNode::start(config(None, &[])),
        TestNode::start(config(None, &[])),
    );
    let folder = tempfile::tempdir().expect("a folder");
    let error = TestNode::try_start(config(Some(&folder), &[&one, &two]));
    let text = error.err().expect("it is refused").to_string();
    for cluster in [one.map().cluster, two.map().cluster] {
        assert!(text.contains(&cluster.to_string()), "{cluster}: {text}");
    }
    assert_eq!((one.map().nodes.len(), two.map().nodes.len()), (1, 1));
    // Nothing was written: the folder is free for either.
    let joined = TestNode::start(config(Some(&folder), &[&two]));
    assert_eq!(joined.map().cluster, two.map().cluster);
}

/// Increments one counter after the other through a door until told to stop; all must be acknowledged.
fn count(door: std::net::SocketAddr, stop: &AtomicBool, done: &AtomicU64) -> Duration {
    let mut client = RespClient::connect(door);
    let mut longest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let number = done.load(Ordering::Relaxed);
        let begun = Instant::now();
        let answer = client.ask(&format!("INCR c{}", number % 64));
        assert_eq!(answer, Reply::Int(number as i64 / 64 + 1));
        longest = longest.max(begun.elapsed());
        done.store(number + 1, Ordering::Relaxed);
    }
    longest
}

/// Runs something while a counter counts, and checks that it never stumbled.
fn while_counting(cluster: &TestCluster, door: usize, work: impl FnOnce()) {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let door = cluster.nodes[door].addresses.resp;
    std::thread::scope(|scope| {
        let ends = SetAtEnd(&stop);
        let counting = scope.spawn(|| count(door, &stop, &done));
        std::thread::sleep(Duration::from_millis(300));
        work();
        std::thread::sleep(Duration::from_millis(300));
        drop(ends);
        let longest = counting.join().expect("the counter");
        let done = done.load(Ordering::Relaxed);
        println!("{done} increments, the longest took {longest:?}");
        assert!(done > 0);
    });
}

/// Row X3: the number of copies is changed while the pool serves, down to none and back.
#[test]
fn x3_the_number_of_copies_changes_while_serving() {
    let cluster = TestCluster::start(3);
    let copies = |wanted: usize| {
        wait_until("the copies are as asked for", || {
            let map = cluster.nodes[1].map();
            map.groups
                .values()
                .all(|g| g.open && g.parity_slots().count() == wanted)
        });
    };
    copies(2);
    while_counting(&cluster, 0, || {
        for (scheme, wanted) in [("1+0", 0), ("1+1", 1), ("1+2", 2)] {
            let change = Change::SetPool {
                name: "cache".into(),
                scheme: Some(scheme.parse().expect("a scheme")),
                node_budget_bytes: None,
            };
            cluster.nodes[1].propose(&change).expect("it is taken");
            copies(wanted);
        }
    });
    cluster.settle();
    let striped = Change::SetPool {
        name: "cache".into(),
        scheme: Some("2+1".parse().expect("a scheme")),
        node_budget_bytes: None,
    };
    let refusal = cluster.nodes[0]
        .propose(&striped)
        .expect_err("whole copies");
    assert!(
        refusal.contains("2+1") && refusal.contains("1+2"),
        "{refusal}"
    );
}

/// Row X5: a node is drained and resumed while the cluster serves, and asked for its keys.
#[test]
fn x5_drain_and_resume() {
    let cluster = TestCluster::start(4);
    let node = cluster.nodes[3].id;
    let key_range = |at: usize| match cluster.nodes[at].ask(&Message::KeyRange(NodeTarget { node }))
    {
        Message::KeyRangeAnswer(answer) => answer.spans,
        other => panic!("{other:?}"),
    };
    let spans = key_range(0);
    assert!(spans.iter().any(|s| s.data), "{spans:?}");
    while_counting(&cluster, 0, || {
        let done = cluster.nodes[0].ask(&Message::NodeDrain(NodeTarget { node }));
        assert_eq!(done, Message::Done);
        wait_until("it holds nothing", || key_range(1).is_empty());
        assert_eq!(cluster.nodes[3].data_buckets(), 0);
        let done = cluster.nodes[1].ask(&Message::NodeResume(NodeTarget { node }));
        assert_eq!(done, Message::Done);
        wait_until("it holds something again", || {
            key_range(1).iter().any(|s| s.data)
        });
    });
    cluster.settle();
}

/// Row D6: nodes join, and one leaves in good order, while the cluster serves.
#[test]
fn d6_a_node_joins_and_one_leaves_under_load() {
    let mut cluster = TestCluster::start(3);
    let fourth = TestNode::start(config(None, &[&cluster.nodes[1]]));
    let mut leaver = std::mem::replace(&mut cluster.nodes[2], fourth);
    while_counting(&cluster, 0, || {
        wait_until("the fourth has buckets", || {
            cluster.nodes[2].data_buckets() > 0
        });
        leaver.leave();
        wait_until("all goes on", || {
            let map = cluster.nodes[0].map();
            map.groups.values().all(|g| {
                g.open
                    && g.member(MemberSlot(0))
                        .is_some_and(|x| x.id.node != leaver.id)
            })
        });
    });
    let id = leaver.id;
    let map = cluster.nodes[0].map();
    assert!(!map.nodes[&id].draining, "the wish was for that stop only");
}

/// Rows X1 and X6: the native client's batches go straight to the nodes that answer.
#[test]
fn x1_x6_the_native_client_batches_by_node() {
    let cluster = TestCluster::start(3);
    let addresses = vec![cluster.nodes[1].addresses.native.to_string()];
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        let client = Native::connect(&addresses, ClientOptions::default())
            .await
            .expect("one address is enough (row D1)");
        let sets = (0..500).map(|i| OwnedOp::Set {
            key: format!("k{i}").into(),
            value: format!("v{i}").into(),
            condition: staves_wire::cache::Condition::Always,
            get_old: false,
        });
        let answers = client.execute(sets.collect()).await.expect("answers");
        assert!(answers.iter().all(|a| *a == Answer::Ok));
        let gets = (0..500).map(|i| OwnedOp::Get {
            key: format!("k{i}").into(),
        });
        let answers = client.execute(gets.collect()).await.expect("answers");
        for (i, answer) in answers.iter().enumerate() {
            assert_eq!(*answer, Answer::Value(format!("v{i}").into()));
        }
        let large = vec![7u8; 3 << 20];
        client
            .put("large", large.clone())
            .await
            .expect("it streams");
        assert_eq!(
            client.get("large").await.expect("it is there"),
            Some(large.into())
        );
        assert!(client.delete("large").await.expect("it was there"));
        let stats = client.stats().await.expect("figures");
        let keys: u64 = stats
            .iter()
            .map(|(_, s)| s.as_ref().expect("all answer").keys)
            .sum();
        assert_eq!(keys, 500);
        let wrong = client
            .execute(vec![OwnedOp::IncrBy {
                key: "k1".into(),
                by: 1,
            }])
            .await;
        assert!(matches!(wrong.expect("an answer")[0], Answer::Error(..)));
    });
    assert_eq!(cluster.nodes[0].client().ask("DBSIZE"), Reply::Int(500));
}

/// Row D6: all nodes stop at once and come back. The cache starts empty, the cluster is whole.
#[test]
fn d6_all_nodes_stop_at_once_and_come_back() {
    let mut cluster = TestCluster::start(3);
    assert_eq!(cluster.nodes[0].client().ask("SET a 1"), Reply::Ok);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for node in &mut cluster.nodes {
            scope.spawn(move || node.leave());
        }
    });
    println!("all stopped after {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(20));
    // At the same addresses: whoever comes back first waits for the others there.
    let configs = (0..3).map(|at| {
        let mut config = config(Some(&cluster.folders[at]), &[]);
        let old = cluster.nodes[at].addresses.native;
        config.listen = old.to_string().parse().expect("an address");
        config
    });
    let configs: Vec<_> = configs.collect();
    cluster.nodes = std::thread::scope(|scope| {
        let starts = configs
            .into_iter()
            .map(|config| scope.spawn(|| TestNode::start(config)));
        let starts: Vec<_> = starts.collect();
        let started = starts.into_iter().map(|s| s.join().expect("it starts"));
        started.collect()
    });
    wait_until("nobody is drained, and all have buckets", || {
        let map = cluster.nodes[0].map();
        map.nodes.values().all(|n| !n.draining)
            && cluster.nodes.iter().all(|c| c.data_buckets() > 0)
    });
    cluster.settle();
    assert_eq!(cluster.nodes[1].client().ask("SET a 2"), Reply::Ok);
    assert_eq!(cluster.nodes[2].client().ask("GET a"), Reply::text("2"));
}
