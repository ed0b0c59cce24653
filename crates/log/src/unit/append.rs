//! Data and binding meet: the one place where a position gets its content (rules 9, 13, 14).

use staves_model::Time;

use super::{LARGE_APPEND_BYTES, ParkedData, PendingBinding, ReplyTo, Unit, UnitEffects, bytes_of};
use crate::entry::Entry;
use crate::message::{Decision, ParkedAppend, SequencerOp, TermStart, UnitAnswer};
use crate::mutant::{LogMutant, planted};
use crate::slots::Slot;
use crate::types::{
    AppendId, BACK_POINTERS, BATCH_RECORDS_MAX, Binding, DataPlace, LogId, Low, Position,
    SequencerId, TAGS_MAX,
};

/// Appends that a log remembers as bound too early.
const JUNKED_MAX: usize = 64;

/// A decision's receiver: the binding's own requester, else the sequencer, unasked.
struct DecisionTo {
    to: Option<ReplyTo>,
    sequencer: SequencerId,
}

impl Unit {
    pub(super) fn park(
        &mut self,
        now: Time,
        to: ReplyTo,
        log: LogId,
        park: ParkedAppend<Vec<DataPlace>>,
        out: &mut UnitEffects,
    ) {
        let id = park.id;
        let malformed = park.data.len() != park.count as usize
            || !(1..=BATCH_RECORDS_MAX).contains(&park.count)
            || park.tags.len() > TAGS_MAX;
        if let Some(answer) = self.refuse_data(log, &id, malformed) {
            let after = match planted(LogMutant::AckUnsynced) {
                true => 0,
                false => self.settled(log),
            };
            out.dropped.extend(park.data);
            return self.reply(to, log, after, answer, out);
        }
        let pending = self.pending_of(log, &id, park.count);
        if let Some(position) = pending {
            return self.meet_pending(log, position, park, to, out);
        }
        self.keep(now, to, log, park, out);
    }

    /// An answer to an append whose data is not needed.
    fn refuse_data(
        &self,
        log: LogId,
        id: &AppendId,
        malformed: bool,
    ) -> Option<UnitAnswer<DataPlace>> {
        let (id, term) = (*id, self.state.term(log));
        let Some(share) = self.state.share(log) else {
            return Some(UnitAnswer::NotSealed { term });
        };
        if let Some((position, count)) = share.ids.get(&id).copied() {
            return Some(UnitAnswer::Ack {
                id,
                position,
                count,
            });
        }
        (malformed || share.is_abandoned(&id)).then_some(UnitAnswer::Abandoned { id })
    }

    fn pending_of(&self, log: LogId, id: &AppendId, count: u32) -> Option<Position> {
        let soft = self.soft.get(&log)?;
        let fits = |p: &&PendingBinding| p.binding.id == Some(*id) && p.binding.count == count;
        let found = soft.pending.values().find(fits)?;
        Some(found.binding.position)
    }

    fn meet_pending(
        &mut self,
        log: LogId,
        position: Position,
        park: ParkedAppend<Vec<DataPlace>>,
        to: ReplyTo,
        out: &mut UnitEffects,
    ) {
        // An earlier copy of the data may be kept, if its count was another.
        if let Some(before) = self.unpark(log, &park.id) {
            out.dropped.extend(&before.places);
            self.reply(before.to, log, 0, UnitAnswer::Superseded, out);
        }
        let Some(pending) = self.take_pending(log, position) else {
            return;
        };
        let decided = DecisionTo {
            to: pending.to,
            sequencer: pending.sequencer,
        };
        self.commit(
            log,
            pending.binding,
            (park.low, park.data, to),
            decided,
            out,
        );
    }

    fn keep(
        &mut self,
        now: Time,
        to: ReplyTo,
        log: LogId,
        park: ParkedAppend<Vec<DataPlace>>,
        out: &mut UnitEffects,
    ) {
        let id = park.id;
        let (parked, bytes) = (self.parked, bytes_of(&park.data));
        let soft = self.soft.entry(log).or_default();
        if let Some(before) = soft.parked.get_mut(&id) {
            // A retry: the data is here, and the latest requester is the one that waits.
            let old = std::mem::replace(&mut before.to, to);
            (before.low, before.sequencer) = (before.low.max(park.low), park.sequencer);
            out.dropped.extend(park.data);
            return self.reply(old, log, 0, UnitAnswer::Superseded, out);
        }
        let room = parked == 0 || self.parked_bytes + bytes <= self.limits.parked_bytes_max;
        if parked >= self.limits.parked_max || !room {
            out.dropped.extend(park.data);
            return self.reply(to, log, 0, UnitAnswer::Busy { id: Some(id) }, out);
        }
        // Data that came later than its junk, or comes without a request: the unit asks for a position itself (13, 15).
        let late = soft.junked.iter().any(|junked| *junked == id);
        let ask = late || bytes > LARGE_APPEND_BYTES;
        let data = ParkedData {
            low: park.low,
            tags: park.tags,
            sequencer: park.sequencer,
            places: park.data,
            to,
            since: now,
            asked: now,
        };
        soft.junked.retain(|junked| *junked != id);
        soft.parked.insert(id, data);
        self.parked += 1;
        self.parked_bytes += bytes;
        if ask {
            self.ask_position(log, id, out);
        }
    }

    /// Asks the sequencer for the position of data that is here.
    pub(super) fn ask_position(&self, log: LogId, id: AppendId, out: &mut UnitEffects) {
        let parked = self.soft.get(&log).and_then(|soft| soft.parked.get(&id));
        let Some(parked) = parked else {
            return;
        };
        let op = SequencerOp::Seq {
            id,
            count: parked.places.len() as u32,
            tags: parked.tags.clone(),
            unit: self.state.unit(),
            low: parked.low,
            lost: None,
        };
        self.ask(parked.sequencer, log, 0, op, out);
    }

    pub(super) fn unpark(&mut self, log: LogId, id: &AppendId) -> Option<ParkedData> {
        let parked = self.soft.get_mut(&log)?.parked.remove(id)?;
        self.parked -= 1;
        self.parked_bytes -= parked.bytes();
        Some(parked)
    }

    fn take_pending(&mut self, log: LogId, position: Position) -> Option<PendingBinding> {
        self.soft.get_mut(&log)?.pending.remove(&position)
    }

    /// The client of a token writes its record (corfu).
    pub(super) fn write(
        &mut self,
        to: ReplyTo,
        log: LogId,
        (term, binding, low): (TermStart, Binding, Low),
        data: Vec<DataPlace>,
        out: &mut UnitEffects,
    ) {
        let answer = self.refuse_write(log, &term, &binding, data.len());
        let (Some(id), None) = (binding.id, answer.as_ref()) else {
            out.dropped.extend(data);
            let answer = answer.unwrap_or(UnitAnswer::Superseded);
            return self.reply(to, log, self.settled(log), answer, out);
        };
        self.learn_start(log, &term, out);
        if let Some(parked) = self.unpark(log, &id) {
            out.dropped.extend(&parked.places);
            self.reply(parked.to, log, 0, UnitAnswer::Superseded, out);
        }
        let pending = self.take_pending(log, binding.position);
        let decided = DecisionTo {
            to: pending.and_then(|pending| pending.to),
            sequencer: term.sequencer,
        };
        self.commit(log, binding, (low, data, to), decided, out);
    }

    fn refuse_write(
        &self,
        log: LogId,
        term: &TermStart,
        binding: &Binding,
        records: usize,
    ) -> Option<UnitAnswer<DataPlace>> {
        let id = binding.id?;
        let malformed = records != binding.count as usize || !is_wellformed(binding);
        let refused = self.refuse_data(log, &id, malformed);
        let share = self.state.share(log).filter(|_| refused.is_none());
        let Some(share) = share else {
            return refused;
        };
        if term.term < share.term && !planted(LogMutant::NoFence) {
            return Some(UnitAnswer::Stale { term: share.term });
        }
        if term.term > share.term {
            return Some(UnitAnswer::NotSealed { term: share.term });
        }
        let position = binding.position;
        let over_junk = matches!(share.slots.get(position), Some(Slot::Junk(_)))
            && planted(LogMutant::DataOverJunk);
        let taken = share.slots.any(position, binding.count) && !over_junk;
        let soft = self.soft.get(&log);
        let pending = soft.and_then(|soft| soft.pending.get(&position));
        let others = pending.is_some_and(|pending| pending.binding.id != Some(id));
        (position < share.trim || taken || others).then_some(UnitAnswer::Lost { id, position })
    }

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
            return match to {
                Some(to) => self.reply(to, log, after, answer, out),
                None => {}
            };
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
        Some(UnitAnswer::Decided(self.decision(vt, binding, data)))
    }

    fn decision(&self, term: crate::types::Term, binding: &Binding, data: bool) -> Decision {
        Decision {
            term,
            unit: self.state.unit(),
            position: binding.position,
            count: binding.count,
            id: binding.id,
            data,
        }
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
            .ids
            .get(id)
            .is_some_and(|(at, _)| *at != binding.position);
        fits && free && !elsewhere && !share.is_abandoned(id)
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
        soft.pending.insert(pending.binding.position, pending);
    }

    fn replace_pending(&mut self, log: LogId, position: Position, out: &mut UnitEffects) {
        let pending = self.take_pending(log, position);
        if let Some(to) = pending.and_then(|pending| pending.to) {
            self.reply(to, log, 0, UnitAnswer::Superseded, out);
        }
    }

    /// One update names the slots, the id and the client's mark; then client and sequencer are answered.
    fn commit(
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
        let decision = self.decision(self.state.term(log), &binding, true);
        self.tell_decision(log, number, decided, decision, out);
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
        let decision = self.decision(self.state.term(log), &binding, false);
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

fn is_wellformed(binding: &Binding) -> bool {
    let end = binding.position.checked_add(u64::from(binding.count));
    let links = binding.links.iter().all(|l| l.back.len() <= BACK_POINTERS);
    end.is_some()
        && (1..=BATCH_RECORDS_MAX).contains(&binding.count)
        && binding.links.len() <= TAGS_MAX
        && links
}
