//! Clients of a volume: one writer, which goes to another node or door when its session ends and now and then takes the volume over from itself, and
//! readers by both doors.

pub mod history;
mod session;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use staves_testkit::load::Random;

use self::history::{BLOCK_BYTES, BlockHistory, BlockRead, BlockWrite, content, seen};
use self::session::{Session, Unanswered, connect_nbd, grpc_client};
use super::{PAUSE, REST, Shared, lock, runtime};
use crate::judge::Stall;

/// The volume's name and size: some groups, so that most nodes have some of it.
pub const VOLUME: &str = "chaos-volume";
/// See [`VOLUME`].
pub const VOLUME_SIZE: &str = "256MiB";
/// Bytes of a group of copies.
const GROUP_BYTES: u64 = 64 << 20;
/// Blocks that are written together lie behind one another: so many.
const RUN: u64 = 3;
/// Such places: two for each group, one of them across the border of two chunks.
const RUNS: u64 = 8;
const CHUNK_BYTES: u64 = 64 << 10;
/// Of so many operations of the writer one is a take-over.
const TAKE_OVERS: u64 = 300;
/// Reads before a reader goes to another node.
const STAY: u32 = 40;

/// What the clients of the volume did.
#[derive(Default)]
pub struct VolumeLoad {
    history: Mutex<BlockHistory>,
    take_over: AtomicBool,
    taken_over: AtomicUsize,
    sessions: AtomicUsize,
}

/// A place, and its bytes.
fn offset(run: u64) -> u64 {
    let (group, second) = (run / 2 * GROUP_BYTES, run % 2);
    group + second * (5 * CHUNK_BYTES - BLOCK_BYTES as u64)
}

impl VolumeLoad {
    /// The writer is to take the volume over from itself.
    pub fn take_over(&self) {
        self.take_over.store(true, Ordering::Relaxed);
    }

    /// Operations, by kind.
    pub fn counts(&self) -> [(&'static str, usize); 4] {
        let history = lock(&self.history);
        [
            ("volume block written", history.writes.len()),
            ("volume block read", history.reads.len()),
            ("volume session", self.sessions.load(Ordering::Relaxed)),
            ("volume taken over", self.taken_over.load(Ordering::Relaxed)),
        ]
    }

    /// The history so far.
    pub fn history(&self) -> BlockHistory {
        lock(&self.history).clone()
    }

    /// The longest times between `from` and `to` without an answer to any read, and to any write.
    pub fn worst_stalls(&self, from: u64, to: u64) -> [Stall; 2] {
        let history = lock(&self.history);
        let reads = history.reads.iter().map(|read| read.returned).collect();
        let writes = history.writes.iter().filter_map(|write| write.returned);
        let writes = writes.collect();
        [
            ("reads of the volume", reads),
            ("writes to the volume", writes),
        ]
        .map(|(key, times)| longest_gap(key, times, from, to))
    }

    fn begin(&self, run: u64, blocks: u64, session: u64, now: u64) -> Vec<BlockWrite> {
        let mut history = lock(&self.history);
        let number = history.writes.last().map_or(0, |write| write.number) + 1;
        let of_run = (0..blocks).map(|block| BlockWrite {
            block: run * RUN + block,
            number,
            session,
            call: now,
            returned: None,
        });
        let writes: Vec<BlockWrite> = of_run.collect();
        history.writes.extend_from_slice(&writes);
        writes
    }

    fn answered(&self, number: u64, now: u64) {
        let mut history = lock(&self.history);
        let of_number = |write: &&mut BlockWrite| write.number == number;
        let newest = history.writes.iter_mut().rev();
        let newest = newest.skip_while(|write| write.number != number);
        newest
            .take_while(of_number)
            .for_each(|write| write.returned = Some(now));
    }

    fn read(&self, run: u64, bytes: &[u8], (call, returned): (u64, u64)) {
        let mut history = lock(&self.history);
        for (at, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            let number = run * RUN + at as u64;
            history.reads.push(BlockRead {
                block: number,
                seen: seen(number, block),
                call,
                returned,
            });
        }
    }
}

fn longest_gap(key: &str, mut times: Vec<u64>, from: u64, to: u64) -> Stall {
    times.retain(|at| (from..=to).contains(at));
    times.extend([from, to]);
    times.sort_unstable();
    let gaps = times
        .windows(2)
        .map(|pair| (pair[1].saturating_sub(pair[0]), pair[0]));
    let (length, from) = gaps.max().unwrap_or_default();
    Stall {
        key: key.to_owned(),
        from,
        length: Duration::from_nanos(length),
    }
}

/// Starts the clients.
pub fn start(shared: &Arc<Shared>, seed: u64) -> Vec<JoinHandle<()>> {
    let random = |client: u64| Random(seed ^ (0x566f_6c00 + client) << 24);
    let (writer, by_grpc, by_nbd) = (shared.clone(), shared.clone(), shared.clone());
    let (one, two, three) = (random(1), random(2), random(3));
    vec![
        std::thread::spawn(move || run(&writer, Writer::new(&writer, one).write_all())),
        std::thread::spawn(move || run(&by_grpc, read_by_grpc(&by_grpc, two))),
        std::thread::spawn(move || read_by_nbd(&by_nbd, three)),
    ]
}

fn run(shared: &Shared, client: impl Future<Output = ()>) {
    match runtime() {
        Ok(runtime) => runtime.block_on(client),
        Err(error) => shared.complain(format!("a client of the volume cannot begin: {error:#}")),
    }
}

/// The volume's one writer.
struct Writer<'a> {
    shared: &'a Shared,
    random: Random,
    /// The session, its number, and whether a write in it was answered.
    session: Option<(Session, u64, bool)>,
}

impl<'a> Writer<'a> {
    fn new(shared: &'a Shared, random: Random) -> Writer<'a> {
        Writer {
            shared,
            random,
            session: None,
        }
    }

    async fn write_all(mut self) {
        while !self.shared.stopped() {
            let rest = match self.session.take() {
                None => self.reconnect().await,
                Some(session) if self.wants_take_over(&session) => self.take_over(session).await,
                Some(session) => self.write_once(session).await,
            };
            tokio::time::sleep(rest).await;
        }
    }

    fn wants_take_over(&mut self, (.., is_answered): &(Session, u64, bool)) -> bool {
        let asked = &self.shared.volume.take_over;
        *is_answered && (asked.swap(false, Ordering::Relaxed) || self.random.below(TAKE_OVERS) == 0)
    }

    fn next_session(&self) -> u64 {
        self.shared.volume.sessions.fetch_add(1, Ordering::Relaxed) as u64
    }

    async fn reconnect(&mut self) -> Duration {
        let session = Session::begin(self.shared, &mut self.random).await;
        let is_there = session.is_some();
        self.session = session.map(|session| (session, self.next_session(), false));
        if is_there { REST } else { PAUSE }
    }

    async fn write_once(
        &mut self,
        (mut session, number, is_answered): (Session, u64, bool),
    ) -> Duration {
        let (run, blocks) = (self.random.below(RUNS), 1 + self.random.below(RUN));
        match self.write(&mut session, number, (run, blocks)).await {
            Ok(()) => self.session = Some((session, number, true)),
            Err(Unanswered::Late) => self.session = Some((session, number, is_answered)),
            Err(Unanswered::Over) => return PAUSE,
            Err(Unanswered::Wrong(why)) => {
                self.shared
                    .complain(format!("a write to the volume was refused: {why}"));
                return PAUSE;
            }
        }
        REST
    }

    async fn write(
        &self,
        session: &mut Session,
        number: u64,
        (run, blocks): (u64, u64),
    ) -> Result<(), Unanswered> {
        let volume = &self.shared.volume;
        let writes = volume.begin(run, blocks, number, self.shared.now());
        let done = session.write(offset(run), bytes_of(&writes)).await;
        if let (Ok(()), Some(write)) = (&done, writes.first()) {
            volume.answered(write.number, self.shared.now());
        }
        done
    }

    /// A second client takes the volume over, with a write of the first one's under way; and once its own first write is answered, the first
    /// one writes on. All of that is to one place.
    async fn take_over(&mut self, (mut old, former, _): (Session, u64, bool)) -> Duration {
        let volume = &self.shared.volume;
        let run = self.random.below(RUNS);
        if self.random.below(2) == 0 {
            let writes = volume.begin(run, RUN, former, self.shared.now());
            old.send(offset(run), &bytes_of(&writes));
        }
        let Some(mut new) = Session::take_over(self.shared, &mut self.random).await else {
            return PAUSE;
        };
        let number = self.next_session();
        match self.write(&mut new, number, (run, RUN)).await {
            Ok(()) => {}
            Err(Unanswered::Wrong(why)) => {
                self.shared
                    .complain(format!("who took the volume over cannot write: {why}"));
                return PAUSE;
            }
            Err(_) => return PAUSE,
        }
        volume.taken_over.fetch_add(1, Ordering::Relaxed);
        self.session = Some((new, number, true));
        for _ in 0..2 {
            // It must not be answered as done; any refusal will do.
            let refused = self.write(&mut old, former, (run, RUN)).await;
            if refused.is_err() {
                break;
            }
        }
        REST
    }
}

fn bytes_of(writes: &[BlockWrite]) -> Vec<u8> {
    let each = writes
        .iter()
        .map(|write| content(write.block, write.number));
    each.collect::<Vec<_>>().concat()
}

async fn read_by_grpc(shared: &Shared, mut random: Random) {
    while !shared.stopped() {
        let Ok(client) = grpc_client(shared, &mut random) else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        for _ in 0..STAY {
            if shared.stopped() {
                return;
            }
            let (run, call) = (random.below(RUNS), shared.now());
            match client
                .read(VOLUME, offset(run), RUN as usize * BLOCK_BYTES)
                .await
            {
                Ok(bytes) => shared.volume.read(run, &bytes, (call, shared.now())),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
            tokio::time::sleep(REST).await;
        }
    }
}

fn read_by_nbd(shared: &Shared, mut random: Random) {
    while !shared.stopped() {
        let Ok(mut client) = connect_nbd(shared, &mut random) else {
            std::thread::sleep(PAUSE);
            continue;
        };
        for _ in 0..STAY {
            let (run, call) = (random.below(RUNS), shared.now());
            let Ok(bytes) = client.read(offset(run), RUN as usize * BLOCK_BYTES) else {
                break;
            };
            shared.volume.read(run, &bytes, (call, shared.now()));
            if shared.stopped() {
                return;
            }
            std::thread::sleep(REST);
        }
        std::thread::sleep(REST);
    }
}

/// Reads all blocks once more, until that time; the number of places that could not be read.
pub fn read_all(shared: &Shared, until: Instant) -> anyhow::Result<u64> {
    let mut random = Random(1);
    runtime()?.block_on(async {
        let client = grpc_client(shared, &mut random)?;
        for run in 0..RUNS {
            loop {
                let call = shared.now();
                let read = client.read(VOLUME, offset(run), RUN as usize * BLOCK_BYTES);
                match read.await {
                    Ok(bytes) => {
                        shared.volume.read(run, &bytes, (call, shared.now()));
                        break;
                    }
                    Err(_) if Instant::now() >= until => return Ok(RUNS - run),
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            }
        }
        Ok(0)
    })
}
