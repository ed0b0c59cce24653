//! The search for an order.
//!
//! An operation may be put next if no other that is not yet done had ended before it began. One that
//! never returned may be put anywhere after its beginning, or nowhere. Three things keep the search
//! short: an operation that changes nothing and saw so is put at once; those that never
//! returned are tried last; and of several of those that do the same, the one that began first, for it
//! fits wherever a later one does.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;

use crate::content::Content;

/// An operation on an object, by what it does when no other runs beside it.
pub trait Operation: Clone + PartialEq {
    /// The object's contents, which are the default at first.
    type State: Clone + Eq + Hash + Default + fmt::Debug;
    /// The client's view of the answer.
    type Seen: Clone + PartialEq;

    /// The contents after it, and its answer.
    fn apply(&self, before: &Self::State) -> (Self::State, Self::Seen);
    /// True if it never changes anything.
    fn is_read(&self) -> bool;
    /// True if its answer does not say whether it changed anything: it puts what it puts, whatever is there.
    fn is_blind(&self) -> bool;
}

/// A client's request for a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the commands' own names
pub enum Step {
    Get,
    Set(Content),
    SetIfAbsent(Content),
    Del,
    Incr(i64),
    Append(Content),
    GetDel,
}

/// A client's answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs)] // the answers' own names
pub enum Seen {
    Nil,
    Ok,
    Int(i64),
    Value(Content),
}

impl Operation for Step {
    type State = Option<Content>;
    type Seen = Seen;

    fn apply(&self, before: &Option<Content>) -> (Option<Content>, Seen) {
        let old = *before;
        let value_or_nil = old.map_or(Seen::Nil, Seen::Value);
        match *self {
            Step::Get => (old, value_or_nil),
            Step::Set(c) => (Some(c), Seen::Ok),
            Step::SetIfAbsent(_) if old.is_some() => (old, Seen::Nil),
            Step::SetIfAbsent(c) => (Some(c), Seen::Ok),
            Step::Del => (None, Seen::Int(i64::from(old.is_some()))),
            Step::Incr(by) => {
                // Far from every number that is counted to: a text cannot be counted on.
                let old = old.map_or(0, |c| c.number().unwrap_or(i64::MIN / 2));
                let sum = old.wrapping_add(by);
                (Some(Content::of_number(sum)), Seen::Int(sum))
            }
            Step::Append(c) => {
                let whole = old.map_or(c, |o| o.then(c));
                (Some(whole), Seen::Int(whole.len() as i64))
            }
            Step::GetDel => (None, value_or_nil),
        }
    }

    fn is_read(&self) -> bool {
        *self == Step::Get
    }

    fn is_blind(&self) -> bool {
        matches!(self, Step::Set(_))
    }
}

/// An operation of a history. Times are of any clock that all clients share.
#[derive(Clone, Copy, Debug)]
pub struct Call<O: Operation = Step> {
    step: O,
    seen: Option<O::Seen>,
    called: u64,
    returned: u64,
}

impl<O: Operation> Call<O> {
    /// An operation. Without `returned` its outcome is unknown: it may have taken effect at any time
    /// after `called`, or never will. Without `seen` its effect is certain but not its answer.
    pub fn new(step: O, called: u64, returned: Option<u64>, seen: Option<O::Seen>) -> Call<O> {
        let returned = returned.unwrap_or(u64::MAX);
        Call {
            step,
            seen: seen.filter(|_| returned != u64::MAX),
            called,
            returned,
        }
    }

    fn is_open(&self) -> bool {
        self.returned == u64::MAX
    }

    fn explains(&self, seen: &O::Seen) -> bool {
        self.seen.as_ref().is_none_or(|s| s == seen)
    }
}

/// The progress of a search that found no order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// The number of operations that have an order.
    pub placed: usize,
    /// The contents after them.
    pub held: String,
    /// The one that has no place: its index among the calls that were given.
    pub call: usize,
    /// The number of operations.
    pub of: usize,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stuck {
            placed,
            held,
            call,
            of,
        } = self;
        write!(
            f,
            "no order explains all {of} operations; after {placed} it holds {held}, and number {call} has no place"
        )
    }
}

/// The result of the search.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// There is an order.
    Fine,
    /// There is none; as far as it came.
    Bad(Stuck),
    /// It would have taken too long.
    Undecided,
}

/// Looks for an order of the calls on one object, in at most so many steps.
pub fn check<O: Operation>(calls: &[Call<O>], steps_max: usize) -> Verdict {
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_by_key(|i| calls[*i].called);
    // A read that never returned tells nothing.
    let tells = |i: &usize| !(calls[*i].is_open() && calls[*i].step.is_read());
    let (open, ended): (Vec<usize>, Vec<usize>) = order
        .into_iter()
        .filter(tells)
        .partition(|i| calls[*i].is_open());
    let mut search = Search {
        ended: Row::new(calls, ended),
        open: Row::new(calls, open),
        known: HashSet::new(),
    };
    search.run(steps_max, calls.len())
}

/// Calls by their beginning, and which of them are done.
struct Row<O: Operation> {
    calls: Vec<(usize, Call<O>)>,
    done: Vec<u64>,
    /// All before this one are done.
    low: usize,
}

impl<O: Operation> Row<O> {
    fn new(calls: &[Call<O>], indices: Vec<usize>) -> Row<O> {
        let calls: Vec<_> = indices.into_iter().map(|i| (i, calls[i].clone())).collect();
        Row {
            done: vec![0; calls.len().div_ceil(64)],
            low: 0,
            calls,
        }
    }

    fn is_done(&self, at: usize) -> bool {
        self.done[at / 64] >> (at % 64) & 1 == 1
    }

    fn put(&mut self, at: usize) {
        self.done[at / 64] |= 1 << (at % 64);
        while self.low < self.calls.len() && self.is_done(self.low) {
            self.low += 1;
        }
    }

    fn take(&mut self, at: usize) {
        self.done[at / 64] &= !(1 << (at % 64));
        self.low = self.low.min(at);
    }

    /// Those to do that began no later than `until`, which may shrink on the way.
    fn to_do(&self) -> impl Iterator<Item = (usize, &Call<O>)> {
        let rest = (self.low..self.calls.len()).filter(|at| !self.is_done(*at));
        rest.map(|at| (at, &self.calls[at].1))
    }

    /// The set of done operations, without the long beginning of which all are done.
    fn key(&self) -> (usize, Vec<u64>) {
        let mut words = self.done[(self.low / 64).min(self.done.len())..].to_vec();
        while words.last() == Some(&0) {
            words.pop();
        }
        (self.low, words)
    }
}

#[derive(Clone)]
struct Choice<S> {
    open: bool,
    at: usize,
    after: S,
}

/// A point of the search: what may come next there, and what was put to get there.
struct Point<S> {
    choices: std::vec::IntoIter<Choice<S>>,
    put: Option<(bool, usize)>,
}

type KnownState<S> = ((usize, Vec<u64>), (usize, Vec<u64>), S);

struct Search<O: Operation> {
    ended: Row<O>,
    open: Row<O>,
    known: HashSet<KnownState<O::State>>,
}

impl<O: Operation> Search<O> {
    fn run(&mut self, steps_max: usize, of: usize) -> Verdict {
        let mut furthest = Stuck {
            placed: 0,
            held: String::new(),
            call: 0,
            of,
        };
        let mut points: Vec<Point<O::State>> = Vec::new();
        let (mut next, mut state) = (Some(None), O::State::default());
        let mut steps = 0;
        loop {
            // Forward, if something was put.
            if let Some(put) = next.take() {
                if self.ended.low == self.ended.calls.len() {
                    return Verdict::Fine;
                }
                if points.len() >= furthest.placed {
                    furthest = Stuck {
                        placed: points.len(),
                        held: format!("{state:?}"),
                        call: self.most_urgent(),
                        of,
                    };
                }
                let choices =
                    match self
                        .known
                        .insert((self.ended.key(), self.open.key(), state.clone()))
                    {
                        true => self.choices(&state),
                        false => Vec::new(),
                    };
                points.push(Point {
                    choices: choices.into_iter(),
                    put,
                });
                steps += 1;
                if steps > steps_max {
                    return Verdict::Undecided;
                }
            }
            let Some(point) = points.last_mut() else {
                return Verdict::Bad(furthest);
            };
            if let Some(choice) = point.choices.next() {
                self.row(choice.open).put(choice.at);
                (next, state) = (Some(Some((choice.open, choice.at))), choice.after);
            } else if let Some((open, at)) = points.pop().and_then(|p| p.put) {
                self.row(open).take(at);
            }
        }
    }

    fn row(&mut self, open: bool) -> &mut Row<O> {
        match open {
            true => &mut self.open,
            false => &mut self.ended,
        }
    }

    /// The end of the first pending operation.
    fn horizon(&self) -> (u64, usize) {
        let mut first = (u64::MAX, 0);
        for (at, call) in self.ended.to_do() {
            if call.called > first.0 {
                break;
            }
            if call.returned < first.0 {
                first = (call.returned, at);
            }
        }
        first
    }

    fn most_urgent(&self) -> usize {
        self.ended.calls.get(self.horizon().1).map_or(0, |c| c.0)
    }

    /// The calls that may come next, in the order in which it is tried.
    fn choices(&self, state: &O::State) -> Vec<Choice<O::State>> {
        let (horizon, _) = self.horizon();
        let in_time = |(_, call): &(usize, &Call<O>)| call.called <= horizon;
        let mut choices = Vec::new();
        for (at, call) in self.ended.to_do().take_while(in_time) {
            let (after, seen) = call.step.apply(state);
            let changes = after != *state;
            let choice = Choice {
                open: false,
                at,
                after,
            };
            match call.explains(&seen) {
                // It changes nothing wherever it is answered so: no later place could be better.
                true if !changes && call.seen.is_some() && !call.step.is_blind() => {
                    return vec![choice];
                }
                true => choices.push(choice),
                false => {}
            }
        }
        let mut tried: Vec<&O> = Vec::new();
        for (at, call) in self.open.to_do().take_while(in_time) {
            let (after, _) = call.step.apply(state);
            if after != *state && !tried.contains(&&call.step) {
                tried.push(&call.step);
                choices.push(Choice {
                    open: true,
                    at,
                    after,
                });
            }
        }
        choices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(id: u64) -> Content {
        Content::of(format!("text number {id:08}").as_bytes())
    }

    fn value(id: u64) -> Seen {
        Seen::Value(text(id))
    }

    fn call(step: Step, called: u64, returned: u64, seen: Seen) -> Call {
        Call::new(step, called, Some(returned), Some(seen))
    }

    fn open(step: Step, called: u64) -> Call {
        Call::new(step, called, None, None)
    }

    #[test]
    fn good_histories_pass() {
        use Step::*;
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
            // The first to begin put what was there already only if it came first, which it did not.
            vec![
                call(Set(text(1)), 1, 2, Seen::Ok),
                call(Set(text(1)), 3, 9, Seen::Ok),
                call(Set(text(2)), 4, 8, Seen::Ok),
                call(Get, 10, 11, value(1)),
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
        use Step::*;
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
    fn what_has_no_place_is_named() {
        let h = [
            call(Step::Get, 5, 6, Seen::Nil),
            call(Step::Set(text(1)), 1, 2, Seen::Ok),
        ];
        let Verdict::Bad(stuck) = check(&h, 100) else {
            panic!("a lost write");
        };
        assert_eq!((stuck.call, stuck.placed), (0, 1));
        assert_eq!(stuck.held, format!("{:?}", Some(text(1))));
    }

    #[test]
    fn a_search_that_takes_too_long_is_given_up() {
        let mut h: Vec<Call> = (0..20).map(|i| open(Step::Append(text(i)), 1)).collect();
        h.push(call(Step::Get, 2, 3, value(99)));
        assert_eq!(check(&h, 1000), Verdict::Undecided);
    }

    #[test]
    fn a_long_history_with_open_counts_needs_no_deep_stack() {
        let mut h = Vec::new();
        let mut n = 0;
        for t in 0..20_000u64 {
            if t % 2000 == 7 {
                h.push(open(Step::Incr(1), t * 10));
                n += 1;
            }
            n += 1;
            h.push(call(Step::Incr(1), t * 10 + 1, t * 10 + 9, Seen::Int(n)));
        }
        assert_eq!(check(&h, 100_000), Verdict::Fine);
        h.push(call(Step::Incr(1), 300_000, 300_001, Seen::Int(n)));
        assert!(matches!(check(&h, 1_000_000), Verdict::Bad(_)));
    }
}
