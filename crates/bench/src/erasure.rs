//! `staves bench erasure`: how fast this machine codes. No cluster is asked.

use std::time::Duration;

use anyhow::bail;
use staves_bench_erasure::{Plan, Report, run as measure};
use staves_erasure::Kernel;
use staves_model::Scheme;
use staves_node::config::{Millis, Size};

use staves_cli_common::options::{Format, GlobalOptions};
use staves_cli_common::output::{self, bytes};

#[derive(clap::Args, Debug)]
pub struct ErasureBench {
    /// The multiplication of bytes: portable, ssse3, avx2, gfni256 or gfni512; without it, the fastest that this machine runs
    #[arg(long)]
    pub kernel: Option<Kernel>,

    /// Schemes; a list
    #[arg(
        long,
        value_name = "M+K",
        value_delimiter = ',',
        default_value = "4+2,8+3,10+4"
    )]
    pub schemes: Vec<Scheme>,

    /// Bytes of a buffer; a list
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        default_value = "4KiB,64KiB,1MiB"
    )]
    pub sizes: Vec<Size>,

    /// Bytes of all buffers together where they are to be cold: more than any cache holds; 0 leaves that out
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    pub cold: Size,

    /// Rounds, of which the median counts
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,

    /// The time of each operation in each round
    #[arg(long, value_name = "TIME", default_value = "20ms")]
    pub round: Millis,
}

pub fn run(global: &GlobalOptions, bench: &ErasureBench) -> anyhow::Result<()> {
    let shape = |s: &Scheme| (usize::from(s.m), usize::from(s.k));
    let plan = Plan {
        kernel: bench.kernel.unwrap_or_else(Kernel::best),
        shapes: bench.schemes.iter().map(shape).collect(),
        sizes: bench.sizes.iter().map(|s| s.0 as usize).collect(),
        cold_bytes: bench.cold.0 as usize,
        rounds: bench.rounds as usize,
        round: bench.round.duration(),
    };
    if plan.round > Duration::from_secs(60) {
        bail!("--round is at most 60s, not {:?}", plan.round);
    }
    // Programs have nothing to read on stderr but an error.
    let tell = |what: &str| {
        if global.output == Format::Table {
            output::say(what);
        }
    };
    if plan.cold_bytes > 0 {
        tell(&format!(
            "cold buffers take {} of memory",
            bytes(bench.cold.0)
        ));
    }
    let report = measure(&plan, &[], tell)?;
    output::answer(global.output, &report, Report::to_string)
}
