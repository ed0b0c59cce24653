//! An append in flight.

use staves_model::Time;

use super::append_error::AppendError;
use super::full_units::RefusedUnits;
use crate::message::{AppendCondition, Records, TermStart};
use crate::types::{Binding, Position, SessionId, UnitId};

/// The reason for which a sequencer lets an append wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitReason {
    /// The log keeps what its cursors have not passed.
    Full,
    /// The log has as many tags as it remembers.
    Tags,
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
    /// The sequencer's reason to let it wait, and the try that it answered. Of an older try it says nothing about the end.
    pub waits: Option<(WaitReason, u32)>,
    /// The unit that its data goes to.
    pub unit: Option<UnitId>,
    /// The position that was predicted.
    pub guess: Option<Position>,
    /// Its token (corfu).
    pub token: Option<(TermStart, Binding)>,
    /// The position of a token whose unit had no room (corfu).
    pub shunned: Option<Position>,
    /// The sequencer named the unit: its data goes nowhere else.
    pub bound: bool,
    /// Messages that brought its data to units.
    pub sent: u32,
    /// Those of them that were answered, and whose data no unit has kept.
    pub returned: u32,
    /// The units that had no room for it.
    pub refused: RefusedUnits,
    pub tries: u32,
    pub retry_at: Time,
    pub give_up_at: Time,
}

impl InFlightAppend {
    /// True if every message with its data has come back: no unit has it.
    pub fn is_nowhere(&self) -> bool {
        self.sent == self.returned
    }

    /// The error at its deadline.
    pub fn late(&self) -> AppendError {
        if self.refused.any() && self.is_nowhere() {
            return AppendError::NoRoom;
        }
        // The last try may have been sent a moment ago.
        let newest = |(_, at): &(WaitReason, u32)| self.tries.saturating_sub(*at) <= 1;
        match self.waits.filter(newest) {
            Some((WaitReason::Full, _)) => AppendError::Full,
            Some((WaitReason::Tags, _)) => AppendError::TooManyTags,
            None => AppendError::Timeout,
        }
    }

    pub fn new(
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
            waits: None,
            unit: None,
            guess: None,
            token: None,
            shunned: None,
            bound: false,
            sent: 0,
            returned: 0,
            refused: RefusedUnits::default(),
            tries: 0,
            retry_at: Time::ZERO,
            give_up_at: Time::ZERO,
        }
    }
}
