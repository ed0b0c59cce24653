//! The client of the demo's volume: it writes, connects to another node when its own is gone, and checks all pages at the end.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use bytes::BytesMut;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use staves_testkit::nbd::NbdClient;

use super::NAME;
use crate::PATIENCE;
use crate::pages::{PAGE_BYTES, Page, put_page};

/// Groups of the volume, and bytes of the volume that each of them has.
pub const GROUPS: u32 = 4;
pub const GROUP_BYTES: u64 = 64 << 20;
/// Pages that are written, as many at the beginning of each group.
pub const PAGES: u32 = 2048;
const GROUP_PAGES: u32 = PAGES / GROUPS;
/// Pages of one request while the volume is filled and checked.
const RUN: u32 = 32;
/// Rest after a failure.
const REST: Duration = Duration::from_millis(5);
/// Wrong pages that are told one by one.
const EXAMPLES: usize = 5;

/// The counts of writes and of findings.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VolumeCounts {
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Writes that were cut off or answered with an error.
    pub unknown: u64,
    /// Pages that were read after the power cut.
    pub checked: u64,
    /// Of these, such that did not hold what they must.
    pub wrong: u64,
    /// The first of them.
    #[serde(skip)]
    pub examples: Vec<String>,
}

/// The place of a page in the volume.
fn offset(page: u32) -> u64 {
    let within = u64::from(page % GROUP_PAGES) * PAGE_BYTES as u64;
    u64::from(page / GROUP_PAGES) * GROUP_BYTES + within
}

struct VolumeLoadShared {
    doors: Vec<SocketAddr>,
    stop: AtomicBool,
    filled: AtomicU64,
    /// The first acknowledgement of each connection.
    firsts: Mutex<Vec<Instant>>,
}

/// The client of the volume, at work.
pub struct VolumeLoad {
    shared: Arc<VolumeLoadShared>,
    writer: JoinHandle<BlockWriter>,
}

impl VolumeLoad {
    /// Starts it at the first of these doors.
    pub fn start(doors: Vec<SocketAddr>) -> VolumeLoad {
        let shared = Arc::new(VolumeLoadShared {
            doors,
            stop: AtomicBool::new(false),
            filled: AtomicU64::new(0),
            firsts: Mutex::new(Vec::new()),
        });
        let writer = BlockWriter {
            shared: shared.clone(),
            door: 0,
            connection: None,
            is_new: true,
            pages: vec![Page::default(); PAGES as usize],
            done: VolumeCounts::default(),
        };
        VolumeLoad {
            shared,
            writer: std::thread::spawn(move || writer.run()),
        }
    }

    /// Pages that have been written at least once.
    pub fn filled(&self) -> u64 {
        self.shared.filled.load(Ordering::SeqCst)
    }

    /// Connections by which a write was acknowledged.
    pub fn connections(&self) -> usize {
        let firsts = self.shared.firsts.lock();
        firsts.unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The first acknowledgement of the connection after so many.
    pub fn first_of(&self, connection: usize) -> Option<Instant> {
        let firsts = self.shared.firsts.lock();
        let firsts = firsts.unwrap_or_else(PoisonError::into_inner);
        firsts.get(connection).copied()
    }

    /// Ends it, after the write that it is at: what pages may hold, and the counts.
    pub fn stop(self) -> anyhow::Result<(Vec<Page>, VolumeCounts)> {
        self.shared.stop.store(true, Ordering::SeqCst);
        let writer = self.writer.join();
        let writer = writer.map_err(|_| anyhow!("the volume's writer panicked"))?;
        Ok((writer.pages, writer.done))
    }
}

struct BlockWriter {
    shared: Arc<VolumeLoadShared>,
    door: usize,
    connection: Option<NbdClient>,
    /// No write was acknowledged by this connection yet.
    is_new: bool,
    pages: Vec<Page>,
    done: VolumeCounts,
}

impl BlockWriter {
    fn run(mut self) -> BlockWriter {
        for page in (0..PAGES).step_by(RUN as usize) {
            while !self.stopped() && !self.write(page, RUN) {}
            let filled = u64::from(page + RUN);
            self.shared.filled.store(filled, Ordering::SeqCst);
        }
        let mut random = SmallRng::seed_from_u64(0);
        while !self.stopped() {
            self.write(random.random_range(0..PAGES), 1);
        }
        self
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::SeqCst)
    }

    /// Writes the next version of pages; false if that was not acknowledged, or there is no connection.
    fn write(&mut self, page: u32, count: u32) -> bool {
        let Some(mut connection) = self.connection.take().or_else(|| self.connect()) else {
            return false;
        };
        let range = page as usize..(page + count) as usize;
        let mut bytes = BytesMut::with_capacity(count as usize * PAGE_BYTES);
        for (number, page) in (page..).zip(&mut self.pages[range.clone()]) {
            page.newest += 1;
            put_page(&mut bytes, number, page.newest);
        }
        if connection.write(offset(page), &bytes).is_err() {
            self.done.unknown += 1;
            self.door += 1;
            return false;
        }
        self.connection = Some(connection);
        self.done.writes += 1;
        for page in &mut self.pages[range] {
            page.acknowledged = page.newest;
        }
        if std::mem::take(&mut self.is_new) {
            let firsts = self.shared.firsts.lock();
            let mut firsts = firsts.unwrap_or_else(PoisonError::into_inner);
            firsts.push(Instant::now());
        }
        true
    }

    fn connect(&mut self) -> Option<NbdClient> {
        let doors = &self.shared.doors;
        let connected = NbdClient::connect(doors[self.door % doors.len()], NAME).ok();
        self.is_new = true;
        if connected.is_none() {
            self.door += 1;
            std::thread::sleep(REST);
        }
        connected
    }
}

/// The reader after the power cut, which tries every door until one answers.
pub struct BlockReader<'a> {
    doors: &'a [SocketAddr],
    door: usize,
    connection: Option<NbdClient>,
    look_up: &'a dyn Fn() -> anyhow::Result<()>,
}

impl<'a> BlockReader<'a> {
    /// Begins at the first of these doors. `look_up` ends it with an error.
    pub fn new(
        doors: &'a [SocketAddr],
        look_up: &'a dyn Fn() -> anyhow::Result<()>,
    ) -> BlockReader<'a> {
        BlockReader {
            doors,
            door: 0,
            connection: None,
            look_up,
        }
    }

    /// Repeats a request, by other doors if need be, until it succeeds.
    fn until_done<T>(
        &mut self,
        what: &str,
        request: impl Fn(&mut NbdClient) -> Result<T, String>,
    ) -> anyhow::Result<T> {
        let until = Instant::now() + PATIENCE;
        loop {
            (self.look_up)()?;
            let address = self.doors[self.door % self.doors.len()];
            let connection = self.connection.take();
            let connection = connection.map_or_else(|| NbdClient::connect(address, NAME), Ok);
            let answer = connection.and_then(|mut open| {
                let answer = request(&mut open);
                self.connection = answer.is_ok().then_some(open);
                answer
            });
            match answer {
                Ok(done) => return Ok(done),
                Err(why) if Instant::now() >= until => bail!("{what}: {why}"),
                Err(_) => self.door += 1,
            }
            std::thread::sleep(REST);
        }
    }

    /// Reads pages from here on.
    fn read(&mut self, page: u32) -> anyhow::Result<Vec<u8>> {
        let what = format!("page {page} of the volume cannot be read");
        self.until_done(&what, |open| {
            let read = open.read(offset(page), RUN as usize * PAGE_BYTES);
            read.map_err(|error| format!("{error:?}"))
        })
    }

    /// Reads and compares all pages; the time of the first answer.
    pub fn check(
        &mut self,
        pages: &mut [Page],
        done: &mut VolumeCounts,
    ) -> anyhow::Result<Instant> {
        let mut first = None;
        for at in (0..PAGES).step_by(RUN as usize) {
            let read = self.read(at)?;
            first.get_or_insert_with(Instant::now);
            for (number, bytes) in (at..).zip(read.chunks(PAGE_BYTES)) {
                done.checked += 1;
                if let Err(example) = pages[number as usize].judge(number, bytes) {
                    done.wrong += 1;
                    done.examples.push(example);
                }
            }
        }
        done.examples.truncate(EXAMPLES);
        first.context("the volume has no pages")
    }

    /// Writes a page, and reads it.
    pub fn write_once(&mut self, pages: &mut [Page]) -> anyhow::Result<()> {
        let mut bytes = BytesMut::new();
        pages[0].newest += 1;
        put_page(&mut bytes, 0, pages[0].newest);
        self.until_done("the volume takes no writes", |open| {
            let wrote = open.write(offset(0), &bytes);
            wrote.map_err(|error| format!("{error:?}"))
        })?;
        let read = self.read(0)?;
        ensure!(read.starts_with(&bytes), "what was written is not read");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_lie_in_all_groups_and_apart() {
        let offsets: std::collections::BTreeSet<u64> = (0..PAGES).map(offset).collect();
        assert_eq!(offsets.len() as u32, PAGES);
        let groups: std::collections::BTreeSet<u64> =
            offsets.iter().map(|at| at / GROUP_BYTES).collect();
        assert_eq!(groups.len() as u32, GROUPS);
        let run = (0..PAGES).step_by(RUN as usize);
        let last = |page| offset(page + RUN - 1) - offset(page);
        assert!(
            run.map(last)
                .all(|len| len == u64::from(RUN - 1) * PAGE_BYTES as u64)
        );
    }
}
