//! The order of stops: a node stops once the directory's leader permits it, and no two permits together lose a group (row D6).
//!
//! The leader counts a node that it permitted to stop as gone. Its successor does not have that book, and leaders change just
//! when nodes stop. So each node keeps its own permit ([`OwnStop`]), and before a leader permits a stop it asks every node
//! for it. The leader then has a quorum confirm its term: a deposed leader permits nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{Incarnation, NodeId};
use crate::map::{ClusterMap, Node, NodeState};
use crate::mutant::{Mutant, planted};
use crate::time::Time;

/// The times of stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StopTimes {
    /// Time for which a permitted node counts as gone: longer than a stop takes.
    pub permit: Duration,
    /// Time for which a permit of the former leader may be on its way to the node.
    pub young: Duration,
}

impl Default for StopTimes {
    fn default() -> StopTimes {
        StopTimes {
            permit: Duration::from_secs(30),
            young: Duration::from_secs(5),
        }
    }
}

/// A node's own account of its stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum StopState {
    /// It stays.
    #[default]
    Stays,
    /// It has asked for a permit, and has no answer yet.
    Asks,
    /// It has a permit.
    Permitted,
}

/// The record of a node's own stop.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnStop {
    asks: u32,
    permitted: Option<Time>,
}

impl OwnStop {
    /// The state at `now`; a permit lapses.
    pub fn state(&self, now: Time, times: &StopTimes) -> StopState {
        match self
            .permitted
            .is_some_and(|at| now.since(at) < times.permit)
        {
            true => StopState::Permitted,
            false if self.asks > 0 => StopState::Asks,
            false => StopState::Stays,
        }
    }

    /// Begins a request. This is recorded before the leader is asked: whatever becomes of the answer, no leader counts on this node.
    pub fn ask(&mut self) {
        self.asks += 1;
    }

    /// Ends a request, with a permit or without.
    pub fn answered(&mut self, now: Time, permitted: bool) {
        self.asks = self.asks.saturating_sub(1);
        if permitted {
            self.permitted = Some(now);
        }
    }
}

/// The answer of one node to a leader that asks for its [`StopState`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopReply {
    /// Its state.
    State(StopState),
    /// No answer in time.
    Silent,
    /// The life has ended.
    Over,
}

/// The stops of one leader's term.
#[derive(Clone, Debug)]
pub struct StopBook {
    times: StopTimes,
    /// The beginning of the term; none for the first leader, whom none preceded.
    followed: Option<Time>,
    leaving: BTreeMap<NodeId, Incarnation>,
    permitted: BTreeMap<NodeId, (Incarnation, Time)>,
}

impl StopBook {
    /// The empty book of a leader elected at `now`, with the map of all that was committed before.
    pub fn new(now: Time, map: &ClusterMap, times: StopTimes) -> StopBook {
        StopBook {
            times,
            followed: (!map.nodes.is_empty()).then_some(now),
            leaving: BTreeMap::new(),
            permitted: BTreeMap::new(),
        }
    }

    /// Records that a life of a node leaves.
    pub fn leave(&mut self, node: NodeId, incarnation: Incarnation) {
        self.leaving.insert(node, incarnation);
    }

    /// Nodes that leave in the life that the map has.
    pub fn leaving(&self, map: &ClusterMap) -> BTreeSet<NodeId> {
        let life = |node| map.nodes.get(node).map(|n| n.incarnation);
        let still = self.leaving.iter().filter(|(n, l)| life(n) == Some(**l));
        still.map(|(node, _)| *node).collect()
    }

    /// Drops nodes that leave in a life that is over.
    pub fn forget_former_lives(&mut self, map: &ClusterMap) {
        self.leaving
            .retain(|node, life| map.nodes.get(node).is_some_and(|n| n.incarnation == *life));
    }

    /// True if a permit of the former leader may still be on its way.
    pub fn is_young(&self, now: Time) -> bool {
        self.followed
            .is_some_and(|at| now.since(at) < self.times.young)
    }

    /// Nodes to be asked for their [`StopState`] before `asking` is permitted to stop.
    pub fn to_ask(map: &ClusterMap, asking: NodeId) -> impl Iterator<Item = &Node> {
        let up = move |n: &&Node| n.state == NodeState::Up && n.id != asking;
        map.nodes
            .values()
            .filter(up)
            .filter(|_| !planted(Mutant::PermitsForgottenByNewLeader))
    }

    /// True if a node that replied so counts as gone; `young` is that of the leader when it began to ask.
    pub fn counts_as_gone(reply: StopReply, young: bool) -> bool {
        match reply {
            StopReply::State(StopState::Permitted) | StopReply::Over => true,
            // The former leader has perhaps permitted it; a silent node may be on its way out.
            StopReply::State(StopState::Asks) | StopReply::Silent => {
                young && !planted(Mutant::YoungLeaderTrusts)
            }
            StopReply::State(StopState::Stays) => false,
        }
    }

    /// Permits a stop that leaves enough of every group. Nodes with a permit, nodes that leave, and `others`, which counted
    /// as gone by their replies, do not count as left. The error is the reason for people.
    pub fn permit(
        &mut self,
        now: Time,
        map: &ClusterMap,
        node: NodeId,
        incarnation: Incarnation,
        others: &BTreeSet<NodeId>,
    ) -> Result<(), String> {
        let Some(known) = map.nodes.get(&node) else {
            return Ok(()); // removed: it holds nothing
        };
        let lasts = self.times.permit;
        self.permitted
            .retain(|n, (life, at)| now.since(*at) < lasts && map.is_up(*n, *life));
        let leaving = self.leaving(map);
        let gone = |n: NodeId| {
            n != node
                && (self.permitted.contains_key(&n) || others.contains(&n) || leaving.contains(&n))
        };
        if let Some(reason) = map.after_stop(node, gone).refusal(map, known) {
            return Err(reason);
        }
        if !planted(Mutant::PermitNotRecorded) {
            self.permitted.insert(node, (incarnation, now));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn a_node_keeps_its_requests_and_its_permit() {
        let times = StopTimes::default();
        let mut own = OwnStop::default();
        assert_eq!(own.state(at(0), &times), StopState::Stays);
        own.ask();
        own.ask();
        assert_eq!(own.state(at(1), &times), StopState::Asks);
        own.answered(at(2), false);
        let state = own.state(at(2), &times);
        assert_eq!(state, StopState::Asks, "the other request is under way");
        own.answered(at(3), true);
        assert_eq!(own.state(at(3), &times), StopState::Permitted);
        own.ask();
        own.answered(at(4), false);
        let state = own.state(at(4), &times);
        assert_eq!(state, StopState::Permitted, "by the answer before");
        let late = own.state(at(3) + times.permit, &times);
        assert_eq!(late, StopState::Stays, "it did not stop");
    }

    /// Regression: nodes that were stopped one right after the other took a region with them.
    #[test]
    fn of_two_stops_at_once_the_second_is_refused() {
        let mut map = cluster(3);
        map.apply(None, &create_pool("kept", "1+1", 1, false))
            .expect("new");
        start(&mut map, &[1, 2]);
        let [one, two] = [1, 2].map(|n| (NodeId(n), map.nodes[&NodeId(n)].incarnation));
        let mut book = StopBook::new(at(0), &map, StopTimes::default());
        let none = BTreeSet::new();
        let mut ask = |ms, (node, life)| book.permit(at(ms), &map, node, life, &none);
        assert_eq!(ask(0, one), Ok(()));
        assert_eq!(ask(1, one), Ok(()), "asked again");
        let why = ask(2, two).expect_err("the other goes");
        assert!(why.contains("'kept'") && why.contains("--force"), "{why}");
        assert_eq!(ask(60_000, two), Ok(()), "it did not go");
        // The next leader has nothing but the node's own account.
        let mut next = StopBook::new(at(70_000), &map, StopTimes::default());
        let others = BTreeSet::from([two.0]);
        let asks = next.permit(at(70_001), &map, one.0, one.1, &others);
        assert!(asks.is_err_and(|why| why.contains("--force")));
        assert!(next.is_young(at(70_001)) && !next.is_young(at(76_000)));
    }

    #[test]
    fn only_a_young_leader_takes_the_silent_and_the_asking_for_gone() {
        let asks = StopReply::State(StopState::Asks);
        for (reply, young, old) in [
            (StopReply::State(StopState::Permitted), true, true),
            (StopReply::Over, true, true),
            (asks, true, false),
            (StopReply::Silent, true, false),
            (StopReply::State(StopState::Stays), false, false),
        ] {
            assert_eq!(StopBook::counts_as_gone(reply, true), young, "{reply:?}");
            assert_eq!(StopBook::counts_as_gone(reply, false), old, "{reply:?}");
        }
    }
}
