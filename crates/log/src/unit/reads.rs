//! Reads of positions and pages, and the trim of one record.

use staves_model::Time;

use super::bind::is_wellformed;
use super::{ReplyTo, Unit, UnitEffects};
use crate::entry::Entry;
use crate::message::{SlotAnswer, TermStart, UnitAnswer};
use crate::mutant::{LogMutant, planted};
use crate::share::LogShare;
use crate::slots::Slot;
use crate::types::{AppendMode, Binding, DataPlace, LogId, Position, Term};

/// The position that a reader asks for, and the term by which it chose the unit.
#[derive(Clone, Copy)]
pub(super) struct AskedSlot {
    pub position: Position,
    pub term: Term,
    pub start: Position,
}

impl LogShare {
    /// True if nothing comes to a position any more: it has its content, or lies below the trim, or (predict, corfu) below the term's start.
    fn has_decided(&self, position: Position) -> bool {
        let below = self.options.mode != AppendMode::Bind
            && self.start.is_some_and(|start| position < start);
        below || self.content(position).is_some()
    }
}

impl Unit {
    pub(super) fn read(
        &mut self,
        now: Time,
        to: ReplyTo,
        log: LogId,
        asked: AskedSlot,
        word: Option<(TermStart, Binding)>,
        out: &mut UnitEffects,
    ) {
        let mut after = 0;
        let mut slot = self.content(log, asked, &mut after);
        if slot.is_none() {
            slot = self.fill(now, log, asked, word, &mut after, out);
        }
        let unsynced = match slot {
            Some(SlotAnswer::Junk) => planted(LogMutant::JunkUnsynced),
            _ => planted(LogMutant::ReadUnsynced),
        };
        after = if unsynced { 0 } else { after };
        let term = self.state.term(log);
        let answer = UnitAnswer::Slot {
            position: asked.position,
            slot: slot.unwrap_or(SlotAnswer::Unwritten),
            stale: (asked.term < term).then_some(term),
        };
        self.reply(to, log, after, answer, out);
    }

    /// The content of a position that has one. `after` becomes the entry that it rests on.
    fn content(
        &self,
        log: LogId,
        asked: AskedSlot,
        after: &mut u64,
    ) -> Option<SlotAnswer<DataPlace>> {
        let share = self.state.share(log)?;
        let found = share.content(asked.position);
        if found.is_some() {
            *after = self.settled_at(log, asked.position);
            return found;
        }
        // A position below the start that its owner lacks is junk: answered only to one who knows the unit's own term, for others may
        // have asked a wrong owner (rule 5).
        let start = match asked.term == share.term {
            true => Some(asked.start),
            false => share.start.filter(|_| planted(LogMutant::WrongOwnerJunk)),
        };
        let below = start.is_some_and(|start| asked.position < start);
        if share.options.mode != AppendMode::Bind && below {
            *after = self.settled(log);
            return Some(SlotAnswer::Junk);
        }
        None
    }

    /// The reader brings the sequencer's word on the position: it counts as the binding, and a binding that waited long enough becomes junk
    /// (rule 14, row L5).
    fn fill(
        &mut self,
        now: Time,
        log: LogId,
        asked: AskedSlot,
        word: Option<(TermStart, Binding)>,
        after: &mut u64,
        out: &mut UnitEffects,
    ) -> Option<SlotAnswer<DataPlace>> {
        if planted(LogMutant::FillUntold) && self.state.share(log).is_some() {
            let entry = Entry::Junk {
                log,
                position: asked.position,
                count: 1,
            };
            *after = self.make(log, entry, asked.position, out);
            return Some(SlotAnswer::Junk);
        }
        let (term, binding) = word?;
        let own = term.term == self.state.term(log) || planted(LogMutant::FillOfOldTerm);
        let is_sound = own && is_wellformed(&binding);
        if !is_sound || !(binding.position..binding.end()).contains(&asked.position) {
            return None;
        }
        let first = binding.position;
        self.bind(now, log, term, binding, None, out);
        let wait = self.state.share(log)?.options.read_hole_us;
        let pending = self.soft.get(&log)?.pending.get(&first);
        if pending.is_some_and(|p| now.since(p.since).as_micros() >= u128::from(wait)) {
            self.junk_pending(log, first, out);
        }
        self.content(log, asked, after)
    }

    pub(super) fn read_page(&self, to: ReplyTo, log: LogId, page: u64, out: &mut UnitEffects) {
        let share = self.state.share(log);
        let runs = share.and_then(|share| share.pages.get(&page).cloned());
        let after = match runs.is_some() {
            true => self.settled(log),
            false => 0,
        };
        self.reply(to, log, after, UnitAnswer::Page { page, runs }, out);
    }

    pub(super) fn punch(
        &mut self,
        to: ReplyTo,
        log: LogId,
        position: Position,
        out: &mut UnitEffects,
    ) {
        let share = self.state.share(log);
        let is_decided = share.is_some_and(|share| share.has_decided(position));
        if !is_decided {
            // A record that comes there later would stay, and whoever gave it up would take it to be gone.
            let slot = SlotAnswer::Unwritten;
            let stale = None;
            let answer = UnitAnswer::Slot {
                position,
                slot,
                stale,
            };
            return self.reply(to, log, 0, answer, out);
        }
        let after = match share.and_then(|share| share.slots.get(position)) {
            Some(Slot::Data(_)) => {
                let entry = Entry::Punch { log, position };
                self.make(log, entry, position, out)
            }
            _ => self.settled(log),
        };
        self.reply(to, log, after, UnitAnswer::Punched { position }, out);
    }
}
