//! The state of a term that is open.

use std::collections::{BTreeMap, VecDeque};

use staves_model::Time;

use super::growth::TailWait;
use super::map::OpenMap;
use super::predict::WaitQueues;
use super::retention::KeptRecords;
use crate::sessions::SessionTable;
use crate::types::{Binding, Position, UnitId};
use crate::unit::ReplyTo;

/// A binding that is not yet decided.
#[derive(Clone, Debug)]
pub(super) struct OpenBinding {
    pub binding: Binding,
    pub unit: UnitId,
    pub sent: Time,
}

/// The place of an append.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IdPlace {
    Bound(Position, UnitId),
    Durable(Position, u32),
}

/// A question for the tail in progress.
#[derive(Clone, Debug)]
pub(super) struct TailCheck {
    pub to: ReplyTo,
    pub tail: Position,
    pub stream: Vec<Position>,
    pub confirmed: bool,
    pub since: Time,
}

/// A trim that the home is to record.
#[derive(Clone, Debug)]
pub(super) struct TrimAsked {
    pub to: ReplyTo,
    pub position: Position,
    pub since: Time,
}

/// The state of a term that is open.
#[derive(Clone, Default, Debug)]
pub(super) struct ActiveTerm {
    pub next: Position,
    pub open: BTreeMap<Position, OpenBinding>,
    pub map: OpenMap,
    pub sessions: SessionTable<IdPlace>,
    /// Sessions that this term has numbered.
    pub numbered: u32,
    pub tags: BTreeMap<u64, Vec<Position>>,
    /// The position past each tag's last record that is durable: `tags` has open and junk ones, too.
    pub tails: BTreeMap<u64, Position>,
    /// The position past the highest that is decided.
    pub decided_end: Position,
    pub waits: BTreeMap<u64, TailWait>,
    pub kept: KeptRecords,
    pub queues: WaitQueues,
    pub trim: Position,
    /// Units that have not confirmed `trim`.
    pub untrimmed: Vec<UnitId>,
    pub checks: BTreeMap<u64, TailCheck>,
    pub trims: VecDeque<TrimAsked>,
    pub nonce: u64,
    /// The map page that is being written was sent at this time.
    pub page_sent: Option<Time>,
    pub prefix_sent: Position,
    pub last_prefix: Time,
    pub last_call: Time,
}

impl ActiveTerm {
    /// The decided prefix: the lowest open position, else the next.
    pub fn prefix(&self) -> Position {
        self.open.keys().next().copied().unwrap_or(self.next)
    }
}
