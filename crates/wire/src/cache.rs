//! The cache service's messages: operations on one key each, in batches, and their answers.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use staves_model::{ClientId, Group, HashSlot, PoolId, Revision, hash_slot};

use crate::codec::{DecodeError, Reader, Wire, decode_whole, wire_enum, wire_struct};
use crate::error::ErrorCode;

/// Most bytes of a key.
pub const KEY_BYTES_MAX: usize = 64 << 10;
/// Most bytes of a value that any configuration may allow.
pub const VALUE_BYTES_MAX: usize = 512 << 20;
/// Most operations of one batch.
pub const OPS_MAX: usize = 65_536;

/// When a `Set` is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Condition {
    /// In any case.
    #[default]
    Always,
    /// Only if the key has no value (`NX`).
    IfAbsent,
    /// Only if the key has a value (`XX`).
    IfPresent,
}

/// One operation on one key, borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op<'a> {
    /// `Value` or `Nil`.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// `Ok`, or `Nil` if the condition did not hold. With `get_old`: the old value or `Nil`, whatever
    /// the condition said.
    Set {
        /// The key.
        key: &'a [u8],
        /// The new value.
        value: &'a [u8],
        /// When to do it.
        condition: Condition,
        /// Answer the old value.
        get_old: bool,
    },
    /// `Int(1)` if there was a value, else `Int(0)`.
    Del {
        /// The key.
        key: &'a [u8],
    },
    /// `Int(1)` if there is a value, else `Int(0)`.
    Exists {
        /// The key.
        key: &'a [u8],
    },
    /// The new value as `Int`; a key without a value counts as 0.
    IncrBy {
        /// The key.
        key: &'a [u8],
        /// What to add.
        by: i64,
    },
    /// The new length as `Int`.
    Append {
        /// The key.
        key: &'a [u8],
        /// What to put at the end.
        value: &'a [u8],
    },
    /// The value's length as `Int`; 0 without a value.
    StrLen {
        /// The key.
        key: &'a [u8],
    },
    /// The old value or `Nil`; afterwards there is none.
    GetDel {
        /// The key.
        key: &'a [u8],
    },
}

impl<'a> Op<'a> {
    /// Its key.
    pub fn key(&self) -> &'a [u8] {
        match *self {
            Op::Get { key }
            | Op::Set { key, .. }
            | Op::Del { key }
            | Op::Exists { key }
            | Op::IncrBy { key, .. }
            | Op::Append { key, .. }
            | Op::StrLen { key }
            | Op::GetDel { key } => key,
        }
    }

    /// The value that it brings, if any.
    pub fn value(&self) -> Option<&'a [u8]> {
        match *self {
            Op::Set { value, .. } | Op::Append { value, .. } => Some(value),
            _ => None,
        }
    }

    /// Whether it may change anything, and so needs a request number.
    pub fn is_write(&self) -> bool {
        !matches!(self, Op::Get { .. } | Op::Exists { .. } | Op::StrLen { .. })
    }

    /// The hash slot of its key.
    pub fn slot(&self) -> HashSlot {
        hash_slot(self.key())
    }

    /// The owned twin; copies key and value.
    pub fn to_owned(&self) -> OwnedOp {
        let copy = Bytes::copy_from_slice;
        match *self {
            Op::Get { key } => OwnedOp::Get { key: copy(key) },
            Op::Set {
                key,
                value,
                condition,
                get_old,
            } => OwnedOp::Set {
                key: copy(key),
                value: copy(value),
                condition,
                get_old,
            },
            Op::Del { key } => OwnedOp::Del { key: copy(key) },
            Op::Exists { key } => OwnedOp::Exists { key: copy(key) },
            Op::IncrBy { key, by } => OwnedOp::IncrBy { key: copy(key), by },
            Op::Append { key, value } => OwnedOp::Append {
                key: copy(key),
                value: copy(value),
            },
            Op::StrLen { key } => OwnedOp::StrLen { key: copy(key) },
            Op::GetDel { key } => OwnedOp::GetDel { key: copy(key) },
        }
    }
}

/// [`Op`] with its own key and value: slices of the frame that it came in.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the fields are those of `Op`
pub enum OwnedOp {
    /// See [`Op::Get`].
    Get { key: Bytes },
    /// See [`Op::Set`].
    Set {
        key: Bytes,
        value: Bytes,
        condition: Condition,
        get_old: bool,
    },
    /// See [`Op::Del`].
    Del { key: Bytes },
    /// See [`Op::Exists`].
    Exists { key: Bytes },
    /// See [`Op::IncrBy`].
    IncrBy { key: Bytes, by: i64 },
    /// See [`Op::Append`].
    Append { key: Bytes, value: Bytes },
    /// See [`Op::StrLen`].
    StrLen { key: Bytes },
    /// See [`Op::GetDel`].
    GetDel { key: Bytes },
}

impl OwnedOp {
    /// Borrowed.
    pub fn as_op(&self) -> Op<'_> {
        match self {
            OwnedOp::Get { key } => Op::Get { key },
            OwnedOp::Set {
                key,
                value,
                condition,
                get_old,
            } => Op::Set {
                key,
                value,
                condition: *condition,
                get_old: *get_old,
            },
            OwnedOp::Del { key } => Op::Del { key },
            OwnedOp::Exists { key } => Op::Exists { key },
            OwnedOp::IncrBy { key, by } => Op::IncrBy { key, by: *by },
            OwnedOp::Append { key, value } => Op::Append { key, value },
            OwnedOp::StrLen { key } => Op::StrLen { key },
            OwnedOp::GetDel { key } => Op::GetDel { key },
        }
    }
}

/// What an operation is answered.
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

/// A pool by id or by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolRef {
    /// By id.
    Id(PoolId),
    /// By name.
    Name(String),
}

/// One operation of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheOp {
    /// The client's number for it, from 1, the same in each retry (`RequestId::number`); 0 for a read.
    pub number: u64,
    /// The hash slot of its key, so that a node routes without hashing again. Checked by the bucket.
    pub slot: HashSlot,
    /// What to do.
    pub op: OwnedOp,
}

/// A batch of operations for buckets of one node. Each is atomic by itself; the batch is not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheRequest {
    /// The map revision that the sender routed by (in the frame header's `epoch`).
    pub revision: Revision,
    /// The pool.
    pub pool: PoolRef,
    /// Who asks.
    pub client: ClientId,
    /// Every request of this client below this number has been answered to it.
    pub floor: u64,
    /// An earlier try may have taken effect.
    pub retry: bool,
    /// A node passed it on for a client: it is not passed on again, but past a split.
    pub forwarded: bool,
    /// The operations.
    pub ops: Vec<CacheOp>,
}

/// The answers to a [`CacheRequest`], in the order of its operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheAnswers {
    /// The answering node's map revision (in the frame header's `epoch`): higher than the asker's means
    /// that there is a newer map to fetch.
    pub revision: Revision,
    /// One for each operation.
    pub answers: Vec<Answer>,
    /// The newest entries of the groups for which the request came to the wrong node (row D1: the same
    /// mistake is not made twice).
    pub moved: Vec<Arc<Group>>,
    /// Where an answer is `forgotten`: its bucket tells new requests from forgotten ones only by numbers
    /// above this. 0 if none is. Since version 2; version 1 does not say.
    pub draw_above: u64,
}

/// Asks a node for the figures of its part of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheStats {
    /// The pool.
    pub pool: PoolRef,
}

/// One node's part of a pool, counted over the data buckets that it serves now.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CacheStatsAnswer {
    /// Data buckets that it serves.
    pub buckets: u32,
    /// Keys in them.
    pub keys: u64,
    /// Bytes of keys and values in them.
    pub live_bytes: u64,
    /// Bytes of pages of this pool on this node, copies included.
    pub used_bytes: u64,
    /// What the pool may use of this node.
    pub budget_bytes: u64,
    /// Reads since the process started.
    pub reads: u64,
    /// Reads that found a value.
    pub hits: u64,
    /// Writes since the process started.
    pub writes: u64,
}

// On the wire.

wire_enum!(Condition { 0 => Always, 1 => IfAbsent, 2 => IfPresent });

wire_enum!(OwnedOp {
    0 => Get { key },
    1 => Set { key, value, condition, get_old },
    2 => Del { key },
    3 => Exists { key },
    4 => IncrBy { key, by },
    5 => Append { key, value },
    6 => StrLen { key },
    7 => GetDel { key },
});

wire_enum!(Answer { 0 => Nil, 1 => Ok, 2 => Int(number), 3 => Value(value), 4 => Error(code, text) });

wire_enum!(PoolRef { 0 => Id(id), 1 => Name(name) });

wire_struct!(CacheOp { number, slot, op });

/// A list of at most [`OPS_MAX`]: an item is far larger in memory than the least that it takes on
/// the wire, so a hostile batch is refused by its count.
pub(crate) fn take_ops<T: Wire>(from: &mut Reader) -> Result<Vec<T>, DecodeError> {
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

impl Wire for CacheRequest {
    fn put(&self, out: &mut BytesMut) {
        self.pool.put(out);
        self.client.put(out);
        self.floor.put(out);
        self.retry.put(out);
        self.forwarded.put(out);
        self.ops.put(out);
    }

    fn take(from: &mut Reader) -> Result<CacheRequest, DecodeError> {
        Ok(CacheRequest {
            revision: Revision(0), // in the header
            pool: Wire::take(from)?,
            client: Wire::take(from)?,
            floor: Wire::take(from)?,
            retry: Wire::take(from)?,
            forwarded: Wire::take(from)?,
            ops: take_ops(from)?,
        })
    }
}

impl Wire for CacheAnswers {
    fn put(&self, out: &mut BytesMut) {
        self.answers.put(out);
        self.moved.put(out);
        self.draw_above.put(out);
    }

    fn take(from: &mut Reader) -> Result<CacheAnswers, DecodeError> {
        Ok(CacheAnswers {
            revision: Revision(0), // in the header
            answers: take_ops(from)?,
            moved: take_ops(from)?,
            draw_above: if from.left() == 0 {
                0
            } else {
                Wire::take(from)?
            },
        })
    }
}

wire_struct!(CacheStats { pool });
wire_struct!(CacheStatsAnswer {
    buckets,
    keys,
    live_bytes,
    used_bytes,
    budget_bytes,
    reads,
    hits,
    writes,
});
