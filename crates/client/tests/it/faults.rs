//! Nodes that die, hang or lie, as a client meets them.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use staves_client::{ClientError, ClientOptions};
use staves_model::{NodeId, NodeState, PoolId, PoolKind, Region, RegionId, hash_slot};
use staves_wire::ErrorCode;
use staves_wire::directory::Sign;
use staves_wire::service::Answer;
use tokio::task::JoinHandle;

use crate::cluster::*;

/// Adds 1 to `n` at a node that does it and says nothing: the node, and the call that waits.
async fn unanswered(cluster: &Cluster) -> (NodeId, JoinHandle<Result<Vec<Answer>, ClientError>>) {
    let client = cluster.client().await;
    client.put("warm", "up").await.expect("put");
    let owner = cluster.world.lock().owner(b"n");
    cluster.world.lock().moods.insert(owner, Mood::Mute);
    let asking = tokio::spawn(async move { client.execute(vec![incr("n")]).await });
    wait_until_async("the write is done", || {
        cluster.world.lock().values.contains_key(&b"n"[..])
    })
    .await;
    (owner, asking)
}

#[test]
fn a_write_whose_answer_was_lost_takes_effect_once() {
    block_on(async {
        let mut cluster = Cluster::start(3).await;
        // It is done, nobody says so, and the node dies.
        let (owner, asking) = unanswered(&cluster).await;
        cluster.kill(owner.0);
        tokio::time::sleep(Duration::from_millis(300)).await;
        {
            let mut world = cluster.world.lock();
            let id = world.group_of(b"n");
            world.change(|map| {
                map.nodes.get_mut(&owner).expect("it").state = NodeState::Down;
            });
            world.give(id, NodeId(owner.0 % 3 + 1));
        }
        let answers = asking.await.expect("no panic").expect("answered");
        assert_eq!(answers, [Answer::Int(1)], "the answer of the first try");
        let world = cluster.world.lock();
        assert_eq!(world.values[&b"n"[..]], "1");
        assert!(
            world.asked.last().is_some_and(|(_, _, retry)| *retry),
            "it was said to be a retry"
        );
    });
}

#[test]
fn d1_a_node_that_cannot_be_reached_is_passed_over_for_one_that_passes_on() {
    block_on(async {
        let mut cluster = Cluster::start(3).await;
        let client = cluster.client().await;
        let owner = cluster.world.lock().owner(b"k");
        // The client cannot reach it; the others can, and the map says that it is well.
        cluster.kill(owner.0);
        cluster.world.lock().forwarding = true;
        let started = Instant::now();
        client
            .put("k", "v")
            .await
            .expect("another node passes it on");
        assert!(
            started.elapsed() < Duration::from_secs(4),
            "{:?}",
            started.elapsed()
        );
        assert_eq!(
            client.get("k").await.expect("get").as_deref(),
            Some(&b"v"[..])
        );
    });
}

/// Of four nodes that could pass on, one reaches the owner. Regression: each try counted twice as in vain, so that every other detour was
/// taken, and the right one perhaps never.
#[test]
fn tries_in_vain_take_every_detour_in_turn() {
    block_on(async {
        let mut cluster = Cluster::start(5).await;
        let owner = cluster.world.lock().owner(b"k");
        cluster.kill(owner.0);
        cluster.world.lock().forwarding = true;
        let others = || (1..=5).map(NodeId).filter(|node| *node != owner);
        for reaches in others() {
            let client = cluster.client().await;
            {
                let mut world = cluster.world.lock();
                for node in others() {
                    let mood = if node == reaches {
                        Mood::Well
                    } else {
                        Mood::Busy
                    };
                    world.moods.insert(node, mood);
                }
                world.asked.clear();
            }
            let put = client.put("k", "v").await;
            let world = cluster.world.lock();
            let asked: Vec<_> = world.asked.iter().map(|(node, ..)| node.0).collect();
            put.unwrap_or_else(|error| panic!("{error}: asked {asked:?} for {reaches}"));
            assert!(asked.len() <= 4, "asked {asked:?} for {reaches}");
        }
    });
}

#[test]
fn d1_a_silent_node_costs_one_wait_and_not_one_for_each_request() {
    block_on(async {
        let cluster = Cluster::start(3).await;
        let mut options = ClientOptions::default();
        options.router.try_max = Duration::from_millis(400);
        let client = cluster.client_with(options).await;
        let owner = cluster.world.lock().owner(b"k");
        let relay = Relay::to(cluster.addr(owner.0)).await;
        cluster.world.lock().change(|map| {
            let node = map.nodes.get_mut(&owner).expect("the owner");
            node.native = relay.addr.clone();
        });
        client.refresh().await.expect("the map");
        client.put("k", "before").await.expect("put");
        relay.cut();
        cluster.world.lock().forwarding = true;
        let started = Instant::now();
        for i in 0..20 {
            client
                .put("k", i.to_string())
                .await
                .expect("another node passes it on");
        }
        assert!(
            started.elapsed() < Duration::from_secs(4),
            "{:?}",
            started.elapsed()
        );
        let world = cluster.world.lock();
        assert_eq!(
            world
                .asked
                .iter()
                .filter(|(node, ..)| *node == owner)
                .count(),
            1
        );
    });
}

/// A slow operation says nothing of its node, which is asked on: for it, and for all others.
/// Regression: a command-line tool gives its first look for a map nearly all of its time; so it did with later ones, at the very node that it
/// did not reach, and failed at its deadline beside nodes that would have passed its request on.
#[test]
fn d1_a_look_for_a_newer_map_does_not_wait_for_a_silent_node() {
    block_on(async {
        let cluster = Cluster::start(3).await;
        let mut options = ClientOptions {
            deadline: Duration::from_secs(12),
            map_try_max: Duration::from_secs(10),
            ..ClientOptions::default()
        };
        options.connection.silence_max = Duration::from_secs(60);
        options.connection.connect_timeout = Duration::from_secs(10);
        let client = cluster.client_with(options).await;
        // Not the one that the client was told of.
        let mut keys = (0..).map(|i| format!("k{i}"));
        let of_others = |key: &String| cluster.world.lock().owner(key.as_bytes()) != NodeId(1);
        let key = keys.find(of_others).expect("one of many");
        let owner = cluster.world.lock().owner(key.as_bytes());
        let relay = Relay::to(cluster.addr(owner.0)).await;
        cluster.world.lock().change(|map| {
            let node = map.nodes.get_mut(&owner).expect("the owner");
            node.native = relay.addr.clone();
        });
        client.refresh().await.expect("the map");
        client.put(key.clone(), "v").await.expect("put");
        relay.cut();
        let began = Instant::now();
        let asking = tokio::spawn(async move { client.get(key).await });
        // For a while nobody passes it on, so that the client looks at every node for a newer map.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        cluster.world.lock().forwarding = true;
        let got = asking.await.expect("no panic").expect("it is passed on");
        assert_eq!(got.as_deref(), Some(&b"v"[..]));
        let took = began.elapsed();
        assert!(took < Duration::from_secs(8), "{took:?}");
    });
}

#[test]
fn d1_a_node_that_answers_late_is_not_passed_over() {
    block_on(async {
        let cluster = Cluster::start(3).await;
        let mut options = ClientOptions::default();
        options.router.try_max = Duration::from_secs(2);
        options.deadline = Duration::from_secs(20);
        let client = cluster.client_with(options).await;
        client.put("k", "before").await.expect("put");
        let owner = cluster.world.lock().owner(b"k");
        cluster.world.lock().moods.insert(owner, Mood::Mute);
        cluster.world.lock().forwarding = true;
        let asking = {
            let client = client.clone();
            tokio::spawn(async move { client.put("k", "v").await })
        };
        wait_until_async("the requests arrive", || {
            cluster.world.lock().asked.len() >= 3
        })
        .await;
        cluster.world.lock().moods.clear();
        asking.await.expect("no panic").expect("it answers at last");
        let world = cluster.world.lock();
        assert!(world.asked.iter().all(|(node, ..)| *node == owner));
        assert!(world.evidence.is_empty(), "{:?}", world.evidence);
    });
}

/// One write that stands still holds up no other bucket's.
#[test]
fn d1_a_slow_write_does_not_stop_those_of_other_buckets() {
    block_on(async {
        let cluster = Cluster::start(2).await;
        let mut options = ClientOptions::default();
        options.router.window = 8;
        options.deadline = Duration::from_secs(20);
        let client = cluster.client_with(options).await;
        let owner = cluster.world.lock().owner(b"k");
        cluster.world.lock().moods.insert(owner, Mood::Mute);
        let stuck = {
            let client = client.clone();
            tokio::spawn(async move { client.put("k", "v").await })
        };
        wait_until_async("the requests arrive", || {
            !cluster.world.lock().asked.is_empty()
        })
        .await;
        let others = (0..).map(|i| format!("other-{i}"));
        let others = others.filter(|key| cluster.world.lock().owner(key.as_bytes()) != owner);
        let others: Vec<String> = others.take(100).collect();
        for key in others {
            client.put(key, "v").await.expect("nothing is in its way");
        }
        assert!(!stuck.is_finished(), "it stood still all the while");
        cluster.world.lock().moods.clear();
        stuck.await.expect("no panic").expect("put");
    });
}

/// Operations that are left for want of room for their answers are asked for at once, until all are there.
#[test]
fn what_does_not_go_at_once_is_asked_for_again() {
    block_on(async {
        let cluster = Cluster::start(1).await;
        let client = cluster.client().await;
        cluster.world.lock().answers_max = Some(3);
        let ops = (0..20).map(|_| incr("n")).collect();
        let answers = client.execute(ops).await.expect("answered");
        assert!(answers.into_iter().eq((1..=20).map(Answer::Int)));
        let world = cluster.world.lock();
        let counts: Vec<usize> = world.asked.iter().map(|(_, count, _)| *count).collect();
        assert_eq!(counts, [20, 17, 14, 11, 8, 5, 2]);
    });
}

/// Many bytes, a few at a time, take longer than one operation may.
#[test]
fn a_deadline_grows_with_the_bytes_that_have_come() {
    block_on(async {
        let cluster = Cluster::start(1).await;
        let mut options = ClientOptions {
            deadline: Duration::from_secs(2),
            ..ClientOptions::default()
        };
        options.router.backoff_min = Duration::from_millis(200);
        let client = cluster.client_with(options).await;
        {
            let mut world = cluster.world.lock();
            world.values.insert("big".into(), vec![7; 4 << 20].into());
            world.answers_max = Some(1);
        }
        let started = Instant::now();
        let ops = (0..14).map(|_| get("big")).collect();
        let answers = client.execute(ops).await.expect("answered");
        let whole = |a: &Answer| matches!(a, Answer::Value(value) if value.len() == 4 << 20);
        assert!(answers.iter().all(whole), "none was given up");
        assert!(started.elapsed() > Duration::from_secs(2), "too fast");
    });
}

#[test]
fn d5_trouble_with_a_node_is_reported_to_another() {
    block_on(async {
        let mut cluster = Cluster::start(3).await;
        let client = cluster.client().await;
        let owner = cluster.world.lock().owner(b"k");
        cluster.kill(owner.0);
        cluster.world.lock().forwarding = true;
        client
            .put("k", "v")
            .await
            .expect("another node passes it on");
        wait_until_async("the evidence arrives", || {
            !cluster.world.lock().evidence.is_empty()
        })
        .await;
        let world = cluster.world.lock();
        assert!(
            world.evidence.iter().all(|seen| seen.node == owner),
            "{:?}",
            world.evidence
        );
        // Which of the two depends on how far its port had closed.
        assert!(matches!(
            world.evidence[0].sign,
            Sign::Refused | Sign::Failed
        ));
    });
}

#[test]
fn at_the_deadline_it_is_said_what_is_known() {
    block_on(async {
        let cluster = Cluster::start(2).await;
        let options = ClientOptions {
            deadline: Duration::from_secs(1),
            ..ClientOptions::default()
        };
        let client = cluster.client_with(options).await;
        let owner = cluster.world.lock().owner(b"k");
        cluster.world.lock().moods.insert(owner, Mood::Busy);
        let error = client.put("k", "v").await.expect_err("busy to the end");
        let ClientError::Operation { code, text } = error else {
            panic!("{error}")
        };
        assert_eq!(code, ErrorCode::Busy, "nothing was done, and that is known");
        assert!(
            text.contains("deadline") && text.contains("not now"),
            "{text}"
        );

        cluster.world.lock().moods.insert(owner, Mood::Mute);
        let error = client.put("k", "v").await.expect_err("mute");
        let ClientError::Operation { code, text } = error else {
            panic!("{error}")
        };
        assert_eq!(code, ErrorCode::Deadline);
        assert!(text.contains("may or may not"), "{text}");
    });
}

#[test]
fn one_nodes_trouble_is_not_the_others() {
    block_on(async {
        let cluster = Cluster::start(3).await;
        let options = ClientOptions {
            deadline: Duration::from_secs(3),
            ..ClientOptions::default()
        };
        let client = cluster.client_with(options).await;
        cluster.world.lock().moods.insert(NodeId(2), Mood::Busy);
        let keys: Vec<String> = (0..60).map(|i| format!("key-{i}")).collect();
        let sets = keys.iter().map(|key| set(key, "v")).collect();
        let answers = client.execute(sets).await.expect("answered");
        for (key, answer) in keys.iter().zip(answers) {
            let busy = cluster.world.lock().owner(key.as_bytes()) == NodeId(2);
            match answer {
                Answer::Ok => assert!(!busy),
                Answer::Error(ErrorCode::Busy, _) => assert!(busy),
                other => panic!("{other:?}"),
            }
        }
        let world = cluster.world.lock();
        let well = world
            .asked
            .iter()
            .filter(|(node, ..)| *node != NodeId(2))
            .count();
        assert_eq!(well, 2, "what was answered was not asked again");
    });
}

#[test]
fn a_bucket_that_is_lost_is_said_to_be_lost_at_once() {
    block_on(async {
        let cluster = Cluster::start(2).await;
        let id = cluster.world.lock().group_of(b"k");
        cluster
            .world
            .lock()
            .change(|map| map.groups.get_mut(&id).expect("it").lost = true);
        let client = cluster.client().await;
        let started = Instant::now();
        let error = client.get("k").await.expect_err("lost");
        assert_eq!(error.code(), ErrorCode::Lost);
        assert!(started.elapsed() < Duration::from_secs(4));
    });
}

/// Regression: who had once heard that a bucket is lost said so for ever, though its nodes had come back.
#[test]
fn a_bucket_that_was_lost_and_is_back_answers_again() {
    block_on(async {
        let cluster = Cluster::start(2).await;
        let client = cluster.client().await;
        client.put("k", "v").await.expect("put");
        let lost = |lost: bool| {
            let mut world = cluster.world.lock();
            let id = world.group_of(b"k");
            world.change(|map| map.groups.get_mut(&id).expect("it").lost = lost);
        };
        lost(true);
        client.refresh().await.expect("a map");
        let error = client.get("k").await.expect_err("lost");
        assert_eq!(error.code(), ErrorCode::Lost);
        lost(false);
        let got = client.get("k").await.expect("it is back");
        assert_eq!(got.as_deref(), Some(&b"v"[..]));
    });
}

/// Regression: a write that was sent, and whose bucket was then said to be lost, was told not to be done; it
/// was there when enough of its nodes came back.
#[test]
fn a_write_that_was_sent_before_its_bucket_was_lost_may_have_been_done() {
    block_on(async {
        let mut cluster = Cluster::start(2).await;
        let (owner, asking) = unanswered(&cluster).await;
        {
            let mut world = cluster.world.lock();
            let id = world.group_of(b"n");
            world.change(|map| map.groups.get_mut(&id).expect("it").lost = true);
        }
        cluster.kill(owner.0);
        let answers = asking.await.expect("no panic").expect("answered");
        assert!(
            matches!(&answers[..], [Answer::Error(code, _)] if !code.nothing_done()),
            "{answers:?}"
        );
    });
}

#[test]
fn a_node_that_comes_back_is_asked_again() {
    block_on(async {
        let mut cluster = Cluster::start(2).await;
        let client = cluster.client().await;
        client.put("k", "v").await.expect("put");
        let owner = cluster.world.lock().owner(b"k");
        let addr = cluster.addr(owner.0);
        cluster.kill(owner.0);
        let asking = {
            let client = client.clone();
            tokio::spawn(async move { client.get("k").await })
        };
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.serve(owner.0, &addr).await;
        let value = asking.await.expect("no panic").expect("answered");
        assert_eq!(value.as_deref(), Some(&b"v"[..]));
    });
}

/// Microseconds since 1970, an hour from now.
fn in_an_hour() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.expect("after 1970").as_micros() as u64 + 3_600_000_000
}

/// A client with a fast clock came, wrote, and was forgotten: its bucket takes nothing for new that lies
/// below its numbers. The others' first tries are then numbered above them, and hardly above.
#[test]
fn a_first_try_below_a_bucket_s_mark_is_asked_again_just_above_it() {
    block_on(async {
        let cluster = Cluster::start(3).await;
        let client = cluster.client().await;
        let (slot, mark) = (hash_slot(b"n"), in_an_hour());
        cluster.world.lock().marks.insert(slot, mark);
        let answers = client.execute(vec![incr("n"), incr("m")]).await;
        assert_eq!(answers.expect("answered"), [Answer::Int(1), Answer::Int(1)]);
        let highest = |world: &World| world.floors.iter().map(|(n, _)| *n).max();
        assert_eq!(highest(&cluster.world.lock()), Some(mark + 1), "no further");

        // Both are below it now, and keep their order.
        cluster.world.lock().marks.insert(slot, mark + 100);
        let answers = client.execute(vec![incr("n"), incr("n")]).await;
        assert_eq!(answers.expect("answered"), [Answer::Int(2), Answer::Int(3)]);
        assert_eq!(highest(&cluster.world.lock()), Some(mark + 102));

        // The first is below it, and the second, done before it could be asked again, is not.
        cluster.world.lock().marks.insert(slot, mark + 103);
        let answers = client.execute(vec![incr("n"), incr("n")]).await;
        let answers = answers.expect("answered");
        assert!(
            matches!(&answers[0], Answer::Error(code, _) if code.nothing_done()),
            "{answers:?}"
        );
        assert_eq!(answers[1], Answer::Int(4));
    });
}

/// Nobody knows whether the first try was done: to number it anew would be to do it twice.
#[test]
fn a_retry_that_is_forgotten_is_not_numbered_anew() {
    block_on(async {
        let cluster = Cluster::start(3).await;
        let (_, asking) = unanswered(&cluster).await;
        {
            let mut world = cluster.world.lock();
            world.done.clear();
            world.marks.insert(hash_slot(b"n"), in_an_hour());
            world.moods.clear();
        }
        let answers = asking.await.expect("no panic").expect("answered");
        assert!(
            matches!(answers[0], Answer::Error(ErrorCode::Forgotten, _)),
            "{answers:?}"
        );
        assert_eq!(cluster.world.lock().values[&b"n"[..]], "1");
    });
}

/// Regression: a region that was made a moment ago was "not there" at a node that had not heard of it.
#[test]
fn a_region_that_is_not_known_everywhere_yet_is_looked_for() {
    block_on(async {
        let cluster = Cluster::start(3).await;
        let client = cluster.client().await;
        let opening = {
            let client = client.clone();
            tokio::spawn(async move { client.region("r").await.map(|_| ()) })
        };
        tokio::time::sleep(Duration::from_millis(100)).await;
        cluster.world.lock().change(|map| {
            let mut pool = map.pools[&PoolId(1)].clone();
            (pool.id, pool.name, pool.groups) = (PoolId(2), "memory".into(), vec![]);
            let region = Region {
                id: RegionId(1),
                name: "r".into(),
                volume: None,
                size_bytes: 1,
                stretches: vec![],
            };
            let regions = vec![region];
            pool.kind = PoolKind::Memory { regions };
            map.pools.insert(pool.id, pool);
        });
        opening.await.expect("no panic").expect("found");
        let nobody = client.region("other").await.map(|_| ());
        let error = nobody.expect_err("nobody made it");
        assert!(error.to_string().contains("no region 'other'"), "{error}");
    });
}
