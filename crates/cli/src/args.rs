//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgGroup, ArgMatches, CommandFactory, Parser, Subcommand, ValueEnum};
use staves_model::Scheme;
use staves_node::config::{Endpoint, KEYS, Millis, Size};

/// One cluster out of many machines' memory: a cache that loses nothing when nodes are killed.
#[derive(Parser, Debug)]
#[command(
    name = "staves",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub struct Args {
    /// How to answer; texts for files (man, completions, reference, config example) are the same in both
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value = "table",
        env = "STAVES_OUTPUT"
    )]
    pub output: Format,

    /// A node of the cluster, or several (the first that answers is asked)
    #[arg(
        long,
        global = true,
        value_name = "ADDR",
        value_delimiter = ',',
        default_value = "127.0.0.1:1600",
        env = "STAVES_CLUSTER"
    )]
    pub cluster: Vec<Endpoint>,

    /// How long the cluster may take to answer
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        default_value = "5s",
        env = "STAVES_DEADLINE"
    )]
    pub deadline: Millis,

    #[command(subcommand)]
    pub command: Command,
}

/// How a command answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a node in the foreground
    Up(Up),
    /// Show it: start a cluster here, kill nodes under load, count what is lost
    Demo(Demo),
    /// How the cluster is
    Status {
        /// Exit with 5 if it is degraded, with 6 if it is critical
        #[arg(long)]
        check: bool,
    },
    /// Nodes
    Node {
        #[command(subcommand)]
        command: Node,
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
        command: crate::memory::Memory,
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
    Mount(crate::mount::Mount),
    /// Take a mounted folder away
    Unmount(crate::mount::Unmount),
    /// Datasets, and how much of them is in memory
    Files {
        #[command(subcommand)]
        command: crate::files::Files,
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
    /// What an error code means, and what to do; without one, all of them
    Explain {
        /// The word in brackets at an error's end, its number, or the first word of an error of Redis's protocol
        #[arg(allow_hyphen_values = true)]
        code: Option<String>,
    },
    /// Print a page of the reference, in Markdown
    Reference {
        /// Which page
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
        command: crate::bench::Bench,
    },
}

/// The same error without a word of what came from the environment: its usage would name the variables' flags as if they had to be given.
pub fn plainly(error: clap::Error) -> clap::Error {
    let command = Args::command().mut_args(|arg| arg.env(None));
    match command.try_get_matches() {
        // Where a variable is what is wrong, there is no such error without it.
        Err(plain) if plain.kind() == error.kind() && error.use_stderr() => plain,
        _ => error,
    }
}

/// Whether a command line asks for JSON, as far as can be seen without taking it apart.
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

/// A page of the reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Page {
    /// Every command with its flags
    Commands,
    /// Every key of a node's configuration
    Config,
    /// Every metric
    Metrics,
    /// Every error code
    Errors,
}

/// A shell whose completions can be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// A node's configuration as flags, from the one table of keys.
#[derive(Clone, Debug, Default)]
pub struct Keys(pub Vec<(String, String)>);

impl clap::FromArgMatches for Keys {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Keys, clap::Error> {
        let given = |name: &'static str| {
            let text = matches.get_one::<String>(name)?;
            Some((name.to_owned(), text.clone()))
        };
        Ok(Keys(
            KEYS.iter().filter_map(|key| given(key.name)).collect(),
        ))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Keys::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Keys {
    fn augment_args(command: clap::Command) -> clap::Command {
        KEYS.iter().fold(command, |command, key| {
            let default = match key.default {
                "" => String::new(),
                default => format!(" [default: {default}]"),
            };
            command.arg(
                Arg::new(key.name)
                    .long(key.name.replace('_', "-"))
                    .value_name("VALUE")
                    .help(format!("{}{default}", key.doc)),
            )
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Keys::augment_args(command)
    }
}

#[derive(clap::Args, Debug)]
pub struct Up {
    /// A configuration file (see 'staves config example')
    #[arg(long, value_name = "FILE", env = "STAVES_CONFIG")]
    pub config: Option<PathBuf>,

    #[command(flatten)]
    pub keys: Keys,

    /// Stop when the process of this id is no longer the parent
    #[arg(long, value_name = "PID", hide = true)]
    pub parent_pid: Option<u32>,
}

#[derive(clap::Args, Debug)]
pub struct Demo {
    /// How many nodes
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(3..=15))]
    pub nodes: u32,

    /// End when it is shown, instead of leaving the cluster running
    #[arg(long)]
    pub once: bool,

    /// Use the ports from here on (three for each node) instead of free ones
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=65_000))]
    pub base_port: Option<u16>,

    /// Keep the nodes' folders and logs, and say where
    #[arg(long)]
    pub keep: bool,
}

#[derive(Subcommand, Debug)]
pub enum Node {
    /// All nodes
    List,
    /// One node, and which keys it holds
    Show {
        /// Its id or its name
        node: String,
    },
    /// Move a node's buckets elsewhere, so that it can be stopped
    Drain {
        /// Its id or its name
        node: String,
        /// Wait until it holds none, at most this long
        #[arg(long, value_name = "TIME")]
        wait: Option<Millis>,
        /// Even if the nodes that are left cannot hold its buckets
        #[arg(long)]
        force: bool,
    },
    /// Let a drained node have buckets again
    Resume {
        /// Its id or its name
        node: String,
    },
    /// Stop a node's process in good order, if what it holds is held by enough others
    Stop {
        /// Its id or its name
        node: String,
        /// Even if what it holds is lost by that
        #[arg(long)]
        force: bool,
    },
    /// Strike a node that will not come back
    Forget {
        /// Its id or its name
        node: String,
        /// Even if it is up: stop it if it answers, and wait until it is gone
        #[arg(long)]
        force: bool,
    },
}

#[derive(Subcommand, Debug)]
pub enum Pool {
    /// Make a pool
    Create {
        /// Its name
        name: String,
        /// What it holds
        #[arg(long, value_enum, default_value = "cache")]
        kind: Kind,
        /// One primary and so many copies; for memory, so many data and so many parity buckets; 1+2 if not given (files have none:
        /// they come from their source again)
        #[arg(long)]
        scheme: Option<Scheme>,
        /// Memory that each node may give to it
        #[arg(long, value_name = "SIZE")]
        memory: Size,
        /// Buckets: a power of two; if not given 64, for files 1024 (those of memory come with its regions)
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
        buckets: Option<u32>,
        /// When a bucket is lost whole, wait for its members instead of starting empty
        #[arg(long)]
        wait_when_lost: bool,
    },
    /// All pools
    List,
    /// One pool
    Show {
        /// Its name
        name: String,
    },
    /// Change a pool while it serves
    #[command(group = ArgGroup::new("what").required(true).multiple(true).args(["scheme", "memory"]))]
    Set {
        /// Its name
        name: String,
        /// One primary and so many copies
        #[arg(long)]
        scheme: Option<Scheme>,
        /// Memory that each node may give to it
        #[arg(long, value_name = "SIZE")]
        memory: Option<Size>,
        /// Do not ask where a scheme without copies or parity is to bear no loss any more
        #[arg(long)]
        yes: bool,
    },
    /// Delete a pool with all that it holds
    Delete {
        /// Its name
        name: String,
        /// Do not ask; needed where there is no terminal to ask on
        #[arg(long)]
        yes: bool,
    },
}

/// What a pool holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Kind {
    /// Keys and values
    Cache,
    /// Regions of flat bytes
    Memory,
    /// Blocks of files that come from a source
    Files,
}

#[derive(Subcommand, Debug)]
pub enum Cache {
    /// Print the value of a key as it is
    Get {
        /// The key
        key: String,
        /// The pool
        #[arg(long, default_value = "cache")]
        pool: String,
    },
    /// Set the value of a key
    Put {
        /// The key
        key: String,
        /// The value; without one it is read from standard input
        value: Option<String>,
        /// Only if the key has no value
        #[arg(long, conflicts_with = "if_present")]
        if_absent: bool,
        /// Only if the key has a value
        #[arg(long)]
        if_present: bool,
        /// The pool
        #[arg(long, default_value = "cache")]
        pool: String,
    },
    /// Delete keys
    Delete {
        /// The keys
        #[arg(required = true)]
        keys: Vec<String>,
        /// The pool
        #[arg(long, default_value = "cache")]
        pool: String,
    },
    /// Keys, bytes and requests, node by node
    Stats {
        /// The pool
        #[arg(long, default_value = "cache")]
        pool: String,
    },
}

#[derive(Subcommand, Debug)]
pub enum Group {
    /// All groups
    List {
        /// Of this pool only
        #[arg(long)]
        pool: Option<String>,
    },
    /// One group and its members
    Show {
        /// Its number, as 'staves group list' shows it
        #[arg(value_parser = group_number)]
        group: u32,
    },
}

fn group_number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| {
        "groups have numbers; 'staves group list' shows those there are, and 'staves memory show NAME' those of a region".to_owned()
    })
}

#[derive(Subcommand, Debug)]
pub enum Config {
    /// Print a commented file with every key
    Example,
    /// Read a file as 'staves up' would, and say what is wrong with it
    Check {
        /// The file
        #[arg(value_name = "FILE", env = "STAVES_CONFIG")]
        config: Option<PathBuf>,
        #[command(flatten)]
        keys: Keys,
    },
    /// Print what 'staves up' would run with, and where each value comes from
    Show {
        /// The file
        #[arg(value_name = "FILE", env = "STAVES_CONFIG")]
        config: Option<PathBuf>,
        #[command(flatten)]
        keys: Keys,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    /// Regression: `pool set NAME` said that it wants `--scheme`, though `--memory` would do.
    #[test]
    fn a_pool_is_set_with_either_option_or_both() {
        let set = |options: &[&str]| {
            let words = ["staves", "pool", "set", "p"].iter().chain(options);
            Args::try_parse_from(words)
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
        let args = Args::try_parse_from(["staves", "up", "--value-bytes-max", "1MiB", "--zone=a"]);
        let Ok(Args {
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
