//! The wait queues of predicted units: an append gets a position when its unit's turn comes (rule 7, row L3).
//!
//! The client guessed the unit of its token. When the next position is a unit's that is waited for, its oldest append gets it. When the oldest
//! append of all has waited for the global time-out, positions are skipped up to its unit's: they become junk, announced to their units.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use staves_model::Time;

use super::assign::SeqRequest;
use super::{Phase, Sequencer, SequencerEffects};
use crate::message::SequencerAnswer;
use crate::mutant::{LogMutant, planted};
use crate::types::{AppendId, AppendMode, Binding, UnitId};

/// The appends that wait for their unit's turn.
#[derive(Clone, Default, Debug)]
pub(super) struct WaitQueues {
    queues: BTreeMap<UnitId, VecDeque<(Time, SeqRequest)>>,
    ids: BTreeSet<AppendId>,
}

impl WaitQueues {
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    fn push(&mut self, now: Time, seq: SeqRequest) {
        self.ids.insert(seq.id);
        let queue = self.queues.entry(seq.unit).or_default();
        queue.push_back((now, seq));
    }

    fn pop(&mut self, unit: UnitId) -> Option<SeqRequest> {
        let queue = self.queues.get_mut(&unit)?;
        let (_, seq) = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(&unit);
        }
        self.ids.remove(&seq.id);
        Some(seq)
    }

    /// The unit whose oldest append waits longest, and since when.
    fn oldest(&self) -> Option<(Time, UnitId)> {
        let heads = self.queues.iter();
        let heads = heads.filter_map(|(unit, queue)| Some((queue.front()?.0, *unit)));
        heads.min()
    }
}

impl Sequencer {
    pub(super) fn queue(
        &mut self,
        now: Time,
        seq: SeqRequest,
        out: &mut SequencerEffects,
    ) -> SequencerAnswer {
        let (id, max) = (seq.id, self.limits.queue_max);
        let Phase::Active(active) = &mut self.phase else {
            return SequencerAnswer::Busy { id: Some(id) };
        };
        if !active.queues.ids.contains(&id) {
            if active.queues.len() >= max {
                return SequencerAnswer::Busy { id: Some(id) };
            }
            active.queues.push(now, seq);
            self.drain_queues(now, out);
        }
        SequencerAnswer::Queued { id }
    }

    /// Gives positions to appends whose unit's turn it is.
    pub(super) fn drain_queues(&mut self, now: Time, out: &mut SequencerEffects) {
        if self.record.view.options.mode != AppendMode::Predict {
            return;
        }
        while self.has_room() {
            let Phase::Active(active) = &mut self.phase else {
                return;
            };
            let turn = self.record.view.projection.owner(active.next);
            let Some(seq) = turn.and_then(|unit| active.queues.pop(unit)) else {
                return;
            };
            // Of a session that is over by now nothing is bound any more.
            if active.sessions.is_over(seq.id.session) {
                continue;
            }
            // Its condition may have failed while it waited: its unit asks again, and is answered.
            if active.refused(&seq).is_some() && !planted(LogMutant::ConditionNotAtTurn) {
                continue;
            }
            // The same of its tags.
            if !self.has_tags_for(&seq) {
                continue;
            }
            self.assign(now, seq, out);
        }
    }

    /// Skips positions for appends that waited too long.
    pub(super) fn skip_for_oldest(&mut self, now: Time, out: &mut SequencerEffects) {
        let units = self.record.view.projection.last().len();
        loop {
            let Phase::Active(active) = &self.phase else {
                return;
            };
            let Some((since, unit)) = active.queues.oldest() else {
                return;
            };
            let waiting = active.queues.len();
            let room = active.open.len() + units < self.limits.window;
            if now.since(since) < self.limits.queue_wait || !room || !self.has_room() {
                return;
            }
            for _ in 0..units {
                if !self.skip_unless(now, unit, out) {
                    break;
                }
            }
            self.drain_queues(now, out);
            // Nobody was served: the rest waits for the next tick.
            if self.queued() == waiting {
                return;
            }
        }
    }

    fn queued(&self) -> usize {
        match &self.phase {
            Phase::Active(active) => active.queues.len(),
            _ => 0,
        }
    }

    /// Gives the next position to nobody, unless it is of this unit.
    fn skip_unless(&mut self, now: Time, unit: UnitId, out: &mut SequencerEffects) -> bool {
        let Phase::Active(active) = &mut self.phase else {
            return false;
        };
        let position = active.next;
        let owner = self.record.view.projection.owner(position);
        let Some(owner) = owner.filter(|owner| *owner != unit) else {
            return false;
        };
        active.next += 1;
        let binding = Binding {
            position,
            count: 1,
            id: None,
            links: Vec::new(),
        };
        self.open(now, binding, owner, true, out);
        true
    }
}
