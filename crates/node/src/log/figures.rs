//! Figures of the sequencers of a node, for its metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use staves_log::{Position, SequencerAnswer, SequencerOp, SequencerReply};

/// Counters of all sequencers of this life of the node.
#[derive(Debug, Default)]
pub(crate) struct LogFigures {
    /// Requests for positions of appends.
    pub(crate) position_requests_total: AtomicU64,
    /// Questions for the content of positions.
    pub(crate) lookups_total: AtomicU64,
    /// Questions for tails.
    pub(crate) tails_total: AtomicU64,
    /// Requests to trim.
    pub(crate) trims_total: AtomicU64,
    /// Reports of units.
    pub(crate) reports_total: AtomicU64,
    /// Positions that were given out as tokens.
    pub(crate) tokens_total: AtomicU64,
    /// Requests that found no room.
    pub(crate) busy_total: AtomicU64,
    /// Terms that were begun.
    pub(crate) terms_total: AtomicU64,
}

impl LogFigures {
    pub(super) fn asked(&self, op: &SequencerOp) {
        let counter = match op {
            SequencerOp::Seq { .. } => &self.position_requests_total,
            SequencerOp::Where { .. } => &self.lookups_total,
            SequencerOp::Check { .. } | SequencerOp::Wait { .. } => &self.tails_total,
            SequencerOp::Trim { .. } => &self.trims_total,
            SequencerOp::Decided(_) => &self.reports_total,
            SequencerOp::ReadRecord
            | SequencerOp::OpenSession { .. }
            | SequencerOp::EndSession { .. } => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn answered(&self, reply: &SequencerReply) {
        let counter = match reply.answer {
            SequencerAnswer::Token { .. } => &self.tokens_total,
            SequencerAnswer::Busy { .. } => &self.busy_total,
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The ends of a log, as its sequencer knows them.
#[derive(Debug, Default)]
pub(crate) struct LogEnds {
    tail: AtomicU64,
    trim: AtomicU64,
}

impl LogEnds {
    pub(super) fn set(&self, tail: Position, trim: Position) {
        self.tail.store(tail, Ordering::Relaxed);
        self.trim.store(trim, Ordering::Relaxed);
    }
}

/// A log whose sequencer is here, for metrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ServedLog {
    /// The pool's name.
    pub(crate) pool: String,
    pub(crate) name: String,
    pub(crate) tail: Position,
    pub(crate) trim: Position,
}

impl ServedLog {
    pub(super) fn new(pool: &str, name: &str, ends: &LogEnds) -> ServedLog {
        ServedLog {
            pool: pool.to_owned(),
            name: name.to_owned(),
            tail: ends.tail.load(Ordering::Relaxed),
            trim: ends.trim.load(Ordering::Relaxed),
        }
    }
}
