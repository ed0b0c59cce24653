//! Requests to a sequencer, and its replies.

use crate::message::{Decision, TermStart};
use crate::types::{AppendId, Binding, LogId, Low, Position, SessionId, Term, UnitId};

/// A request to a sequencer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SequencerRequest {
    /// The log.
    pub log: LogId,
    /// The request.
    pub op: SequencerOp,
}

/// The request itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SequencerOp {
    /// A position for an append, from its client or from the unit that has its data.
    Seq {
        /// The append.
        id: AppendId,
        /// Its records.
        count: u32,
        /// Its tags.
        tags: Vec<u64>,
        /// The unit that its data goes to (bind, predict).
        unit: UnitId,
        /// The session's mark.
        low: Low,
        /// The token that was lost (corfu).
        lost: Option<Position>,
    },
    /// From a unit: the positions of a binding, which others than the sequencer brought, have their content for ever.
    Decided(Decision),
    /// The content of a position, as far as the sequencer knows.
    Where {
        /// The position.
        position: Position,
    },
    /// The tail.
    Check {
        /// The stream whose last positions are asked for, too.
        tag: Option<u64>,
    },
    /// Trims the log.
    Trim {
        /// The first position that stays.
        position: Position,
    },
    /// From a client: a session, for appends to come.
    OpenSession {
        /// The number of the question, returned.
        nonce: u64,
    },
    /// From a client: it awaits nothing of the session, and sends nothing more in it.
    EndSession {
        /// The session.
        session: SessionId,
    },
}

/// The reply of a sequencer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SequencerReply {
    /// The log.
    pub log: LogId,
    /// The answer.
    pub answer: SequencerAnswer,
}

/// The answer of a sequencer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SequencerAnswer {
    /// A position (corfu). It can be used in its term only.
    Token {
        /// The term.
        term: TermStart,
        /// The position.
        binding: Binding,
    },
    /// The append is bound; the client waits for the unit.
    Bound {
        /// The append.
        id: AppendId,
        /// Its first position.
        position: Position,
        /// The unit.
        unit: UnitId,
    },
    /// The append waits for its unit's turn (predict).
    Queued {
        /// The append.
        id: AppendId,
    },
    /// The append is durable.
    Done {
        /// The append.
        id: AppendId,
        /// Its first position.
        position: Position,
        /// Its records.
        count: u32,
    },
    /// There is no room for the request now.
    Busy {
        /// The append; none for another request.
        id: Option<AppendId>,
    },
    /// The append is below its session's mark.
    Abandoned {
        /// The append.
        id: AppendId,
    },
    /// The unit is none of this term's.
    NotOfTerm {
        /// The append.
        id: AppendId,
        /// The term.
        term: Term,
    },
    /// There is no sequencer of the log here: its record has the newer one.
    NotSequencer {
        /// The highest term that is known here.
        term: Term,
    },
    /// The sequencer's word on a position.
    Word {
        /// The term.
        term: TermStart,
        /// The position.
        position: Position,
        /// The word.
        word: PositionWord,
    },
    /// The report is taken.
    Noted,
    /// The tail: above all that was acknowledged before the question.
    Tail {
        /// The first position that was not given out.
        tail: Position,
        /// The last positions of the stream, ascending, at most `BACK_POINTERS`. Fewer: there are no others.
        stream: Vec<Position>,
    },
    /// The trim was recorded, or refused because it lies past what is decided.
    Trimmed {
        /// The position asked for.
        position: Position,
        /// It was recorded.
        done: bool,
    },
    /// A session, which nobody has had before.
    SessionOpened {
        /// The number of the question.
        nonce: u64,
        /// The session.
        session: SessionId,
    },
    /// The append's session is over: it is not taken, and may have been before.
    SessionOver {
        /// The append.
        id: AppendId,
    },
}

/// The sequencer's word on a position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PositionWord {
    /// It was not given out.
    Tail,
    /// It is bound and undecided.
    Open {
        /// The unit.
        unit: UnitId,
        /// The binding.
        binding: Binding,
    },
    /// The unit has it.
    At(UnitId),
    /// Nothing, for ever.
    Junk,
    /// It was trimmed.
    Trimmed,
    /// Its map page has it.
    Page,
}
