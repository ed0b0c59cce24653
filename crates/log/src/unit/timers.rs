//! The unit's clock: bindings that waited too long, data that nobody bound, and the sequencer's answers to the unit's own requests.

use std::time::Duration;

use staves_model::Time;

use super::{SoftLog, Unit, UnitEffects};
use crate::message::{SequencerAnswer, SequencerReply, UnitAnswer};
use crate::mutant::{LogMutant, planted};
use crate::types::{AppendId, AppendMode, LogId, Position};

impl Unit {
    /// Does what is due. To be called every few milliseconds while anything waits ([`Unit::has_timers`]).
    pub fn tick(&mut self, now: Time, out: &mut UnitEffects) {
        let logs: Vec<LogId> = self.soft.keys().copied().collect();
        for log in logs {
            self.junk_late(now, log, out);
            self.expire_parked(now, log, out);
            self.ask_again(now, log, out);
        }
        let synced = self.synced;
        self.soft.retain(|_, soft| !soft.is_idle(synced));
    }

    /// True if anything waits for the unit's clock.
    pub fn has_timers(&self) -> bool {
        !self.soft.is_empty()
    }

    /// A binding without data becomes junk after its log's time, in the background (row L5).
    fn junk_late(&mut self, now: Time, log: LogId, out: &mut UnitEffects) {
        let options = self.state.share(log).map(|share| share.options);
        let (Some(options), Some(soft)) = (options, self.soft.get(&log)) else {
            return;
        };
        let wait = Duration::from_micros(options.hole_us.into());
        let late = soft.pending.values().filter(|p| now.since(p.since) >= wait);
        let late: Vec<Position> = late.map(|p| p.binding.position).collect();
        if planted(LogMutant::NoDeadline) {
            return;
        }
        for position in late {
            self.junk_pending(log, position, out);
        }
    }

    fn expire_parked(&mut self, now: Time, log: LogId, out: &mut UnitEffects) {
        let expiry = self.limits.park_expiry;
        let late = |soft: &SoftLog| {
            let late = soft.parked.iter();
            let late = late.filter(|(_, p)| now.since(p.since) >= expiry);
            late.map(|(id, _)| *id).collect::<Vec<_>>()
        };
        for id in self.soft.get(&log).map(late).unwrap_or_default() {
            if let Some(parked) = self.unpark(log, &id) {
                out.dropped.extend(&parked.places);
                self.reply(parked.to, log, 0, UnitAnswer::Expired { id }, out);
            }
        }
    }

    /// Data without a position: the unit asks for one, a short trip instead of the client's (rule 13).
    fn ask_again(&mut self, now: Time, log: LogId, out: &mut UnitEffects) {
        let mode = self.state.share(log).map(|share| share.options.mode);
        let wait = self.limits.ask_after;
        let Some(soft) = self.soft.get_mut(&log) else {
            return;
        };
        let mut due: Vec<AppendId> = Vec::new();
        for (id, parked) in &mut soft.parked {
            if now.since(parked.asked) >= wait {
                parked.asked = now;
                due.push(*id);
            }
        }
        if mode == Some(AppendMode::Corfu) {
            return;
        }
        for id in due {
            self.ask_position(log, id, out);
        }
    }

    /// The sequencer's answer to a request of the unit's own.
    pub fn asked(&mut self, reply: SequencerReply, out: &mut UnitEffects) {
        let log = reply.log;
        let own = self.state.unit();
        let (id, answer) = match reply.answer {
            SequencerAnswer::Done {
                id,
                position,
                count,
            } => {
                let ack = UnitAnswer::Ack {
                    id,
                    position,
                    count,
                };
                (id, ack)
            }
            SequencerAnswer::Bound { id, position, unit } if unit != own => {
                let elsewhere = UnitAnswer::Elsewhere { id, position, unit };
                (id, elsewhere)
            }
            SequencerAnswer::Abandoned { id } => (id, UnitAnswer::Abandoned { id }),
            // The client sends its data again.
            SequencerAnswer::Full { id } | SequencerAnswer::TagsFull { id } => {
                (id, UnitAnswer::Busy { id: Some(id) })
            }
            SequencerAnswer::ConditionFailed { id, tail } => {
                (id, UnitAnswer::ConditionFailed { id, tail })
            }
            SequencerAnswer::SessionOver { id } => (id, UnitAnswer::SessionOver { id }),
            _ => return,
        };
        if let Some(parked) = self.unpark(log, &id) {
            out.dropped.extend(&parked.places);
            self.reply(parked.to, log, 0, answer, out);
        }
    }
}
