//! One request: its head, checked against the export.

use bytes::{Buf, Bytes};

use crate::constants::{REQUEST_MAGIC, request_flag as flag, request_type};
use crate::error::{NbdError, ProtocolError};
use crate::transmission::Transmission;

/// A request that may be done: it is known, within the export and within the limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The client's number for it; its reply has the same.
    pub cookie: u64,
    /// The work.
    pub command: NbdCommand,
    /// True if the work is to be durable before the reply. Clients may set it on any command; it concerns those that write.
    pub fua: bool,
}

/// The work of a request. Lengths are positive and in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NbdCommand {
    /// Reads bytes.
    Read {
        /// Start in the export.
        offset: u64,
        /// Length, at most the export's `block_max`.
        len: u32,
        /// True if the reply may have one chunk of content only.
        dont_fragment: bool,
    },
    /// Writes bytes.
    Write {
        /// Start in the export.
        offset: u64,
        /// The bytes: a part of the input buffer.
        bytes: Bytes,
    },
    /// Makes everything durable that was acknowledged before.
    Flush,
    /// Permits that bytes be forgotten.
    Trim {
        /// Start in the export.
        offset: u64,
        /// Length.
        len: u32,
    },
    /// Writes zeroes.
    WriteZeroes {
        /// Start in the export.
        offset: u64,
        /// Length.
        len: u32,
        /// True if space must stay reserved for the range.
        no_hole: bool,
        /// True if the request is to fail at once, with `ENOTSUP`, where it would take as long as a write.
        fast: bool,
    },
    /// Announces that bytes will be used soon.
    Cache {
        /// Start in the export.
        offset: u64,
        /// Length.
        len: u32,
    },
    /// Asks for the extents of a range, holes and others.
    BlockStatus {
        /// Start in the export.
        offset: u64,
        /// Length.
        len: u32,
        /// True if the reply may have one extent only, no longer than `len`.
        one: bool,
    },
    /// Ends the connection after the replies to all earlier requests. It has no reply.
    Disconnect,
}

/// The reason of a refusal: the error's number and a text for people.
pub(crate) type RequestRefusal = (NbdError, String);

/// The head of a request, as it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHead {
    flags: u16,
    kind: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

impl RequestHead {
    /// Reads a head; the input is long enough.
    pub(crate) fn read(input: &mut impl Buf) -> Result<RequestHead, ProtocolError> {
        let magic = input.get_u32();
        if magic != REQUEST_MAGIC {
            return Err(ProtocolError::RequestMagic(magic));
        }
        Ok(RequestHead {
            flags: input.get_u16(),
            kind: input.get_u16(),
            cookie: input.get_u64(),
            offset: input.get_u64(),
            len: input.get_u32(),
        })
    }

    /// Returns whether a payload follows.
    pub(crate) fn is_write(&self) -> bool {
        self.kind == request_type::WRITE
    }

    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Returns whether the client wants the work to be durable.
    pub(crate) fn fua(&self) -> bool {
        self.has(flag::FUA)
    }

    /// The work of the request, if it may be done. A write has no bytes yet.
    pub(crate) fn command(&self, export: &Transmission) -> Result<NbdCommand, RequestRefusal> {
        let RequestHead { offset, len, .. } = *self;
        // Nobody waits for a reply to this one, so nothing about it is refused.
        if self.kind == request_type::DISCONNECT {
            return Ok(NbdCommand::Disconnect);
        }
        self.check_flags(export)?;
        if self.kind == request_type::FLUSH {
            return match (offset, len) {
                (0, 0) => Ok(NbdCommand::Flush),
                _ => Err(invalid("a flush has neither offset nor length")),
            };
        }
        self.check_range(export)?;
        Ok(match self.kind {
            request_type::READ => NbdCommand::Read {
                offset,
                len,
                dont_fragment: self.has(flag::DF),
            },
            request_type::WRITE => NbdCommand::Write {
                offset,
                bytes: Bytes::new(),
            },
            request_type::TRIM => NbdCommand::Trim { offset, len },
            request_type::WRITE_ZEROES => NbdCommand::WriteZeroes {
                offset,
                len,
                no_hole: self.has(flag::NO_HOLE),
                fast: self.has(flag::FAST_ZERO),
            },
            request_type::CACHE => NbdCommand::Cache { offset, len },
            _ => NbdCommand::BlockStatus {
                offset,
                len,
                one: self.has(flag::REQ_ONE),
            },
        })
    }

    /// Checks that the type is known and agreed on, and has no flags but its own.
    fn check_flags(&self, export: &Transmission) -> Result<(), RequestRefusal> {
        let allowed = match self.kind {
            request_type::READ if export.is_structured() => flag::DF,
            request_type::READ
            | request_type::WRITE
            | request_type::FLUSH
            | request_type::TRIM
            | request_type::CACHE => 0,
            request_type::WRITE_ZEROES => flag::NO_HOLE | flag::FAST_ZERO,
            request_type::BLOCK_STATUS if export.has_allocation() => flag::REQ_ONE,
            request_type::BLOCK_STATUS => {
                let text = "block status without a metadata context; select base:allocation first";
                return Err(invalid(text));
            }
            kind => return Err(invalid(format!("the request type {kind} is unknown"))),
        };
        let unknown = self.flags & !(allowed | flag::FUA);
        if unknown != 0 {
            let text = format!("the request type {} has no flags {unknown:#x}", self.kind);
            return Err(invalid(text));
        }
        Ok(())
    }

    fn check_range(&self, export: &Transmission) -> Result<(), RequestRefusal> {
        let RequestHead { offset, len, .. } = *self;
        let writes = [
            request_type::WRITE,
            request_type::WRITE_ZEROES,
            request_type::TRIM,
        ];
        if export.is_read_only() && writes.contains(&self.kind) {
            return Err((NbdError::Eperm, "the export is read-only".to_owned()));
        }
        if len == 0 {
            return Err(invalid("the length is 0"));
        }
        let size_bytes = export.size_bytes();
        if offset
            .checked_add(u64::from(len))
            .is_none_or(|end| end > size_bytes)
        {
            let error = match self.kind {
                request_type::WRITE | request_type::WRITE_ZEROES => NbdError::Enospc,
                _ => NbdError::Einval,
            };
            let text = format!("{len} bytes at {offset} end beyond the export's {size_bytes}");
            return Err((error, text));
        }
        if self.kind == request_type::READ && len > export.block_max() {
            let error = match export.is_structured() {
                true => NbdError::Eoverflow,
                false => NbdError::Einval,
            };
            let max = export.block_max();
            let text = format!("a read of {len} bytes is longer than {max}; read less at once");
            return Err((error, text));
        }
        Ok(())
    }
}

fn invalid(text: impl Into<String>) -> RequestRefusal {
    (NbdError::Einval, text.into())
}
