//! Requests to the home of a log, and its replies.

use crate::types::{LogId, LogOptions, LogRecord, Position, SequencerId, Term, UnitId};

/// Most names of one answer of a home.
pub const NAMES_MAX: u32 = 256;

/// A request to the home of a log. Each change is one durable compare-and-set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecordRequest {
    /// Makes a log.
    Create {
        /// The name.
        name: String,
        /// The options.
        options: LogOptions,
    },
    /// Its record.
    View {
        /// The name.
        name: String,
    },
    /// Commits the next term: a sequencer, and perhaps more units.
    Lead {
        /// The name.
        name: String,
        /// The log: not another of the same name.
        log: LogId,
        /// The term that it follows.
        from_term: Term,
        /// The sequencer.
        sequencer: SequencerId,
        /// Units to add.
        added: Vec<UnitId>,
    },
    /// Opens the committed term.
    Open {
        /// The name.
        name: String,
        /// The log.
        log: LogId,
        /// The term.
        term: Term,
        /// The first position that it gives out.
        start: Position,
    },
    /// Raises the trim.
    Trim {
        /// The name.
        name: String,
        /// The log.
        log: LogId,
        /// The sequencer's term.
        term: Term,
        /// The first position that stays.
        position: Position,
    },
    /// Deletes the log.
    Delete {
        /// The name.
        name: String,
    },
    /// Names of logs after `after`, in order.
    List {
        /// The last name of the part before; empty for the first.
        after: String,
        /// Most names.
        limit: u32,
    },
}

/// The reply of a home.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecordReply {
    /// The record as it now is.
    Record(Box<LogRecord>),
    /// Names of logs, and the end of the list if there are fewer than asked for.
    Names(Vec<String>),
    /// The log is deleted. Its units are to forget it.
    Deleted(Box<LogRecord>),
    /// Nothing was changed.
    Refused(RecordRefusal),
}

/// The reason why a home changed nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordRefusal {
    /// No log of the name.
    #[error("there is no log of this name: create it first")]
    NotFound,
    /// The name is taken.
    #[error("there is a log of this name already: choose another name, or delete it first")]
    Exists,
    /// Another term came first; the record has it.
    #[error("the log has moved on to another term: read its record anew")]
    Moved(Box<LogRecord>),
    /// The name or an option is out of bounds.
    #[error(
        "a log's name has 1 to 255 bytes and no control characters, a map page 1 to 65,536 positions, and a reader's wait is no longer than the other"
    )]
    Invalid,
    /// The projection would have no unit, or too many.
    #[error("a log needs a unit, and has at most 1024 in a segment and 256 segments")]
    Units,
    /// The home has no room for another log.
    #[error("this home has as many logs as it can have: delete one, or add groups to the pool")]
    Full,
}
