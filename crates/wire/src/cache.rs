//! The cache service's operations, each on one key, and their bodies on the wire; and its figures.

use bytes::{BufMut, Bytes, BytesMut};
use staves_model::{HashSlot, hash_slot};

use crate::codec::{DecodeError, wire_struct};
use crate::service::{Address, Body, NumberedOp, PoolRef};

/// Most bytes of a key.
pub const KEY_BYTES_MAX: usize = 64 << 10;
/// Most bytes of a value that any configuration may allow.
pub const VALUE_BYTES_MAX: usize = 512 << 20;

/// The condition of a `Set`.
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

/// One operation on one key: [`Op`] borrows key and value, [`OwnedOp`] has its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation<B> {
    /// `Value` or `Nil`.
    Get {
        /// The key.
        key: B,
    },
    /// `Ok`, or `Nil` if the condition did not hold. With `get_old`: the old value or `Nil`, whatever
    /// the condition said.
    Set {
        /// The key.
        key: B,
        /// The new value.
        value: B,
        /// The condition.
        condition: Condition,
        /// Answer the old value.
        get_old: bool,
    },
    /// `Int(1)` if there was a value, else `Int(0)`.
    Del {
        /// The key.
        key: B,
    },
    /// `Int(1)` if there is a value, else `Int(0)`.
    Exists {
        /// The key.
        key: B,
    },
    /// The new value as `Int`; a key without a value counts as 0.
    IncrBy {
        /// The key.
        key: B,
        /// The summand.
        by: i64,
    },
    /// The new length as `Int`.
    Append {
        /// The key.
        key: B,
        /// The bytes to append.
        value: B,
    },
    /// The value's length as `Int`; 0 without a value.
    StrLen {
        /// The key.
        key: B,
    },
    /// The old value or `Nil`; afterwards there is none.
    GetDel {
        /// The key.
        key: B,
    },
}

/// An operation that borrows its key and value.
pub type Op<'a> = Operation<&'a [u8]>;
/// An operation with its own key and value: slices of the frame that it came in.
pub type OwnedOp = Operation<Bytes>;

impl<B> Operation<B> {
    /// Returns true if it may change anything, and so needs a request number.
    pub fn is_write(&self) -> bool {
        !matches!(
            self,
            Operation::Get { .. } | Operation::Exists { .. } | Operation::StrLen { .. }
        )
    }

    /// The same operation with key and value in another form.
    fn map<'a, C>(&'a self, form: impl Fn(&'a B) -> C) -> Operation<C> {
        match self {
            Operation::Get { key } => Operation::Get { key: form(key) },
            Operation::Set {
                key,
                value,
                condition,
                get_old,
            } => Operation::Set {
                key: form(key),
                value: form(value),
                condition: *condition,
                get_old: *get_old,
            },
            Operation::Del { key } => Operation::Del { key: form(key) },
            Operation::Exists { key } => Operation::Exists { key: form(key) },
            Operation::IncrBy { key, by } => Operation::IncrBy {
                key: form(key),
                by: *by,
            },
            Operation::Append { key, value } => Operation::Append {
                key: form(key),
                value: form(value),
            },
            Operation::StrLen { key } => Operation::StrLen { key: form(key) },
            Operation::GetDel { key } => Operation::GetDel { key: form(key) },
        }
    }
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

    /// The hash slot of its key.
    pub fn slot(&self) -> HashSlot {
        hash_slot(self.key())
    }

    /// The owned form; copies key and value.
    pub fn to_owned(&self) -> OwnedOp {
        self.map(|bytes| Bytes::copy_from_slice(bytes))
    }
}

impl OwnedOp {
    /// The borrowed form.
    pub fn as_op(&self) -> Op<'_> {
        self.map(|bytes| &bytes[..])
    }
}

/// No head has more beside its key.
const HEAD_BYTES: usize = 16;

/// Tags of bodies' heads.
const GET: u8 = 0;
const SET: u8 = 1;
const DEL: u8 = 2;
const EXISTS: u8 = 3;
const INCR_BY: u8 = 4;
const APPEND: u8 = 5;
const STR_LEN: u8 = 6;
const GET_DEL: u8 = 7;

impl<'a> Op<'a> {
    /// Appends the head of its body: the tag, the small fields, the key. The value is the payload.
    fn put_head(&self, out: &mut BytesMut) {
        match *self {
            Op::Get { .. } => out.put_u8(GET),
            Op::Set {
                condition, get_old, ..
            } => out.put_slice(&[SET, condition as u8, u8::from(get_old)]),
            Op::Del { .. } => out.put_u8(DEL),
            Op::Exists { .. } => out.put_u8(EXISTS),
            Op::IncrBy { by, .. } => {
                out.put_u8(INCR_BY);
                out.put_i64_le(by);
            }
            Op::Append { .. } => out.put_u8(APPEND),
            Op::StrLen { .. } => out.put_u8(STR_LEN),
            Op::GetDel { .. } => out.put_u8(GET_DEL),
        }
        out.put_slice(self.key());
    }

    /// Its body; copies key and value.
    pub fn to_body(&self) -> Body {
        let mut head = BytesMut::with_capacity(HEAD_BYTES + self.key().len());
        self.put_head(&mut head);
        let payload = Bytes::copy_from_slice(self.value().unwrap_or_default());
        Body {
            head: head.freeze(),
            payload,
        }
    }

    /// The same in memory that the bodies of several small operations share, a piece of at least `room_bytes`.
    pub fn to_body_in(&self, room: &mut BytesMut, room_bytes: usize) -> Body {
        let value = self.value().unwrap_or_default();
        let needed = HEAD_BYTES + self.key().len() + value.len();
        if needed > room_bytes {
            return self.to_body();
        }
        if room.capacity() - room.len() < needed {
            *room = BytesMut::with_capacity(room_bytes);
        }
        self.put_head(room);
        let head = room.split().freeze();
        let mut payload = Bytes::new();
        if !value.is_empty() {
            room.put_slice(value);
            payload = room.split().freeze();
        }
        Body { head, payload }
    }

    /// The operation of a body.
    pub fn from_body(body: &'a Body) -> Result<Op<'a>, DecodeError> {
        let (head, value) = (&body.head[..], &body.payload[..]);
        let op = match head {
            [GET, key @ ..] => Op::Get { key },
            [SET, condition, get_old @ (0 | 1), key @ ..] => Op::Set {
                key,
                value,
                condition: match condition {
                    0 => Condition::Always,
                    1 => Condition::IfAbsent,
                    2 => Condition::IfPresent,
                    tag => return Err(unknown("a condition", *tag)),
                },
                get_old: *get_old == 1,
            },
            [SET, _, get_old, ..] => return Err(unknown("a yes or no", *get_old)),
            [DEL, key @ ..] => Op::Del { key },
            [EXISTS, key @ ..] => Op::Exists { key },
            [INCR_BY, fields @ ..] => {
                let Some((by, key)) = fields.split_first_chunk() else {
                    return Err(too_short(fields.len()));
                };
                let by = i64::from_le_bytes(*by);
                Op::IncrBy { key, by }
            }
            [APPEND, key @ ..] => Op::Append { key, value },
            [STR_LEN, key @ ..] => Op::StrLen { key },
            [GET_DEL, key @ ..] => Op::GetDel { key },
            [] | [SET, ..] => return Err(too_short(head.len())),
            [tag, ..] => return Err(unknown("a cache operation", *tag)),
        };
        match op.value() {
            None if !value.is_empty() => Err(DecodeError::Trailing { left: value.len() }),
            _ => Ok(op),
        }
    }
}

fn unknown(what: &'static str, tag: u8) -> DecodeError {
    let tag = u64::from(tag);
    DecodeError::Tag { what, tag }
}

fn too_short(left: usize) -> DecodeError {
    DecodeError::Truncated {
        what: "a cache operation's head",
        needed: left + 1,
        left,
    }
}

impl OwnedOp {
    /// Its address and body. The head is written to `heads`; the value is not copied.
    pub fn into_body(self, heads: &mut BytesMut) -> (Address, Body) {
        let op = self.as_op();
        op.put_head(heads);
        let to = Address::Slot(op.slot());
        let payload = match self {
            OwnedOp::Set { value, .. } | OwnedOp::Append { value, .. } => value,
            _ => Bytes::new(),
        };
        let head = heads.split().freeze();
        (to, Body { head, payload })
    }

    /// As one operation of a batch, under this number.
    pub fn numbered(self, number: u64) -> NumberedOp {
        let (to, body) = self.into_body(&mut BytesMut::new());
        NumberedOp { number, to, body }
    }
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
    /// The pool's budget on this node.
    pub budget_bytes: u64,
    /// Reads since the process started.
    pub reads: u64,
    /// Reads that found a value.
    pub hits: u64,
    /// Writes since the process started.
    pub writes: u64,
}

// On the wire.

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Small bodies lie one behind the other in one piece of memory; a large one has its own, and all say the same as by themselves.
    #[test]
    fn small_bodies_share_memory() {
        let large = [7; 5000];
        let set = |value| Op::Set {
            key: b"key",
            value,
            condition: Condition::IfAbsent,
            get_old: true,
        };
        let incr = Op::IncrBy { key: b"n", by: -3 };
        let ops = [
            Op::Get { key: b"k" },
            set(b"v"),
            set(&large),
            incr,
            set(b""),
            Op::Append {
                key: b"k",
                value: b"more",
            },
        ];
        let mut room = BytesMut::new();
        let mut ends = None;
        for op in ops {
            let body = op.to_body_in(&mut room, 4096);
            assert_eq!(body, op.to_body());
            assert_eq!(Op::from_body(&body), Ok(op));
            if body.bytes() > 4096 {
                continue;
            }
            let begins = body.head.as_ptr();
            assert!(ends.is_none_or(|end| end == begins), "{op:?}");
            ends = Some(
                body.head
                    .as_ptr_range()
                    .end
                    .wrapping_add(body.payload.len()),
            );
        }
    }
}
