//! The appends of one client to one log.
//!
//! An append keeps its id through all retries, and is over with the one answer of the unit that has it (rule 10), or at its deadline, when
//! nothing is known of it. It then lies below its session's mark, so that what was late is refused.

use std::collections::BTreeMap;
use std::time::Duration;

use staves_model::Time;

use super::bounds::AppendBound;
use super::prediction::TokenPrediction;
use super::session::ClientSession;
use crate::message::{
    AppendCondition, Records, SequencerReply, SequencerRequest, TermStart, UnitReply, UnitRequest,
};
use crate::mutant::{LogMutant, planted};
use crate::types::{
    AppendId, Binding, LogView, Position, SESSION_WINDOW, SequencerId, SessionId, Term, UnitId,
};

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
    NoRoom(AppendId),
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

/// The reason why an append is over without a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AppendError {
    /// Too much is in flight. Nothing was sent.
    #[error("too many appends or bytes are in flight: wait for some of them")]
    Busy,
    /// All numbers of appends are used. Nothing was sent.
    #[error("this client has used all its numbers: open the log anew")]
    Exhausted,
    /// The append breaks a bound. Nothing was sent.
    #[error("{0}")]
    Invalid(AppendBound),
    /// No answer came in time: it may be in the log.
    #[error(
        "no unit acknowledged the append in time: it may be in the log; see that its units and its sequencer are up"
    )]
    Timeout,
    /// No unit that it was sent to had room for its data: it is not in the log.
    #[error(
        "no unit of the log had room for the append, which is not in the log: trim logs ('staves log trim'), delete some, or give their pool more ('staves pool set POOL --memory SIZE')"
    )]
    NoRoom,
    /// The log had more than it keeps until the deadline, and a cursor that had not passed it: the append may be in the log.
    #[error(
        "the log is full: it keeps what its oldest cursor has not passed; move or delete that cursor, trim the log, or let it discard old records. The append may be in the log: read its end before it is appended again"
    )]
    Full,
    /// Its condition does not hold, and never will: it is not in the log.
    #[error("the condition of the append does not hold: the tail is {tail}")]
    ConditionFailed {
        /// The tail of the condition's stream, or of the log.
        tail: Position,
    },
    /// A unit or sequencer refused it: it is not in the log.
    #[error("the log refused the append as malformed or given up: open the log anew")]
    Refused,
    /// Its session ended while it was under way: it may be in the log.
    #[error(
        "the session of the append expired while it was under way, for the log has seen too many newer ones: it may be in the log; read the log's end before it is appended again"
    )]
    Expired,
}

/// An append in flight.
#[derive(Clone, Debug)]
pub(super) struct InFlightAppend {
    pub op: u64,
    /// The session that it was first sent in; none before that.
    pub session: Option<SessionId>,
    pub records: Records,
    pub tags: Vec<u64>,
    pub condition: Option<AppendCondition>,
    /// The sequencer said last that the log is full.
    pub full: bool,
    /// The unit that its data goes to.
    pub unit: Option<UnitId>,
    /// The position that was predicted.
    pub guess: Option<Position>,
    /// Its token (corfu).
    pub token: Option<(TermStart, Binding)>,
    /// The sequencer named the unit: its data goes nowhere else.
    pub bound: bool,
    /// Messages that brought its data to units.
    pub sent: u32,
    /// Those of them that found no room.
    pub refused: u32,
    pub tries: u32,
    pub retry_at: Time,
    pub give_up_at: Time,
}

impl InFlightAppend {
    /// True if every message with its data found no room: no unit has it.
    pub fn is_nowhere(&self) -> bool {
        self.sent > 0 && self.sent == self.refused
    }

    fn new(
        op: u64,
        records: Records,
        tags: Vec<u64>,
        condition: Option<AppendCondition>,
    ) -> InFlightAppend {
        InFlightAppend {
            op,
            session: None,
            records,
            tags,
            condition,
            full: false,
            unit: None,
            guess: None,
            token: None,
            bound: false,
            sent: 0,
            refused: 0,
            tries: 0,
            retry_at: Time::ZERO,
            give_up_at: Time::ZERO,
        }
    }
}

/// The appends of one client to one log.
#[derive(Debug)]
pub struct Appender {
    pub(super) session: ClientSession,
    pub(super) limits: AppendLimits,
    pub(super) next_seq: u32,
    bytes: u64,
    pub(super) turn: usize,
    pub(super) view: LogView,
    pub(super) in_flight: BTreeMap<u32, InFlightAppend>,
    pub(super) prediction: TokenPrediction,
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
            view,
            in_flight: BTreeMap::new(),
            prediction: TokenPrediction::default(),
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
        self.in_flight.values().any(|append| append.full)
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
            AppenderEvent::NoRoom(id) => self.found_no_room(now, id, out),
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
            let error = match self.in_flight.get(&seq) {
                Some(append) if append.is_nowhere() => AppendError::NoRoom,
                Some(append) if append.full => AppendError::Full,
                _ => AppendError::Timeout,
            };
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
        self.ask_session_anew(now, out);
        for append in self.in_flight.values_mut() {
            append.bound = false;
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
