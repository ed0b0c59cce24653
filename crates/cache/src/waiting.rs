//! Who waits at a bucket: for the copies to have a write, or for the bucket to be able to begin.
//!
//! Requests for one key keep their order, so that a client that sends a write and a read after it,
//! without waiting, reads what it wrote. Requests for different keys pass each other.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashTable;
use staves_model::Time;
use staves_wire::cache::{Answer, OwnedOp};
use staves_wire::group::RequestId;

use crate::index::Tag;

/// Who asks, and until when.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The caller's name for it, handed back with the answer.
    pub token: u64,
    /// The client's name for it; none for a read, or where nobody retries.
    pub request: Option<RequestId>,
    /// The client has sent it before.
    pub retry: bool,
    /// When it is given up.
    pub deadline: Time,
}

/// The newest write of each key that is not on all copies yet. Empty without copies.
#[derive(Default)]
pub(crate) struct Unstable {
    newest: HashTable<(Tag, u64)>,
    order: VecDeque<(u64, Tag)>,
}

impl Unstable {
    /// The seq that a read of this key must wait for; 0 if none. Two keys with one tag wait for each
    /// other, which harms nobody.
    #[inline]
    pub(crate) fn seq_of(&self, tag: Tag) -> u64 {
        if self.newest.is_empty() {
            return 0;
        }
        self.newest
            .find(tag.hash(), |e| e.0 == tag)
            .map_or(0, |e| e.1)
    }

    /// A write was made.
    pub(crate) fn insert(&mut self, tag: Tag, seq: u64) {
        match self.newest.find_mut(tag.hash(), |e| e.0 == tag) {
            Some(entry) => entry.1 = seq,
            None => {
                self.newest
                    .insert_unique(tag.hash(), (tag, seq), |e| e.0.hash());
            }
        }
        self.order.push_back((seq, tag));
    }

    /// All copies have everything up to here.
    pub(crate) fn purge(&mut self, stable: u64) {
        while let Some((seq, tag)) = self.order.front().copied().filter(|(s, _)| *s <= stable) {
            self.order.pop_front();
            let newest = |e: &(Tag, u64)| *e == (tag, seq);
            if let Ok(entry) = self.newest.find_entry(tag.hash(), newest) {
                entry.remove();
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.newest.clear();
        self.order.clear();
    }
}

struct Waiter {
    token: u64,
    deadline: Time,
    answer: Answer,
    /// A read, which needs a lease when it is answered, not only when it came (I7).
    read: bool,
}

/// Answers that are ready, held until all copies have what they tell of.
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
    if let Answer::Value(bytes) = answer {
        bytes.len()
    } else {
        0
    }
}

impl Waiters {
    /// Bytes of values held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.by_seq.len()
    }

    pub(crate) fn push(
        &mut self,
        seq: u64,
        token: u64,
        deadline: Time,
        answer: Answer,
        read: bool,
    ) {
        self.arrivals += 1;
        self.bytes += held(&answer);
        self.earliest = Some(self.earliest.map_or(deadline, |e| e.min(deadline)));
        self.by_seq.insert(
            (seq, self.arrivals),
            Waiter {
                token,
                deadline,
                answer,
                read,
            },
        );
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
    pub ask: Ask,
    pub tag: Tag,
    pub op: OwnedOp,
}

impl Parked {
    fn bytes(&self) -> usize {
        let op = self.op.as_op();
        op.key().len() + op.value().map_or(0, <[u8]>::len)
    }
}

/// Requests that could not begin, in order.
#[derive(Default)]
pub(crate) struct Queue {
    parked: VecDeque<Parked>,
    tags: HashTable<Tag>,
    bytes: usize,
    /// A write found no room, in the log or in memory: later ones must not overtake it.
    pub starved: bool,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.parked.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a request for this key waits.
    #[inline]
    pub(crate) fn holds(&self, tag: Tag) -> bool {
        !self.parked.is_empty() && self.tags.find(tag.hash(), |t| *t == tag).is_some()
    }

    pub(crate) fn push(&mut self, parked: Parked) {
        let tag = parked.tag;
        if !self.holds(tag) {
            self.tags.insert_unique(tag.hash(), tag, |t| t.hash());
        }
        self.bytes += parked.bytes();
        self.parked.push_back(parked);
    }

    /// Everything that waits, in order; the queue is empty then.
    pub(crate) fn take(&mut self) -> VecDeque<Parked> {
        std::mem::take(self).parked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I7: a read that waited for the copies is held back while there is no lease.
    #[test]
    fn a_held_read_waits_for_a_lease_too() {
        let mut waiters = Waiters::default();
        for (seq, token, read) in [(1, 10, false), (1, 11, true), (2, 12, false), (9, 13, true)] {
            waiters.push(seq, token, Time(100), Answer::Int(1), read);
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
