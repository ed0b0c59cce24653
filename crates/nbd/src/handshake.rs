//! The handshake: the greeting, and the client's options one by one.

use bytes::{Buf, BufMut, BytesMut};

use crate::constants::{GREETING_MAGIC, OPTION_MAGIC, handshake_flag, option};
use crate::error::ProtocolError;
use crate::export::Exports;
use crate::option::Negotiation;
use crate::tls::TlsPolicy;
use crate::transmission::Transmission;

/// Longest data of an option that is read; longer data is skipped and the option refused.
pub const OPTION_BYTES_MAX: usize = 64 << 10;
/// Longest data of an option that is skipped; more ends the connection.
pub const OPTION_SKIP_BYTES_MAX: usize = 1 << 20;
/// Options of one connection.
pub const OPTIONS_MAX: u32 = 1_000;
/// Answers that may lie unsent while another option is answered.
pub const ANSWERS_BYTES_MAX: usize = 1 << 20;

/// Magic number, option, length.
const OPTION_HEAD_BYTES: usize = 16;
const CLIENT_FLAGS_BYTES: usize = 4;

/// The state of a connection before the client has chosen an export.
#[derive(Debug, Default)]
pub struct Handshake {
    expected: Expected,
    options: u32,
    negotiation: Negotiation,
}

/// The part of the stream that comes next.
#[derive(Clone, Copy, Debug, Default)]
enum Expected {
    #[default]
    ClientFlags,
    OptionHead,
    OptionData {
        option: u32,
        bytes: usize,
    },
    /// Data of an option that is too long to be read.
    SkippedData {
        option: u32,
        left: usize,
    },
    Nothing,
}

/// The outcome of the bytes so far.
#[derive(Debug)]
pub enum HandshakeStep {
    /// Further bytes are needed. The answers so far are to be sent first.
    More,
    /// The client chose the export of this name. What is left of the input belongs to the transmission.
    Began(Transmission, String),
    /// The client starts TLS. The answers so far are to be sent first; then TLS begins, and this handshake, which has agreed on nothing
    /// yet, goes on within it, without a greeting. Nothing is left of the input.
    StartTls(Handshake),
    /// The client wants to end the connection. The answers so far are to be sent first.
    Ended,
}

impl Handshake {
    /// A handshake of a new connection, without TLS.
    pub fn new() -> Handshake {
        Handshake::default()
    }

    /// A handshake of a new connection, with this policy of TLS.
    pub fn with_tls(policy: TlsPolicy) -> Handshake {
        Handshake {
            negotiation: Negotiation::with_tls(policy),
            ..Handshake::default()
        }
    }

    /// Appends the server's first bytes.
    pub fn greeting(&self, out: &mut BytesMut) {
        out.put_u64(GREETING_MAGIC);
        out.put_u64(OPTION_MAGIC);
        out.put_u16(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    }

    /// Takes whole options off `input` and appends their answers to `out`.
    ///
    /// `input` holds what came and was not taken yet; it needs no more than an option's head and [`OPTION_BYTES_MAX`]. `out` is to be sent
    /// and emptied between calls.
    ///
    /// # Errors
    /// If the connection is to be closed; answers in `out` may be sent before.
    pub fn next(
        &mut self,
        input: &mut BytesMut,
        exports: &impl Exports,
        out: &mut BytesMut,
    ) -> Result<HandshakeStep, ProtocolError> {
        loop {
            match self.expected {
                Expected::ClientFlags if input.len() >= CLIENT_FLAGS_BYTES => {
                    self.negotiation.set_client_flags(input.get_u32())?;
                    self.expected = Expected::OptionHead;
                }
                Expected::OptionHead if input.len() >= OPTION_HEAD_BYTES => {
                    self.expected = self.read_head(input)?;
                }
                Expected::OptionData { option, bytes } if input.len() >= bytes => {
                    if out.len() > ANSWERS_BYTES_MAX {
                        return Err(ProtocolError::AnswersUnread);
                    }
                    self.expected = Expected::OptionHead;
                    let data = input.split_to(bytes);
                    if self.negotiation.may_start_tls(option, &data) {
                        self.expected = Expected::Nothing;
                        return self.start_tls(input, out);
                    }
                    if let Some(step) = self.negotiation.answer(option, &data, exports, out)? {
                        self.expected = Expected::Nothing;
                        return Ok(step);
                    }
                }
                Expected::SkippedData { option, left } if !input.is_empty() => {
                    let skipped = left.min(input.len());
                    input.advance(skipped);
                    self.expected = self.skipped(option, left - skipped, out);
                }
                Expected::Nothing => return Ok(HandshakeStep::Ended),
                _ => return Ok(HandshakeStep::More),
            }
        }
    }

    /// Grants TLS. Bytes behind the option came without its protection, from the client or from anybody on the way: they end the connection.
    fn start_tls(
        &self,
        input: &BytesMut,
        out: &mut BytesMut,
    ) -> Result<HandshakeStep, ProtocolError> {
        if !input.is_empty() {
            return Err(ProtocolError::BytesBeforeTls(input.len()));
        }
        Ok(HandshakeStep::StartTls(Handshake {
            expected: Expected::OptionHead,
            options: self.options,
            negotiation: self.negotiation.secured(out),
        }))
    }

    /// Reads an option's head; the input is long enough.
    fn read_head(&mut self, input: &mut BytesMut) -> Result<Expected, ProtocolError> {
        let (magic, option, bytes) = (input.get_u64(), input.get_u32(), input.get_u32());
        if magic != OPTION_MAGIC {
            return Err(ProtocolError::OptionMagic(magic));
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(ProtocolError::TooManyOptions(OPTIONS_MAX));
        }
        let left = bytes as usize;
        if left <= OPTION_BYTES_MAX {
            let bytes = left;
            return Ok(Expected::OptionData { option, bytes });
        }
        // A name that is too long ends the connection: this option has no answer for it.
        if option == option::EXPORT_NAME || left > OPTION_SKIP_BYTES_MAX {
            return Err(ProtocolError::OptionTooLarge { option, bytes });
        }
        Ok(Expected::SkippedData { option, left })
    }

    /// The state after some bytes of an option's data were skipped.
    fn skipped(&self, option: u32, left: usize, out: &mut BytesMut) -> Expected {
        if left > 0 {
            return Expected::SkippedData { option, left };
        }
        match self.negotiation.answer_too_long(option, out) {
            true => Expected::Nothing,
            false => Expected::OptionHead,
        }
    }
}
