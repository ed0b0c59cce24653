//! The volatile state of one term's leader. None of it is carried into the next term.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use staves_model::detector::{Report, Verdict};
use staves_model::mutant::{Mutant, planted};
use staves_model::planner::record_since;
use staves_model::{
    ClusterMap, Detector, DetectorConfig, Incarnation, Leases, Node, NodeId, NodeState, Planner,
    PlannerConfig, StopBook, StopTimes, StuckReport, Time,
};

use crate::message::LeaderResponse;
use crate::options::Times;

/// Most reports of silent nodes between two ticks; each node pings few and reports seldom.
const REPORTS_MAX: usize = 4096;
/// Most reports of stuck members between two ticks.
const STUCK_MAX: usize = 4096;
/// The time for which a node that asked to come back runs: it asks again sooner, if on a slow link not much.
const RETURN_LASTS: Duration = Duration::from_secs(3);
/// Most joins whose answer is remembered, lest one that is asked twice make two nodes.
const JOINS_MAX: usize = 64;

/// The machines of one term's leader.
pub(crate) struct LeaderState {
    /// Proposals that rest on this state carry this term.
    pub term: u64,
    pub leases: Leases,
    pub planner: Planner,
    pub detector: Detector,
    pub stops: StopBook,
    reports: Vec<Report>,
    stuck: Vec<StuckReport>,
    down_since: BTreeMap<NodeId, Time>,
    /// Verdicts that were logged and stand.
    logged: BTreeMap<NodeId, Incarnation>,
    /// By the joiner's nonce; `None` while its join is under way.
    joins: VecDeque<(u64, Option<LeaderResponse>)>,
    /// The last time that each node of the map asked to come back.
    asked: BTreeMap<NodeId, Time>,
}

impl LeaderState {
    /// The state of a newly elected leader; the map holds all that was committed before.
    pub fn new(term: u64, now: Time, map: &ClusterMap, times: &Times) -> LeaderState {
        let mut leases = Leases::new(times.lease);
        leases.become_leader(match planted(Mutant::LeaderBookOpensAtOnce) {
            true => Time::ZERO,
            false => now,
        });
        let mut planner = Planner::new(PlannerConfig {
            give_up_after: times.unflushed_wait,
            ..PlannerConfig::default()
        });
        planner.look(now, map);
        LeaderState {
            term,
            leases,
            planner,
            detector: Detector::new(DetectorConfig::default()),
            stops: StopBook::new(now, map, StopTimes::default()),
            reports: Vec::new(),
            stuck: Vec::new(),
            down_since: BTreeMap::new(),
            logged: BTreeMap::new(),
            joins: VecDeque::new(),
            asked: BTreeMap::new(),
        }
    }

    /// Keeps a report for the next tick. One that does not fit is dropped: a silent node is reported again.
    pub fn add_report(&mut self, report: Report) {
        if self.reports.len() < REPORTS_MAX {
            self.reports.push(report);
        }
    }

    pub fn take_reports(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.reports)
    }

    /// Keeps a report of stuck members for the next tick. One that does not fit is dropped: it comes again.
    pub fn add_stuck_report(&mut self, report: StuckReport) {
        if self.stuck.len() < STUCK_MAX {
            self.stuck.push(report);
        }
    }

    pub fn take_stuck(&mut self) -> Vec<StuckReport> {
        std::mem::take(&mut self.stuck)
    }

    /// Records the time since which each node is down, as far as this term has seen it.
    pub fn watch_down(&mut self, now: Time, map: &ClusterMap) {
        let down = |n: &Node| n.state == NodeState::Down;
        record_since(&mut self.down_since, now, map, down);
        self.stops.forget_former_lives(map);
    }

    /// Of these verdicts, those that are news. Without a majority none reaches the map, and the detector
    /// gives them again and again.
    pub fn news(&mut self, verdicts: &[Verdict]) -> Vec<Verdict> {
        self.logged.retain(|node, _| self.detector.doubts(*node));
        let logged = &mut self.logged;
        let news = verdicts.iter();
        news.filter(|v| logged.insert(v.node, v.incarnation) != Some(v.incarnation))
            .cloned()
            .collect()
    }

    /// Nodes of the map that are down for less than this.
    pub fn just_down(
        &mut self,
        now: Time,
        map: &ClusterMap,
        less_than: std::time::Duration,
    ) -> BTreeSet<NodeId> {
        // The map may have moved on since the last tick: a node that died with this change died just now.
        self.watch_down(now, map);
        let fresh = self
            .down_since
            .iter()
            .filter(|(_, since)| now.since(**since) < less_than);
        fresh.map(|(node, _)| *node).collect()
    }

    /// Notes that a node asks to come back.
    pub fn note_return(&mut self, now: Time, map: &ClusterMap, node: NodeId) {
        self.asked.retain(|id, _| map.nodes.contains_key(id));
        if map.nodes.contains_key(&node) {
            self.asked.insert(node, now);
        }
    }

    /// The number of these voters that are down by the map, and asked to come back a moment ago.
    pub fn rejoining(&self, now: Time, map: &ClusterMap, voters: &BTreeSet<NodeId>) -> usize {
        let down = |id: &NodeId| map.nodes.get(id).is_some_and(|n| n.state != NodeState::Up);
        let lately = |at: &Time| now.since(*at) < RETURN_LASTS;
        let asked = self.asked.iter();
        asked
            .filter(|(id, at)| voters.contains(id) && down(id) && lately(at))
            .count()
    }

    /// Begins a join, unless one with this nonce is under way or done.
    pub fn begin_join(&mut self, nonce: u64) -> JoinState {
        if let Some((_, answer)) = self.joins.iter().find(|(n, _)| *n == nonce) {
            return answer.clone().map_or(JoinState::UnderWay, JoinState::Done);
        }
        if self.joins.len() >= JOINS_MAX {
            self.joins.pop_front();
        }
        self.joins.push_back((nonce, None));
        JoinState::New
    }

    /// Ends a join. Its answer is repeated if the join is; without an answer the join may be tried again.
    pub fn end_join(&mut self, nonce: u64, answer: Option<LeaderResponse>) {
        self.joins.retain(|(n, _)| *n != nonce);
        if answer.is_some() {
            self.joins.push_back((nonce, answer));
        }
    }
}

/// The progress of a join, by its nonce.
pub(crate) enum JoinState {
    New,
    UnderWay,
    Done(LeaderResponse),
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::detector::Findings;
    use staves_model::testing::cluster;
    use staves_model::{Change, Evidence, Sign};

    /// Regression: a leader that no majority follows wrote the same death to its log four times a second.
    #[test]
    fn a_verdict_is_logged_once_until_it_changes() {
        let map = cluster(3);
        let mut now = Time::from_millis(1000);
        let mut leader_state = LeaderState::new(1, now, &map, &Times::default());
        let suspect = NodeId(2);
        let incarnation = map.nodes[&suspect].incarnation;
        let mut pass = |leader_state: &mut LeaderState, ticks: u32, sign: Sign| {
            let (mut given, mut told) = (0, 0);
            for _ in 0..ticks {
                now = now + Duration::from_millis(50);
                let reports = [NodeId(1), NodeId(3)].map(|reporter| Report {
                    reporter,
                    seen: Evidence {
                        node: suspect,
                        incarnation,
                        sign,
                    },
                });
                let mut findings = Findings::default();
                leader_state
                    .detector
                    .step(now, &map, &reports, &mut findings);
                given += findings.verdicts.len();
                told += leader_state.news(&findings.verdicts).len();
            }
            (given, told)
        };
        let (given, told) = pass(&mut leader_state, 60, Sign::Silent);
        assert!(given > 5 && told == 1, "{given} given, {told} told");
        assert_eq!(pass(&mut leader_state, 4, Sign::Alive), (0, 0));
        let (given, told) = pass(&mut leader_state, 60, Sign::Silent);
        assert!(
            given > 5 && told == 1,
            "it lived: {given} given, {told} told"
        );
    }

    #[test]
    fn who_died_with_the_last_change_of_the_map_is_just_down() {
        let mut map = cluster(3);
        let mut leader_state = LeaderState::new(1, Time::ZERO, &map, &Times::default());
        let down = Change::NodeDown {
            node: NodeId(2),
            incarnation: Incarnation(2),
        };
        map.apply(None, &down).expect("it was up");
        let at = |ms: u64| Time::ZERO + Duration::from_millis(ms);
        let lately = Duration::from_millis(500);
        let two = BTreeSet::from([NodeId(2)]);
        assert_eq!(leader_state.just_down(at(10), &map, lately), two);
        assert_eq!(leader_state.just_down(at(509), &map, lately), two);
        assert!(leader_state.just_down(at(510), &map, lately).is_empty());
    }
}
