//! The data of appends: kept until the binding comes, or written at a token.

use staves_model::Time;

use super::bind::{DecisionTo, is_wellformed};
use super::{LARGE_APPEND_BYTES, ParkedData, PendingBinding, ReplyTo, Unit, UnitEffects, bytes_of};

use crate::message::{ParkedAppend, SequencerOp, TermStart, UnitAnswer};
use crate::mutant::{LogMutant, planted};
use crate::slots::Slot;
use crate::types::{
    AppendId, BATCH_RECORDS_MAX, Binding, DataPlace, LogId, Low, Position, TAGS_MAX,
};

impl Unit {
    /// True if the data of an append, of so many records, are held here: they come again.
    pub fn has_parked(&self, log: LogId, id: &AppendId, count: u32) -> bool {
        let soft = self.soft.get(&log);
        let parked = soft.and_then(|soft| soft.parked.get(id));
        parked.is_some_and(|parked| parked.places.len() == count as usize)
    }

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
            || park.tags.len() > TAGS_MAX
            || !id.fits(park.low);
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
        if let Some((position, count)) = share.sessions.get(&id).copied() {
            return Some(UnitAnswer::Ack {
                id,
                position,
                count,
            });
        }
        // A later term's sequencer has sealed this unit before it numbers a session.
        let unknown = id.session.term > term;
        if share.sessions.is_over(id.session) {
            return Some(UnitAnswer::SessionOver { id });
        }
        let abandoned = malformed || unknown || share.sessions.is_abandoned(&id);
        abandoned.then_some(UnitAnswer::Abandoned { id })
    }

    fn pending_of(&self, log: LogId, id: &AppendId, count: u32) -> Option<Position> {
        let soft = self.soft.get(&log)?;
        let position = soft.pending_ids.get(id)?;
        let pending = soft.pending.get(position)?;
        (pending.binding.count == count).then_some(*position)
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
            condition: park.condition,
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
            condition: parked
                .condition
                .filter(|_| !planted(LogMutant::ConditionNotParked)),
        };
        self.ask(parked.sequencer, log, 0, op, out);
    }

    pub(super) fn unpark(&mut self, log: LogId, id: &AppendId) -> Option<ParkedData> {
        let parked = self.soft.get_mut(&log)?.parked.remove(id)?;
        self.parked -= 1;
        self.parked_bytes -= parked.bytes();
        Some(parked)
    }

    pub(super) fn take_pending(
        &mut self,
        log: LogId,
        position: Position,
    ) -> Option<PendingBinding> {
        self.soft.get_mut(&log)?.take_pending(position)
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
        let answer = self.refuse_write(log, &term, (&binding, low), data.len());
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
        (binding, low): (&Binding, Low),
        records: usize,
    ) -> Option<UnitAnswer<DataPlace>> {
        let id = binding.id?;
        let malformed =
            records != binding.count as usize || !is_wellformed(binding) || !id.fits(low);
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
        if position > share.horizon(term.start) {
            return Some(UnitAnswer::Busy { id: Some(id) });
        }
        let over_junk = matches!(share.slots.get(position), Some(Slot::Junk(_)))
            && planted(LogMutant::DataOverJunk);
        let taken = share.slots.any(position, binding.count) && !over_junk;
        let soft = self.soft.get(&log);
        let pending = soft.and_then(|soft| soft.pending.get(&position));
        let others = pending.is_some_and(|pending| pending.binding.id != Some(id));
        (position < share.trim || taken || others).then_some(UnitAnswer::Lost { id, position })
    }
}
