//! Simulated clients: one request at a time, sent again until it is answered or given up, with a map
//! that may be old.

use std::sync::Arc;

use staves_model::{Group, MemberSlot};
use staves_wire::group::RequestId;

use crate::event::{ClientRequest, Happening, Packet, client_id};
use crate::history::Operation;
use crate::kv::Service;
use crate::node::REGISTERS;
use crate::world::{MS, World};

/// A client gives a request up after so many attempts; the operation then stays open for ever.
pub(crate) const ATTEMPTS_MAX: u32 = 25;

/// A simulated client.
#[derive(Default)]
pub struct SimClient {
    /// The number of its newest request.
    pub number: u64,
    /// Its operation under way: an index into the history.
    pub under_way: Option<usize>,
    pub(crate) attempts: u32,
    pub(crate) map: Option<Arc<Group>>,
    pub(crate) target: (usize, usize),
}

impl World {
    /// A client begins an operation, or asks again.
    pub fn act_client(&mut self, c: usize) {
        self.burst();
        let looks = self.healing || self.rng.chance(self.profile.map_seen);
        if looks || self.clients[c].map.is_none() {
            self.look_at_map(c);
        }
        let gives_up = !self.healing && self.clients[c].attempts > ATTEMPTS_MAX;
        self.leave_region(c);
        if (self.clients[c].under_way.is_none() || gives_up) && !self.begin(c) {
            return self.look_later(c);
        }
        match self.service() {
            Service::Keys => self.ask_kv(c),
            Service::Memory => self.ask_memory(c),
            Service::Registers => self.ask(c),
        }
        self.complain(c);
        let pause = if self.healing {
            10
        } else {
            25 + self.rng.below(self.profile.think)
        };
        self.queue.push(self.now + pause * MS, Happening::Client(c));
    }

    // Who asks again and again in vain says so to some node.
    fn complain(&mut self, c: usize) {
        let client = &self.clients[c];
        let asked = client
            .map
            .as_ref()
            .and_then(|g| g.last_open.members.first().copied().flatten());
        let Some(about) = asked.filter(|_| client.attempts > 4 && self.detecting()) else {
            return;
        };
        if self.rng.chance(200) {
            let (place, to) = (self.first_client() + c, self.rng.below(self.hosts() as u64));
            self.cover.count("detector: client complains");
            self.send(place, to as usize, Packet::Complaint(about.id.node));
        }
    }

    // The map comes from a leader that this client reaches; it may be the deposed one's.
    fn look_at_map(&mut self, c: usize) {
        let (place, leader) = (self.first_client() + c, self.directory_place());
        let hidden = self.cut.contains(&(leader, place));
        if let Some(former) = self.former_leader().filter(|_| hidden) {
            self.clients[c].map = former.opened.clone();
            return self.cover.count("deposed leader: showed a client its map");
        }
        if self.directory.answers(self.now) {
            self.clients[c].map = self.directory.last_open_entry();
        }
    }

    // A new operation; false when it is time to stop.
    fn begin(&mut self, c: usize) -> bool {
        if self.now > self.clients_stop_at {
            return false;
        }
        match self.service() {
            Service::Keys => return self.begin_kv(c),
            Service::Memory => return self.begin_memory(c),
            Service::Registers => {}
        }
        let reads_mostly = self.profile.think <= 10;
        let write = self.rng.chance(if reads_mostly { 60 } else { 550 });
        let stream = self.rng.below(self.m as u64) as usize;
        let register = self.rng.below(REGISTERS as u64) as usize;
        let client = &mut self.clients[c];
        client.number += 1;
        let value =
            ((c as u64 + 1) << 40 | client.number << 8 | 7).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        client.target = (stream, register);
        client.attempts = 0;
        client.under_way = Some(self.history.len());
        self.history.push(Operation {
            register: (stream * REGISTERS + register) as u32,
            value: if write { value } else { 0 },
            write,
            called: self.now,
            returned: None,
            life: 0,
        });
        true
    }

    // A region that has just been made serves nobody yet.
    fn look_later(&mut self, c: usize) {
        if self.memory.is_some() && self.now <= self.clients_stop_at {
            self.queue.push(self.now + 30 * MS, Happening::Client(c));
        }
    }

    fn ask(&mut self, c: usize) {
        let place = self.first_client() + c;
        let client = &mut self.clients[c];
        client.attempts += 1;
        let Some(op) = client.under_way.map(|i| &self.history[i]) else {
            return;
        };
        let (stream, register) = client.target;
        let member = client.map.as_ref().and_then(|g| {
            g.last_open
                .members
                .get(MemberSlot(stream as u8).index())
                .copied()
                .flatten()
        });
        let request = ClientRequest {
            client: place,
            group: self.group,
            stream,
            register,
            id: RequestId {
                client: client_id(place),
                number: client.number,
                floor: client.number,
            },
            retry: client.attempts > 1,
            write: op.write.then_some(op.value),
        };
        if let Some(node) = member.and_then(|x| self.entry_of(x.id)) {
            self.send(place, node, Packet::Request(request));
        }
    }

    /// An answer arrives at a client.
    pub fn deliver_client(&mut self, c: usize, packet: Packet) {
        if let Packet::KvAnswer {
            number,
            life,
            attempt,
            answer,
        } = packet
        {
            if attempt + 1 != self.clients[c].attempts {
                return;
            }
            return match self.memory {
                Some(_) => self.deliver_memory_answer(c, number, &answer),
                None => self.deliver_kv_answer(c, number, life, &answer),
            };
        }
        let Packet::Answer {
            number,
            life,
            value,
        } = packet
        else {
            return;
        };
        if number != self.clients[c].number {
            return;
        }
        if let Some(i) = self.clients[c].under_way.take() {
            self.history[i].returned = Some(self.now);
            self.history[i].life = life;
            if let Some(value) = value {
                self.history[i].value = value;
            }
        }
    }
}
