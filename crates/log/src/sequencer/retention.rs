//! Bounds on what a log keeps: older records are trimmed in the background, as the log's record says.
//!
//! The sequencer counts what becomes durable in its term, and remembers at some positions how much there was. At such a mark the decided prefix
//! stood: all that was counted later lies at it or above, so that a trim to it leaves at least what came since. What a term found counts as
//! nothing, and goes once enough has come after it. The home has the last word: it knows the cursors.

use std::collections::VecDeque;
use std::time::Duration;

use staves_model::Time;

use super::{ActiveTerm, Phase, Sequencer, SequencerEffects};
use crate::message::RecordRequest;
use crate::mutant::{LogMutant, planted};
use crate::retention::{LogRetention, WhenFull};
use crate::types::Position;

/// Most marks.
const MARKS_MAX: usize = 256;
/// The bounds are kept to within one part of so many.
const PARTS: u64 = 64;

/// The counts when the decided prefix stood at a position.
#[derive(Clone, Copy, Debug)]
struct KeptMark {
    position: Position,
    records: u64,
    bytes: u64,
    at: Time,
}

/// The records that became durable in this term.
#[derive(Clone, Default, Debug)]
pub(super) struct KeptRecords {
    records: u64,
    bytes: u64,
    marks: VecDeque<KeptMark>,
    asked: Option<Time>,
}

impl KeptRecords {
    /// True if enough has come since the last mark for another.
    fn is_due(&self, now: Time, retention: &LogRetention) -> bool {
        let Some(last) = self.marks.back() else {
            return true;
        };
        let passed = |now: u64, then: u64, most: Option<u64>| {
            most.is_some_and(|most| now - then >= (most / PARTS).max(1))
        };
        passed(self.records, last.records, retention.records)
            || passed(self.bytes, last.bytes, retention.bytes)
            || retention.seconds.is_some_and(|seconds| {
                now.since(last.at) >= Duration::from_secs(seconds) / PARTS as u32
            })
    }

    /// The highest mark below which nothing need be kept.
    fn surplus(&self, now: Time, retention: &LogRetention) -> Option<Position> {
        let beyond = |mark: &&KeptMark| {
            let over = |count: u64, then: u64, most: Option<u64>| {
                most.is_some_and(|most| count - then >= most)
            };
            over(self.records, mark.records, retention.records)
                || over(self.bytes, mark.bytes, retention.bytes)
                || retention
                    .seconds
                    .is_some_and(|seconds| now.since(mark.at) >= Duration::from_secs(seconds))
        };
        self.marks
            .iter()
            .rev()
            .find(beyond)
            .map(|mark| mark.position)
    }
}

impl ActiveTerm {
    /// Records became durable.
    pub(super) fn note_kept(
        &mut self,
        now: Time,
        count: u32,
        bytes: u64,
        retention: &LogRetention,
    ) {
        self.kept.records += u64::from(count);
        self.kept.bytes = self.kept.bytes.saturating_add(bytes);
        if !retention.keeps_all() {
            self.mark(now, retention);
        }
    }

    fn mark(&mut self, now: Time, retention: &LogRetention) {
        if !self.kept.is_due(now, retention) {
            return;
        }
        let position = match planted(LogMutant::RetentionCountsOpen) {
            true => self.next,
            false => self.prefix(),
        };
        let trim = self.trim;
        let kept = &mut self.kept;
        // A mark below the trim is of no use; of two at one position the older says more.
        while kept.marks.len() > 1 && kept.marks.front().is_some_and(|mark| mark.position < trim) {
            kept.marks.pop_front();
        }
        if kept
            .marks
            .back()
            .is_some_and(|last| last.position == position)
        {
            return;
        }
        kept.marks.push_back(KeptMark {
            position,
            records: kept.records,
            bytes: kept.bytes,
            at: now,
        });
        if kept.marks.len() > MARKS_MAX {
            let mut n = 0_u32;
            // Every second one: later trims are less exact, and leave more.
            kept.marks.retain(|_| {
                n += 1;
                n.is_multiple_of(2)
            });
        }
    }
}

impl Sequencer {
    /// Trims what need not be kept, and looks at the rules for it now and then.
    pub(super) fn keep_records(&mut self, now: Time, out: &mut SequencerEffects) {
        let every = self.limits.record_every;
        let retention = self.record.retention;
        if retention.keeps_all() {
            return;
        }
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        active.mark(now, &retention);
        let surplus = active.kept.surplus(now, &retention);
        let wanted = surplus.filter(|position| *position > active.trim);
        let asked = active.kept.asked.map(|asked| now.since(asked));
        let due = asked.is_none_or(|since| since >= every / 10);
        if let Some(position) = wanted.filter(|_| due) {
            active.kept.asked = Some(now);
            let (name, log) = (self.record.name.clone(), self.log());
            let term = self.term;
            out.home.push(RecordRequest::Retain {
                name,
                log,
                term,
                position,
                retention,
            });
        } else if now.since(self.viewed) >= every {
            self.view_record(now, out);
        }
    }

    /// True if the log has more than it keeps, a cursor has not passed the oldest of it, and appends are to wait for that.
    pub(super) fn is_full(&self, now: Time) -> bool {
        let retention = &self.record.retention;
        let Phase::Active(active) = &self.phase else {
            return false;
        };
        if retention.when_full != WhenFull::Refuse || retention.keeps_all() {
            return false;
        }
        let surplus = active.kept.surplus(now, retention);
        surplus.is_some_and(|position| {
            position > active.trim && self.record.may_trim_to(position) < position
        })
    }
}
