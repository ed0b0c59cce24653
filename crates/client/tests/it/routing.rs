//! The nodes that requests go to; no mistake is made twice.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use staves_client::{Client, ClientError, ClientOptions};
use staves_model::{ClientId, GroupId, NodeId, ServiceId};
use staves_wire::ErrorCode;
use staves_wire::service::{Answer, NumberedOp, PoolRef, ServiceRequest};

use crate::cluster::*;

#[test]
fn x6_many_keys_take_one_look_up_and_one_batch_per_node() {
    block_on(async {
        let cluster = Cluster::start(3).await;
        let client = cluster.client().await;
        let keys: Vec<String> = (0..200).map(|i| format!("key-{i}")).collect();
        let sets = keys.iter().map(|key| set(key, key)).collect();
        let answers = client.execute(sets).await.expect("answered");
        assert!(
            answers.iter().all(|answer| *answer == Answer::Ok),
            "{answers:?}"
        );
        let gets = keys.iter().map(|key| get(key)).collect();
        let answers = client.execute(gets).await.expect("answered");
        for (key, answer) in keys.iter().zip(answers) {
            assert_eq!(answer, Answer::Value(key.clone().into()), "in their order");
        }
        let world = cluster.world.lock();
        assert_eq!(
            world.asked.len(),
            6,
            "two batches to each of three nodes: {:?}",
            world.asked
        );
        let first: BTreeSet<NodeId> = world.asked[..3].iter().map(|(node, ..)| *node).collect();
        assert_eq!(first.len(), 3);
        assert_eq!(world.astray, 0);
        assert_eq!(client.maps_asked(), 1, "one look-up");
    });
}

#[test]
fn d1_the_list_of_nodes_need_not_be_complete_nor_right() {
    block_on(async {
        let cluster = Cluster::start(3).await;
        // The first does not exist; the second is one of three.
        let addresses = ["127.0.0.1:1".to_owned(), cluster.addr(2)];
        let client = Client::connect(&addresses, ClientOptions::default()).await;
        let client = client.expect("the second answers");
        for i in 0..50 {
            let key = format!("key-{i}");
            client.put(key.clone(), "value").await.expect("put");
            assert_eq!(
                client.get(key.clone()).await.expect("get").as_deref(),
                Some(&b"value"[..])
            );
            assert!(client.delete(key.clone()).await.expect("delete"));
            assert_eq!(client.get(key).await.expect("get"), None);
        }
        let world = cluster.world.lock();
        let asked: BTreeSet<NodeId> = world.asked.iter().map(|(node, ..)| *node).collect();
        assert_eq!(
            (asked.len(), world.astray),
            (3, 0),
            "all three were asked, straight"
        );
    });
}

#[test]
fn d1_no_mistake_is_made_twice() {
    block_on(async {
        let cluster = Cluster::start(3).await;
        let client = cluster.client().await;
        client.put("k", "1").await.expect("put");
        let group = {
            let mut world = cluster.world.lock();
            let (id, owner) = (world.group_of(b"k"), world.owner(b"k"));
            world.give(id, NodeId(owner.0 % 3 + 1));
            world.asked.clear();
            id
        };
        for i in 0..10 {
            client.put("k", i.to_string()).await.expect("put");
        }
        {
            let world = cluster.world.lock();
            assert_eq!(
                world.astray, 1,
                "the first put went astray and brought the newer entry"
            );
            assert_eq!(world.asked.len(), 11);
            let known = client.map().groups[&group].clone();
            assert_eq!(known, world.map.groups[&group]);
        }
        // A well-routed answer from a node with a newer map brings that map, too.
        cluster
            .world
            .lock()
            .change(|map| map.next_node = NodeId(77));
        client.put("k", "11").await.expect("put");
        wait_until_async("the map arrives", || client.map().next_node == NodeId(77)).await;
    });
}

#[test]
fn a_moved_entry_is_not_lost_to_a_map_that_is_newer_elsewhere_only() {
    block_on(async {
        let cluster = Cluster::start(3).await;
        let client = cluster.client().await;
        // An epoch that nobody has opened: the write waits for it, by the map.
        let owner = cluster.world.lock().owner(b"k");
        let id = cluster.world.lock().group_of(b"k");
        cluster.world.lock().change(|map| {
            let revision = map.revision;
            let group = map.groups.get_mut(&id).expect("the group");
            (group.open, group.revision) = (false, revision);
        });
        let world = cluster.world.clone();
        let opener = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            world.lock().give(id, NodeId(owner.0 % 3 + 1));
        });
        let started = Instant::now();
        client.put("k", "v").await.expect("put");
        assert!(started.elapsed() >= Duration::from_millis(290));
        assert!(
            started.elapsed() < Duration::from_secs(4),
            "soon after it opened"
        );
        opener.await.expect("opened");
        assert!(cluster.world.lock().astray <= 1);
    });
}

#[test]
fn errors_name_what_is_wrong() {
    block_on(async {
        let cluster = Cluster::start(1).await;
        let none = Client::connect(&[], ClientOptions::default())
            .await
            .err()
            .expect("no address");
        assert!(matches!(none, ClientError::NoAddress));
        let dead = ["127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned()];
        let error = Client::connect(&dead, ClientOptions::default())
            .await
            .err()
            .expect("dead");
        let text = error.to_string();
        assert!(
            text.contains("127.0.0.1:1") && text.contains("127.0.0.1:2"),
            "{text}"
        );
        assert_eq!(error.code(), ErrorCode::Unreachable);
        let options = ClientOptions {
            pool: "catch".to_owned(),
            ..ClientOptions::default()
        };
        let client = cluster.client_with(options).await;
        let error = client.get("k").await.expect_err("no such pool");
        assert_eq!(
            error.to_string(),
            "there is no key-value pool 'catch'; there are: cache"
        );
        assert_eq!(error.code(), ErrorCode::NotFound);
    });
}

#[test]
fn numbers_stay_within_the_window_and_the_floor_follows() {
    block_on(async {
        let cluster = Cluster::start(2).await;
        let mut options = ClientOptions::default();
        options.router.window = 64;
        let client = cluster.client_with(options).await;
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..8 {
            let client = client.clone();
            tasks.spawn(async move {
                for i in 0..20 {
                    let sets = (0..20)
                        .map(|j| set(&format!("{{one}}{task}-{i}-{j}"), "v"))
                        .collect();
                    let answers = client.execute(sets).await.expect("answered");
                    assert!(answers.iter().all(|answer| *answer == Answer::Ok));
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic");
        }
        let world = cluster.world.lock();
        assert_eq!(world.floors.len(), 8 * 20 * 20);
        let numbers: BTreeSet<u64> = world.floors.iter().map(|(number, _)| *number).collect();
        // Numbers follow the clock, so there are gaps: what counts is how many lie in the window.
        let within = |(number, floor): &(u64, u64)| numbers.range(*floor..*number).count();
        let widest = world.floors.iter().map(within).max();
        assert!(widest < Some(64), "{widest:?}");
        assert_eq!(numbers.len(), 3200, "each write had its own");
    });
}

#[test]
fn stats_come_from_every_node() {
    block_on(async {
        let mut cluster = Cluster::start(3).await;
        let client = cluster.client().await;
        client
            .execute((0..90).map(|i| set(&i.to_string(), "v")).collect())
            .await
            .expect("sets");
        let stats = client.stats().await.expect("stats");
        let keys: u64 = stats
            .iter()
            .map(|(_, s)| s.as_ref().expect("answered").keys)
            .sum();
        assert_eq!((stats.len(), keys), (3, 90));
        cluster.kill(3);
        let stats = client.stats().await.expect("stats");
        assert!(
            stats[2].1.is_err() && stats[0].1.is_ok(),
            "one is missing, and said to be"
        );
    });
}

#[test]
fn forwarding_keeps_the_clients_own_numbers_and_goes_once() {
    block_on(async {
        let cluster = Cluster::start(3).await;
        let client = cluster.client().await;
        let ops = (0..30).map(|i| set(&format!("key-{i}"), "v").numbered(100 + i));
        let ops: Vec<NumberedOp> = ops.collect();
        let request = ServiceRequest {
            revision: Default::default(),
            service: ServiceId::CACHE,
            pool: PoolRef::Name("cache".into()),
            client: ClientId(7),
            floor: 100,
            retry: false,
            forwarded: false,
            answer_bytes_max: 0,
            strict: false,
            ops,
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        let answers = client.forward(request.clone(), deadline).await;
        assert!(
            answers.answers.iter().all(|answer| *answer == Answer::Ok),
            "{answers:?}"
        );
        {
            let world = cluster.world.lock();
            assert_eq!(world.asked.len(), 3);
            assert!((100..130).all(|number| world.done.contains_key(&(ClientId(7), number))));
        }
        // What has moved is not chased, but said.
        cluster.world.lock().give(GroupId(1), NodeId(2));
        let answers = client.forward(request, deadline).await;
        let not_here = |answer: &&Answer| matches!(answer, Answer::Error(ErrorCode::NotServing, _));
        assert!(answers.answers.iter().filter(not_here).count() > 0);
        assert!(answers.moved.iter().any(|group| group.id == GroupId(1)));
    });
}
