//! Frames: how messages are cut, labelled and checked on a connection.
//!
//! ```text
//! byte  0        4        5       6       8           16       24          28         32        36        40
//!       | magic  | frame  | op-   | flags | request   | epoch  | deadline  | body     | body    | header  | body ...
//!       | "STAV" | format | code  |       | id        |        | ms        | length   | CRC32C  | CRC32C  |
//! ```
//!
//! All little-endian. The header's CRC covers bytes 0 to 35. A body has at most [`FRAME_BODY_MAX`]
//! bytes and may have none. A larger message travels as several frames of the same request id and
//! opcode, all but the last with the flag `MORE`; frames of other messages may come in between, so
//! that a large value does not hold up a heartbeat.
//!
//! A wrong magic, format or CRC means that the two sides have lost each other: the connection ends.
//! A message that is too large, that has an unknown opcode, or whose body does not decode, is refused
//! by itself and harms nothing else.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::cache::VALUE_BYTES_MAX;
use crate::message::{Message, Opcode, Size};

/// The first four bytes of every frame.
pub const MAGIC: [u8; 4] = *b"STAV";
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 40;
/// Most bytes of one frame's body.
pub const FRAME_BODY_MAX: usize = 1 << 20;
/// Most bytes of one message, unless configured lower: the largest value and room for what names it.
pub const MESSAGE_BYTES_MAX: usize = VALUE_BYTES_MAX + (1 << 20);

/// The layout of headers: byte 4 of every frame. Not the protocol's version, which the two sides
/// agree on in the hello: the hello itself must be readable to a node that knows older versions only.
pub const FRAME_FORMAT: u8 = 1;

/// The lowest version that this program speaks.
pub const VERSION_MIN: u8 = 17;
/// The highest. What each brought:
///
/// 1. The first.
/// 2. `cache-answers` says above which number to draw; the codes `clock-ahead` and `answer-gone`;
///    the messages of regions, of a group's state and of its pages.
/// 3. The messages of files.
/// 4. One request and one answer for all services on groups, in place of one pair for each.
///    Members are named by node, disk and life, in `group` and in the map: older versions cannot read either.
/// 5. A shared secret, proven by challenge. The map says of each part of a region whether it was written or is being
///    loaded: older versions cannot read it.
/// 6. A request to services bounds the bytes of its answers.
/// 7. That bound may be strict: of a value beyond it the answer says how large it is. An ack says that its member rests:
///    older versions cannot read it.
/// 8. Writes of a load say that they are: nobody else's are taken where it goes on.
///    A delta of a cache may put a record over the one of its key, and a record says how much spare room is behind it: copies
///    of older versions would lose count of both.
/// 9. Where a secret is proven, all that follows is sealed: older versions do not seal.
/// 10. Volumes: writes of a session, and what ends it. The map has them: older versions cannot read it.
/// 11. Pools on disk: the map says so, and a node that starts names what its disk has. Older versions cannot read either.
/// 12. A question to a region's bucket for the chunks that take up memory. Disks of a node that runs are added, emptied and taken out, and fail by
///     themselves; volumes have limits: older versions cannot read the directory's log and map.
/// 13. Data buckets of regions hold up to 1 GiB. The map says how many bytes: older versions cannot read one with others than
///     64 MiB, and refuse what lies beyond those.
/// 14. Volumes have images, snapshots and clones: operations on their bytes say which. Older versions cannot read a map that has some.
/// 15. Logs: requests to their sequencers. A pool of logs may be on disk, which older versions refuse when they read the directory's log.
/// 16. Logs: appends with conditions, waits at the tail, cursors, what is kept, and sessions, in the log service's own encoding; sequencers that
///     are moved, or given a new term, while they serve.
/// 17. A request to sequencers of logs holds several, and so does its answer.
pub const VERSION_MAX: u8 = 17;

/// More frames of this message follow.
pub const FLAG_MORE: u16 = 1;
/// This answers a request of the receiver; the id is the receiver's own.
pub const FLAG_ANSWER: u16 = 2;
const FLAGS_KNOWN: u16 = FLAG_MORE | FLAG_ANSWER;

/// A frame's header, but for the checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// [`FRAME_FORMAT`].
    pub format: u8,
    /// The opcode; not necessarily one that we know.
    pub opcode: u8,
    /// `FLAG_...`.
    pub flags: u16,
    /// From a random start, incremented by the asker, echoed by the answer (row X1).
    pub request: u64,
    /// See [`Message::epoch`].
    pub epoch: u64,
    /// The time left of the deadline, in milliseconds; 0: none was set.
    pub deadline_ms: u32,
    /// Bytes of the body.
    pub body_len: u32,
    /// CRC32C of the body.
    pub body_crc: u32,
}

/// The reason why a connection cannot go on.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// Not a frame at all.
    #[error("the bytes {0:02x?} do not begin a frame: {guess}", guess = guess(.0))]
    Magic([u8; 4]),
    /// Damaged on the way.
    #[error("a frame's header is damaged (its checksum does not fit)")]
    HeaderCrc,
    /// Damaged on the way.
    #[error("the body of a {opcode} frame is damaged (its checksum does not fit)")]
    BodyCrc {
        /// The opcode's number.
        opcode: u8,
    },
    /// Neither side's fault.
    #[error(
        "the other side's frames have the format {0}, this one's {FRAME_FORMAT}: update the older one"
    )]
    Format(u8),
    /// Flags that this version does not know.
    #[error("a frame has flags {0:#06x}, of which this version knows {FLAGS_KNOWN:#06x}")]
    Flags(u16),
    /// A body beyond the bound.
    #[error("a frame's body has {0} bytes, and at most {FRAME_BODY_MAX} are allowed")]
    BodyLength(u32),
    /// Frames of one message that do not belong together.
    #[error("a frame of message {request} does not continue the one before it")]
    Continuation {
        /// The request id.
        request: u64,
    },
    /// Too many messages begun.
    #[error("{0} messages were begun and not ended, which is the most that is allowed")]
    Unfinished(usize),
}

/// The likely sender of bytes that do not begin a frame.
fn guess(bytes: &[u8; 4]) -> &'static str {
    match bytes {
        b"HTTP" => "an HTTP server answered; is this the admin port?",
        [b'-' | b'+', ..] => "a Redis server answered; is this the RESP port?",
        _ => "is this the native port, and is the other side Staves?",
    }
}

impl Header {
    /// The message of which the frame is, among those of a connection.
    fn key(&self) -> (u64, bool) {
        (self.request, self.flags & FLAG_ANSWER != 0)
    }

    /// Writes it, checksum and all.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut out = &mut bytes[..];
        out.put_slice(&MAGIC);
        out.put_u8(self.format);
        out.put_u8(self.opcode);
        out.put_u16_le(self.flags);
        out.put_u64_le(self.request);
        out.put_u64_le(self.epoch);
        out.put_u32_le(self.deadline_ms);
        out.put_u32_le(self.body_len);
        out.put_u32_le(self.body_crc);
        let crc = crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads and checks it.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
        let (covered, crc) = bytes.split_at(HEADER_BYTES - 4);
        if covered[..4] != MAGIC {
            return Err(FrameError::Magic([
                covered[0], covered[1], covered[2], covered[3],
            ]));
        }
        if crc32c(covered).to_le_bytes() != crc {
            return Err(FrameError::HeaderCrc);
        }
        let mut from = &covered[4..];
        let header = Header {
            format: from.get_u8(),
            opcode: from.get_u8(),
            flags: from.get_u16_le(),
            request: from.get_u64_le(),
            epoch: from.get_u64_le(),
            deadline_ms: from.get_u32_le(),
            body_len: from.get_u32_le(),
            body_crc: from.get_u32_le(),
        };
        if header.format != FRAME_FORMAT {
            return Err(FrameError::Format(header.format));
        }
        if header.flags & !FLAGS_KNOWN != 0 {
            return Err(FrameError::Flags(header.flags));
        }
        if header.body_len as usize > FRAME_BODY_MAX {
            return Err(FrameError::BodyLength(header.body_len));
        }
        Ok(header)
    }
}

/// The checksum of headers and bodies (Castagnoli). All that comes and goes passes here: at the speed at which it
/// is copied it would take as long as the copy.
fn crc32c(bytes: &[u8]) -> u32 {
    // 32 bits in a wider type.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The fields of frame headers beside the message itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Envelope {
    /// The request id.
    pub request: u64,
    /// It is an answer.
    pub answer: bool,
    /// The time left of the deadline, in milliseconds; 0 for an answer.
    pub deadline_ms: u32,
}

/// Appends a message as one frame or more.
pub fn encode(envelope: Envelope, message: &Message, out: &mut BytesMut) {
    let start = out.len();
    out.put_bytes(0, HEADER_BYTES);
    message.put_body(out);
    let body_len = out.len() - start - HEADER_BYTES;
    // Where it takes several frames, room for their headers is made in place, from the last one on.
    let further = body_len.saturating_sub(1) / FRAME_BODY_MAX;
    out.put_bytes(0, further * HEADER_BYTES);
    for frame in (0..=further).rev() {
        let encoded = frame * FRAME_BODY_MAX;
        let len = (body_len - encoded).min(FRAME_BODY_MAX);
        let from = start + HEADER_BYTES + encoded;
        let to = from + frame * HEADER_BYTES;
        out.copy_within(from..from + len, to);
        let flags = if frame < further { FLAG_MORE } else { 0 };
        let of = (message.opcode(), message.epoch());
        let header = header_of(envelope, of, flags, &out[to..to + len]);
        out[to - HEADER_BYTES..to].copy_from_slice(&header.encode());
    }
}

/// Writes the header of a message with this opcode and epoch into the first bytes of its one frame, whose body is behind them.
pub(crate) fn seal(envelope: Envelope, of: (Opcode, u64), frame: &mut [u8]) {
    let (header, body) = frame.split_at_mut(HEADER_BYTES);
    header.copy_from_slice(&header_of(envelope, of, 0, body).encode());
}

fn header_of(envelope: Envelope, of: (Opcode, u64), flags: u16, body: &[u8]) -> Header {
    let (opcode, epoch) = of;
    Header {
        format: FRAME_FORMAT,
        opcode: opcode as u8,
        flags: flags | if envelope.answer { FLAG_ANSWER } else { 0 },
        request: envelope.request,
        epoch,
        deadline_ms: envelope.deadline_ms,
        body_len: u32::try_from(body.len()).expect("a frame's body is at most FRAME_BODY_MAX"),
        body_crc: crc32c(body),
    }
}

/// The header of a frame of the one-way group message, whose body was encoded as it was queued
/// ([`crate::group::GroupEnvelope::encode`]).
pub fn group_header(request: u64, more: bool, body: &[u8]) -> [u8; HEADER_BYTES] {
    let header = Header {
        format: FRAME_FORMAT,
        opcode: Opcode::Group as u8,
        flags: if more { FLAG_MORE } else { 0 },
        request,
        epoch: 0,
        deadline_ms: 0,
        body_len: u32::try_from(body.len()).expect("a frame's body is at most FRAME_BODY_MAX"),
        body_crc: crc32c(body),
    };
    header.encode()
}

/// The bounds of a [`Decoder`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most bytes of one message.
    pub message_bytes_max: usize,
    /// Most messages begun and not ended.
    pub unfinished_max: usize,
    /// Most bytes of all messages begun and not ended, together. Where it is below
    /// `message_bytes_max`, it bounds a single message too.
    pub unfinished_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            message_bytes_max: MESSAGE_BYTES_MAX,
            unfinished_max: 64,
            unfinished_bytes_max: 2 * MESSAGE_BYTES_MAX,
        }
    }
}

/// A message as it came, whole and undamaged, but not yet looked into.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Raw {
    /// The header of its first frame.
    pub header: Header,
    /// The bodies of its frames, together.
    pub body: Bytes,
}

impl Raw {
    /// Returns true if it answers a request of ours.
    pub fn is_answer(&self) -> bool {
        self.header.flags & FLAG_ANSWER != 0
    }
}

/// A decoded part of the bytes that came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Incoming {
    /// A message.
    Message(Raw),
    /// A message that went beyond a limit; its bytes were thrown away. The rest of the connection is
    /// well. Said when the limit is met, so that the asker need not send to the end first.
    TooLarge {
        /// Of the message's first frame.
        header: Header,
        /// The limit.
        bytes_max: usize,
    },
    /// A message that its reader gave up ([`Decoder::give_up`]), by its first frame's header. The rest of the connection is well.
    GivenUp(Header),
}

/// A message of which frames are still to come.
struct Unfinished {
    first: Header,
    body: BytesMut,
    /// It went beyond a limit and was refused; its further frames are thrown away.
    refused: bool,
}

impl Unfinished {
    fn of(first: Header) -> Unfinished {
        Unfinished {
            first,
            body: BytesMut::new(),
            refused: false,
        }
    }

    /// The bytes that it gives back.
    fn refuse(&mut self) -> usize {
        self.refused = true;
        std::mem::take(&mut self.body).len()
    }
}

/// Puts messages together from the bytes of one connection, one direction.
pub struct Decoder {
    limits: Limits,
    /// By request id and whether it is an answer: the two directions count apart.
    unfinished: BTreeMap<(u64, bool), Unfinished>,
    unfinished_bytes: usize,
    /// The header of the frame whose body is awaited.
    header: Option<Header>,
    /// Bytes of a body that are thrown away.
    skip: usize,
}

impl Decoder {
    /// For a new connection.
    pub fn new(limits: Limits) -> Decoder {
        Decoder {
            limits,
            unfinished: BTreeMap::new(),
            unfinished_bytes: 0,
            header: None,
            skip: 0,
        }
    }

    /// The bytes that must be in the buffer before `next` can yield more. A reader that wants to read
    /// straight into place reserves as many.
    pub fn wanted(&self) -> usize {
        self.header
            .map_or(HEADER_BYTES, |header| header.body_len as usize)
    }

    /// Bytes of messages that have begun and not ended.
    pub fn unfinished_bytes(&self) -> usize {
        self.unfinished_bytes
    }

    /// Returns true if the next frame is of a large message, as far as can be seen: one that has begun
    /// and not ended.
    pub fn within_large(&self) -> bool {
        const LARGE: u32 = 64 << 10;
        !self.unfinished.is_empty() || self.header.is_some_and(|header| header.body_len > LARGE)
    }

    /// Throws away the message whose frame is awaited, as there is no memory for it; between frames, one that has begun. `None` if
    /// there is none.
    pub fn give_up(&mut self) -> Option<Incoming> {
        let Some(header) = self.header.take() else {
            let begun = self.unfinished.values_mut().find(|part| !part.refused)?;
            self.unfinished_bytes -= begun.refuse();
            return Some(Incoming::GivenUp(begun.first));
        };
        let part = self.unfinished.entry(header.key());
        let part = part.or_insert(Unfinished::of(header));
        self.unfinished_bytes -= part.refuse();
        let first = part.first;
        self.throw_away(header);
        Some(Incoming::GivenUp(first))
    }

    /// True if the frame is of a message that was refused.
    fn is_refused(&self, header: &Header) -> bool {
        let part = self.unfinished.get(&header.key());
        part.is_some_and(|part| part.refused)
    }

    /// Throws away a frame of a refused message, as its bytes come.
    fn throw_away(&mut self, header: Header) {
        (self.header, self.skip) = (None, header.body_len as usize);
        if header.flags & FLAG_MORE == 0 {
            self.unfinished.remove(&header.key());
        }
    }

    /// Takes the next message off the front of `buffer`; `None` when more bytes are needed.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Incoming>, FrameError> {
        loop {
            let skipped = self.skip.min(buffer.len());
            buffer.advance(skipped);
            self.skip -= skipped;
            if self.skip > 0 {
                return Ok(None);
            }
            let Some(header) = self.take_header(buffer)? else {
                return Ok(None);
            };
            if self.is_refused(&header) {
                self.throw_away(header);
                continue;
            }
            if buffer.len() < header.body_len as usize {
                return Ok(None);
            }
            self.header = None;
            let body = buffer.split_to(header.body_len as usize).freeze();
            if crc32c(&body) != header.body_crc {
                return Err(FrameError::BodyCrc {
                    opcode: header.opcode,
                });
            }
            if let Some(incoming) = self.place(header, body)? {
                return Ok(Some(incoming));
            }
        }
    }

    /// The header of the frame whose body is awaited.
    fn take_header(&mut self, buffer: &mut BytesMut) -> Result<Option<Header>, FrameError> {
        if self.header.is_none() {
            let Some(bytes) = buffer.first_chunk::<HEADER_BYTES>() else {
                // Who speaks another protocol may wait for an answer to less than a header.
                return match buffer.first_chunk::<4>() {
                    Some(first) if *first != MAGIC => Err(FrameError::Magic(*first)),
                    _ => Ok(None),
                };
            };
            self.header = Some(Header::decode(bytes)?);
            buffer.advance(HEADER_BYTES);
        }
        Ok(self.header)
    }

    /// A frame takes its place: as a message of its own, or as a part of one.
    fn place(&mut self, header: Header, body: Bytes) -> Result<Option<Incoming>, FrameError> {
        let key = header.key();
        let more = header.flags & FLAG_MORE != 0;
        if !self.unfinished.contains_key(&key) {
            if !more {
                return Ok(Some(self.whole(header, body)));
            }
            if self.unfinished.len() >= self.limits.unfinished_max {
                return Err(FrameError::Unfinished(self.limits.unfinished_max));
            }
            self.unfinished.insert(key, Unfinished::of(header));
        }
        let bytes_max = self.bytes_max(header.opcode);
        let Some(part) = self.unfinished.get_mut(&key) else {
            return Ok(None);
        };
        if part.first.opcode != header.opcode || part.first.epoch != header.epoch {
            return Err(FrameError::Continuation {
                request: header.request,
            });
        }
        let mut incoming = None;
        let beyond = part.body.len() + body.len() > bytes_max
            || self.unfinished_bytes + body.len() > self.limits.unfinished_bytes_max;
        if beyond {
            self.unfinished_bytes -= part.refuse();
            incoming = Some(Incoming::TooLarge {
                header: part.first,
                bytes_max,
            });
        } else {
            part.body.extend_from_slice(&body);
            self.unfinished_bytes += body.len();
        }
        if more {
            return Ok(incoming);
        }
        if let Some(part) = self.unfinished.remove(&key)
            && !part.refused
        {
            self.unfinished_bytes -= part.body.len();
            incoming = Some(Incoming::Message(Raw {
                header: part.first,
                body: part.body.freeze(),
            }));
        }
        Ok(incoming)
    }

    fn whole(&self, header: Header, body: Bytes) -> Incoming {
        let bytes_max = self.bytes_max(header.opcode);
        if body.len() > bytes_max {
            return Incoming::TooLarge { header, bytes_max };
        }
        Incoming::Message(Raw { header, body })
    }

    /// Only messages that carry values, logs and maps may be larger than a frame.
    fn bytes_max(&self, opcode: u8) -> usize {
        match Opcode::from_number(opcode).map(Opcode::size) {
            Some(Size::Frames) => self.limits.message_bytes_max,
            Some(Size::Frame) | None => FRAME_BODY_MAX.min(self.limits.message_bytes_max),
        }
    }
}
