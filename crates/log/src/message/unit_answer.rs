//! The replies of a unit.

use bytes::Bytes;

use crate::types::{AppendId, LogId, Low, PageRun, Position, RecordHead, SessionId, Term, UnitId};

/// Most items of one answer of a sealed unit.
pub const SEALED_ITEMS_MAX: usize = 1024;

/// A place in the list of what a sealed unit has. The list is in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SealCursor {
    /// Ids from this one on.
    Ids(AppendId),
    /// Sessions' marks from this one on.
    Lows(SessionId),
    /// Tags from this one on.
    Tags(u64),
    /// Claimed positions from this one on.
    Claims(Position),
}

impl SealCursor {
    /// The beginning of the list.
    pub const START: SealCursor = SealCursor::Ids(AppendId {
        session: SessionId {
            term: Term(0),
            count: 0,
        },
        seq: 0,
    });
}

/// One thing that a sealed unit has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SealedItem {
    /// An append that is durable.
    Id {
        /// The append.
        id: AppendId,
        /// Its first position.
        position: Position,
        /// Its records.
        count: u32,
    },
    /// A session's mark.
    Low {
        /// The session.
        session: SessionId,
        /// The mark.
        low: Low,
    },
    /// The last positions of a tag at this unit, ascending.
    Tag {
        /// The tag.
        tag: u64,
        /// The positions: at most `BACK_POINTERS`.
        positions: Vec<Position>,
    },
    /// Positions in a row that hold something.
    Claim {
        /// The first.
        position: Position,
        /// Their number.
        count: u32,
    },
}

/// The reply of a unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitReply<D = Bytes> {
    /// The log.
    pub log: LogId,
    /// The answer.
    pub answer: UnitAnswer<D>,
}

/// The answer of a unit. Everything that it reports is on the disks of all members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UnitAnswer<D = Bytes> {
    /// The append is durable.
    Ack {
        /// The append.
        id: AppendId,
        /// Its first position.
        position: Position,
        /// Its records.
        count: u32,
    },
    /// The token's position was junk, or trimmed, before the data came: a new token is needed.
    Lost {
        /// The append.
        id: AppendId,
        /// The position.
        position: Position,
    },
    /// The sequencer has bound the append at another unit, where its data must go.
    Elsewhere {
        /// The append.
        id: AppendId,
        /// The position.
        position: Position,
        /// The unit.
        unit: UnitId,
    },
    /// The append is below its session's mark: nobody awaits it.
    Abandoned {
        /// The append.
        id: AppendId,
    },
    /// The append's condition does not hold, and never will: it is not in the log.
    ConditionFailed {
        /// The append.
        id: AppendId,
        /// The tail of the condition's stream, or of the log.
        tail: Position,
    },
    /// The data was not bound in time and is no longer kept. Nothing is known of the append.
    Expired {
        /// The append.
        id: AppendId,
    },
    /// There is no room for the request now.
    Busy {
        /// The append; none for another request.
        id: Option<AppendId>,
    },
    /// A later request of the same kind took this one's place.
    Superseded,
    /// The unit is sealed for a higher term than the request's.
    Stale {
        /// The unit's term.
        term: Term,
    },
    /// The unit is not sealed for the request's term, or knows nothing of the log: nothing was done.
    NotSealed {
        /// The unit's term.
        term: Term,
    },
    /// The content of a position.
    Slot {
        /// The position.
        position: Position,
        /// The content.
        slot: SlotAnswer<D>,
        /// A higher term than the reader's, if the unit has one.
        stale: Option<Term>,
    },
    /// A map page; none if it was not written here.
    Page {
        /// The page.
        page: u64,
        /// Its contents.
        runs: Option<Vec<PageRun>>,
    },
    /// One record is trimmed, or was not here.
    Punched {
        /// The position.
        position: Position,
    },
    /// The unit has taken the term.
    Sealed {
        /// The term.
        term: Term,
        /// The highest position that was ever claimed here, and one more.
        claimed: Position,
        /// Positions below are trimmed.
        trim: Position,
        /// The highest map page here, and one more.
        pages: u64,
        /// The highest session that is over.
        floor: SessionId,
    },
    /// A part of what a sealed unit has.
    SealedItems {
        /// The term.
        term: Term,
        /// The part that was asked for.
        cursor: SealCursor,
        /// The items.
        items: Vec<SealedItem>,
        /// The next part; none at the end.
        next: Option<SealCursor>,
    },
    /// The positions of a binding have their content for ever.
    Decided(Decision),
    /// It is still the unit's term.
    Confirmed {
        /// The term.
        term: Term,
        /// The number of the question.
        nonce: u64,
    },
    /// The map page is durable.
    PageWritten {
        /// The term.
        term: Term,
        /// The page.
        page: u64,
    },
    /// The log is trimmed here.
    Trimmed {
        /// The first position that stays.
        position: Position,
    },
    /// The request is done.
    Done,
    /// The append's session is over: it is not taken, and may have been before.
    SessionOver {
        /// The append.
        id: AppendId,
    },
}

/// The content of a binding's positions, for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The unit's term.
    pub term: Term,
    /// The unit.
    pub unit: UnitId,
    /// The first position.
    pub position: Position,
    /// Their number.
    pub count: u32,
    /// The append of the binding.
    pub id: Option<AppendId>,
    /// They hold the append's data; else junk.
    pub data: bool,
    /// The bytes of the data.
    pub bytes: u64,
}

/// The content of a position, as a reader receives it (rule 17).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SlotAnswer<D = Bytes> {
    /// A record.
    Data {
        /// Its head.
        head: RecordHead,
        /// Its bytes.
        data: D,
    },
    /// Nothing, for ever.
    Junk,
    /// It was trimmed.
    Trimmed,
    /// Its group lost it.
    Lost,
    /// Not yet decided: this promises nothing.
    Unwritten,
}

impl<D> SlotAnswer<D> {
    /// The same with other data.
    pub fn map_data<E>(self, data_of: impl FnOnce(D) -> E) -> SlotAnswer<E> {
        match self {
            SlotAnswer::Data { head, data } => SlotAnswer::Data {
                head,
                data: data_of(data),
            },
            SlotAnswer::Junk => SlotAnswer::Junk,
            SlotAnswer::Trimmed => SlotAnswer::Trimmed,
            SlotAnswer::Lost => SlotAnswer::Lost,
            SlotAnswer::Unwritten => SlotAnswer::Unwritten,
        }
    }
}

impl<D> UnitReply<D> {
    /// The same with other data: places become the bytes that lie there.
    pub fn map_data<E>(self, data_of: impl FnOnce(D) -> E) -> UnitReply<E> {
        UnitReply {
            log: self.log,
            answer: self.answer.map_data(data_of),
        }
    }
}

use self::UnitAnswer as Of;

impl<D> UnitAnswer<D> {
    fn map_data<E>(self, data_of: impl FnOnce(D) -> E) -> UnitAnswer<E> {
        retyped!(self, Of {
            Ack { id, position, count },
            Lost { id, position },
            Elsewhere { id, position, unit },
            Abandoned { id },
            ConditionFailed { id, tail },
            Expired { id },
            Busy { id },
            Superseded,
            Stale { term },
            NotSealed { term },
            Page { page, runs },
            Punched { position },
            Sealed { term, claimed, trim, pages, floor },
            SealedItems { term, cursor, items, next },
            Confirmed { term, nonce },
            PageWritten { term, page },
            Trimmed { position },
            Done,
            SessionOver { id },
        }
            Of::Slot { position, slot, stale } => {
                let slot = slot.map_data(data_of);
                Of::Slot { position, slot, stale }
            }
            Of::Decided(decision) => Of::Decided(decision),
        )
    }
}
