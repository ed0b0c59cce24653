//! One round: a log is filled where that is asked for, and then appended to and read for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use rand::RngCore;
use staves_client::{ClientError, LogHandle};
use staves_node::cpu::CpuTime;
use tokio::task::JoinSet;

use super::super::cpu::ServerCpu;
use super::super::pace::{Pace, Window};
use super::LogMode;
use super::append::{AppendLoad, AppendResults};
use super::read::{ReadLoad, ReadResults};
use staves_cli_common::cluster::Cluster;
use staves_cli_common::failure::failed;
use staves_cli_common::options::GlobalOptions;

/// Appends under way while a log is filled.
const FILL_UNDER_WAY: usize = 64;

/// The parameters of one run.
#[derive(Clone, PartialEq, Debug)]
pub struct LogPlan {
    pub mode: LogMode,
    pub size_bytes: u64,
    /// Records of each append.
    pub batch: u32,
    /// Without any, the readers are measured alone.
    pub clients: u32,
    /// Appends a second; without it, each client has `depth` under way.
    pub rate: Option<u64>,
    pub depth: u32,
    pub threads: u32,
    pub readers: u32,
    pub cold_readers: u32,
    /// Positions that a reader reads at once.
    pub read_ahead: u32,
    /// Bytes that are appended before anything is measured; 0 for none.
    pub fill_bytes: u64,
    pub warm_up: Duration,
    pub duration: Duration,
}

/// The measurements of one round.
#[derive(Clone, Debug, Default)]
pub struct LogRound {
    pub appends: AppendResults,
    pub reads: ReadResults,
    pub cold_reads: ReadResults,
    /// From the window's beginning to its end, or to its last acknowledgement if that came later.
    pub elapsed: Duration,
    /// Positions that were given out meanwhile, warm-up and all.
    pub positions: u64,
    /// CPU time in the window, and the appends that were acknowledged in it.
    pub client_cpu: Duration,
    pub server_cpu: Option<Duration>,
    pub answered: u64,
}

/// The work of a thread.
#[derive(Clone, Copy)]
enum ThreadWork {
    /// These clients.
    Appends { first: u32, clients: u32 },
    /// Readers at the tail, and readers of old records.
    Reads { tail: u64 },
}

/// The results of a thread.
#[derive(Default)]
struct ThreadResults {
    appends: AppendResults,
    reads: ReadResults,
    cold_reads: ReadResults,
}

/// The parts that all threads share.
struct RoundThreads<'a> {
    global: &'a GlobalOptions,
    pool: Option<&'a str>,
    name: &'a str,
    plan: &'a LogPlan,
    records: Arc<[Bytes]>,
    answered: Arc<AtomicU64>,
}

/// Runs a round in a log that is new.
pub fn measure(
    global: &GlobalOptions,
    session: &Cluster,
    (pool, name): (Option<&str>, &str),
    plan: &LogPlan,
) -> anyhow::Result<LogRound> {
    let mut record = vec![0; plan.size_bytes as usize];
    rand::rng().fill_bytes(&mut record);
    let record = Bytes::from(record);
    let threads = RoundThreads {
        global,
        pool,
        name,
        plan,
        records: vec![record.clone(); plan.batch as usize].into(),
        answered: Arc::default(),
    };
    session.begin_again();
    let log = session.wait(session.client.open_log(pool, name))?;
    // The first append makes a sequencer, which is not what is measured.
    session.wait(log.append(std::slice::from_ref(&record)))?;
    if plan.fill_bytes > 0 {
        let filling = fill(&log, &record, plan);
        session.runtime.block_on(filling)?;
    }
    session.begin_again();
    let before = session.wait(log.tail())?;
    let doors = super::super::doors(global).unwrap_or_default();
    let timeout = global.deadline.duration();
    let cpu = (!doors.is_empty()).then_some(ServerCpu::Resp {
        addresses: doors,
        timeout,
    });
    let mut round = threads.run(before, cpu.as_ref())?;
    session.begin_again();
    round.positions = session.wait(log.tail())?.saturating_sub(before);
    Ok(round)
}

/// Appends so many bytes, as fast as a few callers can.
async fn fill(log: &LogHandle, record: &Bytes, plan: &LogPlan) -> anyhow::Result<()> {
    let batch = (log.batch_records_max() as u64)
        .min(64)
        .min((256 << 10) / plan.size_bytes)
        .max(1);
    let records = vec![record.clone(); batch as usize];
    let appends = plan.fill_bytes.div_ceil(batch * plan.size_bytes);
    let mut under_way: JoinSet<Result<_, ClientError>> = JoinSet::new();
    for _ in 0..appends {
        if under_way.len() >= FILL_UNDER_WAY
            && let Some(done) = under_way.join_next().await
        {
            done.context("an append broke off")?.map_err(failed)?;
        }
        let (log, records) = (log.clone(), records.clone());
        under_way.spawn(async move { log.append(&records).await });
    }
    while let Some(done) = under_way.join_next().await {
        done.context("an append broke off")?.map_err(failed)?;
    }
    Ok(())
}

impl RoundThreads<'_> {
    fn run(&self, tail: u64, cpu: Option<&ServerCpu>) -> anyhow::Result<LogRound> {
        let (threads, clients) = (self.plan.threads, self.plan.clients);
        let part = |thread: u32| {
            (u64::from(clients) * u64::from(thread) / u64::from(threads.max(1))) as u32
        };
        let appends = (0..threads).map(|thread| ThreadWork::Appends {
            first: part(thread),
            clients: part(thread + 1) - part(thread),
        });
        let has_readers = self.plan.readers + self.plan.cold_readers > 0;
        let reads = has_readers.then_some(ThreadWork::Reads { tail });
        let works: Vec<ThreadWork> = appends.chain(reads).collect();
        std::thread::scope(|scope| {
            let (ready, all_ready) = channel();
            let mut spawned = Vec::new();
            for work in works {
                let (go, wait) = channel();
                let ready = ready.clone();
                spawned.push((go, scope.spawn(move || self.thread(work, &ready, &wait))));
            }
            // Each thread says one word, and each connection has its deadline: this ends.
            let connected: anyhow::Result<()> = all_ready.iter().take(spawned.len()).collect();
            connected?;
            let (warm_up, duration) = (self.plan.warm_up, self.plan.duration);
            let window = Arc::new(Window::new(Instant::now(), warm_up, duration));
            for (go, _) in &spawned {
                // A thread that is gone shows when it is joined.
                let _ = go.send(window.clone());
            }
            let mut round = self.watch(&window, cpu);
            for (_, thread) in spawned {
                let Ok(part) = thread.join() else {
                    bail!("a thread of the bench has failed");
                };
                round.appends.merge(part.appends);
                round.reads.merge(part.reads);
                round.cold_reads.merge(part.cold_reads);
            }
            let until = round.appends.last.unwrap_or(window.end()).max(window.end());
            round.elapsed = until - window.start;
            Ok(round)
        })
    }

    /// Waits for the window's end; the CPU time that was used in it.
    fn watch(&self, window: &Window, cpu: Option<&ServerCpu>) -> LogRound {
        let sample = || {
            let server = cpu.and_then(ServerCpu::read);
            let answered = self.answered.load(Ordering::Relaxed);
            (server, CpuTime::of_this_process(), answered)
        };
        std::thread::sleep(window.start.saturating_duration_since(Instant::now()));
        let before = sample();
        std::thread::sleep(window.end().saturating_duration_since(Instant::now()));
        let after = sample();
        LogRound {
            client_cpu: (after.1 - before.1).total(),
            server_cpu: after
                .0
                .zip(before.0)
                .map(|(after, before)| after.saturating_sub(before)),
            answered: after.2.saturating_sub(before.2),
            ..LogRound::default()
        }
    }

    fn thread(
        &self,
        work: ThreadWork,
        ready: &Sender<anyhow::Result<()>>,
        go: &Receiver<Arc<Window>>,
    ) -> ThreadResults {
        let connected = self.connect(work);
        let (session, logs) = match connected {
            Ok(connected) => connected,
            Err(error) => {
                let _ = ready.send(Err(error));
                return ThreadResults::default();
            }
        };
        let _ = ready.send(Ok(()));
        let Ok(window) = go.recv() else {
            // Another thread could not connect: nothing will be measured.
            return ThreadResults::default();
        };
        session.runtime.block_on(async {
            match work {
                ThreadWork::Appends { first, .. } => ThreadResults {
                    appends: self.appends(first, logs, &window).await,
                    ..ThreadResults::default()
                },
                ThreadWork::Reads { tail } => self.reads(tail, logs, &window).await,
            }
        })
    }

    /// A client of the log for each of the thread's.
    fn connect(&self, work: ThreadWork) -> anyhow::Result<(Cluster, Vec<LogHandle>)> {
        let session = Cluster::open(self.global)?;
        let count = match work {
            ThreadWork::Appends { clients, .. } => clients,
            ThreadWork::Reads { .. } => self.plan.readers + self.plan.cold_readers,
        };
        let mut logs = Vec::new();
        for _ in 0..count {
            session.begin_again();
            logs.push(session.wait(session.client.open_log(self.pool, self.name))?);
        }
        Ok((session, logs))
    }

    async fn appends(
        &self,
        first: u32,
        logs: Vec<LogHandle>,
        window: &Arc<Window>,
    ) -> AppendResults {
        let mut tasks = JoinSet::new();
        for (index, log) in (first..).zip(logs) {
            let load = AppendLoad {
                log,
                records: self.records.clone(),
                window: window.clone(),
                answered: self.answered.clone(),
            };
            if self.plan.rate.is_some() {
                let (rate, clients) = (self.plan.rate, self.plan.clients);
                tasks.spawn(load.open(Pace::new(rate, window.zero, index, clients)));
                continue;
            }
            for _ in 0..self.plan.depth {
                tasks.spawn(load.clone().closed());
            }
        }
        let mut all = AppendResults::default();
        while let Some(done) = tasks.join_next().await {
            match done {
                Ok(part) => all.merge(part),
                Err(error) => {
                    all.errors += 1;
                    all.error = Some(format!("internal: {error}"));
                }
            }
        }
        all
    }

    async fn reads(
        &self,
        tail: u64,
        mut logs: Vec<LogHandle>,
        window: &Arc<Window>,
    ) -> ThreadResults {
        let cold = logs.split_off(logs.len().min(self.plan.readers as usize));
        let (mut at_tail, mut of_old) = (JoinSet::new(), JoinSet::new());
        let load = |log| ReadLoad {
            log,
            window: window.clone(),
            ahead: self.plan.read_ahead.into(),
        };
        // Where nobody appends there is nothing at the tail: followers read what is there, from the beginning.
        let alone = self.plan.clients == 0;
        let from = if alone { 0 } else { tail };
        for log in logs {
            at_tail.spawn(load(log).follow(from, alone));
        }
        for log in cold {
            of_old.spawn(load(log).old(tail));
        }
        let mut results = ThreadResults::default();
        while let Some(Ok(part)) = at_tail.join_next().await {
            results.reads.merge(part);
        }
        while let Some(Ok(part)) = of_old.join_next().await {
            results.cold_reads.merge(part);
        }
        results
    }
}
