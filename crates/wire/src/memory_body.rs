//! The bodies of the memory service's operations on the wire.

use bytes::{BufMut, Bytes, BytesMut};

use crate::codec::DecodeError;
use crate::memory::Action;
use crate::service::Body;

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
const COPY: u8 = 9;
const DROP: u8 = 10;
const CHANGED: u8 = 11;
const SYNC: u8 = 12;

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
            Action::Fence { session, .. } => (FENCE, *session),
            Action::Allocated { offset, .. } => (ALLOCATED, *offset),
            Action::Copy { session, .. } => (COPY, *session),
            Action::Drop { image } => (DROP, u64::from(*image)),
            Action::Changed { offset, .. } => (CHANGED, *offset),
            Action::Sync { session, .. } => (SYNC, *session),
        };
        heads.put_u8(tag);
        heads.put_u64_le(offset);
        self.put_fields(heads, &mut payload);
        let head = heads.split().freeze();
        Body { head, payload }
    }

    /// The fields behind the first, and the bytes to be written.
    fn put_fields(self, heads: &mut BytesMut, payload: &mut Bytes) {
        match self {
            Action::Read { len, image, .. } | Action::Allocated { len, image, .. } => {
                heads.put_u32_le(len);
                heads.put_u32_le(image);
            }
            Action::Fence { image, .. } | Action::Sync { image, .. } => heads.put_u32_le(image),
            Action::Drop { .. } => {}
            Action::Write { bytes, .. } | Action::Load { bytes, .. } => *payload = bytes,
            Action::CompareSwap { expected, new, .. } => {
                heads.put_u64_le(expected);
                heads.put_u64_le(new);
            }
            Action::FetchAdd { by, .. } => heads.put_u64_le(by),
            Action::Put {
                session,
                bytes,
                image,
                ..
            } => {
                heads.put_u64_le(session);
                heads.put_u32_le(image);
                *payload = bytes;
            }
            Action::Zero {
                session,
                len,
                image,
                ..
            } => {
                heads.put_u64_le(session);
                heads.put_u32_le(len);
                heads.put_u32_le(image);
            }
            Action::Copy { of, image, .. } => {
                heads.put_u32_le(of);
                heads.put_u32_le(image);
            }
            Action::Changed {
                len, image, since, ..
            } => {
                heads.put_u32_le(len);
                heads.put_u32_le(image);
                heads.put_u32_le(since);
            }
        }
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
            READ => {
                let [len, image] = words(fields)?;
                Action::Read { image, offset, len }
            }
            ALLOCATED => {
                let [len, image] = words(fields)?;
                Action::Allocated { image, offset, len }
            }
            CHANGED => {
                let [len, image, since] = words(fields)?;
                Action::Changed {
                    image,
                    since,
                    offset,
                    len,
                }
            }
            WRITE | LOAD => {
                whole::<0>(fields)?;
                let bytes = body.payload.clone();
                match tag {
                    WRITE => Action::Write { offset, bytes },
                    _ => Action::Load { offset, bytes },
                }
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
            PUT..=FENCE | COPY | DROP | SYNC => Action::of_session(tag, offset, fields, body)?,
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
            PUT => {
                let [low, high, image] = words(fields)?;
                Action::Put {
                    image,
                    session: long(low, high),
                    offset,
                    bytes: body.payload.clone(),
                }
            }
            ZERO => {
                let [low, high, len, image] = words(fields)?;
                Action::Zero {
                    image,
                    session: long(low, high),
                    offset,
                    len,
                }
            }
            COPY => {
                let [of, image] = words(fields)?;
                Action::Copy {
                    of,
                    session: offset,
                    image,
                }
            }
            DROP => {
                whole::<0>(fields)?;
                let image = u32::try_from(offset).map_err(|_| DecodeError::Tag {
                    what: "an image",
                    tag: offset,
                })?;
                Action::Drop { image }
            }
            tag => {
                let ([image], session) = (words(fields)?, offset);
                match tag {
                    SYNC => Action::Sync { image, session },
                    _ => Action::Fence { image, session },
                }
            }
        })
    }
}

/// Fields of four bytes each, and nothing else.
fn words<const N: usize>(fields: &[u8]) -> Result<[u32; N], DecodeError> {
    let words = fields.as_chunks::<4>();
    let all: Result<&[[u8; 4]; N], _> = words.0.try_into();
    match (all, words.1) {
        (Ok(all), []) => Ok(all.map(u32::from_le_bytes)),
        _ => Err(wrong_length(4 * N, fields.len())),
    }
}

fn long(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
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
