//! The names of appends: sessions, which the log numbers itself, and the appends of each.

use std::fmt;

use super::Term;

/// Most appends of a session between its mark and the highest.
pub const SESSION_WINDOW: u32 = 4096;

/// A session: one client's right to append, until it is over. A sequencer gives each number out once, so that the whole log has it once: its
/// term, which only that sequencer has, and a count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SessionId {
    /// The term of the sequencer that numbered it.
    pub term: Term,
    /// The sessions that this sequencer had numbered, this one included: from 1.
    pub count: u32,
}

impl SessionId {
    /// The lowest number above this one.
    pub(crate) fn next(self) -> SessionId {
        match self.count.checked_add(1) {
            Some(count) => SessionId { count, ..self },
            None => SessionId {
                term: Term(self.term.0.saturating_add(1)),
                count: 0,
            },
        }
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}.{}", self.term.0, self.count)
    }
}

/// The mark of a session: the lowest append of it that its client awaits. [`Low::MAX`]: it awaits nothing, and sends nothing more.
pub type Low = u32;

/// One append, a record or a batch, through all its retries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AppendId {
    /// The session of its client.
    pub session: SessionId,
    /// The number of the append within the session.
    pub seq: u32,
}

impl AppendId {
    /// Returns whether a client with this mark can have made the append.
    pub(crate) fn fits(&self, low: Low) -> bool {
        self.seq < Low::MAX && self.seq.saturating_sub(low) < SESSION_WINDOW
    }
}

impl fmt::Debug for AppendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}.{}", self.session, self.seq)
    }
}
