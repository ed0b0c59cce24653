//! Reporters that miss all others: what each says may be of its own link.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::case::Case;
use crate::ids::NodeId;
use crate::map::{ClusterMap, NodeState};
use crate::time::Time;

/// The time after which it is no hiccup.
const LASTS_FOR: Duration = Duration::from_millis(1000);
/// One that was not seen for so long is over: on a slow link an answer comes now and then.
const OVER_AFTER: Duration = Duration::from_millis(2000);

/// Those nodes, each with the first and the last time that it was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Lone {
    seen: BTreeMap<NodeId, (Time, Time)>,
    now: BTreeSet<NodeId>,
}

impl Lone {
    /// Looks at the cases, of which those of `doubted` have stood for a while. So many voters are about to come back.
    pub(super) fn look(
        &mut self,
        now: Time,
        map: &ClusterMap,
        cases: &BTreeMap<NodeId, Case>,
        doubted: &BTreeSet<NodeId>,
        rejoining: usize,
    ) {
        let reporters: BTreeSet<NodeId> = cases.values().flat_map(|c| c.against(now)).collect();
        let misses_all = |who: &NodeId| misses_all(*who, now, map, cases, doubted, rejoining);
        self.now = reporters.into_iter().filter(misses_all).collect();
        for node in &self.now {
            self.seen.entry(*node).or_insert((now, now)).1 = now;
        }
        self.seen
            .retain(|_, (_, last)| now.since(*last) < OVER_AFTER);
    }

    /// True if this one is one of them at present.
    pub(super) fn is_now(&self, node: NodeId) -> bool {
        self.now.contains(&node)
    }

    /// True if there is more than one at present.
    pub(super) fn are_several(&self) -> bool {
        self.now.len() > 1
    }

    /// True if this one is one of them, and has been for a while.
    pub(super) fn lasts_for(&self, node: NodeId) -> bool {
        let long = |(since, last): &(Time, Time)| last.since(*since) >= LASTS_FOR;
        self.seen.get(&node).is_some_and(long)
    }
}

/// True if there are several others, and it misses all of them, but for those of which it is known that they are gone. What they say of
/// each other does not count: it may not come through, or late. One that comes back is another too: where the leader's link is slow, its
/// return takes as long as the slowness.
fn misses_all(
    who: NodeId,
    now: Time,
    map: &ClusterMap,
    cases: &BTreeMap<NodeId, Case>,
    doubted: &BTreeSet<NodeId>,
    rejoining: usize,
) -> bool {
    let is_gone = |id: &NodeId| cases.get(id).is_some_and(Case::is_refused);
    let up = map.nodes.values().filter(|n| n.state == NodeState::Up);
    let others = up.map(|n| n.id).filter(|id| *id != who && !is_gone(id));
    let others: Vec<NodeId> = others.collect();
    let misses = |id: &NodeId| {
        let case = cases.get(id).filter(|_| doubted.contains(id));
        case.is_some_and(|case| case.against(now).any(|by| by == who))
    };
    !others.is_empty() && others.len() + rejoining >= 2 && others.iter().all(misses)
}
