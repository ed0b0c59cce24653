//! The items of a queue, as the records of its stream make them.
//!
//! **Rule.** A record changes each item that it names by itself, and all records of an item lie above it. So the items above a position are made by
//! the records above it alone: what lies below may be trimmed once it is acknowledged, and who begins there comes to the same state.

use std::collections::BTreeMap;

use staves_log::Position;

use super::record::{ConsumerId, ItemClaim, QueueChange, QueueRecord, QueueStep};

/// The difference of two consumers' clocks that a lease bears, in milliseconds.
pub(super) const SKEW_MS: u64 = 1_000;

/// The consumer that took an item last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ItemHolder {
    /// The position of its take.
    pub token: Position,
    pub consumer: ConsumerId,
}

/// An item that is not acknowledged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ItemState {
    pub deliveries: u32,
    deliveries_max: u32,
    pub holder: Option<ItemHolder>,
    /// A clock that shows this or more may take it.
    pub free_ms: u64,
}

impl ItemState {
    fn is_free(&self, at_ms: u64) -> bool {
        at_ms >= self.free_ms
    }

    /// True if it was delivered as often as it may be, and nobody holds it any more.
    pub(super) fn is_dead(&self, at_ms: u64) -> bool {
        self.is_free(at_ms) && self.is_spent()
    }

    pub(super) fn is_spent(&self) -> bool {
        self.deliveries >= self.deliveries_max
    }

    /// True if a take at this time gets it.
    pub(super) fn is_ready(&self, at_ms: u64) -> bool {
        self.is_free(at_ms) && !self.is_spent()
    }

    /// Has a change take effect. False if it has none; the item is to go after one that has, if it is an end.
    fn change(&mut self, position: Position, change: &QueueChange, claim: &ItemClaim) -> bool {
        let (at, span) = (change.at_ms, u64::from(change.for_ms));
        let holds = self.holder.is_some_and(|held| held.token == claim.token);
        let takes_effect = match change.step {
            QueueStep::Take => self.is_ready(at),
            QueueStep::Acknowledge | QueueStep::Renew | QueueStep::GiveBack => holds,
            QueueStep::Discard | QueueStep::Revive => self.is_dead(at),
        };
        if !takes_effect {
            return false;
        }
        match change.step {
            QueueStep::Take => {
                self.deliveries = self.deliveries.saturating_add(1);
                self.free_ms = at.saturating_add(span + SKEW_MS);
                self.holder = Some(ItemHolder {
                    token: position,
                    consumer: change.consumer,
                });
            }
            QueueStep::Renew => self.free_ms = at.saturating_add(span + SKEW_MS),
            QueueStep::GiveBack => {
                self.holder = None;
                self.free_ms = if span == 0 {
                    0
                } else {
                    at.saturating_add(span)
                };
            }
            QueueStep::Revive => (self.deliveries, self.holder) = (0, None),
            QueueStep::Acknowledge | QueueStep::Discard => {}
        }
        true
    }
}

/// The items of a queue that are not acknowledged. Those beyond a bound are left out, the last ones, until there is room for them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct QueueItems {
    items: BTreeMap<Position, ItemState>,
    items_max: usize,
    /// Items from here on may be left out.
    pub left_out: Option<Position>,
}

impl QueueItems {
    pub(super) fn new(items_max: usize) -> QueueItems {
        QueueItems {
            items: BTreeMap::new(),
            items_max,
            left_out: None,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Position, &ItemState)> {
        self.items.iter().map(|(position, item)| (*position, item))
    }

    pub(super) fn get(&self, position: Position) -> Option<&ItemState> {
        self.items.get(&position)
    }

    /// The position below which all is acknowledged; none if all is.
    pub(super) fn oldest(&self) -> Option<Position> {
        self.items.keys().next().copied().or(self.left_out)
    }

    /// The first item that was left out, if there is room for it and others; and none yet of the items from there on.
    pub(super) fn to_fetch(&self) -> Option<(Position, QueueItems)> {
        let room = self.items_max - self.items.len();
        let from = self.left_out.filter(|_| room >= self.items_max / 2)?;
        Some((from, QueueItems::new(room)))
    }

    /// Takes in items that were left out, with all that was done to them.
    pub(super) fn fetched(&mut self, mut later: QueueItems) {
        self.items.append(&mut later.items);
        self.left_out = later.left_out;
    }

    /// Has a record take effect: on which of the items that it names.
    pub(super) fn apply(&mut self, position: Position, record: &QueueRecord) -> Vec<bool> {
        let change = match record {
            QueueRecord::Change(change) => change,
            QueueRecord::Push { deliveries_max, .. } => {
                self.push(position, *deliveries_max);
                return Vec::new();
            }
        };
        let apply = |claim: &ItemClaim| self.change(position, change, claim);
        change.claims.iter().map(apply).collect()
    }

    fn push(&mut self, position: Position, deliveries_max: u32) {
        let is_full = self.items.len() >= self.items_max;
        if is_full || self.left_out.is_some() {
            self.left_out.get_or_insert(position);
            return;
        }
        let item = ItemState {
            deliveries: 0,
            deliveries_max,
            holder: None,
            free_ms: 0,
        };
        self.items.insert(position, item);
    }

    fn change(&mut self, position: Position, change: &QueueChange, claim: &ItemClaim) -> bool {
        let Some(item) = self.items.get_mut(&claim.item) else {
            return false;
        };
        let takes_effect = item.change(position, change, claim);
        if takes_effect && matches!(change.step, QueueStep::Acknowledge | QueueStep::Discard) {
            self.items.remove(&claim.item);
        }
        takes_effect
    }

    /// An item is gone without a record: its own was given up.
    pub(super) fn remove(&mut self, position: Position) {
        self.items.remove(&position);
    }

    /// The log is trimmed below a position.
    pub(super) fn forget_below(&mut self, position: Position) {
        self.items = self.items.split_off(&position);
        self.left_out = self.left_out.map(|from| from.max(position));
    }
}

#[cfg(test)]
mod tests;
