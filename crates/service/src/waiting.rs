//! Answers that wait for the low watermark, and operations that wait to begin.
//!
//! Operations with one key hash keep their order, so that a client that sends a write and a read after it,
//! without waiting, reads what it wrote. Operations with different key hashes pass each other.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashTable;
use staves_model::Time;
use staves_wire::service::Answer;

use crate::{KeyHash, Limits, OpHeader, Service};

/// A read whose value has more bytes than this is parked while it must wait.
pub(crate) const LARGE_READ_BYTES: usize = 4 << 10;

/// A read whose value has no more bytes than this waits for no memory.
pub(crate) const FREE_READ_BYTES: usize = 64 << 10;

/// The newest write under each key hash that is not stable yet. Empty without parity.
#[derive(Default)]
pub(crate) struct Unstable {
    newest: HashTable<(KeyHash, u64)>,
    order: VecDeque<(u64, KeyHash)>,
    /// Up to here any key may have been written: by whom, a process that began over what another held does not know. 0 if
    /// that is stable.
    all_until: u64,
}

impl Unstable {
    /// Takes every key for one that the update of this seq may have written.
    pub(crate) fn all_until(&mut self, seq: u64) {
        self.all_until = seq;
    }

    /// The seq that a read of this key hash must wait for; 0 if none.
    #[inline]
    pub(crate) fn seq_of(&self, key_hash: KeyHash) -> u64 {
        if self.newest.is_empty() {
            return self.all_until;
        }
        self.newest
            .find(key_hash.spread(), |e| e.0 == key_hash)
            .map_or(self.all_until, |e| e.1)
    }

    /// Adds a write.
    pub(crate) fn insert(&mut self, key_hash: KeyHash, seq: u64) {
        match self.newest.find_mut(key_hash.spread(), |e| e.0 == key_hash) {
            Some(entry) => entry.1 = seq,
            None => {
                self.newest
                    .insert_unique(key_hash.spread(), (key_hash, seq), |e| e.0.spread());
            }
        }
        self.order.push_back((seq, key_hash));
    }

    /// Removes what is stable.
    pub(crate) fn purge(&mut self, stable: u64) {
        if self.all_until <= stable {
            self.all_until = 0;
        }
        while let Some((seq, key_hash)) = self.order.front().copied().filter(|(s, _)| *s <= stable)
        {
            self.order.pop_front();
            let newest = |e: &(KeyHash, u64)| *e == (key_hash, seq);
            if let Ok(entry) = self.newest.find_entry(key_hash.spread(), newest) {
                entry.remove();
            }
        }
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) {
        self.newest.clear();
        self.order.clear();
        self.all_until = 0;
    }
}

struct Waiter {
    token: u64,
    deadline: Time,
    answer: Answer,
    /// A read, which needs a lease when it is answered, not only when it came (I7).
    read: bool,
}

/// Answers that wait until what they depend on is stable.
#[derive(Default)]
pub(crate) struct Waiters {
    /// By the seq that each waits for, then in order of arrival.
    by_seq: BTreeMap<(u64, u64), Waiter>,
    arrivals: u64,
    bytes: usize,
    /// A lower bound of all deadlines.
    earliest: Option<Time>,
}

impl Waiters {
    /// Bytes of their values.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of answers.
    pub(crate) fn len(&self) -> usize {
        self.by_seq.len()
    }

    /// Adds an answer.
    pub(crate) fn push(&mut self, seq: u64, header: &OpHeader, answer: Answer, read: bool) {
        self.arrivals += 1;
        self.bytes += answer.value_bytes();
        let deadline = header.deadline;
        self.earliest = Some(self.earliest.map_or(deadline, |e| e.min(deadline)));
        let waiter = Waiter {
            token: header.token,
            deadline,
            answer,
            read,
        };
        self.by_seq.insert((seq, self.arrivals), waiter);
    }

    /// Releases the answers that wait for nothing above `stable`, in order, as far as they may leave: those of reads (true), and of writes. The
    /// others wait on, for a lease, for copies, or for their deadline.
    pub(crate) fn pop(
        &mut self,
        stable: u64,
        may_leave: impl Fn(bool) -> bool,
        mut give: impl FnMut(u64, Answer),
    ) {
        let mut kept = Vec::new();
        while let Some(first) = self.by_seq.first_entry() {
            if first.key().0 > stable {
                break;
            }
            let (place, waiter) = first.remove_entry();
            if !may_leave(waiter.read) {
                kept.push((place, waiter));
                continue;
            }
            self.bytes -= waiter.answer.value_bytes();
            give(waiter.token, waiter.answer);
        }
        self.by_seq.extend(kept);
    }

    /// Removes the answers whose deadline has passed; their tokens, and whether they were reads.
    pub(crate) fn expire(&mut self, now: Time) -> Vec<(u64, bool)> {
        if self.earliest.is_none_or(|e| now < e) {
            return Vec::new();
        }
        let mut expired = Vec::new();
        let bytes = &mut self.bytes;
        self.by_seq.retain(|_, w| {
            if w.deadline <= now {
                expired.push((w.token, w.read));
                *bytes -= w.answer.value_bytes();
            }
            w.deadline > now
        });
        self.earliest = self.by_seq.values().map(|w| w.deadline).min();
        expired
    }

    /// Removes all answers; their tokens.
    pub(crate) fn drain(&mut self) -> Vec<u64> {
        let all = std::mem::take(self);
        self.arrivals = all.arrivals;
        all.by_seq.into_values().map(|w| w.token).collect()
    }
}

/// An operation that cannot begin yet.
pub(crate) struct Parked<S: Service> {
    pub(crate) header: OpHeader,
    pub(crate) key_hash: Option<KeyHash>,
    pub(crate) op: S::OwnedOp,
}

impl<S: Service> Parked<S> {
    fn bytes(&self) -> usize {
        S::op_bytes(S::as_op(&self.op))
    }
}

/// Operations that cannot begin yet, in order.
pub(crate) struct Queue<S: Service> {
    parked: VecDeque<Parked<S>>,
    key_hashes: HashTable<KeyHash>,
    bytes: usize,
    /// A write found no room, in the log or in memory: later ones must not overtake it.
    pub(crate) starved: bool,
}

impl<S: Service> Default for Queue<S> {
    fn default() -> Queue<S> {
        Queue {
            parked: VecDeque::new(),
            key_hashes: HashTable::new(),
            bytes: 0,
            starved: false,
        }
    }
}

impl<S: Service> Queue<S> {
    /// The number of operations.
    pub(crate) fn len(&self) -> usize {
        self.parked.len()
    }

    /// True if no more of them may be parked. Writes, which may wait for copies for long, leave half of the room to reads.
    pub(crate) fn is_full(&self, limits: &Limits, is_write: bool) -> bool {
        let part = if is_write { 2 } else { 1 };
        self.len() >= limits.parked_max.div_ceil(part)
            || self.bytes >= limits.parked_bytes_max.div_ceil(part)
    }

    /// True if an operation with this key hash is parked.
    #[inline]
    pub(crate) fn holds(&self, key_hash: KeyHash) -> bool {
        !self.parked.is_empty()
            && self
                .key_hashes
                .find(key_hash.spread(), |t| *t == key_hash)
                .is_some()
    }

    /// Parks an operation behind the others.
    pub(crate) fn push(&mut self, parked: Parked<S>) {
        if let Some(key_hash) = parked.key_hash
            && !self.holds(key_hash)
        {
            self.key_hashes
                .insert_unique(key_hash.spread(), key_hash, |t| t.spread());
        }
        self.bytes += parked.bytes();
        self.parked.push_back(parked);
    }

    /// Takes everything out, in order.
    pub(crate) fn take(&mut self) -> VecDeque<Parked<S>> {
        std::mem::take(self).parked
    }

    /// Removes the operations for which `goes` holds; their tokens.
    pub(crate) fn remove(&mut self, goes: impl Fn(&OpHeader) -> bool) -> Vec<u64> {
        if !self.parked.iter().any(|parked| goes(&parked.header)) {
            return Vec::new();
        }
        let starved = self.starved;
        let mut gone = Vec::new();
        for parked in self.take() {
            match goes(&parked.header) {
                true => gone.push(parked.header.token),
                false => self.push(parked),
            }
        }
        self.starved = starved && self.len() > 0;
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::MemberSlot;

    /// I7: a read that waits for the low watermark waits for a lease, too.
    #[test]
    fn a_held_read_waits_for_a_lease_too() {
        let mut waiters = Waiters::default();
        for (seq, token, read) in [(1, 10, false), (1, 11, true), (2, 12, false), (9, 13, true)] {
            let header = OpHeader {
                token,
                slot: MemberSlot(0),
                request: None,
                deadline: Time(100),
            };
            waiters.push(seq, &header, Answer::Int(1), read);
        }
        let given = |waiters: &mut Waiters, stable, may_read| {
            let mut tokens = Vec::new();
            waiters.pop(
                stable,
                |read| may_read || !read,
                |token, _| tokens.push(token),
            );
            tokens
        };
        assert_eq!(given(&mut waiters, 2, false), [10, 12]);
        assert_eq!(given(&mut waiters, 2, true), [11]);
        waiters.pop(9, |_| false, |token, _| panic!("{token} has left"));
        assert_eq!(waiters.expire(Time(100)), [(13, true)]);
        assert_eq!(waiters.len(), 0);
    }
}
