//! Clients of a volume: one writer, which goes to another node or door when its session ends and now and then takes the volume over from itself, and
//! readers by both doors. With snapshots there is a second volume, and one more client, which makes snapshots and clones of both, reads and deletes them.

pub mod copies;
pub mod history;
pub mod images;
mod session;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use staves_model::{CHUNK_BYTES, REGION_BUCKET_BYTES_MIN};
use staves_testkit::load::Random;

use self::history::{BLOCK_BYTES, BlockHistory, BlockRead, BlockWrite, seen};
use self::session::{PATIENCE, any_node, connect_nbd, grpc_client};
use self::writer::VolumeWriter;
use super::{PAUSE, REST, Shared, lock, runtime};
use crate::judge::Stall;

/// Blocks that are written together lie behind one another: so many.
const RUN: u64 = 3;
/// Reads before a reader goes to another node.
const STAY: u32 = 40;

/// The load on a volume: its history, and the state of its writer.
#[derive(Default)]
pub struct VolumeLoad {
    /// Its name.
    pub name: &'static str,
    /// Its length, which fills data buckets of the least size.
    pub size_bytes: u64,
    /// The number of its first block. No other volume has blocks of the same numbers.
    first_block: u64,
    history: Mutex<BlockHistory>,
    take_over: AtomicBool,
    taken_over: AtomicUsize,
    sessions: AtomicUsize,
    door: AtomicUsize,
}

/// The offset of a place. Chunks go round over all data buckets, whatever the scheme: two in a row are for the same one, the second across the border to the next.
fn offset(run: u64) -> u64 {
    let (bucket, second) = (run / 2, run % 2);
    bucket * (REGION_BUCKET_BYTES_MIN + CHUNK_BYTES)
        + second * (5 * CHUNK_BYTES - BLOCK_BYTES as u64)
}

impl VolumeLoad {
    /// The volume that all is judged of: four data buckets, so that most nodes have some of it.
    pub fn first() -> VolumeLoad {
        VolumeLoad {
            name: "chaos-volume",
            size_bytes: 4 * REGION_BUCKET_BYTES_MIN,
            ..VolumeLoad::default()
        }
    }

    /// A smaller one, whose snapshots are of the same instants as the first one's.
    pub fn second() -> VolumeLoad {
        VolumeLoad {
            name: "chaos-second",
            size_bytes: 2 * REGION_BUCKET_BYTES_MIN,
            first_block: 1000,
            ..VolumeLoad::default()
        }
    }

    /// Its places: two for each data bucket.
    fn runs(&self) -> u64 {
        2 * self.size_bytes / REGION_BUCKET_BYTES_MIN
    }

    /// The first block of a place.
    fn block(&self, run: u64) -> u64 {
        self.first_block + run * RUN
    }

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
            block: self.block(run) + block,
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

    fn read(&self, run: u64, bytes: &[u8], times: (u64, u64)) {
        let reads = block_reads(self.block(run), bytes, times);
        lock(&self.history).reads.extend(reads);
    }
}

/// Reads of blocks from this one on.
fn block_reads(
    first: u64,
    bytes: &[u8],
    (call, returned): (u64, u64),
) -> impl Iterator<Item = BlockRead> {
    (first..)
        .zip(bytes.chunks(BLOCK_BYTES))
        .map(move |(block, bytes)| BlockRead {
            block,
            seen: seen(block, bytes),
            call,
            returned,
        })
}

pub(super) fn longest_gap(key: &str, mut times: Vec<u64>, from: u64, to: u64) -> Stall {
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
        std::thread::spawn(move || {
            let volume = VolumeWriter::new(&writer, &writer.volume, one);
            run(&writer, volume.write_all());
        }),
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

async fn read_by_grpc(shared: &Shared, mut random: Random) {
    let volume = &shared.volume;
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
            let (run, call) = (random.below(volume.runs()), shared.now());
            match client
                .read(volume.name, offset(run), RUN as usize * BLOCK_BYTES)
                .await
            {
                Ok(bytes) => volume.read(run, &bytes, (call, shared.now())),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
            tokio::time::sleep(REST).await;
        }
    }
}

fn read_by_nbd(shared: &Shared, mut random: Random) {
    let volume = &shared.volume;
    while !shared.stopped() {
        let at = any_node(shared, &mut random);
        let Ok(mut client) = connect_nbd(shared, at, volume.name, PATIENCE[0]) else {
            std::thread::sleep(PAUSE);
            continue;
        };
        for _ in 0..STAY {
            let (run, call) = (random.below(volume.runs()), shared.now());
            let Ok(bytes) = client.read(offset(run), RUN as usize * BLOCK_BYTES) else {
                break;
            };
            volume.read(run, &bytes, (call, shared.now()));
            if shared.stopped() {
                return;
            }
            std::thread::sleep(REST);
        }
        std::thread::sleep(REST);
    }
}

/// Reads all blocks of a volume once more, until that time; the number of places that could not be read.
pub fn read_all(shared: &Shared, volume: &VolumeLoad, until: Instant) -> anyhow::Result<u64> {
    runtime()?.block_on(async {
        let client = grpc_client(shared, 0, PATIENCE[0])?;
        for run in 0..volume.runs() {
            loop {
                let call = shared.now();
                let read = client.read(volume.name, offset(run), RUN as usize * BLOCK_BYTES);
                match read.await {
                    Ok(bytes) => {
                        volume.read(run, &bytes, (call, shared.now()));
                        break;
                    }
                    Err(_) if Instant::now() >= until => return Ok(volume.runs() - run),
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            }
        }
        Ok(0)
    })
}
