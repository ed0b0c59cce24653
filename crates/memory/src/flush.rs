//! Operations that wait for the disks of the members, where writes do not (D-3, D-13).

use staves_group::Effects;
use staves_model::Time;
use staves_model::mutant::{Mutant, planted};
use staves_service::{BucketContext, OpHeader, Outcome};
use staves_wire::memory::Action;
use staves_wire::service::Answer;

use crate::memory::Memory;
use crate::refusals;

impl Memory {
    /// Executes an operation that is well formed, at a bucket that serves.
    pub(crate) fn execute_action(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        action: &Action,
        effects: &mut Effects,
    ) -> Outcome {
        match action {
            Action::Sync { .. } => sync(context, action),
            // The directory goes by the answer for good.
            Action::Copy { .. } | Action::Drop { .. } => {
                let done = self.change_or_read(context, now, header, action, effects);
                once_synced(context, done)
            }
            _ => self.change_or_read(context, now, header, action, effects),
        }
    }
}

/// A flush: all that was answered before it came is on the disks of all members when it is answered. Before an earlier epoch's end other doors may
/// have written as well; whatever this epoch began with was synced by all before it opened.
fn sync(context: &BucketContext, action: &Action) -> Outcome {
    if context.member().is_lost() {
        return Outcome::at_once(refusals::lost());
    }
    if let Some(over) = refusals::of_session(context, action) {
        return Outcome::at_once(over);
    }
    Outcome::Synced {
        seq: context.member().last(),
        answer: Answer::Ok,
        read: true,
    }
}

/// Lets the answer to a change wait until disks have it, and all before it: also if this is a retry of one that was made.
fn once_synced(context: &BucketContext, outcome: Outcome) -> Outcome {
    let waits = context.member().is_writeback() && !planted(Mutant::CopyAnsweredAtHeld);
    match outcome {
        Outcome::Answer { answer, read, .. } if waits => Outcome::Synced {
            seq: context.member().last(),
            answer,
            read,
        },
        other => other,
    }
}
