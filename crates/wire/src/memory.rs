//! The memory service's operations, each on the bytes of one data bucket, and their bodies on the wire.

use bytes::{BufMut, Bytes, BytesMut};
use staves_model::CHUNK_BYTES;

use crate::codec::DecodeError;
use crate::service::Body;

/// An operation on the bytes of one data bucket. Offsets count from the bucket's first byte
/// (`staves_model::Place`); what is touched lies within one chunk, but for `Allocated`.
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
    /// `Ok`: a write in a session of a volume. `Error` of `Fenced` where a later session was seen.
    Put {
        /// The session.
        session: u64,
        /// The first byte.
        offset: u64,
        /// The bytes; at least one.
        bytes: Bytes,
    },
    /// `Ok`: the bytes read as zeroes from now on. A whole chunk gives its memory back. `Error` as for `Put`.
    Zero {
        /// The session.
        session: u64,
        /// The first byte.
        offset: u64,
        /// The length; at least one.
        len: u32,
    },
    /// `Ok`: nothing of an earlier session takes effect from now on. `Error` as for `Put`.
    Fence {
        /// The session.
        session: u64,
    },
    /// `Value`: a bit for each chunk that the range touches, as [`ChunkBits`] has them: set if the chunk takes up memory. The others
    /// read as zeroes. The range may be all of the bucket.
    Allocated {
        /// The first byte.
        offset: u64,
        /// The length; at least one.
        len: u32,
    },
}

/// A bit for each of some chunks that follow each other; in a byte the lowest bit is the first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChunkBits(Vec<u8>);

impl ChunkBits {
    /// Bytes of so many bits.
    pub fn bytes_of(chunks: u64) -> usize {
        chunks.div_ceil(8) as usize
    }

    /// So many bits, none of them set.
    pub fn new(chunks: u64) -> ChunkBits {
        ChunkBits(vec![0; ChunkBits::bytes_of(chunks)])
    }

    /// Sets a bit of those that there are.
    pub fn set(&mut self, chunk: u64) {
        if let Some(byte) = self.0.get_mut((chunk / 8) as usize) {
            *byte |= 1 << (chunk % 8);
        }
    }

    /// Returns whether a bit is set in bytes of an answer; one that is not there is not.
    pub fn is_set(bytes: &[u8], chunk: u64) -> bool {
        let byte = bytes.get((chunk / 8) as usize);
        byte.is_some_and(|byte| byte & 1 << (chunk % 8) != 0)
    }

    /// The bytes.
    pub fn into_bytes(self) -> Bytes {
        self.0.into()
    }
}

impl Action {
    /// Returns true if it may change anything, and so needs a request number.
    pub fn is_write(&self) -> bool {
        !matches!(self, Action::Read { .. } | Action::Allocated { .. })
    }

    /// The session of a volume that it belongs to; 0 for an operation on a plain region.
    pub fn session(&self) -> u64 {
        match self {
            Action::Put { session, .. }
            | Action::Zero { session, .. }
            | Action::Fence { session } => *session,
            _ => 0,
        }
    }

    /// The number of chunks that its bytes lie in.
    pub fn chunks(&self) -> u64 {
        let (offset, len) = self.range();
        (offset % CHUNK_BYTES + len).div_ceil(CHUNK_BYTES)
    }

    /// The bytes that it touches: the first, and how many.
    pub fn range(&self) -> (u64, u64) {
        match self {
            Action::Read { offset, len }
            | Action::Zero { offset, len, .. }
            | Action::Allocated { offset, len } => (*offset, u64::from(*len)),
            Action::Write { offset, bytes }
            | Action::Load { offset, bytes }
            | Action::Put { offset, bytes, .. } => (*offset, bytes.len() as u64),
            Action::Fence { .. } => (0, 1),
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
const PUT: u8 = 5;
const ZERO: u8 = 6;
const FENCE: u8 = 7;
const ALLOCATED: u8 = 8;

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
            Action::Put { offset, .. } => (PUT, *offset),
            Action::Zero { offset, .. } => (ZERO, *offset),
            Action::Fence { session } => (FENCE, *session),
            Action::Allocated { offset, .. } => (ALLOCATED, *offset),
        };
        heads.put_u8(tag);
        heads.put_u64_le(offset);
        match self {
            Action::Read { len, .. } | Action::Allocated { len, .. } => heads.put_u32_le(len),
            Action::Fence { .. } => {}
            Action::Write { bytes, .. } | Action::Load { bytes, .. } => payload = bytes,
            Action::CompareSwap { expected, new, .. } => {
                heads.put_u64_le(expected);
                heads.put_u64_le(new);
            }
            Action::FetchAdd { by, .. } => heads.put_u64_le(by),
            Action::Put { session, bytes, .. } => {
                heads.put_u64_le(session);
                payload = bytes;
            }
            Action::Zero { session, len, .. } => {
                heads.put_u64_le(session);
                heads.put_u32_le(len);
            }
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
        let has_bytes = matches!(tag, WRITE | LOAD | PUT);
        if !has_bytes && !body.payload.is_empty() {
            let left = body.payload.len();
            return Err(DecodeError::Trailing { left });
        }
        Ok(match tag {
            READ => Action::Read {
                offset,
                len: u32::from_le_bytes(whole(fields)?),
            },
            ALLOCATED => Action::Allocated {
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
            PUT | ZERO | FENCE => Action::of_session(tag, offset, fields, body)?,
            tag => {
                return Err(DecodeError::Tag {
                    what: "a memory operation",
                    tag: u64::from(tag),
                });
            }
        })
    }
}

impl Action {
    /// An operation of a volume's session, by its tag.
    fn of_session(tag: u8, offset: u64, fields: &[u8], body: &Body) -> Result<Action, DecodeError> {
        Ok(match tag {
            PUT => Action::Put {
                session: u64::from_le_bytes(whole(fields)?),
                offset,
                bytes: body.payload.clone(),
            },
            ZERO => {
                let fields: [u8; 12] = whole(fields)?;
                let [session @ .., a, b, c, d] = fields;
                Action::Zero {
                    session: u64::from_le_bytes(session),
                    offset,
                    len: u32::from_le_bytes([a, b, c, d]),
                }
            }
            _ => {
                whole::<0>(fields)?;
                Action::Fence { session: offset }
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
