//! The state that the connections of one thread share, and that of each.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::args::RunPlan;
use super::draw::KeyDraw;
use super::pace::{Pace, Window};
use super::tally::{RequestKind, Tally};

/// The work of one phase.
#[derive(Clone, Debug)]
pub struct PhaseJob {
    pub plan: RunPlan,
    /// Do this with every key once, instead of drawing by the plan. The first error ends it.
    pub sweep: Option<RequestKind>,
    pub value: Bytes,
    /// The longest time to connect, and to wait for an answer.
    pub deadline: Duration,
    pub seed: u64,
}

/// Of one thread.
pub struct ThreadState {
    pub job: Arc<PhaseJob>,
    pub window: Arc<Window>,
    pub tally: RefCell<Tally>,
    /// Operations answered since the beginning, by all threads: for progress, and beside CPU time.
    pub answered: Arc<AtomicU64>,
}

impl ThreadState {
    /// A request was answered as it should be.
    pub fn answered(&self, asked: &PendingRequest, misses: u64, at: Instant) {
        self.answered.fetch_add(asked.keys, Ordering::Relaxed);
        if self.window.counts(asked.since) {
            let took = at.saturating_duration_since(asked.since);
            let mut tally = self.tally.borrow_mut();
            tally.answered(asked.kind, asked.keys, misses, took, at);
        }
    }

    /// A request was refused.
    pub fn refused(&self, since: Instant, text: &str) {
        if self.window.counts(since) {
            self.fail(text);
        }
    }

    /// A request will not be answered any more. That counts also if it was sent before the window began: a
    /// server that has fallen silent must not go unnoticed for want of new requests.
    pub fn lost(&self, since: Instant, text: &str) {
        if Instant::now() >= self.window.start && since < self.window.end() {
            self.fail(text);
        }
    }

    fn fail(&self, text: &str) {
        self.tally.borrow_mut().failed(text);
        if self.job.sweep.is_some() {
            self.window.stop();
        }
    }
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub struct PendingRequest {
    pub kind: RequestKind,
    pub keys: u64,
    /// The start of its latency.
    pub since: Instant,
    /// The time of sending.
    pub sent: Instant,
}

/// Of one connection: which requests come next, and when.
pub struct RequestLane {
    pub pace: Pace,
    supply: Supply,
    batch: usize,
    keys: Vec<u64>,
}

enum Supply {
    /// These keys, each once.
    Sweep(RequestKind, Range<u64>),
    Draw {
        keys: KeyDraw,
        reads: u32,
        rng: Box<SmallRng>,
    },
}

impl RequestLane {
    pub fn new(job: &PhaseJob, index: u32, window: &Window) -> RequestLane {
        let plan = &job.plan;
        let supply = if let Some(kind) = job.sweep {
            let (index, lanes) = (u128::from(index), u128::from(plan.connections));
            let part = |index: u128| (u128::from(plan.keys) * index / lanes) as u64;
            Supply::Sweep(kind, part(index)..part(index + 1))
        } else {
            Supply::Draw {
                keys: KeyDraw::new(plan.draw, plan.keys),
                reads: plan.mix.reads,
                // Each connection its own sequence; odd, so that no two meet by a shift of one bit.
                rng: Box::new(SmallRng::seed_from_u64(
                    job.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(index),
                )),
            }
        };
        RequestLane {
            pace: Pace::new(plan.rate, window.zero, index, plan.connections),
            supply,
            batch: plan.batch as usize,
            keys: Vec::with_capacity(plan.batch as usize),
        }
    }

    /// The next request and its keys, if it is time for one.
    pub fn next(&mut self, now: Instant, end: Instant) -> Option<(PendingRequest, &[u64])> {
        if self.over(now, end) {
            return None;
        }
        let since = self.pace.take(now, end)?;
        self.keys.clear();
        let kind = match &mut self.supply {
            Supply::Sweep(kind, range) => {
                self.keys.extend(range.by_ref().take(self.batch));
                *kind
            }
            Supply::Draw { keys, reads, rng } => {
                let drawn = std::iter::repeat_with(|| keys.draw(rng));
                self.keys.extend(drawn.take(self.batch));
                match rng.random_range(0..100) < *reads {
                    true => RequestKind::Read,
                    false => RequestKind::Write,
                }
            }
        };
        let asked = PendingRequest {
            kind,
            keys: self.keys.len() as u64,
            since,
            sent: now,
        };
        Some((asked, &self.keys))
    }

    /// Returns whether there is nothing to send any more.
    pub fn over(&self, now: Instant, end: Instant) -> bool {
        let swept = matches!(&self.supply, Supply::Sweep(_, range) if range.is_empty());
        swept || self.pace.over(now, end)
    }
}

/// The handle that a thread's connections share.
pub type Common = Rc<ThreadState>;

#[cfg(test)]
mod tests {
    use super::super::args::Mix;
    use super::super::draw::Draw;
    use super::*;

    fn job(sweep: Option<RequestKind>, mix: Mix) -> PhaseJob {
        PhaseJob {
            plan: RunPlan {
                value_bytes: 8,
                mix,
                draw: Draw::Uniform,
                keys: 1000,
                connections: 7,
                pipeline: 1,
                batch: 3,
                rate: None,
            },
            sweep,
            value: Bytes::from_static(b"12345678"),
            deadline: Duration::from_secs(1),
            seed: 1,
        }
    }

    #[test]
    fn a_sweep_takes_each_key_once() {
        let job = job(
            Some(RequestKind::Delete),
            Mix {
                reads: 100,
                writes: 0,
            },
        );
        let window = Window::new(Instant::now(), Duration::ZERO, Duration::from_secs(60));
        let mut seen = vec![0; 1000];
        for index in 0..7 {
            let mut lane = RequestLane::new(&job, index, &window);
            while let Some((asked, keys)) = lane.next(window.zero, window.end()) {
                assert_eq!(
                    (asked.kind, asked.keys),
                    (RequestKind::Delete, keys.len() as u64)
                );
                assert!(keys.len() <= 3);
                keys.iter().for_each(|key| seen[*key as usize] += 1);
            }
            assert!(lane.over(window.zero, window.end()));
        }
        assert!(seen.iter().all(|count| *count == 1), "{seen:?}");
    }

    #[test]
    fn the_mix_is_what_was_asked_for() {
        for reads in [0, 20, 80, 100] {
            let job = job(
                None,
                Mix {
                    reads,
                    writes: 100 - reads,
                },
            );
            let window = Window::new(Instant::now(), Duration::ZERO, Duration::from_secs(60));
            let mut lane = RequestLane::new(&job, 3, &window);
            let kinds = std::iter::from_fn(|| {
                let (asked, keys) = lane.next(window.zero, window.end())?;
                assert_eq!(keys.len(), 3, "a whole batch");
                Some(asked.kind)
            });
            let read = kinds
                .take(10_000)
                .filter(|kind| *kind == RequestKind::Read)
                .count() as i64;
            // Five standard deviations of 10,000 draws are 250 at most.
            let off = (read - i64::from(reads) * 100).abs();
            assert!(
                off <= if reads % 100 == 0 { 0 } else { 250 },
                "{reads} %: {read}"
            );
        }
    }
}
