//! Nodes that can be the sequencer, and the one that appoints them.

use staves_model::{Incarnation, NodeId};

use super::world::{Actor, Due, Letter, NAME, World, node_index, us};
use crate::*;

/// A node.
pub(super) struct SimSequencer {
    pub up: bool,
    node: NodeId,
    incarnation: u64,
    pub seat: SequencerSeat,
}

impl SimSequencer {
    pub(super) fn new(node: usize) -> SimSequencer {
        let id = SequencerId {
            node: NodeId(node as u64 + 1),
            incarnation: Incarnation(1),
        };
        SimSequencer {
            up: true,
            node: id.node,
            incarnation: 1,
            seat: SequencerSeat::new(id),
        }
    }

    pub(super) fn id(&self) -> SequencerId {
        self.seat.id()
    }
}

impl World {
    fn sequencer_limits(&self) -> SequencerLimits {
        SequencerLimits {
            window: self.knobs.window,
            queue_max: 8,
            asked_max: 16,
            asked_wait: us(30_000),
            resend: us(3_000),
            resend_token: us(if self.knobs.calm { 200_000 } else { 3_000 }),
            call_again: us(1_500),
            record_every: us(15_000),
            sessions_max: self.knobs.sessions_max,
            ids_max: self.knobs.ids_max,
            ..SequencerLimits::default()
        }
    }

    pub(super) fn node_receives(&mut self, node: usize, from: Actor, letter: Letter) {
        if !self.nodes[node].up {
            return;
        }
        let now = self.now;
        let mut out = SequencerEffects::default();
        match letter {
            Letter::Lead(record) => {
                let limits = self.sequencer_limits();
                let seat = &mut self.nodes[node].seat;
                seat.lead(now, *record, limits, &mut out);
            }
            Letter::ToSequencer(number, incarnation, request) => {
                if incarnation != self.nodes[node].id().incarnation {
                    let answer = SequencerAnswer::NotSequencer {
                        term: Term::default(),
                    };
                    let log = request.log;
                    let letter = Letter::SequencerReply(number, SequencerReply { log, answer });
                    return self.send(Actor::Node(node), from, letter);
                }
                let to = self.route(from, number);
                let event = SequencerEvent::Request(to, request);
                self.nodes[node].seat.step(now, event, &mut out);
            }
            Letter::UnitReply(_, reply) => {
                let Actor::Unit(unit) = from else {
                    return;
                };
                let event = SequencerEvent::Unit(super::world::unit_id(unit), reply);
                self.nodes[node].seat.step(now, event, &mut out);
            }
            Letter::HomeReply(reply) => {
                let event = SequencerEvent::Home(reply);
                self.nodes[node].seat.step(now, event, &mut out);
            }
            _ => {}
        }
        self.node_effects(node, out);
    }

    fn node_effects(&mut self, node: usize, out: SequencerEffects) {
        let from = Actor::Node(node);
        for (unit, request) in out.units {
            let to = Actor::Unit(unit.0 as usize);
            self.send(from, to, Letter::ToUnit(0, request));
        }
        for (to, reply) in out.replies {
            if let SequencerAnswer::Grown { end } = reply.answer {
                self.judge_grown(node, end);
            }
            if let Some((to, number)) = self.take_route(to) {
                self.send(from, to, Letter::SequencerReply(number, reply));
            }
        }
        for request in out.home {
            self.send(from, Actor::Home, Letter::ToHome(request));
        }
        let machine = self.nodes[node].seat.machine();
        if let Some(Err(broken)) = machine.map(Sequencer::check) {
            self.judge.violated(broken);
        }
        // Batches have two records; a term that began after others were abandoned may find more than one window.
        let unclaimed = machine.map_or(0, Sequencer::unclaimed);
        if unclaimed > 2 * self.knobs.window as u64 {
            let what = format!("I8: {unclaimed} positions of one term are unclaimed");
            self.judge.violated(what);
        }
    }

    pub(super) fn node_tick(&mut self, node: usize) {
        if !self.nodes[node].up {
            return;
        }
        let mut out = SequencerEffects::default();
        let seat = &mut self.nodes[node].seat;
        seat.step(self.now, SequencerEvent::Tick, &mut out);
        self.node_effects(node, out);
    }

    pub(super) fn crash_node(&mut self, node: usize) {
        let sim = &mut self.nodes[node];
        if !sim.up {
            return;
        }
        sim.up = false;
        sim.incarnation += 1;
        let id = SequencerId {
            node: sim.node,
            incarnation: Incarnation(sim.incarnation),
        };
        sim.seat = SequencerSeat::new(id);
        self.count("sequencer crashes");
        let after = 500 + self.rng.below(8000);
        self.after(after, Due::Up(Actor::Node(node)));
    }

    /// The node that the newest term names, and its machine of that term.
    pub(super) fn newest(&self) -> (Option<usize>, Option<&Sequencer>) {
        let record = self.record();
        let lead = record.lead.as_ref().map(|lead| lead.sequencer);
        let Some(id) = lead.or(record.view.sequencer) else {
            return (None, None);
        };
        let node = node_index(id.node);
        let sim = &self.nodes[node];
        let lives = sim.up && sim.id() == id;
        let machine = sim
            .seat
            .machine()
            .filter(|m| lives && m.term() == record.term());
        (Some(node), machine)
    }

    /// Commits the next term, of a node that is up.
    pub(super) fn new_term(&mut self, grow: bool) {
        let up = |node: &usize| self.nodes[*node].up;
        let up: Vec<usize> = (0..self.nodes.len()).filter(up).collect();
        if up.is_empty() {
            return;
        }
        let node = self.rng.pick(&up);
        let mut added = Vec::new();
        if grow && self.used < self.units.len() {
            added.push(super::world::unit_id(self.used));
            self.used += 1;
            self.count("grown");
        }
        if let Some(lead) = &self.record().lead
            && added.is_empty()
        {
            added.clone_from(&lead.added);
        }
        self.lead(node, added);
        self.count("terms");
    }

    /// Appoints a new sequencer if the last one is gone.
    pub(super) fn watch_sequencer(&mut self) {
        let record = self.record().clone();
        let (node, machine) = self.newest();
        let begun = machine.is_some();
        let Some(node) = node else {
            return;
        };
        if begun {
            self.suspicion = 0;
            return;
        }
        if let Some(lead) = &record.lead
            && self.nodes[node].up
            && self.nodes[node].id() == lead.sequencer
        {
            let record = Box::new(record);
            self.send(Actor::Home, Actor::Node(node), Letter::Lead(record));
        }
        self.suspicion += 1;
        if self.suspicion > 2 {
            self.new_term(false);
        }
    }

    /// The log's record, for clients.
    pub(super) fn view_request() -> Letter {
        Letter::ToHome(RecordRequest::View { name: NAME.into() })
    }
}
