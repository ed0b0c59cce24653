//! The operations of a unit's bucket and their answers, as bytes.

use bytes::{BufMut, Bytes, BytesMut};
use staves_wire::service::{Answer, Body};
use staves_wire::{DecodeError, ErrorCode};

use crate::codec::BucketRequest;
use crate::message::{
    NAMES_MAX, RecordReply, RecordRequest, Records, SEALED_ITEMS_MAX, SequencerReply, UnitOp,
    UnitReply,
};
use crate::share::LogShare;
use crate::slots::Slot;
use crate::state::UnitState;
use crate::types::{BACK_POINTERS, NAME_BYTES_MAX};

/// The tag of [`UnitCall::Asked`]; [`BucketRequest`] has those below.
const ASKED: u8 = 255;

/// An operation on a unit's bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UnitCall {
    /// A request. Answered with the value of a [`UnitReply`], or of a [`RecordReply`].
    Request(BucketRequest),
    /// A sequencer's answer to a request that the unit itself has made, brought by the unit's node. Answered with nothing.
    Asked(SequencerReply),
}

impl UnitCall {
    /// True if it may change anything, and so is sent under a number.
    pub fn is_write(&self) -> bool {
        match self {
            UnitCall::Request(BucketRequest::Unit(request)) => !matches!(
                request.op,
                UnitOp::Read { .. }
                    | UnitOp::ReadPage { .. }
                    | UnitOp::Confirm { .. }
                    | UnitOp::Sealed { .. }
            ),
            UnitCall::Request(BucketRequest::Record(request)) => !matches!(
                request,
                RecordRequest::View { .. } | RecordRequest::List { .. }
            ),
            UnitCall::Asked(_) => true,
        }
    }

    /// True if a body is that of an operation that changes nothing.
    pub fn is_read(body: &Body) -> bool {
        // Only writes bring records: theirs are not decoded for this.
        body.payload.is_empty() && UnitCall::from_body(body).is_ok_and(|call| !call.is_write())
    }

    /// True if it is a read that brings a sequencer's word, by which the unit may decide a position.
    pub(super) fn has_word(&self) -> bool {
        let UnitCall::Request(BucketRequest::Unit(request)) = self else {
            return false;
        };
        matches!(request.op, UnitOp::Read { word: Some(_), .. })
    }

    /// Its body. The records' bytes are not copied.
    pub fn into_body(self) -> Body {
        let mut heads = BytesMut::new();
        match self {
            UnitCall::Request(request) => request.into_body(&mut heads),
            UnitCall::Asked(reply) => {
                heads.put_u8(ASKED);
                reply.encode(&mut heads);
                let (head, payload) = (heads.freeze(), Bytes::new());
                Body { head, payload }
            }
        }
    }

    /// The operation of a body.
    ///
    /// # Errors
    /// The body is none.
    pub fn from_body(body: &Body) -> Result<UnitCall, DecodeError> {
        match body.head.first() {
            Some(&ASKED) if body.payload.is_empty() => {
                SequencerReply::decode(body.head.slice(1..)).map(UnitCall::Asked)
            }
            _ => BucketRequest::from_body(body).map(UnitCall::Request),
        }
    }

    /// The records that it brings.
    pub(super) fn records(&self) -> Option<&Records> {
        let UnitCall::Request(BucketRequest::Unit(request)) = self else {
            return None;
        };
        match &request.op {
            UnitOp::Park(park) => Some(&park.data),
            UnitOp::Write { data, .. } => Some(data),
            _ => None,
        }
    }
}

/// Bytes of an answer's value beside the record, the page or the names in it.
const HEAD_BYTES: usize = 64;
/// Bytes of a run of a map page, of a unit in a record and of an item of a sealed unit, about.
const PART_BYTES: usize = 16;

/// Bytes of the value that a read would be answered by a unit in this state, as far as they are known and not few.
pub(super) fn value_bytes(state: &UnitState, call: &UnitCall) -> usize {
    let parts = match call {
        UnitCall::Request(BucketRequest::Unit(request)) => {
            let share = state.share(request.log);
            share.map_or(0, |share| share_bytes(share, &request.op))
        }
        UnitCall::Request(BucketRequest::Record(RecordRequest::View { name })) => {
            let record = state.records().get(name);
            record.map_or(0, |record| {
                let segments = &record.view.projection.segments;
                let parts = segments.iter().map(|segment| 1 + segment.units.len());
                name.len() + PART_BYTES * parts.sum::<usize>()
            })
        }
        UnitCall::Request(BucketRequest::Record(RecordRequest::List { limit, .. })) => {
            (*limit).min(NAMES_MAX) as usize * (NAME_BYTES_MAX / 4)
        }
        _ => 0,
    };
    if parts > 0 { HEAD_BYTES + parts } else { 0 }
}

fn share_bytes(share: &LogShare, op: &UnitOp) -> usize {
    match op {
        UnitOp::Read { position, .. } => match share.slots.get(*position) {
            Some(Slot::Data(data)) => {
                let links = data.links.as_ref().map_or(0, |links| links.len());
                data.place.bytes as usize + links * PART_BYTES * BACK_POINTERS
            }
            _ => 0,
        },
        UnitOp::ReadPage { page } => {
            let runs = share.pages.get(page);
            runs.map_or(0, |runs| runs.len() * PART_BYTES)
        }
        UnitOp::Sealed { .. } => SEALED_ITEMS_MAX * 2 * PART_BYTES,
        _ => 0,
    }
}

/// The answer of a unit, with the bytes of the record that it shows.
pub(super) fn unit_answer(reply: &UnitReply) -> Answer {
    let mut value = BytesMut::new();
    reply.head(&mut value);
    if let Some(bytes) = shown(reply) {
        value.extend_from_slice(bytes);
    }
    Answer::Value(value.freeze())
}

fn shown(reply: &UnitReply) -> Option<&Bytes> {
    use crate::message::{SlotAnswer, UnitAnswer};
    match &reply.answer {
        UnitAnswer::Slot {
            slot: SlotAnswer::Data { data, .. },
            ..
        } => Some(data),
        _ => None,
    }
}

/// The answer of a home.
pub(super) fn record_answer(reply: &RecordReply) -> Answer {
    let mut value = BytesMut::new();
    reply.encode(&mut value);
    Answer::Value(value.freeze())
}

/// The answer where the unit's group has lost its pages.
pub(super) fn lost() -> Answer {
    Answer::error(ErrorCode::Lost, "the unit's group has lost its records")
}
