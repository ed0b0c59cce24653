//! The encoding of requests and replies. A tag is never given a second meaning.

use bytes::{BufMut, Bytes, BytesMut};
use staves_wire::DecodeError;

use super::values::{enums, structs};
use super::{Field, unknown};
use crate::message::{
    Decision, PositionWord, RecordRefusal, RecordReply, RecordRequest, SequencerAnswer,
    SequencerOp, SequencerReply, SequencerRequest, SlotAnswer, UnitAnswer, UnitOp, UnitReply,
    UnitRequest,
};

structs! {
    UnitRequest<D> { log, op }
    UnitReply<D> { log, answer }
    SequencerRequest { log, op }
    SequencerReply { log, answer }
    Decision { term, unit, position, count, id, data, bytes }
}

enums! {
    UnitOp<D> as "a request to a log's unit" {
        0 => Park(park),
        1 => Write { term, binding, low, data },
        2 => Read { position, term, start, word },
        3 => ReadPage { page },
        4 => Punch { position },
        5 => Seal { term, options },
        6 => Sealed { term, floor, cursor },
        7 => Bind { term, binding },
        8 => Confirm { term, nonce },
        9 => WritePage { term, page, runs },
        10 => Trim { position },
        11 => Prefix { term, position, floor },
        12 => Forget,
    }
    SlotAnswer<D> as "the content of a position" {
        0 => Data { head, data },
        1 => Junk,
        2 => Trimmed,
        3 => Lost,
        4 => Unwritten,
    }
    UnitAnswer<D> as "an answer of a log's unit" {
        0 => Ack { id, position, count },
        1 => Lost { id, position },
        2 => Elsewhere { id, position, unit },
        3 => Abandoned { id },
        4 => Expired { id },
        5 => Busy { id },
        6 => Superseded,
        7 => Stale { term },
        8 => NotSealed { term },
        9 => Slot { position, stale, slot },
        10 => Page { page, runs },
        11 => Punched { position },
        12 => Sealed { term, claimed, trim, pages, floor },
        13 => SealedItems { term, cursor, items, next },
        14 => Decided(decision),
        15 => Confirmed { term, nonce },
        16 => PageWritten { term, page },
        17 => Trimmed { position },
        18 => Done,
        19 => ConditionFailed { id, tail },
        20 => SessionOver { id },
    }
    SequencerOp as "a request to a log's sequencer" {
        0 => Seq { id, count, tags, unit, low, lost, condition },
        1 => Decided(decision),
        2 => Where { position },
        3 => Check { tag },
        4 => Trim { position },
        5 => Wait { position, tag, wait_ms },
        6 => ReadRecord,
        7 => OpenSession { nonce },
        8 => EndSession { session },
    }
    SequencerAnswer as "an answer of a log's sequencer" {
        0 => Token { term, binding },
        1 => Bound { id, position, unit },
        2 => Queued { id },
        3 => Done { id, position, count },
        4 => Busy { id },
        5 => Abandoned { id },
        6 => NotOfTerm { id, term },
        7 => NotSequencer { term },
        8 => Word { term, position, word },
        9 => Noted,
        10 => Tail { tail, stream, trim },
        11 => Trimmed { position, done },
        12 => ConditionFailed { id, tail },
        13 => Grown { end },
        14 => Full { id },
        15 => SessionOpened { nonce, session },
        16 => SessionOver { id },
        17 => TagsFull { id },
    }
    PositionWord as "a sequencer's word on a position" {
        0 => Tail,
        1 => Open { unit, binding },
        2 => At(unit),
        3 => Junk,
        4 => Trimmed,
        5 => Page,
    }
    RecordRequest as "a request for a log's record" {
        0 => Create { name, options },
        1 => View { name },
        2 => Lead { name, log, from_term, sequencer, added },
        3 => Open { name, log, term, start },
        4 => Trim { name, log, term, position },
        5 => Delete { name },
        6 => List { after, limit },
        7 => SetCursor { name, log, cursor, from, to },
        8 => SetRetention { name, log, retention },
        9 => Retain { name, log, term, position, retention },
    }
    RecordReply as "an answer about a log's record" {
        0 => Record(record),
        1 => Names(names),
        2 => Deleted(record),
        3 => Refused(refusal),
    }
    RecordRefusal as "the refusal of a log's home" {
        0 => NotFound,
        1 => Exists,
        2 => Moved(record),
        3 => Invalid,
        4 => Units,
        5 => Full,
        6 => CursorMoved(position),
        7 => Cursors,
    }
}
