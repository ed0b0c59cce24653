//! The sequencer's word on positions, the tail, and trims (rules 14, 18, 20).

use staves_model::Time;

use super::{ActiveTerm, Phase, Sequencer, SequencerEffects, TailCheck, TrimAsked};
use crate::message::{PositionWord, RecordRequest, SequencerAnswer, UnitOp};
use crate::mutant::{LogMutant, planted};
use crate::types::{AppendMode, PageEntry, Position, UnitId};
use crate::unit::ReplyTo;

impl Sequencer {
    pub(super) fn tell_where(&self, to: ReplyTo, position: Position, out: &mut SequencerEffects) {
        let Phase::Active(active) = &self.phase else {
            return;
        };
        let answer = SequencerAnswer::Word {
            term: self.term_start(),
            position,
            word: self.word(active, position),
        };
        self.reply(to, answer, out);
    }

    fn word(&self, active: &ActiveTerm, position: Position) -> PositionWord {
        if position < active.trim {
            return PositionWord::Trimmed;
        }
        if position >= active.next {
            return PositionWord::Tail;
        }
        let open = active.open.range(..=position).next_back();
        if let Some((_, open)) = open.filter(|(_, open)| position < open.binding.end()) {
            return PositionWord::Open {
                unit: open.unit,
                binding: open.binding.clone(),
            };
        }
        let view = &self.record.view;
        if view.options.mode != AppendMode::Bind {
            let owner = view.projection.owner(position);
            return owner.map_or(PositionWord::Tail, PositionWord::At);
        }
        match active.map.get(position) {
            Some(PageEntry::Unit(unit)) => PositionWord::At(unit),
            Some(PageEntry::Junk) => PositionWord::Junk,
            Some(PageEntry::Trimmed) => PositionWord::Trimmed,
            None if position < active.map.first() => PositionWord::Page,
            None => PositionWord::Tail,
        }
    }

    /// The word on a position, for a test at rest.
    #[cfg(test)]
    pub(crate) fn peek_word(&self, position: Position) -> Option<PositionWord> {
        match &self.phase {
            Phase::Active(active) => Some(self.word(active, position)),
            _ => None,
        }
    }

    /// The number of appends that are known, for a test.
    #[cfg(test)]
    pub(crate) fn peek_known(&self) -> usize {
        match &self.phase {
            Phase::Active(active) => active.sessions.ids().len(),
            _ => 0,
        }
    }

    /// The last positions of a tag, for a test at rest.
    #[cfg(test)]
    pub(crate) fn peek_stream(&self, tag: u64) -> Vec<Position> {
        match &self.phase {
            Phase::Active(active) => active.tags.get(&tag).cloned().unwrap_or_default(),
            _ => Vec::new(),
        }
    }

    /// The tail is the next position, once a unit has confirmed the term after the question came, and all below is decided.
    pub(super) fn check_tail(
        &mut self,
        now: Time,
        to: ReplyTo,
        tag: Option<u64>,
        out: &mut SequencerEffects,
    ) {
        let units = self.record.view.projection.last().to_vec();
        let max = self.limits.asked_max;
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        if active.checks.len() >= max {
            return self.reply(to, SequencerAnswer::Busy { id: None }, out);
        }
        active.nonce += 1;
        let nonce = active.nonce;
        let check = TailCheck {
            to,
            tail: active.next,
            stream: tag
                .and_then(|tag| active.tags.get(&tag).cloned())
                .unwrap_or_default(),
            confirmed: planted(LogMutant::CheckUnconfirmed),
            since: now,
        };
        active.checks.insert(nonce, check);
        // A seal reaches every unit, so that any one of them knows if there was one. They take turns.
        let turn = nonce.checked_rem(units.len() as u64).unwrap_or(0);
        if let Some(unit) = units.get(turn as usize) {
            let term = self.term;
            self.send(*unit, UnitOp::Confirm { term, nonce }, out);
        }
        if planted(LogMutant::CheckUnconfirmed) {
            self.answer_checks(out);
        }
    }

    pub(super) fn confirmed(&mut self, nonce: u64, out: &mut SequencerEffects) {
        if let Phase::Active(active) = &mut self.phase {
            let older = planted(LogMutant::CheckByOlder);
            for (of, check) in &mut active.checks {
                check.confirmed |= *of == nonce || older;
            }
        }
        self.answer_checks(out);
    }

    pub(super) fn answer_checks(&mut self, out: &mut SequencerEffects) {
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        let prefix = match planted(LogMutant::CheckWithoutPrefix) {
            true => Position::MAX,
            false => active.prefix(),
        };
        let trim = active.trim;
        let mut tails = Vec::new();
        active.checks.retain(|_, check| {
            let known = check.confirmed && prefix >= check.tail;
            if known {
                tails.push((check.to, check.tail, std::mem::take(&mut check.stream)));
            }
            !known
        });
        for (to, tail, stream) in tails {
            let tail = SequencerAnswer::Tail { tail, stream, trim };
            self.reply(to, tail, out);
        }
    }

    /// Only what is decided can be trimmed. The home records it first, then it is sent to the units.
    pub(super) fn trim(
        &mut self,
        now: Time,
        to: ReplyTo,
        position: Position,
        out: &mut SequencerEffects,
    ) {
        let max = self.limits.asked_max;
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        if position > active.prefix() && !planted(LogMutant::TrimAhead) {
            let done = false;
            return self.reply(to, SequencerAnswer::Trimmed { position, done }, out);
        }
        if active.trims.len() >= max {
            return self.reply(to, SequencerAnswer::Busy { id: None }, out);
        }
        let asked = TrimAsked {
            to,
            position,
            since: now,
        };
        active.trims.push_back(asked);
        self.record_trim(position, out);
    }

    fn record_trim(&self, position: Position, out: &mut SequencerEffects) {
        let request = RecordRequest::Trim {
            name: self.record.name.clone(),
            log: self.log(),
            term: self.term,
            position,
        };
        out.home.push(request);
    }

    /// Asks the home again to record what it has not answered for.
    pub(super) fn record_trim_again(&self, out: &mut SequencerEffects) {
        let Phase::Active(active) = &self.phase else {
            return;
        };
        let highest = active.trims.iter().map(|asked| asked.position).max();
        if let Some(position) = highest {
            self.record_trim(position, out);
        }
    }

    /// The home has recorded a trim.
    pub(super) fn trim_recorded(&mut self, trim: Position, out: &mut SequencerEffects) {
        let units = self.record.view.projection.units();
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        if trim > active.trim {
            active.trim = trim;
            active.untrimmed = units.into_iter().collect();
            for positions in active.tags.values_mut() {
                positions.retain(|position| *position >= trim);
            }
            active.tags.retain(|_, positions| !positions.is_empty());
            active.tails.retain(|_, tail| *tail > trim);
        }
        let mut done = Vec::new();
        active.trims.retain(|asked| {
            let recorded = asked.position <= trim;
            if recorded {
                done.push((asked.to, asked.position));
            }
            !recorded
        });
        for (to, position) in done {
            let done = true;
            self.reply(to, SequencerAnswer::Trimmed { position, done }, out);
        }
        self.send_trim(out);
    }

    /// Tells the units that lack it how far the log is trimmed.
    pub(super) fn send_trim(&self, out: &mut SequencerEffects) {
        let Phase::Active(active) = &self.phase else {
            return;
        };
        let position = active.trim;
        for unit in active.untrimmed.iter().filter(|_| position > 0) {
            self.send(*unit, UnitOp::Trim { position }, out);
        }
    }

    pub(super) fn unit_trimmed(&mut self, unit: UnitId, position: Position) {
        if let Phase::Active(active) = &mut self.phase
            && position >= active.trim
        {
            active.untrimmed.retain(|other| *other != unit);
        }
    }
}
