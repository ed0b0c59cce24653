//! The failure detector (rows D5, X4): the directory's leader judges the evidence of many nodes.
//!
//! Nodes ping those of [`whom_to_ping`], and report their findings, and those of failed requests and of clients,
//! to the directory's leader. A single report is never enough while there is another node to ask:
//! the leader asks others to probe the suspect. It is dead when two of them report it, one of which probed
//! it (failed requests are a reason to probe, no more), and no recent report has it
//! alive; all of them if fewer than two are left. Where it is only silent, those who were asked first must have
//! had the time to look.
//!
//! **A partial partition** (A and B cut, both reach C; or each node of a ring cut from the next) kills no node:
//! C's fresh report that B lives outweighs any silence. It does not outweigh a connection refused *later*:
//! that is sent by a dead process's machine itself.
//!
//! **A reporter that is left alone** (two nodes in all, or all others suspected themselves) may have
//! been paused itself, and found all others silent when it woke. So a lone silence must stand for a while
//! before it counts; a live node answers again in that time. A lone refusal need not. Where there are several others, and it misses all
//! of them, it is more likely that its own link is slow: others must confirm what it says without its own word, or it must stand for much
//! longer (where there are several such nodes, for ever); and if it leads the directory it gives that up ([`Detector::hears_nobody`]).
//!
//! Drivers answer a request for a probe with its finding, `Alive` included. A node that has
//! reported another one and then receives from it reports `Alive` at once, which withdraws its report.
//!
//! **Who answers late** is taken out as one that is silent, for all wait for it, but not at once where data is at stake: while a group that it
//! is in would bear no further loss without it, it stays for as long as others may need to take over what was lost before (`detector/slow.rs`).
//!
//! A wrong verdict costs time, never data: epochs fence the node off, and it may come back in the same
//! life (`Change::NodeBack`). **Who came back twice** is slow rather than dead: silence must then stand for longer, and for
//! twice as long after each further return (`detector/returns.rs`), so that a machine without enough processor
//! time does not spend it on takeovers. A refused connection counts at once all the same.

mod case;
mod lone;
mod pinged;
mod returns;
mod slow;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::case::Case;
use self::lone::Lone;
use self::pinged::circle_from;
pub use self::pinged::{PINGED_MAX, whom_to_ping};
use self::returns::Returns;
use crate::ids::{Incarnation, NodeId};
use crate::map::{ClusterMap, NodeState};
use crate::mutant::{Mutant, planted};
use crate::time::Time;

/// Most reporters whose findings on one suspect are kept.
const REPORTERS_MAX: usize = 16;

/// The detector's times and widths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DetectorConfig {
    /// The time for which a finding counts.
    pub window: Duration,
    /// The time before others are asked to probe the same suspect again.
    pub probe_again: Duration,
    /// The number of nodes that are asked at once.
    pub probers: usize,
    /// The time that those who were asked first have for their answer.
    pub probed_within: Duration,
    /// The time after which the report of a single node is enough.
    pub alone_after: Duration,
    /// The same where that node misses all others, and there are several.
    pub alone_against_all: Duration,
    /// The time for which a node stays that answers late, where its loss could not be borne.
    pub slow_stays: Duration,
    /// The time before a verdict that has not reached the map is repeated.
    pub verdict_again: Duration,
}

impl Default for DetectorConfig {
    fn default() -> Self {
        DetectorConfig {
            window: Duration::from_millis(1000),
            probe_again: Duration::from_millis(150),
            probers: 3,
            probed_within: Duration::from_millis(300),
            alone_after: Duration::from_millis(300),
            alone_against_all: Duration::from_millis(5000),
            slow_stays: Duration::from_millis(5000),
            verdict_again: Duration::from_millis(250),
        }
    }
}

/// An observation of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Sign {
    /// It answered. This takes an earlier report by the same node back.
    Alive,
    /// No answer for the suspicion time.
    Silent,
    /// Its machine refused the connection: no such process listens.
    Refused,
    /// A request to it failed: the connection broke, or a deadline passed.
    Failed,
    /// It answers, but each answer takes longer than the suspicion time.
    Slow,
}

/// One observation of one life of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Evidence {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// The observation.
    pub sign: Sign,
}

/// Evidence reported by a node: its own, or a client's that it passes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// The reporting node.
    pub reporter: NodeId,
    /// Its evidence of another.
    pub seen: Evidence,
}

/// The actions that the detector asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Ask these nodes to probe this life of this node now, and to report what they find.
    pub probes: Vec<Probe>,
    /// Dead: to be proposed as `Change::NodeDown`.
    pub verdicts: Vec<Verdict>,
}

/// A node is dead, by these reporters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// The dead node.
    pub node: NodeId,
    /// The life of it.
    pub incarnation: Incarnation,
    /// The words on which the verdict rests.
    pub words: Vec<(NodeId, Sign)>,
}

/// A request for probes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// The node to probe.
    pub suspect: NodeId,
    /// The life of it.
    pub incarnation: Incarnation,
    /// The nodes that should probe it.
    pub by: Vec<NodeId>,
}

/// The detector. Holds one case per suspect that is up, and in it a bounded number of reporters.
#[derive(Clone, Debug)]
pub struct Detector {
    config: DetectorConfig,
    cases: BTreeMap<NodeId, Case>,
    returns: Returns,
    lone: Lone,
    rejoining: usize,
}

impl Detector {
    /// A detector without reports.
    pub fn new(config: DetectorConfig) -> Detector {
        Detector {
            config,
            cases: BTreeMap::new(),
            returns: Returns::default(),
            lone: Lone::default(),
            rejoining: 0,
        }
    }

    /// Forgets everything: this directory node has just become leader, or is leader no longer.
    pub fn reset(&mut self) {
        self.cases.clear();
        self.returns = Returns::default();
        self.lone = Lone::default();
        self.rejoining = 0;
    }

    /// Takes in how many voters that count as down run again and ask to come back: others could elect one of them, or with them.
    pub fn see_rejoining(&mut self, voters: usize) {
        self.rejoining = voters;
    }

    /// True if this node has missed all others for a while, of which there are several: its own link is slow, or it lacks processor
    /// time, whoever still follows it.
    pub fn hears_nobody(&self, node: NodeId) -> bool {
        self.lone.lasts_for(node)
    }

    /// True if a recent report suspects this node.
    pub fn doubts(&self, node: NodeId) -> bool {
        self.cases.contains_key(&node)
    }

    /// The pairs of nodes of which one does not hear the other, the lower id first.
    pub fn cuts(&self) -> BTreeSet<(NodeId, NodeId)> {
        let silent = self.cases.iter().flat_map(|(suspect, case)| {
            let words = case
                .words
                .iter()
                .filter(|(_, (_, f))| matches!(f, Sign::Silent | Sign::Slow));
            words.map(|(reporter, _)| (*reporter.min(suspect), *reporter.max(suspect)))
        });
        silent.collect()
    }

    /// Takes reports (none: a tick), and returns the probes to ask for and the nodes that are dead.
    pub fn step(&mut self, now: Time, map: &ClusterMap, reports: &[Report], out: &mut Findings) {
        self.returns.watch(now, map);
        for report in reports {
            self.hear(now, map, report);
        }
        self.forget(now, map);
        let suspects: Vec<NodeId> = self.cases.keys().copied().collect();
        for case in self.cases.values_mut() {
            let stands = case.against(now).next().is_some();
            case.doubted_since = stands.then(|| case.doubted_since.unwrap_or(now));
        }
        let long = |c: &Case| c.doubted_for(now) >= Some(self.config.alone_after);
        let doubted: BTreeSet<NodeId> = self
            .cases
            .iter()
            .filter(|(_, c)| long(c))
            .map(|(n, _)| *n)
            .collect();
        self.lone
            .look(now, map, &self.cases, &doubted, self.rejoining);
        for suspect in suspects {
            self.judge(now, map, suspect, &doubted, out);
        }
    }

    fn hear(&mut self, now: Time, map: &ClusterMap, report: &Report) {
        let up = |n| map.nodes.get(&n).is_some_and(|n| n.state == NodeState::Up);
        let Report { reporter, seen } = *report;
        let (suspect, incarnation, finding) = (seen.node, seen.incarnation, seen.sign);
        if reporter == suspect || !up(reporter) || !map.is_up(suspect, incarnation) {
            return;
        }
        if finding == Sign::Alive && !self.cases.contains_key(&suspect) {
            return; // nobody doubts it
        }
        let case = self
            .cases
            .entry(suspect)
            .or_insert_with(|| Case::new(incarnation));
        if case.incarnation != incarnation {
            *case = Case::new(incarnation);
        }
        if case.words.len() >= REPORTERS_MAX && !case.words.contains_key(&reporter) {
            let oldest = case
                .words
                .iter()
                .min_by_key(|(n, (at, _))| (*at, **n))
                .map(|(n, _)| *n);
            oldest.map(|n| case.words.remove(&n));
        }
        // A request that failed says less than pings without an answer, and comes as often where clients ask.
        let knows_more = |(at, before): &(Time, Sign)| {
            let more = matches!(before, Sign::Silent | Sign::Slow | Sign::Refused);
            more && now.since(*at) <= self.config.window
        };
        if finding == Sign::Failed && case.words.get(&reporter).is_some_and(knows_more) {
            return;
        }
        case.words.insert(reporter, (now, finding));
        if finding == Sign::Slow {
            case.slow_at = Some(now);
        }
    }

    /// Drops findings that no longer count, and cases without findings.
    fn forget(&mut self, now: Time, map: &ClusterMap) {
        let window = self.config.window;
        self.cases.retain(|suspect, case| {
            case.words.retain(|_, (at, _)| now.since(*at) <= window);
            map.is_up(*suspect, case.incarnation)
                && case.words.values().any(|(_, f)| *f != Sign::Alive)
        });
    }

    /// True if this one has answered of late, if not in time.
    fn is_slow(&self, now: Time, node: NodeId) -> bool {
        let case = self.cases.get(&node);
        case.is_some_and(|case| case.is_slow(now, self.config.window))
    }

    /// Those that count as out: judged, if not in the map yet, or long in doubt and silent.
    fn gone(&self, now: Time, doubted: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        let judged = |id: &NodeId| self.cases.get(id).is_some_and(|c| c.judged_at.is_some());
        let silent = |id: &&NodeId| !self.is_slow(now, **id);
        let out = self.cases.keys().filter(|id| judged(id)).copied();
        doubted.iter().filter(silent).copied().chain(out).collect()
    }

    fn judge(
        &mut self,
        now: Time,
        map: &ClusterMap,
        suspect: NodeId,
        doubted: &BTreeSet<NodeId>,
        out: &mut Findings,
    ) {
        let config = self.config;
        let patience = self.returns.patience(suspect);
        let gone = self.gone(now, doubted);
        let spare = planted(Mutant::SlowIsDead) || slow::is_spare(map, suspect, &gone);
        let waited_for = self.is_slow(now, suspect) && !spare;
        let Some(case) = self.cases.get_mut(&suspect) else {
            return;
        };
        let against: BTreeSet<NodeId> = case.against(now).collect();
        if against.is_empty() {
            case.asked_first = None;
            case.waited = None;
            return;
        }
        let borne = || slow::borne_without(map, suspect, &gone);
        case.waited = waited_for.then(|| slow::waited(now, case.waited, borne()));
        let up = map
            .nodes
            .values()
            .filter(|n| n.state == NodeState::Up && n.id != suspect);
        let others: Vec<NodeId> = up.map(|n| n.id).collect();
        // Who has long been in doubt itself is not waited for: when two die at once, the rest decide.
        let able = others
            .iter()
            .filter(|n| !doubted.contains(n) || against.contains(n))
            .count();
        let looked: BTreeSet<NodeId> = case.looked(now).collect();
        let alone = planted(Mutant::LoneWordBelieved);
        let is_lone = |by: &NodeId| self.lone.is_now(*by);
        let confirmed = against.iter().filter(|by| !is_lone(by)).count() >= 2;
        let alone_after = match against.iter().any(is_lone) {
            // Several such links are slow: no two of those nodes confirm one another, however long.
            true if self.lone.are_several() => Duration::MAX,
            true => config.alone_against_all,
            false => config.alone_after,
        };
        // However long others complain: requests fail for many reasons, and whoever likes may say that theirs did.
        let heard =
            alone || !looked.is_empty() && (confirmed || case.lone_word_counts(now, alone_after));
        let words_needed = if alone { 1 } else { able.clamp(1, 2) };
        let looked_for =
            alone || case.is_refused() || case.others_looked(now, config.probed_within);
        let stood = case.is_refused() || case.doubted_for(now) >= Some(patience);
        let waited = case.waited.map(|(_, since)| now.since(since));
        let stays = waited.is_some_and(|waited| waited < config.slow_stays);
        if !stays && heard && against.len() >= words_needed && looked_for && stood {
            if case
                .judged_at
                .is_none_or(|at| now.since(at) >= config.verdict_again)
            {
                case.judged_at = Some(now);
                let words = case.words.iter().filter(|(n, _)| against.contains(n));
                out.verdicts.push(Verdict {
                    node: suspect,
                    incarnation: case.incarnation,
                    words: words.map(|(n, (_, finding))| (*n, *finding)).collect(),
                });
            }
            return;
        }
        if case
            .probed_at
            .is_none_or(|at| now.since(at) >= config.probe_again)
        {
            case.probed_at = Some(now);
            let unheard = others.into_iter().filter(|n| !looked.contains(n)).collect();
            let by = circle_from(
                suspect,
                unheard,
                case.round * config.probers,
                config.probers,
            );
            case.round += 1;
            case.asked_first.get_or_insert_with(|| (now, by.clone()));
            if !by.is_empty() {
                out.probes.push(Probe {
                    suspect,
                    incarnation: case.incarnation,
                    by,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
