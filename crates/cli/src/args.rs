//! The command line.

use std::any::TypeId;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use staves_bench::Bench;
use staves_cli_common::options::GlobalOptions;
use staves_demo::Demo;
use staves_node::config::{Millis, Size};

use crate::cache::Cache;
use crate::config::Config;
use crate::disk::Disk;
use crate::files::Files;
use crate::generate::Shell;
use crate::group::Group;
use crate::log::LogCommand;
use crate::memory::Memory;
use crate::mount::{Mount, Unmount};
use crate::node::Node;
use crate::pool::Pool;
use crate::reference::Page;
use crate::up::Up;
use crate::volume::VolumeCommand;

/// One cluster out of many machines' memory: a cache that loses nothing when nodes are killed.
#[derive(Parser, Debug)]
#[command(
    name = "staves",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub struct CommandLine {
    #[command(flatten)]
    pub global: GlobalOptions,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a node in the foreground
    Up(Up),
    /// Show it: start a cluster here, kill nodes under load, count what is lost
    Demo(Demo),
    /// The state of the cluster, its nodes and its pools
    Status {
        /// Exit with 5 if it is degraded, with 6 if it is critical
        #[arg(long)]
        check: bool,
        /// With --check: exit with 5 also if it is healthy and there is a warning, such as too few nodes for a scheme
        #[arg(long, requires = "check")]
        strict: bool,
    },
    /// Nodes
    Node {
        #[command(subcommand)]
        command: Node,
    },
    /// Disks of nodes, for pools on disk
    Disk {
        #[command(subcommand)]
        command: Disk,
    },
    /// Pools
    Pool {
        #[command(subcommand)]
        command: Pool,
    },
    /// Keys and values
    Cache {
        #[command(subcommand)]
        command: Cache,
    },
    /// Regions: flat bytes, spread over the nodes
    Memory {
        #[command(subcommand)]
        command: Memory,
    },
    /// Logs: records in one order, spread over the nodes
    Log {
        #[command(subcommand)]
        command: LogCommand,
    },
    /// Volumes: block devices that NBD and gRPC serve
    Volume {
        #[command(subcommand)]
        command: VolumeCommand,
    },
    /// Check, while all goes on, that parity is the code of the data, byte for byte, and make anew what is not
    Scrub {
        /// Of this pool only
        #[arg(long)]
        pool: Option<String>,
        /// Only look: change nothing
        #[arg(long)]
        check: bool,
    },
    /// Show the files of a source in a folder, read from the memory of all nodes
    Mount(Mount),
    /// Take a mounted folder away
    Unmount(Unmount),
    /// Datasets, and how much of them is in memory
    Files {
        #[command(subcommand)]
        command: Files,
    },
    /// Groups of buckets, and where they lie
    Group {
        #[command(subcommand)]
        command: Group,
    },
    /// The configuration of a node
    Config {
        #[command(subcommand)]
        command: Config,
    },
    /// Explain an error code and its remedy; without one, all of them
    Explain {
        /// The word in brackets at an error's end, its number, or the first word of an error of Redis's protocol
        #[arg(allow_hyphen_values = true)]
        code: Option<String>,
    },
    /// Print a page of the reference, in Markdown
    Reference {
        /// The page
        #[arg(value_enum)]
        page: Page,
    },
    /// Print a shell's completions: for bash, 'source <(staves completions bash)'
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the man page, or write a page for each command into a folder
    Man {
        /// The folder; it must exist
        #[arg(value_name = "FOLDER")]
        folder: Option<PathBuf>,
    },
    /// Load it, and measure
    Bench {
        #[command(subcommand)]
        command: Bench,
    },
}

/// Takes the command line apart.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<CommandLine, clap::Error> {
    let matches = command().try_get_matches_from(words)?;
    CommandLine::from_arg_matches(&matches).map_err(|error| error.format(&mut command()))
}

fn command() -> clap::Command {
    let command = CommandLine::command();
    of_negative_values(command)
}

/// A size or a time below zero is told as such, and not as a flag that does not exist.
fn of_negative_values(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let kind = arg.get_value_parser().type_id();
        let is_one = kind == TypeId::of::<Size>() || kind == TypeId::of::<Millis>();
        match is_one && !arg.is_positional() {
            true => arg.allow_hyphen_values(true),
            false => arg,
        }
    });
    command.mut_subcommands(of_negative_values)
}

/// The same error without a word of what came from the environment: its usage would name the variables' flags as if they had to be given.
pub fn plainly(error: clap::Error) -> clap::Error {
    let command = command().mut_args(|arg| arg.env(None));
    match command.try_get_matches() {
        // Where a variable is what is wrong, there is no such error without it.
        Err(plain) if plain.kind() == error.kind() && error.use_stderr() => plain,
        _ => error,
    }
}

/// Returns whether a command line asks for JSON, as far as can be seen without parsing it.
pub fn wants_json(args: impl Iterator<Item = OsString>) -> bool {
    let mut wanted = std::env::var_os("STAVES_OUTPUT").is_some_and(|form| form == "json");
    let mut before = OsString::new();
    for arg in args.take_while(|arg| arg != "--") {
        match arg.to_str() {
            Some("-ojson" | "-o=json" | "--output=json") => wanted = true,
            Some(form) if before == "-o" || before == "--output" => wanted = form == "json",
            _ => {}
        }
        before = arg;
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    /// Regression: `pool set NAME` said that it wants `--scheme`, though `--memory` would do.
    #[test]
    fn a_pool_is_set_with_either_option_or_both() {
        let set = |options: &[&str]| {
            let words = ["staves", "pool", "set", "p"].iter().chain(options);
            CommandLine::try_parse_from(words)
        };
        let text = set(&[]).expect_err("nothing to set").to_string();
        assert!(text.contains("--scheme <SCHEME>|--memory <SIZE>"), "{text}");
        for good in [
            &["--scheme", "1+1"][..],
            &["--memory", "1MiB"],
            &["--scheme", "1+1", "--memory", "1MiB"],
        ] {
            assert!(set(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn flags_of_up_come_from_the_table_of_keys() {
        let args =
            CommandLine::try_parse_from(["staves", "up", "--value-bytes-max", "1MiB", "--zone=a"]);
        let Ok(CommandLine {
            command: Command::Up(up),
            ..
        }) = args
        else {
            panic!("{args:?}");
        };
        let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        assert_eq!(
            up.keys.0,
            [pair("zone", "a"), pair("value_bytes_max", "1MiB")]
        );
    }
}
