//! Clients of logs: one log for each way of appending, each with two writers and two readers, which go to the log anew now and then. One log is trimmed
//! beside all that.

mod clients;
pub mod history;
mod judge;
mod places;

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use staves_client::{Client, ClientOptions, LogHandle};
use staves_testkit::load::Random;

use self::history::{AppendOutcome, LogAppend, LogHistory, LogRead, LogTail, LogTrim, seen};
use super::{PATIENCE, PAUSE, Shared, lock, runtime};
use crate::judge::Stall;

pub use self::places::{LogPlaces, find};

/// The pool of logs.
pub const POOL: &str = "logs";
/// Its share of each node.
pub const MEMORY: &str = "24MiB";
/// Its units.
pub const UNITS: &str = "4";
/// The logs: each mode is a name of the command line, too.
pub const LOGS: [(&str, &str); 3] = [
    ("chaos-bind", "bind"),
    ("chaos-predict", "predict"),
    ("chaos-corfu", "corfu"),
];
/// The log that is trimmed.
const TRIMMED: usize = 1;
/// Writers of each log.
const WRITERS: u32 = 2;
/// Readers of each log.
const READERS: u64 = 2;
/// Reads at the end that are under way at once.
const READS_AT_ONCE: usize = 16;
/// The writer at the end.
const LAST_WRITER: u32 = 1000;

/// The load on logs: what was seen of them.
#[derive(Default)]
pub struct LogLoad {
    history: Mutex<LogHistory>,
}

/// The times without an acknowledged append, of one log.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct AppendGap {
    /// No writer had one.
    pub of_log: Stall,
    /// One of the writers had none.
    pub of_writer: Stall,
}

impl LogLoad {
    /// The history so far.
    pub fn history(&self) -> LogHistory {
        lock(&self.history).clone()
    }

    /// Operations, by kind.
    pub fn counts(&self) -> [(&'static str, usize); 4] {
        let history = lock(&self.history);
        [
            ("append to a log", history.appends.len()),
            ("read of a log", history.reads.len()),
            ("tail of a log", history.tails.len()),
            ("trim of a log", history.trims.len()),
        ]
    }

    /// Appends whose outcome is not known.
    pub fn unknown(&self) -> usize {
        let history = lock(&self.history);
        let unknown = |append: &&LogAppend| append.outcome == AppendOutcome::Unknown;
        history.appends.iter().filter(unknown).count()
    }

    /// The longest times between `from` and `to` without an acknowledged append, of each log.
    pub fn append_gaps(&self, from: u64, to: u64) -> Vec<AppendGap> {
        let history = lock(&self.history);
        let gap = |(log, (name, _)): (usize, &(&str, &str))| {
            let of = |writer: Option<u32>| {
                let appends = history.appends.iter().filter(|a| a.log == log);
                let by = appends.filter(|a| writer.is_none_or(|writer| a.writer == writer));
                let times = by.filter_map(|append| append.acked().map(|(_, returned)| returned));
                let key = format!("appends to {name}");
                super::volume::longest_gap(&key, times.collect(), from, to)
            };
            let writers = (0..WRITERS).map(|n| of(Some(writer(log, n))));
            AppendGap {
                of_log: of(None),
                of_writer: writers.max_by_key(|gap| gap.length).unwrap_or_default(),
            }
        };
        LOGS.iter().enumerate().map(gap).collect()
    }

    fn begin(&self, append: LogAppend) -> usize {
        let mut history = lock(&self.history);
        history.appends.push(append);
        history.appends.len() - 1
    }

    fn ended(&self, at: usize, outcome: AppendOutcome) {
        if let Some(append) = lock(&self.history).appends.get_mut(at) {
            append.outcome = outcome;
        }
    }

    fn read(&self, read: LogRead) {
        lock(&self.history).reads.push(read);
    }

    fn tail(&self, tail: LogTail) {
        lock(&self.history).tails.push(tail);
    }

    fn trim(&self, trim: LogTrim) -> usize {
        let mut history = lock(&self.history);
        history.trims.push(trim);
        history.trims.len() - 1
    }

    fn trimmed(&self, at: usize, now: u64) {
        if let Some(trim) = lock(&self.history).trims.get_mut(at) {
            trim.returned = Some(now);
        }
    }
}

/// The number of a writer, which no other writer of any log has.
fn writer(log: usize, n: u32) -> u32 {
    log as u32 * WRITERS + n
}

/// Starts the clients: one thread for each log.
pub fn start(shared: &Arc<Shared>, seed: u64) -> Vec<JoinHandle<()>> {
    let thread = |log: usize| {
        let shared = shared.clone();
        let random = move |client: u64| Random(seed ^ (0x4c6f_6700 + client) << 20 ^ log as u64);
        std::thread::spawn(move || {
            let run = async {
                let mut tasks = tokio::task::JoinSet::new();
                for n in 0..WRITERS {
                    let random = random(u64::from(n));
                    tasks.spawn(clients::write(shared.clone(), log, writer(log, n), random));
                }
                for n in 0..READERS {
                    tasks.spawn(clients::read(shared.clone(), log, n, random(100 + n)));
                }
                while let Some(ended) = tasks.join_next().await {
                    if let Err(error) = ended {
                        shared.complain(format!("a client of a log broke off: {error}"));
                    }
                }
            };
            match runtime() {
                Ok(runtime) => runtime.block_on(run),
                Err(error) => shared.complain(format!("clients of a log cannot begin: {error:#}")),
            }
        })
    };
    (0..LOGS.len()).map(thread).collect()
}

/// A client of its own, and the log by it.
async fn open(shared: &Shared, log: usize) -> anyhow::Result<LogHandle> {
    let options = ClientOptions {
        deadline: PATIENCE,
        ..ClientOptions::default()
    };
    let client = Client::connect(&shared.native_doors(), options)
        .await
        .context("cannot connect")?;
    let opened = client.open_log(Some(POOL), LOGS[log].0).await;
    opened.with_context(|| format!("cannot open log {}", LOGS[log].0))
}

/// Appends to each log once more, and reads all of it, until that time. What could not be done, in words; and the number of positions that were read.
pub fn read_all(shared: &Arc<Shared>, until: Instant) -> anyhow::Result<(u64, Vec<String>)> {
    runtime()?.block_on(async {
        let (mut all, mut wrong) = (0, Vec::new());
        for (log, (name, _)) in LOGS.iter().enumerate() {
            match read_one(shared, log, until).await {
                Ok(positions) => all += positions,
                Err(error) => wrong.push(format!("log {name} at the end: {error:#}")),
            }
        }
        Ok((all, wrong))
    })
}

async fn read_one(shared: &Arc<Shared>, log: usize, until: Instant) -> anyhow::Result<u64> {
    let handle = again(until, || open(shared, log)).await?;
    let last = LAST_WRITER + log as u32;
    let mut number = 0;
    let appended = async || {
        number += 1;
        clients::append_once(shared, &handle, (log, last), (number, 1)).await
    };
    again(until, appended).await.context("no append is taken")?;
    let call = shared.now();
    let tail = again(until, async || Ok(handle.tail().await?)).await;
    let tail = tail.context("the tail is not known")?;
    shared.logs.tail(LogTail {
        log,
        tail,
        call,
        returned: shared.now(),
    });
    let mut tasks = tokio::task::JoinSet::new();
    for part in 0..READS_AT_ONCE as u64 {
        let (shared, handle) = (shared.clone(), handle.clone());
        tasks.spawn(async move {
            for position in (part..tail).step_by(READS_AT_ONCE) {
                let read = read_until(&shared, &handle, (log, position), until).await;
                read.with_context(|| format!("position {position} cannot be read"))?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("a reader broke off")??;
    }
    Ok(tail)
}

/// Reads a position, until that time.
async fn read_until(
    shared: &Shared,
    handle: &LogHandle,
    (log, position): (usize, u64),
    until: Instant,
) -> anyhow::Result<()> {
    loop {
        match clients::read_once(shared, handle, log, position).await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= until => return Err(error),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Tries until that time. The error is the last one.
async fn again<T>(
    until: Instant,
    mut attempt: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    loop {
        match attempt().await {
            Err(_) if Instant::now() < until => tokio::time::sleep(PAUSE).await,
            done => return done,
        }
    }
}

/// The rest of a writer between two appends.
const WRITER_REST: Duration = Duration::from_millis(40);
/// The rest of a reader between two reads.
const READER_REST: Duration = Duration::from_millis(15);
