//! One data bucket's stream of deltas, as a member holds it: prefix, applied, stable, log, requests.

use std::collections::{BTreeMap, VecDeque};

use staves_wire::group::Delta;

use crate::requests::RequestTable;

/// The deltas that are still needed: a run without gaps up to the prefix, and what came out of order
/// beyond the gap (which counts for nothing until the gap closes, GROUP rule 2).
#[derive(Clone, Default)]
pub struct Log {
    run: VecDeque<Delta>,
    beyond: BTreeMap<u64, Delta>,
    bytes: usize,
}

impl Log {
    /// Bytes that it weighs, for its bound (I10).
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn push(&mut self, delta: Delta) {
        self.bytes += delta.weight();
        self.run.push_back(delta);
    }

    /// The first seq of the run, if there is one.
    pub fn first(&self) -> Option<u64> {
        self.run.front().map(|d| d.label.seq)
    }

    /// A delta of the run.
    pub fn get(&self, seq: u64) -> Option<&Delta> {
        let first = self.first()?;
        self.run.get(usize::try_from(seq.checked_sub(first)?).ok()?)
    }

    /// The run from `seq` on.
    pub fn from(&self, seq: u64) -> impl Iterator<Item = &Delta> {
        let skip = self.first().map_or(0, |f| seq.saturating_sub(f));
        self.run
            .iter()
            .skip(usize::try_from(skip).unwrap_or(usize::MAX))
    }

    /// All that is held, in order of seq.
    pub fn all(&self) -> impl Iterator<Item = &Delta> {
        self.run.iter().chain(self.beyond.values())
    }

    /// Whether something waits beyond a gap.
    pub fn has_gap(&self) -> bool {
        !self.beyond.is_empty()
    }

    /// The highest seq held, gap or not.
    pub fn highest(&self) -> Option<u64> {
        self.beyond
            .keys()
            .next_back()
            .copied()
            .or_else(|| self.run.back().map(|d| d.label.seq))
    }

    fn purge(&mut self, upto: u64) {
        while self.run.front().is_some_and(|d| d.label.seq <= upto) {
            if let Some(d) = self.run.pop_front() {
                self.bytes -= d.weight();
            }
        }
    }

    fn cut(&mut self, above: u64) {
        while self.run.back().is_some_and(|d| d.label.seq > above) {
            if let Some(d) = self.run.pop_back() {
                self.bytes -= d.weight();
            }
        }
        let dropped = self.beyond.split_off(&(above + 1));
        self.bytes -= dropped.values().map(Delta::weight).sum::<usize>();
    }
}

/// One stream.
#[derive(Clone, Default)]
pub struct Stream {
    /// Every delta up to here was received (made, at the data bucket).
    pub prefix: u64,
    /// Every delta up to here is in the pages (or let go, for pages not here yet).
    pub applied: u64,
    /// The low watermark: every listed parity bucket has received up to here.
    pub stable: u64,
    /// What may still be asked for.
    pub log: Log,
    /// The requests done up to `prefix`.
    pub requests: RequestTable,
}

impl Stream {
    /// A stream that begins at a cut, with nothing in its log.
    pub fn at_cut(cut: u64, requests: RequestTable) -> Stream {
        Stream {
            prefix: cut,
            applied: cut,
            stable: cut,
            log: Log::default(),
            requests,
        }
    }

    /// Takes in the delta that the data bucket itself just made. `keep`: somebody may ask for it.
    pub fn append(&mut self, delta: Delta, keep: bool) {
        assert_eq!(
            delta.label.seq,
            self.prefix + 1,
            "a data bucket makes its deltas in order"
        );
        self.prefix += 1;
        self.applied = self.prefix;
        self.requests.record(&delta);
        if keep {
            self.log.push(delta);
        }
    }

    /// Takes in a delta from the wire; false if it was here already, or there is no room beyond the gap.
    pub fn receive(&mut self, delta: Delta, room: usize) -> bool {
        let seq = delta.label.seq;
        if seq <= self.prefix {
            return false;
        }
        if seq == self.prefix + 1 {
            self.accept(delta);
            while let Some(next) = self.log.beyond.remove(&(self.prefix + 1)) {
                self.log.bytes -= next.weight();
                self.accept(next);
            }
            return true;
        }
        // Out of order: it will be sent again if it is let go here.
        if self.log.bytes + delta.weight() > room || self.log.beyond.contains_key(&seq) {
            return false;
        }
        self.log.bytes += delta.weight();
        self.log.beyond.insert(seq, delta);
        true
    }

    fn accept(&mut self, delta: Delta) {
        self.prefix = delta.label.seq;
        self.requests.record(&delta);
        self.log.push(delta);
    }

    /// Lets go of what every listed member has received (GROUP rule 5).
    pub fn purge(&mut self, upto: u64) {
        self.log.purge(upto);
    }

    /// Drops what lies beyond a cut (GROUP rule 9).
    pub fn drop_beyond(&mut self, cut: u64) {
        self.log.cut(cut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use staves_model::{Epoch, Label};

    fn delta(seq: u64) -> Delta {
        Delta {
            label: Label {
                epoch: Epoch(1),
                seq,
            },
            request: None,
            answer: Bytes::new(),
            runs: vec![],
            bytes: Bytes::new(),
        }
    }

    #[test]
    fn what_comes_out_of_order_counts_once_the_gap_closes() {
        let mut s = Stream::default();
        assert!(s.receive(delta(2), 1 << 20));
        assert!(s.receive(delta(4), 1 << 20));
        assert!(!s.receive(delta(4), 1 << 20), "twice is once");
        assert_eq!(s.prefix, 0);
        assert!(s.receive(delta(1), 1 << 20));
        assert_eq!(s.prefix, 2);
        assert!(s.log.has_gap());
        assert!(s.receive(delta(3), 1 << 20));
        assert_eq!((s.prefix, s.log.has_gap()), (4, false));
        s.purge(3);
        assert_eq!(
            (
                s.log.first(),
                s.log.get(4).is_some(),
                s.log.get(3).is_none()
            ),
            (Some(4), true, true)
        );
        s.purge(4);
        assert_eq!(s.log.bytes(), 0);
    }

    #[test]
    fn beyond_the_gap_is_bounded() {
        let mut s = Stream::default();
        let w = delta(2).weight();
        assert!(s.receive(delta(2), w));
        assert!(!s.receive(delta(3), w));
        assert!(s.receive(delta(1), w), "in order is never refused");
        assert_eq!(s.prefix, 2);
    }

    #[test]
    fn beyond_the_cut_is_dropped() {
        let mut s = Stream::default();
        for seq in [1, 2, 4] {
            s.receive(delta(seq), 1 << 20);
        }
        s.drop_beyond(2);
        assert_eq!((s.log.highest(), s.log.has_gap()), (Some(2), false));
        s.drop_beyond(0);
        assert_eq!(s.log.bytes(), 0);
    }
}
