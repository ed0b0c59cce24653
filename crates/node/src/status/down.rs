//! The time for which nodes have been down: so long the directory has waited for what they may hold.

use std::collections::BTreeMap;
use std::time::Instant;

use parking_lot::Mutex;
use staves_model::planner::GIVE_UP_AFTER;
use staves_model::{ClusterMap, Incarnation, NodeId, NodeState};

use super::{SilentNode, StatusReport, UnopenedGroups};

/// The nodes that are down, and since when. A new leader of the directory waits anew.
#[derive(Debug, Default)]
pub(crate) struct DownNodes {
    since: BTreeMap<NodeId, (Incarnation, Instant)>,
    /// Raft's term, and when it was first seen.
    term: Option<(u64, Instant)>,
    /// The longest wait for one of them, in milliseconds.
    pub(crate) wait_ms: u64,
}

impl DownNodes {
    /// No group and no node is late. Each that will be down is waited for so many milliseconds.
    pub(crate) fn beside_unopened(wait_ms: u64) -> Mutex<(UnopenedGroups, DownNodes)> {
        let down = DownNodes {
            wait_ms,
            ..DownNodes::default()
        };
        Mutex::new((UnopenedGroups::default(), down))
    }

    /// Takes in a newer map.
    pub(crate) fn follow(&mut self, map: &ClusterMap, term: u64, now: Instant) {
        self.see_term(term, now);
        let down = map.nodes.values().filter(|n| n.state == NodeState::Down);
        let down: BTreeMap<NodeId, Incarnation> = down.map(|n| (n.id, n.incarnation)).collect();
        self.since
            .retain(|node, (life, _)| down.get(node) == Some(life));
        for (node, life) in down {
            self.since.entry(node).or_insert((life, now));
        }
    }

    /// For how long each has been waited for.
    pub(crate) fn all(&mut self, term: u64, now: Instant) -> Vec<SilentNode> {
        self.see_term(term, now);
        let began = self.term.map(|(_, at)| at);
        let nodes = self.since.iter().map(|(node, (_, since))| {
            let since = began.map_or(*since, |began| began.max(*since));
            SilentNode {
                node: node.0,
                ms: now.saturating_duration_since(since).as_millis() as u64,
            }
        });
        nodes.collect()
    }

    fn see_term(&mut self, term: u64, now: Instant) {
        if self.term.is_none_or(|(known, _)| known != term) {
            self.term = Some((term, now));
        }
    }
}

/// The seconds, rounded up, for which these nodes are waited for at most, if the directory's leader has the setting of the node that was asked.
pub(super) fn seconds_awaited(report: &StatusReport, nodes: &[u64]) -> u64 {
    let most = match report.directory.unflushed_wait_ms {
        0 => GIVE_UP_AFTER.as_millis() as u64, // of a node that does not say it
        most => most,
    };
    let left = nodes.iter().map(|id| {
        let down = report.directory.down.iter().find(|down| down.node == *id);
        most.saturating_sub(down.map_or(0, |down| down.ms))
    });
    left.max().unwrap_or(0).div_ceil(1000)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use staves_model::testing::cluster_with_pool;

    use super::*;

    #[test]
    fn a_new_leader_and_a_new_life_begin_the_time_anew() {
        let mut map = cluster_with_pool(3, "1+1", 2);
        let began = Instant::now();
        let at = |s| began + Duration::from_secs(s);
        let mut down = DownNodes::default();
        let first = NodeId(2);
        let node = map.nodes.get_mut(&first).expect("a node");
        node.state = NodeState::Down;
        down.follow(&map, 1, at(0));
        let for_ms = |down: &mut DownNodes, term, s| {
            let all = down.all(term, at(s));
            all.iter().map(|x| (x.node, x.ms)).collect::<Vec<_>>()
        };
        assert_eq!(for_ms(&mut down, 1, 7), [(2, 7_000)]);
        down.follow(&map, 1, at(8));
        assert_eq!(for_ms(&mut down, 1, 9), [(2, 9_000)]);
        assert_eq!(for_ms(&mut down, 2, 10), [(2, 0)], "another leader");
        assert_eq!(for_ms(&mut down, 2, 12), [(2, 2_000)]);
        let node = map.nodes.get_mut(&first).expect("a node");
        node.incarnation.0 += 1;
        down.follow(&map, 2, at(20));
        assert_eq!(for_ms(&mut down, 2, 21), [(2, 1_000)], "another life");
        map.nodes.get_mut(&first).expect("a node").state = NodeState::Up;
        down.follow(&map, 2, at(22));
        assert_eq!(for_ms(&mut down, 2, 23), []);
    }
}
