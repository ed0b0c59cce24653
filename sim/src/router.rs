//! Clients of services. Each drives the real client's [`RouterTurn`], one operation at a time: it asks the node that its
//! map names, follows what nodes answer about newer maps, passes over nodes that are silent, retries under the same
//! number, and gives up at its deadline. The simulator adds the network, the time and the judge.

use std::sync::Arc;
use std::time::Duration;

use staves_client::turn::{CallFailure, NodeBatch, RouterTurn, ServiceOp, TurnEvent, TurnStep};
use staves_client::{RouterOptions, newest_map, with_moved};
use staves_model::{CHUNK_BYTES, GroupId, MemberSlot, NodeId, PoolId, ServiceId, Time};
use staves_wire::ErrorCode;
use staves_wire::service::{Address, Answer, NumberedOp, PoolRef, ServiceAnswers, ServiceRequest};

use crate::clients::{ClientTurn, Wait};
use crate::event::{Happening, OpRequest, Packet, Place, client_id};
use crate::region::chunks_of;
use crate::scale::MS;
use crate::world::World;

/// The time that an operation may take, retries and all.
const DEADLINE: u64 = 1000 * MS;
/// The time that one node may take.
const TRY_MAX: Duration = Duration::from_millis(90);
/// A node whose machine refuses a connection is passed over for so long; a silent one for twice [`TRY_MAX`].
const AVOIDED: u64 = 60 * MS;
/// Numbers of two operations differ by so much, so that a retry under another number is none of either.
const NUMBERS_APART: u64 = 64;

fn options() -> RouterOptions {
    RouterOptions {
        try_max: TRY_MAX,
        backoff_min: Duration::from_millis(4),
        backoff_max: Duration::from_millis(60),
        ..RouterOptions::default()
    }
}

/// The request for one operation, which no turn drives.
pub(crate) fn request(
    (service, pool): (ServiceId, PoolId),
    client: Place,
    op: NumberedOp,
) -> ServiceRequest {
    ServiceRequest {
        revision: Default::default(),
        service,
        pool: PoolRef::Id(pool),
        client: client_id(client),
        floor: op.number,
        retry: false,
        forwarded: false,
        answer_bytes_max: 0,
        strict: false,
        ops: vec![op],
    }
}

impl World {
    /// The timer of a service's client.
    pub(crate) fn act_router(&mut self, c: usize) {
        let now = self.now;
        let router = &mut self.clients[c].router;
        let event = match router.turn.as_ref().map(|turn| turn.wait) {
            None => return self.begin_turn(c),
            Some(Wait::Answer(node)) => {
                router
                    .avoid
                    .insert(node, now + 2 * TRY_MAX.as_nanos() as u64);
                self.cover.count("client: a silent node given up");
                self.complain_of(c, node);
                TurnEvent::Answered(node, Err(failure(ErrorCode::Unreachable, false)))
            }
            Some(Wait::Map) => {
                self.look_at_cluster(c);
                self.clients[c].router.go(now)
            }
            Some(Wait::Time) => router.go(now),
        };
        self.step_turn(c, event);
    }

    // A request failed; now and then its client reports that to some node.
    fn complain_of(&mut self, c: usize, about: NodeId) {
        if self.detecting() && self.rng.chance(200) {
            let (place, to) = (self.first_client() + c, self.rng.below(self.hosts() as u64));
            self.cover.count("detector: client complains");
            self.send(place, to as usize, Packet::Complaint(about));
        }
    }

    // The map comes from a leader that this client reaches; it may be the deposed one's.
    fn look_at_cluster(&mut self, c: usize) {
        let hidden = self.is_leader_hidden(c);
        let router = &mut self.clients[c].router;
        if let Some(former) = self.directory.former_map().filter(|_| hidden) {
            router.map = newest_map(&router.map, Arc::new(former.clone()));
            self.cover.count("deposed leader: showed a client its map");
        } else if self.directory.answers(self.now) {
            router.map = newest_map(&router.map, self.directory.shown());
        }
    }

    fn begin_turn(&mut self, c: usize) {
        let looks = self.healing || self.rng.chance(self.profile.map_seen);
        if looks || self.clients[c].router.map.pools.is_empty() {
            self.look_at_cluster(c);
        }
        if self.now > self.clients_stop_at {
            return;
        }
        let Some(operation) = self.begin_operation(c) else {
            return self.wake_client(c, self.now + 30 * MS);
        };
        let (now, place) = (self.now, self.first_client() + c);
        let g = self.clients[c].group;
        let (pool, service) = (self.groups[g].pool, self.service_id(g));
        let of = (service, PoolRef::Id(pool), client_id(place));
        let Some(op) = self.op_of(g, operation) else {
            return;
        };
        let windows = op.windows(&self.clients[c].router.map, Some(pool));
        let router = &mut self.clients[c].router;
        let numbers = std::iter::once(router.number);
        let deadline = Time(now + DEADLINE);
        let machine = RouterTurn::new(of, options(), vec![(op, windows)], numbers, deadline);
        router.turn = Some(ClientTurn {
            machine,
            operation,
            wait: Wait::Time,
        });
        let go = router.go(now);
        self.step_turn(c, go);
    }

    // A new operation; none where the region that the client knows serves nobody yet.
    fn begin_operation(&mut self, c: usize) -> Option<usize> {
        let map = &self.clients[c].router.map;
        let group = &mut self.groups[self.clients[c].group];
        let region = match group.has_regions {
            true => {
                let region = map.pools.get(&group.pool)?.regions().last()?;
                Some(group.regions.iter().position(|r| r.id == region.id)?)
            }
            false => None,
        };
        let chunks = region.map(|region| chunks_of(&group.regions[region]));
        let reads = if self.profile.think <= 10 { 800 } else { 300 };
        let (now, rng) = (self.now, &mut self.rng);
        let load = group.load.as_mut()?;
        let random = &mut |n| rng.below(n);
        let object = (region.unwrap_or(0), load.pick(chunks, random));
        let router = &mut self.clients[c].router;
        router.number += NUMBERS_APART;
        let number = (c as u64 + 1) << 40 | router.number;
        Some(load.begin(object, (number, reads), now, random))
    }

    /// An operation of a group's history, as the router takes it.
    pub(crate) fn op_of(&self, g: usize, operation: usize) -> Option<ServiceOp> {
        let of = &self.groups[g];
        let load = of.load.as_ref()?;
        let (region, object) = load.object(operation);
        let (group, slot, at) = match of.has_regions {
            true => {
                let place = of.regions[region].place(object * CHUNK_BYTES, of.m as u8)?;
                (place.group, place.slot, place.offset / CHUNK_BYTES)
            }
            false => (of.id, MemberSlot((object % of.m as u64) as u8), object),
        };
        let (hash_slot, body) = load.encode(operation, at);
        Some(ServiceOp {
            to: hash_slot.map_or(Address::Bucket(group, slot), Address::Slot),
            body,
            is_write: !load.is_read(operation),
            answer_bytes: 0,
        })
    }

    // Steps a client's turn, and does what it wants done.
    fn step_turn(&mut self, c: usize, mut event: TurnEvent) {
        loop {
            let now = self.now;
            let router = &mut self.clients[c].router;
            let Some(turn) = &mut router.turn else { return };
            let (wait, due) = match turn.machine.step(Time(now), event) {
                TurnStep::Send(batches) => return self.send_batches(c, batches),
                TurnStep::Look(..) => (Wait::Map, now + (1 + self.rng.below(12)) * MS),
                TurnStep::Rest(time) => (Wait::Time, now + time.as_nanos() as u64),
                TurnStep::Renumber(above, _) => {
                    router.number = router.number.max(above) + NUMBERS_APART;
                    event = TurnEvent::Numbered(Some(vec![router.number]));
                    continue;
                }
                TurnStep::Done(answers) => return self.end_turn(c, answers.ok()),
                TurnStep::Await => {
                    let what =
                        format!("client {c}: a turn of one operation awaits a second answer");
                    return self.violation(what);
                }
            };
            turn.wait = wait;
            return self.wake_client(c, due);
        }
    }

    fn send_batches(&mut self, c: usize, batches: Vec<NodeBatch>) {
        let (now, place) = (self.now, self.first_client() + c);
        for batch in batches {
            let router = &mut self.clients[c].router;
            let Some(turn) = &mut router.turn else { return };
            turn.wait = Wait::Answer(batch.node);
            router.attempt += 1;
            let (attempt, operation) = (router.attempt, turn.operation);
            let late = Time(now) >= turn.machine.deadline();
            if late {
                self.violation(format!(
                    "T1 client {c} sends operation {operation} again after its deadline"
                ));
            }
            let floor = self.clients[c].router.number;
            let request = OpRequest {
                route: vec![place],
                request: ServiceRequest {
                    floor,
                    ..batch.request
                },
                attempt,
                operation,
            };
            if let Some(node) = self.node_of(batch.node) {
                self.send(place, node, Packet::OpRequest(request));
            }
            self.wake_client(c, batch.deadline.0);
        }
    }

    fn end_turn(&mut self, c: usize, answers: Option<Vec<Option<Answer>>>) {
        let Some(turn) = self.clients[c].router.turn.take() else {
            return;
        };
        let (g, life) = (self.clients[c].group, self.clients[c].life);
        match answers.and_then(|mut answers| answers.pop().flatten()) {
            Some(answer) => self.take_answer(g, turn.operation, life, &answer),
            None => self.cover.count("client: no such pool"),
        }
        let pause = match self.healing {
            true => 10,
            false => 25 + self.rng.below(self.profile.think),
        };
        self.wake_client(c, self.now + pause * MS);
    }

    pub(crate) fn wake_client(&mut self, c: usize, at: u64) {
        self.clients[c].router.due = at;
        self.queue.push(at, Happening::Client(c));
    }

    /// A node's answer reaches a client.
    pub(crate) fn deliver_answers(
        &mut self,
        c: usize,
        from: NodeId,
        (attempt, life): (u32, usize),
        answers: ServiceAnswers,
    ) {
        let router = &mut self.clients[c].router;
        let awaited = Some(Wait::Answer(from));
        if attempt != router.attempt || router.turn.as_ref().map(|turn| turn.wait) != awaited {
            return;
        }
        router.avoid.remove(&from);
        if let Some(map) = with_moved(&router.map, &answers.moved) {
            router.map = map;
            self.cover
                .count("client: learnt of a newer entry by an answer");
        }
        self.clients[c].life = life;
        self.step_turn(c, TurnEvent::Answered(from, Ok(answers)));
    }

    /// The machine of a node that does not run refuses a client's connection.
    pub(crate) fn deliver_refusal(&mut self, c: usize, from: NodeId, attempt: u32) {
        let now = self.now;
        let router = &mut self.clients[c].router;
        let awaited = Some(Wait::Answer(from));
        if attempt != router.attempt || router.turn.as_ref().map(|turn| turn.wait) != awaited {
            return;
        }
        router.avoid.insert(from, now + AVOIDED);
        self.cover.count("client: refused by a machine");
        let failure = failure(ErrorCode::NotServing, true);
        self.step_turn(c, TurnEvent::Answered(from, Err(failure)));
    }

    /// The answer to an operation of a group's history, or the reason why it has none.
    pub(crate) fn take_answer(&mut self, g: usize, operation: usize, life: usize, answer: &Answer) {
        let Some(load) = &mut self.groups[g].load else {
            return;
        };
        match load.answered(operation, (self.now, life), answer) {
            Ok(outcome) => self.cover.count(outcome),
            Err(why) => self.violation(why),
        }
    }

    /// The service's number in requests, which is that of its pool's kind.
    pub(crate) fn service_id(&self, g: usize) -> ServiceId {
        let pool = self.directory.map.pools.get(&self.groups[g].pool);
        pool.and_then(|pool| pool.kind.service())
            .unwrap_or(ServiceId::CACHE)
    }

    /// The group that an operation on a pool is for.
    pub(crate) fn group_of(&self, g: usize, to: Address) -> GroupId {
        match to {
            Address::Bucket(group, _) => group,
            Address::Slot(_) => self.groups[g].id,
        }
    }
}

fn failure(code: ErrorCode, nothing_done: bool) -> CallFailure {
    CallFailure {
        code,
        text: "the node is silent, or its machine refuses".into(),
        nothing_done,
    }
}
