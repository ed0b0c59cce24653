//! The operations of a unit's bucket and their answers, as bytes.

use bytes::{BufMut, Bytes, BytesMut};
use staves_wire::DecodeError;
use staves_wire::service::{Answer, Body};

use crate::codec::BucketRequest;
use crate::message::{RecordReply, RecordRequest, Records, SequencerReply, UnitOp, UnitReply};

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
