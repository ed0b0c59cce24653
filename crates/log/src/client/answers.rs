//! The answers to appends: acknowledgements, tokens, and where else data must go.

use staves_model::Time;

use super::append_error::AppendError;
use super::appender::{Appended, Appender, AppenderEffects};
use super::in_flight::WaitReason;
use crate::message::{SequencerAnswer, TermStart, UnitAnswer};
use crate::mutant::{LogMutant, planted};
use crate::types::{AppendId, Binding, Position, UnitId};

impl Appender {
    pub(super) fn unit_answer(&mut self, now: Time, answer: UnitAnswer, out: &mut AppenderEffects) {
        match answer {
            UnitAnswer::Ack {
                id,
                position,
                count,
            } => self.acknowledged(now, id, position, count, out),
            UnitAnswer::Lost { id, position } => {
                self.returned(id);
                self.token_lost(now, id, position, out);
            }
            UnitAnswer::Elsewhere { id, unit, .. } => {
                self.returned(id);
                self.follow_unit(now, id, unit, out);
            }
            UnitAnswer::Busy { id: Some(id) } | UnitAnswer::Expired { id } => self.returned(id),
            UnitAnswer::Abandoned { id } => self.refused(id, AppendError::Refused, out),
            UnitAnswer::SessionOver { id } => self.session_over(now, id, out),
            UnitAnswer::ConditionFailed { id, tail } => {
                self.refused(id, AppendError::ConditionFailed { tail }, out);
            }
            UnitAnswer::Stale { term } => self.stale(term, out),
            UnitAnswer::NotSealed { term } => {
                // The unit is behind, or none of the term that this client should know.
                out.view_wanted |= term != self.view.term;
            }
            _ => {}
        }
    }

    pub(super) fn sequencer_answer(
        &mut self,
        now: Time,
        answer: SequencerAnswer,
        out: &mut AppenderEffects,
    ) {
        match answer {
            SequencerAnswer::Token { term, binding } => {
                if let Some(id) = binding.id {
                    self.note_wait(now, id, None);
                }
                self.take_token(now, term, binding, out);
            }
            SequencerAnswer::Bound { id, unit, .. } => {
                self.note_wait(now, id, None);
                self.follow_unit(now, id, unit, out);
            }
            SequencerAnswer::Done {
                id,
                position,
                count,
            } => self.acknowledged(now, id, position, count, out),
            SequencerAnswer::Queued { id } | SequencerAnswer::Busy { id: Some(id) } => {
                self.note_wait(now, id, None);
            }
            SequencerAnswer::Full { id } => self.note_wait(now, id, Some(WaitReason::Full)),
            SequencerAnswer::TagsFull { id } => self.note_wait(now, id, Some(WaitReason::Tags)),
            SequencerAnswer::Abandoned { id } => self.refused(id, AppendError::Refused, out),
            SequencerAnswer::SessionOver { id } => self.session_over(now, id, out),
            SequencerAnswer::SessionOpened { nonce, session } => {
                self.session_opened(now, nonce, session, out);
            }
            SequencerAnswer::ConditionFailed { id, tail } => {
                self.refused(id, AppendError::ConditionFailed { tail }, out);
            }
            SequencerAnswer::NotOfTerm { term, .. } | SequencerAnswer::NotSequencer { term } => {
                out.view_wanted |= term != self.view.term;
            }
            _ => {}
        }
    }

    fn acknowledged(
        &mut self,
        now: Time,
        id: AppendId,
        position: Position,
        count: u32,
        out: &mut AppenderEffects,
    ) {
        self.prediction.observe(now, position);
        let Some(seq) = self.own(id) else {
            return;
        };
        let append = self.in_flight.get(&seq);
        let (guess, unit) = append.map_or((None, None), |append| (append.guess, append.unit));
        self.full.has_room(unit);
        if let Some(guess) = guess {
            let units = self.view.projection.last().len();
            self.prediction.learn(guess, position, units);
        }
        let appended = Appended {
            id,
            position,
            count,
        };
        self.finish(seq, Ok(appended), out);
    }

    /// The sequencer has taken up an append, or lets it wait for a reason.
    fn note_wait(&mut self, now: Time, id: AppendId, reason: Option<WaitReason>) {
        let soon = now + self.limits.retry;
        if let Some(append) = self.own(id).and_then(|seq| self.in_flight.get_mut(&seq)) {
            if reason.is_some() {
                // The sequencer is well: the append comes in soon after the reason has gone.
                append.retry_at = append.retry_at.min(soon);
            }
            append.waits = reason.map(|reason| (reason, append.tries));
        }
    }

    fn refused(&mut self, id: AppendId, error: AppendError, out: &mut AppenderEffects) {
        if let Some(seq) = self.own(id) {
            self.finish(seq, Err(error), out);
        }
    }

    /// The append is bound at a unit: its data goes there, if it did not. One that had no room for it makes junk of the binding soon: then
    /// another may have the data.
    fn follow_unit(&mut self, now: Time, id: AppendId, unit: UnitId, out: &mut AppenderEffects) {
        let soon = now + self.limits.retry / 16;
        let Some(append) = self.own(id).and_then(|seq| self.in_flight.get_mut(&seq)) else {
            return;
        };
        if append.refused.has(unit) {
            if append.is_nowhere() {
                append.retry_at = append.retry_at.min(soon);
            }
            return;
        }
        // The first answer only repeats the client's choice.
        append.bound = append.tries > 1 || append.unit != Some(unit);
        // A retry brings the data to the same unit again, which may have a new head that lacks it.
        let again = append.tries > 1 || append.unit != Some(unit);
        append.unit = Some(unit);
        append.guess = None;
        if again {
            self.send_data(now, id.seq, out);
        }
    }

    fn take_token(
        &mut self,
        now: Time,
        term: TermStart,
        binding: Binding,
        out: &mut AppenderEffects,
    ) {
        self.prediction.observe(now, binding.position);
        let id = binding.id;
        let Some(seq) = id.and_then(|id| self.own(id)) else {
            return;
        };
        let restamped = planted(LogMutant::TokenRestamped);
        if term.term != self.view.term && !restamped {
            return self.stale(term.term, out);
        }
        let soon = now + self.limits.retry / 4;
        let Some(append) = self.in_flight.get_mut(&seq) else {
            return;
        };
        if append.shunned == Some(binding.position) {
            append.retry_at = append.retry_at.min(soon);
            return;
        }
        let newer = append
            .token
            .as_ref()
            .is_none_or(|(old, held)| (old.term, held.position) < (term.term, binding.position));
        if newer {
            append.token = Some((term, binding));
            self.send_token_data(seq, out);
        }
    }

    fn token_lost(
        &mut self,
        now: Time,
        id: AppendId,
        position: Position,
        out: &mut AppenderEffects,
    ) {
        let Some(append) = self.own(id).and_then(|seq| self.in_flight.get_mut(&seq)) else {
            return;
        };
        let held = append.token.as_ref();
        if held.is_some_and(|(_, binding)| binding.position == position) {
            append.token = None;
            self.send_request(now, id.seq, Some(position), out);
        }
    }
}
