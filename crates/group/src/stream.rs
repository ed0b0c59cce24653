//! One data bucket's stream of deltas, as a member holds it: prefix, applied, stable, log, requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use staves_model::mutant::{Mutant, planted};
use staves_store::Journal;
use staves_wire::group::{Delta, RequestId};

use crate::requests::RequestTable;

/// No stream gets as far: a delta each nanosecond would take a century. What a peer says lies beyond is
/// not believed, so that no sum of seqs ever overflows.
pub const SEQ_MAX: u64 = 1 << 62;
/// No cut lies beyond, so that whoever begins at one has seqs left.
pub const CUT_MAX: u64 = SEQ_MAX / 2;

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

    /// Returns whether something waits beyond a gap.
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
    /// Every delta up to here is in the pages (or skipped, for pages not here yet).
    pub applied: u64,
    /// Every delta up to here is on stable storage, too; in memory the same as `prefix`.
    pub synced: u64,
    /// The low watermark of answers, which the pool's durability chooses: every listed member has received, or synced,
    /// up to here.
    pub stable: u64,
    /// The low watermark of the logs: every listed member has synced up to here.
    pub purgeable: u64,
    /// The deltas that may still be asked for.
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
            synced: cut,
            stable: cut,
            purgeable: cut,
            log: Log::default(),
            requests,
        }
    }

    /// True if nothing of it is left to do here: all that was received is answered for, applied and purged.
    pub fn is_settled(&self) -> bool {
        let marks = [self.applied, self.synced, self.stable];
        marks.iter().all(|mark| *mark == self.prefix) && self.log.bytes() == 0
    }

    /// Takes in the delta that the data bucket itself just made, and that somebody may ask for.
    pub fn append(&mut self, delta: Delta) {
        self.append_unlogged(delta.label.seq, delta.request, &delta.answer);
        self.log.push(delta);
    }

    /// The same with one that nobody will ask for.
    pub fn append_unlogged(&mut self, seq: u64, request: Option<RequestId>, answer: &Bytes) {
        let next = self.prefix + 1;
        assert_eq!(seq, next, "a data bucket makes its deltas in order");
        self.prefix = next;
        self.applied = next;
        self.requests.record_request(request, seq, answer);
    }

    /// Takes in a delta from the wire; false if it was here already, or the log has no room (I10). The
    /// next in order goes before what waits beyond a gap, and one is always let in.
    pub fn receive(&mut self, delta: Delta, room: usize) -> bool {
        let seq = delta.label.seq;
        if seq <= self.prefix {
            return false;
        }
        if seq == self.prefix + 1 {
            // It may be here already, beyond the gap that it closes.
            if let Some(same) = self.log.beyond.remove(&seq) {
                self.log.bytes -= same.weight();
            }
            if !self.make_room(delta.weight(), room) {
                return false;
            }
            self.accept(delta);
            while let Some(next) = self.log.beyond.remove(&(self.prefix + 1)) {
                self.log.bytes -= next.weight();
                self.accept(next);
            }
            return true;
        }
        // Out of order: it will be sent again if it is dropped here.
        if self.log.bytes + delta.weight() > room || self.log.beyond.contains_key(&seq) {
            return false;
        }
        self.log.bytes += delta.weight();
        self.log.beyond.insert(seq, delta);
        true
    }

    // Drops what is furthest beyond the gap: it will be sent again.
    fn make_room(&mut self, weight: usize, room: usize) -> bool {
        while self.log.bytes > 0 && self.log.bytes.saturating_add(weight) > room {
            let Some((_, furthest)) = self.log.beyond.pop_last() else {
                return false;
            };
            self.log.bytes -= furthest.weight();
        }
        true
    }

    /// Returns whether what is here and these deltas lead to a cut without a gap, and not beyond it.
    pub fn leads_to(&self, cut: u64, deltas: &[Delta]) -> bool {
        let brought: BTreeSet<u64> = deltas.iter().map(|d| d.label.seq).collect();
        let mut at = self.prefix;
        while at < cut && (brought.contains(&(at + 1)) || self.log.beyond.contains_key(&(at + 1))) {
            at += 1;
        }
        at == cut
    }

    fn accept(&mut self, delta: Delta) {
        self.prefix = delta.label.seq;
        self.requests.record(&delta);
        self.log.push(delta);
    }

    /// Purges what every listed member has synced (GROUP rule 5).
    pub fn purge(&mut self, upto: u64) {
        self.log.purge(upto);
    }

    /// Raises the synced mark to what the journal reports, which is never beyond a gap.
    pub fn sync(&mut self, stream: usize, journal: &mut Journal) {
        let held = match planted(Mutant::SyncedBeyondGap) {
            true => self.log.highest().unwrap_or(0).max(self.prefix),
            false => self.prefix,
        };
        self.synced = self.synced.max(journal.sync(stream, held));
    }

    /// Drops what lies beyond a cut (GROUP rule 9).
    pub fn drop_beyond(&mut self, cut: u64) {
        self.log.cut(cut);
        self.synced = self.synced.min(cut);
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
    fn what_is_synced_ends_before_a_gap_and_the_planted_bug_is_seen() {
        let synced = || {
            let mut s = Stream::default();
            for seq in [1, 3] {
                s.receive(delta(seq), 1 << 20);
            }
            s.sync(0, &mut Journal::Memory);
            s.synced
        };
        assert_eq!(synced(), 1);
        staves_model::mutant::plant(Some(Mutant::SyncedBeyondGap));
        let beyond = synced();
        staves_model::mutant::plant(None);
        assert_eq!(beyond, 3);
    }

    #[test]
    fn beyond_the_gap_is_bounded() {
        let mut s = Stream::default();
        let w = delta(2).weight();
        assert!(s.receive(delta(2), w));
        assert!(!s.receive(delta(3), w));
        assert!(s.receive(delta(1), w), "what is in order goes first");
        assert_eq!((s.prefix, s.log.bytes(), s.log.has_gap()), (1, w, false));
    }

    /// I10: a data bucket that sends more than it may keep does not fill the memory of its copies.
    #[test]
    fn what_comes_in_order_is_bounded_too() {
        let mut s = Stream::default();
        let w = delta(1).weight();
        assert!(s.receive(delta(1), w / 2), "one is always let in");
        assert!(!s.receive(delta(2), 2 * w - 1) && s.receive(delta(2), 2 * w));
        s.purge(2);
        assert!(s.receive(delta(3), w));
    }

    #[test]
    fn a_cut_is_led_to_by_what_is_here_and_what_is_brought() {
        let mut s = Stream::default();
        for seq in [1, 2, 4] {
            s.receive(delta(seq), 1 << 20);
        }
        assert!(s.leads_to(4, &[delta(3)]) && s.leads_to(2, &[]));
        assert!(!s.leads_to(4, &[]) && !s.leads_to(1, &[]) && !s.leads_to(CUT_MAX, &[delta(3)]));
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
