//! The waits of those who follow a log, or a stream of it, at its end.
//!
//! A wait is answered once the position is decided, not once it is given out: a reader that came earlier would only wait at the unit, and perhaps
//! have it make junk of data that is on its way.

use std::time::Duration;

use staves_model::Time;

use super::{ActiveTerm, Phase, Sequencer, SequencerEffects};
use crate::message::{SequencerAnswer, UnitOp, WAIT_MS_MAX};
use crate::mutant::{LogMutant, planted};
use crate::types::Position;
use crate::unit::ReplyTo;

/// A wait for the log to grow.
#[derive(Clone, Debug)]
pub(super) struct TailWait {
    pub to: ReplyTo,
    position: Position,
    tag: Option<u64>,
    until: Time,
}

impl ActiveTerm {
    /// The end of what one who follows can read now.
    fn readable_end(&self, tag: Option<u64>) -> Position {
        match tag {
            None if planted(LogMutant::WaitByNext) => self.next,
            None => self.prefix(),
            Some(tag) => {
                let tail = self.tails.get(&tag).copied().unwrap_or(0);
                tail.min(self.prefix())
            }
        }
    }
}

impl Sequencer {
    pub(super) fn wait(
        &mut self,
        now: Time,
        to: ReplyTo,
        (position, tag): (Position, Option<u64>),
        wait_ms: u32,
        out: &mut SequencerEffects,
    ) {
        let max = self.limits.waits_max;
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        if active.waits.len() >= max {
            return self.reply(to, SequencerAnswer::Busy { id: None }, out);
        }
        active.nonce += 1;
        let wait = TailWait {
            to,
            position,
            tag,
            until: now + Duration::from_millis(wait_ms.min(WAIT_MS_MAX).into()),
        };
        active.waits.insert(active.nonce, wait);
        self.answer_waits(out);
    }

    /// Answers the waits that are over because there is something to read.
    pub(super) fn answer_waits(&mut self, out: &mut SequencerEffects) {
        self.answer_waits_if(|_| false, out);
    }

    /// The same, and those that took too long. A log that does not grow may have another sequencer: one of its units knows.
    pub(super) fn end_waits(&mut self, now: Time, out: &mut SequencerEffects) {
        let units = self.record.view.projection.last().to_vec();
        let term = self.term;
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        if active.waits.values().any(|wait| now >= wait.until) {
            active.nonce += 1;
            let nonce = active.nonce;
            let turn = nonce.checked_rem(units.len() as u64).unwrap_or(0);
            if let Some(unit) = units.get(turn as usize) {
                self.send(*unit, UnitOp::Confirm { term, nonce }, out);
            }
        }
        self.answer_waits_if(|wait| now >= wait.until, out);
    }

    fn answer_waits_if(&mut self, late: impl Fn(&TailWait) -> bool, out: &mut SequencerEffects) {
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        if active.waits.is_empty() {
            return;
        }
        let waits = std::mem::take(&mut active.waits);
        let mut over = Vec::new();
        for (nonce, wait) in waits {
            let end = active.readable_end(wait.tag);
            match end > wait.position || late(&wait) {
                true => over.push((wait.to, end)),
                false => {
                    active.waits.insert(nonce, wait);
                }
            }
        }
        for (to, end) in over {
            self.reply(to, SequencerAnswer::Grown { end }, out);
        }
    }
}
