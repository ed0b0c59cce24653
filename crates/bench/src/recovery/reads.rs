//! Reads beside a recovery: half of them of pages that are not rebuilt yet.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use staves_cli_common::running::connect;
use staves_client::Region;
use staves_model::{CHUNK_BYTES, GroupId, MemberSlot, PAGE_BYTES, Region as Entry};
use tokio::task::LocalSet;

use super::super::histogram::Histogram;
use super::{PATIENCE, REGION};

/// Bytes of one read, as in the paper.
const READ_BYTES: u64 = 512;
/// Callers beside a recovery.
const CALLERS: u32 = 8;

/// Offsets of pages.
pub struct Places {
    /// In lost data buckets. They are rebuilt from the first to the last and read from the last, so that
    /// what is read is not there yet as long as possible.
    lost: Vec<u64>,
    /// In others.
    there: Vec<u64>,
}

impl Places {
    pub fn of(region: &Entry, m: u8, is_lost: impl Fn(&GroupId, MemberSlot) -> bool) -> Places {
        let (mut lost, mut there) = (Vec::new(), Vec::new());
        for offset in (0..region.size_bytes).step_by(CHUNK_BYTES as usize) {
            let Some(place) = region.place(offset, m) else {
                continue;
            };
            let end = (offset + CHUNK_BYTES).min(region.size_bytes);
            let pages = (offset..end).step_by(PAGE_BYTES);
            let pages = pages.filter(|page| page + READ_BYTES <= region.size_bytes);
            match is_lost(&place.group, place.slot) {
                true => lost.extend(pages),
                false => there.extend(pages),
            }
        }
        Places { lost, there }
    }

    fn draw(&mut self, missing: bool, rng: &mut SmallRng) -> Option<u64> {
        match missing {
            true => self.lost.pop(),
            false if self.there.is_empty() => None,
            false => Some(self.there[rng.random_range(0..self.there.len())]),
        }
    }
}

/// The results of reads.
#[derive(Clone, Serialize)]
pub struct ReadFigures {
    pub answered: u64,
    pub errors: u64,
    pub per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

/// One read: when it began, how long it took, whether it was answered.
type ReadSamples = Vec<(Instant, Duration, bool)>;

fn figures(seen: &[(Instant, Duration, bool)], seconds: f64) -> ReadFigures {
    let mut latencies = Histogram::default();
    for (_, took, _) in seen.iter().filter(|(.., answered)| *answered) {
        latencies.add(took.as_nanos() as u64);
    }
    let us = |ns: u64| ns as f64 / 1000.0;
    ReadFigures {
        answered: latencies.count(),
        errors: seen.len() as u64 - latencies.count(),
        per_second: latencies.count() as f64 / seconds.max(1e-6),
        p50_us: us(latencies.quantile(0.5)),
        p99_us: us(latencies.quantile(0.99)),
        max_us: us(latencies.max()),
    }
}

/// Reads that go on until they are stopped.
pub struct Reads {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<ReadSamples>>,
}

/// Reads that have been stopped.
pub struct StoppedReads(ReadSamples);

impl StoppedReads {
    /// Of the reads that began in this time.
    pub fn figures(&self, from: Instant, until: Instant) -> ReadFigures {
        let began_in_it = |(begun, ..): &&(Instant, Duration, bool)| (from..until).contains(begun);
        let seen: ReadSamples = self.0.iter().filter(began_in_it).copied().collect();
        figures(&seen, (until - from).as_secs_f64())
    }
}

impl Reads {
    /// So many a second, every second one of a page of a lost bucket.
    pub fn start(doors: Vec<String>, places: Places, per_second: u32) -> anyhow::Result<Reads> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let (runtime, client) = connect(&doors, PATIENCE)?;
            let region = runtime.block_on(client.region(REGION))?;
            let pause = Duration::from_secs_f64(f64::from(CALLERS) / f64::from(per_second));
            let shared = Rc::new(RefCell::new((places, ReadSamples::new())));
            let local = LocalSet::new();
            for caller in 0..CALLERS {
                let (region, shared, stopped) = (region.clone(), shared.clone(), stopped.clone());
                local.spawn_local(async move {
                    let mut rng = SmallRng::seed_from_u64(caller.into());
                    let mut due = tokio::time::interval(pause);
                    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                    let mut missing = caller % 2 == 0;
                    while !stopped.load(Ordering::Relaxed) {
                        due.tick().await;
                        let place = shared.borrow_mut().0.draw(missing, &mut rng);
                        if let Some(offset) = place {
                            let seen = read(&region, offset).await;
                            shared.borrow_mut().1.push(seen);
                        }
                        missing = !missing;
                    }
                });
            }
            runtime.block_on(local);
            Ok(std::mem::take(&mut shared.borrow_mut().1))
        });
        Ok(Reads { stop, thread })
    }

    pub fn stop(self) -> anyhow::Result<StoppedReads> {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self
            .thread
            .join()
            .map_err(|_| anyhow!("a thread of the bench has failed"))??;
        Ok(StoppedReads(seen))
    }

    /// Reads so many pages, each once, as fast as the callers can; returns the places that are left.
    pub fn each(
        doors: Vec<String>,
        places: Places,
        missing: bool,
        callers: u32,
        count: u32,
    ) -> anyhow::Result<(ReadFigures, Places)> {
        let (runtime, client) = connect(&doors, PATIENCE)?;
        let region = runtime.block_on(client.region(REGION))?;
        let shared = Rc::new(RefCell::new((places, ReadSamples::new())));
        let left = Rc::new(RefCell::new(count));
        let local = LocalSet::new();
        let begun = Instant::now();
        for caller in 0..callers {
            let (region, shared, left) = (region.clone(), shared.clone(), left.clone());
            local.spawn_local(async move {
                let mut rng = SmallRng::seed_from_u64(caller.into());
                while left.borrow().checked_sub(1).is_some() {
                    *left.borrow_mut() -= 1;
                    let Some(offset) = shared.borrow_mut().0.draw(missing, &mut rng) else {
                        return;
                    };
                    let seen = read(&region, offset).await;
                    shared.borrow_mut().1.push(seen);
                }
            });
        }
        runtime.block_on(local);
        let (places, seen) = shared.replace((
            Places {
                lost: Vec::new(),
                there: Vec::new(),
            },
            ReadSamples::new(),
        ));
        Ok((figures(&seen, begun.elapsed().as_secs_f64()), places))
    }
}

async fn read(region: &Region, offset: u64) -> (Instant, Duration, bool) {
    let begun = Instant::now();
    let answered = region.read(offset, READ_BYTES).await.is_ok();
    (begun, begun.elapsed(), answered)
}
