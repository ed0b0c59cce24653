//! Nodes that answer, but late.

use std::collections::BTreeSet;

use crate::ids::{MemberId, NodeId};
use crate::map::ClusterMap;

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
