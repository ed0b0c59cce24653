//! `staves bench memory`: reads and writes of a region at random places, each caller one after another.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use serde::Serialize;
use staves_client::{ClientError, Region};
use staves_node::config::{Millis, Size};
use staves_node::status::NodeFacts;
use staves_wire::ErrorCode;

use super::histogram::Histogram;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::failure::failed;
use staves_cli_common::options::{Format, GlobalOptions};
use staves_cli_common::output::{self, Column, bytes, columns, number, or_dash};
use staves_cli_common::running::at_signal;

/// Bytes of one write while the region is filled.
const FILL_BYTES: u64 = 8 << 20;

#[derive(clap::Args, Debug)]
pub struct MemoryBench {
    /// The pool in which a region is made for it
    #[arg(long, default_value = "memory")]
    pub pool: String,

    /// Bytes of the region; all are written once, before anything is measured
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub size: Size,

    /// Bytes of one read or write; a list
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        default_value = "64B,4KiB,64KiB"
    )]
    pub blocks: Vec<Size>,

    /// Reads among a hundred operations; a list
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "100,0", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub reads: Vec<u8>,

    /// Callers that each wait for their answers; a list
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "16", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub callers: Vec<u32>,

    /// Threads, each with a client of its own, that share the callers
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,

    /// Place blocks anywhere, not only at multiples of their size
    #[arg(long)]
    pub unaligned: bool,

    /// The measured time of each run
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub duration: Millis,

    /// The time of each run before it is measured
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub warm_up: Millis,
}

/// One run, as it is told.
#[derive(Serialize)]
struct MemoryRun {
    block_bytes: u64,
    reads_percent: u8,
    callers: u32,
    threads: u32,
    aligned: bool,
    seconds: f64,
    operations: u64,
    operations_per_second: f64,
    bytes_per_second: f64,
    /// Bytes that all nodes and this program sent meanwhile, for each operation; `null` if a node does not report them.
    sent_bytes_per_operation: Option<f64>,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    errors: u64,
    error: Option<String>,
}

/// All that was measured.
#[derive(Serialize)]
struct MemoryReport {
    pool: String,
    scheme: String,
    region_bytes: u64,
    fill_bytes_per_second: f64,
    /// Memory of all nodes once the region is filled, whatever it is used for, and as a multiple of the
    /// region; `null` where a node does not say.
    resident_bytes: Option<u64>,
    resident_share: Option<f64>,
    runs: Vec<MemoryRun>,
}

/// The parameters of one run.
#[derive(Clone, Copy)]
struct MemoryPlan {
    block: u64,
    reads: u8,
    callers: u32,
    region_bytes: u64,
    aligned: bool,
    from: Instant,
    until: Instant,
}

/// The results of one thread's callers.
#[derive(Default)]
struct CallerResults {
    latencies: Histogram,
    errors: u64,
    error: Option<String>,
}

pub fn run(global: &GlobalOptions, bench: &MemoryBench) -> anyhow::Result<()> {
    let Some(block) = bench.blocks.iter().find(|b| b.0 == 0 || b.0 > bench.size.0) else {
        return measure(global, bench);
    };
    bail!(
        "a block of {} does not fit a region of {}",
        bytes(block.0),
        bytes(bench.size.0)
    )
}

fn measure(global: &GlobalOptions, bench: &MemoryBench) -> anyhow::Result<()> {
    let session = Cluster::open(global)?;
    session.check_regions(&bench.pool)?;
    let name = format!("bench-{:08x}", rand::random::<u32>());
    clean_up_on_ctrl_c(global, &name)?;
    let make = session
        .client
        .create_region(&bench.pool, &name, bench.size.0);
    let region = session.runtime.block_on(make).map_err(failed)?;
    let outcome = runs(global, bench, &session, &region);
    let deleted = session.runtime.block_on(region.delete());
    let report = outcome?;
    output::answer(global.output, &report, MemoryReport::table)?;
    deleted
        .map_err(failed)
        .with_context(|| format!("region '{name}' is left behind"))
}

/// From now on Ctrl-C (and SIGTERM) deletes the region before it ends the program.
fn clean_up_on_ctrl_c(global: &GlobalOptions, name: &str) -> anyhow::Result<()> {
    let session = Cluster::open(global)?;
    let name = name.to_owned();
    at_signal(move || {
        let deleted = session.runtime.block_on(async {
            let region = session.client.region(&name).await?;
            region.delete().await
        });
        match deleted {
            Ok(()) => output::say("\nstopped: the bench's region is deleted"),
            // It was not made yet, or is gone already.
            Err(error) if error.code() == ErrorCode::NotFound => {}
            Err(error) => output::say(format_args!(
                "\nstopped: {error}; region '{name}' is left behind: 'staves memory delete {name}'"
            )),
        }
    })
}

fn runs(
    global: &GlobalOptions,
    bench: &MemoryBench,
    session: &Cluster,
    region: &Region,
) -> anyhow::Result<MemoryReport> {
    let stat = session.runtime.block_on(region.stat()).map_err(failed)?;
    // Programs have nothing to read on stderr but an error.
    if global.output == Format::Table {
        output::say(format_args!("writing {} once", bytes(bench.size.0)));
    }
    let begun = Instant::now();
    session
        .runtime
        .block_on(fill(region, bench.size.0))
        .map_err(failed)?;
    let fill_seconds = begun.elapsed().as_secs_f64();
    let all = |of: fn(&NodeFacts) -> u64| sum(global, of);
    let resident_bytes = all(|facts| facts.resident_bytes);
    let mut report = MemoryReport {
        pool: stat.pool,
        scheme: stat.scheme,
        region_bytes: bench.size.0,
        fill_bytes_per_second: bench.size.0 as f64 / fill_seconds,
        resident_bytes,
        resident_share: resident_bytes.map(|all| all as f64 / bench.size.0 as f64),
        runs: Vec::new(),
    };
    for block in &bench.blocks {
        for reads in &bench.reads {
            for callers in &bench.callers {
                let from = Instant::now() + bench.warm_up.duration();
                let plan = MemoryPlan {
                    block: block.0,
                    reads: *reads,
                    callers: *callers,
                    region_bytes: bench.size.0,
                    aligned: !bench.unaligned,
                    from,
                    until: from + bench.duration.duration(),
                };
                let sent = || all(|facts| facts.sent_bytes);
                let before = sent();
                let ours = staves_net::sent_bytes();
                let mut run = one(global, bench.threads, region.name(), plan)?;
                // What was sent in the warm-up counts, and so do its operations.
                let span = (plan.until - plan.from) + bench.warm_up.duration();
                let done = run.operations_per_second * span.as_secs_f64();
                let sent = sent().zip(before).map(|(after, before)| after - before);
                let ours = staves_net::sent_bytes() - ours;
                run.sent_bytes_per_operation =
                    sent.map(|sent| (sent + ours) as f64 / done.max(1.0));
                report.runs.push(run);
            }
        }
    }
    Ok(report)
}

/// A figure of all nodes that are up, together; `None` if one does not say.
fn sum(global: &GlobalOptions, of: fn(&NodeFacts) -> u64) -> Option<u64> {
    let cluster = Cluster::open(global).ok()?;
    let report = cluster.status().ok()?;
    let up = report.nodes.iter().filter(|node| node.up);
    up.map(|node| node.facts.as_ref().map(of)).sum()
}

/// Writes all of a region once.
pub async fn fill(region: &Region, size: u64) -> Result<(), ClientError> {
    let mut part = vec![0; FILL_BYTES.min(size) as usize];
    SmallRng::seed_from_u64(size).fill_bytes(&mut part);
    let part = Bytes::from(part);
    let mut at = 0;
    while at < size {
        let len = FILL_BYTES.min(size - at);
        region.write(at, part.slice(..len as usize)).await?;
        at += len;
    }
    Ok(())
}

fn one(
    global: &GlobalOptions,
    threads: u32,
    region: &str,
    plan: MemoryPlan,
) -> anyhow::Result<MemoryRun> {
    let threads = threads.min(plan.callers);
    let share = |thread: u32| plan.callers / threads + u32::from(thread < plan.callers % threads);
    let mut seen = CallerResults::default();
    let parts: Vec<anyhow::Result<CallerResults>> = std::thread::scope(|scope| {
        let spawn = |thread| scope.spawn(move || callers(global, region, plan, share(thread)));
        let spawned: Vec<_> = (0..threads).map(spawn).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|_| bail!("a thread of the bench has failed"))
        };
        spawned.into_iter().map(join).collect()
    });
    for part in parts {
        let part = part?;
        seen.latencies.merge(&part.latencies);
        seen.errors += part.errors;
        seen.error = seen.error.or(part.error);
    }
    let (seconds, count) = (
        (plan.until - plan.from).as_secs_f64(),
        seen.latencies.count(),
    );
    let us = |ns: u64| ns as f64 / 1000.0;
    let run = MemoryRun {
        block_bytes: plan.block,
        reads_percent: plan.reads,
        callers: plan.callers,
        threads,
        aligned: plan.aligned,
        seconds,
        operations: count,
        operations_per_second: count as f64 / seconds,
        bytes_per_second: (count * plan.block) as f64 / seconds,
        sent_bytes_per_operation: None,
        mean_us: us(seen.latencies.mean()),
        p50_us: us(seen.latencies.quantile(0.5)),
        p99_us: us(seen.latencies.quantile(0.99)),
        p999_us: us(seen.latencies.quantile(0.999)),
        max_us: us(seen.latencies.max()),
        errors: seen.errors,
        error: seen.error,
    };
    if global.output == Format::Table {
        let rate = number(run.operations_per_second.round() as u64);
        output::say(format_args!(
            "{} {} % reads, {} callers: {rate} operations/s",
            bytes(plan.block),
            plan.reads,
            plan.callers
        ));
    }
    Ok(run)
}

/// One thread's callers, with a client of their own.
fn callers(
    global: &GlobalOptions,
    region: &str,
    plan: MemoryPlan,
    count: u32,
) -> anyhow::Result<CallerResults> {
    let session = Cluster::open(global)?;
    let region = session
        .runtime
        .block_on(session.client.region(region))
        .map_err(failed)?;
    let tasks: Vec<_> = (0..count)
        .map(|_| session.runtime.spawn(call(region.clone(), plan)))
        .collect();
    let mut seen = CallerResults::default();
    session.runtime.block_on(async {
        for task in tasks {
            let part = task.await.context("a caller of the bench has failed")?;
            seen.latencies.merge(&part.latencies);
            seen.errors += part.errors;
            seen.error = seen.error.take().or(part.error);
        }
        Ok(seen)
    })
}

/// Asks until the end. What was asked within the window counts, whenever it is answered.
async fn call(region: Region, plan: MemoryPlan) -> CallerResults {
    let mut rng = SmallRng::from_os_rng();
    let mut part = vec![0; plan.block as usize];
    rng.fill_bytes(&mut part);
    let part = Bytes::from(part);
    let mut seen = CallerResults::default();
    loop {
        let begun = Instant::now();
        if begun >= plan.until {
            return seen;
        }
        let offset = match plan.aligned {
            true => rng.random_range(0..plan.region_bytes / plan.block) * plan.block,
            false => rng.random_range(0..=plan.region_bytes - plan.block),
        };
        let result = match rng.random_range(0..100) < plan.reads {
            true => region.read(offset, plan.block).await.map(drop),
            false => region.write(offset, part.clone()).await,
        };
        match result {
            Err(error) => {
                seen.errors += 1;
                seen.error = Some(error.to_string());
                // Whatever is wrong, asking at full speed does not mend it.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok(()) if begun >= plan.from => seen.latencies.add(begun.elapsed().as_nanos() as u64),
            Ok(()) => {}
        }
    }
}

const COLUMNS: &[Column<MemoryRun>] = &[
    ("block ", |run| bytes(run.block_bytes)),
    ("reads ", |run| format!("{} %", run.reads_percent)),
    ("callers ", |run| run.callers.to_string()),
    ("operations/s ", |run| {
        number(run.operations_per_second.round() as u64)
    }),
    ("bytes/s ", |run| bytes(run.bytes_per_second as u64)),
    ("sent/op ", |run| {
        or_dash(run.sent_bytes_per_operation.map(|sent| bytes(sent as u64)))
    }),
    ("p50 ", |run| us(run.p50_us)),
    ("p99 ", |run| us(run.p99_us)),
    ("max ", |run| us(run.max_us)),
    ("errors ", |run| run.errors.to_string()),
];

/// A time of so many microseconds.
pub fn us(us: f64) -> String {
    format!("{us:.0} us")
}

impl MemoryReport {
    fn table(&self) -> String {
        let rows = columns(COLUMNS, &self.runs);
        let fill = bytes(self.fill_bytes_per_second as u64);
        let memory = match self.resident_bytes.zip(self.resident_share) {
            Some((all, share)) => {
                format!(
                    "; the nodes have {} resident, {share:.2} times the region",
                    bytes(all)
                )
            }
            None => String::new(),
        };
        format!(
            "{} in pool '{}', {}; filled at {fill}/s{memory}\n{rows}",
            bytes(self.region_bytes),
            self.pool,
            self.scheme
        )
    }
}
