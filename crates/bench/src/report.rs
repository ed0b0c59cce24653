//! The report of a bench.

use std::time::Duration;

use serde::Serialize;
use staves_node::config::Size;

use super::args::RunPlan;
use super::draw::Draw;
use super::histogram::Histogram;
use super::tally::{Side, Tally};
use staves_cli_common::output::{Column, columns, count, number, or_dash};

/// Everything: one entry of `runs` for each combination that was measured.
#[derive(Serialize, Debug)]
pub struct CacheReport {
    pub protocol: String,
    pub servers: Vec<String>,
    pub threads: u32,
    pub runs: Vec<CacheRun>,
    /// The bench was interrupted: the last run is shorter then, and those after it are missing.
    pub interrupted: bool,
}

/// The measurements of a run besides its tally.
#[derive(Clone, Copy, Default, Debug)]
pub struct Measured {
    /// From the beginning of the window to its end, or to the last answer if that came later.
    pub elapsed: Duration,
    /// The share of its threads' time that this program used. At 1 it measured itself.
    pub client_cpu_share: f64,
    /// CPU time of the servers, and operations answered in the same time.
    pub server_cpu: Option<(Duration, u64)>,
}

#[derive(Serialize, Debug)]
pub struct CacheRun {
    value_bytes: u64,
    reads_percent: u32,
    writes_percent: u32,
    keys: u64,
    /// `null`: uniform.
    zipf: Option<f64>,
    connections: u32,
    pipeline: u32,
    batch: u32,
    /// Requests a second that were asked for; `null`: as many as can be.
    rate: Option<u64>,
    seconds: f64,
    /// Answered without an error.
    requests: u64,
    /// Keys of those requests.
    operations: u64,
    operations_per_second: f64,
    latency_us: Latency,
    reads: SideRun,
    writes: SideRun,
    /// Keys that were read and had no value.
    misses: u64,
    /// Requests that were due and never sent.
    unsent: u64,
    errors: u64,
    errors_by_kind: Vec<ErrorRun>,
    client_cpu_share: f64,
    server_cpu_seconds: Option<f64>,
    server_cpu_seconds_per_million: Option<f64>,
}

/// Of requests, in microseconds.
#[derive(Serialize, Debug)]
struct Latency {
    mean: f64,
    p50: f64,
    p99: f64,
    p99_9: f64,
    max: f64,
}

#[derive(Serialize, Debug)]
struct SideRun {
    requests: u64,
    operations: u64,
    latency_us: Latency,
}

#[derive(Serialize, Debug)]
struct ErrorRun {
    kind: String,
    requests: u64,
    example: String,
}

impl From<&Histogram> for Latency {
    fn from(histogram: &Histogram) -> Latency {
        let us = |ns: u64| ns as f64 / 1000.0;
        Latency {
            mean: us(histogram.mean()),
            p50: us(histogram.quantile(0.5)),
            p99: us(histogram.quantile(0.99)),
            p99_9: us(histogram.quantile(0.999)),
            max: us(histogram.max()),
        }
    }
}

impl From<&Side> for SideRun {
    fn from(side: &Side) -> SideRun {
        SideRun {
            requests: side.latency.count(),
            operations: side.operations,
            latency_us: (&side.latency).into(),
        }
    }
}

impl CacheRun {
    pub fn new(plan: &RunPlan, tally: &Tally, measured: &Measured) -> CacheRun {
        let seconds = measured.elapsed.as_secs_f64();
        let server_seconds = measured.server_cpu.map(|(time, _)| time.as_secs_f64());
        let per_million = measured.server_cpu.and_then(|(time, operations)| {
            (operations > 0).then(|| time.as_secs_f64() * 1e6 / operations as f64)
        });
        let error = |(kind, (requests, example)): (&String, &(u64, String))| ErrorRun {
            kind: kind.clone(),
            requests: *requests,
            example: example.clone(),
        };
        CacheRun {
            value_bytes: plan.value_bytes,
            reads_percent: plan.mix.reads,
            writes_percent: plan.mix.writes,
            keys: plan.keys,
            zipf: match plan.draw {
                Draw::Uniform => None,
                Draw::Zipf { exponent } => Some(exponent),
            },
            connections: plan.connections,
            pipeline: plan.pipeline,
            batch: plan.batch,
            rate: plan.rate,
            seconds,
            requests: tally.requests(),
            operations: tally.operations(),
            operations_per_second: tally.operations() as f64 / seconds.max(f64::MIN_POSITIVE),
            latency_us: (&tally.latency()).into(),
            reads: (&tally.reads).into(),
            writes: (&tally.writes).into(),
            misses: tally.misses,
            unsent: tally.unsent,
            errors: tally.error_count(),
            errors_by_kind: tally.errors.iter().map(error).collect(),
            client_cpu_share: measured.client_cpu_share,
            server_cpu_seconds: server_seconds,
            server_cpu_seconds_per_million: per_million,
        }
    }

    pub fn operations_per_second(&self) -> f64 {
        self.operations_per_second
    }
}

const COLUMNS: &[Column<CacheRun>] = &[
    ("value ", |r| Size(r.value_bytes).to_string()),
    ("r:w ", |r| {
        format!("{}:{}", r.reads_percent, r.writes_percent)
    }),
    ("zipf ", |r| {
        or_dash(r.zipf.map(|exponent| exponent.to_string()))
    }),
    ("batch ", |r| r.batch.to_string()),
    ("conn ", |r| r.connections.to_string()),
    ("pipe ", |r| r.pipeline.to_string()),
    ("rate ", |r| or_dash(r.rate.map(number))),
    ("ops/s ", |r| number(r.operations_per_second.round() as u64)),
    ("p50 ms ", |r| ms(r.latency_us.p50)),
    ("p99 ", |r| ms(r.latency_us.p99)),
    ("p99.9 ", |r| ms(r.latency_us.p99_9)),
    ("max ", |r| ms(r.latency_us.max)),
    ("errors ", |r| number(r.errors)),
    ("unsent ", |r| number(r.unsent)),
    ("misses ", |r| number(r.misses)),
    ("client cpu ", |r| {
        format!("{:.0}%", r.client_cpu_share * 100.0)
    }),
    ("server s/million ", |r| {
        or_dash(r.server_cpu_seconds_per_million.map(|s| format!("{s:.2}")))
    }),
];

fn ms(us: f64) -> String {
    format!("{:.3}", us / 1000.0)
}

impl CacheReport {
    /// For people: a row a run, then what went wrong.
    pub fn table(&self) -> String {
        let mut text = columns(COLUMNS, &self.runs);
        for (at, run) in self.runs.iter().enumerate() {
            for error in &run.errors_by_kind {
                let (requests, example) = (count(error.requests, "request"), &error.example);
                text.push_str(&format!(
                    "\nrow {}: {requests} failed, the first with: {example}",
                    at + 1
                ));
            }
            if run.client_cpu_share > 0.9 {
                text.push_str(&format!(
                    "\nrow {}: this program had no time left; with more --threads the server may show more",
                    at + 1
                ));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::args::Mix;
    use super::super::tally::RequestKind;
    use super::*;

    fn run() -> CacheRun {
        let plan = RunPlan {
            value_bytes: 2048,
            mix: Mix {
                reads: 80,
                writes: 20,
            },
            draw: Draw::Zipf { exponent: 0.99 },
            keys: 1000,
            connections: 50,
            pipeline: 16,
            batch: 10,
            rate: Some(5000),
        };
        let mut tally = Tally::default();
        let us = Duration::from_micros;
        for i in 1..=1000 {
            tally.answered(
                RequestKind::Read,
                10,
                u64::from(i == 1),
                us(100),
                Instant::now(),
            );
        }
        tally.answered(RequestKind::Write, 10, 0, us(5000), Instant::now());
        tally.failed("OOM full");
        let measured = Measured {
            elapsed: Duration::from_secs(2),
            client_cpu_share: 0.25,
            server_cpu: Some((Duration::from_millis(1500), 500_000)),
        };
        CacheRun::new(&plan, &tally, &measured)
    }

    #[test]
    fn the_json_says_what_was_counted() {
        let json = serde_json::to_value(run()).expect("JSON");
        for (pointer, expected) in [
            ("/requests", 1001.0),
            ("/operations", 10_010.0),
            ("/operations_per_second", 5005.0),
            ("/reads/operations", 10_000.0),
            ("/writes/requests", 1.0),
            ("/writes/latency_us/max", 5000.0),
            ("/latency_us/max", 5000.0),
            ("/misses", 1.0),
            ("/errors", 1.0),
            ("/errors_by_kind/0/requests", 1.0),
            ("/server_cpu_seconds_per_million", 3.0),
            ("/rate", 5000.0),
        ] {
            let got = json.pointer(pointer).and_then(serde_json::Value::as_f64);
            assert_eq!(got, Some(expected), "{pointer} of {json}");
        }
        let p99 = json["latency_us"]["p99"].as_f64().expect("a number");
        assert!((100.0..101.0).contains(&p99), "{p99}");
    }

    #[test]
    fn the_table_has_a_row_a_run_and_tells_errors() {
        let mut busy = run();
        busy.client_cpu_share = 0.97;
        let report = CacheReport {
            protocol: "resp".into(),
            servers: Vec::new(),
            threads: 1,
            runs: vec![run(), busy],
            interrupted: false,
        };
        let text = report.table();
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("VALUE") && lines[0].ends_with("SERVER S/MILLION"),
            "{text}"
        );
        let row: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(
            row[..8],
            ["2KiB", "80:20", "0.99", "10", "50", "16", "5,000", "5,005"]
        );
        assert_eq!(row[11..], ["5.000", "1", "0", "1", "25%", "3.00"]);
        assert!(
            text.contains("row 1: 1 request failed, the first with: OOM full"),
            "{text}"
        );
        assert!(
            text.contains("row 2: this program had no time left"),
            "{text}"
        );
    }
}
