//! Nodes that reach few others, as the failure detector's reports show it.
//!
//! **A narrow node** reaches some of the nodes that are up and, itself counted, no majority of them; whether one that reaches none lives is for the
//! failure detector to say, which has patience with those that lack processor time. What it serves, others ask for in vain where nobody
//! reaches both; and where it leads the directory, those that are two steps away from it are told nothing. So
//! it gives both up to nodes that are not narrow, where there are any: neither is about what may be lost.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ids::NodeId;
use crate::map::{ClusterMap, NodeState};
use crate::mutant::{Mutant, planted};
use crate::time::Time;

/// The time after which a node that was found narrow and is so no more is given anything again, and the buckets are spread anew: what
/// flaps every second is not moved back and forth.
const WIDE_AFTER: Duration = Duration::from_secs(5);

/// The time for which a node must have been narrow before anything is taken from it: one that had no processor time hears nobody for
/// a moment, and answers soon.
const NARROW_FOR: Duration = Duration::from_millis(300);

/// Pairs of nodes that do not reach each other, the lower id first.
pub type Cuts = BTreeSet<(NodeId, NodeId)>;

/// True if two nodes do not reach each other.
pub fn apart(cuts: &Cuts, a: NodeId, b: NodeId) -> bool {
    cuts.contains(&(a.min(b), a.max(b)))
}

/// The number of other nodes that are up and that it reaches.
pub fn reached(map: &ClusterMap, cuts: &Cuts, node: NodeId) -> usize {
    let up = map.nodes.values().filter(|n| n.state == NodeState::Up);
    up.filter(|n| n.id != node && !apart(cuts, node, n.id))
        .count()
}

/// True if it and those that it reaches are a majority of the nodes that are up.
fn is_wide(map: &ClusterMap, cuts: &Cuts, node: NodeId) -> bool {
    let up = map.nodes.values().filter(|n| n.state == NodeState::Up);
    // The usual case costs nothing.
    let looks = !cuts.is_empty() && !planted(Mutant::NarrowNotSeen);
    !looks || 2 * (1 + reached(map, cuts, node)) > up.count()
}

/// True if it reaches some, and is not wide.
pub fn is_narrow(map: &ClusterMap, cuts: &Cuts, node: NodeId) -> bool {
    !is_wide(map, cuts, node) && reached(map, cuts, node) > 0
}

/// The nodes that are narrow, and have been for a while.
#[derive(Clone, Debug, Default)]
pub struct NarrowNodes {
    /// The first and the last time that each was seen to be.
    seen: BTreeMap<NodeId, (Time, Time)>,
    found: BTreeSet<NodeId>,
    /// Those that reach none at present.
    lone: BTreeSet<NodeId>,
    lapse: bool,
}

impl NarrowNodes {
    /// Brings them in line with what is known now.
    pub fn look(&mut self, now: Time, map: &ClusterMap, cuts: &Cuts) {
        let patience = match planted(Mutant::NarrowAtOnce) {
            true => Duration::ZERO,
            false => NARROW_FOR,
        };
        let ends = cuts.iter().flat_map(|(a, b)| [*a, *b]);
        let (narrow, lone): (Vec<_>, Vec<_>) = ends
            .filter(|node| !is_wide(map, cuts, *node))
            .partition(|node| is_narrow(map, cuts, *node));
        self.lone = lone.into_iter().collect();
        for node in narrow {
            let seen = self.seen.entry(node).or_insert((now, now));
            seen.1 = now;
        }
        let long = |(first, last): &(Time, Time)| last.since(*first) >= patience;
        self.seen.retain(|_, seen| {
            let since = now.since(seen.1);
            since.is_zero() || long(seen) && since < WIDE_AFTER
        });
        let found = self.seen.iter().filter(|(_, seen)| long(seen));
        self.lapse = found.clone().any(|(_, seen)| seen.1 < now);
        self.found = found.map(|(node, _)| *node).collect();
    }

    /// True if there is none, nor was of late, nor may be soon.
    pub fn is_none(&self) -> bool {
        self.seen.is_empty() && self.lone.is_empty()
    }

    /// True if one of them was, and is not at present: it may be again at once, or nobody has to care any more.
    pub fn lapse(&self) -> bool {
        self.lapse
    }

    /// True if it is none of them, and reaches somebody.
    pub fn is_wide(&self, node: NodeId) -> bool {
        !self.contains(node) && !self.lone.contains(&node)
    }

    /// True if it is one of them.
    pub fn contains(&self, node: NodeId) -> bool {
        self.found.contains(&node)
    }
}

/// Those of the voters to whom a leader that is narrow may give the lead, as they are not: those first that it reaches itself, and of
/// these the one that reaches most nodes.
pub fn heirs_of_narrow(
    map: &ClusterMap,
    cuts: &Cuts,
    leader: NodeId,
    voters: &BTreeSet<NodeId>,
) -> Vec<NodeId> {
    if !is_narrow(map, cuts, leader) {
        return Vec::new();
    }
    let up = |id: &NodeId| map.nodes.get(id).is_some_and(|n| n.state == NodeState::Up);
    let able = |id: &NodeId| up(id) && is_wide(map, cuts, *id);
    let others = voters.iter().copied().filter(|id| *id != leader);
    let mut heirs: Vec<NodeId> = others.filter(able).collect();
    heirs.sort_by_key(|id| (apart(cuts, leader, *id), Reverse(reached(map, cuts, *id))));
    heirs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cluster, node_down};

    fn pairs(of: &[(u64, u64)]) -> Cuts {
        of.iter().map(|(a, b)| (NodeId(*a), NodeId(*b))).collect()
    }

    fn heirs(map: &ClusterMap, cuts: &[(u64, u64)], voters: &[u64]) -> Vec<u64> {
        let voters = voters.iter().map(|id| NodeId(*id)).collect();
        let heirs = heirs_of_narrow(map, &pairs(cuts), NodeId(1), &voters);
        heirs.into_iter().map(|id| id.0).collect()
    }

    #[test]
    fn who_reaches_no_majority_of_the_nodes_that_are_up_is_narrow() {
        let mut map = cluster(5);
        let narrow = |map: &ClusterMap, cuts: &[_]| is_narrow(map, &pairs(cuts), NodeId(1));
        assert!(!narrow(&map, &[]));
        assert!(!narrow(&map, &[(1, 2), (1, 3)]));
        assert!(narrow(&map, &[(1, 2), (1, 3), (1, 4)]));
        let alone = [(1, 2), (1, 3), (1, 4), (1, 5)];
        assert!(!narrow(&map, &alone), "it may be dead, or paused");
        // Half is no majority.
        let down = node_down(&map, 5);
        map.apply(None, &down).expect("it was up");
        assert!(narrow(&map, &[(1, 2), (1, 3)]));
        assert!(!narrow(&map, &[(1, 2), (1, 5)]));
    }

    #[test]
    fn a_narrow_leader_gives_the_lead_to_a_voter_that_reaches_more() {
        let map = cluster(7);
        let all = [1, 2, 3, 4, 5, 6, 7];
        let cuts = [(1, 4), (1, 5), (1, 6), (1, 7), (2, 7)];
        assert_eq!(heirs(&map, &cuts, &all), [3, 2, 4, 5, 6, 7]);
        let voters = [1, 2, 5, 7];
        assert_eq!(heirs(&map, &cuts, &voters), [2, 5, 7], "of the voters");
        assert_eq!(
            heirs(&map, &cuts[1..], &all),
            [] as [u64; 0],
            "it is not narrow"
        );
        // Where all are, as in a star without its hub or beside too little processor time, nobody is better.
        let each = all.iter().flat_map(|a| all.map(|b| (*a, b)));
        let each: Vec<_> = each.filter(|(a, b)| a < b && (*a, *b) != (1, 2)).collect();
        assert_eq!(heirs(&map, &each, &all), [] as [u64; 0]);
    }
}
