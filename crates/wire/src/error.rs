//! Error packets: a code that programs act on, and a text that people read.

use std::fmt;

use bytes::BytesMut;

use crate::codec::{DecodeError, Reader, Wire, wire_struct};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $word:literal;)*) => {
        /// An error, by the remedy that the client has. The numbers are the wire's, for good.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum ErrorCode {
            $($(#[$doc])* $name = $number,)*
        }

        impl ErrorCode {
            /// Every code there is, in order of number.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)*];

            /// The code of a number on the wire.
            pub fn from_number(number: u16) -> Option<ErrorCode> {
                match number {
                    $($number => Some(ErrorCode::$name),)*
                    _ => None,
                }
            }

            /// One lower-case word (with dashes) for people, logs and metrics.
            pub fn word(self) -> &'static str {
                match self {
                    $(ErrorCode::$name => $word,)*
                }
            }
        }
    };
}

codes! {
    /// The message does not follow the protocol. Asking again does not help.
    Malformed = 1, "malformed";
    /// A message or option that this node does not know.
    Unsupported = 2, "unsupported";
    /// A key, value or message beyond the configured limit.
    TooLarge = 3, "too-large";
    /// The hello named another cluster, or this node's life is over.
    WrongCluster = 4, "wrong-cluster";
    /// Not allowed for this role or these credentials.
    Denied = 5, "denied";
    /// The bucket is not answered for here, or not now. Nothing was done: look at the newer map, ask again.
    NotServing = 10, "not-serving";
    /// A bound was reached (a full log, a full queue). Nothing was done: ask again a little later.
    Busy = 11, "busy";
    /// The deadline passed before there was an answer. The request may or may not have taken effect.
    Deadline = 12, "deadline";
    /// The node that had to be asked could not be reached. The request may or may not have taken effect.
    Unreachable = 13, "unreachable";
    /// The retry came too late to tell whether the first try took effect.
    Forgotten = 14, "forgotten";
    /// The node is on its way out. Nothing was done: ask another.
    Stopping = 15, "stopping";
    /// The request was done, but its answer is gone: too large to be kept for a retry, or to be sent.
    AnswerGone = 16, "answer-gone";
    /// The pool's budget is used up. Nothing was changed anywhere.
    OutOfMemory = 20, "out-of-memory";
    /// The value is not an integer, or not in the range of one.
    NotAnInteger = 21, "not-an-integer";
    /// The result would not fit into 64 bits.
    Overflow = 22, "overflow";
    /// More was lost than the scheme bears: nobody can answer for these bytes.
    Lost = 23, "lost";
    /// A write of a volume's session that another has followed. Nothing was changed, and nothing will be: attach anew.
    Fenced = 24, "fenced";
    /// A log keeps what its oldest cursor has not passed, and refuses appends meanwhile. The append may be in the log all the same.
    LogFull = 25, "log-full";
    /// No such pool, node, group or thing.
    NotFound = 30, "not-found";
    /// The directory refused the change, and says why. The map has not changed by it.
    Refused = 31, "refused";
    /// Not the directory's leader.
    NotLeader = 32, "not-leader";
    /// The directory has no majority at present.
    NoQuorum = 33, "no-quorum";
    /// A fault of ours. Report it.
    Internal = 40, "internal";
}

impl ErrorCode {
    /// Returns true if nothing was done for certain, so that even a request without a number may be
    /// asked again.
    pub fn nothing_done(self) -> bool {
        !matches!(
            self,
            ErrorCode::Deadline
                | ErrorCode::Unreachable
                | ErrorCode::Forgotten
                | ErrorCode::LogFull
                | ErrorCode::AnswerGone
                | ErrorCode::Internal
        )
    }

    /// Returns true if the same request, with the same number, may succeed later or elsewhere.
    pub fn worth_retrying(self) -> bool {
        matches!(
            self,
            ErrorCode::NotServing
                | ErrorCode::Busy
                | ErrorCode::Unreachable
                | ErrorCode::Stopping
                | ErrorCode::NotLeader
                | ErrorCode::NoQuorum
        )
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Most bytes of an error's text; [`ErrorPacket::new`] cuts longer ones.
pub const ERROR_TEXT_BYTES_MAX: usize = 4096;

/// An error packet.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text} ({code})")]
pub struct ErrorPacket {
    /// For programs.
    pub code: ErrorCode,
    /// For people: the thing, the reason and, where there is one, the remedy.
    pub text: String,
}

impl ErrorPacket {
    /// A packet of this code and text.
    pub fn new(code: ErrorCode, text: impl Into<String>) -> ErrorPacket {
        let mut text = text.into();
        cut_text(&mut text, ERROR_TEXT_BYTES_MAX);
        ErrorPacket { code, text }
    }
}

/// Cuts a text to at most so many bytes, between two letters.
pub fn cut_text(text: &mut String, bytes_max: usize) {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

// On the wire.

impl Wire for ErrorCode {
    fn put(&self, out: &mut BytesMut) {
        (*self as u16).put(out);
    }

    fn take(from: &mut Reader) -> Result<ErrorCode, DecodeError> {
        // A code of a newer version is taken as the one that promises least: the asker neither
        // retries nor believes that nothing was done, and the text still says what happened.
        let number = u16::take(from)?;
        Ok(ErrorCode::from_number(number).unwrap_or(ErrorCode::Internal))
    }
}

wire_struct!(ErrorPacket { code, text });
