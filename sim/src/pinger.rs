//! The drivers of the failure detector: of each node's [`Pinger`] and [`FailureReports`], and of the
//! directory leader's detector. The simulator adds the network and the judges.

use std::sync::Arc;

use staves_model::detector::{Findings, Report, Verdict};
use staves_model::pinger::{PingerEffects, PingerEvent};
use staves_model::{Change, ClusterMap, Evidence, Incarnation, NodeId, NodeState, Sign};

use crate::event::{Packet, Place};
use crate::scale::MS;
use crate::watch::{CLOCKS_PERCENT, ECHO_COUNTED, Look, PING_EVERY, PROBE, Ping, SUSPICION};
use crate::world::World;

impl World {
    /// True if the detector is at work: it is a part of the program's own planner's worlds.
    pub fn detecting(&self) -> bool {
        (self.keeping || self.healing) && self.now >= self.calm_until
    }

    /// A node's timer: what was not answered is silent, and the pinger's period may have passed.
    pub(crate) fn tick_pinger(&mut self, node: usize) {
        let now = self.now;
        if !self.detecting() {
            return;
        }
        self.end_looks(node);
        let (me, incarnation) = (self.nodes[node].id, self.nodes[node].incarnation);
        let watch = &mut self.nodes[node].watch;
        let (over, still) = std::mem::take(&mut watch.pings)
            .into_iter()
            .partition(|p: &Ping| now >= p.sent + ECHO_COUNTED);
        watch.pings = still;
        let Some(map) = watch.map.clone() else { return };
        let over: Vec<Ping> = over;
        for ping in over {
            let echo = Evidence {
                node: ping.to,
                incarnation: ping.incarnation,
                sign: Sign::Silent,
            };
            self.step_pinger(node, PingerEvent::Echo(echo));
        }
        let watch = &mut self.nodes[node].watch;
        if now < watch.ticked_at + PING_EVERY {
            return;
        }
        // A process that stood still has heard nobody meanwhile.
        if now - watch.ticked_at > PING_EVERY * 2 * (100 + CLOCKS_PERCENT) / 100 {
            watch.silent_since.values_mut().for_each(|at| *at = now);
        }
        watch.ticked_at = now;
        let tick = PingerEvent::Tick {
            map: &map,
            me,
            incarnation,
        };
        self.step_pinger(node, tick);
    }

    fn step_pinger(&mut self, node: usize, event: PingerEvent<'_>) {
        let (now, leader) = (self.now, self.leader_of(node));
        let clock = self.nodes[node].clock(now);
        let mut out = PingerEffects::default();
        let watch = &mut self.nodes[node].watch;
        watch.pinger.step(clock, event, &mut out);
        for (to, incarnation) in &out.pings {
            let (sent, to, incarnation) = (now, *to, *incarnation);
            watch.silent_since.entry((to, incarnation)).or_insert(now);
            watch.pings.push(Ping {
                sent,
                to,
                incarnation,
            });
        }
        for (to, incarnation) in out.pings {
            self.ping(node, to, incarnation);
        }
        for seen in &out.reports {
            self.check_silence(node, seen);
        }
        self.report(node, leader, out.reports);
        if out.assure {
            let incarnation = self.nodes[node].incarnation;
            self.send(node, leader, Packet::Back(incarnation));
        }
    }

    // D5: silence is reported once it has lasted, and time in which the reporter stood still does not count.
    fn check_silence(&mut self, node: usize, seen: &Evidence) {
        let watch = &self.nodes[node].watch;
        let Some(since) = watch.silent_since.get(&(seen.node, seen.incarnation)) else {
            return;
        };
        let lasted = self.now - since;
        if seen.sign == Sign::Silent && lasted * (100 + CLOCKS_PERCENT) / 100 < SUSPICION {
            let (of, ms) = (seen.node, lasted / MS);
            self.violation(format!(
                "D5 node {node} reports {of:?} as silent, which it did not hear for {ms} ms"
            ));
        }
    }

    fn ping(&mut self, node: usize, to: NodeId, incarnation: Incarnation) {
        let sent = self.now;
        if let Some(to) = self.node_of(to) {
            self.send(node, to, Packet::Ping { incarnation, sent });
        }
    }

    // A node's evidence goes to a leader of the directory.
    fn report(&mut self, node: usize, leader: Place, evidence: Vec<Evidence>) {
        let reporter = self.nodes[node].id;
        for seen in evidence {
            self.cover.count(match seen.sign {
                Sign::Alive => "detector: heard again",
                Sign::Silent => "detector: silence reported",
                Sign::Refused => "detector: refusal reported",
                Sign::Failed => "detector: failed request reported",
                Sign::Slow => "detector: slow node reported",
            });
            self.send(node, leader, Packet::Report(Report { reporter, seen }));
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

    /// The answer to a ping or a probe.
    pub(crate) fn ponged(
        &mut self,
        node: usize,
        from: Place,
        incarnation: Incarnation,
        sent: u64,
        alive: bool,
    ) {
        let now = self.now;
        if now > sent + ECHO_COUNTED {
            return;
        }
        let late = now > sent + SUSPICION;
        let echo = Evidence {
            node: self.nodes[from].id,
            incarnation,
            sign: match alive {
                true if late => Sign::Slow,
                true => Sign::Alive,
                false => Sign::Refused,
            },
        };
        let watch = &mut self.nodes[node].watch;
        let (asked, looks): (Vec<Look>, Vec<Look>) = std::mem::take(&mut watch.looks)
            .into_iter()
            .partition(|l| !late && l.suspect == echo.node && l.incarnation == incarnation);
        watch.looks = looks;
        let mine = |p: &Ping| p.sent == sent && p.to == echo.node && p.incarnation == incarnation;
        let under_way = watch.pings.iter().position(mine);
        if let Some(at) = under_way {
            watch.pings.remove(at);
            if alive {
                watch.silent_since.insert((echo.node, incarnation), now);
            }
        }
        for look in asked {
            self.report(node, look.leader, vec![echo]);
        }
        if under_way.is_some() {
            self.step_pinger(node, PingerEvent::Echo(echo));
        }
    }

    /// A request to another node failed, here or at a client that reports it.
    pub(crate) fn request_failed(&mut self, node: usize, about: NodeId) {
        let (clock, leader) = (self.nodes[node].clock(self.now), self.leader_of(node));
        let watch = &mut self.nodes[node].watch;
        let known = watch.map.as_ref().and_then(|m| m.nodes.get(&about));
        let (Some(map), Some(known)) = (&watch.map, known) else {
            return;
        };
        let seen = Evidence {
            node: about,
            incarnation: known.incarnation,
            sign: Sign::Failed,
        };
        if watch.reports.admit(clock, map, seen) {
            self.report(node, leader, vec![seen]);
        }
    }

    /// The leader wants a second word on a suspect.
    pub(crate) fn look_at(
        &mut self,
        node: usize,
        leader: Place,
        suspect: NodeId,
        incarnation: Incarnation,
    ) {
        self.nodes[node].watch.looks.push(Look {
            suspect,
            incarnation,
            leader,
            until: self.now + PROBE,
        });
        self.ping(node, suspect, incarnation);
    }

    fn end_looks(&mut self, node: usize) {
        let (now, watch) = (self.now, &mut self.nodes[node].watch);
        let (over, still): (Vec<Look>, Vec<Look>) = std::mem::take(&mut watch.looks)
            .into_iter()
            .partition(|l| l.until <= now);
        watch.looks = still;
        for l in over {
            let seen = Evidence {
                node: l.suspect,
                incarnation: l.incarnation,
                sign: Sign::Silent,
            };
            self.report(node, l.leader, vec![seen]);
        }
    }

    /// A node sees the cluster's map; an older one than it knows changes nothing.
    pub(crate) fn see_cluster(&mut self, node: usize, map: Arc<ClusterMap>) {
        let watch = &mut self.nodes[node].watch;
        if watch.map.as_ref().is_none_or(|m| m.revision < map.revision) {
            watch.map = Some(map);
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
            let (suspect, incarnation) = (probe.suspect, probe.incarnation);
            for by in probe.by {
                let packet = Packet::Probe {
                    suspect,
                    incarnation,
                };
                if let Some(by) = self.node_of(by) {
                    self.send(here, by, packet);
                }
            }
        }
        for verdict in findings.verdicts {
            self.check_verdict(&verdict);
            self.declare_dead(&verdict);
        }
    }

    fn declare_dead(&mut self, verdict: &Verdict) {
        let (node, incarnation) = (verdict.node, verdict.incarnation);
        let Some(n) = self.node_of(node).map(|n| &self.nodes[n]) else {
            return;
        };
        self.cover.count(match () {
            () if !n.lives(incarnation) => "detector: dead, declared so",
            () if n.paused_until > self.now => "detector: paused, declared dead",
            () => "detector: alive, declared dead",
        });
        self.note(|| format!("DOWN {node:?} {incarnation:?}"));
        self.change_node(Change::NodeDown { node, incarnation });
    }

    // D5: one word is no verdict while there are two nodes that nobody doubts.
    fn check_verdict(&mut self, verdict: &Verdict) {
        let d = &self.directory;
        let able = d.map.nodes.values().filter(|n| {
            n.state == NodeState::Up && n.id != verdict.node && !d.detector.doubts(n.id)
        });
        if verdict.words.len() < 2 && able.count() >= 2 {
            let (node, words) = (verdict.node, &verdict.words);
            self.violation(format!("D5 {node:?} is declared dead on {words:?} alone"));
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

    /// True if the map has each node as it is.
    pub(crate) fn detected_all(&self) -> bool {
        self.nodes[..self.hosts()].iter().all(|n| {
            let known = self.directory.map.nodes.get(&n.id);
            known.is_none_or(|k| (k.state == NodeState::Up) == n.lives(k.incarnation))
        })
    }
}
