//! Simulated clients: one request at a time, sent again until it is answered or given up, with a map
//! that may be old.

use staves_model::MemberSlot;
use staves_wire::group::RequestId;
use staves_wire::service::{Answer, NumberedOp};

use crate::event::{ClientRequest, OpAnswer, OpRequest, Packet, Place, client_id};
use crate::group::SimGroup;
use crate::history::Operation;
use crate::node::REGISTERS;
use crate::router::request;
use crate::scale::MS;
use crate::world::World;

/// A client gives a request up after so many attempts; the operation then stays open for ever.
pub(crate) const ATTEMPTS_MAX: u32 = 25;

impl World {
    /// A client begins an operation, or asks again.
    pub fn act_client(&mut self, c: usize) {
        if self.now < self.clients[c].router.due {
            return;
        }
        self.choose_group(c);
        let g = self.clients[c].group;
        if self.groups[g].load.is_some() {
            return self.act_router(c);
        }
        self.burst(g);
        let looks = self.healing || self.rng.chance(self.profile.map_seen);
        if looks || !self.clients[c].maps.contains_key(&g) {
            self.look_at_map(c);
        }
        let gives_up = !self.healing && self.clients[c].attempts > ATTEMPTS_MAX;
        if (self.clients[c].under_way.is_none() || gives_up) && !self.begin(c) {
            return;
        }
        self.ask(c);
        self.complain(c);
        let pause = if self.healing {
            10
        } else {
            25 + self.rng.below(self.profile.think)
        };
        self.wake_client(c, self.now + pause * MS);
    }

    // Where there are several groups, each operation is for one of them.
    fn choose_group(&mut self, c: usize) {
        let client = &self.clients[c];
        if client.under_way.is_none() && !client.router.is_busy() {
            self.clients[c].group = self.some_group();
        }
    }

    // A client that asks again and again in vain reports it to some node.
    fn complain(&mut self, c: usize) {
        let client = &self.clients[c];
        let asked = client
            .maps
            .get(&client.group)
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
        let (g, hidden) = (self.clients[c].group, self.is_leader_hidden(c));
        let former = self.former_leader().filter(|_| hidden);
        let entry = match former {
            Some(former) => former.opened[g].clone(),
            None if self.directory.answers(self.now) => self.groups[g].opened.clone(),
            None => return,
        };
        if former.is_some() {
            self.cover.count("deposed leader: showed a client its map");
        }
        let maps = &mut self.clients[c].maps;
        match entry {
            Some(entry) => maps.insert(g, entry),
            None => maps.remove(&g),
        };
    }

    /// True if the directory's newest leader does not reach a client.
    pub(crate) fn is_leader_hidden(&self, c: usize) -> bool {
        let (place, leader) = (self.first_client() + c, self.directory_place());
        self.cut.contains(&(leader, place))
    }

    // A new operation; false when it is time to stop.
    fn begin(&mut self, c: usize) -> bool {
        if self.now > self.clients_stop_at {
            return false;
        }
        let reads_mostly = self.profile.think <= 10;
        let write = self.rng.chance(if reads_mostly { 60 } else { 550 });
        let g = self.clients[c].group;
        let stream = self.rng.below(self.groups[g].m as u64) as usize;
        let register = self.rng.below(REGISTERS as u64) as usize;
        let client = &mut self.clients[c];
        client.number += 1;
        let value =
            ((c as u64 + 1) << 40 | client.number << 8 | 7).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        client.target = (stream, register);
        client.attempts = 0;
        client.under_way = Some(self.groups[g].history.len());
        self.groups[g].history.push(Operation {
            register: (stream * REGISTERS + register) as u32,
            value: if write { value } else { 0 },
            write,
            called: self.now,
            returned: None,
            life: 0,
        });
        true
    }

    fn ask(&mut self, c: usize) {
        let place = self.first_client() + c;
        let client = &mut self.clients[c];
        client.attempts += 1;
        let Some(op) = client
            .under_way
            .map(|i| &self.groups[client.group].history[i])
        else {
            return;
        };
        let (stream, register) = client.target;
        let member = client.maps.get(&client.group).and_then(|g| {
            g.last_open
                .members
                .get(MemberSlot(stream as u8).index())
                .copied()
                .flatten()
        });
        let request = ClientRequest {
            client: place,
            group: self.groups[client.group].id,
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
        let g = client.group;
        if let Some(node) = member.and_then(|x| self.entry_of(g, x.id)) {
            self.send(place, node, Packet::Request(request));
        }
    }

    /// An answer arrives at a client.
    pub fn deliver_client(&mut self, from: Place, c: usize, packet: Packet) {
        if let Packet::OpRefused { attempt } = packet {
            return self.deliver_refusal(c, self.nodes[from].id, attempt);
        }
        if let Packet::OpAnswer(answer) = packet {
            let client = &mut self.clients[c];
            let g = client.group;
            let by_hand = client
                .under_way
                .filter(|_| self.groups[g].load.is_some() && answer.attempt == client.attempts);
            let OpAnswer {
                attempt,
                life,
                answers,
                ..
            } = answer;
            match (by_hand, answers.answers.first()) {
                (None, _) => {
                    let from = self.nodes[from].id;
                    self.deliver_answers(c, from, (attempt, life), answers);
                }
                (Some(_), Some(Answer::Error(code, _))) if code.worth_retrying() => {}
                (Some(operation), Some(answer)) => {
                    self.clients[c].under_way = None;
                    self.take_answer(g, operation, life, answer);
                }
                (Some(_), None) => {}
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
            let record = &mut self.groups[self.clients[c].group].history[i];
            record.returned = Some(self.now);
            record.life = life;
            if let Some(value) = value {
                record.value = value;
            }
        }
    }

    /// Operations that clients began.
    pub fn operations(&self) -> usize {
        let of = |g: &SimGroup| {
            let served = g.load.as_ref().map_or(0, |load| load.operations());
            g.history.len() + served
        };
        self.groups.iter().map(of).sum()
    }

    /// Sends an operation of a service by hand to a node. The client that begins it has no turn.
    pub(crate) fn ask_service(&mut self, c: usize, node: usize) {
        let place = self.first_client() + c;
        let client = &mut self.clients[c];
        client.attempts += 1;
        let (attempt, number, g) = (client.attempts, client.number, client.group);
        let under_way = client.under_way;
        let Some((operation, op)) = under_way.and_then(|i| Some((i, self.op_of(g, i)?))) else {
            return;
        };
        let op = NumberedOp {
            number: if op.is_write { number } else { 0 },
            to: op.to,
            body: op.body,
        };
        let request = OpRequest {
            route: vec![place],
            request: request((self.service_id(g), self.groups[g].pool), place, op),
            attempt,
            operation,
        };
        self.send(place, node, Packet::OpRequest(request));
    }

    /// One order of each object's operations explains what all clients saw (I8, I9).
    pub(crate) fn check_service_history(&mut self) {
        for g in self.all_groups() {
            let spans = self.spans(g);
            let Some(load) = &self.groups[g].load else {
                continue;
            };
            let (bad, undecided) = load.judge(&spans);
            self.undecided += undecided;
            for what in bad {
                self.violation(what);
            }
        }
    }
}
