//! The durable entries of a unit: its state is their replay and nothing else.

use crate::retention::LogRetention;
use crate::types::{
    AppendId, DataPlace, LogId, LogOptions, Low, PageRun, Position, SequencerId, SessionId,
    TagLink, Term, UnitId,
};

/// One durable update of a unit. It takes effect whole or not at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UnitEntry {
    /// The unit takes a log's term. Bindings of other terms are rejected from here on.
    Seal {
        /// The log.
        log: LogId,
        /// The term.
        term: Term,
        /// The log's options, which the unit's deadlines follow.
        options: LogOptions,
    },
    /// The start of the term that the unit is sealed for.
    Start {
        /// The log.
        log: LogId,
        /// The first position that the term can give out.
        start: Position,
    },
    /// Data and binding have met: the slots, the id and the client's mark, in one.
    Commit {
        /// The log.
        log: LogId,
        /// The first position.
        position: Position,
        /// The append.
        id: AppendId,
        /// The session's mark: ids below it are dropped.
        low: Low,
        /// The tags.
        links: Vec<TagLink>,
        /// The records' bytes, one place a position.
        places: Vec<DataPlace>,
    },
    /// Positions that are junk for ever, as far as they hold nothing.
    Junk {
        /// The log.
        log: LogId,
        /// The first.
        position: Position,
        /// Their number.
        count: u32,
    },
    /// Positions below are trimmed. Ids, marks and the highest claim stay.
    Trim {
        /// The log.
        log: LogId,
        /// The first position that stays.
        position: Position,
    },
    /// One record is trimmed, and leaves a tomb.
    Punch {
        /// The log.
        log: LogId,
        /// The position.
        position: Position,
    },
    /// A map page, written once.
    Page {
        /// The log.
        log: LogId,
        /// The page: it begins at position page x `page_positions`.
        page: u64,
        /// The contents.
        runs: Vec<PageRun>,
    },
    /// All positions below are decided at every unit: copies may answer for them.
    Prefix {
        /// The log.
        log: LogId,
        /// The first position that need not be.
        position: Position,
    },
    /// The sessions up to this one are over.
    Floor {
        /// The log.
        log: LogId,
        /// The highest that is over.
        session: SessionId,
    },
    /// The log was deleted: the unit's share of it goes.
    Forget {
        /// The log.
        log: LogId,
    },
    /// A log's record is made at its home. The number is the home's counter, raised by this.
    Create {
        /// The name.
        name: String,
        /// The number.
        log: LogId,
        /// The options.
        options: LogOptions,
    },
    /// A term is committed, and not yet open.
    Lead {
        /// The name.
        name: String,
        /// The term.
        term: Term,
        /// Its sequencer.
        sequencer: SequencerId,
        /// Units that it adds.
        added: Vec<UnitId>,
    },
    /// The committed term opens.
    Open {
        /// The name.
        name: String,
        /// The term.
        term: Term,
        /// The first position that it can give out.
        start: Position,
    },
    /// The record's trim is raised.
    RecordTrim {
        /// The name.
        name: String,
        /// The first position that stays.
        position: Position,
    },
    /// A cursor is set, or goes.
    Cursor {
        /// The log's name.
        name: String,
        /// The cursor's name.
        cursor: String,
        /// Its position; none if it goes.
        position: Option<Position>,
    },
    /// Other records are kept.
    Retention {
        /// The name.
        name: String,
        /// The records that are kept.
        retention: LogRetention,
    },
    /// The record goes. Its number is never given out again.
    Delete {
        /// The name.
        name: String,
    },
}

/// The short name, for matches.
pub use self::UnitEntry as Entry;
