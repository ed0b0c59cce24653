//! Clients of volumes by gRPC, for `bench/volumes` (rows B1, B8 and B9).
//!
//! ```text
//! staves-bench-blocks load --nodes 127.0.0.1:1690 --volumes a,b --op write --bytes 4096 --shift 512 --seconds 5
//! staves-bench-blocks record --nodes 127.0.0.1:1690,127.0.0.1:1790 --volume a --blocks 4096 --depth 8
//! ```
//!
//! `load` measures: a client for each volume of the list, each in a session of its own if it writes. `record` writes until its stdin ends, keeps what was
//! acknowledged, reads all of it back and says what is not there. Both say it as one line of JSON.

mod load;
mod record;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand};
use staves_grpc::{AttachOptions, ClientOptions, VolumesClient};

/// The bound on one call, with all that is asked again.
const DEADLINE: Duration = Duration::from_secs(60);
/// The time to wait for a former session to end.
const WAIT: Duration = Duration::from_secs(5);
/// The way to attach: whoever ran before is gone.
const ATTACH: AttachOptions = AttachOptions {
    wait: WAIT,
    take_over: true,
};

#[derive(Parser)]
struct BlocksArgs {
    /// Nodes' gRPC doors, as HOST:PORT; the first that answers is asked.
    #[arg(long, global = true, value_delimiter = ',')]
    nodes: Vec<String>,
    /// Threads of this program.
    #[arg(long, global = true, default_value_t = 1)]
    threads: usize,
    #[command(subcommand)]
    command: BlocksCommand,
}

#[derive(Subcommand)]
enum BlocksCommand {
    /// Reads or writes at random places for a time, and measures.
    Load(load::BlockLoad),
    /// Writes until stdin ends, and looks for all that was acknowledged.
    Record(record::BlockRecord),
}

fn client(nodes: &[String]) -> anyhow::Result<VolumesClient> {
    let options = ClientOptions { deadline: DEADLINE };
    VolumesClient::new(nodes, options).context("no client of volumes")
}

fn execute(args: BlocksArgs) -> anyhow::Result<serde_json::Value> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.threads.max(1))
        .enable_all()
        .build()
        .context("no runtime")?;
    runtime.block_on(async {
        match args.command {
            BlocksCommand::Load(load) => load.run(&args.nodes).await,
            BlocksCommand::Record(record) => record.run(&args.nodes).await,
        }
    })
}

fn main() -> ExitCode {
    match execute(BlocksArgs::parse()) {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("staves-bench-blocks: {error:#}");
            ExitCode::FAILURE
        }
    }
}
