//! Requests to the services on groups: operations on buckets, in batches, and their answers. All services
//! share these two messages; an operation's body is the service's own.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use staves_model::{
    ClientId, ClusterMap, Group, GroupId, HashSlot, MemberSlot, PoolId, Revision, ServiceId,
};

use crate::codec::{DecodeError, Reader, Wire, decode_whole, wire_enum, wire_struct};
use crate::error::ErrorCode;

/// Most operations of one batch.
pub const OPS_MAX: usize = 65_536;
/// Bytes of memory that an operation takes until it is answered, beside its own on the wire: its places in lists, its answer, and what
/// it becomes where it is passed on. (65,536 that name a key of another node take 26 MB.)
pub const OP_BYTES: usize = 384;

/// A pool by id or by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolRef {
    /// By id.
    Id(PoolId),
    /// By name.
    Name(String),
}

/// The data bucket that an operation is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Address {
    /// The bucket of a hash slot. Operations of one batch on one hash slot take effect in their order.
    Slot(HashSlot),
    /// A data bucket of a group. Operations of one batch take effect in any order.
    Bucket(GroupId, MemberSlot),
}

impl Address {
    /// The group's entry in the map, if there is one.
    pub fn group<'a>(&self, map: &'a ClusterMap, pool: PoolId) -> Option<&'a Group> {
        match self {
            Address::Slot(slot) => map.group_of(pool, *slot),
            Address::Bucket(group, _) => map.groups.get(group),
        }
    }

    /// The data bucket's place in its group.
    pub fn slot(&self) -> MemberSlot {
        match self {
            Address::Slot(_) => MemberSlot(0),
            Address::Bucket(_, slot) => *slot,
        }
    }

    /// Operations of one batch to one such address take effect in their order.
    pub fn keeps_order(&self) -> bool {
        matches!(self, Address::Slot(_))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Slot(slot) => write!(f, "hash slot {slot}"),
            Address::Bucket(group, slot) => write!(f, "data bucket {slot} of group {group}"),
        }
    }
}

/// An operation in the service's own encoding: a head, and bytes that it takes as they are. Both are slices
/// of the frame that they came in, or of what their user gave; they are passed on without a copy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Body {
    /// The operation and its small fields.
    pub head: Bytes,
    /// The value or data that the operation brings; often empty.
    pub payload: Bytes,
}

impl Body {
    /// Bytes that it carries.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.payload.len()
    }
}

/// One operation of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NumberedOp {
    /// The client's number for it, from 1, the same in each retry (`RequestId::number`); 0 for a read.
    pub number: u64,
    /// The data bucket.
    pub to: Address,
    /// The service's own part.
    pub body: Body,
}

/// A batch of operations for data buckets of one node. Each is atomic by itself; the batch is not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceRequest {
    /// The map revision that the sender routed by (in the frame header's `epoch`).
    pub revision: Revision,
    /// The service that the bodies are for.
    pub service: ServiceId,
    /// The pool.
    pub pool: PoolRef,
    /// The client that sent it first.
    pub client: ClientId,
    /// Every request of this client below this number has been answered to it.
    pub floor: u64,
    /// An earlier try may have taken effect.
    pub retry: bool,
    /// A node passed it on for a client: it is not passed on again.
    pub forwarded: bool,
    /// The operations.
    pub ops: Vec<NumberedOp>,
    /// Most bytes of the values in its answers, all together: the operations behind the one that reaches them are not
    /// begun, and have no answers. The first is answered, however large. 0, and from version 5: as many as the node likes.
    pub answer_bytes_max: u32,
    /// The values have no more bytes than that in any case: an operation whose value has more, the first too, is not begun and
    /// answered `busy`, and [`ServiceAnswers::needs_bytes`] says how many it has. False from versions 5 and 6.
    pub strict: bool,
}

impl ServiceRequest {
    /// Bytes of memory that an encoded request takes until it is answered, known before it is decoded.
    pub fn memory_bytes(body: &Bytes) -> usize {
        body.len() + Self::count_ops(body).unwrap_or(0) * OP_BYTES
    }

    fn count_ops(body: &Bytes) -> Result<usize, DecodeError> {
        let mut from = Reader::new(body.clone());
        let _service = ServiceId::take(&mut from)?;
        let _pool = PoolRef::take(&mut from)?;
        let _client = ClientId::take(&mut from)?;
        let _floor = u64::take(&mut from)?;
        let _retry = bool::take(&mut from)?;
        let _forwarded = bool::take(&mut from)?;
        let ops = u32::take(&mut from)? as usize;
        // Beyond, the request is refused.
        Ok(ops.min(OPS_MAX))
    }

    /// The same request with these operations instead.
    pub fn with_ops(&self, ops: Vec<NumberedOp>) -> ServiceRequest {
        let pool = self.pool.clone();
        ServiceRequest { pool, ops, ..*self }
    }
}

/// The answers to a [`ServiceRequest`], in the order of its operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceAnswers {
    /// The answering node's map revision (in the frame header's `epoch`): higher than the request's means
    /// that there is a newer map to fetch.
    pub revision: Revision,
    /// One for each operation that was begun: the first ones. All, unless the request has a bound.
    pub answers: Vec<Answer>,
    /// The newest entries of the groups for which the request came to the wrong node (row D1: the same
    /// mistake is not made twice).
    pub moved: Vec<Arc<Group>>,
    /// If an answer is `forgotten`: its bucket distinguishes new requests from forgotten ones only by
    /// numbers above this. 0 if none is.
    pub draw_above: u64,
    /// To a strict request: bytes of the largest value that was not answered for its size. 0 if there was none, and from
    /// version 6.
    pub needs_bytes: u32,
}

/// The result of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// No value.
    Nil,
    /// Done.
    Ok,
    /// A number.
    Int(i64),
    /// A value.
    Value(Bytes),
    /// It was not done (or, by the code, may have been).
    Error(ErrorCode, String),
}

impl Answer {
    /// An error answer.
    pub fn error(code: ErrorCode, text: impl Into<String>) -> Answer {
        Answer::Error(code, text.into())
    }

    /// Bytes of the value; 0 if it is none.
    pub fn value_bytes(&self) -> usize {
        match self {
            Answer::Value(value) => value.len(),
            _ => 0,
        }
    }

    /// Its bytes, as the request table keeps them.
    pub fn to_bytes(&self) -> Bytes {
        // Almost every write is answered by one of these.
        match self {
            Answer::Nil => return Bytes::from_static(&[0]),
            Answer::Ok => return Bytes::from_static(&[1]),
            _ => {}
        }
        let mut out = BytesMut::new();
        self.put(&mut out);
        out.freeze()
    }

    /// From the bytes that [`Answer::to_bytes`] made.
    pub fn from_bytes(bytes: Bytes) -> Result<Answer, DecodeError> {
        decode_whole(bytes)
    }
}

// On the wire.

wire_enum!(PoolRef { 0 => Id(id), 1 => Name(name) });

wire_enum!(Address { 0 => Slot(slot), 1 => Bucket(group, slot) });

/// The tag of [`Answer::Value`].
pub(crate) const VALUE_TAG: u8 = 3;
wire_enum!(Answer { 0 => Nil, 1 => Ok, 2 => Int(number), 3 => Value(value), 4 => Error(code, text) });

wire_struct!(Body { head, payload });
wire_struct!(NumberedOp { number, to, body });

/// A list of at most [`OPS_MAX`]: an item is far larger in memory than the least that it takes on
/// the wire, so a hostile batch is refused by its count.
fn take_list<T: Wire>(from: &mut Reader) -> Result<Vec<T>, DecodeError> {
    let mut count = [0; 4];
    from.peek(&mut count);
    let len = u32::from_le_bytes(count) as usize;
    if len > OPS_MAX {
        return Err(DecodeError::TooMany {
            what: "the operations of a batch",
            len,
            max: OPS_MAX,
        });
    }
    Wire::take(from)
}

/// A field that a later version has put behind the last one; its default where the bytes end before it.
fn take_added<T: Wire + Default>(from: &mut Reader) -> Result<T, DecodeError> {
    match from.left() {
        0 => Ok(T::default()),
        _ => Wire::take(from),
    }
}

wire_struct!(ServiceRequest [revision] {
    service,
    pool,
    client,
    floor,
    retry,
    forwarded,
    ops: take_list,
    answer_bytes_max: take_added,
    strict: take_added,
});
wire_struct!(ServiceAnswers [revision] {
    answers: take_list,
    moved: take_list,
    draw_above,
    needs_bytes: take_added,
});
