//! The pinger: pings sent by one node, and its reports of nodes that do not answer (rows D5, X4).
//!
//! The nodes to ping follow from the map ([`whom_to_ping`]), so a node's death gives its neighbours new ones with the map
//! that shows it. A refused connection is reported at once, silence after the suspicion time; a node that was reported
//! and answers again is reported alive. Requests that failed are evidence too, limited by [`FailureReports`].

use std::collections::BTreeMap;
use std::time::Duration;

use crate::detector::{Evidence, Sign, whom_to_ping};
use crate::ids::{Incarnation, NodeId};
use crate::map::{ClusterMap, NodeState};
use crate::mutant::{Mutant, planted};
use crate::time::Time;

/// Unanswered periods after which a node counts as silent. It is suspected only later.
const PINGS_MISSED: u32 = 2;
/// The time for which the answer to a ping is waited for. One that takes longer than the suspicion time shows that the node is slow.
pub const ECHO_COUNTS: Duration = Duration::from_millis(1000);
/// Most pings to one node that may be unanswered at a time: as many as are sent while an answer counts.
pub const UNANSWERED_MAX: u32 = 10;

/// The pinger's times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PingerConfig {
    /// Time between two pings of one node; the driver ticks so often.
    pub period: Duration,
    /// Silence that is reported.
    pub suspicion: Duration,
    /// Least time between two reports against one node.
    pub report_again: Duration,
    /// First and longest pause between two assurances that this node lives.
    pub assure: (Duration, Duration),
}

/// The inputs of a pinger.
#[derive(Clone, Copy, Debug)]
pub enum PingerEvent<'a> {
    /// A period has passed.
    Tick {
        /// The newest map.
        map: &'a ClusterMap,
        /// This node.
        me: NodeId,
        /// Its life.
        incarnation: Incarnation,
    },
    /// The result of one ping: `Alive`, `Refused`, `Slow` if the answer took longer than the suspicion time, or `Silent` if none came. Each ping has exactly one.
    Echo(Evidence),
}

/// The outputs of a step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PingerEffects {
    /// Lives of nodes to be pinged now.
    pub pings: Vec<(NodeId, Incarnation)>,
    /// Evidence for the directory's leader.
    pub reports: Vec<Evidence>,
    /// The map holds this life for dead: it is to be proposed as back (`Change::NodeBack`).
    pub assure: bool,
}

/// One node that is pinged.
#[derive(Clone, Debug)]
struct Watched {
    incarnation: Incarnation,
    answered: Time,
    /// The time of the last answer that came late.
    answered_late: Option<Time>,
    reported: Option<Time>,
    unanswered: u32,
}

/// The pinger of one life of one node.
#[derive(Clone, Debug)]
pub struct Pinger {
    config: PingerConfig,
    watched: BTreeMap<NodeId, Watched>,
    ticked: Option<Time>,
    assure_at: Time,
    assure_pause: Duration,
}

impl Pinger {
    /// A pinger that watches nobody yet.
    pub fn new(config: PingerConfig) -> Pinger {
        Pinger {
            config,
            watched: BTreeMap::new(),
            ticked: None,
            assure_at: Time::ZERO,
            assure_pause: config.assure.0,
        }
    }

    /// Nodes that were reported and have not answered since.
    pub fn doubted(&self) -> impl Iterator<Item = NodeId> {
        let reported = self.watched.iter().filter(|(_, w)| w.reported.is_some());
        reported.map(|(node, _)| *node)
    }

    /// Nodes that do not answer, and since when. They are not found dead by that.
    pub fn silent(&self, now: Time) -> impl Iterator<Item = (NodeId, Time)> {
        let most = self.config.period * PINGS_MISSED;
        let silent = move |w: &Watched| w.reported.is_some() || now.since(w.answered) > most;
        let watched = self.watched.iter().filter(move |(_, w)| silent(w));
        watched.map(|(node, w)| (*node, w.answered))
    }

    /// Takes one event in, and appends what is to be done.
    pub fn step(&mut self, now: Time, event: PingerEvent<'_>, out: &mut PingerEffects) {
        match event {
            PingerEvent::Tick {
                map,
                me,
                incarnation,
            } => {
                self.ping_all(now, map, me, out);
                out.assure |= self.assures(now, map, me, incarnation);
            }
            PingerEvent::Echo(echo) => out.reports.extend(self.take_echo(now, echo)),
        }
    }

    fn ping_all(&mut self, now: Time, map: &ClusterMap, me: NodeId, out: &mut PingerEffects) {
        // A process that stood still counts that time against nobody.
        let stood_still = self
            .ticked
            .is_some_and(|at| now.since(at) > self.config.period * 2)
            && !planted(Mutant::PauseBlamedOnOthers);
        self.ticked = Some(now);
        let targets = whom_to_ping(map, me);
        let life = |node: &NodeId| map.nodes.get(node).map(|n| n.incarnation);
        self.watched
            .retain(|node, w| targets.contains(node) && life(node) == Some(w.incarnation));
        for node in targets {
            let Some(incarnation) = life(&node) else {
                continue;
            };
            let watched = self.watched.entry(node).or_insert(Watched {
                incarnation,
                answered: now,
                answered_late: None,
                reported: None,
                unanswered: 0,
            });
            if stood_still {
                watched.answered = now;
            }
            if now.since(watched.answered) > self.config.suspicion {
                let late = watched.answered_late.map(|at| now.since(at));
                let sign = match late.is_some_and(|since| since <= self.config.suspicion) {
                    true => Sign::Slow,
                    false => Sign::Silent,
                };
                out.reports
                    .extend(watched.accuse(now, &self.config, node, sign));
            }
            if watched.unanswered < UNANSWERED_MAX {
                watched.unanswered += 1;
                out.pings.push((node, incarnation));
            }
        }
    }

    fn take_echo(&mut self, now: Time, echo: Evidence) -> Option<Evidence> {
        let watched = self.watched.get_mut(&echo.node)?;
        if watched.incarnation != echo.incarnation {
            return None;
        }
        watched.unanswered = watched.unanswered.saturating_sub(1);
        match echo.sign {
            Sign::Alive => {
                watched.answered = now;
                watched.reported.take().map(|_| echo)
            }
            Sign::Slow => {
                watched.answered_late = Some(now);
                None
            }
            Sign::Refused => watched.accuse(now, &self.config, echo.node, Sign::Refused),
            Sign::Silent if planted(Mutant::MissedPingReported) => {
                watched.accuse(now, &self.config, echo.node, Sign::Silent)
            }
            Sign::Silent | Sign::Failed => None,
        }
    }

    /// True if this life, which the map lists as dead, is to be proposed as back now: it was cut off or paused.
    fn assures(
        &mut self,
        now: Time,
        map: &ClusterMap,
        me: NodeId,
        incarnation: Incarnation,
    ) -> bool {
        let (first, longest) = self.config.assure;
        let dead = map
            .nodes
            .get(&me)
            .is_some_and(|n| n.incarnation == incarnation && n.state == NodeState::Down);
        if !dead {
            if now > self.assure_at + longest {
                self.assure_pause = first;
            }
            return false;
        }
        if now < self.assure_at {
            return false;
        }
        self.assure_at = now + self.assure_pause;
        self.assure_pause = (self.assure_pause * 2).min(longest);
        true
    }
}

impl Watched {
    /// The report against this node, unless one was made a moment ago.
    fn accuse(
        &mut self,
        now: Time,
        config: &PingerConfig,
        node: NodeId,
        sign: Sign,
    ) -> Option<Evidence> {
        if self
            .reported
            .is_some_and(|at| now.since(at) < config.report_again)
        {
            return None;
        }
        self.reported = Some(now);
        Some(Evidence {
            node,
            incarnation: self.incarnation,
            sign,
        })
    }
}

/// Limits the reports of failed requests and links: one a node in each pause.
#[derive(Clone, Debug)]
pub struct FailureReports {
    pause: Duration,
    last: BTreeMap<NodeId, (Time, Sign)>,
}

impl FailureReports {
    /// With no report made so far.
    pub fn new(pause: Duration) -> FailureReports {
        FailureReports {
            pause,
            last: BTreeMap::new(),
        }
    }

    /// True if this evidence is to be reported now. Evidence of a life that the map does not hold for up never is.
    pub fn admit(&mut self, now: Time, map: &ClusterMap, seen: Evidence) -> bool {
        if !map.is_up(seen.node, seen.incarnation) {
            return false;
        }
        // A refused or silent link is reported even just after a failed request, which is only a reason to look.
        let repeats = |(at, before): &(Time, Sign)| {
            now.since(*at) < self.pause && (*before != Sign::Failed || seen.sign == Sign::Failed)
        };
        if self.last.get(&seen.node).is_some_and(repeats) {
            return false;
        }
        self.last.insert(seen.node, (now, seen.sign));
        true
    }

    /// True if no node was reported yet.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }
}
