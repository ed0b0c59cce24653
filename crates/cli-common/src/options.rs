//! The options of every command.

use std::path::Path;

use clap::ValueEnum;
use staves_net::Secret;
use staves_node::config::{Endpoint, Millis};

// No doc comment: clap would take it for the program's own description.
#[allow(missing_docs)]
#[derive(clap::Args, Debug)]
#[group(skip)]
pub struct GlobalOptions {
    /// The form of the answer; texts for files (man, completions, reference, config example) are the same in both
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

    /// Longest time for the cluster to answer
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        default_value = "5s",
        env = "STAVES_DEADLINE"
    )]
    pub deadline: Millis,

    /// A file with the secret of the cluster's clients, or of its nodes, if it has one
    #[arg(long, global = true, value_name = "FILE", env = "STAVES_SECRET_FILE")]
    pub secret_file: Option<String>,
}

impl GlobalOptions {
    /// The secret of `--secret-file`.
    pub fn secret(&self) -> anyhow::Result<Option<Secret>> {
        let path = self.secret_file.as_deref().map(Path::new);
        Ok(path.map(Secret::read).transpose()?)
    }
}

/// The form of a command's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}
