//! Counts of one run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::histogram::Histogram;

/// Kinds of errors that are told apart; further ones count together.
const KINDS_MAX: usize = 20;

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestKind {
    Read,
    Write,
    Delete,
}

/// Requests of one kind that were answered without an error.
#[derive(Clone, Default, Debug)]
pub struct Side {
    /// Keys read or written; a request has as many as its batch.
    pub operations: u64,
    /// One entry a request.
    pub latency: Histogram,
}

/// Everything that one run counts. Each thread has its own.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    pub reads: Side,
    pub writes: Side,
    /// Keys that were read and had no value.
    pub misses: u64,
    /// By kind: requests, and the first text.
    pub errors: BTreeMap<String, (u64, String)>,
    /// Requests that were due and never sent, because as many as allowed were unanswered.
    pub unsent: u64,
    /// The time at which the last of the measured requests was answered.
    pub last: Option<Instant>,
}

impl Tally {
    pub fn answered(
        &mut self,
        kind: RequestKind,
        operations: u64,
        misses: u64,
        took: Duration,
        at: Instant,
    ) {
        let side = match kind {
            RequestKind::Read => &mut self.reads,
            RequestKind::Write | RequestKind::Delete => &mut self.writes,
        };
        side.operations += operations;
        side.latency
            .add(took.as_nanos().try_into().unwrap_or(u64::MAX));
        self.misses += misses;
        self.last = self.last.max(Some(at));
    }

    /// A request that was refused, or whose answer never came. The first word says what kind of error
    /// it is, as it does in Redis's protocol.
    pub fn failed(&mut self, text: &str) {
        let kind = text.split([' ', ':']).next().unwrap_or_default();
        let known = self.errors.len() < KINDS_MAX || self.errors.contains_key(kind);
        let kind = if known { kind } else { "other" };
        let first = || (0, text.to_owned());
        self.errors.entry(kind.to_owned()).or_insert_with(first).0 += 1;
    }

    pub fn merge(&mut self, other: Tally) {
        for (mine, theirs) in [
            (&mut self.reads, other.reads),
            (&mut self.writes, other.writes),
        ] {
            mine.operations += theirs.operations;
            mine.latency.merge(&theirs.latency);
        }
        self.misses += other.misses;
        self.unsent += other.unsent;
        self.last = self.last.max(other.last);
        for (kind, (count, text)) in other.errors {
            self.errors.entry(kind).or_insert((0, text)).0 += count;
        }
    }

    pub fn operations(&self) -> u64 {
        self.reads.operations + self.writes.operations
    }

    pub fn requests(&self) -> u64 {
        self.reads.latency.count() + self.writes.latency.count()
    }

    pub fn error_count(&self) -> u64 {
        self.errors.values().map(|(count, _)| count).sum()
    }

    /// Reads and writes together.
    pub fn latency(&self) -> Histogram {
        let mut all = self.reads.latency.clone();
        all.merge(&self.writes.latency);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up_and_kinds_of_errors_are_bounded() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let (mut a, mut b) = <(Tally, Tally)>::default();
        a.answered(RequestKind::Read, 50, 2, Duration::from_micros(10), later);
        a.failed("OOM no room for key 1");
        b.answered(RequestKind::Write, 1, 0, Duration::from_micros(30), now);
        b.failed("OOM no room for key 2");
        b.unsent = 3;
        a.merge(b);
        assert_eq!((a.operations(), a.requests(), a.error_count()), (51, 2, 2));
        assert_eq!((a.misses, a.unsent, a.last), (2, 3, Some(later)));
        assert_eq!(a.errors["OOM"], (2, "OOM no room for key 1".to_owned()));
        assert_eq!((a.latency().count(), a.latency().max()), (2, 30_000));
        (0..1000).for_each(|i| a.failed(&format!("E{i}: new")));
        assert!(a.errors.len() <= KINDS_MAX + 1, "{}", a.errors.len());
        assert_eq!(a.error_count(), 1002);
    }
}
