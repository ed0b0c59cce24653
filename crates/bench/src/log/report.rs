//! The report of a bench of logs.

#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::Serialize;
use staves_cli_common::output::{Column, bytes, columns, count, number, or_dash};

use super::super::histogram::Histogram;
use super::super::memory::us;
use super::LogMode;
use super::round::{LogPlan, LogRound};

/// All that was measured: one entry of `runs` for each combination.
#[derive(Serialize, Debug)]
pub struct LogReport {
    pub runs: Vec<LogRun>,
}

/// One run: of its rounds, the one with the median latency.
#[derive(Serialize, Debug)]
pub struct LogRun {
    mode: LogMode,
    size_bytes: u64,
    /// Records of each append.
    batch: u32,
    /// 0: readers alone.
    clients: u32,
    /// Appends a second that were asked for; `null`: as many as `depth` allows.
    rate: Option<u64>,
    /// Appends of each client under way; `null` with a rate.
    depth: Option<u32>,
    readers: u32,
    cold_readers: u32,
    read_ahead: u32,
    rounds: usize,
    /// The lowest and the highest median latency of all rounds.
    rounds_p50_us: [f64; 2],
    seconds: f64,
    /// Acknowledged, and due in the window.
    appends: u64,
    appends_per_second: f64,
    records_per_second: f64,
    bytes_per_second: f64,
    latency_us: AppendLatency,
    /// Positions that were given out, warm-up and all.
    positions: u64,
    /// Those of them that no acknowledged append has; appends whose outcome is not known count as errors.
    holes: u64,
    holes_per_append: f64,
    errors: u64,
    error: Option<String>,
    /// Appends that were due and never sent.
    unsent: u64,
    read: ReadRun,
    cold_read: ReadRun,
    /// Against the same run without cold readers; `null` where there is none.
    cold_cost: Option<ColdCost>,
    client_cpu_us_per_append: Option<f64>,
    /// Of all nodes together; `null` where none has a door of Redis's protocol.
    server_cpu_us_per_append: Option<f64>,
    /// The same for each record that was read, where nobody appended.
    client_cpu_us_per_read: Option<f64>,
    server_cpu_us_per_read: Option<f64>,
}

/// The price of cold readers, in percent of the run without them.
#[derive(Clone, Copy, Serialize, Debug)]
struct ColdCost {
    /// Fewer appends a second.
    appends_percent: f64,
    /// A longer median latency.
    p50_percent: f64,
    /// A longer latency of the slowest in a hundred.
    p99_percent: f64,
}

/// Of appends, in microseconds.
#[derive(Serialize, Debug)]
struct AppendLatency {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

/// Of all readers of a kind.
#[derive(Serialize, Debug)]
struct ReadRun {
    records_per_second: f64,
    bytes_per_second: f64,
    errors: u64,
    error: Option<String>,
}

impl ReadRun {
    fn per_second(&self) -> String {
        let records = number(self.records_per_second as u64);
        format!("{records}/s, {}/s", bytes(self.bytes_per_second as u64))
    }
}

impl From<&Histogram> for AppendLatency {
    fn from(histogram: &Histogram) -> AppendLatency {
        let us = |ns: u64| ns as f64 / 1000.0;
        AppendLatency {
            mean: us(histogram.mean()),
            p50: us(histogram.quantile(0.5)),
            p90: us(histogram.quantile(0.9)),
            p99: us(histogram.quantile(0.99)),
            max: us(histogram.max()),
        }
    }
}

impl LogRun {
    /// The median of some rounds; `None` of none.
    pub fn new(plan: &LogPlan, mut rounds: Vec<LogRound>) -> Option<LogRun> {
        let p50 = |round: &LogRound| round.appends.latency.quantile(0.5);
        let read = |round: &LogRound| round.reads.records + round.cold_reads.records;
        match plan.clients {
            0 => rounds.sort_by_key(read),
            _ => rounds.sort_by_key(p50),
        }
        let range = [p50(rounds.first()?), p50(rounds.last()?)].map(|ns| ns as f64 / 1000.0);
        let round = rounds.get(rounds.len() / 2)?;
        let seconds = round.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        // Readers end with the window.
        let reading = plan.duration.as_secs_f64();
        let appends = round.appends.latency.count();
        let batch = u64::from(plan.batch);
        let holes = round.positions.saturating_sub(round.appends.acked * batch);
        let per = |count: u64, time: Duration| {
            (count > 0).then(|| time.as_secs_f64() * 1e6 / count as f64)
        };
        let records_read = if plan.clients == 0 { read(round) } else { 0 };
        let per_append = |time| per(round.answered, time);
        let per_read = |time| per(records_read, time);
        let reads = |results: &super::read::ReadResults| ReadRun {
            records_per_second: results.records as f64 / reading,
            bytes_per_second: results.bytes as f64 / reading,
            errors: results.errors,
            error: results.error.clone(),
        };
        Some(LogRun {
            mode: plan.mode,
            size_bytes: plan.size_bytes,
            batch: plan.batch,
            clients: plan.clients,
            rate: plan.rate,
            depth: plan.rate.is_none().then_some(plan.depth),
            readers: plan.readers,
            cold_readers: plan.cold_readers,
            read_ahead: plan.read_ahead,
            rounds: rounds.len(),
            rounds_p50_us: range,
            seconds,
            appends,
            appends_per_second: appends as f64 / seconds,
            records_per_second: (appends * batch) as f64 / seconds,
            bytes_per_second: (appends * batch * plan.size_bytes) as f64 / seconds,
            latency_us: (&round.appends.latency).into(),
            positions: round.positions,
            holes,
            holes_per_append: holes as f64 / round.appends.acked.max(1) as f64,
            errors: round.appends.errors,
            error: round.appends.error.clone(),
            unsent: round.appends.unsent,
            read: reads(&round.reads),
            cold_read: reads(&round.cold_reads),
            cold_cost: None,
            client_cpu_us_per_append: per_append(round.client_cpu),
            server_cpu_us_per_append: round.server_cpu.and_then(per_append),
            client_cpu_us_per_read: per_read(round.client_cpu),
            server_cpu_us_per_read: round.server_cpu.and_then(per_read),
        })
    }

    /// A line for people while the next run is under way.
    pub fn sentence(&self) -> String {
        let what = match self.clients {
            0 => format!(
                "{} records/s read",
                number((self.read.records_per_second + self.cold_read.records_per_second) as u64)
            ),
            clients => format!(
                "{}: {} appends/s",
                count(clients, "client"),
                number(self.appends_per_second.round() as u64)
            ),
        };
        let mode = format!("{:?}", self.mode);
        format!("{mode} {}, {what}", bytes(self.size_bytes))
    }

    /// Returns whether the other run is this one without its cold readers.
    fn is_base(&self, other: &LogRun) -> bool {
        let plan = |run: &LogRun| {
            let load = (run.mode, run.size_bytes, run.batch, run.clients);
            (load, run.rate, run.depth, run.readers)
        };
        self.cold_readers > 0 && other.cold_readers == 0 && plan(self) == plan(other)
    }

    fn cost_against(&self, base: &LogRun) -> ColdCost {
        let more = |ours: f64, theirs: f64| match theirs > 0.0 {
            true => (ours / theirs - 1.0) * 100.0,
            false => 0.0,
        };
        ColdCost {
            appends_percent: -more(self.appends_per_second, base.appends_per_second),
            p50_percent: more(self.latency_us.p50, base.latency_us.p50),
            p99_percent: more(self.latency_us.p99, base.latency_us.p99),
        }
    }
}

const COLUMNS: &[Column<LogRun>] = &[
    ("mode ", |r| format!("{:?}", r.mode).to_lowercase()),
    ("size ", |r| bytes(r.size_bytes)),
    ("batch ", |r| r.batch.to_string()),
    ("clients ", |r| r.clients.to_string()),
    ("rate ", |r| or_dash(r.rate.map(number))),
    ("depth ", |r| or_dash(r.depth.map(|n| n.to_string()))),
    (
        "appends/s ",
        |r| number(r.appends_per_second.round() as u64),
    ),
    (
        "records/s ",
        |r| number(r.records_per_second.round() as u64),
    ),
    ("p50 ", |r| us(r.latency_us.p50)),
    ("p90 ", |r| us(r.latency_us.p90)),
    ("p99 ", |r| us(r.latency_us.p99)),
    ("max ", |r| us(r.latency_us.max)),
    ("holes/append ", |r| format!("{:.3}", r.holes_per_append)),
    ("follow ", |r| r.read.per_second()),
    ("cold ", |r| r.cold_read.per_second()),
    ("cold cost ", |r| {
        or_dash(
            r.cold_cost
                .map(|cost| format!("{:.1} %", cost.appends_percent)),
        )
    }),
    ("client cpu/append ", |r| {
        or_dash(r.client_cpu_us_per_append.map(us))
    }),
    ("server cpu/append ", |r| {
        or_dash(r.server_cpu_us_per_append.map(us))
    }),
    ("errors ", |r| number(r.errors)),
    ("unsent ", |r| number(r.unsent)),
];

impl LogReport {
    /// Compares each run that had cold readers with the same one without, if that was run.
    pub fn compare(&mut self) {
        for at in 0..self.runs.len() {
            let run = &self.runs[at];
            let base = self.runs.iter().find(|base| run.is_base(base));
            self.runs[at].cold_cost = base.map(|base| run.cost_against(base));
        }
    }

    /// For people: a row a run, then what went wrong.
    pub fn table(&self) -> String {
        let mut text = columns(COLUMNS, &self.runs);
        for (at, run) in self.runs.iter().enumerate() {
            let all = [&run.error, &run.read.error, &run.cold_read.error];
            for error in all.into_iter().flatten() {
                text.push_str(&format!("\nrow {}: {error}", at + 1));
            }
        }
        text
    }
}
