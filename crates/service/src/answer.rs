//! Answers: borrowed, in the request table, and refused.

use bytes::{BufMut, Bytes, BytesMut};
use staves_wire::error::ErrorCode;
use staves_wire::service::Answer;

/// Most bytes of a value that the request table keeps for a retry.
pub const KEPT_ANSWER_BYTES_MAX: usize = 4096;

/// An answer whose value may still lie in the bucket's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnswerRef<'a> {
    /// No value.
    Nil,
    /// Done.
    Ok,
    /// A number.
    Int(i64),
    /// A value.
    Value(&'a [u8]),
    /// It was not done.
    Error(ErrorCode, &'a str),
}

impl<'a> AnswerRef<'a> {
    /// An owned answer, borrowed.
    pub fn of(answer: &'a Answer) -> AnswerRef<'a> {
        match answer {
            Answer::Nil => AnswerRef::Nil,
            Answer::Ok => AnswerRef::Ok,
            Answer::Int(n) => AnswerRef::Int(*n),
            Answer::Value(bytes) => AnswerRef::Value(bytes),
            Answer::Error(code, text) => AnswerRef::Error(*code, text),
        }
    }

    /// The owned twin; copies a value.
    pub fn to_owned(&self) -> Answer {
        match *self {
            AnswerRef::Nil => Answer::Nil,
            AnswerRef::Ok => Answer::Ok,
            AnswerRef::Int(n) => Answer::Int(n),
            AnswerRef::Value(bytes) => Answer::Value(Bytes::copy_from_slice(bytes)),
            AnswerRef::Error(code, text) => Answer::error(code, text),
        }
    }
}

/// The reason for no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// This member is not the data bucket of an open epoch. Nothing was done.
    #[error("this node does not answer for the data bucket; ask the node that the newer map names")]
    NotServing,
    /// This member stopped being the data bucket after it took the request, which may have taken
    /// effect. A retry at the successor, with the same request number, finds out.
    #[error(
        "the data bucket moved before the request was safe; ask its new node, with the same request number"
    )]
    Interrupted,
    /// Too much waits here already. Nothing was done.
    #[error("too many requests wait at the data bucket; ask again a little later")]
    Busy,
    /// The deadline passed first. The request may have taken effect.
    #[error(
        "the deadline passed before the request was safe on all copies; it may or may not have taken effect"
    )]
    Deadline,
    /// The deadline passed before the request began, or it was a read. Nothing was done.
    #[error(
        "nothing was done: the deadline passed while the request waited at its data bucket; ask again, or see 'staves status'"
    )]
    Late,
}

impl Refused {
    /// The code on the wire.
    pub fn code(self) -> ErrorCode {
        match self {
            Refused::NotServing | Refused::Late => ErrorCode::NotServing,
            Refused::Interrupted => ErrorCode::Unreachable,
            Refused::Busy => ErrorCode::Busy,
            Refused::Deadline => ErrorCode::Deadline,
        }
    }
}

const NIL: u8 = 1;
const INT: u8 = 2;
const VALUE: u8 = 3;
const TOO_LARGE: u8 = 4;
const ERROR: u8 = 5;

/// An answer as the request table keeps it. `Ok`, the most common, is no bytes at all.
pub(crate) fn keep(answer: &Answer) -> Bytes {
    let mut kept = BytesMut::new();
    match answer {
        Answer::Ok => {}
        Answer::Nil => kept.put_u8(NIL),
        Answer::Int(n) => {
            kept.put_u8(INT);
            kept.put_i64_le(*n);
        }
        Answer::Value(bytes) if bytes.len() <= KEPT_ANSWER_BYTES_MAX => {
            kept.put_u8(VALUE);
            kept.put_slice(bytes);
        }
        Answer::Value(bytes) => {
            kept.put_u8(TOO_LARGE);
            kept.put_u64_le(bytes.len() as u64);
        }
        Answer::Error(code, text) => {
            kept.put_u8(ERROR);
            kept.put_u16_le(*code as u16);
            kept.put_slice(text.as_bytes());
        }
    }
    kept.freeze()
}

/// A kept answer, for a retry.
pub(crate) fn recall(kept: &Bytes) -> Answer {
    let number = |at: usize| -> Option<[u8; 8]> { kept.get(at..at + 8)?.try_into().ok() };
    match kept.first() {
        None => Answer::Ok,
        Some(&NIL) => Answer::Nil,
        Some(&VALUE) => Answer::Value(kept.slice(1..)),
        Some(&INT) if number(1).is_some() => {
            Answer::Int(i64::from_le_bytes(number(1).unwrap_or_default()))
        }
        Some(&TOO_LARGE) => {
            let bytes = u64::from_le_bytes(number(1).unwrap_or_default());
            Answer::error(
                ErrorCode::AnswerGone,
                format!(
                    "ERR the first try of this request took effect, but its answer, a value of {bytes} \
                     bytes, is too large to be kept for a retry"
                ),
            )
        }
        Some(&ERROR) => recall_error(kept).unwrap_or_else(unreadable),
        Some(_) => unreadable(),
    }
}

fn recall_error(kept: &Bytes) -> Option<Answer> {
    let number = u16::from_le_bytes(kept.get(1..3)?.try_into().ok()?);
    let text = std::str::from_utf8(kept.get(3..)?).ok()?;
    Some(Answer::error(ErrorCode::from_number(number)?, text))
}

fn unreadable() -> Answer {
    Answer::error(ErrorCode::Internal, "ERR the kept answer cannot be read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_answers_are_given_again() {
        let value = |n| Answer::Value(Bytes::from(vec![7; n]));
        for answer in [
            Answer::Ok,
            Answer::Nil,
            Answer::Int(-5),
            value(0),
            value(4096),
            Answer::error(ErrorCode::OutOfMemory, "OOM"),
        ] {
            assert_eq!(recall(&keep(&answer)), answer);
        }
        let Answer::Error(ErrorCode::AnswerGone, text) = recall(&keep(&value(4097))) else {
            panic!("too large to keep")
        };
        assert!(text.contains("4097 bytes"), "{text}");
        assert!(matches!(
            recall(&Bytes::from_static(&[INT, 1])),
            Answer::Error(..)
        ));
    }
}
