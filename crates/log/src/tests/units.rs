//! Units with two members: an entry is durable once both have synced it, and a crash keeps some prefix of the rest.

use std::collections::VecDeque;

use bytes::Bytes;

use super::world::{Actor, Due, Letter, World, node_index, unit_id, us};
use crate::mutant::{LogMutant, planted};
use crate::*;

/// A message that waits for an entry to be durable.
#[derive(Clone, Debug)]
struct HeldLetter {
    after: u64,
    to: Actor,
    letter: Letter,
}

/// A unit.
pub(super) struct SimUnit {
    pub up: bool,
    pub life: u32,
    pub machine: Unit,
    /// Everything that both members have.
    pub durable: UnitState,
    queue: VecDeque<NewEntry>,
    held: Vec<HeldLetter>,
    /// The last entry that each member has synced.
    synced: [u64; 2],
    /// A member that its group has left behind.
    left_behind: Option<UnitState>,
}

impl SimUnit {
    pub(super) fn new(unit: usize, limits: UnitLimits) -> SimUnit {
        let state = UnitState::new(unit_id(unit));
        SimUnit {
            up: true,
            life: 0,
            machine: Unit::new(state.clone(), limits),
            durable: state,
            queue: VecDeque::new(),
            held: Vec::new(),
            synced: [0; 2],
            left_behind: None,
        }
    }

    /// True if it is up and everything is durable.
    pub(super) fn is_at_rest(&self) -> bool {
        self.up && self.queue.is_empty()
    }
}

impl World {
    pub(super) fn unit_limits(&self) -> UnitLimits {
        UnitLimits {
            parked_max: self.knobs.parked_max,
            park_expiry: us(if self.knobs.calm { 500_000 } else { 20_000 }),
            sessions_max: self.knobs.sessions_max,
            ids_max: self.knobs.ids_max,
            ..UnitLimits::default()
        }
    }

    pub(super) fn unit_receives(&mut self, unit: usize, from: Actor, letter: Letter) {
        match letter {
            Letter::ToUnit(number, request) => {
                if self.copy_answers(unit, from, number, &request) || !self.units[unit].up {
                    return;
                }
                let to = self.route(from, number);
                let data = &mut self.data;
                let request = request.map_data(|records| keep(data, &records));
                let mut out = UnitEffects::default();
                self.units[unit]
                    .machine
                    .step(self.now, to, request, &mut out);
                self.unit_effects(unit, out);
            }
            Letter::SequencerReply(_, reply) if self.units[unit].up => {
                let mut out = UnitEffects::default();
                self.units[unit].machine.asked(reply, &mut out);
                self.unit_effects(unit, out);
            }
            _ => {}
        }
    }

    /// A copy may answer a read: one that its group has left behind does not know that it was.
    fn copy_answers(
        &mut self,
        unit: usize,
        from: Actor,
        number: u64,
        request: &UnitRequest,
    ) -> bool {
        let UnitOp::Read { position, .. } = request.op else {
            return false;
        };
        if self.knobs.calm || !self.rng.chance(300) {
            return false;
        }
        let sim = &self.units[unit];
        let copy = sim.left_behind.as_ref().unwrap_or(&sim.durable);
        let Some(slot) = copy.read_at_copy(request.log, position) else {
            return false;
        };
        self.count("copy reads");
        let answer = UnitAnswer::Slot {
            position,
            slot,
            stale: None,
        };
        let reply = UnitReply {
            log: request.log,
            answer,
        };
        let reply = self.with_bytes(reply, true);
        self.send(Actor::Unit(unit), from, Letter::UnitReply(number, reply));
        true
    }

    fn with_bytes(&mut self, reply: UnitReply<DataPlace>, copy: bool) -> UnitReply {
        let (data, judge) = (&self.data, &mut self.judge);
        reply.map_data(|place| match data.get(place.at as usize) {
            Some(Some(bytes)) => bytes.clone(),
            // A copy that was left behind keeps its own bytes.
            _ if copy => Bytes::new(),
            _ => {
                judge.violated(format!("{place:?} was freed, and is read"));
                Bytes::new()
            }
        })
    }

    fn unit_effects(&mut self, unit: usize, out: UnitEffects) {
        for place in out.dropped {
            self.data[place.at as usize] = None;
        }
        let life = self.units[unit].life;
        let mut crash = false;
        for entry in out.entries {
            if let Entry::Junk { .. } = entry.entry {
                self.junked(&entry.entry);
            }
            let number = entry.number;
            self.units[unit].queue.push_back(entry);
            for member in 0..2 {
                let after = 50 + self.rng.below(350);
                self.after(after, Due::Sync(unit, life, number, member));
            }
            crash |= !self.quiet && self.rng.chance(self.knobs.crash_at_entry / 2);
        }
        for delivery in out.replies {
            let Some((to, number)) = self.take_route(delivery.to) else {
                continue;
            };
            let reply = self.with_bytes(delivery.reply, false);
            let letter = Letter::UnitReply(number, reply);
            self.hold(unit, delivery.after, to, letter);
        }
        for ask in out.asks {
            let to = Actor::Node(node_index(ask.to.node));
            let letter = Letter::ToSequencer(0, ask.to.incarnation, ask.request);
            self.hold(unit, ask.after, to, letter);
        }
        if let Err(broken) = self.units[unit].machine.check() {
            self.judge.violated(broken);
        }
        if crash {
            self.crash_unit(unit);
        }
    }

    fn junked(&mut self, entry: &Entry) {
        self.count("junk");
        if self.knobs.calm && self.mode != AppendMode::Predict {
            self.judge
                .violated(format!("I8: junk without a fault: {entry:?}"));
        }
    }

    fn hold(&mut self, unit: usize, after: u64, to: Actor, letter: Letter) {
        let synced = self.units[unit].synced;
        if after <= synced[0].min(synced[1]) {
            return self.send(Actor::Unit(unit), to, letter);
        }
        let held = HeldLetter { after, to, letter };
        self.units[unit].held.push(held);
    }

    pub(super) fn member_synced(&mut self, unit: usize, life: u32, number: u64, member: usize) {
        let sim = &mut self.units[unit];
        if !sim.up || sim.life != life || number <= sim.synced[member] {
            return;
        }
        sim.synced[member] = number;
        let both = sim.synced[0].min(sim.synced[1]);
        while sim.queue.front().is_some_and(|entry| entry.number <= both) {
            if let Some(entry) = sim.queue.pop_front() {
                let mut freed = Vec::new();
                sim.durable.apply(&entry.entry, &mut freed);
                for place in freed {
                    self.data[place.at as usize] = None;
                }
            }
        }
        sim.machine.synced(both);
        let (ready, held) = sim.held.drain(..).partition(|held| held.after <= both);
        sim.held = held;
        let ready: Vec<HeldLetter> = ready;
        for held in ready {
            self.send(Actor::Unit(unit), held.to, held.letter);
        }
    }

    /// One member dies: the other keeps what it synced, and perhaps more. It becomes the head, without soft state.
    pub(super) fn crash_unit(&mut self, unit: usize) {
        if !self.units[unit].up {
            return;
        }
        self.count("unit crashes");
        let lives = self.rng.below(2) as usize;
        let sim = &mut self.units[unit];
        let has = |member: usize| {
            let has = sim
                .queue
                .iter()
                .filter(|entry| entry.number <= sim.synced[member]);
            has.count() as u64
        };
        let (least, dead) = (has(lives), has(1 - lives));
        let kept = least + self.rng.below(sim.queue.len() as u64 - least + 1);
        let mut left_behind = sim.durable.clone();
        let all = if planted(LogMutant::CopyPastPrefix) {
            u64::MAX
        } else {
            dead
        };
        for entry in sim
            .queue
            .iter()
            .take(all.min(sim.queue.len() as u64) as usize)
        {
            left_behind.apply(&entry.entry, &mut Vec::new());
        }
        for entry in sim.queue.drain(..).take(kept as usize) {
            let mut freed = Vec::new();
            sim.durable.apply(&entry.entry, &mut freed);
            for place in freed {
                self.data[place.at as usize] = None;
            }
        }
        sim.left_behind = Some(left_behind);
        sim.held.clear();
        sim.life += 1;
        sim.synced = [0; 2];
        sim.up = false;
        let after = match self.rng.chance(300) {
            true => 100,
            false => 500 + self.rng.below(6000),
        };
        self.after(after, Due::Up(Actor::Unit(unit)));
    }

    pub(super) fn start_unit(&mut self, unit: usize) {
        let limits = self.unit_limits();
        let sim = &mut self.units[unit];
        sim.up = true;
        sim.machine = Unit::new(sim.durable.clone(), limits);
    }

    pub(super) fn unit_tick(&mut self, unit: usize) {
        if !self.units[unit].up {
            return;
        }
        let mut out = UnitEffects::default();
        self.units[unit].machine.tick(self.now, &mut out);
        self.unit_effects(unit, out);
    }
}

/// Puts records in places.
fn keep(data: &mut Vec<Option<Bytes>>, records: &Records) -> Vec<DataPlace> {
    let place = |bytes: Bytes| {
        let place = DataPlace {
            at: data.len() as u64,
            bytes: bytes.len() as u32,
        };
        data.push(Some(bytes));
        place
    };
    records.each().map(place).collect()
}
