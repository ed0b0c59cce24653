//! The demo's second act: a region of erasure-coded memory, read and written while two nodes die at once.
//!
//! Each worker has pages of its own and one operation under way.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use bytes::{Bytes, BytesMut};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use staves_cli_common::running::connect;
use staves_client::{Client, Region};
use tokio::runtime::Runtime;

use super::pages::{PAGE_BYTES, Page, put_page};

/// The region's name.
pub const NAME: &str = "demo";
/// The region's pages.
pub const PAGES: u32 = 8192;
/// Workers on it.
const WORKERS: u32 = 2;
/// Pages of one write while it is filled.
const RUN: u32 = 32;
/// The time that an operation may take.
const DEADLINE: Duration = Duration::from_secs(5);
/// Rest after a failure.
const REST: Duration = Duration::from_millis(5);
/// Wrong pages that are told one by one.
const EXAMPLES: usize = 5;

/// The counts of operations and of findings.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WorkCounts {
    /// Reads that were answered; each was checked.
    pub reads: u64,
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Operations that ended in an error, and were tried again or left open.
    pub errors: u64,
    /// Pages that did not hold what they must, at any time.
    pub wrong: u64,
    /// The first of them.
    #[serde(skip)]
    pub examples: Vec<String>,
}

struct RegionShared {
    doors: Vec<String>,
    stop: AtomicBool,
    filled: AtomicU64,
    longest_wait_us: AtomicU64,
    last_error: Mutex<Option<String>>,
}

impl RegionShared {
    fn failed(&self, what: &str, at: u64, error: &impl std::fmt::Display) {
        let told = format!("{what} at {at}: {error}");
        *self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(told);
    }
}

/// Workers on the region.
pub struct RegionLoad {
    shared: Arc<RegionShared>,
    runtime: Runtime,
    client: Client,
    region: Region,
    workers: Vec<JoinHandle<anyhow::Result<WorkCounts>>>,
}

impl RegionLoad {
    /// Makes the region in the pool, and starts workers that fill it and then read and write it.
    pub fn start(doors: Vec<String>, pool: &str) -> anyhow::Result<RegionLoad> {
        let (runtime, client) = connect(&doors, DEADLINE)?;
        let size = u64::from(PAGES) * PAGE_BYTES as u64;
        let region = runtime.block_on(client.create_region(pool, NAME, size));
        let region = region.context("cannot make the region")?;
        let shared = Arc::new(RegionShared {
            doors,
            stop: AtomicBool::new(false),
            filled: AtomicU64::new(0),
            longest_wait_us: AtomicU64::new(0),
            last_error: Mutex::new(None),
        });
        let start = |number| {
            let shared = shared.clone();
            std::thread::spawn(move || Worker::new(number, shared)?.run())
        };
        Ok(RegionLoad {
            runtime,
            client,
            region,
            workers: (0..WORKERS).map(start).collect(),
            shared: shared.clone(),
        })
    }

    /// Pages that have been written at least once.
    pub fn filled(&self) -> u64 {
        self.shared.filled.load(Ordering::SeqCst)
    }

    /// The last operation that failed, and why.
    pub fn last_error(&self) -> Option<String> {
        let last = self.shared.last_error.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The longest wait counts from here.
    pub fn begin_round(&self) {
        self.shared.longest_wait_us.store(0, Ordering::SeqCst);
    }

    /// The longest that an operation took since the round began, tries that failed included.
    pub fn longest_wait(&self) -> Duration {
        Duration::from_micros(self.shared.longest_wait_us.load(Ordering::SeqCst))
    }

    /// Returns whether a worker has ended before it was stopped.
    pub fn is_broken(&self) -> bool {
        self.workers.iter().any(JoinHandle::is_finished)
    }

    /// Nodes that hold data buckets of the region, by the newest map.
    pub fn data_nodes(&self) -> anyhow::Result<BTreeSet<u64>> {
        let stat = self.runtime.block_on(self.region.stat())?;
        let map = self.client.map();
        let groups = stat.groups.iter().filter_map(|id| map.groups.get(id));
        let members = groups.flat_map(|g| g.members.iter().take(g.m.into()).flatten());
        Ok(members.map(|member| member.id.node.0).collect())
    }

    /// Ends the load: each worker reads all its pages once more.
    pub fn stop(self) -> anyhow::Result<WorkCounts> {
        self.shared.stop.store(true, Ordering::SeqCst);
        let mut all = WorkCounts::default();
        for worker in self.workers {
            let done = worker.join().map_err(|_| anyhow!("a worker panicked"))??;
            all.reads += done.reads;
            all.writes += done.writes;
            all.errors += done.errors;
            all.wrong += done.wrong;
            all.examples.extend(done.examples);
        }
        all.examples.truncate(EXAMPLES);
        Ok(all)
    }
}

struct Worker {
    shared: Arc<RegionShared>,
    runtime: Runtime,
    region: Region,
    first: u32,
    pages: Vec<Page>,
    rng: SmallRng,
    done: WorkCounts,
}

impl Worker {
    fn new(number: u32, shared: Arc<RegionShared>) -> anyhow::Result<Worker> {
        let (runtime, client) = connect(&shared.doors, DEADLINE)?;
        let region = runtime.block_on(client.region(NAME));
        let each = PAGES / WORKERS;
        Ok(Worker {
            shared,
            region: region.context("cannot open the region")?,
            runtime,
            first: number * each,
            pages: vec![Page::default(); each as usize],
            rng: SmallRng::seed_from_u64(number.into()),
            done: WorkCounts::default(),
        })
    }

    fn run(mut self) -> anyhow::Result<WorkCounts> {
        let all = self.pages.len() as u32;
        for at in (0..all).step_by(RUN as usize) {
            let count = RUN.min(all - at);
            while !self.write(at, count) && !self.stopped() {
                std::thread::sleep(REST);
            }
            let filled = u64::from(count);
            self.shared.filled.fetch_add(filled, Ordering::SeqCst);
        }
        while !self.stopped() {
            let at = self.rng.random_range(0..all);
            let began = Instant::now();
            // The same page until it is answered: that is how long somebody waits for it.
            while !self.once(at) && !self.stopped() {
                std::thread::sleep(REST);
            }
            let waited = began.elapsed().as_micros() as u64;
            self.shared
                .longest_wait_us
                .fetch_max(waited, Ordering::SeqCst);
        }
        for at in 0..all {
            let until = Instant::now() + super::PATIENCE;
            while !self.read(at) {
                anyhow::ensure!(Instant::now() < until, "page {at} cannot be read");
                std::thread::sleep(REST);
            }
        }
        Ok(self.done)
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::SeqCst)
    }

    fn once(&mut self, at: u32) -> bool {
        match self.rng.random_bool(0.5) {
            true => self.read(at),
            false => self.write(at, 1),
        }
    }

    fn offset(&self, at: u32) -> u64 {
        u64::from(self.first + at) * PAGE_BYTES as u64
    }

    fn write(&mut self, at: u32, count: u32) -> bool {
        let mut bytes = BytesMut::with_capacity(count as usize * PAGE_BYTES);
        for at in at..at + count {
            let page = &mut self.pages[at as usize];
            page.newest += 1;
            put_page(&mut bytes, self.first + at, page.newest);
        }
        let offset = self.offset(at);
        let done = self
            .runtime
            .block_on(self.region.write(offset, bytes.freeze()));
        match done {
            Ok(()) => {
                for page in &mut self.pages[at as usize..][..count as usize] {
                    page.acknowledged = page.newest;
                }
                self.done.writes += 1;
            }
            Err(ref error) => {
                self.shared.failed("write", offset, error);
                self.done.errors += 1;
            }
        }
        done.is_ok()
    }

    fn read(&mut self, at: u32) -> bool {
        let read = self.region.read(self.offset(at), PAGE_BYTES as u64);
        match self.runtime.block_on(read) {
            Ok(bytes) => {
                self.check(at, &bytes);
                self.done.reads += 1;
                true
            }
            Err(error) => {
                self.shared.failed("read", self.offset(at), &error);
                self.done.errors += 1;
                false
            }
        }
    }

    fn check(&mut self, at: u32, bytes: &Bytes) {
        let found = self.pages[at as usize].judge(self.first + at, bytes);
        let Err(example) = found else { return };
        self.done.wrong += 1;
        if self.done.examples.len() < EXAMPLES {
            self.done.examples.push(example);
        }
    }
}
