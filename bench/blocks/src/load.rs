//! Reads and writes at random places, measured.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use staves_grpc::{AttachedVolume, VolumesClient};
use tokio::task::JoinSet;

use crate::{ATTACH, client};

/// The options of a load.
#[derive(clap::Args)]
pub struct BlockLoad {
    /// A client for each; a volume may be in the list more than once if it is only read.
    #[arg(long, value_delimiter = ',', required = true)]
    volumes: Vec<String>,
    #[arg(long)]
    op: BlockOp,
    /// Bytes of an operation.
    #[arg(long, default_value_t = 4096)]
    bytes: usize,
    /// Each begins at a multiple of its length, and this further on.
    #[arg(long, default_value_t = 0)]
    shift: u64,
    /// Operations under way of each client.
    #[arg(long, default_value_t = 1)]
    depth: usize,
    /// Bytes of the volume, from its beginning, that are used.
    #[arg(long, default_value_t = 64 << 20)]
    span: u64,
    /// Everything at one place.
    #[arg(long)]
    one_address: bool,
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seconds before that which do not count.
    #[arg(long, default_value_t = 0.5)]
    warm_up: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum BlockOp {
    Read,
    Write,
}

/// A client of one volume.
enum BlockDoor {
    Reader(VolumesClient, String),
    Writer(AttachedVolume),
}

/// The places and the time of a load.
#[derive(Clone, Copy)]
struct LoadPlan {
    bytes: usize,
    shift: u64,
    places: u64,
    begins: Instant,
    ends: Instant,
}

impl BlockLoad {
    /// Runs it, and gives the figures.
    pub async fn run(self, nodes: &[String]) -> anyhow::Result<Value> {
        let mut doors = Vec::new();
        for volume in &self.volumes {
            let client = client(nodes)?;
            doors.push(std::sync::Arc::new(match self.op {
                BlockOp::Read => BlockDoor::Reader(client, volume.clone()),
                BlockOp::Write => {
                    let attached = client.attach(volume, ATTACH).await;
                    BlockDoor::Writer(attached.with_context(|| format!("cannot attach {volume}"))?)
                }
            }));
        }
        let room = self.span.saturating_sub(self.shift) / (self.bytes as u64).max(1);
        let places = if self.one_address { 1 } else { room };
        if room == 0 || self.bytes == 0 {
            bail!(
                "{} bytes do not fit into a span of {}",
                self.bytes,
                self.span
            );
        }
        let begins = Instant::now() + Duration::from_secs_f64(self.warm_up);
        let plan = LoadPlan {
            bytes: self.bytes,
            shift: self.shift,
            places,
            begins,
            ends: begins + Duration::from_secs_f64(self.seconds),
        };
        let cpu = cpu_seconds()?;
        let mut tasks = JoinSet::new();
        for (at, door) in doors.iter().enumerate() {
            for n in 0..self.depth {
                let seed = self.seed ^ ((at * self.depth + n) as u64) << 32;
                tasks.spawn(work(door.clone(), plan, seed));
            }
        }
        let mut times = Vec::new();
        while let Some(done) = tasks.join_next().await {
            times.extend(done.context("a client panicked")??);
        }
        let cpu = cpu_seconds()? - cpu;
        Ok(told(times, self.seconds, self.bytes, cpu))
    }
}

/// Operations one after the other; the times of those that began after the warm-up.
async fn work(
    door: std::sync::Arc<BlockDoor>,
    plan: LoadPlan,
    seed: u64,
) -> anyhow::Result<Vec<Duration>> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut data = vec![0; plan.bytes];
    random.fill(&mut data[..]);
    let data = Bytes::from(data);
    let mut times = Vec::new();
    loop {
        let begun = Instant::now();
        if begun >= plan.ends {
            return Ok(times);
        }
        let offset = plan.shift + random.random_range(0..plan.places) * plan.bytes as u64;
        match &*door {
            BlockDoor::Reader(client, volume) => {
                drop(client.read(volume, offset, plan.bytes).await?)
            }
            BlockDoor::Writer(volume) => volume.write(offset, data.clone()).await?,
        }
        if begun >= plan.begins {
            times.push(begun.elapsed());
        }
    }
}

fn told(mut times: Vec<Duration>, seconds: f64, bytes: usize, cpu: f64) -> Value {
    times.sort();
    let at = |share: f64| {
        let place = (times.len() as f64 * share) as usize;
        let time = times.get(place.min(times.len().saturating_sub(1)));
        time.map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    let operations = times.len() as f64;
    json!({
        "operations": times.len(), "seconds": seconds, "per_second": operations / seconds,
        "bytes_per_second": operations * bytes as f64 / seconds,
        "p50_us": at(0.5), "p99_us": at(0.99), "max_us": at(1.0), "client_cpu_seconds": cpu,
    })
}

/// Processor time of this process, in seconds.
fn cpu_seconds() -> anyhow::Result<f64> {
    let mut total = 0;
    for thread in std::fs::read_dir("/proc/self/task").context("no /proc/self/task")? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let first = text.split(' ').next().unwrap_or_default();
        total += first.parse::<u64>().context("no time in schedstat")?;
    }
    Ok(total as f64 / 1e9)
}
