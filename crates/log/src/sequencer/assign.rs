//! Positions for appends: binding them, and learning that they are decided (rules 8, 11, 12).

use staves_model::Time;

use super::{ActiveTerm, IdPlace, OpenBinding, Phase, Sequencer, SequencerEffects};
use crate::message::{AppendCondition, Decision, SequencerAnswer, UnitOp};
use crate::mutant::{LogMutant, planted};
use crate::share::keep_last;
use crate::types::{
    AppendId, AppendMode, BATCH_RECORDS_MAX, Binding, Low, PageEntry, Position, TAGS_MAX, TagLink,
    UnitId,
};

/// A request for a position.
#[derive(Clone, Debug)]
pub(super) struct SeqRequest {
    pub id: AppendId,
    pub count: u32,
    pub tags: Vec<u64>,
    pub unit: UnitId,
    pub low: Low,
    pub lost: Option<Position>,
    pub condition: Option<AppendCondition>,
}

impl SeqRequest {
    fn is_wellformed(&self, mode: AppendMode) -> bool {
        let most = match mode {
            AppendMode::Bind => BATCH_RECORDS_MAX,
            AppendMode::Predict | AppendMode::Corfu => 1,
        };
        let mut tags = self.tags.clone();
        tags.sort_unstable();
        tags.dedup();
        let tagged = tags.len() == self.tags.len() && tags.len() <= TAGS_MAX;
        (1..=most).contains(&self.count) && tagged && self.id.fits(self.low)
    }
}

impl ActiveTerm {
    /// The earlier positions of tags, which the new positions join.
    fn link(&mut self, tags: &[u64], position: Position, count: u32) -> Vec<TagLink> {
        let end = position + u64::from(count);
        let link = |tag: &u64| {
            let positions = self.tags.entry(*tag).or_default();
            let back = positions.clone();
            positions.extend(position..end);
            keep_last(positions);
            TagLink { tag: *tag, back }
        };
        tags.iter().map(link).collect()
    }
}

impl Sequencer {
    /// The answer to a request for a position.
    pub(super) fn seq(
        &mut self,
        now: Time,
        seq: SeqRequest,
        out: &mut SequencerEffects,
    ) -> SequencerAnswer {
        let id = seq.id;
        let mode = self.record.view.options.mode;
        let Phase::Active(active) = &mut self.phase else {
            return SequencerAnswer::Busy { id: Some(id) };
        };
        if !seq.is_wellformed(mode) {
            return SequencerAnswer::Abandoned { id };
        }
        let bounds = self.limits.session_bounds();
        if let Err(refusal) = active.admit(self.term, &id, seq.low, bounds) {
            return refusal;
        }
        if planted(LogMutant::ConditionBeforeId)
            && let Some(refused) = active.refused(&seq)
        {
            return refused;
        }
        match active.sessions.get(&id).copied() {
            Some(IdPlace::Durable(position, count)) => {
                return SequencerAnswer::Done {
                    id,
                    position,
                    count,
                };
            }
            Some(IdPlace::Bound(position, unit)) => {
                let lost = mode == AppendMode::Corfu && seq.lost == Some(position);
                let anew = planted(LogMutant::RetryBindsAnew) && unit != seq.unit;
                if !lost && !anew {
                    return self.bound_again(id, position, unit, out);
                }
            }
            None => {}
        }
        self.seq_loose(now, seq, mode, out)
    }

    /// A retry of an append that is bound: the binding is sent again, and the client learns the unit, to which its data now goes.
    fn bound_again(
        &self,
        id: AppendId,
        position: Position,
        unit: UnitId,
        out: &mut SequencerEffects,
    ) -> SequencerAnswer {
        let term = self.term_start();
        let open = match &self.phase {
            Phase::Active(active) => active.open.get(&position),
            _ => None,
        };
        let binding = open.map(|open| open.binding.clone());
        match (self.record.view.options.mode, binding) {
            (AppendMode::Corfu, Some(binding)) => SequencerAnswer::Token { term, binding },
            (AppendMode::Corfu, None) => SequencerAnswer::Busy { id: Some(id) },
            (_, binding) => {
                if let Some(binding) = binding {
                    self.send(unit, UnitOp::Bind { term, binding }, out);
                }
                SequencerAnswer::Bound { id, position, unit }
            }
        }
    }

    /// An append that is not bound.
    fn seq_loose(
        &mut self,
        now: Time,
        seq: SeqRequest,
        mode: AppendMode,
        out: &mut SequencerEffects,
    ) -> SequencerAnswer {
        let (id, term) = (seq.id, self.term);
        let foreign = !self.record.view.projection.last().contains(&seq.unit);
        if foreign && mode != AppendMode::Corfu && !planted(LogMutant::ForeignUnit) {
            return SequencerAnswer::NotOfTerm { id, term };
        }
        if let Phase::Active(active) = &self.phase
            && let Some(refused) = active.refused(&seq)
        {
            return refused;
        }
        if self.is_full(now) {
            return SequencerAnswer::Full { id };
        }
        if !self.has_tags_for(&seq) {
            return SequencerAnswer::TagsFull { id };
        }
        if !self.has_room() {
            return SequencerAnswer::Busy { id: Some(id) };
        }
        if mode == AppendMode::Predict && !planted(LogMutant::PerUnit) {
            return self.queue(now, seq, out);
        }
        match self.assign(now, seq, out) {
            Some((binding, _)) if mode == AppendMode::Corfu => SequencerAnswer::Token {
                term: self.term_start(),
                binding,
            },
            Some((binding, _)) if planted(LogMutant::BoundIsAck) => SequencerAnswer::Done {
                id,
                position: binding.position,
                count: binding.count,
            },
            Some((binding, unit)) => SequencerAnswer::Bound {
                id,
                position: binding.position,
                unit,
            },
            None => SequencerAnswer::Busy { id: Some(id) },
        }
    }

    /// True if one more binding keeps within all bounds.
    pub(super) fn has_room(&self) -> bool {
        let Phase::Active(active) = &self.phase else {
            return false;
        };
        active.open.len() < self.limits.window
            && active.map.pages_to(active.next) < self.limits.unwritten_pages_max
    }

    /// True if the tags of an append that are new keep within the bound.
    pub(super) fn has_tags_for(&self, seq: &SeqRequest) -> bool {
        let Phase::Active(active) = &self.phase else {
            return false;
        };
        let new = |tag: &&u64| !active.tags.contains_key(tag);
        let new = seq.tags.iter().filter(new).count();
        new == 0 || active.tags.len() + new <= self.limits.tags_max
    }

    /// Gives the next position to an append, and sends the binding. None if there is no unit.
    pub(super) fn assign(
        &mut self,
        now: Time,
        seq: SeqRequest,
        out: &mut SequencerEffects,
    ) -> Option<(Binding, UnitId)> {
        let mode = self.record.view.options.mode;
        let position = self.next_position(&seq)?;
        let unit = match mode {
            AppendMode::Bind => seq.unit,
            AppendMode::Predict | AppendMode::Corfu => {
                self.record.view.projection.owner(position)?
            }
        };
        let Phase::Active(active) = &mut self.phase else {
            return None;
        };
        let end = position.checked_add(u64::from(seq.count))?;
        active.next = active.next.max(end);
        let binding = Binding {
            position,
            count: seq.count,
            id: Some(seq.id),
            links: active.link(&seq.tags, position, seq.count),
        };
        active
            .sessions
            .insert(seq.id, IdPlace::Bound(position, unit));
        self.open(now, binding.clone(), unit, mode != AppendMode::Corfu, out);
        Some((binding, unit))
    }

    fn next_position(&self, seq: &SeqRequest) -> Option<Position> {
        let Phase::Active(active) = &self.phase else {
            return None;
        };
        if !planted(LogMutant::PerUnit) || self.record.view.options.mode != AppendMode::Predict {
            return Some(active.next);
        }
        // The sketch's "next free position of that unit", which breaks the order of appends.
        let view = &self.record.view;
        let mut position = view.start;
        while view.projection.owner(position)? != seq.unit || active.was_given(position) {
            position += 1;
        }
        Some(position)
    }

    /// A position is given out and undecided until its unit decides it.
    pub(super) fn open(
        &mut self,
        now: Time,
        binding: Binding,
        unit: UnitId,
        send: bool,
        out: &mut SequencerEffects,
    ) {
        let term = self.term_start();
        if send {
            let binding = binding.clone();
            self.send(unit, UnitOp::Bind { term, binding }, out);
        }
        if let Phase::Active(active) = &mut self.phase {
            let position = binding.position;
            let open = OpenBinding {
                binding,
                unit,
                sent: now,
            };
            active.open.insert(position, open);
        }
    }

    /// A unit has decided the positions of a binding.
    pub(super) fn settle(&mut self, now: Time, decision: Decision) {
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        if let Some(open) = active.open.remove(&decision.position) {
            active.note_decided(&open.binding, decision.data);
            let count = u64::from(open.binding.count);
            let entry = PageEntry::Unit(decision.unit);
            active.map.set(decision.position, count, entry);
            if decision.data {
                let retention = &self.record.retention;
                active.note_kept(now, decision.count, decision.bytes, retention);
            }
        }
        let Some(id) = decision.id else {
            return;
        };
        // What is not known is abandoned, or nobody's.
        let bound = active.sessions.get(&id).copied();
        let same = matches!(bound, Some(IdPlace::Bound(at, _)) if at == decision.position);
        if decision.data {
            if same {
                let place = IdPlace::Durable(decision.position, decision.count);
                active.sessions.insert(id, place);
            }
            return;
        }
        // Only the junk of *this* position makes the append loose: it may be bound anew already (rule 11).
        let any =
            planted(LogMutant::PositionNotCompared) && matches!(bound, Some(IdPlace::Bound(..)));
        if same || any {
            active.sessions.remove(&id);
        }
    }
}

impl ActiveTerm {
    /// True if a position was given out in this term (only a planted bug asks).
    fn was_given(&self, position: Position) -> bool {
        let at = |place: &IdPlace| match place {
            IdPlace::Bound(at, _) | IdPlace::Durable(at, _) => *at == position,
        };
        self.open.contains_key(&position) || self.sessions.ids().values().any(at)
    }
}
