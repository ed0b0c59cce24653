//! The command line of `staves bench`, and the runs that it asks for.

use std::fmt;
use std::str::FromStr;

use clap::{Subcommand, ValueEnum, value_parser};
use staves_node::config::{Endpoint, Millis, Size};
use staves_wire::cache::VALUE_BYTES_MAX;

use super::dialect::KEYS_MAX;
use super::draw::Draw;
use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;
use staves_cli_common::output::{bytes, count};

/// Most runs of one command.
const RUNS_MAX: usize = 1000;
/// Most bytes of keys and values that all connections of a run may have under way.
const FLIGHT_BYTES_MAX: u64 = 2 << 30;

// No doc comment: clap would print it.
#[allow(missing_docs)]
#[derive(Subcommand, Debug)]
pub enum Bench {
    /// Load a cache and measure it: this one, redis-server or memcached
    ///
    /// Flags that take a list make one run of each combination, and one row each.
    Cache(CacheBench),
    /// Read and write a region at random places, and measure it
    ///
    /// Flags that take a list make one run of each combination, and one row each. The region is made for it, and deleted
    /// at the end.
    Memory(super::memory::MemoryBench),
    /// Measure how fast this machine codes, beside copies and XORs of the same buffers; needs no cluster
    ///
    /// One thread. Rates are gigabytes (10^9) that are read in a second: m buffers for an encoding or a decoding, one for
    /// a delta, a copy or an XOR.
    Erasure(super::erasure::ErasureBench),
    /// Append to a log and read it, and measure that
    ///
    /// Flags that take a list make one run of each combination, and one row each. Each run has a log of its own, which is
    /// deleted at its end. Holes are positions that no acknowledged append has.
    Log(super::log::LogBench),
    /// Kill nodes of a cluster of its own, and measure how fast what they held is rebuilt
    ///
    /// Starts the nodes on this machine by itself, and stops them at the end.
    Recovery(super::recovery::RecoveryBench),
}

/// The protocol of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Protocol {
    /// Redis's
    Resp,
    /// Staves' own, through its client library
    Native,
    /// memcached's, as text
    Memcached,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Resp => "resp",
            Protocol::Native => "native",
            Protocol::Memcached => "memcached",
        })
    }
}

#[derive(clap::Args, Debug)]
pub struct CacheBench {
    /// The protocol
    #[arg(long, value_enum, default_value = "resp")]
    pub protocol: Protocol,

    /// Servers to load, in turn by connection, instead of the nodes of --cluster (not with native)
    #[arg(
        long,
        visible_alias = "resp",
        value_name = "ADDR",
        value_delimiter = ','
    )]
    pub server: Vec<Endpoint>,

    /// The pool, 'cache' without it (native only: over RESP a node serves the pool of its configuration)
    #[arg(long)]
    pub pool: Option<String>,

    /// Bytes of a value; a list
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "512", value_parser = value_size)]
    pub sizes: Vec<Size>,

    /// Reads and writes in percent; a list
    #[arg(
        long,
        value_name = "READS:WRITES",
        value_delimiter = ',',
        default_value = "80:20"
    )]
    pub mix: Vec<Mix>,

    /// Number of keys ('bench:0000000000' and so on); all are set before a run that reads
    #[arg(long, default_value_t = 100_000, value_parser = value_parser!(u64).range(1..=KEYS_MAX))]
    pub keys: u64,

    /// Leave the keys there, instead of deleting them at the end
    #[arg(long)]
    pub keep: bool,

    /// The drawing of keys: uniform, or the exponent of Zipf's law; a list
    #[arg(
        long,
        value_name = "EXPONENT|uniform",
        allow_negative_numbers = true,
        value_delimiter = ',',
        default_value = "uniform"
    )]
    pub zipf: Vec<Draw>,

    /// Connections; a list
    #[arg(long, value_delimiter = ',', default_value = "50", value_parser = value_parser!(u32).range(1..=10_000))]
    pub connections: Vec<u32>,

    /// Requests that a connection has under way at once; a list
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = value_parser!(u32).range(1..=10_000))]
    pub pipeline: Vec<u32>,

    /// Keys of one request (MGET and MSET, a native batch, a multi-key get); a list
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = value_parser!(u32).range(1..=10_000))]
    pub batch: Vec<u32>,

    /// Requests a second, sent when they are due whatever was answered; latency counts from then. A list
    #[arg(long, value_name = "REQUESTS", value_delimiter = ',', value_parser = value_parser!(u64).range(1..=100_000_000))]
    pub rate: Vec<u64>,

    /// The measured time of each run
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub duration: Millis,

    /// The time of each run before it is measured
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub warm_up: Millis,

    /// Threads of this program
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=256))]
    pub threads: u32,

    /// Processes whose CPU time counts as the servers', instead of what the servers say themselves
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub server_pid: Vec<u32>,

    /// The seed of the drawing of keys
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

fn value_size(text: &str) -> Result<Size, String> {
    // The size of a value is in bytes where nothing else is said, as everybody writes it.
    let size = match text.parse() {
        Ok(bytes) => Size(bytes),
        Err(_) => text.parse::<Size>()?,
    };
    match size.0 {
        1.. if size.0 <= VALUE_BYTES_MAX as u64 => Ok(size),
        _ => Err(format!("a value has 1 byte to {VALUE_BYTES_MAX}")),
    }
}

/// The share of reads and of writes in a hundred requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mix {
    pub reads: u32,
    pub writes: u32,
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Mix, String> {
        let example = "write reads:writes in percent, for example 80:20";
        let parts = text
            .split_once(':')
            .and_then(|(reads, writes)| Some((reads.parse().ok()?, writes.parse().ok()?)));
        let (reads, writes): (u32, u32) =
            parts.ok_or_else(|| format!("'{text}' is no mix; {example}"))?;
        match reads.checked_add(writes) {
            Some(100) => Ok(Mix { reads, writes }),
            Some(sum) => Err(format!("'{text}' adds up to {sum}, not to 100; {example}")),
            None => Err(format!("'{text}' does not add up to 100; {example}")),
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.reads, self.writes)
    }
}

/// One run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RunPlan {
    pub value_bytes: u64,
    pub mix: Mix,
    pub draw: Draw,
    pub keys: u64,
    pub connections: u32,
    pub pipeline: u32,
    pub batch: u32,
    pub rate: Option<u64>,
}

impl fmt::Display for RunPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, mix, draw) = (bytes(self.value_bytes), self.mix, self.draw);
        let (connections, pipeline, batch) = (self.connections, self.pipeline, self.batch);
        write!(
            f,
            "{size}, reads:writes {mix}, {draw}, {connections} x {pipeline}, batch {batch}"
        )?;
        self.rate.map_or(Ok(()), |rate| write!(f, ", {rate}/s"))
    }
}

impl CacheBench {
    /// Every combination; sizes outermost, so that keys are set once for each.
    pub fn plans(&self) -> Result<Vec<RunPlan>, Failure> {
        let rates: Vec<Option<u64>> = match &self.rate[..] {
            [] => vec![None],
            rates => rates.iter().copied().map(Some).collect(),
        };
        let lengths = [
            self.sizes.len(),
            self.zipf.len(),
            self.mix.len(),
            self.batch.len(),
            self.connections.len(),
            self.pipeline.len(),
            rates.len(),
        ];
        let runs = lengths.into_iter().fold(1usize, usize::saturating_mul);
        if runs > RUNS_MAX {
            let text = format!("these lists make {runs} runs; at most {RUNS_MAX} are done at once");
            return Err(Failure::Own(Own::Usage, text));
        }
        let mut plans = Vec::with_capacity(runs);
        for run in 0..runs {
            // The run's number, digit by digit: the last list turns fastest.
            let mut rest = run;
            let mut at = [0; 7];
            for (place, length) in at.iter_mut().zip(lengths).rev() {
                *place = rest % length;
                rest /= length;
            }
            plans.push(RunPlan {
                value_bytes: self.sizes[at[0]].0,
                draw: self.zipf[at[1]],
                mix: self.mix[at[2]],
                batch: self.batch[at[3]],
                connections: self.connections[at[4]],
                pipeline: self.pipeline[at[5]],
                rate: rates[at[6]],
                keys: self.keys,
            });
        }
        plans.iter().try_for_each(|plan| self.check(plan))?;
        Ok(plans)
    }

    fn check(&self, plan: &RunPlan) -> Result<(), Failure> {
        let wrong = |text: String| Err(Failure::Own(Own::Usage, text));
        if plan.keys < 2 && plan.draw != Draw::Uniform {
            return wrong("--zipf needs 2 keys or more: of one there is nothing to draw".into());
        }
        if plan.connections < self.threads {
            let threads = self.threads;
            let connections = count(plan.connections, "connection");
            return wrong(format!(
                "{threads} threads cannot share {connections}: give fewer --threads or more --connections"
            ));
        }
        let at_once = u64::from(plan.connections) * u64::from(plan.pipeline);
        let flight = at_once.saturating_mul(u64::from(plan.batch) * (plan.value_bytes + 64));
        if flight > FLIGHT_BYTES_MAX {
            return wrong(format!(
                "{plan}: {} under way at once, more than {}: give fewer connections, a smaller pipeline or batch",
                bytes(flight),
                bytes(FLIGHT_BYTES_MAX),
            ));
        }
        if self.protocol != Protocol::Native && self.pool.is_some() {
            return wrong("--pool needs --protocol native: over RESP a node serves the pool of its configuration ('staves up --pool')".into());
        }
        if self.protocol == Protocol::Native && !self.server.is_empty() {
            return wrong("--server is for RESP and memcached; the native protocol finds its nodes through --cluster".into());
        }
        if self.protocol == Protocol::Memcached && self.server.is_empty() {
            return wrong(
                "--protocol memcached needs --server, for example --server 127.0.0.1:11211".into(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        bench: Bench,
    }

    fn parse(line: &str) -> Result<CacheBench, String> {
        let words = ["bench", "cache"]
            .into_iter()
            .chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        let Bench::Cache(cache) = line.bench else {
            panic!("the line asks for another bench");
        };
        Ok(cache)
    }

    #[test]
    fn lists_make_every_combination_once_and_sizes_stay_together() {
        let bench =
            parse("--sizes 512,2KiB --mix 100:0,80:20,0:100 --zipf uniform,0.99 --batch 1,50");
        let plans = bench.expect("a good line").plans().expect("good plans");
        assert_eq!(plans.len(), 2 * 3 * 2 * 2);
        for (i, plan) in plans.iter().enumerate() {
            assert!(!plans[..i].contains(plan), "{plan} twice");
            assert_eq!(plan.value_bytes, if i < 12 { 512 } else { 2048 });
        }
        assert_eq!(
            plans[0].to_string(),
            "512 B, reads:writes 100:0, uniform, 50 x 1, batch 1"
        );
    }

    #[test]
    fn wrong_values_are_told_what_would_be_right() {
        for (line, said) in [
            ("--mix 80:30", "adds up to 110"),
            ("--mix 80", "80:20"),
            ("--mix 4294967295:2", "does not add up"),
            ("--sizes 0", "1 byte"),
            ("--sizes 1TiB", "1 byte"),
            ("--zipf much", "0.99"),
            ("--zipf -1", "0.99"),
            ("--keys 0", "1.."),
            ("--connections 0", "1.."),
            ("--pipeline 0", "1.."),
            ("--batch 0", "1.."),
            ("--rate 0", "1.."),
            ("--protocol smtp", "memcached"),
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(said), "{line}: {error}");
        }
        for (line, said) in [
            ("--zipf 0.99 --keys 1", "2 keys"),
            ("--threads 4 --connections 3", "4 threads"),
            ("--sizes 512MiB --pipeline 16", "under way"),
            ("--protocol memcached", "--server"),
            ("--protocol native --server 127.0.0.1:1", "--cluster"),
            ("--pool other", "--protocol native"),
        ] {
            let error = parse(line).expect(line).plans().expect_err(line);
            assert!(error.to_string().contains(said), "{line}: {error}");
        }
        let many = vec!["512"; 1001].join(",");
        let error = parse(&format!("--sizes {many}")).expect("a list").plans();
        assert!(error.is_err_and(|e| e.to_string().contains("1001 runs")));
    }
}
