//! The command line of `staves log`.

use clap::{Subcommand, ValueEnum};
use staves_client::AppendMode;

use super::cursor::CursorCommand;
use super::keep::KeepOptions;
use super::queue::QueueCommand;

#[derive(Subcommand, Debug)]
pub enum LogCommand {
    /// Make a log
    Create {
        /// Its name
        name: String,
        /// The pool; if not given, the only one of logs
        #[arg(long)]
        pool: Option<String>,
        /// The way that records take to their positions
        #[arg(long, value_enum, default_value = "bind")]
        mode: ModeName,
        /// The node of its first sequencer, by id or name; if not given, that of its home's first member at the first append
        #[arg(long, value_name = "NODE")]
        sequencer_node: Option<String>,
        /// The zone of its first sequencer: a node that is up in it
        #[arg(long, value_name = "ZONE", conflicts_with = "sequencer_node")]
        sequencer_zone: Option<String>,
        #[command(flatten)]
        keep: KeepOptions,
    },
    /// Change how much of a log is kept
    Set {
        /// Its name
        name: String,
        /// The pool; if not given, the only one of logs
        #[arg(long)]
        pool: Option<String>,
        #[command(flatten)]
        keep: KeepOptions,
    },
    /// Positions that readers keep in the log
    #[command(subcommand)]
    Cursor(CursorCommand),
    /// A work queue in the log: items are pushed, taken for a time, and acknowledged
    #[command(subcommand)]
    Queue(QueueCommand),
    /// Append each line of standard input as a record, and print their positions once all copies have them
    Append {
        /// Its name
        name: String,
        /// The pool; if not given, the only one of logs
        #[arg(long)]
        pool: Option<String>,
        /// A tag of the records, a number: they can be read by it. Up to eight
        #[arg(long, value_name = "TAG")]
        tag: Vec<u64>,
        /// Append all lines in one piece, and only if nothing lies at this position or above
        #[arg(long, value_name = "POSITION")]
        if_tail: Option<u64>,
        /// With --if-tail: only if no record of this tag lies there
        #[arg(long, value_name = "TAG", requires = "if_tail")]
        if_tag: Option<u64>,
    },
    /// Print records in order, each with a line end
    Read {
        /// Its name
        name: String,
        /// The pool; if not given, the only one of logs
        #[arg(long)]
        pool: Option<String>,
        /// The first position; if not given, the first that was not trimmed
        #[arg(long, value_name = "POSITION")]
        from: Option<u64>,
        /// Most records
        #[arg(long, value_name = "N")]
        count: Option<u64>,
        /// Wait at the tail for more, until interrupted
        #[arg(long)]
        follow: bool,
        /// Only records of this tag
        #[arg(long, value_name = "TAG")]
        tag: Option<u64>,
    },
    /// Print the position that the next record may have: all that was acknowledged lies below
    Tail {
        /// Its name
        name: String,
        /// The pool; if not given, the only one of logs
        #[arg(long)]
        pool: Option<String>,
    },
    /// All logs
    List {
        /// Of this pool only
        #[arg(long)]
        pool: Option<String>,
    },
    /// One log, with the position that its next record may have
    Show {
        /// Its name
        name: String,
        /// The pool; if not given, the only one of logs
        #[arg(long)]
        pool: Option<String>,
    },
    /// Move a log's sequencer to a node, while the log serves
    Move {
        /// Its name
        name: String,
        /// The pool; if not given, the only one of logs
        #[arg(long)]
        pool: Option<String>,
        /// The node, by its id or its name
        #[arg(long, value_name = "NODE")]
        to: String,
    },
    /// End a log's term and begin the next where its sequencer is, while the log serves
    Seal {
        /// Its name
        name: String,
        /// The pool; if not given, the only one of logs
        #[arg(long)]
        pool: Option<String>,
    },
    /// Give up all records below a position
    Trim {
        /// Its name
        name: String,
        /// The pool; if not given, the only one of logs
        #[arg(long)]
        pool: Option<String>,
        /// The first position that stays
        #[arg(long, value_name = "POSITION")]
        to: u64,
    },
    /// Give up the record of one position
    Punch {
        /// Its name
        name: String,
        /// The pool; if not given, the only one of logs
        #[arg(long)]
        pool: Option<String>,
        /// The position
        #[arg(long, value_name = "POSITION")]
        at: u64,
    },
    /// Delete a log with all its records
    Delete {
        /// Its name
        name: String,
        /// The pool; if not given, the only one of logs
        #[arg(long)]
        pool: Option<String>,
        /// Do not ask; needed where there is no terminal to ask on
        #[arg(long)]
        yes: bool,
    },
}

/// The way of appends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ModeName {
    /// Data and request at once; the sequencer binds a position to the data
    Bind,
    /// Positions belong to units in turn, and the client guesses the unit
    Predict,
    /// Positions belong to units in turn; the position first, the data second
    Corfu,
}

impl From<ModeName> for AppendMode {
    fn from(name: ModeName) -> AppendMode {
        match name {
            ModeName::Bind => AppendMode::Bind,
            ModeName::Predict => AppendMode::Predict,
            ModeName::Corfu => AppendMode::Corfu,
        }
    }
}
