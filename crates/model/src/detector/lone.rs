//! One reporter that misses all others, while nobody else misses any.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::case::Case;
use crate::ids::NodeId;
use crate::map::{ClusterMap, NodeState};
use crate::time::Time;

/// The time after which it is no hiccup.
const LASTS_FOR: Duration = Duration::from_millis(1000);
/// What was not seen for so long is over: on a slow link an answer comes now and then.
const OVER_AFTER: Duration = Duration::from_millis(2000);

/// Who it is, and when it was seen first and last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lone {
    seen: Option<(NodeId, Time, Time)>,
    now: bool,
}

impl Lone {
    /// Looks at the cases, of which those of `doubted` have stood for a while.
    pub(super) fn look(
        &mut self,
        now: Time,
        map: &ClusterMap,
        cases: &BTreeMap<NodeId, Case>,
        doubted: &BTreeSet<NodeId>,
    ) {
        let lone = lone(now, map, cases, doubted);
        self.now = lone.is_some();
        self.seen = match (self.seen, lone) {
            (Some((before, since, _)), Some(node)) if before == node => Some((node, since, now)),
            (_, Some(node)) => Some((node, now, now)),
            (seen, None) => seen.filter(|(_, _, last)| now.since(*last) < OVER_AFTER),
        };
    }

    /// True if there is one at present.
    pub(super) fn is_now(&self) -> bool {
        self.now
    }

    /// True if this one is it, and has been for a while.
    pub(super) fn lasts_for(&self, node: NodeId) -> bool {
        let long = |(who, since, last): &(NodeId, Time, Time)| {
            *who == node && last.since(*since) >= LASTS_FOR
        };
        self.seen.as_ref().is_some_and(long)
    }
}

fn lone(
    now: Time,
    map: &ClusterMap,
    cases: &BTreeMap<NodeId, Case>,
    doubted: &BTreeSet<NodeId>,
) -> Option<NodeId> {
    let mut reporters = cases.values().flat_map(|case| case.against(now));
    let first = reporters.next()?;
    if reporters.any(|reporter| reporter != first) {
        return None;
    }
    let refused = doubted
        .iter()
        .filter_map(|node| cases.get(node))
        .any(Case::is_refused);
    let up = map.nodes.values().filter(|n| n.state == NodeState::Up);
    let mut others = up.map(|n| n.id).filter(|id| *id != first);
    let missed = |id: NodeId| doubted.contains(&id);
    let several = others.clone().count() >= 2;
    (several && !refused && others.all(missed)).then_some(first)
}
