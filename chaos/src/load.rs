//! Clients: threads with real connections, few contended objects, and one exact history of what they saw.
//!
//! The load is that of the simulator and the suite ([`KeyLoad`], [`ChunkLoad`]). Clients of Redis's protocol and of the native
//! one use the same keys, so each key's history has the answers of both. Keys `ledger-0`, ... are written once each, so
//! that every bucket holds something that must not get lost.

pub mod files;
pub mod flood;
pub mod log;
mod redis;
pub mod region;
pub mod volume;
mod waits;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use staves_client::{Client, ClientOptions};
use staves_conformance::cache::{KeyLoad, LEDGER, OnKey, SORTS};
use staves_conformance::memory::ChunkLoad;
use staves_conformance::{Begun, Clients, Workload, cache};
use staves_history::Record;
use staves_testkit::load::{Door, Load, Native, Random};
pub(crate) use staves_testkit::load::{PAUSE, REST};
use staves_wire::ErrorCode;
use staves_wire::service::Answer;

use crate::judge::Stall;

use self::redis::Redis;
use self::region::RegionDoor;
use self::waits::Waits;

/// The time that a client waits for an answer. Nodes answer after 5 s at the latest.
pub const PATIENCE: Duration = Duration::from_secs(12);
/// The time that a reader waits, whose answer would be out of date: it soon asks for the next key.
const IMPATIENCE: Duration = Duration::from_millis(250);
/// Clients on the contended chunks of a memory region, and so many chunks.
const CLIENTS_OF_MEMORY: u32 = 3;
const CHUNKS: u64 = 6;
/// Of a thousand operations on contended objects, so many read; of counted keys fewer.
const READS: u64 = 450;
/// See [`READS`].
const READS_COUNTED: u64 = 200;
/// Most bytes of a text; texts are appended to.
const TEXT_BYTES: u64 = 20;
/// Most bytes of a write to a chunk: over four pages.
const WRITE_BYTES: u64 = 13_000;

/// The state that all clients and the run share.
pub struct Shared {
    /// The load on the cache. Its clock is that of the run.
    pub keys: Load<KeyLoad>,
    /// The load on memory.
    pub chunks: Load<ChunkLoad>,
    /// The load on the volume.
    pub volume: volume::VolumeLoad,
    /// The load on a second one, where there are snapshots.
    pub second_volume: volume::VolumeLoad,
    /// Snapshots and clones of both.
    pub images: volume::copies::ImageLoad,
    /// The load on logs.
    pub logs: log::LogLoad,
    doors: Mutex<Vec<SocketAddr>>,
    /// Per node: until when it is excused from answering, in nanoseconds of the run.
    excused: Mutex<Vec<u64>>,
    hangs: Mutex<Vec<String>>,
    waits: Mutex<Waits>,
    /// Clients greet a node first: it may have no place for them.
    greets: bool,
}

/// A lock whose holder cannot have broken anything by panicking.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Of a run that begins now. `greets`: nodes may have no place for clients, who ask for that before anything else.
    pub fn new(greets: bool) -> Arc<Shared> {
        let start = Instant::now();
        Arc::new(Shared {
            keys: Load::new(start),
            chunks: Load::new(start),
            volume: volume::VolumeLoad::first(),
            second_volume: volume::VolumeLoad::second(),
            images: volume::copies::ImageLoad::default(),
            logs: log::LogLoad::default(),
            doors: Mutex::default(),
            excused: Mutex::default(),
            hangs: Mutex::default(),
            waits: Mutex::default(),
            greets,
        })
    }

    /// Nanoseconds since the run began.
    pub fn now(&self) -> u64 {
        self.keys.now()
    }

    /// One more door.
    pub fn add_door(&self, door: SocketAddr) {
        lock(&self.doors).push(door);
        lock(&self.excused).push(0);
    }

    /// A node that was killed, paused or slowed need not answer what it was asked before, nor, with
    /// `u64::MAX`, until it is said to be well again.
    pub fn excuse(&self, at: usize, until: u64) {
        if let Some(excused) = lock(&self.excused).get_mut(at) {
            *excused = until;
        }
    }

    /// Ends all clients.
    pub fn stop(&self) {
        self.keys.stop();
        self.chunks.stop();
    }

    fn stopped(&self) -> bool {
        self.keys.is_stopped()
    }

    /// The history so far, of keys and of chunks.
    pub fn records(&self) -> Vec<Record> {
        let (keys, chunks) = (self.keys.clients(), self.chunks.clients());
        let keys = keys.history().iter().map(cache::record);
        let chunks = chunks.history().iter().map(region::record);
        keys.chain(chunks).collect()
    }

    /// Operations that certainly were not done: refused, or never sent.
    pub fn refused(&self) -> u64 {
        self.keys.refused() + self.chunks.refused()
    }

    /// The clients' complaints: nodes that kept them waiting and had no excuse.
    pub fn hangs(&self) -> Vec<String> {
        lock(&self.hangs).clone()
    }

    /// All doors of the native protocol.
    pub fn native_doors(&self) -> Vec<String> {
        let doors = lock(&self.doors);
        let native = doors.iter().map(|door| format!("{}:1600", door.ip()));
        native.collect()
    }

    /// A node's door of Redis's protocol.
    pub fn door(&self, at: usize) -> Option<SocketAddr> {
        lock(&self.doors).get(at).copied()
    }

    fn doors(&self) -> usize {
        lock(&self.doors).len()
    }

    /// A write of a client that stays at its node, called then, has ended.
    fn wrote(&self, of: (u32, u64), called: u64, refused: Option<&str>) {
        lock(&self.waits).ended(of, (called, self.now()), refused);
    }

    /// The longest wait for a write through any one node but this.
    pub fn worst_wait(&self, but: Option<usize>) -> Stall {
        lock(&self.waits).worst(but)
    }

    /// Something that must not be, whatever the history says.
    fn complain(&self, what: String) {
        lock(&self.hangs).push(what);
    }

    /// Nobody answered on a connection that stayed open.
    fn silent(&self, at: usize, begun: &Begun<OnKey>) {
        let excused = lock(&self.excused).get(at).copied().unwrap_or(u64::MAX);
        if excused < begun.called {
            let waited = Duration::from_nanos(self.now() - begun.called);
            let (node, since) = (at + 1, begun.called as f64 / 1e9);
            self.complain(format!(
                "n{node} kept a client waiting for {waited:?}: {begun:?} at {since:.3} s"
            ));
        }
    }
}

/// The contended keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Keys {
    /// The number of keys.
    pub count: usize,
    /// All are counted and none is ever taken away: whatever is done twice shows for good.
    pub counted: bool,
}

impl Keys {
    fn any(self, random: &mut Random) -> u64 {
        let at = random.below(self.count as u64);
        match self.counted {
            true => at * SORTS + SORTS - 1,
            false => at,
        }
    }

    /// Draws the next operation of a client.
    fn draw(
        self,
        client: u32,
        clients: &mut Clients<KeyLoad>,
        now: u64,
        random: &mut Random,
    ) -> Begun<OnKey> {
        let of = (client, self.any(random));
        let reads = if self.counted { READS_COUNTED } else { READS };
        clients.draw(of, now, (reads, TEXT_BYTES), &mut |n| random.below(n))
    }
}

/// Starts clients: `contended` on the contended keys, and one that writes keys once. Of the first, one stays at
/// each node that there is, so that a node that keeps its clients waiting cannot catch them all; the
/// others go around. At each node there is also one that only reads, and does not wait for long. One
/// more goes through the native client. The threads are in the namespace of the caller's.
///
/// With a memory region there are more for that.
pub fn start(
    shared: &Arc<Shared>,
    seed: u64,
    contended: usize,
    keys: Keys,
    region: bool,
) -> Vec<JoinHandle<()>> {
    let nodes = shared.doors();
    let random = |client: u32| Random(seed ^ u64::from(client) << 32);
    let mut threads = Vec::new();
    let redis = |client: u32, home: Option<usize>, patience: Duration| {
        let redis = Redis::new(shared, random(!client), home, patience);
        move || std::future::ready(Ok(redis))
    };
    let mut written = LEDGER;
    threads.push(spawn(
        shared,
        |shared| &shared.keys,
        redis(0, None, PATIENCE),
        move |clients, now| {
            written += 1;
            clients.write((0, written - 1), now)
        },
    ));
    for client in 1..=contended as u32 {
        let home = Some(client as usize - 1).filter(|at| *at < nodes);
        let mut random = random(client);
        let door = redis(client, home, PATIENCE);
        let waits = shared.clone();
        let draw = move |clients: &mut Clients<_>, now| match lock(&waits.waits).again(client) {
            Some(key) => clients.write((client, key), now),
            None => keys.draw(client, clients, now, &mut random),
        };
        threads.push(spawn(shared, |shared| &shared.keys, door, draw));
    }
    for at in 0..nodes {
        let client = (1 + contended + at) as u32;
        let mut random = random(client);
        let door = redis(client, Some(at), IMPATIENCE);
        let read = move |clients: &mut Clients<KeyLoad>, now| {
            clients.read((client, keys.any(&mut random)), now)
        };
        threads.push(spawn(shared, |shared| &shared.keys, door, read));
    }
    let native = (1 + contended + nodes) as u32;
    let mut drawn = random(native);
    let draw = move |clients: &mut Clients<_>, now| keys.draw(native, clients, now, &mut drawn);
    let door = open_cache(shared.clone());
    threads.push(spawn(shared, |shared| &shared.keys, || door, draw));
    if region {
        threads.extend(start_region(shared, native + 1, random));
    }
    threads
}

/// Starts the clients of the region: one that writes chunks in turn, and some on the contended chunks.
fn start_region(
    shared: &Arc<Shared>,
    first: u32,
    random: impl Fn(u32) -> Random,
) -> Vec<JoinHandle<()>> {
    let mut threads = Vec::new();
    for at in 0..=CLIENTS_OF_MEMORY {
        let client = first + at;
        let mut random = random(client);
        let mut ledger = region::LEDGER.cycle();
        let draw = move |clients: &mut Clients<ChunkLoad>, now| match at {
            0 => clients.write((client, ledger.next().unwrap_or(CHUNKS)), now),
            _ => {
                let of = (client, random.below(CHUNKS));
                clients.draw(of, now, (READS, WRITE_BYTES), &mut |n| random.below(n))
            }
        };
        let door = RegionDoor::open(shared.clone());
        threads.push(spawn(shared, |shared| &shared.chunks, || door, draw));
    }
    threads
}

/// A client on its own thread, in the caller's namespace.
fn spawn<W: Workload, D: Door<W>, F: Future<Output = anyhow::Result<D>>>(
    shared: &Arc<Shared>,
    load: fn(&Shared) -> &Load<W>,
    open: impl FnOnce() -> F + Send + 'static,
    mut next: impl FnMut(&mut Clients<W>, u64) -> Begun<W::Operation> + Send + 'static,
) -> JoinHandle<()> {
    let shared = shared.clone();
    std::thread::spawn(move || {
        let run = async {
            let mut door = open().await?;
            while let Err(why) = load(&shared).run(&mut door, &mut next).await {
                shared.complain(why);
            }
            Ok(())
        };
        if let Err(error) = runtime().and_then(|runtime| runtime.block_on(run)) {
            shared.complain(format!("a client cannot begin: {error:#}"));
        }
    })
}

/// A runtime for one client, so that all it does is done in the namespace of its thread.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("no runtime")
}

/// A door of the client library, which ends every operation by its own deadline: what takes much longer is a hang.
pub struct Timed<D> {
    door: D,
    shared: Arc<Shared>,
}

impl<W: Workload, D: Door<W>> Door<W> for Timed<D> {
    async fn execute(&mut self, begun: &Begun<W::Operation>) -> Answer {
        let answer = tokio::time::timeout(PATIENCE, self.door.execute(begun)).await;
        answer.unwrap_or_else(|_| {
            let text = format!("the native client gave no answer for {PATIENCE:?}: {begun:?}");
            self.shared.complain(text.clone());
            Answer::error(ErrorCode::Deadline, text)
        })
    }
}

async fn connect(shared: &Shared) -> anyhow::Result<Client> {
    let doors = shared.native_doors();
    let connecting = Client::connect(&doors, ClientOptions::default());
    connecting.await.context("cannot connect")
}

async fn open_cache(shared: Arc<Shared>) -> anyhow::Result<Timed<Native>> {
    let options = ClientOptions::default();
    let door = Native {
        client: connect(&shared).await?,
        pool: "cache",
        patience: options.deadline,
    };
    Ok(Timed { door, shared })
}

/// Reads every object of the history once more, until that time; the number of objects, and the names of those that could not
/// be read.
pub fn read_all(
    shared: &Arc<Shared>,
    region: bool,
    client: u32,
    until: Instant,
) -> anyhow::Result<(usize, Vec<String>)> {
    runtime()?.block_on(async {
        let mut redis = Redis::new(shared, Random(u64::from(client)), None, PATIENCE);
        let mut silent = Vec::new();
        let keys = shared.keys.clients().objects();
        // When time has run out over one, the others are not waited for one by one.
        for key in &keys {
            let of = (client, *key);
            if !silent.is_empty() || !read(shared, &shared.keys, &mut redis, of, until).await {
                silent.push(cache::name(*key));
            }
        }
        if !region {
            return Ok((keys.len(), silent));
        }
        let mut door = RegionDoor::open(shared.clone()).await?;
        let chunks = shared.chunks.clients().objects();
        for chunk in &chunks {
            let of = (client, *chunk);
            if !silent.is_empty() || !read(shared, &shared.chunks, &mut door, of, until).await {
                silent.push(region::name(*chunk));
            }
        }
        Ok((keys.len() + chunks.len(), silent))
    })
}

/// Reads until there is an answer or it is that time. True if there was one.
async fn read<W: Workload>(
    shared: &Shared,
    load: &Load<W>,
    door: &mut impl Door<W>,
    of: (u32, u64),
    until: Instant,
) -> bool {
    loop {
        let read = load.execute(door, |clients, now| clients.read(of, now));
        match read.await {
            Ok(true) => return true,
            Ok(false) => {}
            Err(why) => shared.complain(why),
        }
        if Instant::now() >= until {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_history::record::Asked;

    #[test]
    fn counted_keys_are_only_read_and_counted() {
        let mut random = Random(1);
        let mut asked = |counted: bool| {
            let keys = Keys { count: 6, counted };
            let mut clients = Clients::default();
            let mut one = |_| cache::asked(&keys.draw(1, &mut clients, 0, &mut random).operation);
            (0..1000).map(&mut one).collect::<Vec<_>>()
        };
        let counts = |asked: &Asked| matches!(asked, Asked::Get | Asked::Incr { .. });
        assert!(asked(true).iter().all(counts));
        let mixed = asked(false);
        assert!(
            mixed
                .iter()
                .any(|asked| matches!(asked, Asked::Append { .. }))
        );
        assert!(mixed.contains(&Asked::Del));
    }
}
