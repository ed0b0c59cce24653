//! Requests to a sequencer, and its replies.

use crate::message::{Decision, TermStart};
use crate::types::{AppendId, Binding, LogId, Low, Position, SessionId, Term, UnitId};

/// The condition of an append: nothing of a stream, or of the log, lies at a position or above it.
///
/// Once it fails, it fails for ever: it is judged by what is decided, and an append waits for what is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppendCondition {
    /// The stream; none for the log.
    pub tag: Option<u64>,
    /// The position past the last one that may be there.
    pub tail: Position,
}

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
        /// The append is made only if this holds.
        condition: Option<AppendCondition>,
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
    /// From one who follows: answered once there is something to read, or after a time.
    Wait {
        /// The position that is to be decided, it and all below.
        position: Position,
        /// The stream of which a record is to lie at the position or above; none for any.
        tag: Option<u64>,
        /// The longest wait in milliseconds: [`WAIT_MS_MAX`] at most.
        wait_ms: u32,
    },
    /// The log's record has changed: read it anew.
    ReadRecord,
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

/// The longest wait for a log to grow, in milliseconds.
pub const WAIT_MS_MAX: u32 = 1000;

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
        /// Positions below are trimmed.
        trim: Position,
    },
    /// The trim was recorded, or refused because it lies past what is decided.
    Trimmed {
        /// The position asked for.
        position: Position,
        /// It was recorded.
        done: bool,
    },
    /// The append's condition does not hold, and never will: it is not in the log.
    ConditionFailed {
        /// The append.
        id: AppendId,
        /// The tail of the condition's stream, or of the log.
        tail: Position,
    },
    /// The log holds all that it may until its oldest cursor moves on: the append was not bound now.
    Full {
        /// The append.
        id: AppendId,
    },
    /// The log remembers as many tags as it can, and the append brings others: it was not bound now.
    TagsFull {
        /// The append.
        id: AppendId,
    },
    /// There is something to read, or the wait took too long. Nothing is promised.
    Grown {
        /// All below is decided.
        end: Position,
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
