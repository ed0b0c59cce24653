//! `staves bench log`: appends to a log and reads beside them, in an open loop or a closed one; rows L1, L2, L4 and L6.
//!
//! Each run has a log of its own, which is deleted at its end. With `--rate`, appends are sent when they are due, whatever was answered, and their
//! latency counts from then; with `--depth`, each client has so many under way. Positions that no acknowledged append has are holes.

mod append;
mod read;
mod report;
mod round;
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
use staves_cli_common::output::{self, bytes, count, number};
use staves_cli_common::running::at_signal;

/// Most runs of one command.
const RUNS_MAX: usize = 1000;

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

    /// Clients that append, each by itself; a list
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1", value_parser = value_parser!(u32).range(1..=1024))]
    pub clients: Vec<u32>,

    /// Threads that share the clients
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=64))]
    pub threads: u32,

    /// Readers that follow the tail meanwhile
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = value_parser!(u32).range(0..=64))]
    pub readers: u32,

    /// Readers that read old records meanwhile, again and again
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = value_parser!(u32).range(0..=64))]
    pub cold_readers: u32,

    /// Bytes of records that are appended before anything is measured, where there are --cold-readers
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
                for clients in &self.clients {
                    for (rate, depth) in &paces {
                        plans.push(LogPlan {
                            mode: *mode,
                            size_bytes: size.0,
                            clients: *clients,
                            rate: *rate,
                            depth: *depth,
                            threads: self.threads.min(*clients),
                            readers: self.readers,
                            cold_readers: self.cold_readers,
                            fill_bytes: self.fill.0,
                            warm_up: self.warm_up.duration(),
                            duration: self.duration.duration(),
                        });
                    }
                }
            }
        }
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
        Ok(plans)
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
        let outcome = round::measure(global, session, (pool, &name), plan);
        let deleted = session.wait(session.client.delete_log(pool, &name));
        rounds.push(outcome?);
        deleted.with_context(|| format!("log '{name}' is left behind"))?;
    }
    let run = LogRun::new(plan, rounds).context("a run has one round at least")?;
    // Programs have nothing to read on stderr but an error.
    if global.output == Format::Table {
        output::say(format_args!(
            "{:?} {}, {}: {} appends/s",
            plan.mode,
            bytes(plan.size_bytes),
            count(u64::from(plan.clients), "client"),
            number(run.appends_per_second().round() as u64)
        ));
    }
    Ok(run)
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: LogBench,
    }

    fn parse(line: &str) -> Result<LogBench, String> {
        let words = ["log"].into_iter().chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(line.bench)
    }

    #[test]
    fn lists_make_every_combination() {
        let bench = parse("--mode bind,predict,corfu --rate 10,20 --clients 1,2 --seconds 3");
        let plans = bench.expect("a good line").plans().expect("good plans");
        assert_eq!(plans.len(), 3 * 2 * 2);
        assert_eq!(plans[0].duration, Duration::from_secs(3));
        assert_eq!((plans[1].rate, plans[1].depth), (Some(20), 0));
        let bench = parse("--depth 1,64 --warm-up 50ms").expect("a good line");
        let plans = bench.plans().expect("good plans");
        assert_eq!((plans[1].rate, plans[1].depth), (None, 64));
        assert_eq!(plans[1].warm_up, Duration::from_millis(50));
    }

    #[test]
    fn wrong_values_are_told_what_would_be_right() {
        for (line, said) in [
            ("--mode quick", "predict"),
            ("--size 0", "1 byte"),
            ("--size 1TiB", "1 byte"),
            ("--rate 0", "1.."),
            ("--rate 5 --depth 2", "cannot be used with"),
            ("--tokens --rate 2", "cannot be used with"),
            ("--clients 0", "1.."),
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(said), "{line}: {error}");
        }
        let short = parse("--duration 1ms").expect("a line").plans();
        assert!(short.is_err_and(|error| error.to_string().contains("100ms")));
    }
}
