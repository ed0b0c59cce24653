//! Lost, doubled and reordered messages, members that come and go, and too little memory: no
//! acknowledged write is lost, and index and pages agree at every member after every tick.

use std::collections::BTreeMap;

use staves_wire::cache::Op;
use staves_wire::service::Answer;

use crate::cluster::{Cluster, bytes, set, small_options};

/// One writer per key: what it may hold now, and the write under way.
#[derive(Default)]
struct Key {
    may_be: Vec<Option<Vec<u8>>>,
    under_way: Option<(u64, Option<Vec<u8>>)>,
}

struct Run {
    cluster: Cluster,
    keys: BTreeMap<Vec<u8>, Key>,
    writes: u64,
    acknowledged: u64,
}

impl Run {
    fn write_something(&mut self) {
        let cluster = &mut self.cluster;
        let key = format!("key-{}", cluster.random(60)).into_bytes();
        let state = self.keys.entry(key.clone()).or_insert_with(|| Key {
            may_be: vec![None],
            under_way: None,
        });
        if state.under_way.is_some() {
            return;
        }
        self.writes += 1;
        let len = match cluster.random(10) {
            0 => cluster.random(60_000),
            1..4 => cluster.random(8000),
            _ => cluster.random(600),
        };
        let value = (cluster.random(5) > 0).then(|| bytes(self.writes, len as usize));
        let request = Some(self.writes);
        let token = match &value {
            Some(value) => cluster.submit(request, &set(&key, value)),
            None => cluster.submit(request, &Op::Del { key: &key }),
        };
        state.under_way = Some((token, value));
    }

    fn collect(&mut self) {
        for state in self.keys.values_mut() {
            let Some((token, value)) = state.under_way.take() else {
                continue;
            };
            match self.cluster.answers.remove(&token) {
                None => state.under_way = Some((token, value)),
                Some(Ok(Answer::Error(_, text))) => assert!(text.starts_with("OOM"), "{text}"),
                Some(Ok(_)) => {
                    state.may_be = vec![value];
                    self.acknowledged += 1;
                }
                Some(Err(_)) => state.may_be.push(value),
            }
        }
    }

    fn tick(&mut self) {
        for _ in 0..self.cluster.random(6) {
            self.write_something();
        }
        self.cluster.tick();
        self.collect();
        self.cluster.check();
    }

    /// The next members: some of the present ones (the data bucket may go), and perhaps others.
    fn next_members(&mut self, now: &[usize]) -> Vec<usize> {
        let stay = now[self.cluster.random(now.len() as u64) as usize];
        let mut next = vec![stay];
        for node in 0..4 {
            if node != stay && next.len() < 3 && self.cluster.random(3) > 0 {
                next.push(node);
            }
        }
        next
    }
}

fn run(seed: u64) {
    let group = staves_group::Options {
        log_bytes_max: 300 << 10,
        fetch_pages: 5,
        fetch_window: 2,
        ..Default::default()
    };
    let mut run = Run {
        cluster: Cluster::with(2, 4, 14, small_options(), group),
        keys: BTreeMap::new(),
        writes: 0,
        acknowledged: 0,
    };
    run.cluster.weather = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut members = vec![0, 1, 2];
    for _ in 0..6 {
        let next = run.next_members(&members);
        run.cluster.change(&next);
        members = next;
        for _ in 0..30 {
            run.tick();
        }
        run.cluster.settle();
        run.collect();
        run.cluster.check();
    }
    // Heal: everything under way ends, and what is there is what was acknowledged.
    run.cluster.weather = 0;
    run.cluster.ticks(100);
    run.collect();
    run.cluster.check();
    assert!(
        run.acknowledged > 50,
        "seed {seed}: {} writes acknowledged",
        run.acknowledged
    );
    for (key, state) in std::mem::take(&mut run.keys) {
        assert!(
            state.under_way.is_none(),
            "seed {seed}: a write never ended"
        );
        let value = run.cluster.get(&key);
        let name = String::from_utf8_lossy(&key).into_owned();
        assert!(
            state.may_be.contains(&value),
            "seed {seed}: {name} has a value that nobody wrote last"
        );
    }
}

#[test]
fn acknowledged_writes_survive_weather_and_changes() {
    // A seed that fails can be put here alone.
    for seed in 1..=20 {
        run(seed);
    }
}
