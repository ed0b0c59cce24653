//! The report of a bench of logs.

use serde::Serialize;
use staves_cli_common::output::{Column, bytes, columns, number, or_dash};

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
    clients: u32,
    /// Appends a second that were asked for; `null`: as many as `depth` allows.
    rate: Option<u64>,
    /// Appends of each client under way; `null` with a rate.
    depth: Option<u32>,
    readers: u32,
    cold_readers: u32,
    rounds: usize,
    /// The lowest and the highest median latency of all rounds.
    rounds_p50_us: [f64; 2],
    seconds: f64,
    /// Acknowledged, and due in the window.
    appends: u64,
    appends_per_second: f64,
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
    client_cpu_us_per_append: Option<f64>,
    /// Of all nodes together; `null` where none has a door of Redis's protocol.
    server_cpu_us_per_append: Option<f64>,
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
        rounds.sort_by_key(p50);
        let range = [p50(rounds.first()?), p50(rounds.last()?)].map(|ns| ns as f64 / 1000.0);
        let round = rounds.get(rounds.len() / 2)?;
        let seconds = round.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        // Readers end with the window.
        let reading = plan.duration.as_secs_f64();
        let appends = round.appends.latency.count();
        let holes = round.positions.saturating_sub(round.appends.acked);
        let per_append = |time: std::time::Duration| {
            (round.answered > 0).then(|| time.as_secs_f64() * 1e6 / round.answered as f64)
        };
        let reads = |results: &super::read::ReadResults| ReadRun {
            records_per_second: results.records as f64 / reading,
            bytes_per_second: results.bytes as f64 / reading,
            errors: results.errors,
            error: results.error.clone(),
        };
        Some(LogRun {
            mode: plan.mode,
            size_bytes: plan.size_bytes,
            clients: plan.clients,
            rate: plan.rate,
            depth: plan.rate.is_none().then_some(plan.depth),
            readers: plan.readers,
            cold_readers: plan.cold_readers,
            rounds: rounds.len(),
            rounds_p50_us: range,
            seconds,
            appends,
            appends_per_second: appends as f64 / seconds,
            bytes_per_second: (appends * plan.size_bytes) as f64 / seconds,
            latency_us: (&round.appends.latency).into(),
            positions: round.positions,
            holes,
            holes_per_append: holes as f64 / round.appends.acked.max(1) as f64,
            errors: round.appends.errors,
            error: round.appends.error.clone(),
            unsent: round.appends.unsent,
            read: reads(&round.reads),
            cold_read: reads(&round.cold_reads),
            client_cpu_us_per_append: per_append(round.client_cpu),
            server_cpu_us_per_append: round.server_cpu.and_then(per_append),
        })
    }

    pub fn appends_per_second(&self) -> f64 {
        self.appends_per_second
    }
}

const COLUMNS: &[Column<LogRun>] = &[
    ("mode ", |r| format!("{:?}", r.mode).to_lowercase()),
    ("size ", |r| bytes(r.size_bytes)),
    ("clients ", |r| r.clients.to_string()),
    ("rate ", |r| or_dash(r.rate.map(number))),
    ("depth ", |r| or_dash(r.depth.map(|n| n.to_string()))),
    (
        "appends/s ",
        |r| number(r.appends_per_second.round() as u64),
    ),
    ("p50 ", |r| us(r.latency_us.p50)),
    ("p90 ", |r| us(r.latency_us.p90)),
    ("p99 ", |r| us(r.latency_us.p99)),
    ("max ", |r| us(r.latency_us.max)),
    ("holes/append ", |r| format!("{:.3}", r.holes_per_append)),
    ("read/s ", |r| bytes(r.read.bytes_per_second as u64)),
    ("cold read/s ", |r| {
        bytes(r.cold_read.bytes_per_second as u64)
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::append::AppendResults;
    use super::*;

    fn round(us: u64, holes: u64) -> LogRound {
        let mut appends = AppendResults::default();
        for _ in 0..100 {
            appends.latency.add(us * 1000);
        }
        appends.acked = 120;
        LogRound {
            appends,
            elapsed: Duration::from_secs(2),
            positions: 120 + holes,
            client_cpu: Duration::from_millis(10),
            server_cpu: None,
            answered: 100,
            ..LogRound::default()
        }
    }

    /// Row L6: the median round, with holes for each append and CPU time.
    #[test]
    fn l6_the_median_round_is_reported_with_its_holes() {
        let plan = LogPlan {
            mode: LogMode::Predict,
            size_bytes: 1024,
            clients: 4,
            rate: Some(60),
            depth: 0,
            threads: 1,
            readers: 0,
            cold_readers: 0,
            fill_bytes: 0,
            warm_up: Duration::ZERO,
            duration: Duration::from_secs(2),
        };
        let rounds = vec![round(900, 1), round(100, 2), round(300, 30)];
        let run = LogRun::new(&plan, rounds).expect("there are rounds");
        let json = serde_json::to_value(&run).expect("JSON");
        for (pointer, expected) in [
            ("/appends", 100.0),
            ("/appends_per_second", 50.0),
            ("/holes", 30.0),
            ("/holes_per_append", 0.25),
            ("/latency_us/max", 300.0),
            ("/rounds", 3.0),
            ("/client_cpu_us_per_append", 100.0),
        ] {
            let got = json.pointer(pointer).and_then(serde_json::Value::as_f64);
            assert_eq!(got, Some(expected), "{pointer} of {json}");
        }
        assert_eq!(
            (&json["mode"], &json["depth"]),
            (&"predict".into(), &().into())
        );
        assert!(json["server_cpu_us_per_append"].is_null(), "{json}");
        let table = LogReport { runs: vec![run] }.table();
        assert!(
            table.contains("HOLES/APPEND") && table.contains("0.250"),
            "{table}"
        );
        assert!(LogRun::new(&plan, Vec::new()).is_none());
    }
}
