//! The sessions of a client: one for new appends, and those before it, as long as appends of theirs are in flight.

use staves_model::Time;

use super::append_error::AppendError;
use super::appender::{Appender, AppenderEffects};
use crate::message::{SequencerOp, SequencerRequest};
use crate::types::{AppendId, Low, SessionId};

/// The session that new appends are of.
#[derive(Debug)]
pub(super) struct ClientSession {
    /// None before the first, and once it has expired.
    current: Option<(SessionId, Time)>,
    /// The number of the question for another, and the time at which it is asked again.
    asked: Option<(u64, Time)>,
    /// The number of the next question: an answer to one before is none to it, and so no session is begun twice.
    nonce: u64,
}

impl ClientSession {
    pub(super) fn new(nonce: u64) -> ClientSession {
        ClientSession {
            current: None,
            asked: None,
            nonce,
        }
    }
}

impl Appender {
    /// True if the client has a session for its appends.
    pub fn has_session(&self) -> bool {
        self.session.current.is_some()
    }

    /// The id of an append, once it has a session.
    pub(super) fn id(&self, seq: u32) -> Option<AppendId> {
        let session = self.in_flight.get(&seq)?.session?;
        Some(AppendId { session, seq })
    }

    /// The mark of a session below which the client awaits nothing.
    pub(super) fn low(&self, session: SessionId) -> Low {
        let mut all = self.in_flight.iter();
        let first = all.find(|(_, append)| append.session == Some(session));
        first.map_or(self.next_seq, |(seq, _)| *seq)
    }

    /// The append's session: the present one, if it was never sent before. False if there is none yet.
    pub(super) fn takes_session(&mut self, seq: u32) -> bool {
        let current = self.session.current.map(|(session, _)| session);
        let Some(append) = self.in_flight.get_mut(&seq) else {
            return false;
        };
        append.session = append.session.or(current);
        append.session.is_some()
    }

    /// A session that was used for long is given up for another. Appends of it that are in flight keep it, and until the other is here new ones
    /// are of it, too.
    pub(super) fn renew_session(&mut self, now: Time, out: &mut AppenderEffects) {
        let old = |(_, since): (SessionId, Time)| now.since(since) >= self.limits.session_age;
        if !self.session.current.is_some_and(old) {
            return;
        }
        if self.in_flight.is_empty() {
            self.end_session(out);
        }
        self.seek_session(now, out);
    }

    /// Asks for a session where there is none, and asks again.
    pub(super) fn ask_session(&mut self, now: Time, out: &mut AppenderEffects) {
        let due = match self.session.asked {
            Some((_, again)) => now >= again,
            None => self.session.current.is_none(),
        };
        if due {
            self.session.asked = None;
            self.seek_session(now, out);
        }
    }

    /// The sequencer is another: what was asked of the last one is asked of it.
    pub(super) fn ask_session_anew(&mut self, now: Time, out: &mut AppenderEffects) {
        if self.session.asked.take().is_some() {
            self.seek_session(now, out);
        }
    }

    fn seek_session(&mut self, now: Time, out: &mut AppenderEffects) {
        if self.session.asked.is_some() {
            return;
        }
        let again = now + self.limits.retry;
        self.session.nonce = self.session.nonce.wrapping_add(1);
        let nonce = self.session.nonce;
        self.session.asked = Some((nonce, again));
        self.send_sequencer(SequencerOp::OpenSession { nonce }, out);
    }

    fn send_sequencer(&self, op: SequencerOp, out: &mut AppenderEffects) {
        let log = self.view.log;
        match self.view.sequencer {
            Some(sequencer) => out
                .sequencers
                .push((sequencer, SequencerRequest { log, op })),
            None => out.view_wanted = true,
        }
    }

    pub(super) fn session_opened(
        &mut self,
        now: Time,
        nonce: u64,
        session: SessionId,
        out: &mut AppenderEffects,
    ) {
        if self.session.asked.is_none_or(|(asked, _)| asked != nonce) {
            return;
        }
        self.session.asked = None;
        let before = self.session.current.replace((session, now));
        self.retire(before.map(|(session, _)| session), out);
        for seq in self.seqs(|append| append.session.is_none()) {
            self.send(now, seq, out);
        }
    }

    /// An append's session is over: whether the append is in the log is not known. What was never sent goes into the next session.
    pub(super) fn session_over(&mut self, now: Time, id: AppendId, out: &mut AppenderEffects) {
        if self
            .session
            .current
            .is_some_and(|(session, _)| session == id.session)
        {
            self.session.current = None;
            self.seek_session(now, out);
        }
        if let Some(seq) = self.own(id) {
            self.finish(seq, Err(AppendError::Expired), out);
        }
    }

    /// Ends a session that has neither new appends nor any in flight.
    pub(super) fn retire(&mut self, session: Option<SessionId>, out: &mut AppenderEffects) {
        let current = self.session.current.map(|(session, _)| session);
        let Some(session) = session.filter(|session| Some(*session) != current) else {
            return;
        };
        let used = |append: &super::in_flight::InFlightAppend| append.session == Some(session);
        if !self.in_flight.values().any(used) {
            self.send_sequencer(SequencerOp::EndSession { session }, out);
        }
    }

    /// Ends the client's session: it sends nothing more, and what is in flight is given up. To be called before the client goes, so that the log can
    /// forget it at once. A client that goes without is forgotten when there are too many of newer ones.
    pub fn end_session(&mut self, out: &mut AppenderEffects) {
        if let Some((session, _)) = self.session.current.take() {
            self.send_sequencer(SequencerOp::EndSession { session }, out);
        }
    }
}
