//! Requests to a unit.

use crate::message::{AppendCondition, Records, SealCursor};
use crate::types::{
    AppendId, Binding, LogId, LogOptions, Low, PageRun, Position, SequencerId, SessionId, Term,
};

/// A request to a unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitRequest<D = Records> {
    /// The log.
    pub log: LogId,
    /// The request.
    pub op: UnitOp<D>,
}

/// An append's data, as it goes to a unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParkedAppend<D> {
    /// The append.
    pub id: AppendId,
    /// The session's mark.
    pub low: Low,
    /// Records of the append.
    pub count: u32,
    /// Its tags.
    pub tags: Vec<u64>,
    /// Its condition, which the unit's own request for a position repeats.
    pub condition: Option<AppendCondition>,
    /// The sequencer that the client knows: the unit asks it if no binding comes.
    pub sequencer: SequencerId,
    /// The records.
    pub data: D,
}

/// A term as those know it who bring its bindings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TermStart {
    /// The term.
    pub term: Term,
    /// The first position that it can give out.
    pub start: Position,
    /// Its sequencer.
    pub sequencer: SequencerId,
}

/// The request itself. Those that a unit obeys carry the term, but for `Park`, `Trim` and `Punch`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UnitOp<D = Records> {
    /// From a client: keep this data until its binding comes. Answered when it is durable at its position.
    Park(ParkedAppend<D>),
    /// From a client with a token (corfu): write this at the token's position.
    Write {
        /// The token's term.
        term: TermStart,
        /// The token's position, and the tags with their earlier positions.
        binding: Binding,
        /// The client's mark.
        low: Low,
        /// The record.
        data: D,
    },
    /// From a reader.
    Read {
        /// The position.
        position: Position,
        /// The reader's term.
        term: Term,
        /// The start of the reader's term.
        start: Position,
        /// The sequencer's word that the position is bound here and undecided: it counts as the binding.
        word: Option<(TermStart, Binding)>,
    },
    /// From a reader: a map page.
    ReadPage {
        /// The page.
        page: u64,
    },
    /// Trims one record.
    Punch {
        /// The position.
        position: Position,
    },
    /// From a sequencer: take the term, forget bindings that wait, report.
    Seal {
        /// The term.
        term: Term,
        /// The log's options.
        options: LogOptions,
    },
    /// From a sequencer: a part of what a sealed unit has.
    Sealed {
        /// The term that it was sealed for.
        term: Term,
        /// Claims below are not wanted.
        floor: Position,
        /// The part.
        cursor: SealCursor,
    },
    /// From a sequencer: the position of an append whose data is, or will be, here.
    Bind {
        /// The term.
        term: TermStart,
        /// The binding.
        binding: Binding,
    },
    /// From a sequencer: is this still your term?
    Confirm {
        /// The term.
        term: Term,
        /// The number of the question, returned.
        nonce: u64,
    },
    /// From a sequencer: keep this map page.
    WritePage {
        /// The term.
        term: Term,
        /// The page.
        page: u64,
        /// Its contents.
        runs: Vec<PageRun>,
    },
    /// From a sequencer: the log is trimmed.
    Trim {
        /// The first position that stays.
        position: Position,
    },
    /// From a sequencer: every position below is decided, at every unit.
    Prefix {
        /// The term.
        term: Term,
        /// The first position that need not be.
        position: Position,
        /// The highest session that is over.
        floor: SessionId,
    },
    /// From the log's home: the log was deleted.
    Forget,
}

impl UnitOp {
    /// Bytes of the records that it brings.
    pub fn data_bytes(&self) -> usize {
        match self {
            UnitOp::Park(park) => park.data.bytes.len(),
            UnitOp::Write { data, .. } => data.bytes.len(),
            _ => 0,
        }
    }
}

impl<D> UnitRequest<D> {
    /// The same with other data: bytes are put in places on their way to the machine.
    pub fn map_data<E>(self, place: impl FnOnce(D) -> E) -> UnitRequest<E> {
        let log = self.log;
        let op = retyped!(self.op, UnitOp {
            Read { position, term, start, word },
            ReadPage { page },
            Punch { position },
            Seal { term, options },
            Sealed { term, floor, cursor },
            Bind { term, binding },
            Confirm { term, nonce },
            WritePage { term, page, runs },
            Trim { position },
            Prefix { term, position, floor },
            Forget,
        }
            UnitOp::Park(park) => UnitOp::Park(ParkedAppend {
                id: park.id,
                low: park.low,
                count: park.count,
                tags: park.tags,
                condition: park.condition,
                sequencer: park.sequencer,
                data: place(park.data),
            }),
            UnitOp::Write { term, binding, low, data } => {
                let data = place(data);
                UnitOp::Write { term, binding, low, data }
            }
        );
        UnitRequest { log, op }
    }
}
