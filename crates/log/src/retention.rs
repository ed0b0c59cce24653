//! Cursors of readers, and how much of a log is kept: both are in the log's record, at its home.

use std::collections::BTreeMap;

use crate::types::{LogRecord, Position};

/// Most cursors of a log.
pub const CURSORS_MAX: usize = 64;
/// Most bytes of a cursor's name.
pub const CURSOR_NAME_BYTES_MAX: usize = 64;

/// The cursors of a log, by name: the position that each reader reads next.
pub type LogCursors = BTreeMap<String, Position>;

/// The use of old records that a cursor has not passed, when there are more than are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WhenFull {
    /// They stay, and the log grows.
    #[default]
    Keep,
    /// They go, and their reader finds them trimmed.
    Discard,
    /// They stay, and appends wait until the cursor has passed them.
    Refuse,
}

/// The records that are kept; what is older than any of these says is trimmed in the background. None of them: all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogRetention {
    /// So many of the last records, at the least.
    pub records: Option<u64>,
    /// So many bytes of the last records, at the least.
    pub bytes: Option<u64>,
    /// The records of so many seconds, at the least.
    pub seconds: Option<u64>,
    /// The use of records that a cursor has not passed.
    pub when_full: WhenFull,
}

impl LogRetention {
    /// True if all is kept.
    pub fn keeps_all(&self) -> bool {
        (self.records, self.bytes, self.seconds) == (None, None, None)
    }
}

impl LogRecord {
    /// The position up to which the log's own rules may trim it: none passes the oldest cursor, unless old records are discarded.
    pub fn may_trim_to(&self, position: Position) -> Position {
        let oldest = self.cursors.values().min().copied();
        match (self.retention.when_full, oldest) {
            (WhenFull::Keep | WhenFull::Refuse, Some(oldest)) => position.min(oldest),
            _ => position,
        }
    }
}
