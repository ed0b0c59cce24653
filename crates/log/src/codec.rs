//! The encoding of the log's messages: little-endian fields of fixed width in order, an enum as one tag byte and its fields, a list as a 32-bit
//! count and its items.
//!
//! Decoding trusts nothing. A count is compared with its list's bound and with the bytes that are left before anything is allocated. Data of
//! records is not copied: it is the payload of a request's body, and the end of a reply's value.

mod messages;
mod values;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use staves_wire::DecodeError;
use staves_wire::service::Body;

use crate::message::{
    RecordReply, RecordRequest, Records, SequencerReply, SequencerRequest, SlotAnswer, UnitAnswer,
    UnitOp, UnitReply, UnitRequest,
};

/// A value with one encoding.
pub(crate) trait Field: Sized {
    /// Appends it.
    fn put(&self, out: &mut BytesMut);
    /// Takes it off the front.
    fn take(from: &mut Bytes) -> Result<Self, DecodeError>;
}

/// A value that comes in lists.
pub(crate) trait Item: Field {
    /// The list, for errors.
    const LIST: &'static str;
    /// Most items of a list.
    const MAX: usize;
}

fn need(from: &Bytes, what: &'static str, needed: usize) -> Result<(), DecodeError> {
    let left = from.len();
    match left < needed {
        true => Err(DecodeError::Truncated { what, needed, left }),
        false => Ok(()),
    }
}

/// A tag that names nothing.
pub(crate) fn unknown(what: &'static str, tag: u8) -> DecodeError {
    let tag = u64::from(tag);
    DecodeError::Tag { what, tag }
}

macro_rules! integers {
    ($($type:ty, $put:ident, $get:ident;)*) => {$(
        impl Field for $type {
            fn put(&self, out: &mut BytesMut) {
                out.$put(*self);
            }
            fn take(from: &mut Bytes) -> Result<$type, DecodeError> {
                need(from, stringify!($type), size_of::<$type>())?;
                Ok(from.$get())
            }
        }
    )*};
}

integers! {
    u8, put_u8, get_u8;
    u32, put_u32_le, get_u32_le;
    u64, put_u64_le, get_u64_le;
}

impl Field for bool {
    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(*self));
    }

    fn take(from: &mut Bytes) -> Result<bool, DecodeError> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            tag => Err(unknown("a yes or no", tag)),
        }
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut BytesMut) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut Bytes) -> Result<Option<T>, DecodeError> {
        match bool::take(from)? {
            true => T::take(from).map(Some),
            false => Ok(None),
        }
    }
}

impl<T: Field> Field for Box<T> {
    fn put(&self, out: &mut BytesMut) {
        (**self).put(out);
    }

    fn take(from: &mut Bytes) -> Result<Box<T>, DecodeError> {
        T::take(from).map(Box::new)
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn put(&self, out: &mut BytesMut) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut Bytes) -> Result<(A, B), DecodeError> {
        Ok((A::take(from)?, B::take(from)?))
    }
}

impl<T: Item> Field for Vec<T> {
    fn put(&self, out: &mut BytesMut) {
        out.put_u32_le(self.len() as u32);
        for item in self {
            item.put(out);
        }
    }

    fn take(from: &mut Bytes) -> Result<Vec<T>, DecodeError> {
        let len = u32::take(from)? as usize;
        if len > T::MAX {
            let (what, max) = (T::LIST, T::MAX);
            return Err(DecodeError::TooMany { what, len, max });
        }
        // Every item takes a byte at the least.
        need(from, T::LIST, len)?;
        (0..len).map(|_| T::take(from)).collect()
    }
}

/// The head of records: their lengths. The bytes travel beside it.
impl Field for Records {
    fn put(&self, out: &mut BytesMut) {
        self.lens.put(out);
    }

    fn take(from: &mut Bytes) -> Result<Records, DecodeError> {
        let lens = Vec::take(from)?;
        let bytes = Bytes::new();
        Ok(Records { lens, bytes })
    }
}

/// Bytes of a record that travel beside the head.
impl Field for Bytes {
    fn put(&self, _out: &mut BytesMut) {}

    fn take(_from: &mut Bytes) -> Result<Bytes, DecodeError> {
        Ok(Bytes::new())
    }
}

fn end(from: &Bytes) -> Result<(), DecodeError> {
    match from.len() {
        0 => Ok(()),
        left => Err(DecodeError::Trailing { left }),
    }
}

fn whole<T: Field>(mut from: Bytes) -> Result<T, DecodeError> {
    let value = T::take(&mut from)?;
    end(&from)?;
    Ok(value)
}

/// A request to a unit's bucket: to the unit, or to the home of logs that it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BucketRequest {
    /// To the unit.
    Unit(UnitRequest),
    /// To the home.
    Record(RecordRequest),
}

impl BucketRequest {
    /// Its body. The head is written to `heads`; records are not copied.
    pub fn into_body(self, heads: &mut BytesMut) -> Body {
        let mut payload = Bytes::new();
        match self {
            BucketRequest::Unit(mut request) => {
                if let Some(records) = records_of(&mut request.op) {
                    payload = std::mem::take(&mut records.bytes);
                }
                heads.put_u8(0);
                request.put(heads);
            }
            BucketRequest::Record(request) => {
                heads.put_u8(1);
                request.put(heads);
            }
        }
        let head = heads.split().freeze();
        Body { head, payload }
    }

    /// The request of a body.
    ///
    /// # Errors
    /// The body is none.
    pub fn from_body(body: &Body) -> Result<BucketRequest, DecodeError> {
        let mut head = body.head.clone();
        match u8::take(&mut head)? {
            0 => {
                let mut request: UnitRequest = whole(head)?;
                match records_of(&mut request.op) {
                    Some(records) => fill(records, &body.payload)?,
                    None => end(&body.payload)?,
                }
                Ok(BucketRequest::Unit(request))
            }
            1 => {
                end(&body.payload)?;
                Ok(BucketRequest::Record(whole(head)?))
            }
            tag => Err(unknown("a request to a log's unit", tag)),
        }
    }
}

fn records_of(op: &mut UnitOp) -> Option<&mut Records> {
    match op {
        UnitOp::Park(park) => Some(&mut park.data),
        UnitOp::Write { data, .. } => Some(data),
        _ => None,
    }
}

fn fill(records: &mut Records, payload: &Bytes) -> Result<(), DecodeError> {
    let sum: u64 = records.lens.iter().map(|len| u64::from(*len)).sum();
    if sum != payload.len() as u64 {
        return Err(DecodeError::Invalid {
            what: "the records of an append",
            reason: "their lengths add up to the payload's",
        });
    }
    // None at all hold on to no memory.
    if sum > 0 {
        records.bytes = payload.clone();
    }
    Ok(())
}

impl UnitReply {
    /// Its encoding, up to the bytes of a record, which follow at once.
    pub fn head(&self, out: &mut BytesMut) {
        self.put(out);
    }

    /// The reply of a value: a head, and perhaps the bytes of a record.
    ///
    /// # Errors
    /// The value is none.
    pub fn decode(mut value: Bytes) -> Result<UnitReply, DecodeError> {
        let mut reply = UnitReply::take(&mut value)?;
        if let UnitAnswer::Slot {
            slot: SlotAnswer::Data { data, .. },
            ..
        } = &mut reply.answer
        {
            *data = std::mem::take(&mut value);
        }
        end(&value)?;
        Ok(reply)
    }
}

macro_rules! plain {
    ($($type:ident, $what:literal;)*) => {$(
        impl $type {
            #[doc = concat!("The encoding of ", $what, ".")]
            pub fn encode(&self, out: &mut BytesMut) {
                self.put(out);
            }

            #[doc = concat!("Decodes ", $what, ".")]
            ///
            /// # Errors
            /// The bytes are none.
            pub fn decode(bytes: Bytes) -> Result<$type, DecodeError> {
                whole(bytes)
            }
        }
    )*};
}

plain! {
    SequencerRequest, "a request to a sequencer";
    SequencerReply, "a reply of a sequencer";
    RecordReply, "a reply of a home";
}

/// Most requests of one message to a sequencer.
pub const ASK_REQUESTS_MAX: usize = 256;

fn several<T: Field>(mut from: Bytes, what: &'static str) -> Result<Vec<T>, DecodeError> {
    let max = ASK_REQUESTS_MAX;
    let mut all = vec![T::take(&mut from)?];
    while !from.is_empty() {
        let len = all.len() + 1;
        if len > max {
            return Err(DecodeError::TooMany { what, len, max });
        }
        all.push(T::take(&mut from)?);
    }
    Ok(all)
}

impl SequencerRequest {
    /// Decodes the requests of one message, which follow each other.
    ///
    /// # Errors
    /// The bytes are none, or more than [`ASK_REQUESTS_MAX`].
    pub fn decode_several(bytes: Bytes) -> Result<Vec<SequencerRequest>, DecodeError> {
        several(bytes, "requests to a sequencer")
    }
}

impl SequencerReply {
    /// Decodes the replies to the requests of one message, in their order.
    ///
    /// # Errors
    /// The bytes are none, or more than [`ASK_REQUESTS_MAX`].
    pub fn decode_several(bytes: Bytes) -> Result<Vec<SequencerReply>, DecodeError> {
        several(bytes, "replies of a sequencer")
    }
}

#[cfg(test)]
mod tests;
