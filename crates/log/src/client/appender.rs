//! The appends of one client to one log.
//!
//! An append keeps its id through all retries, and is over with the one answer of the unit that has it (rule 10), or at its deadline, when
//! nothing is known of it. It then lies below its session's mark, so that what was late is refused.

use std::collections::BTreeMap;
use std::time::Duration;

use staves_model::Time;

use super::append_error::AppendError;
use super::bounds::AppendBound;
use super::full_units::FullUnits;
use super::in_flight::InFlightAppend;
use super::prediction::TokenPrediction;
use super::session::ClientSession;
use crate::message::{
    AppendCondition, Records, SequencerReply, SequencerRequest, UnitReply, UnitRequest,
};
use crate::mutant::{LogMutant, planted};
use crate::types::{AppendId, LogView, Position, SESSION_WINDOW, SequencerId, Term, UnitId};

/// The bounds and times of a client's appends.
#[derive(Clone, Debug)]
pub struct AppendLimits {
    /// Most appends in flight.
    pub in_flight_max: usize,
    /// Most bytes of them (one append may pass it).
    pub in_flight_bytes_max: u64,
    /// An append is sent again after this time, later ones after more: longer than a round trip and a sync.
    pub retry: Duration,
    /// An append is given up after this time.
    pub deadline: Duration,
    /// The next append after this time is the first of another session: those that are used stay far from the lowest, which end.
    pub session_age: Duration,
}

impl Default for AppendLimits {
    fn default() -> AppendLimits {
        AppendLimits {
            in_flight_max: 1024,
            in_flight_bytes_max: 64 << 20,
            retry: Duration::from_millis(500),
            deadline: Duration::from_secs(10),
            session_age: Duration::from_secs(30),
        }
    }
}

/// The input of a step.
#[derive(Clone, Debug)]
pub enum AppenderEvent {
    /// Append these records, in one piece.
    Append {
        /// The caller's number.
        op: u64,
        /// The records.
        records: Records,
        /// Their tags.
        tags: Vec<u64>,
        /// They are appended only if this holds.
        condition: Option<AppendCondition>,
    },
    /// A reply of a unit.
    Unit(UnitReply),
    /// A reply of a sequencer.
    Sequencer(SequencerReply),
    /// A unit had no room for the data of an append, and has nothing of that message.
    NoRoom(AppendId, UnitId),
    /// The log's open term.
    View(Box<LogView>),
    /// Time has passed.
    Tick,
}

/// The output of a step.
#[derive(Default, Debug)]
pub struct AppenderEffects {
    /// Requests to units.
    pub units: Vec<(UnitId, UnitRequest)>,
    /// Requests to sequencers.
    pub sequencers: Vec<(SequencerId, SequencerRequest)>,
    /// The log's record is needed anew.
    pub view_wanted: bool,
    /// Appends that are over, by the caller's number.
    pub done: Vec<(u64, Result<Appended, AppendError>)>,
}

/// The place of an append: durable on all copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    /// The append.
    pub id: AppendId,
    /// Its first position.
    pub position: Position,
    /// Its records.
    pub count: u32,
}

/// The appends of one client to one log.
#[derive(Debug)]
pub struct Appender {
    pub(super) session: ClientSession,
    pub(super) limits: AppendLimits,
    pub(super) next_seq: u32,
    bytes: u64,
    pub(super) turn: usize,
    /// The time at which the last turn began, and the bytes since.
    pub(super) round_at: Time,
    pub(super) round_bytes: usize,
    pub(super) view: LogView,
    pub(super) in_flight: BTreeMap<u32, InFlightAppend>,
    pub(super) prediction: TokenPrediction,
    pub(super) full: FullUnits,
}

impl Appender {
    /// A client, with a number by chance, which spreads its appends over units.
    pub fn new(chance: u64, view: LogView, limits: AppendLimits) -> Appender {
        Appender {
            session: ClientSession::new(chance),
            limits,
            next_seq: 0,
            bytes: 0,
            turn: chance as usize,
            round_at: Time::ZERO,
            round_bytes: 0,
            view,
            in_flight: BTreeMap::new(),
            prediction: TokenPrediction::default(),
            full: FullUnits::default(),
        }
    }

    /// The term that it knows.
    pub fn view(&self) -> &LogView {
        &self.view
    }

    /// Appends in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// True while the log refuses an append that is in flight, since it is full.
    pub fn is_full(&self) -> bool {
        let is_full = |append: &InFlightAppend| append.late() == AppendError::Full;
        self.in_flight.values().any(is_full)
    }

    /// Takes one event.
    pub fn step(&mut self, now: Time, event: AppenderEvent, out: &mut AppenderEffects) {
        match event {
            AppenderEvent::Append {
                op,
                records,
                tags,
                condition,
            } => {
                let append = InFlightAppend::new(op, records, tags, condition);
                if let Err(error) = self.begin(now, append, out) {
                    out.done.push((op, Err(error)));
                }
            }
            AppenderEvent::Unit(reply) if reply.log == self.view.log => {
                self.unit_answer(now, reply.answer, out);
            }
            AppenderEvent::Sequencer(reply) if reply.log == self.view.log => {
                self.sequencer_answer(now, reply.answer, out);
            }
            AppenderEvent::Unit(_) | AppenderEvent::Sequencer(_) => {}
            AppenderEvent::NoRoom(id, unit) => self.found_no_room(now, (id, unit), out),
            AppenderEvent::View(view) => self.learn_view(now, *view, out),
            AppenderEvent::Tick => self.tick(now, out),
        }
    }

    fn begin(
        &mut self,
        now: Time,
        mut append: InFlightAppend,
        out: &mut AppenderEffects,
    ) -> Result<(), AppendError> {
        AppendBound::check(self.view.options.mode, &append.records, &append.tags)
            .map_err(AppendError::Invalid)?;
        let bytes = append.records.bytes.len() as u64;
        let many = self.in_flight.len() >= self.limits.in_flight_max;
        let large = self.bytes > 0 && self.bytes + bytes > self.limits.in_flight_bytes_max;
        let lowest = self.in_flight.keys().next().copied();
        let wide = lowest.is_some_and(|low| self.next_seq - low >= SESSION_WINDOW);
        if self.next_seq == u32::MAX - 1 {
            return Err(AppendError::Exhausted);
        }
        if many || large || wide {
            return Err(AppendError::Busy);
        }
        let seq = self.next_seq;
        self.next_seq += 1;
        self.bytes += bytes;
        self.renew_session(now, out);
        append.give_up_at = now + self.limits.deadline;
        self.in_flight.insert(seq, append);
        self.send(now, seq, out);
        Ok(())
    }

    fn tick(&mut self, now: Time, out: &mut AppenderEffects) {
        let over = |append: &InFlightAppend| now >= append.give_up_at;
        let late: Vec<u32> = self.seqs(over);
        for seq in late {
            let append = self.in_flight.get(&seq);
            let error = append.map_or(AppendError::Timeout, InFlightAppend::late);
            self.finish(seq, Err(error), out);
        }
        self.ask_session(now, out);
        for seq in self.seqs(|append| now >= append.retry_at) {
            self.send(now, seq, out);
        }
    }

    pub(super) fn seqs(&self, which: impl Fn(&InFlightAppend) -> bool) -> Vec<u32> {
        let which = self.in_flight.iter().filter(|(_, append)| which(append));
        which.map(|(seq, _)| *seq).collect()
    }

    /// A newer term: everything in flight is sent again by it.
    fn learn_view(&mut self, now: Time, view: LogView, out: &mut AppenderEffects) {
        let newer = view.log == self.view.log && view.term > self.view.term;
        if !newer {
            return;
        }
        self.view = view;
        self.full = FullUnits::default();
        self.ask_session_anew(now, out);
        for append in self.in_flight.values_mut() {
            append.bound = false;
            append.refused.begin_anew();
            match (&mut append.token, planted(LogMutant::TokenRestamped)) {
                (Some((term, _)), true) => term.term = self.view.term,
                (token, _) => *token = None,
            }
        }
        for seq in self.seqs(|append| append.tries > 0) {
            self.send(now, seq, out);
        }
    }

    pub(super) fn stale(&self, term: Term, out: &mut AppenderEffects) {
        out.view_wanted |= term > self.view.term;
    }

    /// The seq of an append that is in flight.
    pub(super) fn own(&self, id: AppendId) -> Option<u32> {
        let append = self.in_flight.get(&id.seq)?;
        (append.session == Some(id.session)).then_some(id.seq)
    }

    /// Sends nothing of what is in flight again. The caller has told those who wait.
    pub fn give_up_all(&mut self) {
        self.in_flight.clear();
        self.bytes = 0;
    }

    pub(super) fn finish(
        &mut self,
        seq: u32,
        result: Result<Appended, AppendError>,
        out: &mut AppenderEffects,
    ) {
        if let Some(append) = self.in_flight.remove(&seq) {
            self.bytes -= append.records.bytes.len() as u64;
            out.done.push((append.op, result));
            self.retire(append.session, out);
        }
    }
}
