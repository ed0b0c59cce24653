//! Who waits at a bucket: for parity to have a write, or for the bucket to be able to begin.

use std::collections::{BTreeMap, VecDeque};

use staves_model::{MemberSlot, Time};
use staves_wire::cache::Answer;
use staves_wire::memory::Action;

use crate::bucket::Ask;

struct Waiter {
    token: u64,
    deadline: Time,
    answer: Answer,
    /// A read, which needs a lease when it is answered, not only when it came (I7).
    read: bool,
}

/// Answers that are ready, held until all parity buckets have what they tell of.
#[derive(Default)]
pub(crate) struct Waiters {
    /// By the seq that each waits for, then in order of arrival.
    by_seq: BTreeMap<(u64, u64), Waiter>,
    arrivals: u64,
    bytes: usize,
    /// Nobody's deadline is before this.
    earliest: Option<Time>,
}

fn held(answer: &Answer) -> usize {
    match answer {
        Answer::Value(bytes) => bytes.len(),
        _ => 0,
    }
}

impl Waiters {
    /// Bytes of answers held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.by_seq.len()
    }

    pub(crate) fn push(&mut self, seq: u64, ask: &Ask, answer: Answer, read: bool) {
        self.arrivals += 1;
        self.bytes += held(&answer);
        let deadline = ask.deadline;
        self.earliest = Some(self.earliest.map_or(deadline, |e| e.min(deadline)));
        let waiter = Waiter {
            token: ask.token,
            deadline,
            answer,
            read,
        };
        self.by_seq.insert((seq, self.arrivals), waiter);
    }

    /// The answers that wait for nothing above `stable`, in order; reads only if `may_read`. The others
    /// wait on, for a lease or for their deadline.
    pub(crate) fn pop(&mut self, stable: u64, may_read: bool, mut give: impl FnMut(u64, Answer)) {
        let mut without_lease = Vec::new();
        while let Some(first) = self.by_seq.first_entry() {
            if first.key().0 > stable {
                break;
            }
            let (place, waiter) = first.remove_entry();
            if waiter.read && !may_read {
                without_lease.push((place, waiter));
                continue;
            }
            self.bytes -= held(&waiter.answer);
            give(waiter.token, waiter.answer);
        }
        self.by_seq.extend(without_lease);
    }

    /// The tokens whose deadline has passed.
    pub(crate) fn expire(&mut self, now: Time) -> Vec<u64> {
        if self.earliest.is_none_or(|e| now < e) {
            return Vec::new();
        }
        let mut expired = Vec::new();
        let bytes = &mut self.bytes;
        self.by_seq.retain(|_, w| {
            if w.deadline <= now {
                expired.push(w.token);
                *bytes -= held(&w.answer);
            }
            w.deadline > now
        });
        self.earliest = self.by_seq.values().map(|w| w.deadline).min();
        expired
    }

    /// All tokens: nobody waits any more.
    pub(crate) fn drain(&mut self) -> Vec<u64> {
        let all = std::mem::take(self);
        self.arrivals = all.arrivals;
        all.by_seq.into_values().map(|w| w.token).collect()
    }
}

/// A request that could not begin.
pub(crate) struct Parked {
    pub(crate) ask: Ask,
    /// The data bucket that it is for: no other may take it up.
    pub(crate) slot: MemberSlot,
    pub(crate) action: Action,
}

/// Requests that could not begin, in order.
#[derive(Default)]
pub(crate) struct Queue {
    parked: VecDeque<Parked>,
    bytes: usize,
    /// A write found no room, in the log or in memory: later ones must not overtake it.
    pub(crate) starved: bool,
}

fn weight(action: &Action) -> usize {
    match action {
        Action::Write { bytes, .. } => bytes.len(),
        _ => 0,
    }
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.parked.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn push(&mut self, parked: Parked) {
        self.bytes += weight(&parked.action);
        self.parked.push_back(parked);
    }

    /// Everything that waits, in order; the queue is empty then.
    pub(crate) fn take(&mut self) -> VecDeque<Parked> {
        std::mem::take(self).parked
    }

    /// Lets go of who waits in vain: the tokens of all for whom `goes` is true.
    pub(crate) fn let_go(&mut self, mut goes: impl FnMut(&Parked) -> bool) -> Vec<u64> {
        let mut gone = Vec::new();
        let bytes = &mut self.bytes;
        self.parked.retain(|parked| {
            let goes = goes(parked);
            if goes {
                gone.push(parked.ask.token);
                *bytes -= weight(&parked.action);
            }
            !goes
        });
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I7: a read that waited for parity is held back while there is no lease.
    #[test]
    fn a_held_read_waits_for_a_lease_too() {
        let mut waiters = Waiters::default();
        for (seq, token, read) in [(1, 10, false), (1, 11, true), (2, 12, false), (9, 13, true)] {
            let ask = Ask {
                token,
                request: None,
                deadline: Time(100),
            };
            waiters.push(seq, &ask, Answer::Int(1), read);
        }
        let given = |waiters: &mut Waiters, stable, may_read| {
            let mut tokens = Vec::new();
            waiters.pop(stable, may_read, |token, _| tokens.push(token));
            tokens
        };
        assert_eq!(given(&mut waiters, 2, false), [10, 12]);
        assert_eq!(given(&mut waiters, 2, true), [11]);
        assert_eq!(waiters.expire(Time(100)), [13]);
        assert_eq!(waiters.len(), 0);
    }
}
