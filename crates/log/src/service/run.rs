//! One operation: its data, the machine's step, the delta of its entries, and the answers that rest on it.

use bytes::Bytes;
use staves_model::Time;
use staves_service::{BucketContext, BucketEffects, OpHeader, Outcome, Refused};
use staves_store::Pages;
use staves_wire::group::{RequestId, Run, RunKind};
use staves_wire::service::Answer;

use super::LogUnit;
use super::calls::{UnitCall, record_answer, unit_answer};
use super::room::RoomFor;
use crate::codec::BucketRequest;
use crate::entry::Entry;
use crate::message::{SlotAnswer, UnitAnswer, UnitOp, UnitReply};
use crate::store::{DataPiece, INLINE_BYTES_MAX, NewData, NoPlace, PageEdit, StoredEntry, data_of};
use crate::types::DataPlace;
use crate::unit::{Delivery, NewEntry, ReplyTo, UnitEffects};

/// An append's data on their way to pages that nothing names.
#[derive(Debug, Default)]
pub(super) struct StagedAppend {
    pub pieces: Vec<DataPiece>,
    bytes: usize,
    pub deadline: Time,
}

/// An entry, and the places that nothing names any more from it on.
pub(super) type StoredChange = (StoredEntry, Vec<DataPlace>);

/// The answer to an operation, to be kept for retries. What is answered later is known by its id.
fn kept_answer(header: &OpHeader, effects: &UnitEffects) -> Option<(RequestId, Bytes)> {
    let request = header.request?;
    let own = |to: ReplyTo| to.0 == header.token;
    let mut records = effects.records.iter().filter(|reply| own(reply.to));
    let mut replies = effects.replies.iter().filter(|reply| own(reply.to));
    let answer = match (records.next(), replies.next()) {
        (Some(reply), _) => record_answer(&reply.reply),
        (_, Some(reply)) => unit_answer(&or_lost(reply.reply.clone().map_data(|_| None))),
        (None, None) => return None,
    };
    Some((request, BucketContext::kept(header, &answer)))
}

fn run_of(piece: &DataPiece) -> Run {
    Run {
        offset: piece.at,
        len: piece.len,
        kind: RunKind::Bytes,
    }
}

impl LogUnit {
    /// The machine learns which of its entries are synced; requests that waited for them may be sent.
    pub(super) fn catch_up(&mut self, context: &BucketContext) {
        let member = context.member();
        self.floor.get_or_insert(member.last());
        let flushed = member.flushed();
        let mut synced = 0;
        while let Some((number, _)) = self.unsynced.front().filter(|(_, seq)| *seq <= flushed) {
            synced = *number;
            self.unsynced.pop_front();
        }
        if let (1.., Some(unit)) = (synced, self.unit_mut()) {
            unit.synced(synced);
        }
        while self
            .asks_later
            .front()
            .is_some_and(|(seq, _)| *seq <= flushed)
        {
            if let Some((_, ask)) = self.asks_later.pop_front() {
                self.asks.push(ask.to, ask.request);
            }
        }
    }

    pub(super) fn run(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        op: &UnitCall,
        out: &mut BucketEffects,
    ) -> Outcome {
        let mut bare = op.has_word() && context.member().lacks_copies();
        // An append that is in the log, or never will be, brings nothing: that it found no room would not be true.
        let room = match self.has_answer(op) {
            true => RoomFor::Little,
            false => RoomFor::of(op),
        };
        if let Err(stop) = self.make_room(context, now, room, out) {
            // A read needs no room but for what a sequencer's word has it decide.
            if !op.has_word() {
                return stop;
            }
            bare = true;
        }
        let (to, mut effects) = (ReplyTo(header.token), UnitEffects::default());
        match op {
            UnitCall::Request(BucketRequest::Unit(request)) => {
                let places = match self.place(context, now, header, op, out) {
                    Ok(places) => places,
                    Err(stop) => return stop,
                };
                let mut request = request.clone().map_data(|_| places);
                if let (true, UnitOp::Read { word, .. }) = (bare, &mut request.op) {
                    *word = None;
                }
                if let Some(unit) = self.unit_mut() {
                    unit.step(now, to, request, &mut effects);
                }
            }
            UnitCall::Request(BucketRequest::Record(request)) => {
                if let Some(unit) = self.unit_mut() {
                    unit.record(to, request.clone(), &mut effects);
                }
            }
            UnitCall::Asked(reply) => {
                if let Some(unit) = self.unit_mut() {
                    unit.asked(reply.clone(), &mut effects);
                }
            }
        }
        let outcome = self.finish(context, now, Some(header), effects, out);
        match (outcome, op) {
            (Some(outcome), _) => outcome,
            (None, UnitCall::Asked(_)) => Outcome::at_once(Answer::Ok),
            (None, _) => {
                self.waiting.insert(header.token, *header);
                Outcome::Later
            }
        }
    }

    /// The places of an operation's records: held in memory, or staged.
    fn place(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        op: &UnitCall,
        out: &mut BucketEffects,
    ) -> Result<Vec<DataPlace>, Outcome> {
        let Some(records) = op.records() else {
            return Ok(Vec::new());
        };
        if records.bytes.len() <= INLINE_BYTES_MAX || self.has_answer(op) {
            return Ok(self.held.keep(records));
        }
        let mut staged = self.staging.remove(&header.token).unwrap_or_default();
        staged.deadline = header.deadline;
        while staged.bytes < records.bytes.len() {
            let end = records.bytes.len().min(staged.bytes + INLINE_BYTES_MAX);
            let part = records.bytes.slice(staged.bytes..end);
            let room = self.make_room(context, now, RoomFor::Part(part.len()), out);
            let made = room.and_then(|()| {
                self.weigh_room(context);
                let staging = self.pages.log.stage(&staged.pieces, &part);
                let (edit, pieces) = staging.map_err(|_| self.full())?;
                self.commit(context, edit, (&[], None))?;
                Ok(pieces)
            });
            match made {
                Ok(pieces) => {
                    self.pages.log.has_staged(&staged.pieces, &pieces);
                    (staged.pieces, staged.bytes) = (pieces, end);
                }
                Err(stop @ Outcome::Blocked { .. }) => {
                    self.staging.insert(header.token, staged);
                    return Err(stop);
                }
                Err(stop) => {
                    self.pages.log.unstage(&staged.pieces);
                    return Err(stop);
                }
            }
        }
        Ok(self.held.keep_staged(records, staged.pieces))
    }

    fn drop_held(&mut self, place: &DataPlace) {
        let pieces = self.held.remove(data_of(place));
        self.pages.log.unstage(&pieces);
    }

    /// Turns the machine's output into deltas and answers. The outcome of the operation itself, if it is answered.
    pub(super) fn finish(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        current: Option<&OpHeader>,
        effects: UnitEffects,
        out: &mut BucketEffects,
    ) -> Option<Outcome> {
        effects
            .dropped
            .iter()
            .for_each(|place| self.drop_held(place));
        let first = effects.entries.first().map_or(u64::MAX, |e| e.number);
        let kept = current.and_then(|header| kept_answer(header, &effects));
        if let Err(stop) = self.persist(context, &effects.entries, kept) {
            self.abandon(out);
            return Some(stop);
        }
        let mut outcome = None;
        for Delivery { to, after, reply } in effects.records {
            let answer = (record_answer(&reply), after, after < first);
            let of = self.deliver(context, now, current, to, answer, out);
            outcome = of.or(outcome);
        }
        for Delivery { to, after, reply } in effects.replies {
            let of = match self.answer_with_bytes(context, now, reply, out) {
                Ok(answer) => self.deliver(
                    context,
                    now,
                    current,
                    to,
                    (answer, after, after < first),
                    out,
                ),
                Err(stop) => Some(stop),
            };
            outcome = of.or(outcome);
        }
        for ask in effects.asks {
            match self.seq_of(ask.after) {
                0 => self.asks.push(ask.to, ask.request),
                seq => self.asks_later.push_back((seq, ask)),
            }
        }
        outcome
    }

    /// Entries become deltas: all of an operation one, as far as one may have them. The last one has the answer to a request that may be retried.
    fn persist(
        &mut self,
        context: &mut BucketContext,
        entries: &[NewEntry],
        kept: Option<(RequestId, Bytes)>,
    ) -> Result<(), Outcome> {
        let mut rest = entries;
        self.weigh_room(context);
        while let Some(last) = rest.last() {
            let stored = |new: &NewEntry| StoredEntry::Change(new.entry.clone());
            let data = |new: &NewEntry| match &new.entry {
                Entry::Commit { places, .. } => places
                    .first()
                    .map_or(NewData::Nothing, |place| self.held.data(data_of(place))),
                _ => NewData::Nothing,
            };
            let all: Vec<_> = rest.iter().map(|new| (stored(new), data(new))).collect();
            let (mut count, mut last) = (all.len(), last.number);
            let edit = loop {
                match self.pages.append(&all[..count]) {
                    Ok(edit) => break edit,
                    Err(NoPlace::TooLarge) if count > 1 => count /= 2,
                    Err(_) => return Err(Outcome::Refuse(Refused::Interrupted)),
                }
            };
            let (now, later) = rest.split_at(count);
            last = now.last().map_or(last, |new| new.number);
            let all = all.into_iter().take(count).map(|(entry, _)| entry);
            let made: Vec<_> = all.zip(now.iter().map(|new| new.freed.clone())).collect();
            let answered = kept.clone().filter(|_| later.is_empty());
            let seq = self.commit(context, edit, (&made, answered))?;
            now.iter().for_each(|new| self.stats.made(&new.entry));
            self.unsynced.push_back((last, seq));
            for new in now {
                if let Entry::Commit { places, .. } = &new.entry {
                    places
                        .first()
                        .into_iter()
                        .for_each(|place| self.drop_held(place));
                }
            }
            rest = later;
        }
        Ok(())
    }

    /// Makes one delta, of entries that the state has already.
    pub(super) fn commit(
        &mut self,
        context: &mut BucketContext,
        edit: PageEdit,
        (entries, kept): (&[StoredChange], Option<(RequestId, Bytes)>),
    ) -> Result<u64, Outcome> {
        if !self.fits(context, &edit) {
            return Err(Outcome::Refuse(Refused::Interrupted));
        }
        if let Err(damage) = self.pages.appended(&edit, entries, self.role.state()) {
            self.damage = Some(damage);
            return Err(Outcome::Refuse(Refused::Interrupted));
        }
        let (request, answer) = kept.unzip();
        let answer = answer.unwrap_or_default();
        Ok(context.commit(request, answer, edit.runs, edit.bytes.into()))
    }

    /// The machine has made what the pages cannot have: it begins anew, with what they have.
    fn abandon(&mut self, out: &mut BucketEffects) {
        self.indexed = None;
        self.refuse_all(out);
    }

    /// The delta that has an entry of the machine, if it may not be synced.
    fn seq_of(&self, number: u64) -> u64 {
        let at = self.unsynced.partition_point(|(last, _)| *last < number);
        let after = self.unsynced.get(at).filter(|_| number > 0);
        let floor = self.floor.unwrap_or(0);
        after.map_or(floor, |(_, seq)| (*seq).max(floor))
    }

    fn deliver(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        current: Option<&OpHeader>,
        to: ReplyTo,
        (answer, after, read): (Answer, u64, bool),
        out: &mut BucketEffects,
    ) -> Option<Outcome> {
        let seq = self.seq_of(after);
        if current.is_some_and(|header| header.token == to.0) {
            return Some(Outcome::Synced { seq, answer, read });
        }
        if let Some(header) = self.waiting.remove(&to.0) {
            let result = context.deliver_synced(now, &header, seq, answer, read);
            let result = result.transpose();
            out.answers.extend(result.map(|result| (to.0, result)));
        }
        None
    }

    /// An answer with the bytes of the record that it names.
    fn answer_with_bytes(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        reply: UnitReply<DataPlace>,
        out: &mut BucketEffects,
    ) -> Result<Answer, Outcome> {
        let mut pieces = Some(Vec::new());
        if let UnitAnswer::Slot { slot, .. } = &reply.answer
            && let SlotAnswer::Data { data, .. } = slot
        {
            pieces = self.pages.pieces_of(data);
        }
        for piece in pieces.iter().flatten() {
            let run = run_of(piece);
            if context.lacks(now, run, &mut out.effects)
                || context.fetches(run, false, &mut out.effects)
            {
                return Err(Outcome::Blocked { starved: false });
            }
        }
        let pages = context.member().pages();
        if let UnitAnswer::Slot { slot, .. } = &reply.answer
            && let SlotAnswer::Data { data, .. } = slot
        {
            self.stats.has_read(data.bytes);
        }
        let read = |place: DataPlace| {
            let (pages, pieces) = (pages?, pieces?);
            Some(read_pieces(pages, &pieces, place.bytes))
        };
        let reply = reply.map_data(read);
        Ok(unit_answer(&or_lost(reply)))
    }
}

/// A record whose bytes are not here is lost.
fn or_lost(reply: UnitReply<Option<Bytes>>) -> UnitReply {
    let mut reply = reply;
    if let UnitAnswer::Slot { slot, .. } = &mut reply.answer
        && matches!(slot, SlotAnswer::Data { data: None, .. })
    {
        *slot = SlotAnswer::Lost;
    }
    reply.map_data(Option::unwrap_or_default)
}

fn read_pieces(pages: &Pages, pieces: &[DataPiece], bytes: u32) -> Bytes {
    let mut all = Vec::with_capacity(bytes as usize);
    for piece in pieces {
        pages.read_into(piece.at, piece.len as usize, &mut all);
    }
    all.into()
}
