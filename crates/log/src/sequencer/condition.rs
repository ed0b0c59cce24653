//! The conditions of appends: an append that has one is bound only while it holds.
//!
//! A condition is judged by what is durable, and an append waits while an undecided position could break it. So a condition that fails stays
//! failed, in this term and in all later ones: nothing below a position changes once it is decided, and a trim never goes back. A retry
//! gets the same answer, and a late duplicate is not bound.

use super::ActiveTerm;
use super::assign::SeqRequest;
use crate::message::{AppendCondition, SequencerAnswer};
use crate::mutant::{LogMutant, planted};
use crate::types::{Binding, Position};

/// The state of a condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConditionState {
    Holds,
    /// An undecided position may break it.
    Undecided,
    /// It fails for ever. The tail of its stream, or of the log.
    Failed(Position),
}

impl ActiveTerm {
    /// The answer to an append whose condition does not hold now.
    pub(super) fn refused(&self, seq: &SeqRequest) -> Option<SequencerAnswer> {
        let id = seq.id;
        match self.condition(&seq.condition?) {
            ConditionState::Holds => None,
            ConditionState::Undecided => Some(SequencerAnswer::Busy { id: Some(id) }),
            ConditionState::Failed(tail) => Some(SequencerAnswer::ConditionFailed { id, tail }),
        }
    }

    fn condition(&self, condition: &AppendCondition) -> ConditionState {
        let (durable, bound) = match condition.tag {
            None => (self.decided_end, self.next),
            Some(tag) => (self.stream_tail(tag), self.stream_bound(tag)),
        };
        if durable > condition.tail {
            return ConditionState::Failed(durable);
        }
        if bound <= condition.tail || planted(LogMutant::ConditionSkipsOpen) {
            return ConditionState::Holds;
        }
        if planted(LogMutant::ConditionByBound) {
            return ConditionState::Failed(bound);
        }
        match self.has_open(condition) {
            true => ConditionState::Undecided,
            false => ConditionState::Holds,
        }
    }

    /// The position past the last durable record of a tag. What is trimmed may have had some: it counts as if it had.
    fn stream_tail(&self, tag: u64) -> Position {
        let tail = self.tails.get(&tag).copied().unwrap_or(0);
        match planted(LogMutant::ConditionIgnoresTrim) {
            true => tail,
            false => tail.max(self.trim),
        }
    }

    /// The position past the last one that was bound with a tag.
    fn stream_bound(&self, tag: u64) -> Position {
        let last = self.tags.get(&tag).and_then(|positions| positions.last());
        last.map_or(0, |last| last + 1)
    }

    /// True if an open binding would break a condition.
    fn has_open(&self, condition: &AppendCondition) -> bool {
        let bears = |binding: &Binding| match condition.tag {
            None => true,
            Some(tag) => binding.links.iter().any(|link| link.tag == tag),
        };
        let mut open = self.open.values().map(|open| &open.binding);
        open.any(|binding| binding.end() > condition.tail && bears(binding))
    }

    /// A binding is decided.
    pub(super) fn note_decided(&mut self, binding: &Binding, data: bool) {
        let end = binding.end();
        self.decided_end = self.decided_end.max(end);
        for link in binding.links.iter().filter(|_| data) {
            let tail = self.tails.entry(link.tag).or_default();
            *tail = (*tail).max(end);
        }
    }

    /// The term begins with what the units were sealed with: all of it is durable, and nothing below its start is undecided.
    pub(super) fn note_sealed(&mut self, start: Position) {
        self.decided_end = start;
        if planted(LogMutant::TailsNotRebuilt) {
            return;
        }
        let last = |positions: &Vec<Position>| positions.last().map_or(0, |last| last + 1);
        let tails = self.tags.iter().map(|(tag, all)| (*tag, last(all)));
        self.tails = tails.collect();
    }
}
