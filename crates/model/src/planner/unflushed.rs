//! Groups with write-back: epochs that drop nobody who may hold what was not flushed, and those that do so at last (D-13).

use std::time::Duration;

use super::plan::View;
use crate::change::{Change, NewEpoch};
use crate::ids::MemberSlot;
use crate::map::{ClusterMap, Member};
use crate::writeback::Unflushed;

/// The time that the directory waits for a node that is down and may hold what a volume with write-back has not flushed.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

impl View<'_> {
    /// False while others than these may hold what a group with write-back has not flushed.
    pub(super) fn may_go_on(&self, kept: &[(MemberSlot, Member)]) -> bool {
        let keeps = |id| kept.iter().any(|(_, x)| x.id == id);
        let fate = self.map.unflushed(self.group, keeps, self.awaited);
        fate != Unflushed::Awaited
    }
}

/// The changes that commit these epochs: by themselves those that do without a node that may still hold something.
pub(super) fn commits(map: &ClusterMap, epochs: Vec<NewEpoch>) -> Vec<Change> {
    let gives_up = |new: &NewEpoch| map.unflushed_in(new, |_| true) == Unflushed::Awaited;
    let (given_up, epochs): (Vec<_>, Vec<_>) = epochs.into_iter().partition(gives_up);
    let mut changes = Vec::new();
    if !epochs.is_empty() {
        changes.push(Change::CommitEpochs(epochs));
    }
    if !given_up.is_empty() {
        changes.push(Change::GiveUpUnflushed(given_up));
    }
    changes
}
