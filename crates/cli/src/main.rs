//! The `staves` program: runs a node, and sends a cluster commands.
//!
//! **Promises.** The answer goes to stdout and nothing else does; progress, warnings and errors
//! go to stderr. Every command answers as a table for people or as JSON for programs (`-o`); so does every
//! error, which ends with its code (`staves explain CODE`). Every command that asks a cluster ends within `--deadline`, with an error that names the address tried. The
//! exit code is for scripts:
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | done |
//! | 1 | refused or failed, for the reason in the error |
//! | 2 | the command line is wrong |
//! | 3 | no such node, pool, group, key, dataset, file or source |
//! | 4 | the cluster could not be reached, or did not answer in time |
//! | 5 | `status --check`: the cluster is degraded; with `--strict`, there is a warning |
//! | 6 | `status --check`: the cluster is critical |
//! | 130 | interrupted by Ctrl-C: `files preload`, `memory write`, `bench cache`, `bench memory`, `demo` |
//!
//! **Path of the data.** `args` parses the command line. Each command is a file with its own arguments (`status`, `node`, `pool`,
//! `cache`, `memory`, `volume`, `files`, `mount`, `group`, `scrub`, `config`, `up`) or a crate (`staves-demo`, `staves-bench`). All stand on
//! `staves-cli-common`: the connection to a cluster, answers, errors with their codes. `explain` describes the codes.
//! `reference` and `generate` print documents that are made from the program's own tables.
//!
//! **Not here.** The node itself (`staves-node`), whose configuration `up` only puts together.

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic if nobody reads

mod args;
mod background;
mod cache;
mod config;
mod confirm;
mod disk;
mod explain;
mod files;
mod generate;
mod group;
mod log;
mod memory;
mod mount;
mod node;
mod pool;
mod reference;
mod scrub;
mod status;
mod up;
mod volume;

use std::process::ExitCode;

use args::{Command, CommandLine};
use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::{Code, Own, exit_code};
use staves_cli_common::options::Format;
use staves_cli_common::{failure, output};
use volume::VolumeCommand;

fn main() -> ExitCode {
    let args = match args::parse(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => return not_understood(&args::plainly(error)),
    };
    let result = run(&args);
    let flushed = output::flush();
    match result.and(flushed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(form(&args), failure::code(&error), &format!("{error:#}")),
    }
}

/// The form of errors: this program itself reads those of a process in the background.
fn form(args: &CommandLine) -> Format {
    let in_background = match &args.command {
        Command::Mount(mount) => mount.in_background,
        Command::Volume {
            command: VolumeCommand::Attach(options),
        } => options.in_background,
        _ => false,
    };
    match in_background {
        true => Format::Json,
        false => args.global.output,
    }
}

/// Reports an error on stderr, in the form that was asked for.
fn failed(out: Format, code: Code, message: &str) -> ExitCode {
    match out {
        Format::Table => output::say(failure::line(code, message)),
        Format::Json => output::say(failure::object(code, message)),
    }
    ExitCode::from(exit_code(code))
}

/// A command line that cannot be taken apart, or that asks for help.
fn not_understood(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || !args::wants_json(std::env::args_os()) {
        error.exit();
    }
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    // Without how the command is used, and where help is.
    let is_said = |part: &&str| !part.starts_with("Usage:") && !part.starts_with("For more");
    let words = |part: &str| part.split_whitespace().collect::<Vec<_>>().join(" ");
    let parts: Vec<String> = text.split("\n\n").filter(is_said).map(words).collect();
    let line = parts.join("; ");
    failed(Format::Json, Code::Own(Own::Usage), &line)
}

fn run(args: &CommandLine) -> anyhow::Result<()> {
    let on = |obey: &dyn Fn(&Cluster) -> anyhow::Result<()>| {
        let cluster = Cluster::open(&args.global)?;
        obey(&cluster).map_err(|error| cluster.by_an_old_map(error))
    };
    let out = args.global.output;
    match &args.command {
        Command::Up(up) => up::run(up),
        Command::Demo(demo) => staves_demo::run(demo, out),
        Command::Config { command } => config::run(command, out),
        Command::Explain { code } => explain::run(code.as_deref(), out),
        Command::Reference { page } => reference::run(*page),
        Command::Completions { shell } => generate::completions(*shell),
        Command::Man { folder } => generate::man(folder.as_deref()),
        Command::Status { check, strict } => on(&|all| status::run(all, *check, *strict, out)),
        Command::Node { command } => on(&|all| node::run(all, command, out)),
        Command::Disk { command } => on(&|all| disk::run(all, command, out)),
        Command::Pool { command } => on(&|all| pool::run(all, command, out)),
        Command::Cache { command } => on(&|all| cache::run(all, command, out)),
        Command::Memory { command } => on(&|all| memory::run(all, command, out)),
        Command::Log { command } => on(&|all| log::run(all, command, out)),
        Command::Volume { command } => volume::run(&args.global, command, out),
        Command::Mount(mount) => mount::run(&args.global, mount, out),
        Command::Unmount(unmount) => mount::unmount(unmount, out),
        Command::Files { command } => on(&|all| files::run(all, command, out)),
        Command::Scrub { pool, check } => on(&|all| scrub::run(all, pool.as_deref(), !check, out)),
        Command::Group { command } => on(&|all| group::run(all, command, out)),
        Command::Bench { command } => staves_bench::run(&args.global, command),
    }
}
