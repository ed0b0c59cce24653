//! `staves bench log`: appends to a log and reads beside them, in an open loop or a closed one; rows L1, L2, L4 and L6.
//!
//! Each run has a log of its own, which is deleted at its end. With `--rate`, appends are sent when they are due, whatever was answered, and their
//! latency counts from then; with `--depth`, each client has so many under way. Positions that no acknowledged append has are holes.

mod append;
mod read;
mod report;
mod round;
#[cfg(test)]
mod tests;
mod tokens;

use std::time::Duration;

use anyhow::Context;
use clap::{ValueEnum, value_parser};
use serde::Serialize;
use staves_client::{AppendMode, LOG_BATCH_BYTES_MAX};
use staves_node::config::{Millis, Size};

use self::report::{LogReport, LogRun};
use self::round::LogPlan;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::Own;
use staves_cli_common::failure::{Failure, failed};
use staves_cli_common::options::{Format, GlobalOptions};
use staves_cli_common::output;
use staves_cli_common::running::at_signal;

/// Most runs of one command.
const RUNS_MAX: usize = 1000;
/// Most records of an append.
const BATCH_MAX: i64 = 1024;

/// The way of a log's appends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogMode {
    /// Data and request at once, the sequencer binds
    Bind,
    /// The client guesses the unit of its position
    Predict,
    /// The position first, the data second
    Corfu,
}

impl From<LogMode> for AppendMode {
    fn from(mode: LogMode) -> AppendMode {
        match mode {
            LogMode::Bind => AppendMode::Bind,
            LogMode::Predict => AppendMode::Predict,
            LogMode::Corfu => AppendMode::Corfu,
        }
    }
}

#[derive(clap::Args, Debug)]
pub struct LogBench {
    /// The pool of logs; needed where there are several
    #[arg(long)]
    pub pool: Option<String>,

    /// The ways of appending; a list
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bind")]
    pub mode: Vec<LogMode>,

    /// Appends a second of all clients, sent when they are due whatever was answered; latency counts from then. A list
    #[arg(long, value_name = "APPENDS", value_delimiter = ',', conflicts_with = "depth", value_parser = value_parser!(u64).range(1..=10_000_000))]
    pub rate: Vec<u64>,

    /// Appends that each client has under way, where there is no --rate; a list
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1", value_parser = value_parser!(u32).range(1..=1024))]
    pub depth: Vec<u32>,

    /// Bytes of a record; a list
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "1KiB", value_parser = record_size)]
    pub size: Vec<Size>,

    /// Records of each append, at positions in a row; a list
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1", value_parser = value_parser!(u32).range(1..=BATCH_MAX))]
    pub batch: Vec<u32>,

    /// Clients that append, each by itself; 0: the readers alone. A list
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1", value_parser = value_parser!(u32).range(0..=1024))]
    pub clients: Vec<u32>,

    /// The zone of the sequencer; if not given, it is where a log's first append makes it
    #[arg(long, value_name = "ZONE")]
    pub sequencer_zone: Option<String>,

    /// Threads that share the clients
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=64))]
    pub threads: u32,

    /// Readers that follow the tail meanwhile; without clients they follow the filled log from its beginning, again and again
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = value_parser!(u32).range(0..=64))]
    pub readers: u32,

    /// Readers that read the filled log from its beginning on, again and again; a list: with 0 in it, it is said what they cost the appends
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "0", value_parser = value_parser!(u32).range(0..=64))]
    pub cold_readers: Vec<u32>,

    /// Positions that each reader reads at once
    #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = value_parser!(u32).range(1..=1024))]
    pub read_ahead: u32,

    /// Bytes of records that are appended before anything is measured, where there are --cold-readers, or readers alone
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub fill: Size,

    /// The measured time of each round: seconds, or a time with its unit
    #[arg(long, visible_alias = "seconds", value_name = "TIME", default_value = "5s", value_parser = seconds)]
    pub duration: Millis,

    /// The time of each round before it is measured
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = seconds)]
    pub warm_up: Millis,

    /// Rounds of each run, of which the one with the median latency is reported
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=101))]
    pub rounds: u32,

    /// Measure tokens a second of a sequencer instead, beside a bare counter over the same network stack
    #[arg(long, conflicts_with_all = ["rate", "readers", "cold_readers"])]
    pub tokens: bool,
}

fn record_size(text: &str) -> Result<Size, String> {
    let size = match text.parse() {
        Ok(bytes) => Size(bytes),
        Err(_) => text.parse::<Size>()?,
    };
    match size.0 {
        1.. if size.0 <= LOG_BATCH_BYTES_MAX as u64 => Ok(size),
        _ => Err(format!("a record has 1 byte to {LOG_BATCH_BYTES_MAX}")),
    }
}

/// A time; a bare number is seconds.
fn seconds(text: &str) -> Result<Millis, String> {
    match text.parse::<u32>() {
        Ok(seconds) => format!("{seconds}s").parse::<Millis>(),
        Err(_) => text.parse::<Millis>(),
    }
}

impl LogBench {
    /// Every combination of the lists.
    fn plans(&self) -> Result<Vec<LogPlan>, Failure> {
        let paces: Vec<(Option<u64>, u32)> = match &self.rate[..] {
            [] => self.depth.iter().map(|depth| (None, *depth)).collect(),
            rates => rates.iter().map(|rate| (Some(*rate), 0)).collect(),
        };
        let mut plans = Vec::new();
        for mode in &self.mode {
            for size in &self.size {
                for batch in &self.batch {
                    for clients in &self.clients {
                        for cold_readers in &self.cold_readers {
                            let plan = |(rate, depth): &(_, _)| LogPlan {
                                rate: *rate,
                                depth: *depth,
                                ..self.plan(*mode, (size.0, *batch), (*clients, *cold_readers))
                            };
                            plans.extend(paces.iter().map(plan));
                        }
                    }
                }
            }
        }
        self.check(&plans)?;
        Ok(plans)
    }

    /// A plan but for its pace.
    fn plan(
        &self,
        mode: LogMode,
        (size_bytes, batch): (u64, u32),
        (clients, cold_readers): (u32, u32),
    ) -> LogPlan {
        // The same log for those that are compared: also the one without cold readers is filled.
        let is_filled = clients == 0 || self.cold_readers.iter().any(|readers| *readers > 0);
        LogPlan {
            mode,
            size_bytes,
            batch,
            clients,
            rate: None,
            depth: 0,
            threads: self.threads.min(clients),
            readers: self.readers,
            cold_readers,
            read_ahead: self.read_ahead,
            fill_bytes: if is_filled { self.fill.0 } else { 0 },
            warm_up: self.warm_up.duration(),
            duration: self.duration.duration(),
        }
    }

    /// Refuses what makes no sense together.
    fn check(&self, plans: &[LogPlan]) -> Result<(), Failure> {
        let wrong = |text: String| Err(Failure::Own(Own::Usage, text));
        if plans.len() > RUNS_MAX {
            let runs = plans.len();
            return wrong(format!(
                "these lists make {runs} runs; at most {RUNS_MAX} are done at once"
            ));
        }
        if self.duration.duration() < Duration::from_millis(100) {
            return wrong("--duration is 100ms at least: nothing can be told of less".into());
        }
        for plan in plans {
            let bytes = plan.size_bytes * u64::from(plan.batch);
            if bytes > LOG_BATCH_BYTES_MAX as u64 {
                return wrong(format!(
                    "an append of --batch {} and --size {} has {bytes} bytes; {LOG_BATCH_BYTES_MAX} is the most",
                    plan.batch, plan.size_bytes
                ));
            }
            if plan.batch > 1 && plan.mode != LogMode::Bind {
                let mode = format!("{:?}", plan.mode).to_lowercase();
                return wrong(format!(
                    "--mode {mode} appends one record at a time: leave --batch {} out, or take --mode bind",
                    plan.batch
                ));
            }
            if plan.clients + plan.readers + plan.cold_readers == 0 {
                let text = "with --clients 0 nothing is done: name --readers or --cold-readers";
                return wrong(text.into());
            }
        }
        Ok(())
    }
}

pub fn run(global: &GlobalOptions, bench: &LogBench) -> anyhow::Result<()> {
    if bench.tokens {
        return tokens::run(global, bench);
    }
    let plans = bench.plans()?;
    let session = Cluster::open(global)?;
    let prefix = format!("bench-{:08x}", rand::random::<u32>());
    clean_up_on_ctrl_c(global, bench, &prefix)?;
    let mut report = LogReport { runs: Vec::new() };
    let mut outcome = Ok(());
    for (at, plan) in plans.iter().enumerate() {
        match run_one(global, bench, &session, (&format!("{prefix}-{at}"), plan)) {
            Ok(run) => report.runs.push(run),
            Err(error) => {
                outcome = Err(error);
                break;
            }
        }
    }
    report.compare();
    // What was measured is told, whatever ended it.
    if outcome.is_ok() || !report.runs.is_empty() {
        output::answer(global.output, &report, LogReport::table)?;
    }
    outcome
}

/// All rounds of a run; the one with the median latency.
fn run_one(
    global: &GlobalOptions,
    bench: &LogBench,
    session: &Cluster,
    (name, plan): (&str, &LogPlan),
) -> anyhow::Result<LogRun> {
    let pool = bench.pool.as_deref();
    let mut rounds = Vec::new();
    for at in 0..bench.rounds {
        let name = format!("{name}-{at}");
        session.begin_again();
        session.wait(session.client.create_log(pool, &name, plan.mode.into()))?;
        let placed = place_sequencer(session, bench, &name);
        let outcome = placed.and_then(|()| round::measure(global, session, (pool, &name), plan));
        let deleted = session.wait(session.client.delete_log(pool, &name));
        rounds.push(outcome?);
        deleted.with_context(|| format!("log '{name}' is left behind"))?;
    }
    let run = LogRun::new(plan, rounds).context("a run has one round at least")?;
    // Programs have nothing to read on stderr but an error.
    if global.output == Format::Table {
        output::say(run.sentence());
    }
    Ok(run)
}

/// Moves a log's sequencer to the zone that was asked for.
fn place_sequencer(session: &Cluster, bench: &LogBench, name: &str) -> anyhow::Result<()> {
    let Some(zone) = bench.sequencer_zone.as_deref() else {
        return Ok(());
    };
    let map = session.map()?;
    let home = map.homes().find(|home| home.zone.as_deref() == Some(zone));
    let home = home.with_context(|| {
        format!(
            "no node of zone '{zone}' is up and not drained: 'staves node list' shows the zones"
        )
    })?;
    let moved = session
        .client
        .move_log(bench.pool.as_deref(), name, home.id);
    session.wait(moved)?;
    Ok(())
}

/// From now on Ctrl-C (and SIGTERM) deletes the bench's logs before it ends the program.
fn clean_up_on_ctrl_c(
    global: &GlobalOptions,
    bench: &LogBench,
    prefix: &str,
) -> anyhow::Result<()> {
    let session = Cluster::open(global)?;
    let (pool, prefix) = (bench.pool.clone(), prefix.to_owned());
    at_signal(move || {
        let deleted = session.runtime.block_on(async {
            let logs = session.client.logs(pool.as_deref()).await?;
            for log in logs.iter().filter(|log| log.name.starts_with(&prefix)) {
                let pool = Some(log.pool.as_str());
                session.client.delete_log(pool, &log.name).await?;
            }
            Ok::<_, staves_client::ClientError>(())
        });
        match deleted.map_err(failed) {
            Ok(()) => output::say("\nstopped: the bench's logs are deleted"),
            Err(error) => output::say(format_args!(
                "\nstopped: {error}; logs that begin with '{prefix}' may be left behind: 'staves log list'"
            )),
        }
    })
}
