//! The sequencer's looks at its log's record, and the home's replies.

use std::time::Duration;

use staves_model::Time;

use super::{Phase, Sequencer, SequencerEffects};
use crate::message::{RecordRefusal, RecordReply, RecordRequest};
use crate::types::Term;

/// A look whether the log is still there is repeated after this time at the earliest.
const VIEWED_AGAIN: Duration = Duration::from_millis(500);

impl Sequencer {
    /// A unit that was sealed knows nothing of the log: it was deleted, most likely, and the home says so.
    pub(super) fn look_for_log(&mut self, now: Time, out: &mut SequencerEffects) {
        let is_active = matches!(self.phase, Phase::Active(_));
        if is_active && now.since(self.viewed) >= VIEWED_AGAIN {
            self.view_record(now, out);
        }
    }

    /// Looks at the record that has changed, not too often: anybody may say that it has.
    pub(super) fn view_if_due(&mut self, now: Time, out: &mut SequencerEffects) {
        if self.view_due && now.since(self.viewed) >= self.limits.view_again {
            self.view_record(now, out);
        }
    }

    pub(super) fn view_record(&mut self, now: Time, out: &mut SequencerEffects) {
        self.view_due = false;
        self.viewed = now;
        out.home.push(RecordRequest::View {
            name: self.record.name.clone(),
        });
    }

    pub(super) fn home_reply(&mut self, now: Time, reply: RecordReply, out: &mut SequencerEffects) {
        let record = match reply {
            RecordReply::Record(record) | RecordReply::Refused(RecordRefusal::Moved(record)) => {
                *record
            }
            RecordReply::Deleted(_) | RecordReply::Refused(RecordRefusal::NotFound) => {
                return self.depose_below(Term(u64::MAX), out);
            }
            RecordReply::Refused(_) | RecordReply::Names(_) => return,
        };
        if record.view.log != self.log() {
            return self.depose_below(Term(u64::MAX), out);
        }
        let over = match self.is_active() {
            true => record.view.term,
            false => record.term(),
        };
        self.depose_below(over, out);
        if record.view.term != self.term {
            return;
        }
        self.unheard = 0;
        if matches!(self.phase, Phase::Opening(..)) {
            self.activate(now, record, out);
        } else {
            self.record.cursors = record.cursors;
            self.record.retention = record.retention;
            self.trim_recorded(record.view.trim, out);
        }
    }
}
