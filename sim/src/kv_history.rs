//! What clients of the key-value worlds ask for, and how it is put to the checker of `staves-history`.

pub use staves_history::{Call, Content, Seen, Verdict, check};

use staves_history::Step;
use staves_wire::service::Answer;

use crate::kv::{INLINE_BYTES_MAX, KvOperation};

/// A text to be written: its bytes follow from its id, and no two ids give the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Text {
    /// Whose.
    pub id: u64,
    /// Its length; at least 18 are written.
    pub len: usize,
}

impl Text {
    /// The bytes; never a number.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("v{:016x}.", self.id).into_bytes();
        let mut x = self.id | 1;
        while bytes.len() < self.len {
            x = x
                .wrapping_mul(0x5851_F42D_4C95_7F2D)
                .wrapping_add(0x1405_7B7E_F767_814F);
            bytes.extend_from_slice(&x.to_le_bytes());
        }
        bytes.truncate(self.len.max(18));
        bytes
    }

    /// Whether it goes in chunks.
    pub fn is_large(&self) -> bool {
        self.len > INLINE_BYTES_MAX
    }
}

/// What a client asks of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the commands' own names
pub enum Act {
    Get,
    Set(Text),
    SetIfAbsent(Text),
    Del,
    Incr(i64),
    Append(Text),
    GetDel,
}

impl Act {
    /// What it writes.
    pub fn text(&self) -> Option<Text> {
        match *self {
            Act::Set(t) | Act::SetIfAbsent(t) | Act::Append(t) => Some(t),
            _ => None,
        }
    }
}

/// Whether such a value lies in chunks.
pub fn is_large(content: &Content) -> bool {
    content.len() > INLINE_BYTES_MAX as u64
}

/// What a client saw of an answer; `None` for an error.
pub fn seen_of(answer: &Answer) -> Option<Seen> {
    match answer {
        Answer::Nil => Some(Seen::Nil),
        Answer::Ok => Some(Seen::Ok),
        Answer::Int(n) => Some(Seen::Int(*n)),
        Answer::Value(bytes) => Some(Seen::Value(Content::of(bytes))),
        Answer::Error(..) => None,
    }
}

/// An operation of the history, as the checker takes it.
pub fn call_of(o: &KvOperation) -> Call {
    let content = |t: Text| Content::of(&t.bytes());
    let step = match o.act {
        Act::Get => Step::Get,
        Act::Set(t) => Step::Set(content(t)),
        Act::SetIfAbsent(t) => Step::SetIfAbsent(content(t)),
        Act::Del => Step::Del,
        Act::Incr(by) => Step::Incr(by),
        Act::Append(t) => Step::Append(content(t)),
        Act::GetDel => Step::GetDel,
    };
    Call::new(step, o.called, o.returned, o.seen)
}
