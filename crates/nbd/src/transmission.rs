//! The transmission: requests and the payloads of writes, out of the stream.

use bytes::{Buf, BytesMut};

use crate::error::{NbdError, ProtocolError};
use crate::export::Export;
use crate::reply::Replies;
use crate::request::{NbdCommand, Request, RequestHead};

/// The bytes of a request before its payload.
pub const REQUEST_HEAD_BYTES: usize = 28;

/// The state of a connection after the client has chosen an export.
#[derive(Debug)]
pub struct Transmission {
    structured: bool,
    allocation: bool,
    size_bytes: u64,
    read_only: bool,
    block_max: u32,
    awaited: Awaited,
}

/// The part of the stream that comes next.
#[derive(Debug)]
enum Awaited {
    Head,
    /// The payload of a write that may be done.
    Payload(RequestHead),
    /// The rest of a refused write's payload.
    Skipped {
        cookie: u64,
        left: usize,
        error: NbdError,
        text: String,
    },
}

/// The next thing in the stream.
#[derive(PartialEq, Eq, Debug)]
pub enum Incoming {
    /// Further bytes are needed.
    More,
    /// A write was announced with a payload of this length. The next call goes on with it: before that the driver may wait for a budget.
    Header(u32),
    /// A request that may be done.
    Request(Request),
    /// A request that may not. The reply is this error; the stream goes on behind the request.
    Refused {
        /// The client's number for it.
        cookie: u64,
        /// The error.
        error: NbdError,
        /// The reason, for people.
        text: String,
    },
}

impl Transmission {
    pub(crate) fn new(export: &Export, structured: bool, allocation: bool) -> Transmission {
        Transmission {
            structured,
            allocation,
            size_bytes: export.size_bytes,
            read_only: export.read_only,
            block_max: export.block_max,
            awaited: Awaited::Head,
        }
    }

    /// Returns whether replies are structured.
    pub fn is_structured(&self) -> bool {
        self.structured
    }

    /// Returns whether the client may ask for `base:allocation`.
    pub fn has_allocation(&self) -> bool {
        self.allocation
    }

    /// The export's size in bytes, as it was announced.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Longest read and longest payload of a write, in bytes.
    pub fn block_max(&self) -> u32 {
        self.block_max
    }

    /// The form of replies that was agreed on.
    pub fn replies(&self) -> Replies {
        Replies::new(self.structured)
    }

    /// The length of the payload that is awaited: `Some` from [`Incoming::Header`] to the write's [`Incoming::Request`].
    pub fn pending_payload(&self) -> Option<u32> {
        match &self.awaited {
            Awaited::Payload(head) => Some(head.len),
            _ => None,
        }
    }

    /// The least number of bytes that must come before [`Transmission::next`] returns anything but [`Incoming::More`], if
    /// the input holds `input_len`: a hint for the driver's buffer.
    pub fn wanted(&self, input_len: usize) -> usize {
        let whole = match &self.awaited {
            Awaited::Head => REQUEST_HEAD_BYTES,
            Awaited::Payload(head) => head.len as usize,
            Awaited::Skipped { left, .. } => *left,
        };
        whole.saturating_sub(input_len)
    }

    /// Takes the next request, or the head of a write, off `input`.
    ///
    /// `input` holds what came and was not taken yet; it needs no more than a request's head, or a payload of at most `block_max`.
    /// A refused write's payload is dropped as it comes.
    ///
    /// # Errors
    /// If the connection is to be closed.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Incoming, ProtocolError> {
        match &mut self.awaited {
            Awaited::Head if input.len() < REQUEST_HEAD_BYTES => Ok(Incoming::More),
            Awaited::Head => {
                let head = RequestHead::read(input)?;
                self.begin(head, input)
            }
            Awaited::Payload(head) => {
                let head = *head;
                if input.len() < head.len as usize {
                    return Ok(Incoming::More);
                }
                self.awaited = Awaited::Head;
                Ok(Incoming::Request(Request {
                    cookie: head.cookie,
                    fua: head.fua(),
                    command: NbdCommand::Write {
                        offset: head.offset,
                        bytes: input.split_to(head.len as usize).freeze(),
                    },
                }))
            }
            Awaited::Skipped { .. } => Ok(self.skip(input)),
        }
    }

    /// Goes on behind the head of a request.
    fn begin(
        &mut self,
        head: RequestHead,
        input: &mut BytesMut,
    ) -> Result<Incoming, ProtocolError> {
        if head.is_write() && head.len > self.block_max {
            return Err(ProtocolError::PayloadTooLarge {
                bytes: head.len,
                max: self.block_max,
            });
        }
        let cookie = head.cookie;
        match head.command(self) {
            Ok(NbdCommand::Write { .. }) => {
                self.awaited = Awaited::Payload(head);
                Ok(Incoming::Header(head.len))
            }
            Ok(command) => Ok(Incoming::Request(Request {
                cookie,
                command,
                fua: head.fua(),
            })),
            Err((error, text)) => {
                self.awaited = Awaited::Skipped {
                    cookie,
                    left: if head.is_write() {
                        head.len as usize
                    } else {
                        0
                    },
                    error,
                    text,
                };
                Ok(self.skip(input))
            }
        }
    }

    /// Drops what came of a refused payload; the refusal at its end.
    fn skip(&mut self, input: &mut BytesMut) -> Incoming {
        match std::mem::replace(&mut self.awaited, Awaited::Head) {
            Awaited::Skipped {
                cookie,
                left,
                error,
                text,
            } => {
                let skipped = left.min(input.len());
                input.advance(skipped);
                if skipped == left {
                    return Incoming::Refused {
                        cookie,
                        error,
                        text,
                    };
                }
                self.awaited = Awaited::Skipped {
                    cookie,
                    left: left - skipped,
                    error,
                    text,
                };
            }
            other => self.awaited = other,
        }
        Incoming::More
    }
}
