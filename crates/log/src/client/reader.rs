//! The reads of one client of one log: positions, the tail, trims.
//!
//! A position's unit is found by arithmetic (corfu, predict), or by its map page or the sequencer (bind). A unit that has nothing at the
//! position promises nothing: the reader asks the sequencer, and brings its word to the unit, which then may make the position junk. It never
//! passes an undecided position (rule 17).

mod words;

use std::collections::BTreeMap;

use bytes::Bytes;
use staves_model::Time;

use super::read_ops::{ReadFailure, ReadLimits, ReadOp, ReadResult, ReaderEffects, ReaderEvent};
use crate::message::{
    SequencerAnswer, SequencerOp, SequencerRequest, SlotAnswer, TermStart, UnitAnswer, UnitOp,
    UnitRequest,
};
use crate::mutant::{LogMutant, planted};
use crate::types::{
    AppendMode, Binding, LogView, PageEntry, PageRun, Position, Term, UnitId, page_entry,
};

/// An operation in flight.
#[derive(Clone, Debug)]
struct ReadInFlight {
    op: ReadOp,
    tries: u32,
    again_at: Time,
    give_up_at: Time,
}

/// The reads of one client of one log.
#[derive(Debug)]
pub struct LogReader {
    limits: ReadLimits,
    view: LogView,
    ops: BTreeMap<u64, ReadInFlight>,
    pages: BTreeMap<u64, Vec<PageRun>>,
}

impl LogReader {
    /// A reader of the log that a view names.
    pub fn new(view: LogView, limits: ReadLimits) -> LogReader {
        LogReader {
            limits,
            view,
            ops: BTreeMap::new(),
            pages: BTreeMap::new(),
        }
    }

    /// The term that it knows.
    pub fn view(&self) -> &LogView {
        &self.view
    }

    /// Operations in flight.
    pub fn in_flight(&self) -> usize {
        self.ops.len()
    }

    /// Takes one event.
    pub fn step(&mut self, now: Time, event: ReaderEvent, out: &mut ReaderEffects) {
        match event {
            ReaderEvent::Begin(number, op) => self.begin(now, number, op, out),
            ReaderEvent::Unit(number, reply) if reply.log == self.view.log => {
                self.unit_answer(now, number, reply.answer, out);
            }
            ReaderEvent::Sequencer(number, reply) if reply.log == self.view.log => {
                self.sequencer_answer(now, number, reply.answer, out);
            }
            ReaderEvent::Unit(..) | ReaderEvent::Sequencer(..) => {}
            ReaderEvent::View(view) => {
                if view.log == self.view.log && view.term >= self.view.term {
                    self.view = *view;
                }
            }
            ReaderEvent::Tick => self.tick(now, out),
        }
    }

    fn begin(&mut self, now: Time, number: u64, op: ReadOp, out: &mut ReaderEffects) {
        if self.ops.len() >= self.limits.in_flight_max {
            out.done.push((number, Err(ReadFailure::Busy)));
            return;
        }
        let in_flight = ReadInFlight {
            op,
            tries: 0,
            again_at: now,
            give_up_at: now + self.limits.deadline,
        };
        self.ops.insert(number, in_flight);
        self.send(now, number, out);
    }

    fn tick(&mut self, now: Time, out: &mut ReaderEffects) {
        let due = |which: fn(&ReadInFlight) -> Time| -> Vec<u64> {
            let due = self.ops.iter().filter(|(_, op)| now >= which(op));
            due.map(|(number, _)| *number).collect()
        };
        let (late, again) = (due(|op| op.give_up_at), due(|op| op.again_at));
        for number in late {
            self.ops.remove(&number);
            out.done.push((number, Err(ReadFailure::Timeout)));
        }
        for number in again {
            self.send(now, number, out);
        }
    }

    /// Sends an operation, first or again.
    fn send(&mut self, now: Time, number: u64, out: &mut ReaderEffects) {
        let (retry, wait) = (self.limits.retry, self.limits.wait);
        let Some(in_flight) = self.ops.get_mut(&number) else {
            return;
        };
        in_flight.tries += 1;
        let (op, tries) = (in_flight.op, in_flight.tries);
        in_flight.again_at = match op {
            ReadOp::Wait { .. } => now + wait + retry,
            _ => now + retry,
        };
        out.view_wanted |= tries > 1 && tries % 2 == 0;
        match op {
            ReadOp::Read(position) | ReadOp::Punch(position) => {
                self.send_by_map(now, number, position, tries, out);
            }
            ReadOp::Tail(tag) => self.ask_sequencer(number, SequencerOp::Check { tag }, out),
            ReadOp::Trim(position) => {
                self.ask_sequencer(number, SequencerOp::Trim { position }, out);
            }
            ReadOp::Wait { position, tag } => {
                let op = SequencerOp::Wait {
                    position,
                    tag,
                    wait_ms: wait.as_millis() as u32,
                };
                self.ask_sequencer(number, op, out);
            }
        }
    }

    /// To the position's unit, or to one that knows it.
    fn send_by_map(
        &mut self,
        now: Time,
        number: u64,
        position: Position,
        tries: u32,
        out: &mut ReaderEffects,
    ) {
        if self.view.options.mode != AppendMode::Bind {
            if let Some(owner) = self.view.projection.owner(position) {
                self.ask_unit(number, owner, position, None, out);
            }
            return;
        }
        let positions = u64::from(self.view.options.page_positions).max(1);
        let page = position / positions;
        if self.pages.contains_key(&page) {
            return self.follow_page(now, number, position, page, out);
        }
        // Below the term's start a page is likely; a page that is missing, and every second try, the sequencer answers.
        let old = (page + 1).saturating_mul(positions) <= self.view.start;
        match old == (tries % 2 == 1) {
            true => self.ask_page(number, page, out),
            false => self.ask_sequencer(number, SequencerOp::Where { position }, out),
        }
    }

    fn ask_page(&self, number: u64, page: u64, out: &mut ReaderEffects) {
        let first = page.saturating_mul(self.view.options.page_positions.into());
        if let Some(owner) = self.view.projection.owner(first) {
            self.to_unit(number, owner, UnitOp::ReadPage { page }, out);
        }
    }

    fn to_unit(&self, number: u64, unit: UnitId, op: UnitOp, out: &mut ReaderEffects) {
        let log = self.view.log;
        out.units.push((number, unit, UnitRequest { log, op }));
    }

    fn ask_unit(
        &self,
        number: u64,
        unit: UnitId,
        position: Position,
        word: Option<(TermStart, Binding)>,
        out: &mut ReaderEffects,
    ) {
        let punch = self
            .ops
            .get(&number)
            .is_some_and(|op| matches!(op.op, ReadOp::Punch(_)));
        let op = match punch {
            true => UnitOp::Punch { position },
            false => UnitOp::Read {
                position,
                term: self.view.term,
                start: self.view.start,
                word,
            },
        };
        self.to_unit(number, unit, op, out);
    }

    fn ask_sequencer(&self, number: u64, op: SequencerOp, out: &mut ReaderEffects) {
        let log = self.view.log;
        match self.view.sequencer {
            Some(sequencer) => {
                let request = SequencerRequest { log, op };
                out.sequencers.push((number, sequencer, request));
            }
            None => out.view_wanted = true,
        }
    }

    fn follow_page(
        &mut self,
        now: Time,
        number: u64,
        position: Position,
        page: u64,
        out: &mut ReaderEffects,
    ) {
        let positions = u64::from(self.view.options.page_positions).max(1);
        let runs = self.pages.get(&page);
        let entry = runs.and_then(|runs| page_entry(runs, position % positions));
        match entry {
            Some(PageEntry::Unit(unit)) => self.ask_unit(number, unit, position, None, out),
            Some(PageEntry::Junk) => self.found(number, position, SlotAnswer::Junk, out),
            Some(PageEntry::Trimmed) => self.found(number, position, SlotAnswer::Trimmed, out),
            None => self.poll(now, number),
        }
    }

    /// The position of a read or a punch.
    fn position_of(&self, number: u64) -> Option<Position> {
        match self.ops.get(&number)?.op {
            ReadOp::Read(position) | ReadOp::Punch(position) => Some(position),
            ReadOp::Tail(_) | ReadOp::Trim(_) | ReadOp::Wait { .. } => None,
        }
    }

    fn poll(&mut self, now: Time, number: u64) {
        let limits = &self.limits;
        if let Some(in_flight) = self.ops.get_mut(&number) {
            in_flight.again_at = match in_flight.op {
                ReadOp::Wait { .. } => now + limits.wait_again,
                _ => now + limits.poll,
            };
        }
    }

    fn found(
        &mut self,
        number: u64,
        position: Position,
        slot: SlotAnswer<Bytes>,
        out: &mut ReaderEffects,
    ) {
        let punch = self
            .ops
            .get(&number)
            .is_some_and(|op| matches!(op.op, ReadOp::Punch(_)));
        let result = match punch {
            true => ReadResult::Trimmed,
            false => ReadResult::Slot(position, slot),
        };
        self.finish(number, result, out);
    }

    fn finish(&mut self, number: u64, result: ReadResult, out: &mut ReaderEffects) {
        if self.ops.remove(&number).is_some() {
            out.done.push((number, Ok(result)));
        }
    }

    fn learn_term(&self, term: Term, out: &mut ReaderEffects) {
        out.view_wanted |= term > self.view.term;
    }

    fn unit_answer(
        &mut self,
        now: Time,
        number: u64,
        answer: UnitAnswer<Bytes>,
        out: &mut ReaderEffects,
    ) {
        let Some(asked) = self.position_of(number) else {
            return;
        };
        match answer {
            UnitAnswer::Slot {
                position,
                slot,
                stale,
            } if position == asked => {
                self.learn_term(stale.unwrap_or_default(), out);
                match slot {
                    SlotAnswer::Unwritten => self.unwritten(now, number, position, out),
                    slot => self.found(number, position, slot, out),
                }
            }
            UnitAnswer::Page { page, runs } => match runs {
                Some(runs) => {
                    self.keep_page(page, runs);
                    self.follow_page(now, number, asked, page, out);
                }
                None => self.ask_sequencer(number, SequencerOp::Where { position: asked }, out),
            },
            UnitAnswer::Punched { position } if position == asked => {
                self.finish(number, ReadResult::Trimmed, out);
            }
            UnitAnswer::Stale { term } => self.learn_term(term, out),
            _ => {}
        }
    }

    fn keep_page(&mut self, page: u64, runs: Vec<PageRun>) {
        if self.pages.len() >= self.limits.pages_max && !self.pages.contains_key(&page) {
            self.pages.pop_first();
        }
        self.pages.insert(page, runs);
    }

    /// Nothing is there yet. The unit's word on it is no promise; the sequencer knows if it was given out.
    fn unwritten(&mut self, now: Time, number: u64, position: Position, out: &mut ReaderEffects) {
        if planted(LogMutant::ReaderSkips) {
            return self.found(number, position, SlotAnswer::Junk, out);
        }
        self.poll(now, number);
        let tries = self.ops.get(&number).map_or(0, |op| op.tries);
        // By the sequencer's word it came here, in bind; else every second answer leads to it.
        if self.view.options.mode != AppendMode::Bind && tries % 2 == 1 {
            self.ask_sequencer(number, SequencerOp::Where { position }, out);
        }
    }

    fn sequencer_answer(
        &mut self,
        now: Time,
        number: u64,
        answer: SequencerAnswer,
        out: &mut ReaderEffects,
    ) {
        if !self.ops.contains_key(&number) {
            return;
        }
        match answer {
            SequencerAnswer::Word {
                term,
                position,
                word,
            } if self.position_of(number) == Some(position) => {
                self.learn_term(term.term, out);
                self.take_word(number, position, term, word, out);
            }
            SequencerAnswer::Tail { tail, stream, trim } => match self.position_of(number) {
                Some(position) if position < tail => self.poll(now, number),
                Some(position) => self.finish(number, ReadResult::PastTail(position), out),
                None => self.finish(number, ReadResult::Tail { tail, stream, trim }, out),
            },
            SequencerAnswer::Grown { end } => {
                self.finish(number, ReadResult::Grown(end), out);
            }
            SequencerAnswer::Trimmed { done, .. } => {
                let result = match done {
                    true => ReadResult::Trimmed,
                    false => ReadResult::TrimPastDecided,
                };
                self.finish(number, result, out);
            }
            SequencerAnswer::NotSequencer { .. } => {
                out.view_wanted = true;
                self.poll(now, number);
            }
            SequencerAnswer::Busy { .. } => self.poll(now, number),
            _ => {}
        }
    }
}
