//! The eyes of the real detector at each simulated node, driven as `staves-directory`'s pinger and
//! `staves-node`'s witness drive it: pings along the circle and to group peers, failed requests,
//! clients' complaints, probes that the leader asks for, and a word to the directory by who was
//! declared dead and lives. The verdicts are the detector's, at the directory's leader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use staves_model::detector::{Finding, Findings, Report, Verdict, whom_to_ping};
use staves_model::{Change, ClusterMap, Detector, DetectorConfig, Incarnation, NodeId, NodeState};

use crate::event::{Packet, Place};
use crate::world::{MS, World};

/// How often a node pings; like all times here, the program's in the proportion of the leases.
const PING_EVERY: u64 = 40 * MS;
/// Silence that is reported, and how long a ping may take.
const SUSPICION: u64 = 140 * MS;
/// Least time between two reports of one node.
const REPEAT: u64 = 40 * MS;
/// How long a second node looks at a suspect.
const PROBE: u64 = 100 * MS;
/// First and last rest between two assurances that a node lives.
const ASSURE: (u64, u64) = (200 * MS, 3000 * MS);
/// Most pings to one node that may be unanswered at a time.
const UNANSWERED_MAX: usize = 4;

/// A detector with the simulator's times.
pub fn new_detector() -> Detector {
    Detector::new(DetectorConfig {
        window: Duration::from_millis(400),
        probe_again: Duration::from_millis(60),
        probers: 3,
        alone_after: Duration::from_millis(120),
        verdict_again: Duration::from_millis(100),
    })
}

/// One node that is pinged.
struct Watched {
    incarnation: Incarnation,
    heard: u64,
    reported: Option<u64>,
    sent: Vec<u64>,
}

/// A look at a suspect that the leader asked for.
struct Look {
    suspect: NodeId,
    incarnation: Incarnation,
    leader: Place,
    until: u64,
}

/// What one process sees of the others. A new process has seen nothing.
#[derive(Default)]
pub struct Eyes {
    map: Option<Arc<ClusterMap>>,
    watched: BTreeMap<NodeId, Watched>,
    said: BTreeMap<NodeId, u64>,
    looks: Vec<Look>,
    looked_at: u64,
    assure_at: u64,
    assure_rest: u64,
}

impl Watched {
    fn accuse(&mut self, now: u64) -> bool {
        let due = self.reported.is_none_or(|at| now - at >= REPEAT);
        if due {
            self.reported = Some(now);
        }
        due
    }
}

impl World {
    /// Whether the detector is at work: it is a part of the program's own planner's worlds.
    pub fn detecting(&self) -> bool {
        (self.keeping || self.healing) && self.now >= self.calm_until
    }

    /// A node's timer: who is silent is reported, and all are pinged.
    pub(crate) fn look_around(&mut self, node: usize) {
        let (now, me) = (self.now, self.nodes[node].id);
        if !self.detecting() {
            return;
        }
        self.end_looks(node);
        let eyes = &mut self.nodes[node].eyes;
        let Some(map) = eyes.map.clone() else { return };
        if now < eyes.looked_at + PING_EVERY {
            return;
        }
        let paused = now > eyes.looked_at + 2 * PING_EVERY;
        eyes.looked_at = now;
        let targets = whom_to_ping(&map, me);
        eyes.watched.retain(|n, w| {
            targets.contains(n)
                && map
                    .nodes
                    .get(n)
                    .is_some_and(|n| n.incarnation == w.incarnation)
        });
        let (mut silent, mut pings) = (Vec::new(), Vec::new());
        for target in targets.iter().filter_map(|n| map.nodes.get(n)) {
            let incarnation = target.incarnation;
            let watched = eyes.watched.entry(target.id).or_insert(Watched {
                incarnation,
                heard: now,
                reported: None,
                sent: Vec::new(),
            });
            if paused {
                watched.heard = now;
            }
            if now - watched.heard > SUSPICION && watched.accuse(now) {
                silent.push((target.id, incarnation, Finding::Silent));
            }
            watched.sent.retain(|at| now - at < SUSPICION);
            if watched.sent.len() < UNANSWERED_MAX {
                watched.sent.push(now);
                pings.push((target.id, incarnation));
            }
        }
        for (to, incarnation) in pings {
            self.ping(node, to, incarnation);
        }
        let leader = self.leader_of(node);
        self.tell(node, leader, silent);
        self.assure(node, &map);
    }

    fn ping(&mut self, node: usize, to: NodeId, incarnation: Incarnation) {
        let sent = self.now;
        if let Some(to) = self.node_of(to) {
            self.send(node, to, Packet::Ping { incarnation, sent });
        }
    }

    // What a node found goes to a leader of the directory.
    fn tell(&mut self, node: usize, leader: Place, seen: Vec<(NodeId, Incarnation, Finding)>) {
        let reporter = self.nodes[node].id;
        for (suspect, incarnation, finding) in seen {
            self.cover.count(match finding {
                Finding::Alive => "detector: heard again",
                Finding::Silent => "detector: silence reported",
                Finding::Refused => "detector: refusal reported",
                Finding::Failed => "detector: failed request reported",
            });
            let report = Report {
                reporter,
                suspect,
                incarnation,
                finding,
            };
            self.send(node, leader, Packet::Report(report));
        }
    }

    // The map says that this life is over. It is not: it was cut off or paused.
    fn assure(&mut self, node: usize, map: &ClusterMap) {
        let (now, leader) = (self.now, self.leader_of(node));
        let n = &mut self.nodes[node];
        let incarnation = n.incarnation;
        let dead = map
            .nodes
            .get(&n.id)
            .is_some_and(|x| x.incarnation == incarnation && x.state == NodeState::Down);
        if dead && now >= n.eyes.assure_at {
            n.eyes.assure_rest = n.eyes.assure_rest.clamp(ASSURE.0, ASSURE.1);
            n.eyes.assure_at = now + n.eyes.assure_rest;
            n.eyes.assure_rest *= 2;
            self.send(node, leader, Packet::Back(incarnation));
        } else if !dead && now > n.eyes.assure_at + ASSURE.1 {
            n.eyes.assure_rest = ASSURE.0;
        }
    }

    /// A process answers a ping, or says that the life that is meant is over.
    pub(crate) fn pinged(&mut self, node: usize, from: Place, incarnation: Incarnation, sent: u64) {
        let alive = self.nodes[node].lives(incarnation);
        let answer = Packet::Pong {
            incarnation,
            sent,
            alive,
        };
        self.send(node, from, answer);
    }

    /// What became of a ping or a probe.
    pub(crate) fn ponged(
        &mut self,
        node: usize,
        from: Place,
        incarnation: Incarnation,
        sent: u64,
        alive: bool,
    ) {
        if self.now > sent + SUSPICION {
            return;
        }
        let (now, about, leader) = (self.now, self.nodes[from].id, self.leader_of(node));
        let finding = if alive {
            Finding::Alive
        } else {
            Finding::Refused
        };
        let eyes = &mut self.nodes[node].eyes;
        let mine = |l: &Look| l.suspect == about && l.incarnation == incarnation;
        let asked: Vec<Place> = eyes
            .looks
            .iter()
            .filter(|l| mine(l))
            .map(|l| l.leader)
            .collect();
        eyes.looks.retain(|l| !mine(l));
        let mut news = false;
        if let Some(w) = eyes
            .watched
            .get_mut(&about)
            .filter(|w| w.incarnation == incarnation)
        {
            w.sent.retain(|at| *at != sent);
            if alive {
                w.heard = now;
                news = w.reported.take().is_some();
            } else {
                news = w.accuse(now);
            }
        }
        for leader in asked.into_iter().chain(news.then_some(leader)) {
            self.tell(node, leader, vec![(about, incarnation, finding)]);
        }
    }

    /// A request to another node failed, here or at a client that says so: said at most so often.
    pub(crate) fn witness(&mut self, node: usize, about: NodeId, finding: Finding) {
        let (now, leader) = (self.now, self.leader_of(node));
        let eyes = &self.nodes[node].eyes;
        let known = eyes.map.as_ref().and_then(|m| m.nodes.get(&about));
        let Some(incarnation) = known
            .filter(|n| n.state == NodeState::Up)
            .map(|n| n.incarnation)
        else {
            return;
        };
        if !self.nodes[node].up || eyes.said.get(&about).is_some_and(|at| now - at < REPEAT) {
            return;
        }
        self.nodes[node].eyes.said.insert(about, now);
        self.tell(node, leader, vec![(about, incarnation, finding)]);
    }

    /// The leader wants a second word on a suspect.
    pub(crate) fn look_at(
        &mut self,
        node: usize,
        leader: Place,
        suspect: NodeId,
        incarnation: Incarnation,
    ) {
        self.nodes[node].eyes.looks.push(Look {
            suspect,
            incarnation,
            leader,
            until: self.now + PROBE,
        });
        self.ping(node, suspect, incarnation);
    }

    fn end_looks(&mut self, node: usize) {
        let (now, eyes) = (self.now, &mut self.nodes[node].eyes);
        let (over, still) = std::mem::take(&mut eyes.looks)
            .into_iter()
            .partition(|l| l.until <= now);
        eyes.looks = still;
        let over: Vec<Look> = over;
        for l in over {
            self.tell(
                node,
                l.leader,
                vec![(l.suspect, l.incarnation, Finding::Silent)],
            );
        }
    }

    /// A node sees the cluster's map; an older one than it knows changes nothing.
    pub(crate) fn see_cluster(&mut self, node: usize, map: Arc<ClusterMap>) {
        let eyes = &mut self.nodes[node].eyes;
        if eyes.map.as_ref().is_none_or(|m| m.revision < map.revision) {
            eyes.map = Some(map);
        }
    }

    /// The directory's leader judges what was reported: it asks for probes, and declares nodes dead.
    pub(crate) fn detect(&mut self) {
        let (now, here) = (self.directory.clock(self.now), self.directory_place());
        let evidence = std::mem::take(&mut self.directory.evidence);
        let (d, mut findings) = (&mut self.directory, Findings::default());
        d.detector.step(now, &d.map, &evidence, &mut findings);
        for probe in findings.probes {
            self.cover.count("detector: probes asked for");
            for by in probe
                .by
                .iter()
                .filter_map(|n| self.node_of(*n))
                .collect::<Vec<_>>()
            {
                let (suspect, incarnation) = (probe.suspect, probe.incarnation);
                self.send(
                    here,
                    by,
                    Packet::Probe {
                        suspect,
                        incarnation,
                    },
                );
            }
        }
        for Verdict {
            node, incarnation, ..
        } in findings.verdicts
        {
            let Some(n) = self.node_of(node).map(|n| &self.nodes[n]) else {
                continue;
            };
            self.cover.count(match () {
                () if !n.lives(incarnation) => "detector: dead, declared so",
                () if n.paused_until > self.now => "detector: paused, declared dead",
                () => "detector: alive, declared dead",
            });
            self.note(|| format!("DOWN {node:?} {incarnation:?}"));
            self.change_node(Change::NodeDown { node, incarnation });
        }
    }

    /// A node that was declared dead says that it lives.
    pub(crate) fn comes_back(&mut self, from: Place, incarnation: Incarnation) {
        let node = self.nodes[from].id;
        let down = self
            .directory
            .map
            .nodes
            .get(&node)
            .is_some_and(|n| n.state == NodeState::Down);
        // A word of a former life comes too late.
        if down && self.directory.map.nodes[&node].incarnation == incarnation {
            self.cover.count("detector: taken in again");
            self.note(|| format!("BACK {node:?} {incarnation:?}"));
            self.change_node(Change::NodeBack { node, incarnation });
        }
    }

    // Both come from what the leader's map says of that life, so it must take them.
    fn change_node(&mut self, change: Change) {
        if self.directory.map.apply(None, &change).is_err() {
            self.violation(format!("directory refused {change:?}"));
        }
    }

    /// Whether the map has each node as it is.
    pub(crate) fn detected_all(&self) -> bool {
        self.nodes[..self.hosts()].iter().all(|n| {
            let known = self.directory.map.nodes.get(&n.id);
            known.is_none_or(|k| (k.state == NodeState::Up) == n.lives(k.incarnation))
        })
    }
}
