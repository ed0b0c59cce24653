//! The commands: their effect on one key, given its old value. Pure; Redis's meanings and words.

use std::borrow::Cow;

use bytes::Bytes;
use staves_wire::cache::{Condition, KEY_BYTES_MAX, Op};
use staves_wire::error::ErrorCode;
use staves_wire::service::Answer;

use crate::kv::Value;

/// The effect of a command.
pub(crate) enum Verdict<'a> {
    /// Nothing changes; answered like a read.
    Keep(Answer),
    /// The key gets a value.
    Put(Cow<'a, [u8]>, Answer),
    /// The key loses its value.
    Remove(Answer),
}

/// Refuses an operation that is too large for anybody, before anything is looked at.
pub(crate) fn too_large(op: &Op<'_>, value_bytes_max: usize) -> Option<Answer> {
    let key = op.key().len();
    if key > KEY_BYTES_MAX {
        let text = format!("the key of {key} bytes exceeds the maximum of {KEY_BYTES_MAX} bytes");
        return Some(Answer::error(ErrorCode::TooLarge, text));
    }
    let value = op.value().map_or(0, <[u8]>::len);
    (value > value_bytes_max).then(|| value_too_large(value, value_bytes_max))
}

fn value_too_large(bytes: usize, max: usize) -> Answer {
    let text = format!("string exceeds maximum allowed size: {bytes} bytes, and {max} are allowed");
    Answer::error(ErrorCode::TooLarge, text)
}

/// Decides an operation.
pub(crate) fn decide<'a>(
    op: &Op<'a>,
    old: Option<Value<'_>>,
    value_bytes_max: usize,
) -> Verdict<'a> {
    match *op {
        Op::Get { .. } => Verdict::Keep(value_or_nil(old)),
        Op::Exists { .. } => Verdict::Keep(Answer::Int(i64::from(old.is_some()))),
        Op::StrLen { .. } => Verdict::Keep(length(old.map_or(0, |v| v.len()))),
        Op::Set {
            value,
            condition,
            get_old,
            ..
        } => set(value, condition, get_old, old),
        Op::Del { .. } if old.is_none() => Verdict::Keep(Answer::Int(0)),
        Op::Del { .. } => Verdict::Remove(Answer::Int(1)),
        Op::GetDel { .. } if old.is_none() => Verdict::Keep(Answer::Nil),
        Op::GetDel { .. } => Verdict::Remove(value_or_nil(old)),
        Op::IncrBy { by, .. } => increment(by, old),
        Op::Append { value, .. } => append(value, old, value_bytes_max),
    }
}

fn set<'a>(
    value: &'a [u8],
    condition: Condition,
    get_old: bool,
    old: Option<Value<'_>>,
) -> Verdict<'a> {
    let holds = match condition {
        Condition::Always => true,
        Condition::IfAbsent => old.is_none(),
        Condition::IfPresent => old.is_some(),
    };
    let answer = match (get_old, holds) {
        (true, _) => value_or_nil(old),
        (false, true) => Answer::Ok,
        (false, false) => Answer::Nil,
    };
    if holds {
        Verdict::Put(Cow::Borrowed(value), answer)
    } else {
        Verdict::Keep(answer)
    }
}

fn increment<'a>(by: i64, old: Option<Value<'_>>) -> Verdict<'a> {
    let number = match old {
        None => Some(0),
        Some(Value::Inline(bytes)) => integer(bytes),
        Some(Value::Large(..)) => None,
    };
    let Some(number) = number else {
        let text = "ERR value is not an integer or out of range";
        return Verdict::Keep(Answer::error(ErrorCode::NotAnInteger, text));
    };
    match number.checked_add(by) {
        None => {
            let text = "ERR increment or decrement would overflow";
            Verdict::Keep(Answer::error(ErrorCode::Overflow, text))
        }
        Some(sum) => Verdict::Put(Cow::Owned(sum.to_string().into_bytes()), Answer::Int(sum)),
    }
}

fn append<'a>(value: &'a [u8], old: Option<Value<'_>>, value_bytes_max: usize) -> Verdict<'a> {
    let Some(old) = old else {
        return Verdict::Put(Cow::Borrowed(value), length(value.len()));
    };
    let len = old.len().saturating_add(value.len());
    if len > value_bytes_max {
        return Verdict::Keep(value_too_large(len, value_bytes_max));
    }
    if value.is_empty() {
        return Verdict::Keep(length(len));
    }
    let mut whole = Vec::with_capacity(len);
    old.copy_to(&mut whole);
    whole.extend_from_slice(value);
    Verdict::Put(Cow::Owned(whole), length(len))
}

fn value_or_nil(old: Option<Value<'_>>) -> Answer {
    old.map_or(Answer::Nil, |v| Answer::Value(v.to_bytes()))
}

fn length(bytes: usize) -> Answer {
    Answer::Int(i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// The number that these bytes are the one way to write, as Redis reads it: no spaces, no `+`, no
/// leading zeroes, no `-0`.
pub(crate) fn integer(bytes: &[u8]) -> Option<i64> {
    let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
    let plain = match digits {
        [b'0'] => bytes.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.len() < 19 && rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !plain {
        return None;
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// For the bytes of a value that must outlive the request.
pub(crate) fn owned(value: Cow<'_, [u8]>) -> Bytes {
    match value {
        Cow::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
        Cow::Owned(bytes) => Bytes::from(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_redis_reads_them() {
        for (text, number) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("99999999999999999999", None),
            ("", None),
            ("-", None),
            ("-0", None),
            ("01", None),
            ("+1", None),
            (" 1", None),
            ("1 ", None),
            ("1.0", None),
            ("1e3", None),
        ] {
            assert_eq!(integer(text.as_bytes()), number, "{text:?}");
        }
    }
}
