//! Requests to the home of a log, and its replies.

use crate::retention::LogRetention;
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
    /// Sets, moves or removes a cursor: a compare-and-set, but where `from` is left out.
    SetCursor {
        /// The log's name.
        name: String,
        /// The log.
        log: LogId,
        /// The cursor's name.
        cursor: String,
        /// Its position before, of which none stands for no cursor. None at all: any.
        from: Option<Option<Position>>,
        /// Its position from now on; none removes it.
        to: Option<Position>,
    },
    /// Changes the records that are kept.
    SetRetention {
        /// The name.
        name: String,
        /// The log.
        log: LogId,
        /// The records that are kept.
        retention: LogRetention,
    },
    /// From the sequencer: raises the trim as far as the log's own rules ask, and its cursors allow.
    Retain {
        /// The name.
        name: String,
        /// The log.
        log: LogId,
        /// The sequencer's term.
        term: Term,
        /// The first position that need not go.
        position: Position,
        /// The records that are kept, as the sequencer knows it.
        retention: LogRetention,
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
        "a log's name has 1 to 255 bytes and no control characters, a map page 1 to 24,576 positions, and a reader's wait is no longer than the other"
    )]
    Invalid,
    /// The projection would have no unit, or too many.
    #[error("a log needs a unit, and has at most 1024 in a segment and 256 segments")]
    Units,
    /// The pool, or the log's home, has as many logs as it can have.
    #[error(
        "the pool has as many logs as it can have (65,536 in use): delete some, or create another pool for more ('staves pool create NAME --kind log')"
    )]
    Full,
    /// The cursor is elsewhere: its position, none if there is no such cursor.
    #[error("the cursor was moved meanwhile: read it anew")]
    CursorMoved(Option<Position>),
    /// The cursor's name is out of bounds, or there are as many cursors as a log may have.
    #[error(
        "a log has at most 64 cursors, with names of 1 to 64 bytes and no control characters: delete one, or choose another name"
    )]
    Cursors,
}
