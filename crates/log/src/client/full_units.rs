//! The units that had no room: for one append, and a short time ago for any.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use staves_model::Time;

use crate::types::UnitId;

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

    /// Rounds in which every unit had no room.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// The units may be others.
    pub fn begin_anew(&mut self) {
        self.units.clear();
    }

    /// A unit had no room. True if no unit is left in this round, of those that there are.
    pub fn note(&mut self, unit: Option<UnitId>, all: &[UnitId]) -> bool {
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
    pub fn note(&mut self, now: Time, unit: UnitId) {
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
