//! Nodes that answer, but late.

use std::collections::BTreeSet;

use super::{Detector, Sign};
use crate::ids::{MemberId, NodeId};
use crate::map::ClusterMap;
use crate::time::Time;

impl Detector {
    /// Those of the [`cuts`](Self::cuts) in which each hears the other, if late.
    pub fn late(&self) -> BTreeSet<(NodeId, NodeId)> {
        let silent = self.cases.iter().flat_map(|(suspect, case)| {
            let words = case.words.iter();
            let words = words.filter(|(_, (_, f))| *f == Sign::Silent);
            words.map(|(reporter, _)| (*reporter.min(suspect), *reporter.max(suspect)))
        });
        let silent: BTreeSet<_> = silent.collect();
        self.cuts().difference(&silent).copied().collect()
    }
}

/// True if every group that loses something with this node bears the loss of one more without it and without those: to take it out because
/// it is slow costs no data then, even if another node dies before what it had is made anew.
pub(super) fn is_spare(map: &ClusterMap, node: NodeId, gone: &BTreeSet<NodeId>) -> bool {
    let runs = |id: MemberId| map.runs(id) && !gone.contains(&id.node);
    let stays = |id: MemberId| runs(id) && id.node != node;
    let mut groups = map.groups.values();
    groups.all(|group| {
        let without = group.tolerates(stays);
        without >= Some(1) || without == group.tolerates(runs)
    })
}

/// The fewest losses that any group bears without this node and without those; `None` where one could not go on.
pub(super) fn borne_without(map: &ClusterMap, node: NodeId, gone: &BTreeSet<NodeId>) -> Option<u8> {
    let stays = |id: MemberId| map.runs(id) && !gone.contains(&id.node) && id.node != node;
    let of = map.groups.values().filter(|group| group.names(node));
    of.map(|group| group.tolerates(stays)).min().flatten()
}

/// Since when a slow node is waited for: anew where less is borne without it than before, so that there is time to make up for that.
pub(super) fn waited(
    now: Time,
    before: Option<(Option<u8>, Time)>,
    borne: Option<u8>,
) -> (Option<u8>, Time) {
    match before {
        Some((had, since)) if borne >= had => (borne, since),
        _ => (borne, now),
    }
}
