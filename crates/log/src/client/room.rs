//! Appends that find no room: each unit of the log is tried, and only where none has any the append is over.
//!
//! A unit that has no room for data is sent no binding for them either: where one had none a short time ago the data goes first, and the unit asks
//! for the position itself once it has them. So a full log gives out no positions that become junk.

use staves_model::Time;

use super::append_error::AppendError;
use super::appender::{Appender, AppenderEffects};
use crate::message::TermStart;
use crate::types::{AppendId, AppendMode, Binding, UnitId};

/// An append is over once every unit has refused it so often: between two rounds a unit may find room among what is dead. With tokens (corfu) a round
/// takes long, and one is enough.
const ROUNDS_MAX: u32 = 2;
impl Appender {
    /// A message with data of an append has come back: its unit has nothing of it.
    pub(super) fn returned(&mut self, id: AppendId) {
        if let Some(append) = self.own(id).and_then(|seq| self.in_flight.get_mut(&seq)) {
            append.returned = append.sent.min(append.returned + 1);
        }
    }

    /// True if the unit of an append is to have the data before a position is bound for them.
    pub(super) fn brings_data_first(&self, now: Time, seq: u32) -> bool {
        let Some(append) = self.in_flight.get(&seq) else {
            return false;
        };
        let is_full = append.unit.is_some_and(|unit| self.full.is_full(now, unit));
        append.is_nowhere() && (is_full || append.refused.any())
    }

    /// A unit had no room for an append: the next one is tried at once. Where no unit has any, or where a message is under way still, all are
    /// tried again a little later; if nobody has room then and no message is under way, the append is over.
    pub(super) fn found_no_room(
        &mut self,
        now: Time,
        (id, unit): (AppendId, UnitId),
        out: &mut AppenderEffects,
    ) {
        self.returned(id);
        self.full.note(now, unit);
        let (retry, mode) = (self.limits.retry, self.view.options.mode);
        let units = self.view.projection.last();
        let Some(seq) = self.own(id) else {
            return;
        };
        let Some(append) = self.in_flight.get_mut(&seq) else {
            return;
        };
        // The data may be on their way to another one by now.
        if append.unit == Some(unit) {
            (append.unit, append.guess, append.bound) = (None, None, false);
        }
        let owner = |(_, binding): &(TermStart, Binding)| {
            let owner = self.view.projection.owner(binding.position);
            owner == Some(unit)
        };
        if let Some((_, binding)) = append.token.take_if(|token| owner(token)) {
            // Its unit makes junk of it soon. Only then the sequencer binds another: this one may be written yet.
            append.shunned = Some(binding.position);
            (append.unit, append.guess, append.bound) = (None, None, false);
        }
        let all_refused = append.refused.note(Some(unit), units);
        let rounds_max = match mode {
            AppendMode::Corfu => 1,
            AppendMode::Bind | AppendMode::Predict => ROUNDS_MAX,
        };
        if append.is_nowhere() && append.refused.rounds() >= rounds_max {
            return self.finish(seq, Err(AppendError::NoRoom), out);
        }
        append.retry_at = append.retry_at.min(now + retry / 4);
        if append.is_nowhere() && !all_refused && mode != AppendMode::Corfu {
            append.retry_at = now + retry;
            self.choose_unit(now, seq);
            self.send_data(now, seq, out);
        }
    }
}
