//! The clients of the demo's log: some append, each with one append under way, and one follows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use bytes::Bytes;
use staves_cli_common::running::connect;
use staves_client::{ClientError, LogHandle, LogSlot};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::check::{AckedEvents, ClientEvents, EventFound, event, found};
use super::{DEADLINE, NAME};
use crate::PATIENCE;

/// Clients that append.
pub const CLIENTS: usize = 4;
/// Every third append has so many records, all others one.
const BATCH: u64 = 3;
/// The rest of a client between two appends.
const BETWEEN: Duration = Duration::from_millis(5);
/// Rest after a failure.
const REST: Duration = Duration::from_millis(5);
/// Positions that are read at once.
const READS: u64 = 32;
/// The longest wait of the follower, before it looks whether it is to end.
const WAIT: Duration = Duration::from_millis(500);

struct EventShared {
    doors: Vec<String>,
    stop: AtomicBool,
    begun: Instant,
    /// The longest time between two acknowledgements of any one client in this round.
    longest_wait_us: AtomicU64,
    /// By client: the time of its last acknowledgement since `begun`, and how many it had.
    last_us: Vec<AtomicU64>,
    acked: Vec<AtomicU64>,
    /// The follower ends at this position.
    end: AtomicU64,
}

impl EventShared {
    fn acknowledged(&self, client: usize) {
        let now = self.begun.elapsed().as_micros() as u64;
        let waited = now - self.last_us[client].swap(now, Ordering::SeqCst);
        self.longest_wait_us.fetch_max(waited, Ordering::SeqCst);
        self.acked[client].fetch_add(1, Ordering::SeqCst);
    }

    fn open(&self) -> anyhow::Result<(Runtime, LogHandle)> {
        let (runtime, client) = connect(&self.doors, DEADLINE)?;
        let log = runtime.block_on(client.open_log(Some(NAME), NAME));
        Ok((runtime, log.context("cannot open the log")?))
    }
}

/// Clients of the log, at work.
pub struct EventLoad {
    shared: Arc<EventShared>,
    clients: Vec<JoinHandle<anyhow::Result<ClientEvents>>>,
    follower: JoinHandle<anyhow::Result<Vec<EventFound>>>,
}

impl EventLoad {
    /// Starts the clients and the follower. The log is there.
    pub fn start(doors: Vec<String>) -> EventLoad {
        let counters = || (0..CLIENTS).map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(EventShared {
            doors,
            stop: AtomicBool::new(false),
            begun: Instant::now(),
            longest_wait_us: AtomicU64::new(0),
            last_us: counters(),
            acked: counters(),
            end: AtomicU64::new(u64::MAX),
        });
        let client = |number| {
            let shared = shared.clone();
            std::thread::spawn(move || append(number, &shared))
        };
        let clients = (0..CLIENTS).map(client).collect();
        let followed = shared.clone();
        EventLoad {
            clients,
            follower: std::thread::spawn(move || follow(&followed)),
            shared,
        }
    }

    /// Acknowledged appends of each client until now.
    pub fn acked(&self) -> Vec<u64> {
        let acked = self.shared.acked.iter();
        acked.map(|count| count.load(Ordering::SeqCst)).collect()
    }

    /// Returns whether a client or the follower has ended before it was stopped.
    pub fn is_broken(&self) -> bool {
        self.follower.is_finished() || self.clients.iter().any(JoinHandle::is_finished)
    }

    /// The longest wait counts from here.
    pub fn begin_round(&self) {
        self.shared.longest_wait_us.store(0, Ordering::SeqCst);
    }

    /// The longest that a client was without an acknowledged append since the round began.
    pub fn longest_wait(&self) -> Duration {
        Duration::from_micros(self.shared.longest_wait_us.load(Ordering::SeqCst))
    }

    /// Ends the clients, each after the append that it is at, and then the follower at the tail: the appends, and what the follower found.
    pub fn stop(self) -> anyhow::Result<(Vec<ClientEvents>, Vec<EventFound>)> {
        self.shared.stop.store(true, Ordering::SeqCst);
        let mut clients = Vec::new();
        for client in self.clients {
            let ended = client.join();
            clients.push(ended.map_err(|_| anyhow!("a client of the log panicked"))??);
        }
        let (runtime, log) = self.shared.open()?;
        let tail = runtime.block_on(log.tail());
        let tail = tail.context("the log's tail is not known")?;
        self.shared.end.store(tail, Ordering::SeqCst);
        let followed = self.follower.join();
        let followed = followed.map_err(|_| anyhow!("the log's follower panicked"))??;
        Ok((clients, followed))
    }
}

/// Appends until it is stopped. A record is never sent again: the next append has others.
fn append(client: usize, shared: &EventShared) -> anyhow::Result<ClientEvents> {
    let (runtime, log) = shared.open()?;
    let mut done = ClientEvents::default();
    let now = shared.begun.elapsed().as_micros() as u64;
    shared.last_us[client].store(now, Ordering::SeqCst);
    let mut appends = 0;
    while !shared.stop.load(Ordering::SeqCst) {
        appends += 1;
        let count = if appends % 3 == 0 { BATCH } else { 1 };
        let first = done.sent;
        let names = (first..first + count).map(|number| (client as u32, number));
        let records: Vec<Bytes> = names.map(event).collect();
        done.sent += count;
        match runtime.block_on(log.append(&records)) {
            Ok(position) => {
                shared.acknowledged(client);
                done.acked.push(AckedEvents {
                    position,
                    first,
                    count,
                });
                std::thread::sleep(BETWEEN);
            }
            Err(_) => {
                done.unknown += 1;
                std::thread::sleep(REST);
            }
        }
    }
    Ok(done)
}

/// Reads each position as soon as it is decided, until the log's end is known and reached.
fn follow(shared: &EventShared) -> anyhow::Result<Vec<EventFound>> {
    let (runtime, log) = shared.open()?;
    runtime.block_on(async {
        let mut seen = Vec::new();
        let (mut end_known, mut failing) = (None, None);
        loop {
            let end = shared.end.load(Ordering::SeqCst);
            let next = seen.len() as u64;
            if next >= end {
                return Ok(seen);
            }
            if end < u64::MAX {
                let since = *end_known.get_or_insert_with(Instant::now);
                ensure!(since.elapsed() < PATIENCE, "position {next} cannot be read");
            }
            match follow_once(&log, &mut seen).await {
                Ok(()) => failing = None,
                Err(error) => {
                    let since = *failing.get_or_insert_with(Instant::now);
                    ensure!(
                        since.elapsed() < PATIENCE,
                        "the follower stands still: {error}"
                    );
                    tokio::time::sleep(REST).await;
                }
            }
        }
    })
}

/// Reads what is decided beyond what was seen.
async fn follow_once(log: &LogHandle, seen: &mut Vec<EventFound>) -> Result<(), ClientError> {
    let next = seen.len() as u64;
    // Positions that are given out and not decided are awaited: a read of one decides that it is empty.
    let last = log.tail().await?.max(next + 1) - 1;
    if log.wait(last, None, WAIT).await? {
        read(log, next, last + 1, seen).await?;
    }
    Ok(())
}

/// Reads the positions up to `end`, which all are decided, in order.
async fn read(
    log: &LogHandle,
    from: u64,
    end: u64,
    seen: &mut Vec<EventFound>,
) -> Result<(), ClientError> {
    for from in (from..end).step_by(READS as usize) {
        let positions = from..end.min(from + READS);
        let mut part = vec![EventFound::Wrong; (positions.end - from) as usize];
        let mut reads = JoinSet::new();
        for position in positions {
            let log = log.clone();
            reads.spawn(async move { (position, log.read(position).await) });
        }
        for (position, slot) in reads.join_all().await {
            part[(position - from) as usize] = match slot? {
                LogSlot::Record(bytes) => found(&bytes),
                LogSlot::Junk => EventFound::Empty,
                LogSlot::Trimmed | LogSlot::PastTail => EventFound::Wrong,
            };
        }
        seen.extend(part);
    }
    Ok(())
}

/// Reads the whole log by a client of its own, again and again until that succeeds; `look_up` ends it with an error.
pub fn read_all(
    doors: Vec<String>,
    look_up: &dyn Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Vec<EventFound>> {
    let until = Instant::now() + PATIENCE;
    loop {
        look_up()?;
        match read_once(&doors) {
            Ok(seen) => return Ok(seen),
            Err(error) if Instant::now() >= until => {
                return Err(error.context("the log cannot be read"));
            }
            Err(_) => std::thread::sleep(REST),
        }
    }
}

fn read_once(doors: &[String]) -> anyhow::Result<Vec<EventFound>> {
    let (runtime, client) = connect(doors, DEADLINE)?;
    runtime.block_on(async {
        let log = client.open_log(Some(NAME), NAME).await?;
        let mut seen = Vec::new();
        let tail = log.tail().await?;
        read(&log, 0, tail, &mut seen).await?;
        Ok(seen)
    })
}
