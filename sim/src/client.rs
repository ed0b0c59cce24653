//! Simulated clients: one request at a time, sent again until it is answered or given up, with a map
//! that may be old.

use std::sync::Arc;

use staves_model::{CHUNK_BYTES, Group, MemberSlot};
use staves_wire::group::RequestId;
use staves_wire::service::{Address, Answer};

use crate::event::{ClientRequest, Happening, OpRequest, Packet, Place, client_id};
use crate::history::Operation;
use crate::node::REGISTERS;
use crate::region::chunks_of;
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

impl SimClient {
    /// A client whose first operation is under way.
    pub fn with(operation: usize) -> SimClient {
        SimClient {
            number: 1,
            under_way: Some(operation),
            ..SimClient::default()
        }
    }
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
        match self.load {
            Some(_) => self.ask_service(c),
            None => self.ask(c),
        }
        self.complain(c);
        let pause = if self.healing {
            10
        } else {
            25 + self.rng.below(self.profile.think)
        };
        self.queue.push(self.now + pause * MS, Happening::Client(c));
    }

    // A client that asks again and again in vain reports it to some node.
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
    pub(crate) fn look_at_map(&mut self, c: usize) {
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
        if self.load.is_some() {
            return self.begin_operation(c);
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
        if self.has_regions && self.now <= self.clients_stop_at {
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
        if let Packet::OpAnswer {
            number,
            life,
            attempt,
            answer,
        } = packet
        {
            let client = &self.clients[c];
            if (number, attempt + 1) == (client.number, client.attempts) {
                self.take_answer(c, life, &answer);
            }
            return;
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

    /// Operations that clients began.
    pub fn operations(&self) -> usize {
        let served = self.load.as_ref().map_or(0, |load| load.operations());
        self.history.len() + served
    }

    /// True if an operation of the service's history changes nothing.
    pub(crate) fn is_read(&self, operation: usize) -> bool {
        self.load
            .as_ref()
            .is_some_and(|load| load.is_read(operation))
    }

    // A client whose map names a newer region than it works on gives up its operation on the old one.
    fn leave_region(&mut self, c: usize) {
        let client = &self.clients[c];
        let (Some(map), Some(operation), Some(load)) = (&client.map, client.under_way, &self.load)
        else {
            return;
        };
        if self.has_regions && self.region_of(map.id) != Some(load.object(operation).0) {
            self.clients[c].under_way = None;
            self.cover.count("memory: region gone under a client");
        }
    }

    fn begin_operation(&mut self, c: usize) -> bool {
        let map = self.clients[c].map.as_ref();
        let region = match self.has_regions {
            true => match map.and_then(|group| self.region_of(group.id)) {
                Some(region) => Some(region),
                None => return false,
            },
            false => None,
        };
        let chunks = region.map(|region| chunks_of(&self.regions[region]));
        let reads = if self.profile.think <= 10 { 800 } else { 300 };
        let (now, rng) = (self.now, &mut self.rng);
        let Some(load) = &mut self.load else {
            return false;
        };
        let random = &mut |n| rng.below(n);
        let object = (region.unwrap_or(0), load.pick(chunks, random));
        let client = &mut self.clients[c];
        client.number += 1;
        client.attempts = 0;
        let number = (c as u64 + 1) << 40 | client.number;
        client.under_way = Some(load.begin(object, (number, reads), now, random));
        true
    }

    /// Sends a client's operation to the node that it takes for the data bucket's.
    pub(crate) fn ask_service(&mut self, c: usize) {
        let place = self.first_client() + c;
        let client = &mut self.clients[c];
        client.attempts += 1;
        let attempt = client.attempts - 1;
        let (Some(operation), Some(map)) = (client.under_way, client.map.clone()) else {
            return;
        };
        let Some(request) = self.request_of((place, attempt), operation, &map) else {
            return;
        };
        let data = map.last_open.members.get(request.to.slot().index());
        if let Some(node) = data.copied().flatten().and_then(|x| self.entry_of(x.id)) {
            self.send(place, node, Packet::OpRequest(request));
        }
    }

    /// The request for an operation of the service's history.
    pub(crate) fn request_of(
        &self,
        (client, attempt): (Place, u32),
        operation: usize,
        map: &Group,
    ) -> Option<OpRequest> {
        let load = self.load.as_ref()?;
        let (region, object) = load.object(operation);
        let (slot, at) = match self.has_regions {
            true => {
                let place = self.regions[region].place(object * CHUNK_BYTES, self.m as u8)?;
                (place.slot, place.offset / CHUNK_BYTES)
            }
            false => (MemberSlot((object % self.m as u64) as u8), object),
        };
        let (hash_slot, body) = load.encode(operation, at);
        let number = self.clients[client - self.first_client()].number;
        Some(OpRequest {
            client,
            group: map.id,
            to: hash_slot.map_or(Address::Bucket(map.id, slot), Address::Slot),
            body,
            id: RequestId {
                client: client_id(client),
                number,
                floor: number,
            },
            attempt,
            operation,
        })
    }

    fn take_answer(&mut self, c: usize, life: usize, answer: &Answer) {
        let Some(operation) = self.clients[c].under_way.take() else {
            return;
        };
        let Some(load) = &mut self.load else { return };
        match load.answered(operation, (self.now, life), answer) {
            Ok(outcome) => self.cover.count(outcome),
            Err(why) => self.violation(why),
        }
    }

    /// One order of each object's operations explains what all clients saw (I8, I9).
    pub(crate) fn check_service_history(&mut self) {
        let spans = self.spans();
        let Some(load) = &self.load else { return };
        let (bad, undecided) = load.judge(&spans);
        self.undecided = undecided;
        for what in bad {
            self.violation(what);
        }
    }
}
