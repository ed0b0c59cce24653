//! `staves bench`: load a server and measure it, from the outside.
//!
//! One client measures Staves over Redis's protocol and over its own, redis-server and memcached, so that
//! what is compared was measured in one way.
//!
//! **What the figures mean.** A request counts if it was sent within the window (after the warm-up), and then
//! always: as answered, or as an error once its deadline has passed. (One that is never
//! answered counts even if it was sent in the warm-up.) Operations a second are its answered keys
//! over the time until the last of them was answered. Latency counts from the sending; with `--rate` from the
//! time that the request was *due*, so that a stall is felt by all that should have been sent meanwhile
//! (without that, a stalled server hides its worst latencies by holding back the client).
//!
//! **Path of the data.** `args` makes a list of plans. For each, `workers` starts threads, each with a runtime of
//! its own; every connection is a task of one thread (`stream`, or `native`) that draws requests (`work`,
//! `draw`) when their time has come (`pace`), and counts answers into its thread's `tally`, latencies into a
//! `histogram`. At the end the keys are deleted. `dialect` is the bytes; `cpu` what the servers used; `progress` and `report` what is told of it.

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic if nobody reads

mod args;
mod cpu;
mod dialect;
mod draw;
mod erasure;
mod histogram;
mod log;
mod memory;
mod native;
mod pace;
mod progress;
mod recovery;
mod report;
mod stream;
mod tally;
mod work;
mod workers;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use rand::RngCore;
use staves_model::NodeState;
use staves_node::cpu::CpuTime;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub use args::Bench;
use args::{CacheBench, Protocol, RunPlan};
use cpu::ServerCpu;
use dialect::Dialect;
use draw::Draw;
use pace::Window;
use progress::PhaseProgress;
use report::{CacheReport, CacheRun, Measured};
use tally::{RequestKind, Tally};
use work::PhaseJob;
use workers::{Target, Workers};

use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::{Format, GlobalOptions};
use staves_cli_common::output::{self, bytes, count, number};
use staves_cli_common::running::runtime;
use staves_wire::ErrorCode;

/// Most bytes that one connection has under way while keys are set for the first time.
const FILL_FLIGHT_BYTES: u64 = 4 << 20;
/// Connections of each thread that set them.
const FILL_CONNECTIONS: u32 = 4;
/// Longest filling: a year. It ends when all keys are set, or with the first error.
const FILL_MAX: Duration = Duration::from_secs(365 * 86_400);
/// The interval at which a run is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Does what a `bench` command asks for.
pub fn run(global: &GlobalOptions, command: &Bench) -> anyhow::Result<()> {
    let cache = match command {
        Bench::Cache(cache) => cache,
        Bench::Memory(bench) => return memory::run(global, bench),
        Bench::Erasure(bench) => return erasure::run(global, bench),
        Bench::Log(bench) => return log::run(global, bench),
        Bench::Recovery(bench) => return recovery::run(global, bench),
    };
    let plans = cache.plans()?;
    let deadline = global.deadline.duration();
    let (target, cpu) = find_servers(global, cache)?;
    let runtime = runtime()?;
    runtime.block_on(async {
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
        let mut desk = Executor {
            cache,
            out: global.output,
            target,
            cpu,
            deadline,
            interrupt,
            interrupted: false,
            touched: false,
        };
        let mut report = CacheReport {
            protocol: cache.protocol.to_string(),
            servers: desk.addresses(),
            threads: cache.threads,
            runs: Vec::new(),
            interrupted: false,
        };
        let outcome = desk.runs(&plans, &mut report.runs).await;
        let cleared = match cache.keep {
            true => Ok(()),
            false => desk.clear(&plans).await, // of all plans the keys are the same
        };
        report.interrupted = desk.interrupted;
        // What was measured is told, whatever ended it.
        if outcome.is_ok() || !report.runs.is_empty() {
            output::answer(global.output, &report, CacheReport::table)?;
        }
        outcome?;
        cleared?;
        match report.interrupted {
            true => {
                let text = "the bench was interrupted; what is told was measured until then";
                Err(Failure::Own(Own::Interrupted, text.into()).into())
            }
            false => Ok(()),
        }
    })
}

/// The servers to load, and those to ask about processor time.
fn find_servers(global: &GlobalOptions, cache: &CacheBench) -> anyhow::Result<(Target, ServerCpu)> {
    let timeout = global.deadline.duration();
    let given: Vec<String> = cache.server.iter().map(ToString::to_string).collect();
    let resp = if cache.server.is_empty() && cache.protocol != Protocol::Memcached {
        doors(global)?
    } else {
        given.clone()
    };
    let target = match cache.protocol {
        Protocol::Native => Target::Native {
            addresses: global.cluster.iter().map(ToString::to_string).collect(),
            pool: cache.pool.clone().unwrap_or_else(|| "cache".to_owned()),
            secret: global.secret()?,
        },
        Protocol::Resp => Target::Stream {
            dialect: Dialect::Resp,
            addresses: resp.clone(),
        },
        Protocol::Memcached => Target::Stream {
            dialect: Dialect::Memcached,
            addresses: given.clone(),
        },
    };
    let cpu = match cache.protocol {
        _ if !cache.server_pid.is_empty() => ServerCpu::of_processes(&cache.server_pid)?,
        Protocol::Memcached => ServerCpu::Memcached {
            addresses: given,
            timeout,
        },
        Protocol::Resp | Protocol::Native => ServerCpu::Resp {
            addresses: resp,
            timeout,
        },
    };
    Ok((target, cpu))
}

/// The RESP doors of the cluster's nodes.
fn doors(global: &GlobalOptions) -> anyhow::Result<Vec<String>> {
    let map = Cluster::open(global)?.map()?;
    let up = map
        .nodes
        .values()
        .filter(|node| node.state == NodeState::Up);
    let doors: Vec<String> = up
        .map(|node| node.resp.clone())
        .filter(|address| !address.is_empty())
        .collect();
    if doors.is_empty() {
        let text = "no node of the cluster is up with a RESP door; see 'staves node list'";
        return Err(Failure::Wire(ErrorCode::Unreachable, text.into()).into());
    }
    Ok(doors)
}

/// Executes the runs, one after another.
struct Executor<'a> {
    cache: &'a CacheBench,
    out: Format,
    target: Target,
    cpu: ServerCpu,
    deadline: Duration,
    interrupt: Signal,
    interrupted: bool,
    /// Requests were sent, so that there may be keys to delete.
    touched: bool,
}

impl Executor<'_> {
    /// Reports the progress to people. Programs have nothing to read on stderr but an error.
    fn say(&self, text: &str) {
        if self.out == Format::Table {
            output::say(text);
        }
    }

    fn addresses(&self) -> Vec<String> {
        match &self.target {
            Target::Stream { addresses, .. } | Target::Native { addresses, .. } => {
                addresses.clone()
            }
        }
    }

    async fn runs(&mut self, plans: &[RunPlan], runs: &mut Vec<CacheRun>) -> anyhow::Result<()> {
        // What every key was last set to, as far as it is known: values of so many bytes.
        let mut filled = None;
        for (at, plan) in plans.iter().enumerate() {
            if plan.mix.reads > 0 && filled != Some(plan.value_bytes) {
                self.fill(plan).await?;
                filled = Some(plan.value_bytes);
            }
            if filled != Some(plan.value_bytes) {
                filled = None;
            }
            if self.interrupted {
                break;
            }
            let (warm_up, duration) = (self.cache.warm_up, self.cache.duration);
            self.say(&format!("run {} of {}: {plan}", at + 1, plans.len()));
            let job = self.job(*plan, None);
            let (tally, measured) = self
                .phase(job, warm_up.duration(), duration.duration())
                .await?;
            if let Some(measured) = measured {
                let run = CacheRun::new(plan, &tally, &measured);
                let rate = number(run.operations_per_second().round() as u64);
                self.say(&format!(
                    "  {rate} operations/s, {}",
                    count(tally.error_count(), "error")
                ));
                runs.push(run);
            }
            if self.interrupted {
                break;
            }
        }
        Ok(())
    }

    /// Sets every key, so that what is read has a value, and one of the right length.
    async fn fill(&mut self, plan: &RunPlan) -> anyhow::Result<()> {
        let (keys, size) = (count(plan.keys, "key"), bytes(plan.value_bytes));
        self.say(&format!("setting {keys} of {size}"));
        let tally = self.sweep(plan, RequestKind::Write).await?;
        if let Some((_, text)) = tally.errors.values().next() {
            let done = number(tally.operations());
            let remedy = match ["OOM", "memory"].iter().any(|word| text.contains(word)) {
                true => "; give fewer --keys, or the server more memory",
                false => "",
            };
            bail!("after setting {done} of {keys} of {size}: {text}{remedy}");
        }
        Ok(())
    }

    /// Deletes every key. A second Ctrl-C ends it.
    async fn clear(&mut self, plans: &[RunPlan]) -> anyhow::Result<()> {
        let Some(plan) = plans.first().filter(|_| self.touched) else {
            return Ok(());
        };
        let keys = count(plan.keys, "key");
        self.say(&format!("deleting {keys} (--keep leaves them)"));
        let tally = self.sweep(plan, RequestKind::Delete).await?;
        if let Some((_, text)) = tally.errors.values().next() {
            let done = number(tally.operations());
            bail!("after deleting {done} of {keys}: {text}; the rest is left there");
        }
        Ok(())
    }

    /// Does one thing with every key, as fast as a few connections can.
    async fn sweep(&mut self, plan: &RunPlan, kind: RequestKind) -> anyhow::Result<Tally> {
        let plan = RunPlan {
            draw: Draw::Uniform,
            connections: self.cache.threads * FILL_CONNECTIONS,
            pipeline: (FILL_FLIGHT_BYTES / plan.value_bytes).clamp(1, 64) as u32,
            batch: 1,
            rate: None,
            ..*plan
        };
        let job = self.job(plan, Some(kind));
        let (tally, _) = self.phase(job, Duration::ZERO, FILL_MAX).await?;
        Ok(tally)
    }

    fn job(&self, plan: RunPlan, sweep: Option<RequestKind>) -> Arc<PhaseJob> {
        // Random bytes, so that nothing on the way can make less of them.
        let mut value = vec![0; plan.value_bytes as usize];
        rand::rng().fill_bytes(&mut value);
        Arc::new(PhaseJob {
            plan,
            sweep,
            value: Bytes::from(value),
            deadline: self.deadline,
            seed: self.cache.seed,
        })
    }

    /// Connects, loads and counts. No measurement if it was interrupted before there was anything to measure.
    async fn phase(
        &mut self,
        job: Arc<PhaseJob>,
        warm_up: Duration,
        duration: Duration,
    ) -> anyhow::Result<(Tally, Option<Measured>)> {
        let threads = self.cache.threads;
        let workers = Workers::connect(&self.target, &job, threads)?;
        self.touched = true;
        let window = Arc::new(Window::new(Instant::now(), warm_up, duration));
        workers.go(&window);
        let mut progress = PhaseProgress::new(&job);
        self.watch(&workers, &window, window.start, &mut progress)
            .await?;
        let before = self.sample(&workers);
        self.watch(&workers, &window, window.end(), &mut progress)
            .await?;
        // Brought forward, if it was interrupted or the filling is done.
        window.stop();
        let after = self.sample(&workers);
        while !workers.are_done() {
            tokio::time::sleep(LOOK / 10).await;
        }
        progress.end();
        let tally = workers.join()?;
        let end = window.end();
        if end <= window.start {
            return Ok((tally, None));
        }
        let until = tally.last.unwrap_or(end).max(end);
        let sampled = (after.at - before.at).as_secs_f64() * f64::from(threads);
        let measured = Measured {
            elapsed: until - window.start,
            client_cpu_share: (after.client - before.client).total().as_secs_f64() / sampled,
            server_cpu: match (before.server, after.server) {
                (Some(before_cpu), Some(after_cpu)) => Some((
                    after_cpu.saturating_sub(before_cpu),
                    after.answered - before.answered,
                )),
                _ => None,
            },
        };
        Ok((tally, Some(measured)))
    }

    /// Waits until then, or until all is done; Ctrl-C ends the window.
    async fn watch(
        &mut self,
        workers: &Workers,
        window: &Window,
        until: Instant,
        progress: &mut PhaseProgress,
    ) -> anyhow::Result<()> {
        while !workers.are_done() && Instant::now() < until.min(window.end()) {
            let rest = until.saturating_duration_since(Instant::now()).min(LOOK);
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                _ = self.interrupt.recv() => {
                    self.interrupted = true;
                    window.stop();
                }
            }
            progress.show(workers.answered.load(Ordering::Relaxed));
        }
        Ok(())
    }

    fn sample(&self, workers: &Workers) -> Sample {
        Sample {
            server: self.cpu.read(),
            answered: workers.answered.load(Ordering::Relaxed),
            client: CpuTime::of_this_process(),
            at: Instant::now(),
        }
    }
}

/// Processor time and operations at one moment.
struct Sample {
    server: Option<Duration>,
    answered: u64,
    client: CpuTime,
    at: Instant,
}
