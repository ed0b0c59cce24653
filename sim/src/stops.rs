//! The driver of stops: nodes ask a leader of the directory for a permit ([`OwnStop`], [`StopBook`]), and stop.
//!
//! In worlds with several groups a node with a permit is drained first, so that others take over what it serves. That
//! drain is taken back once the stop is over: as the node leaves, or, as a mark in its data folder says, when it is back.

use std::collections::BTreeSet;

use staves_model::mutant::{Mutant, planted};
use staves_model::{Change, Group, Incarnation, NodeId, StopBook, StopReply, StopState};

use crate::event::{Happening, Packet, Place};
use crate::scale::MS;
use crate::stop_state::{
    ATTEMPT, Asking, DEADLINE, DRAINED_MAX, NodeStop, PATIENCE, PERMITS_MAX, Permit, StopRound,
    TIMES,
};
use crate::world::World;

impl World {
    /// True if the next fault is a stop.
    pub(crate) fn is_stop_due(&mut self) -> bool {
        self.keeping && self.stops.rng.chance(self.stops.often)
    }

    /// A fault of the operator: some nodes are to stop at once, and perhaps the leader changes meanwhile.
    pub(crate) fn ask_to_stop(&mut self) {
        self.fault_at("stop");
        let now = self.now;
        for _ in 0..=self.stops.rng.below(3) {
            let node = self.stops.rng.below(self.hosts() as u64) as usize;
            let n = &mut self.nodes[node];
            if n.up && n.stop.asking.is_none() {
                n.stop.own.ask();
                n.stop.asking = Some(Asking {
                    until: now + DEADLINE,
                    again_at: now,
                    attempt: 0,
                });
            }
        }
        if self.stops.rng.chance(self.stops.elects) {
            let soon = now + self.stops.rng.below(150) * MS;
            self.queue.push(soon, Happening::Elect);
        }
    }

    /// A node's timer: it asks again, or gives up.
    pub(crate) fn tick_stop(&mut self, node: usize) {
        if self.stops.marks.contains(&node) && !self.is_to_stop(node) {
            self.end_drain_of_stop(node);
        }
        let (now, incarnation) = (self.now, self.nodes[node].incarnation);
        let clock = self.nodes[node].clock(now);
        let stop = &mut self.nodes[node].stop;
        let Some(asking) = &mut stop.asking else {
            return;
        };
        if now >= asking.until {
            stop.asking = None;
            return stop.own.answered(clock, false);
        }
        if now >= asking.again_at {
            asking.attempt += 1;
            asking.again_at = now + ATTEMPT;
            let attempt = asking.attempt;
            let leader = self.leader_of(node);
            let request = Packet::StopRequest {
                incarnation,
                attempt,
            };
            self.send(node, leader, request);
        }
    }

    /// A leader is asked for a permit: it asks all others for their states.
    pub(crate) fn stop_requested(
        &mut self,
        from: Place,
        here: Place,
        incarnation: Incarnation,
        attempt: u32,
    ) {
        let (now, node) = (self.now, self.nodes[from].id);
        self.stops.rounds += 1;
        let number = self.stops.rounds;
        let Some((leader, map)) = self.directory.leader_at(self.term_at(here)) else {
            return;
        };
        let others = StopBook::to_ask(map, node);
        let others: Vec<_> = others.map(|n| (n.id, n.incarnation)).collect();
        // One that asks again is asked about anew.
        leader.rounds.retain(|r| r.node != node);
        leader.rounds.push(StopRound {
            number,
            node,
            incarnation,
            from,
            attempt,
            young: leader.stops.is_young(leader.clock.at(now)),
            waiting: others.iter().map(|(id, _)| *id).collect(),
            gone: BTreeSet::new(),
            until: now + PATIENCE,
        });
        for (id, incarnation) in others {
            let question = Packet::StopQuestion {
                round: number,
                incarnation,
            };
            if let Some(to) = self.node_of(id) {
                self.send(here, to, question);
            }
        }
    }

    /// A node is asked for its state.
    pub(crate) fn stop_questioned(
        &mut self,
        node: usize,
        from: Place,
        round: u64,
        life: Incarnation,
    ) {
        let n = &self.nodes[node];
        let reply = match n.lives(life) {
            true => StopReply::State(n.stop.own.state(n.clock(self.now), &TIMES)),
            false => StopReply::Over,
        };
        self.send(node, from, Packet::StopReply { round, reply });
    }

    /// A leader receives a node's state.
    pub(crate) fn stop_replied(&mut self, from: Place, here: Place, round: u64, reply: StopReply) {
        let node = self.nodes[from].id;
        let Some((leader, _)) = self.directory.leader_at(self.term_at(here)) else {
            return;
        };
        let round = leader.rounds.iter_mut().find(|r| r.number == round);
        if let Some(round) = round
            && round.waiting.remove(&node)
            && StopBook::counts_as_gone(reply, round.young)
        {
            round.gone.insert(node);
        }
    }

    /// The leaders' timers: who has not replied is silent, and rounds that are complete end.
    pub(crate) fn tick_stops(&mut self) {
        let (now, newest) = (self.now, self.directory.leader.term);
        for term in [newest, newest - 1] {
            let answers = match term == newest {
                true => self.directory.answers(now),
                false => self.former_leader().is_some(),
            };
            let Some((leader, _)) = self.directory.leader_at(term).filter(|_| answers) else {
                continue;
            };
            let over = |r: &mut StopRound| r.waiting.is_empty() || r.until <= now;
            let over: Vec<_> = leader.rounds.extract_if(.., over).collect();
            for round in over {
                self.end_round(term, round);
            }
        }
    }

    fn end_round(&mut self, term: u64, mut round: StopRound) {
        if StopBook::counts_as_gone(StopReply::Silent, round.young) {
            round.gone.append(&mut round.waiting);
        }
        // No quorum follows a deposed leader: it permits nothing.
        let deposed = term != self.directory.leader.term;
        if deposed && !planted(Mutant::PermitUnconfirmed) {
            return self.cover.count("stop: deposed leader");
        }
        let now = self.now;
        let Some((leader, map)) = self.directory.leader_at(term) else {
            return;
        };
        let (clock, life) = (leader.clock.at(now), round.incarnation);
        let stops = &mut leader.stops;
        let result = stops.permit(clock, map, round.node, life, &round.gone);
        let (permitted, map) = (result.is_ok(), map.clone());
        self.cover.count(match permitted {
            true if round.young => "stop: permitted by a young leader",
            true => "stop: permitted",
            false => "stop: refused",
        });
        self.note(|| format!("STOP of {:?} asked of term {term}: {result:?}", round.node));
        if permitted {
            self.stops.permits.push(Permit {
                node: round.node,
                incarnation: life,
                map,
            });
            if self.stops.permits.len() > PERMITS_MAX {
                self.stops.permits.remove(0);
            }
        }
        let answer = Packet::StopAnswer {
            incarnation: life,
            attempt: round.attempt,
            permitted,
        };
        self.send(self.place_of_term(term), round.from, answer);
    }

    /// A node receives its answer, and stops soon if it may.
    pub(crate) fn stop_answered(
        &mut self,
        node: usize,
        life: Incarnation,
        attempt: u32,
        permitted: bool,
    ) {
        let now = self.now;
        let n = &mut self.nodes[node];
        let asked = n.stop.asking.is_some_and(|a| a.attempt == attempt);
        if !n.lives(life) || !asked {
            return;
        }
        let clock = n.clock(now);
        n.stop.asking = None;
        n.stop.own.answered(clock, permitted);
        if permitted {
            let soon = now + self.stops.rng.below(200) * MS;
            self.queue.push(soon, Happening::Stop(node, life));
            self.drain_to_stop(node);
            self.check_permits();
        }
    }

    /// A node with a permit stops, unless that would be one more than the scheme bears after faults of another kind, or
    /// hinder a takeover that is timed.
    pub(crate) fn stop_in_order(&mut self, node: usize, life: Incarnation) {
        let clock = self.nodes[node].clock(self.now);
        let n = &self.nodes[node];
        if !n.lives(life) || n.stop.own.state(clock, &TIMES) != StopState::Permitted {
            return;
        }
        self.nodes[node].stop = NodeStop::default();
        if self.is_sound() || !self.may_crash(node) {
            return;
        }
        self.cover.count("stop: stopped");
        self.stop(node);
        if self.groups.len() > 1 && self.stops.rng.chance(500) {
            self.end_drain_of_stop(node);
        }
        let back = self.now + (20 + self.stops.rng.below(400)) * MS;
        self.queue.push(back, Happening::Start(node));
    }

    /// True if a node has asked for a permit, or has one.
    fn is_to_stop(&self, node: usize) -> bool {
        let n = &self.nodes[node];
        n.stop.own.state(n.clock(self.now), &TIMES) != StopState::Stays
    }

    fn drain_to_stop(&mut self, node: usize) {
        let known = self.directory.map.nodes.get(&self.nodes[node].id);
        let drained = known.is_none_or(|n| n.draining);
        if self.groups.len() == 1 || drained || !self.directory.answers(self.now) {
            return;
        }
        self.stops.marks.insert(node);
        self.cover.count("stop: drained first");
        self.set_drain(node, true);
    }

    fn end_drain_of_stop(&mut self, node: usize) {
        let late = planted(Mutant::DrainOfStopTakenBackLate) && !self.stops.rng.chance(5);
        if !late && self.directory.answers(self.now) && self.stops.marks.remove(&node) {
            self.cover.count("stop: drain taken back");
            self.set_drain(node, false);
        }
    }

    /// A node is drained, or no more.
    pub(crate) fn set_drain(&mut self, node: usize, on: bool) {
        let drain = Change::Drain {
            node: self.nodes[node].id,
            on,
        };
        self.note(|| format!("{drain:?}"));
        self.directory.map.apply(None, &drain).ok();
    }

    /// D6: a drain does not outlive the stop that it was for.
    pub(crate) fn check_drains(&mut self) {
        for node in 0..self.hosts() {
            let n = &self.nodes[node];
            let acts = n.up && n.paused_until <= self.now && !self.is_to_stop(node);
            let known = self.directory.map.nodes.get(&n.id);
            let drained = known.is_some_and(|n| n.draining) && !self.stops.wished.contains(&node);
            if !acts || !drained || !self.directory.answers(self.now) {
                self.stops.unwanted.remove(&node);
                continue;
            }
            let since = *self.stops.unwanted.entry(node).or_insert(self.now);
            if self.now > since + DRAINED_MAX {
                self.violation(format!(
                    "D6 node {node} is still drained for a stop that is over"
                ));
            }
        }
    }

    // D6: the permits that nodes have, taken together, leave every group what it needs, by the map of the last of them.
    fn check_permits(&mut self) {
        let has = |p: &&Permit| {
            let node = self.node_of(p.node).map(|n| &self.nodes[n]);
            node.is_some_and(|n| {
                let state = n.stop.own.state(n.clock(self.now), &TIMES);
                n.lives(p.incarnation) && state == StopState::Permitted
            })
        };
        let held: Vec<&Permit> = self.stops.permits.iter().filter(has).collect();
        let Some(last) = held.last() else { return };
        let gone: BTreeSet<NodeId> = held.iter().map(|p| p.node).collect();
        let bears = |group: &Group, gone: &BTreeSet<NodeId>| {
            group.tolerates(|x| last.map.is_up(x.node, x.incarnation) && !gone.contains(&x.node))
        };
        let groups = self
            .groups
            .iter()
            .filter_map(|g| last.map.groups.get(&g.id));
        let mut named = groups.filter(|group| group.names(last.node));
        let lost = named.find(|group| {
            bears(group, &gone).is_none() && bears(group, &BTreeSet::new()).is_some()
        });
        if let Some(lost) = lost.map(|group| group.id) {
            self.violation(format!(
                "D6 {gone:?} may all stop, and {lost:?} would be lost with them"
            ));
        }
    }
}
