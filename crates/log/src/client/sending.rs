//! The ways of an append: data and request in parallel (bind, predict), or token first and data second (corfu).

use staves_model::{GroupId, Time};

use super::appender::{Appender, AppenderEffects};
use crate::message::{ParkedAppend, SequencerOp, SequencerRequest, UnitOp, UnitRequest};
use crate::mutant::{LogMutant, planted};
use crate::types::{AppendMode, Position};
use crate::unit::LARGE_APPEND_BYTES;

/// Appends of one time and of so many bytes go to one unit; more go on to the next, so that several write.
const ROUND_BYTES_MAX: usize = 64 << 10;
/// Retries wait for this many times the first wait at most.
const BACKOFF_MAX: u32 = 8;

impl Appender {
    /// Sends an append, first or again.
    pub(super) fn send(&mut self, now: Time, seq: u32, out: &mut AppenderEffects) {
        let retry = self.limits.retry;
        if !self.takes_session(seq) {
            return self.ask_session(now, out);
        }
        let Some(append) = self.in_flight.get_mut(&seq) else {
            return;
        };
        append.tries += 1;
        append.retry_at = now + retry * append.tries.min(BACKOFF_MAX);
        let (tries, token) = (append.tries, append.token.clone());
        // The term may have changed unnoticed.
        out.view_wanted |= tries > 1 && tries % 2 == 0;
        match (self.view.options.mode, token) {
            (AppendMode::Corfu, Some((_, binding))) => {
                if planted(LogMutant::NewToken) && tries > 1 {
                    return self.send_request(now, seq, Some(binding.position), out);
                }
                self.send_token_data(seq, out);
            }
            (AppendMode::Corfu, None) => self.send_request(now, seq, None, out),
            (AppendMode::Bind | AppendMode::Predict, _) => {
                self.choose_unit(now, seq);
                let data_first = self.brings_data_first(now, seq);
                self.send_data(now, seq, out);
                // Large data comes later than its request would: the unit asks, once it has it.
                let large = |bytes: usize| bytes as u64 > LARGE_APPEND_BYTES;
                let append = self.in_flight.get(&seq);
                let is_small = append.is_some_and(|a| !large(a.records.bytes.len()));
                if !data_first && (tries > 1 || is_small) {
                    self.send_request(now, seq, None, out);
                }
            }
        }
    }

    /// The unit of the data: any of the term's in turn, or the one of the predicted position. It stays, unless retries find it silent.
    /// Appends that begin at one time go to the same unit, so that they are one message, one binding and one write there.
    pub(super) fn choose_unit(&mut self, now: Time, seq: u32) {
        let units = self.view.projection.last();
        let Some(append) = self.in_flight.get_mut(&seq) else {
            return;
        };
        let turn = self.turn.wrapping_add(append.tries as usize);
        let silent = append.tries > 1 && !append.bound && turn.is_multiple_of(2);
        append.bound = false;
        let kept = append.unit.is_some_and(|unit| units.contains(&unit));
        if kept && !silent || units.is_empty() {
            return;
        }
        let moves_on = append.unit.is_some() || append.refused.any();
        let again = moves_on || self.round_bytes >= ROUND_BYTES_MAX;
        if again || now != self.round_at {
            self.turn = self.turn.wrapping_add(1);
            (self.round_at, self.round_bytes) = (now, 0);
        }
        self.round_bytes += append.records.bytes.len();
        let turn = self.turn % units.len();
        let in_turn = self.full.choose(now, units, turn, &append.refused);
        let (guess, unit) = match self.view.options.mode {
            AppendMode::Predict if !silent && !append.refused.any() => {
                let guess = self.prediction.guess(now, self.view.start);
                let unit = self.view.projection.owner(guess);
                match unit.filter(|unit| !self.full.is_full(now, *unit)) {
                    Some(unit) => (Some(guess), unit),
                    None => (None, in_turn),
                }
            }
            _ => (None, in_turn),
        };
        append.guess = guess;
        append.unit = Some(unit);
        if planted(LogMutant::ForeignUnit) && self.turn.is_multiple_of(3) {
            append.unit = units.iter().max().map(|last| GroupId(last.0 + 1));
        }
    }

    /// The data to the append's unit.
    pub(super) fn send_data(&mut self, _now: Time, seq: u32, out: &mut AppenderEffects) {
        let Some(id) = self.id(seq) else {
            return;
        };
        let low = self.low(id.session);
        let Some(append) = self.in_flight.get_mut(&seq) else {
            return;
        };
        let (Some(unit), Some(sequencer)) = (append.unit, self.view.sequencer) else {
            out.view_wanted = true;
            return;
        };
        append.sent += 1;
        let park = ParkedAppend {
            id,
            low,
            count: append.records.count(),
            tags: append.tags.clone(),
            condition: append.condition,
            sequencer,
            data: append.records.clone(),
        };
        let (log, op) = (self.view.log, UnitOp::Park(park));
        out.units.push((unit, UnitRequest { log, op }));
    }

    /// The data to the unit of the append's token.
    pub(super) fn send_token_data(&mut self, seq: u32, out: &mut AppenderEffects) {
        let Some(id) = self.id(seq) else {
            return;
        };
        let low = self.low(id.session);
        let Some(append) = self.in_flight.get_mut(&seq) else {
            return;
        };
        let Some((term, binding)) = append.token.clone() else {
            return;
        };
        let Some(unit) = self.view.projection.owner(binding.position) else {
            return;
        };
        append.sent += 1;
        let op = UnitOp::Write {
            term,
            binding,
            low,
            data: append.records.clone(),
        };
        let log = self.view.log;
        out.units.push((unit, UnitRequest { log, op }));
    }

    /// The request for a position.
    pub(super) fn send_request(
        &mut self,
        _now: Time,
        seq: u32,
        lost: Option<Position>,
        out: &mut AppenderEffects,
    ) {
        let (Some(id), Some(append)) = (self.id(seq), self.in_flight.get(&seq)) else {
            return;
        };
        let low = self.low(id.session);
        let Some(sequencer) = self.view.sequencer else {
            out.view_wanted = true;
            return;
        };
        let unit = append.unit.or(self.view.projection.last().first().copied());
        let op = SequencerOp::Seq {
            id,
            count: append.records.count(),
            tags: append.tags.clone(),
            unit: unit.unwrap_or_default(),
            low,
            lost,
            condition: append.condition,
        };
        let log = self.view.log;
        let request = SequencerRequest { log, op };
        out.sequencers.push((sequencer, request));
    }
}
