//! One trouble after the other, at random, under load that never stops; then every acknowledged write is
//! looked for. Two rounds by default; `STAVES_SOAK_ROUNDS` and `STAVES_SOAK_SEED` ask for others.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use staves_model::Change;
use staves_wire::Message;
use staves_wire::admin::NodeTarget;

use crate::failover::{Diary, check, write_through};
use staves_testkit::cluster::{TestCluster, TestNode, config};
use staves_testkit::{SetAtEnd, wait_until};

const NODES: usize = 4;
const WRITERS: usize = 4;

fn asked(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|t| t.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn d1_d4_d6_x3_x5_troubles_in_turn_lose_nothing() {
    let seed = asked("STAVES_SOAK_SEED", rand::rng().random());
    let rounds = asked("STAVES_SOAK_ROUNDS", 2);
    println!("STAVES_SOAK_SEED={seed} STAVES_SOAK_ROUNDS={rounds}");
    let mut random = SmallRng::seed_from_u64(seed);
    let mut cluster = TestCluster::start(NODES);
    let doors = Mutex::new(cluster.doors());
    let stop = AtomicBool::new(false);
    let diaries: Vec<(String, Diary)> = std::thread::scope(|scope| {
        let (stop, doors) = (&stop, &doors);
        let ends = SetAtEnd(stop);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn(move || {
                    let name = format!("soak{writer}");
                    let next = |attempt: usize| {
                        let doors = doors.lock().expect("no writer panicked");
                        doors[(writer + attempt) % doors.len()]
                    };
                    let diary = write_through(&name, next, stop);
                    (name, diary)
                })
            })
            .collect();
        for round in 0..rounds {
            std::thread::sleep(Duration::from_millis(300));
            let victim = random.random_range(0..NODES);
            let what = trouble(&mut cluster, victim, &mut random);
            *doors.lock().expect("no writer panicked") = cluster.doors();
            let settled = cluster.settle();
            println!("round {round}: node {victim} {what}; whole again after {settled:?}");
        }
        drop(ends);
        writers
            .into_iter()
            .map(|w| w.join().expect("a writer"))
            .collect()
    });
    let (done, unknown) = diaries.iter().fold((0, 0), |(done, unknown), (_, d)| {
        (done + d.counted.0, unknown + d.counted.1)
    });
    let longest = diaries.iter().map(|(_, d)| d.longest).max();
    println!("{done} increments acknowledged, {unknown} uncertain, the longest wait {longest:?}");
    check(&diaries, cluster.nodes[0].addresses.resp);
}

fn trouble(cluster: &mut TestCluster, victim: usize, random: &mut SmallRng) -> &'static str {
    let other = (victim + 1) % NODES;
    let node = cluster.nodes[victim].id;
    match random.random_range(0..5) {
        0 => {
            cluster.nodes[victim].kill();
            std::thread::sleep(Duration::from_millis(random.random_range(0..2500)));
            restart(cluster, victim);
            "was killed and came back"
        }
        1 => {
            cluster.nodes[victim].leave();
            restart(cluster, victim);
            "left and came back"
        }
        2 => {
            let time = Duration::from_millis(random.random_range(100..3000));
            cluster.nodes[victim].pause(time);
            std::thread::sleep(time);
            "stood still"
        }
        3 => {
            let target = NodeTarget { node };
            cluster.nodes[other].ask(&Message::NodeDrain(target));
            wait_until("it serves nothing", || {
                cluster.nodes[victim].data_buckets() == 0
            });
            cluster.nodes[other].ask(&Message::NodeResume(target));
            "was drained and resumed"
        }
        _ => {
            for scheme in ["1+1", "1+0", "1+2"] {
                let change = Change::SetPool {
                    name: "cache".into(),
                    scheme: Some(scheme.parse().expect("a scheme")),
                    node_budget_bytes: None,
                };
                cluster.nodes[other].propose(&change).expect("it is taken");
                cluster.settle();
            }
            "saw the copies change"
        }
    }
}

fn restart(cluster: &mut TestCluster, victim: usize) {
    let join = &cluster.nodes[(victim + 1) % NODES];
    let config = config(Some(&cluster.folders[victim]), &[join]);
    cluster.nodes[victim] = TestNode::start(config);
}
