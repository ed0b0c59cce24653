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
use self::session::{PATIENCE, Unanswered, WriteSession, any_node, connect_nbd, grpc_client};
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
const TAKE_OVERS: u64 = 30;
/// Reads before a reader goes to another node.
const STAY: u32 = 40;

/// The load on the volume: its history, and the state of its writer.
#[derive(Default)]
pub struct VolumeLoad {
    history: Mutex<BlockHistory>,
    take_over: AtomicBool,
    taken_over: AtomicUsize,
    sessions: AtomicUsize,
    door: AtomicUsize,
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

    /// The node through which the volume is written, as far as its client knows.
    pub fn door(&self) -> usize {
        self.door.load(Ordering::Relaxed)
    }

    fn note_door(&self, at: usize) {
        self.door.store(at, Ordering::Relaxed);
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
        std::thread::spawn(move || run(&writer, VolumeWriter::new(&writer, one).write_all())),
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

/// A session of the writer's.
struct OwnSession {
    session: WriteSession,
    number: u64,
    /// A write in it was answered.
    is_answered: bool,
    /// A write in it was not.
    is_lost: bool,
}

/// The volume's one writer.
struct VolumeWriter<'a> {
    shared: &'a Shared,
    random: Random,
    session: Option<OwnSession>,
    /// The one that was taken over last: its connection stays open for a while.
    former: Option<OwnSession>,
}

impl<'a> VolumeWriter<'a> {
    fn new(shared: &'a Shared, random: Random) -> VolumeWriter<'a> {
        VolumeWriter {
            shared,
            random,
            session: None,
            former: None,
        }
    }

    async fn write_all(mut self) {
        while !self.shared.stopped() {
            let rest = match self.session.take() {
                None => self.reconnect().await,
                Some(session) if self.wants_take_over(&session) => self.take_over(session).await,
                // Its connection ends with it.
                Some(session) if session.is_lost => PAUSE,
                Some(session) => self.write_once(session).await,
            };
            tokio::time::sleep(rest).await;
        }
    }

    /// A session that waits for an answer is often taken over while it waits.
    fn wants_take_over(&mut self, session: &OwnSession) -> bool {
        let asked = &self.shared.volume.take_over;
        let one_of = if session.is_lost { 2 } else { TAKE_OVERS };
        session.is_answered
            && (asked.swap(false, Ordering::Relaxed) || self.random.below(one_of) == 0)
    }

    fn next_session(&self, session: WriteSession) -> OwnSession {
        let number = self.shared.volume.sessions.fetch_add(1, Ordering::Relaxed) as u64;
        OwnSession {
            session,
            number,
            is_answered: false,
            is_lost: false,
        }
    }

    async fn reconnect(&mut self) -> Duration {
        let session = WriteSession::begin(self.shared, &mut self.random).await;
        self.session = session.map(|session| self.next_session(session));
        if self.session.is_some() { REST } else { PAUSE }
    }

    async fn write_once(&mut self, mut session: OwnSession) -> Duration {
        let place = (self.random.below(RUNS), 1 + self.random.below(RUN));
        match self.write(&mut session, place).await {
            Ok(()) | Err(Unanswered::Late) => {}
            Err(Unanswered::Over) => session.is_lost = true,
            Err(Unanswered::Wrong(why)) => {
                let text = format!("a write to the volume was refused: {why}");
                self.shared.complain(text);
                return PAUSE;
            }
        }
        self.session = Some(session);
        REST
    }

    async fn write(
        &self,
        own: &mut OwnSession,
        (run, blocks): (u64, u64),
    ) -> Result<(), Unanswered> {
        let volume = &self.shared.volume;
        let writes = volume.begin(run, blocks, own.number, self.shared.now());
        let done = own.session.write(offset(run), bytes_of(&writes)).await;
        if let (Ok(()), Some(write)) = (&done, writes.first()) {
            volume.answered(write.number, self.shared.now());
            own.is_answered = true;
        }
        done
    }

    /// A second client takes the volume over, with a write of the first one's under way; and once its own first write is answered, the first
    /// one writes on. All of that is to one place.
    async fn take_over(&mut self, mut old: OwnSession) -> Duration {
        let volume = &self.shared.volume;
        let run = self.random.below(RUNS);
        if !old.is_lost && self.random.below(2) == 0 {
            let writes = volume.begin(run, RUN, old.number, self.shared.now());
            old.session.send(offset(run), &bytes_of(&writes));
        }
        let Some(new) = WriteSession::take_over(self.shared, &mut self.random).await else {
            return PAUSE;
        };
        let mut new = self.next_session(new);
        match self.write(&mut new, (run, RUN)).await {
            Ok(()) => {}
            Err(Unanswered::Wrong(why)) => {
                let text = format!("who took the volume over cannot write: {why}");
                self.shared.complain(text);
                return PAUSE;
            }
            Err(_) => return PAUSE,
        }
        volume.taken_over.fetch_add(1, Ordering::Relaxed);
        self.session = Some(new);
        // None must be answered as done; any refusal will do.
        for _ in 0..2 {
            old.is_lost = old.is_lost || self.write(&mut old, (run, RUN)).await.is_err();
        }
        // What it had sent may come late.
        self.former.replace(old);
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
        let at = any_node(shared, &mut random);
        let Ok(client) = grpc_client(shared, at, PATIENCE[0]) else {
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
        let at = any_node(shared, &mut random);
        let Ok(mut client) = connect_nbd(shared, at, PATIENCE[0]) else {
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
    runtime()?.block_on(async {
        let client = grpc_client(shared, 0, PATIENCE[0])?;
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
