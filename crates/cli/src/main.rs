//! The `staves` program: runs a node, and tells a cluster what to do.
//!
//! **Promises.** What was asked for goes to stdout and nothing else does; progress, warnings and errors
//! go to stderr. Every command answers as a table for people or as JSON for programs (`-o`). Every
//! command that asks a cluster ends within `--deadline`, with an error that names the address tried. The
//! exit code says what a script must know:
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | done |
//! | 1 | refused or failed; the error says why |
//! | 2 | the command line is wrong |
//! | 3 | no such node, pool, group or key |
//! | 4 | the cluster could not be reached, or did not answer in time |
//! | 5 | `status --check`: the cluster is not healthy |
//!
//! **Path of the data.** `args` takes the command line apart. Each command is a file (`status`, `node`,
//! `pool`, `cache`, `group`, `config`, `up`, `demo`, `bench`) that asks through `cluster` (the native protocol) and
//! answers through `output`. Errors become exit codes in `failure`.
//!
//! **Not here.** The node itself (`staves-node`), whose configuration `up` only puts together.

mod args;
mod bench;
mod cache;
mod cluster;
mod config;
mod demo;
mod failure;
mod group;
mod node;
mod output;
mod pool;
mod status;
mod up;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use cluster::Cluster;

fn main() -> ExitCode {
    let args = Args::parse();
    let result = run(&args);
    // A reader that has gone (`staves status | head -1`) is no failure of ours.
    let _ = std::io::stdout().flush();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("staves: {error:#}");
            failure::exit_code(&error)
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let connect = || Cluster::connect(&args.cluster, args.deadline.duration());
    let out = args.output;
    match &args.command {
        Command::Up(up) => up::run(up),
        Command::Demo(demo) => demo::run(demo, out),
        Command::Config { command } => config::run(command, out),
        Command::Status { check } => status::run(&connect()?, *check, out),
        Command::Node { command } => node::run(&connect()?, command, out),
        Command::Pool { command } => pool::run(&connect()?, command, out),
        Command::Cache { command } => cache::run(&connect()?, command, out),
        Command::Group { command } => group::run(&connect()?, command, out),
        Command::Bench { command } => bench::run(args, command),
    }
}
