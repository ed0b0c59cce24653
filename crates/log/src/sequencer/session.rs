//! The sessions of clients: numbered here, known while there is room, and over once the floor has passed them (rule 11).

use super::{ActiveTerm, Phase, Sequencer, SequencerEffects};
use crate::message::SequencerAnswer;
use crate::mutant::{LogMutant, planted};
use crate::sessions::SessionBounds;
use crate::types::{AppendId, Low, SessionId, Term};
use crate::unit::ReplyTo;

impl ActiveTerm {
    /// Raises the mark of an append's session, which becomes known by this, if it is not over and the append not below its mark.
    pub(super) fn admit(
        &mut self,
        term: Term,
        id: &AppendId,
        low: Low,
        bounds: SessionBounds,
    ) -> Result<(), SequencerAnswer> {
        let id = *id;
        if id.session.term > term {
            // Whoever numbered it has deposed this one.
            let term = id.session.term;
            return Err(SequencerAnswer::NotSequencer { term });
        }
        let own = id.session.term == term && !planted(LogMutant::SessionReused);
        if own && id.session.count > self.numbered {
            return Err(SequencerAnswer::Abandoned { id });
        }
        if self.sessions.lows().contains_key(&id.session) {
            self.sessions.raise(id.session, low);
        }
        let known = self.sessions.is_over(id.session) || self.sessions.get(&id).is_some();
        if let Some(floor) = self
            .sessions
            .floor_for(id.session, bounds)
            .filter(|_| !known)
        {
            self.sessions.raise_floor(floor);
        }
        if self.sessions.is_over(id.session) {
            return Err(SequencerAnswer::SessionOver { id });
        }
        if self.sessions.is_abandoned(&id) {
            return Err(SequencerAnswer::Abandoned { id });
        }
        self.sessions.raise(id.session, low);
        Ok(())
    }
}

impl Sequencer {
    /// Numbers a session. A question that comes twice has two answers, and the client takes one.
    pub(super) fn open_session(&mut self, to: ReplyTo, nonce: u64, out: &mut SequencerEffects) {
        let bounds = self.limits.session_bounds();
        let term = match planted(LogMutant::SessionReused) {
            true => Term(0),
            false => self.term,
        };
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        let Some(count) = active.numbered.checked_add(1) else {
            // The next term has numbers again.
            return self.reply(to, SequencerAnswer::Busy { id: None }, out);
        };
        active.numbered = count;
        let session = SessionId { term, count };
        // It is known at once, so that higher ones which end early do not end it.
        if let Some(floor) = active.sessions.floor_for(session, bounds) {
            active.sessions.raise_floor(floor);
        }
        if !active.sessions.is_over(session) {
            active.sessions.raise(session, 0);
        }
        self.reply(to, SequencerAnswer::SessionOpened { nonce, session }, out);
    }

    /// A client awaits nothing of a session any more.
    pub(super) fn end_session(
        &mut self,
        to: ReplyTo,
        session: SessionId,
        out: &mut SequencerEffects,
    ) {
        if let Phase::Active(active) = &mut self.phase
            && active.sessions.lows().contains_key(&session)
        {
            active.sessions.raise(session, Low::MAX);
            active.sessions.drop_ended();
        }
        self.reply(to, SequencerAnswer::Noted, out);
    }
}
