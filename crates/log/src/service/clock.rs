//! The clock of a unit, and of those who wait there.

use staves_model::Time;
use staves_service::{BucketContext, BucketEffects, OpHeader, Refused};

use super::room::RoomFor;
use super::run::StagedAppend;
use super::{LogUnit, UnitRole};
use crate::unit::UnitEffects;

impl LogUnit {
    /// Makes the entries that are due by the clock.
    pub(super) fn tick(&mut self, context: &mut BucketContext, now: Time, out: &mut BucketEffects) {
        // What the clock decides is read at once: like a write, it waits for copies that are lacking.
        let lacks_copies = context.member().lacks_copies();
        let is_due = match &self.role {
            UnitRole::Serving(unit) => unit.has_timers() && now > self.ticked,
            UnitRole::Copy(_) => false,
        };
        if !is_due || lacks_copies || self.make_room(context, now, RoomFor::Little, out).is_err() {
            return;
        }
        self.ticked = now;
        let mut effects = UnitEffects::default();
        if let Some(unit) = self.unit_mut() {
            unit.tick(now, &mut effects);
        }
        self.finish(context, now, None, effects, out);
    }

    /// Gives up requests whose deadline has passed.
    pub(super) fn expire(&mut self, now: Time, out: &mut BucketEffects) {
        let late = |(_, header): &(&u64, &OpHeader)| header.deadline <= now;
        let late: Vec<u64> = self.waiting.iter().filter(late).map(|(t, _)| *t).collect();
        for token in late {
            self.waiting.remove(&token);
            out.answers.push((token, Err(Refused::Deadline)));
        }
        let late = |(_, staged): &(&u64, &StagedAppend)| staged.deadline <= now;
        let late: Vec<u64> = self.staging.iter().filter(late).map(|(t, _)| *t).collect();
        for token in late {
            let staged = self.staging.remove(&token).unwrap_or_default();
            self.pages.log.unstage(&staged.pieces);
        }
    }
}
