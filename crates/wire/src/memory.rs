//! The memory service's operations, each on the bytes of one data bucket, and their bodies on the wire.

use bytes::{BufMut, Bytes, BytesMut};

use crate::codec::DecodeError;
use crate::service::Body;

/// An operation on the bytes of one data bucket. Offsets count from the bucket's first byte
/// (`staves_model::Place`); what is touched lies within one chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// `Value`: the bytes. What was never written reads as zeroes.
    Read {
        /// The first byte.
        offset: u64,
        /// The length; at least one.
        len: u32,
    },
    /// `Ok`.
    Write {
        /// The first byte.
        offset: u64,
        /// The bytes; at least one.
        bytes: Bytes,
    },
    /// `Ok`: a write by whoever loads the stretch, where no other may write: what it writes has no parity until the load ends.
    Load {
        /// The first byte.
        offset: u64,
        /// The bytes; at least one.
        bytes: Bytes,
    },
    /// `Int`: the word that was there, which is `expected` if and only if it was replaced.
    CompareSwap {
        /// The word's first byte, a multiple of 8.
        offset: u64,
        /// The word that must be there.
        expected: u64,
        /// The word that replaces it.
        new: u64,
    },
    /// `Int`: the word that was there.
    FetchAdd {
        /// The word's first byte, a multiple of 8.
        offset: u64,
        /// The summand; past 64 bits the sum wraps around.
        by: u64,
    },
}

impl Action {
    /// Returns true if it may change anything, and so needs a request number.
    pub fn is_write(&self) -> bool {
        !matches!(self, Action::Read { .. })
    }

    /// The bytes that it touches: the first, and how many.
    pub fn range(&self) -> (u64, u64) {
        match self {
            Action::Read { offset, len } => (*offset, u64::from(*len)),
            Action::Write { offset, bytes } | Action::Load { offset, bytes } => {
                (*offset, bytes.len() as u64)
            }
            Action::CompareSwap { offset, .. } | Action::FetchAdd { offset, .. } => (*offset, 8),
        }
    }
}

/// Tags of bodies' heads.
const READ: u8 = 0;
const WRITE: u8 = 1;
const COMPARE_SWAP: u8 = 2;
const FETCH_ADD: u8 = 3;
const LOAD: u8 = 4;

impl Action {
    /// Its body. The head is written to `heads`; bytes to be written are not copied.
    pub fn into_body(self, heads: &mut BytesMut) -> Body {
        let mut payload = Bytes::new();
        let (tag, offset) = match &self {
            Action::Read { offset, .. } => (READ, *offset),
            Action::Write { offset, .. } => (WRITE, *offset),
            Action::CompareSwap { offset, .. } => (COMPARE_SWAP, *offset),
            Action::FetchAdd { offset, .. } => (FETCH_ADD, *offset),
            Action::Load { offset, .. } => (LOAD, *offset),
        };
        heads.put_u8(tag);
        heads.put_u64_le(offset);
        match self {
            Action::Read { len, .. } => heads.put_u32_le(len),
            Action::Write { bytes, .. } | Action::Load { bytes, .. } => payload = bytes,
            Action::CompareSwap { expected, new, .. } => {
                heads.put_u64_le(expected);
                heads.put_u64_le(new);
            }
            Action::FetchAdd { by, .. } => heads.put_u64_le(by),
        }
        let head = heads.split().freeze();
        Body { head, payload }
    }

    /// The operation of a body.
    pub fn from_body(body: &Body) -> Result<Action, DecodeError> {
        let head = &body.head[..];
        let Some((&[tag, ref offset @ ..], fields)) = head.split_first_chunk::<9>() else {
            return Err(wrong_length(9, head.len()));
        };
        let offset = u64::from_le_bytes(*offset);
        if tag != WRITE && tag != LOAD && !body.payload.is_empty() {
            let left = body.payload.len();
            return Err(DecodeError::Trailing { left });
        }
        Ok(match tag {
            READ => Action::Read {
                offset,
                len: u32::from_le_bytes(whole(fields)?),
            },
            WRITE => {
                whole::<0>(fields)?;
                let bytes = body.payload.clone();
                Action::Write { offset, bytes }
            }
            LOAD => {
                whole::<0>(fields)?;
                let bytes = body.payload.clone();
                Action::Load { offset, bytes }
            }
            COMPARE_SWAP => {
                let words: [u8; 16] = whole(fields)?;
                let both = u128::from_le_bytes(words);
                Action::CompareSwap {
                    offset,
                    expected: both as u64,
                    new: (both >> 64) as u64,
                }
            }
            FETCH_ADD => Action::FetchAdd {
                offset,
                by: u64::from_le_bytes(whole(fields)?),
            },
            tag => {
                return Err(DecodeError::Tag {
                    what: "a memory operation",
                    tag: u64::from(tag),
                });
            }
        })
    }
}

/// Fields of exactly this length.
fn whole<const N: usize>(fields: &[u8]) -> Result<[u8; N], DecodeError> {
    fields.try_into().map_err(|_| wrong_length(N, fields.len()))
}

fn wrong_length(needed: usize, left: usize) -> DecodeError {
    match left > needed {
        true => DecodeError::Trailing {
            left: left - needed,
        },
        false => DecodeError::Truncated {
            what: "a memory operation's head",
            needed,
            left,
        },
    }
}
