//! Logs that keep only some of their records, and readers with cursors.
//!
//! I14: what is trimmed in the background leaves as many of the last records as are kept, and all that a cursor has not passed, unless
//! old records are discarded.

use super::world::{NAME, World};
use crate::slots::Slot;
use crate::*;

/// Runs of these seeds and higher ones keep some records only.
pub(super) const RETAINED_SEEDS: u64 = 1 << 33;
/// Records that they keep.
const KEPT: u64 = 5;

/// A background trim, before the home executes it.
pub(super) struct RetainAsked {
    before: Position,
    allowed: Position,
}

impl RetainAsked {
    pub(super) fn of(request: &RecordRequest, record: &LogRecord) -> Option<RetainAsked> {
        let RecordRequest::Retain { .. } = request else {
            return None;
        };
        Some(RetainAsked {
            before: record.view.trim,
            allowed: record.may_trim_to(Position::MAX),
        })
    }
}

impl World {
    /// A new log keeps some records only, if the run is such a one.
    pub(super) fn keep_some(&mut self) {
        if !self.knobs.retention {
            return;
        }
        let when_full = self.rng.pick(&[WhenFull::Keep, WhenFull::Discard]);
        let retention = LogRetention {
            records: Some(KEPT),
            when_full,
            ..LogRetention::default()
        };
        let (name, log) = (NAME.to_owned(), self.record().view.log);
        self.at_home(RecordRequest::SetRetention {
            name,
            log,
            retention,
        });
    }

    /// A client moves its cursor to what it reads next.
    pub(super) fn move_cursor(&mut self, client: usize) {
        if !self.knobs.retention || client > 1 || !self.rng.chance(300) {
            return;
        }
        let to = Some(self.clients[client].scan);
        let (name, log) = (NAME.to_owned(), self.record().view.log);
        self.at_home(RecordRequest::SetCursor {
            name,
            log,
            cursor: format!("client {client}"),
            from: None,
            to,
        });
    }

    pub(super) fn judge_retained(&mut self, asked: Option<RetainAsked>) {
        let trim = self.record().view.trim;
        let Some(asked) = asked.filter(|asked| trim > asked.before) else {
            return;
        };
        self.count("background trims");
        self.judge.trim_asked = self.judge.trim_asked.max(trim);
        if trim > asked.allowed {
            let allowed = asked.allowed;
            let what = format!("I14: trimmed to {trim}, and a cursor is at {allowed}");
            self.judge.violated(what);
        }
        let log = self.record().view.log;
        let is_record = |position: Position| {
            self.units.iter().any(|unit| {
                let slots = unit.durable.share(log).map(|share| &share.slots);
                let slot = slots.and_then(|slots| slots.get(position));
                matches!(slot, Some(Slot::Data(_) | Slot::Tomb))
            })
        };
        let end = self.newest().1.and_then(Sequencer::tail);
        let end = end.map_or(trim + 64, |(next, _)| next);
        let kept = (trim..end).filter(|position| is_record(*position)).count();
        if (kept as u64) < KEPT {
            self.judge.violated(format!("I14: {kept} records are kept"));
        }
    }
}
