//! Data and binding meet: the one place where a position gets its content (rules 9, 13, 14).

use staves_model::Time;

use super::{PendingBinding, ReplyTo, Unit, UnitEffects};
use crate::entry::Entry;
use crate::message::{Decision, SequencerOp, TermStart, UnitAnswer};
use crate::mutant::{LogMutant, planted};
use crate::share::LogShare;
use crate::slots::Slot;
use crate::types::{
    AppendId, BACK_POINTERS, BATCH_RECORDS_MAX, Binding, DataPlace, LogId, Low, Position,
    SequencerId, SessionId, TAGS_MAX, Term,
};

/// Appends that a log remembers as bound too early.
const JUNKED_MAX: usize = 64;
/// The furthest that a binding may lie beyond all that a unit knows to be given out: many windows of a sequencer, whose prefix it learns every few
/// milliseconds.
pub(super) const AHEAD_MAX: u64 = 1 << 24;

/// A decision's receiver: the binding's own requester, else the sequencer, unasked.
pub(super) struct DecisionTo {
    pub to: Option<ReplyTo>,
    pub sequencer: SequencerId,
}

impl Unit {
    pub(super) fn learn_start(&mut self, log: LogId, term: &TermStart, out: &mut UnitEffects) {
        let share = self.state.share(log);
        if share.is_some_and(|share| share.start.is_none() && share.term == term.term) {
            let start = term.start;
            let entry = Entry::Start { log, start };
            self.make(log, entry, Position::MAX, out);
        }
    }

    /// A binding comes, from the sequencer or with a reader.
    pub(super) fn bind(
        &mut self,
        now: Time,
        log: LogId,
        term: TermStart,
        binding: Binding,
        to: Option<ReplyTo>,
        out: &mut UnitEffects,
    ) {
        if let Some(answer) = self.refuse_binding(log, &term, &binding, to.is_none()) {
            let after = match planted(LogMutant::DecidedUnsynced) {
                true => 0,
                false => self.settled(log),
            };
            if let Some(to) = to {
                self.reply(to, log, after, answer, out);
            }
            return;
        }
        self.learn_start(log, &term, out);
        let decided = DecisionTo {
            to,
            sequencer: term.sequencer,
        };
        let Some(id) = binding.id.filter(|id| self.may_commit(log, id, &binding)) else {
            self.make_junk(log, binding, decided, out);
            return;
        };
        if let Some(parked) = self.unpark(log, &id) {
            let client = (parked.low, parked.places, parked.to);
            self.replace_pending(log, binding.position, out);
            return self.commit(log, binding, client, decided, out);
        }
        self.wait_for_data(now, log, binding, decided, out);
    }

    fn refuse_binding(
        &self,
        log: LogId,
        term: &TermStart,
        binding: &Binding,
        fill: bool,
    ) -> Option<UnitAnswer<DataPlace>> {
        let vt = self.state.term(log);
        let unfenced = planted(LogMutant::NoFence) || fill && planted(LogMutant::FillOfOldTerm);
        if term.term < vt && !unfenced {
            return Some(UnitAnswer::Stale { term: vt });
        }
        let foreign = planted(LogMutant::ForeignUnit) && vt.0 == 0;
        let share = self.state.share(log);
        let Some(share) = share.filter(|_| term.term <= vt || foreign) else {
            return Some(UnitAnswer::NotSealed { term: vt });
        };
        if binding.position < share.trim || !is_wellformed(binding) {
            return Some(UnitAnswer::Superseded);
        }
        // Nobody has given it out: the next term would begin above it.
        if binding.position > share.horizon(term.start) {
            return Some(UnitAnswer::Busy { id: binding.id });
        }
        let data = match share.slots.get(binding.position)? {
            Slot::Data(data) => Some(data.id) == binding.id,
            Slot::Tomb => true,
            Slot::Junk(_) => false,
        };
        let parked = || {
            let soft = self.soft.get(&log)?;
            Some(soft.parked.contains_key(&binding.id?))
        };
        if !data && planted(LogMutant::DataOverJunk) && parked() == Some(true) {
            return None;
        }
        Some(UnitAnswer::Decided(self.decision(log, vt, binding, data)))
    }

    fn decision(&self, log: LogId, term: Term, binding: &Binding, data: bool) -> Decision {
        Decision {
            term,
            unit: self.state.unit(),
            position: binding.position,
            count: binding.count,
            id: binding.id,
            data,
            bytes: if data { self.bytes_at(log, binding) } else { 0 },
        }
    }

    /// The bytes of a binding's records.
    fn bytes_at(&self, log: LogId, binding: &Binding) -> u64 {
        let share = self.state.share(log);
        let slot = |position| match share?.slots.get(position)? {
            Slot::Data(data) => Some(u64::from(data.place.bytes)),
            _ => None,
        };
        (binding.position..binding.end()).filter_map(slot).sum()
    }

    /// True unless the append is durable elsewhere, or nobody awaits it, or what is parked is not what was bound.
    fn may_commit(&self, log: LogId, id: &AppendId, binding: &Binding) -> bool {
        let Some(share) = self.state.share(log) else {
            return false;
        };
        let soft = self.soft.get(&log);
        let parked = soft.and_then(|soft| soft.parked.get(id));
        let fits = parked.is_none_or(|parked| parked.places.len() == binding.count as usize);
        let over_junk = planted(LogMutant::DataOverJunk);
        let free = over_junk || !share.slots.any(binding.position, binding.count);
        let elsewhere = share
            .sessions
            .get(id)
            .is_some_and(|(at, _)| *at != binding.position);
        let known = id.session.term <= share.term;
        fits && free && known && !elsewhere && !share.sessions.is_abandoned(id)
    }

    fn wait_for_data(
        &mut self,
        now: Time,
        log: LogId,
        binding: Binding,
        decided: DecisionTo,
        out: &mut UnitEffects,
    ) {
        let max = self.limits.pending_max;
        let soft = self.soft.entry(log).or_default();
        if let Some(pending) = soft.pending.get_mut(&binding.position) {
            // Sent again: the time since the first counts, the last requester is answered.
            let before = decided.to.and_then(|to| pending.to.replace(to));
            if let Some(before) = before {
                self.reply(before, log, 0, UnitAnswer::Superseded, out);
            }
            return;
        }
        if soft.pending.len() >= max {
            if let Some(to) = decided.to {
                self.reply(to, log, 0, UnitAnswer::Busy { id: binding.id }, out);
            }
            return;
        }
        let pending = PendingBinding {
            sequencer: decided.sequencer,
            to: decided.to,
            since: now,
            binding,
        };
        soft.add_pending(pending);
    }

    fn replace_pending(&mut self, log: LogId, position: Position, out: &mut UnitEffects) {
        let pending = self.take_pending(log, position);
        if let Some(to) = pending.and_then(|pending| pending.to) {
            self.reply(to, log, 0, UnitAnswer::Superseded, out);
        }
    }

    /// One update names the slots, the id and the client's mark; then client and sequencer are answered.
    pub(super) fn commit(
        &mut self,
        log: LogId,
        binding: Binding,
        (low, places, client): (Low, Vec<DataPlace>, ReplyTo),
        decided: DecisionTo,
        out: &mut UnitEffects,
    ) {
        let Some(id) = binding.id else {
            return;
        };
        if !self.admit_session(log, id.session, out) {
            out.dropped.extend(places);
            let after = self.make_junk(log, binding, decided, out);
            return self.reply(client, log, after, UnitAnswer::SessionOver { id }, out);
        }
        let entry = Entry::Commit {
            log,
            position: binding.position,
            id,
            low,
            links: binding.links.clone(),
            places,
        };
        let number = self.make_commit(log, entry, binding.position, out);
        let ack = UnitAnswer::Ack {
            id,
            position: binding.position,
            count: binding.count,
        };
        let after = if planted(LogMutant::AckUnsynced) {
            0
        } else {
            number
        };
        self.reply(client, log, after, ack, out);
        let decision = self.decision(log, self.state.term(log), &binding, true);
        self.tell_decision(log, number, decided, decision, out);
    }

    /// Makes room for an append of a session, by dropping the lowest. False if it is that session which is over.
    fn admit_session(&mut self, log: LogId, session: SessionId, out: &mut UnitEffects) -> bool {
        let bounds = self.limits.session_bounds();
        let share = self.state.share(log);
        let floor = share.and_then(|share| share.sessions.floor_for(session, bounds));
        if let Some(session) = floor {
            self.make(log, Entry::Floor { log, session }, Position::MAX, out);
        }
        let share = self.state.share(log);
        share.is_some_and(|share| !share.sessions.is_over(session))
    }

    fn make_commit(
        &mut self,
        log: LogId,
        entry: Entry,
        touched: Position,
        out: &mut UnitEffects,
    ) -> u64 {
        if planted(LogMutant::BatchInParts)
            && let Entry::Commit {
                position,
                id,
                low,
                links,
                places,
                ..
            } = &entry
        {
            let mut number = 0;
            for (at, place) in (*position..).zip(places) {
                let part = Entry::Commit {
                    log,
                    position: at,
                    id: *id,
                    low: *low,
                    links: links.clone(),
                    places: vec![*place],
                };
                let made = self.make(log, part, at, out);
                number = if number == 0 { made } else { number };
            }
            return number;
        }
        self.make(log, entry, touched, out)
    }

    /// The positions of a binding become junk for ever.
    fn make_junk(
        &mut self,
        log: LogId,
        binding: Binding,
        decided: DecisionTo,
        out: &mut UnitEffects,
    ) -> u64 {
        self.replace_pending(log, binding.position, out);
        let (position, count) = (binding.position, binding.count);
        let entry = Entry::Junk {
            log,
            position,
            count,
        };
        let number = self.make(log, entry, position, out);
        if let (Some(id), Some(soft)) = (binding.id, self.soft.get_mut(&log)) {
            soft.junked.push_back(id);
            let over = soft.junked.len().saturating_sub(JUNKED_MAX);
            soft.junked.drain(..over);
        }
        let decision = self.decision(log, self.state.term(log), &binding, false);
        self.tell_decision(log, number, decided, decision, out);
        number
    }

    /// A binding that waits becomes junk.
    pub(super) fn junk_pending(
        &mut self,
        log: LogId,
        position: Position,
        out: &mut UnitEffects,
    ) -> Option<u64> {
        let pending = self.take_pending(log, position)?;
        let decided = DecisionTo {
            to: pending.to,
            sequencer: pending.sequencer,
        };
        Some(self.make_junk(log, pending.binding, decided, out))
    }

    fn tell_decision(
        &self,
        log: LogId,
        number: u64,
        decided: DecisionTo,
        decision: Decision,
        out: &mut UnitEffects,
    ) {
        let unsynced = planted(LogMutant::DecidedUnsynced);
        let after = if unsynced { 0 } else { number };
        match decided.to {
            Some(to) => self.reply(to, log, after, UnitAnswer::Decided(decision), out),
            None => {
                let op = SequencerOp::Decided(decision);
                self.ask(decided.sequencer, log, after, op, out);
            }
        }
    }
}

impl LogShare {
    /// The highest position that can be given out: its sequencer may be ahead of what the unit knows.
    pub(super) fn horizon(&self, start: Position) -> Position {
        let start = self.start.unwrap_or(start);
        let known = self.claimed.max(self.prefix).max(start);
        known.saturating_add(AHEAD_MAX)
    }
}

pub(super) fn is_wellformed(binding: &Binding) -> bool {
    let end = binding.position.checked_add(u64::from(binding.count));
    let links = binding.links.iter().all(|l| l.back.len() <= BACK_POINTERS);
    end.is_some()
        && (1..=BATCH_RECORDS_MAX).contains(&binding.count)
        && binding.links.len() <= TAGS_MAX
        && links
}
