//! The sequencer of one log in one term: gives out positions, and forgets everything when the term ends.
//!
//! A machine is made for a committed term. It seals every unit of the last open projection and every new one, rebuilds what it must know from
//! what they have, has the term opened, and only then acts. A node that restarts, or learns of a higher term, drops the machine: it never
//! resumes (rule 1).

mod active;
mod assign;
mod condition;
mod growth;
mod limits;
mod map;
mod positions;
mod predict;
mod rebuild;
mod record;
mod retention;
mod seat;
mod session;
mod timers;

use staves_model::Time;

use crate::message::{
    Decision, RecordReply, RecordRequest, SequencerAnswer, SequencerOp, SequencerReply,
    SequencerRequest, TermStart, UnitAnswer, UnitOp, UnitReply, UnitRequest,
};
use crate::mutant::{LogMutant, planted};
use crate::types::{LogId, LogRecord, Position, SequencerId, Term, UnitId};
use crate::unit::ReplyTo;
use active::{ActiveTerm, IdPlace, OpenBinding, TailCheck, TrimAsked};
use rebuild::SealRound;

pub use limits::SequencerLimits;
pub use seat::SequencerSeat;

/// The input of a step.
#[derive(Clone, Debug)]
pub enum SequencerEvent {
    /// A request of a client, a reader or a unit.
    Request(ReplyTo, SequencerRequest),
    /// The reply of a unit.
    Unit(UnitId, UnitReply),
    /// The reply of the log's home.
    Home(RecordReply),
    /// Time has passed.
    Tick,
}

/// The output of a step.
#[derive(Default, Debug)]
pub struct SequencerEffects {
    /// Requests to units.
    pub units: Vec<(UnitId, UnitRequest)>,
    /// Replies.
    pub replies: Vec<(ReplyTo, SequencerReply)>,
    /// Requests to the log's home.
    pub home: Vec<RecordRequest>,
}

/// The phases of a term.
#[derive(Debug)]
enum Phase {
    Sealing(SealRound),
    /// All is sealed; the home is to open the term with this start.
    Opening(SealRound, Position),
    Active(Box<ActiveTerm>),
    /// A higher term exists, or may exist.
    Deposed(Term),
}

/// The sequencer of one log in one term.
#[derive(Debug)]
pub struct Sequencer {
    id: SequencerId,
    limits: SequencerLimits,
    record: LogRecord,
    term: Term,
    phase: Phase,
    called: Time,
    /// Calls since the last answer that the phase has waited for.
    unheard: u32,
    /// The last look at the log's record.
    viewed: Time,
    /// The record has changed since, perhaps.
    view_due: bool,
    unclaimed: u64,
}

impl Sequencer {
    /// The machine of a term that was committed for this sequencer. None if the record names another one, or no term to open.
    pub fn new(
        now: Time,
        id: SequencerId,
        record: LogRecord,
        limits: SequencerLimits,
        out: &mut SequencerEffects,
    ) -> Option<Sequencer> {
        let lead = record.lead.as_ref().filter(|lead| lead.sequencer == id)?;
        let term = lead.term;
        let round = SealRound::new(record.to_seal());
        let mut sequencer = Sequencer {
            id,
            limits,
            record,
            term,
            phase: Phase::Sealing(round),
            called: now,
            unheard: 0,
            viewed: now,
            view_due: false,
            unclaimed: 0,
        };
        sequencer.call(now, out);
        Some(sequencer)
    }

    /// The log.
    pub fn log(&self) -> LogId {
        self.record.view.log
    }

    /// The term.
    pub fn term(&self) -> Term {
        self.term
    }

    /// True once the term is open and until it is known to be over.
    pub fn is_active(&self) -> bool {
        matches!(self.phase, Phase::Active(_))
    }

    /// True if the machine is to be dropped.
    pub fn is_deposed(&self) -> bool {
        matches!(self.phase, Phase::Deposed(_))
    }

    /// The next position and the decided prefix, of a term that is open.
    pub fn tail(&self) -> Option<(Position, Position)> {
        match &self.phase {
            Phase::Active(active) => Some((active.next, active.prefix())),
            _ => None,
        }
    }

    /// The next position and the first that is not trimmed, of a term that is open.
    pub fn ends(&self) -> Option<(Position, Position)> {
        match &self.phase {
            Phase::Active(active) => Some((active.next, active.trim)),
            _ => None,
        }
    }

    /// Positions of the last term that no unit claimed when this one began: they are junk (bind; I8).
    pub fn unclaimed(&self) -> u64 {
        self.unclaimed
    }

    /// True if the term is open, everything is decided, and nothing waits.
    pub fn is_at_rest(&self) -> bool {
        let Phase::Active(active) = &self.phase else {
            return false;
        };
        let page_waits = active.map.page_end().is_some_and(|end| end <= active.next);
        active.open.is_empty() && active.queues.len() == 0 && !page_waits && !self.view_due
    }

    /// The term's record: its projection does not change.
    pub fn record(&self) -> &LogRecord {
        &self.record
    }

    /// Takes one event.
    pub fn step(&mut self, now: Time, event: SequencerEvent, out: &mut SequencerEffects) {
        match event {
            SequencerEvent::Request(to, request) if request.log == self.log() => {
                self.request(now, to, request.op, out);
            }
            SequencerEvent::Request(to, request) => {
                let answer = SequencerAnswer::NotSequencer {
                    term: Term::default(),
                };
                let log = request.log;
                out.replies.push((to, SequencerReply { log, answer }));
            }
            SequencerEvent::Unit(unit, reply) if reply.log == self.log() => {
                self.unit_answer(now, unit, reply.answer, out);
            }
            SequencerEvent::Unit(..) => {}
            SequencerEvent::Home(reply) => self.home_reply(now, reply, out),
            SequencerEvent::Tick => self.tick(now, out),
        }
    }

    fn term_start(&self) -> TermStart {
        TermStart {
            term: self.term,
            start: self.record.view.start,
            sequencer: self.id,
        }
    }

    fn send(&self, unit: UnitId, op: UnitOp, out: &mut SequencerEffects) {
        let log = self.log();
        out.units.push((unit, UnitRequest { log, op }));
    }

    fn reply(&self, to: ReplyTo, answer: SequencerAnswer, out: &mut SequencerEffects) {
        let log = self.log();
        out.replies.push((to, SequencerReply { log, answer }));
    }

    fn request(&mut self, now: Time, to: ReplyTo, op: SequencerOp, out: &mut SequencerEffects) {
        if let SequencerOp::Decided(decision) = op {
            self.decided(now, decision, out);
            return self.reply(to, SequencerAnswer::Noted, out);
        }
        if let Some(answer) = self.inactive(&op) {
            return self.reply(to, answer, out);
        }
        match op {
            SequencerOp::Seq {
                id,
                count,
                tags,
                unit,
                low,
                lost,
                condition,
            } => {
                let seq = assign::SeqRequest {
                    id,
                    count,
                    tags,
                    unit,
                    low,
                    lost,
                    condition,
                };
                let answer = self.seq(now, seq, out);
                self.reply(to, answer, out);
            }
            SequencerOp::Where { position } => self.tell_where(to, position, out),
            SequencerOp::Check { tag } => self.check_tail(now, to, tag, out),
            SequencerOp::Trim { position } => self.trim(now, to, position, out),
            SequencerOp::Wait {
                position,
                tag,
                wait_ms,
            } => self.wait(now, to, (position, tag), wait_ms, out),
            SequencerOp::ReadRecord => {
                self.view_due = true;
                self.view_if_due(now, out);
                self.reply(to, SequencerAnswer::Noted, out);
            }
            SequencerOp::OpenSession { nonce } => self.open_session(to, nonce, out),
            SequencerOp::EndSession { session } => self.end_session(to, session, out),
            SequencerOp::Decided(_) => {}
        }
    }

    /// The answer of a term that is not open.
    fn inactive(&self, op: &SequencerOp) -> Option<SequencerAnswer> {
        match &self.phase {
            Phase::Active(_) => None,
            Phase::Deposed(term) => Some(SequencerAnswer::NotSequencer { term: *term }),
            Phase::Sealing(_) | Phase::Opening(..) => {
                let id = match op {
                    SequencerOp::Seq { id, .. } => Some(*id),
                    _ => None,
                };
                Some(SequencerAnswer::Busy { id })
            }
        }
    }

    fn unit_answer(
        &mut self,
        now: Time,
        unit: UnitId,
        answer: UnitAnswer,
        out: &mut SequencerEffects,
    ) {
        match answer {
            UnitAnswer::Stale { term } => self.depose_below(term, out),
            UnitAnswer::Sealed { .. } | UnitAnswer::SealedItems { .. } => {
                self.sealed(now, unit, answer, out);
            }
            UnitAnswer::Decided(decision) => self.decided(now, decision, out),
            UnitAnswer::Confirmed { term, nonce } if term == self.term => {
                self.confirmed(nonce, out);
            }
            UnitAnswer::PageWritten { term, page } if term == self.term => {
                self.page_written(now, page, out);
            }
            UnitAnswer::Trimmed { position } => self.unit_trimmed(unit, position),
            UnitAnswer::NotSealed { .. } => self.look_for_log(now, out),
            _ => {}
        }
    }

    fn decided(&mut self, now: Time, decision: Decision, out: &mut SequencerEffects) {
        if decision.term != self.term {
            return self.depose_below(decision.term, out);
        }
        self.settle(now, decision);
        self.write_page(now, out);
        self.answer_checks(out);
        self.answer_waits(out);
        self.drain_queues(now, out);
    }

    /// A higher term is the end of this one.
    fn depose_below(&mut self, term: Term, out: &mut SequencerEffects) {
        if term <= self.term {
            return;
        }
        let phase = std::mem::replace(&mut self.phase, Phase::Deposed(term));
        if let Phase::Active(active) = phase {
            let checks = active.checks.values().map(|check| check.to);
            let trims = active.trims.iter().map(|trim| trim.to);
            let waits = active.waits.values().map(|wait| wait.to);
            for to in checks.chain(trims).chain(waits) {
                self.reply(to, SequencerAnswer::NotSequencer { term }, out);
            }
        }
    }

    /// Checks what must hold.
    ///
    /// # Errors
    /// The broken rule.
    pub fn check(&self) -> Result<(), String> {
        let Phase::Active(active) = &self.phase else {
            return Ok(());
        };
        // One skip over all units may start below the bound.
        let units = self.record.view.projection.last().len();
        if active.open.len() > self.limits.window + units {
            return Err("I9: more bindings are open than the window has".into());
        }
        if active.prefix() > active.next {
            return Err("the decided prefix is past the next position".into());
        }
        let ahead = planted(LogMutant::PageEarly) || planted(LogMutant::UnclaimedLeft);
        match active.map.check(active.next) {
            Err(_) if ahead => Ok(()),
            checked => checked,
        }
    }
}

#[cfg(test)]
mod tests;
