//! Whether one order of the operations on a key explains what clients saw: the search of Wing and Gong,
//! with Lowe's memory of (operations done, state), bounded.
//!
//! An operation may be put next if no other that is not yet done had ended before it began. One that
//! never returned may be put anywhere after its beginning, or nowhere. Two things keep the search short:
//! an operation that changes nothing and saw what is there is put at once, and those that never returned
//! are tried last.

use std::collections::HashSet;

use staves_wire::cache::Answer;

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

const BASE: u64 = 0x0000_0100_0000_01B3;

/// A value, as far as it need be told from others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Content {
    len: u64,
    hash: u64,
    number: Option<i64>,
}

impl Content {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Content {
        let step = |h: u64, b: &u8| h.wrapping_mul(BASE).wrapping_add(u64::from(*b) + 1);
        Content {
            len: bytes.len() as u64,
            hash: bytes.iter().fold(0, step),
            number: std::str::from_utf8(bytes).ok().and_then(|t| t.parse().ok()),
        }
    }

    /// Of a number's digits.
    pub fn number(n: i64) -> Content {
        Content::of(n.to_string().as_bytes())
    }

    /// Of these bytes followed by those of a text.
    fn then(self, more: Content) -> Content {
        let (mut shift, mut square, mut n) = (1u64, BASE, more.len);
        while n > 0 {
            if n & 1 == 1 {
                shift = shift.wrapping_mul(square);
            }
            square = square.wrapping_mul(square);
            n >>= 1;
        }
        Content {
            len: self.len + more.len,
            hash: self.hash.wrapping_mul(shift).wrapping_add(more.hash),
            number: None,
        }
    }

    /// Whether such a value lies in chunks.
    pub fn is_large(&self) -> bool {
        self.len > INLINE_BYTES_MAX as u64
    }
}

/// What a client was answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs)] // the answers' own names
pub enum Seen {
    Nil,
    Ok,
    Int(i64),
    Value(Content),
}

impl Seen {
    /// An answer; `None` for an error.
    pub fn of(answer: &Answer) -> Option<Seen> {
        match answer {
            Answer::Nil => Some(Seen::Nil),
            Answer::Ok => Some(Seen::Ok),
            Answer::Int(n) => Some(Seen::Int(*n)),
            Answer::Value(bytes) => Some(Seen::Value(Content::of(bytes))),
            Answer::Error(..) => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Get,
    Set(Content),
    SetIfAbsent(Content),
    Del,
    Incr(i64),
    Append(Content),
    GetDel,
}

/// An operation as the search sees it.
#[derive(Clone, Debug)]
pub struct Call {
    step: Step,
    seen: Option<Seen>,
    called: u64,
    returned: u64,
}

type State = Option<Content>;

impl Call {
    /// An operation of the history.
    pub fn of(o: &KvOperation) -> Call {
        Call::new(o.act, o.called, o.returned, o.seen)
    }

    fn new(act: Act, called: u64, returned: Option<u64>, seen: Option<Seen>) -> Call {
        let content = |t: Text| Content::of(&t.bytes());
        let step = match act {
            Act::Get => Step::Get,
            Act::Set(t) => Step::Set(content(t)),
            Act::SetIfAbsent(t) => Step::SetIfAbsent(content(t)),
            Act::Del => Step::Del,
            Act::Incr(by) => Step::Incr(by),
            Act::Append(t) => Step::Append(content(t)),
            Act::GetDel => Step::GetDel,
        };
        let returned = returned.unwrap_or(u64::MAX);
        Call {
            step,
            seen: seen.filter(|_| returned != u64::MAX),
            called,
            returned,
        }
    }

    fn apply(&self, old: State) -> (State, Seen) {
        let value_or_nil = old.map_or(Seen::Nil, Seen::Value);
        match self.step {
            Step::Get => (old, value_or_nil),
            Step::Set(c) => (Some(c), Seen::Ok),
            Step::SetIfAbsent(_) if old.is_some() => (old, Seen::Nil),
            Step::SetIfAbsent(c) => (Some(c), Seen::Ok),
            Step::Del => (None, Seen::Int(i64::from(old.is_some()))),
            Step::Incr(by) => {
                let sum = old.map_or(0, |c| c.number.unwrap_or(i64::MIN / 2)) + by;
                (Some(Content::number(sum)), Seen::Int(sum))
            }
            Step::Append(c) => {
                let whole = old.map_or(c, |o| o.then(c));
                (Some(whole), Seen::Int(whole.len as i64))
            }
            Step::GetDel => (None, value_or_nil),
        }
    }

    fn pending(&self) -> bool {
        self.returned == u64::MAX
    }

    fn explains(&self, seen: Seen) -> bool {
        self.seen.is_none_or(|s| s == seen)
    }
}

/// What the search found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// There is an order.
    Fine,
    /// There is none; as far as it came.
    Bad(String),
    /// It would have taken too long.
    Undecided,
}

struct Search<'a> {
    calls: &'a [Call],
    known: HashSet<(Vec<u64>, State)>,
    left: usize,
    furthest: (usize, State, usize),
}

/// Looks for an order of a key's calls.
pub fn check(calls: &[Call], most: usize) -> Verdict {
    let mut calls = calls.to_vec();
    // A read that never returned tells nothing.
    calls.retain(|c| !(c.pending() && matches!(c.step, Step::Get)));
    calls.sort_by_key(|c| c.called);
    let mut search = Search {
        calls: &calls,
        known: HashSet::new(),
        left: most,
        furthest: (0, None, 0),
    };
    let mut done = vec![0u64; calls.len().div_ceil(64)];
    match search.go(&mut done, None, 0) {
        Some(true) => Verdict::Fine,
        Some(false) => {
            let (n, state, stuck) = search.furthest;
            Verdict::Bad(format!(
                "no order explains all {} operations; after {n} it holds {state:?}, and {:?} has no place",
                calls.len(),
                calls.get(stuck)
            ))
        }
        None => Verdict::Undecided,
    }
}

impl Search<'_> {
    // Whether the rest can be put in order after `done`; `None` if the bound was met.
    fn go(&mut self, done: &mut Vec<u64>, state: State, count: usize) -> Option<bool> {
        let is_done = |done: &[u64], i: usize| done[i / 64] >> (i % 64) & 1 == 1;
        let rest = || (0..self.calls.len()).filter(|i| !is_done(done, *i));
        let Some(horizon) = rest()
            .map(|i| self.calls[i].returned)
            .filter(|r| *r != u64::MAX)
            .min()
        else {
            return Some(true);
        };
        if count >= self.furthest.0 {
            let stuck = rest()
                .find(|i| self.calls[*i].returned == horizon)
                .unwrap_or(0);
            self.furthest = (count, state, stuck);
        }
        if !self.known.insert((done.clone(), state)) {
            return Some(false);
        }
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let mut next: Vec<(bool, usize, State)> = Vec::new();
        for i in rest().filter(|i| self.calls[*i].called <= horizon) {
            let call = &self.calls[i];
            let (after, seen) = call.apply(state);
            if !call.explains(seen) || (call.pending() && after == state) {
                continue;
            }
            if after == state {
                // Nothing that comes later could make a better place for it.
                next = vec![(false, i, after)];
                break;
            }
            next.push((call.pending(), i, after));
        }
        next.sort_by_key(|(pending, i, _)| (*pending, *i));
        for (_, i, after) in next {
            done[i / 64] |= 1 << (i % 64);
            let found = self.go(done, after, count + 1);
            done[i / 64] &= !(1 << (i % 64));
            if found != Some(false) {
                return found;
            }
        }
        Some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(id: u64) -> Text {
        Text { id, len: 20 }
    }

    fn value(id: u64) -> Seen {
        Seen::Value(Content::of(&text(id).bytes()))
    }

    fn call(act: Act, called: u64, returned: u64, seen: Seen) -> Call {
        Call::new(act, called, Some(returned), Some(seen))
    }

    fn open(act: Act, called: u64) -> Call {
        Call::new(act, called, None, None)
    }

    #[test]
    fn contents_add_up() {
        let (a, b) = (text(1).bytes(), text(2).bytes());
        let both = [&a[..], &b[..]].concat();
        assert_eq!(Content::of(&a).then(Content::of(&b)), Content::of(&both));
        assert_ne!(Content::of(&b).then(Content::of(&a)), Content::of(&both));
    }

    #[test]
    fn good_histories_pass() {
        use Act::*;
        let good = [
            // Two at once, in either order.
            vec![
                call(Incr(1), 1, 5, Seen::Int(2)),
                call(Incr(1), 2, 4, Seen::Int(1)),
            ],
            // One that never returned may have taken effect, late or never.
            vec![
                open(Incr(1), 1),
                call(Incr(1), 5, 6, Seen::Int(1)),
                call(Incr(1), 7, 8, Seen::Int(3)),
            ],
            vec![
                open(Set(text(1)), 1),
                call(Get, 2, 3, Seen::Nil),
                call(Get, 4, 5, value(1)),
            ],
            vec![
                call(SetIfAbsent(text(1)), 1, 9, Seen::Nil),
                call(Set(text(2)), 2, 8, Seen::Ok),
                call(GetDel, 10, 11, value(2)),
                call(Del, 12, 13, Seen::Int(0)),
            ],
            vec![
                call(Append(text(1)), 1, 2, Seen::Int(20)),
                call(Append(text(2)), 3, 4, Seen::Int(40)),
            ],
        ];
        for h in good {
            assert_eq!(check(&h, 10_000), Verdict::Fine, "{h:?}");
        }
    }

    #[test]
    fn bad_histories_are_rejected() {
        use Act::*;
        let bad = [
            // A number twice, one skipped, one lost.
            vec![
                call(Incr(1), 1, 2, Seen::Int(1)),
                call(Incr(1), 3, 4, Seen::Int(1)),
            ],
            vec![
                call(Incr(1), 1, 2, Seen::Int(1)),
                call(Incr(1), 3, 4, Seen::Int(3)),
            ],
            vec![
                call(Incr(1), 1, 2, Seen::Int(1)),
                call(Get, 3, 4, Seen::Nil),
            ],
            // Two that both found it absent.
            vec![
                call(SetIfAbsent(text(1)), 1, 5, Seen::Ok),
                call(SetIfAbsent(text(2)), 2, 6, Seen::Ok),
            ],
            // Taken twice.
            vec![
                call(Set(text(1)), 1, 2, Seen::Ok),
                call(GetDel, 3, 6, value(1)),
                call(GetDel, 4, 5, value(1)),
            ],
            // A retry that was done twice: appended, taken, appended again.
            vec![
                call(Append(text(1)), 1, 2, Seen::Int(20)),
                call(GetDel, 3, 4, value(1)),
                call(Get, 5, 6, value(1)),
            ],
            // What was open took effect, and then had not.
            vec![
                open(Set(text(1)), 1),
                call(Get, 2, 3, value(1)),
                call(Get, 4, 5, Seen::Nil),
            ],
            // Read before it was written.
            vec![
                call(Get, 1, 2, value(1)),
                call(Set(text(1)), 3, 4, Seen::Ok),
            ],
        ];
        for h in bad {
            assert!(matches!(check(&h, 10_000), Verdict::Bad(_)), "{h:?}");
        }
    }

    #[test]
    fn a_search_that_takes_too_long_is_given_up() {
        let mut h: Vec<Call> = (0..20).map(|i| open(Act::Append(text(i)), 1)).collect();
        h.push(call(Act::Get, 2, 3, value(99)));
        assert_eq!(check(&h, 1000), Verdict::Undecided);
    }
}
