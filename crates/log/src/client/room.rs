//! Appends that find no room: each unit of the log is tried, and only where none has any the append is over.
//!
//! A unit that has no room for data is sent no binding for them either: where one had none a short time ago the data goes first, and the unit asks
//! for the position itself once it has them. So a full log gives out no positions that become junk.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use staves_model::Time;

use super::appender::{AppendError, Appender, AppenderEffects};
use crate::types::{AppendId, AppendMode, UnitId};

/// An append is over once every unit has refused it so often: between two rounds a unit may find room among what is dead. With tokens (corfu) a round
/// takes long, and one is enough.
const ROUNDS_MAX: u32 = 2;
/// A unit that had no room counts as full for so long, unless it takes an append.
const FULL_FOR: Duration = Duration::from_secs(2);

/// The units that had no room for an append.
#[derive(Clone, Default, Debug)]
pub(super) struct RefusedUnits {
    /// Those of the round that is under way.
    units: BTreeSet<UnitId>,
    /// Complete rounds.
    rounds: u32,
}

impl RefusedUnits {
    /// True if some unit had no room.
    pub fn any(&self) -> bool {
        self.rounds > 0 || !self.units.is_empty()
    }

    /// True if the unit had no room, in this round.
    pub fn has(&self, unit: UnitId) -> bool {
        self.units.contains(&unit)
    }

    /// The units may be others.
    pub fn begin_anew(&mut self) {
        self.units.clear();
    }

    /// A unit had no room. True if no unit is left in this round, of those that there are.
    fn note(&mut self, unit: Option<UnitId>, all: &[UnitId]) -> bool {
        self.units.extend(unit);
        let over = all.iter().all(|unit| self.units.contains(unit));
        if over {
            self.units.clear();
            self.rounds += 1;
        }
        over
    }
}

/// The units that had no room a short time ago, for any append.
#[derive(Default, Debug)]
pub(super) struct FullUnits {
    until: BTreeMap<UnitId, Time>,
}

impl FullUnits {
    fn note(&mut self, now: Time, unit: UnitId) {
        self.until.insert(unit, now + FULL_FOR);
    }

    /// A unit has taken an append.
    pub fn has_room(&mut self, unit: Option<UnitId>) {
        if let Some(unit) = unit {
            self.until.remove(&unit);
        }
    }

    pub fn is_full(&self, now: Time, unit: UnitId) -> bool {
        self.until.get(&unit).is_some_and(|until| now < *until)
    }

    /// The next unit that had room, from a turn on; else the next that has not refused the append. `units` has one at least.
    pub fn choose(
        &self,
        now: Time,
        units: &[UnitId],
        turn: usize,
        refused: &RefusedUnits,
    ) -> UnitId {
        let in_turn = || units[turn..].iter().chain(&units[..turn]).copied();
        let open = |unit: &UnitId| !refused.has(*unit);
        let free = |unit: &UnitId| open(unit) && !self.is_full(now, *unit);
        let found = in_turn().find(free).or_else(|| in_turn().find(open));
        found.unwrap_or(units[turn])
    }
}

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
    pub(super) fn found_no_room(&mut self, now: Time, id: AppendId, out: &mut AppenderEffects) {
        self.returned(id);
        let (retry, mode) = (self.limits.retry, self.view.options.mode);
        let units = self.view.projection.last();
        let Some(seq) = self.own(id) else {
            return;
        };
        let Some(append) = self.in_flight.get_mut(&seq) else {
            return;
        };
        let mut unit = append.unit.take();
        if let Some((_, binding)) = append.token.take() {
            // Its unit makes junk of it soon. Only then the sequencer binds another: this one may be written yet.
            append.shunned = Some(binding.position);
            unit = self.view.projection.owner(binding.position);
        }
        if let Some(unit) = unit {
            self.full.note(now, unit);
        }
        (append.guess, append.bound) = (None, false);
        let all_refused = append.refused.note(unit, units);
        let rounds_max = match mode {
            AppendMode::Corfu => 1,
            AppendMode::Bind | AppendMode::Predict => ROUNDS_MAX,
        };
        if append.is_nowhere() && append.refused.rounds >= rounds_max {
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
