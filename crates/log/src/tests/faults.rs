//! The faults of a run.

use super::conditions::CONDITIONAL_SEEDS;
use super::retention::RETAINED_SEEDS;
use super::rng::SimRng;
use super::world::{Actor, CLIENTS, Due, Knobs, World};
use crate::AppendMode;
use staves_model::Time;

impl Knobs {
    pub(super) fn draw(rng: &mut SimRng, mode: AppendMode, seed: u64, units: usize) -> Knobs {
        if seed.is_multiple_of(8) {
            return Knobs {
                calm: true,
                appends: 300,
                trims: 0,
                window: 24,
                parked_max: 16,
                retry: 600_000,
                append_deadline: 60_000_000,
                session_age: 60_000_000,
                sessions_max: 16,
                ids_max: 1024,
                end: Time::from_millis(900),
                ..Knobs::default()
            };
        }
        let mut weights = [0; 9];
        for weight in &mut weights {
            *weight = rng.pick(&[0, 1, 3]);
        }
        weights[8] = weights[8].max(1);
        // One skip of the global time-out may need a position of every unit.
        let least = match mode {
            AppendMode::Predict => units + 4,
            AppendMode::Bind | AppendMode::Corfu => 6,
        };
        Knobs {
            calm: false,
            loss: rng.pick(&[0, 20, 60, 150]),
            twice: rng.pick(&[0, 30, 120]),
            slow: rng.pick(&[0, 20, 100]),
            crash_at_entry: rng.pick(&[0, 0, 10, 40]),
            trims: rng.pick(&[20, 40, 200]),
            appends: rng.pick(&[40, 300, 800]),
            weights,
            window: rng.pick(&[least, 12, 24]),
            parked_max: rng.pick(&[2, 6, 16]),
            retry: 5_000,
            conditions: seed >= CONDITIONAL_SEEDS,
            retention: seed >= RETAINED_SEEDS,
            append_deadline: rng.pick(&[60_000_000, 60_000_000, 25_000]),
            session_age: rng.pick(&[2_000, 10_000, 40_000, 60_000_000]),
            sessions_max: rng.pick(&[3, 5, 8, 64]),
            ids_max: rng.pick(&[6, 24, 256]),
            end: Time::from_millis(40 + rng.below(160)),
        }
    }
}

impl World {
    pub(super) fn start(&mut self, actor: Actor) {
        match actor {
            Actor::Unit(unit) => self.start_unit(unit),
            Actor::Node(node) => self.nodes[node].up = true,
            Actor::Client(client) => self.clients[client].up = true,
            Actor::Home => {}
        }
    }

    fn cut_link(&mut self, from: Actor, to: Actor, us: u64) {
        *self.cut.entry((from, to)).or_default() += 1;
        self.after(us, Due::Heal(from, to));
    }

    pub(super) fn heal(&mut self, from: Actor, to: Actor) {
        if let Some(cuts) = self.cut.get_mut(&(from, to)) {
            *cuts -= 1;
            if *cuts == 0 {
                self.cut.remove(&(from, to));
            }
        }
        if from == to {
            self.slowed.retain(|(slow, _), _| *slow != from);
        }
    }

    /// A new term, if the node is still the sequencer.
    pub(super) fn depose(&mut self, node: usize) {
        if self.newest().0 == Some(node) {
            self.new_term(false);
        }
    }

    pub(super) fn fault(&mut self) {
        if self.quiet || self.knobs.calm {
            return;
        }
        let after = 1500 + self.rng.below(7000);
        self.after(after, Due::Fault);
        let weights = self.knobs.weights;
        let mut at = self.rng.below(weights.iter().sum());
        let mut kind = 0;
        while kind < 8 && at >= weights[kind] {
            at -= weights[kind];
            kind += 1;
        }
        let node = self.newest().0.unwrap_or(0);
        let unit = self.rng.below(self.used as u64) as usize;
        let client = self.rng.below(CLIENTS as u64) as usize;
        match kind {
            0 => self.crash_node(node),
            1 => self.new_term(false),
            2 => self.crash_unit(unit),
            3 if self.clients[client].up => {
                self.crash_client(client);
                let after = 500 + self.rng.below(5000);
                self.after(after, Due::Up(Actor::Client(client)));
            }
            3 => {}
            4 => self.cut_some(node, unit, client),
            5 => self.new_term(true),
            6 => {
                // Bindings to one unit are lost, then the sequencer dies: positions that nobody claims.
                let after = 2000 + self.rng.below(4000);
                self.cut_link(Actor::Node(node), Actor::Unit(unit), after + 1000);
                self.after(after, Due::CrashNode(node));
            }
            7 => self.depose_slowly(node, unit, client),
            _ => {
                self.cut_link(Actor::Unit(unit), Actor::Node(node), 12_000);
                if self.rng.chance(500) {
                    self.crash_unit(unit);
                }
            }
        }
    }

    fn cut_some(&mut self, node: usize, unit: usize, client: usize) {
        let other = self.rng.below(self.used as u64) as usize;
        let ends = |unit| {
            [
                Actor::Client(client),
                Actor::Node(node),
                Actor::Unit(unit),
                Actor::Home,
            ]
        };
        let (one, two) = (self.rng.pick(&ends(unit)), self.rng.pick(&ends(other)));
        let us = 2000 + self.rng.below(15_000);
        self.cut_link(one, two, us);
        if self.rng.chance(500) {
            self.cut_link(two, one, us);
        }
    }

    /// The sequencer is deposed while its messages linger, or those to it do, and some clients still believe in it.
    fn depose_slowly(&mut self, node: usize, unit: usize, client: usize) {
        if self.rng.chance(500) {
            let slow = Actor::Node(node);
            self.slowed.insert((slow, None), 20_000);
            self.after(15_000, Due::Heal(slow, slow));
            self.cut_link(Actor::Home, Actor::Client(client), 15_000);
            self.cut_link(Actor::Unit(unit), slow, 10_000);
            return self.new_term(false);
        }
        for slow in (0..self.used).map(Actor::Unit) {
            self.slowed.insert((slow, Some(Actor::Node(node))), 25_000);
            self.after(35_000, Due::Heal(slow, slow));
        }
        for other in (0..CLIENTS).filter(|other| *other != client) {
            self.cut_link(Actor::Home, Actor::Client(other), 35_000);
        }
        self.hush = (self.now + super::world::us(35_000), client);
        self.after(9_000, Due::Depose(node));
    }
}
