//! Appends with conditions, and waits for the log to grow: what clients ask for, and the invariant that binds the answers.
//!
//! I13: an append whose condition failed is never in the log, and failed for something durable; one that is in the log had nothing of its
//! stream between its condition's tail and itself.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes};

use super::clients::Begun;
use super::judge::Judge;
use super::world::World;
use crate::*;

/// Runs of these seeds and higher ones have conditions and waits. Those below are what they were before there were any.
pub(super) const CONDITIONAL_SEEDS: u64 = 1 << 32;

/// The content of a position, with its bytes.
type Contents = BTreeMap<Position, SlotAnswer<Bytes>>;

fn bears(slot: &SlotAnswer<Bytes>, tag: Option<u64>) -> bool {
    match slot {
        SlotAnswer::Data { head, .. } => {
            tag.is_none_or(|tag| head.links.iter().any(|link| link.tag == tag))
        }
        _ => false,
    }
}

/// The number of the append whose record this is.
fn op_of(mut bytes: &[u8]) -> Option<u64> {
    if bytes.len() < 16 {
        return None;
    }
    bytes.advance(8);
    Some(bytes.get_u64_le())
}

impl Judge {
    pub(super) fn seen_op(&mut self, bytes: &[u8]) {
        let Some(op) = op_of(bytes) else {
            return;
        };
        self.found.insert(op);
        if self.failed.contains(&op) {
            self.violated(format!("I13: append {op} failed, and is in the log"));
        }
    }
}

impl World {
    pub(super) fn draw_condition(&mut self) -> Option<AppendCondition> {
        if !self.knobs.conditions || self.rng.chance(400) {
            return None;
        }
        let tag = match self.rng.below(5) {
            0 => None,
            tag => Some(1 + tag % 2),
        };
        let end = match tag {
            None => self.judge.acked_end,
            Some(tag) => self.judge.tag_ends.get(&tag).copied().unwrap_or(0),
        };
        let tail = match self.rng.below(8) {
            0 => end.saturating_sub(1),
            1 => end + 1,
            2 => self.judge.acked_end,
            3 => end / 2,
            _ => end,
        };
        Some(AppendCondition { tag, tail })
    }

    pub(super) fn draw_wait(&mut self) -> Option<ReadOp> {
        if !self.knobs.conditions || !self.rng.chance(200) {
            return None;
        }
        let position = self.judge.acked_end + self.rng.below(2);
        let tag = self.rng.pick(&[None, None, Some(1)]);
        Some(ReadOp::Wait { position, tag })
    }

    pub(super) fn note_tags(&mut self, begun: &Begun, appended: Appended) {
        let end = appended.position + u64::from(appended.count);
        for tag in &begun.tags {
            let known = self.judge.tag_ends.entry(*tag).or_default();
            *known = (*known).max(end);
        }
    }

    /// An append failed: for something durable, and it is in the log nowhere.
    pub(super) fn judge_failed(&mut self, op: u64, begun: &Begun, tail: Position) {
        self.count("failed conditions");
        let Some(condition) = begun.condition else {
            return self
                .judge
                .violated(format!("I13: append {op} had no condition, and failed"));
        };
        let view = &self.record().view;
        let breaks = |unit: &super::units::SimUnit| {
            let share = unit.durable.share(view.log);
            share.is_some_and(|share| {
                let end = match condition.tag {
                    None => share.claimed,
                    Some(tag) => share
                        .tags
                        .get(&tag)
                        .and_then(|all| all.last())
                        .map_or(0, |last| last + 1),
                };
                end.max(share.trim) > condition.tail
            })
        };
        let started = condition.tag.is_none() && view.start > condition.tail;
        let durable = started || view.trim > condition.tail || self.units.iter().any(breaks);
        if tail <= condition.tail || !durable {
            let what = format!("I13: {condition:?} failed at {tail} for nothing that is durable");
            self.judge.violated(what);
        }
        self.judge.failed.insert(op);
        if self.judge.found.contains(&op) {
            self.judge
                .violated(format!("I13: append {op} is in the log, and failed"));
        }
    }

    /// The records of a log at rest keep their conditions.
    pub(super) fn judge_conditions(&mut self, contents: &Contents) {
        for (position, slot) in contents {
            let SlotAnswer::Data { head, data } = slot else {
                continue;
            };
            let condition = op_of(data).and_then(|op| self.judge.conditions.get(&op));
            let Some(condition) = condition.filter(|_| head.index == 0).copied() else {
                continue;
            };
            let from = condition.tail.min(*position);
            let mut between = contents.range(from..*position);
            if let Some((at, _)) = between.find(|(_, slot)| bears(slot, condition.tag)) {
                let what = format!("I13: {position} has {condition:?}, and {at} breaks it");
                return self.judge.violated(what);
            }
        }
    }

    /// The end that a waiting reader is told of is decided.
    pub(super) fn judge_grown(&mut self, node: usize, end: Position) {
        if self.newest().0 != Some(node) {
            return;
        }
        for position in end.saturating_sub(4)..end {
            if self.word(position).is_some() && self.at_rest(position).is_none() {
                let what = format!("I5: a reader waits no more, and {position} is undecided");
                return self.judge.violated(what);
            }
        }
    }
}
