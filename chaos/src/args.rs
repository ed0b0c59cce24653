//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::delay::{self, DelayPlace};
use staves_chaos::kills::KillTarget;

/// Real processes, real faults, checked histories. Needs root, iproute2 and nftables; iptables for delays.
#[derive(Parser)]
#[command(name = "staves-chaos")]
pub struct Args {
    /// The staves program; without it, it is built.
    #[arg(long, global = true)]
    pub staves: Option<PathBuf>,
    /// For what is random; without it, the clock's.
    #[arg(long, global = true)]
    pub seed: Option<u64>,
    /// Plants a bug in every node (a name of staves_model::mutant); needs a build with 'mutants'.
    #[arg(long, global = true)]
    pub mutant: Option<String>,
    /// The parent of the folders of runs.
    #[arg(long, global = true, default_value_os_t = std::env::temp_dir())]
    pub folder: PathBuf,
    /// Leave the folders of runs behind that found nothing, too.
    #[arg(long, global = true)]
    pub keep: bool,
    /// So many runs at a time; each keeps half of two cores busy.
    #[arg(long, global = true, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub jobs: u32,
    /// The summary as JSON on stdout.
    #[arg(long, global = true)]
    pub json: bool,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The command.
#[derive(Subcommand)]
pub enum Command {
    /// Every scenario that comes with the program, once.
    Quick,
    /// Every such scenario that `cargo test --workspace` does not run, once.
    Rest,
    /// All scenarios and random ones, in turn, for so long; it ends with totals by kind of fault and of operation.
    Long {
        /// The minutes.
        #[arg(long, default_value_t = 60)]
        minutes: u64,
    },
    /// These scenarios.
    Run {
        /// Files, names of scenarios that come with the program, or random-SEED.
        #[arg(required = true)]
        scenarios: Vec<String>,
    },
    /// From kill -9 to resumed writes, so many times.
    Kills {
        /// The nodes, and the writes that are measured.
        #[arg(long, value_enum, default_value = "keys")]
        of: KillTarget,
        /// The number of kills.
        #[arg(long, default_value_t = 50)]
        count: u32,
    },
    /// Checks a history.
    Check {
        /// JSON lines.
        history: PathBuf,
    },
    /// Delays packets between network namespaces until stdin ends; without namespaces, measures the round trip that a delay adds.
    Wan {
        /// The time that each packet takes longer, in one direction: 10ms, 500us.
        #[arg(long, value_parser = delay::time)]
        one_way: Duration,
        /// Two or more, as FILE=ADDRESS (/run/netns/a=10.0.0.1, /proc/PID/ns/net=10.0.0.2): each gets late what the others' addresses send.
        #[arg(value_parser = delay::place)]
        places: Vec<DelayPlace>,
    },
    /// Measures appends to a log from clients that are far from the site, also through a proxy at the site: latency and holes against the rate.
    WanLog {
        /// The delay between clients and nodes, or between regions, one way.
        #[arg(long, value_parser = delay::time, default_value = "70ms")]
        one_way: Duration,
        /// The second half of the nodes is a region of its own, and the clients and the sequencer are in the first.
        #[arg(long)]
        two_regions: bool,
        /// Appends a second of all clients; a list.
        #[arg(long, value_delimiter = ',', default_value = "10,20,40,60,100,200")]
        rates: Vec<u64>,
        /// The clients.
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
        clients: u32,
        /// The nodes.
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..=16))]
        nodes: u64,
        /// The scheme of the pool.
        #[arg(long, default_value = "1+1")]
        scheme: String,
        /// The seconds of each round.
        #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600))]
        seconds: u64,
        /// Rounds of each rate and mode, of which the median is reported.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=101))]
        rounds: u32,
    },
    /// Plants each bug of the glue and demands that its scenario finds it.
    Mutants {
        /// These only (names of staves_model::mutant).
        names: Vec<String>,
    },
}
