//! Nodes die under load (rows D1, D4, H7): no acknowledged write is lost, and writes go on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use staves_directory::HANG;
use staves_model::NodeState;
use staves_net::{Connection, Identity, Who};
use staves_testkit::cluster::TestCluster;
use staves_testkit::resp::{Reply, RespClient};
use staves_testkit::{SetAtEnd, block_on, wait_until};

/// The bound for an idle machine is two seconds; tests share theirs.
const RESUMED_WITHIN: Duration = Duration::from_secs(6);

/// The writes of one writer.
#[derive(Default)]
pub struct Diary {
    /// The last acknowledged value of each key, and those tried after it whose outcome is not known.
    written: BTreeMap<String, (u64, Vec<u64>)>,
    /// Of the writer's counter: acknowledged increments, and those whose outcome is not known.
    pub counted: (i64, i64),
    pub longest: Duration,
}

/// Writes numbered values and counts, one command at a time, until told to stop. Goes on through the
/// next door when one fails.
pub fn write_through(name: &str, next: impl Fn(usize) -> SocketAddr, stop: &AtomicBool) -> Diary {
    let mut diary = Diary::default();
    let mut doors_tried = 0;
    let mut client = None;
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let Some(open) = &mut client else {
            client = RespClient::try_connect(next(doors_tried)).ok();
            doors_tried += 1;
            std::thread::sleep(Duration::from_millis(if client.is_some() { 0 } else { 20 }));
            continue;
        };
        number += 1;
        let key = format!("w{name}:{}", number % 101);
        let begun = Instant::now();
        let set = open.try_ask(&format!("SET {key} {number}"));
        let entry = diary.written.entry(key).or_default();
        match &set {
            Ok(Reply::Ok) => *entry = (number, Vec::new()),
            _ => entry.1.push(number),
        }
        if set.is_err() {
            client = None;
            continue;
        }
        let count = open.try_ask(&format!("INCR count{name}"));
        match &count {
            Ok(Reply::Int(_)) => diary.counted.0 += 1,
            _ => diary.counted.1 += 1,
        }
        if count.is_err() {
            client = None;
        }
        diary.longest = diary.longest.max(begun.elapsed());
    }
    diary
}

pub fn check(diaries: &[(String, Diary)], door: SocketAddr) {
    let mut client = RespClient::connect(door);
    for (name, diary) in diaries {
        for (key, (acknowledged, unknown)) in &diary.written {
            let got = match client.ask(&format!("GET {key}")) {
                Reply::Bulk(text) => String::from_utf8_lossy(&text).parse().expect("a number"),
                Reply::Nil => 0,
                other => panic!("GET {key}: {other:?}"),
            };
            assert!(
                got == *acknowledged || unknown.contains(&got),
                "{key} is {got}, and {acknowledged} was acknowledged"
            );
        }
        let (done, unknown) = diary.counted;
        let count = match client.ask(&format!("INCRBY count{name} 0")) {
            Reply::Int(count) => count,
            other => panic!("{other:?}"),
        };
        assert!(
            (done..=done + unknown).contains(&count),
            "{done} increments were acknowledged, {unknown} are uncertain, the counter is at {count}"
        );
    }
}

/// Load through all nodes but the victim, which is killed meanwhile.
fn kill_under_load(cluster: &mut TestCluster, victim: usize) -> Vec<(String, Diary)> {
    let doors: Vec<SocketAddr> = (0..cluster.nodes.len())
        .filter(|c| *c != victim && !cluster.nodes[*c].is_dead())
        .map(|c| cluster.nodes[c].addresses.resp)
        .collect();
    let stop = AtomicBool::new(false);
    let diaries: Vec<(String, Diary)> = std::thread::scope(|scope| {
        let stop = &stop;
        let ends = SetAtEnd(stop);
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let door = doors[writer % doors.len()];
                // A cluster may be attacked twice: each time with keys of its own.
                let name = format!("{victim}-{writer}");
                scope.spawn(move || {
                    let diary = write_through(&name, |_| door, stop);
                    (name, diary)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(700));
        cluster.nodes[victim].kill();
        std::thread::sleep(Duration::from_secs(4));
        drop(ends);
        writers
            .into_iter()
            .map(|w| w.join().expect("a writer"))
            .collect()
    });
    let longest = diaries
        .iter()
        .map(|(_, d)| d.longest)
        .max()
        .unwrap_or_default();
    println!("the longest that a writer waited: {longest:?}");
    assert!(longest < RESUMED_WITHIN, "{longest:?}");
    check(&diaries, doors[0]);
    diaries
}

/// Rows D4 and H7, and D1: through any node that lives, the replacement is reached.
#[test]
fn d4_h7_a_primary_is_killed_under_load_and_no_acknowledged_write_is_lost() {
    let mut cluster = TestCluster::start(3);
    let leader = cluster.leader();
    let victim = (0..3).find(|c| *c != leader).expect("two others");
    assert!(cluster.nodes[victim].data_buckets() > 0);
    let diaries = kill_under_load(&mut cluster, victim);
    let unknown: i64 = diaries.iter().map(|(_, d)| d.counted.1).sum();
    assert_eq!(
        unknown, 0,
        "a retry finds out what became of the first try (row D1)"
    );
}

#[test]
fn h7_the_node_that_leads_the_directory_is_killed_under_load() {
    let mut cluster = TestCluster::start(3);
    let victim = cluster.leader();
    kill_under_load(&mut cluster, victim);
}

#[test]
fn d4_two_nodes_of_five_are_killed_in_turn() {
    let mut cluster = TestCluster::start(5);
    for _ in 0..2 {
        let victim = cluster.leader();
        kill_under_load(&mut cluster, victim);
        cluster.settle_again();
    }
}

/// A pipeline whose bucket is taken over in the middle is answered in order, and each of its increments
/// takes effect once.
#[test]
fn d1_a_pipeline_across_a_takeover_keeps_its_order() {
    let mut cluster = TestCluster::start(3);
    let owner = cluster.nodes[0].owner("n");
    let victim = cluster.position(owner);
    let door = cluster.nodes[(victim + 1) % 3].addresses.resp;
    let writer = std::thread::spawn(move || {
        let mut client = RespClient::connect(door);
        let lines: Vec<String> = (0..50).map(|_| "INCR n".to_owned()).collect();
        let begun = Instant::now();
        let mut answers = Vec::new();
        while begun.elapsed() < Duration::from_secs(4) {
            answers.extend(client.pipeline(&lines));
        }
        answers
    });
    std::thread::sleep(Duration::from_millis(500));
    cluster.nodes[victim].kill();
    let answers = writer.join().expect("the writer");
    for (index, answer) in answers.iter().enumerate() {
        assert_eq!(*answer, Reply::Int(index as i64 + 1));
    }
}

/// Row H7: a node that stood still while it was replaced must not answer from what it knew before.
#[test]
fn h7_a_paused_node_is_replaced_and_fenced() {
    let cluster = TestCluster::start(3);
    let owner = cluster.position(cluster.nodes[0].owner("k"));
    let other = (owner + 1) % 3;
    let (mut slow, mut quick) = (cluster.nodes[owner].client(), cluster.nodes[other].client());
    assert_eq!(slow.ask("SET k old"), Reply::Ok);
    assert_eq!(slow.ask("GET k"), Reply::text("old"));

    let pause = Duration::from_secs(8);
    let begun = Instant::now();
    cluster.nodes[owner].pause(pause);
    // These lie in its sockets until it goes on.
    let reader = std::thread::spawn(move || {
        let read = slow.ask("GET k");
        (slow, read)
    });
    assert_eq!(quick.ask("SET k new"), Reply::Ok);
    assert!(begun.elapsed() < pause, "while it stood still");
    let (mut slow, read) = reader.join().expect("the reader");
    assert!(begun.elapsed() >= pause);
    assert_eq!(read, Reply::text("new"));
    assert_eq!(slow.ask("SET k newer"), Reply::Ok);
    assert_eq!(quick.ask("GET k"), Reply::text("newer"));
}

/// A node whose work is held up, by too much of it or by other programs, is slow and not dead: its directory has threads and
/// connections of its own.
#[test]
fn h7_a_node_that_is_held_up_is_not_taken_for_dead() {
    let cluster = TestCluster::start(3);
    let victim = cluster.position(cluster.nodes[0].owner("k"));
    let (id, other) = (cluster.nodes[victim].id, (victim + 1) % 3);
    let mut client = cluster.nodes[other].client();
    assert_eq!(client.ask("SET k old"), Reply::Ok);
    let life = cluster.nodes[other].map().nodes[&id].incarnation;
    let begun = Instant::now();
    // Four times as long as a silence may last, and shorter than what counts as hanging.
    let held = Duration::from_millis(1400);
    assert!(held < HANG - Duration::from_secs(1));
    cluster.nodes[victim].hang(held);
    // Also who connects now for the first time is answered.
    let native = cluster.nodes[victim].addresses.native.to_string();
    block_on(async {
        let stranger = Identity::node(Who::default()).for_directory();
        let options = staves_net::Options::default();
        Connection::open(&native, &stranger, &options)
            .await
            .expect("it is there");
    });
    assert!(begun.elapsed() < held, "while it was held up");
    while begun.elapsed() < held {
        let map = cluster.nodes[other].map();
        assert_eq!(
            map.nodes[&id].state,
            NodeState::Up,
            "after {:?}",
            begun.elapsed()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(client.ask("SET k new"), Reply::Ok);
    let map = cluster.nodes[other].map();
    assert_eq!(
        (map.nodes[&id].state, map.nodes[&id].incarnation),
        (NodeState::Up, life)
    );
}

/// A node that does nothing any more is replaced, though its directory would still answer, and lead.
#[test]
fn h7_a_node_that_hangs_is_replaced() {
    let cluster = TestCluster::start(3);
    let leader = cluster.leader();
    let hangs = |victim: usize| {
        let (id, other) = (cluster.nodes[victim].id, (victim + 1) % 3);
        let mut keys = (0..).map(|i| format!("k{i}"));
        let key = keys
            .find(|key| cluster.nodes[other].owner(key) == id)
            .expect("it has buckets");
        let mut client = cluster.nodes[other].client();
        assert_eq!(client.ask(&format!("SET {key} old")), Reply::Ok);
        let hang = Duration::from_secs(25);
        let begun = Instant::now();
        cluster.nodes[victim].hang(hang);
        wait_until("another answers for the key", || {
            client.ask(&format!("SET {key} new")) == Reply::Ok
        });
        assert!(begun.elapsed() < hang, "before it goes on");
        assert_ne!(cluster.nodes[other].owner(&key), id);
        wait_until("it is back", || {
            cluster.nodes[other].map().nodes[&id].state == NodeState::Up
        });
        cluster.settle_again();
    };
    hangs((leader + 1) % 3);
    hangs(cluster.leader());
}
