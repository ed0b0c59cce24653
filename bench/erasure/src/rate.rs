//! Several operations, measured in turns.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::buffers::Buffers;
use crate::{Plan, Set};

/// Times that the clock is not looked at, for what takes so little that looking would count.
const BATCH: usize = 16;

type Operation<'a> = Box<dyn FnMut(&mut Set<'_>) + 'a>;

/// Operations that read as many bytes.
pub(crate) struct Race<'a> {
    rounds: usize,
    round: Duration,
    bytes: usize,
    operations: Vec<Operation<'a>>,
}

impl<'a> Race<'a> {
    pub fn new(plan: &Plan, bytes: usize) -> Race<'a> {
        Race {
            rounds: plan.rounds,
            round: plan.round,
            bytes,
            operations: Vec::new(),
        }
    }

    pub fn add(&mut self, operation: impl FnMut(&mut Set<'_>) + 'a) {
        self.operations.push(Box::new(operation));
    }

    /// The rate of each, in gigabytes (10^9) a second; `ranges` says which buffers each takes, as
    /// [`Buffers::sets`] does.
    pub fn run(mut self, buffers: &mut Buffers, ranges: &[(usize, usize, usize)]) -> Vec<f64> {
        assert_eq!(self.operations.len(), ranges.len());
        let mut rates = vec![Vec::new(); ranges.len()];
        // Each goes on where the one before stopped: what is cold stays cold.
        let mut at = 0;
        // A round before the first finds what the others find: pages there, tables made.
        for round in 0..=self.rounds {
            for (index, operation) in self.operations.iter_mut().enumerate() {
                let (first, sources, outputs) = ranges[index];
                let mut sets = buffers.sets(first, sources, outputs);
                let rate = one(&mut sets, &mut at, operation, self.round, self.bytes);
                if round > 0 {
                    rates[index].push(rate);
                }
            }
        }
        rates.into_iter().map(median).collect()
    }
}

fn one(
    sets: &mut [Set<'_>],
    at: &mut usize,
    operation: &mut Operation<'_>,
    round: Duration,
    bytes: usize,
) -> f64 {
    let (begun, mut times) = (Instant::now(), 0usize);
    loop {
        for _ in 0..BATCH {
            operation(black_box(&mut sets[*at]));
            *at = if *at + 1 == sets.len() { 0 } else { *at + 1 };
        }
        times += BATCH;
        let elapsed = begun.elapsed();
        if elapsed >= round {
            return times as f64 * bytes as f64 / elapsed.as_secs_f64() / 1e9;
        }
    }
}

/// The rate of an operation in a second; the median of the rounds.
pub(crate) fn times_a_second(plan: &Plan, mut work: impl FnMut()) -> f64 {
    let rate = |_| {
        let (begun, mut times) = (Instant::now(), 0usize);
        loop {
            for _ in 0..BATCH {
                work();
            }
            times += BATCH;
            let elapsed = begun.elapsed();
            if elapsed >= plan.round {
                return times as f64 / elapsed.as_secs_f64();
            }
        }
    };
    median((0..plan.rounds).map(rate).collect())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
