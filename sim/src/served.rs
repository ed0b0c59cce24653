//! A service at a simulated node: requests in, answers out, and what must hold of both.

use std::time::Duration;

use staves_group::Event;
use staves_model::{GroupId, MemberSlot, Revision, Time};
use staves_service::{BucketEffects, OpHeader, Refused};
use staves_wire::ErrorCode;
use staves_wire::group::RequestId;
use staves_wire::service::{Answer, ServiceAnswers};

use crate::clients::SimClient;
use crate::event::{OpAnswer, OpRequest, Packet, Place};
use crate::load::{Load, ObjectId, OpenRequest, Seat, SimBucket, WAITING_MAX};
use crate::scale::MS;
use crate::world::World;

/// A check of one bucket scans its pages, so it is made once in so many steps.
const CHECK_EVERY: u64 = 32;
/// Times that a read at rest is sent.
const TRIES_AT_REST: u64 = 40;

impl World {
    /// Steps what a node's seat holds.
    pub fn step_member(&mut self, node: usize, event: Event) {
        if !matches!(&self.nodes[node].member, Some(Seat::Served(_))) {
            return self.with_member(node, |m, now, out, applied| {
                m.step(now, event, out, applied)
            });
        }
        let tick = matches!(event, Event::Tick);
        self.with_bucket(node, |bucket, now, out| bucket.step(now, event, out));
        self.check_lost(node);
        if tick {
            self.check_deadlines(node);
        }
    }

    fn with_bucket(
        &mut self,
        node: usize,
        f: impl FnOnce(&mut dyn SimBucket, Time, &mut BucketEffects),
    ) {
        let Some(Seat::Served(mut bucket)) = self.nodes[node].member.take() else {
            return;
        };
        let mut out = BucketEffects::default();
        f(&mut *bucket, self.nodes[node].clock(self.now), &mut out);
        self.nodes[node].member = Some(Seat::Served(bucket));
        self.after_step(node);
        for (token, answer) in out.answers {
            self.answer_request(node, token, answer);
        }
        self.carry_out(node, out.effects);
        self.check_bucket(node);
    }

    /// A request reaches a node, which executes it, passes it on once, or says where it belongs.
    pub(crate) fn request_service(&mut self, node: usize, r: OpRequest) {
        let Some(op) = r.request.ops.first() else {
            return;
        };
        let g = self.index_of_pool(&r.request.pool);
        let (group, slot) = (self.group_of(g, op.to), op.to.slot());
        let seats = self.seats_in(node, g).into_iter();
        let answers_for = |seat: &usize| {
            let bucket = self.nodes[*seat].member.as_ref().and_then(Seat::bucket);
            bucket.is_some_and(|b| b.member().id() == group && b.answers_for(slot))
        };
        match seats.into_iter().find(answers_for) {
            Some(seat) => self.submit(seat, r),
            None => self.pass_on(node, g, (group, slot), r),
        }
    }

    // By the newest entry of the group that this node has seen.
    fn pass_on(
        &mut self,
        node: usize,
        g: usize,
        (group, slot): (GroupId, MemberSlot),
        mut r: OpRequest,
    ) {
        let known = self.nodes[node].known.get(&g).filter(|g| g.id == group);
        let member = known.filter(|g| g.open).and_then(|g| g.member(slot));
        let owner = member.and_then(|x| self.node_of(x.id.node));
        match owner.filter(|owner| *owner != node && !r.request.forwarded) {
            Some(owner) => {
                self.cover.count("client: a request passed on");
                r.request.forwarded = true;
                r.route.push(node);
                self.send(node, owner, Packet::OpRequest(r));
            }
            None => {
                if known.is_none() {
                    self.cover.count("memory: another group asked for");
                }
                let answer = refusal(Refused::NotServing);
                self.reply(node, g, r.route, (r.attempt, r.request.revision), answer);
            }
        }
    }

    // Answers come with this node's entry of the group, if it is newer than the map that the request was sent by.
    fn reply(
        &mut self,
        node: usize,
        g: usize,
        mut route: Vec<Place>,
        (attempt, revision): (u32, Revision),
        answer: Answer,
    ) {
        let known = self.nodes[self.host_of(node)].known.get(&g).cloned();
        let newer = known.filter(|g| g.revision > revision);
        let wrong = matches!(answer, Answer::Error(ErrorCode::NotServing, _));
        let answers = ServiceAnswers {
            revision,
            answers: vec![answer],
            moved: newer.filter(|_| wrong).into_iter().collect(),
            draw_above: 0,
            needs_bytes: 0,
        };
        let Some(to) = route.pop() else { return };
        let life = self.life(g);
        let answer = OpAnswer {
            route,
            attempt,
            life,
            answers,
        };
        self.send(node, to, Packet::OpAnswer(answer));
    }

    /// An answer to a request that this node passed on.
    pub(crate) fn pass_back(&mut self, node: usize, mut answer: OpAnswer) {
        if let Some(to) = answer.route.pop() {
            self.send(node, to, Packet::OpAnswer(answer));
        }
    }

    fn submit(&mut self, node: usize, r: OpRequest) {
        let Some(op) = r.request.ops.into_iter().next() else {
            return;
        };
        self.tokens += 1;
        let now = self.nodes[node].clock(self.now);
        let id = RequestId {
            client: r.request.client,
            number: op.number,
            floor: r.request.floor,
        };
        let header = OpHeader {
            token: self.tokens,
            slot: op.to.slot(),
            request: (op.number > 0).then_some(id),
            deadline: now + Duration::from_millis(40 + self.rng.below(400)),
        };
        let open = OpenRequest {
            route: r.route,
            attempt: r.attempt,
            revision: r.request.revision,
            operation: r.operation,
            deadline: header.deadline,
        };
        if let Some(id) = header.request {
            let g = self.nodes[node].group;
            self.groups[g].requests.insert(r.operation, id);
        }
        self.open.insert((node, header.token), open);
        // Mostly; else what was made goes with the next step.
        let flush = self.rng.chance(900);
        self.with_bucket(node, |bucket, now, out| {
            let (answer, _) = bucket.submit_body(now, header, op.to, &op.body, out);
            if flush {
                bucket.flush(now, out);
            }
            let answer = answer.transpose();
            out.answers.extend(answer.map(|a| (header.token, a)));
        });
    }

    fn check_bucket(&mut self, node: usize) {
        let Some(bucket) = self.nodes[node].member.as_ref().and_then(Seat::bucket) else {
            return;
        };
        // Waiters, parked requests and one large write.
        let (waiting, most) = (bucket.waiting(), 2 * WAITING_MAX + 1);
        let checked = match self.steps.is_multiple_of(CHECK_EVERY) {
            true => bucket.check(),
            false => Ok(()),
        };
        let slot = bucket.member().slot();
        if waiting > most {
            self.violation(format!(
                "{waiting} requests wait at node {node}, more than {most}"
            ));
        }
        if let Err(what) = checked {
            self.violation(format!("state of node {node} ({slot:?}): {what}"));
        }
    }

    fn answer_request(&mut self, node: usize, token: u64, answer: Result<Answer, Refused>) {
        let g = self.nodes[node].group;
        let Some(open) = self.open.remove(&(node, token)) else {
            return self.violation(format!(
                "node {node} answers token {token} again, or nobody: {answer:?}"
            ));
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(why) => {
                self.cover.count(match why {
                    Refused::NotServing => "service: not serving",
                    Refused::Interrupted => "service: interrupted",
                    Refused::Busy => "service: busy",
                    Refused::Deadline => "service: deadline",
                    Refused::Late => "service: late",
                });
                let at = (open.attempt, open.revision);
                return self.reply(node, g, open.route, at, refusal(why));
            }
        };
        let is_read = |load: &dyn Load| load.is_read(open.operation);
        let load = self.groups[g].load.as_deref();
        if load.is_some_and(is_read) && !matches!(answer, Answer::Error(..)) {
            self.check_read(node);
            let load = self.groups[g].load.as_deref();
            let shown = load.map(|load| load.shown(open.operation, &answer));
            for write in shown.unwrap_or_default() {
                if let Some(request) = self.groups[g].requests.get(&write).copied() {
                    self.check_shown(node, request);
                }
            }
        }
        self.check_life(node);
        self.reply(node, g, open.route, (open.attempt, open.revision), answer);
    }

    // Each request is answered or refused by its deadline, at the latest with the next tick.
    fn check_deadlines(&mut self, node: usize) {
        let now = self.nodes[node].clock(self.now);
        let of_node = self.open.range((node, 0)..=(node, u64::MAX));
        let late = of_node.filter(|(_, o)| o.deadline <= now).map(|(k, _)| k.1);
        if let Some(token) = late.min() {
            self.violation(format!(
                "node {node} has not answered token {token} by its deadline"
            ));
        }
    }

    // More lost than the scheme bears is reported, and no request waits for what may never
    // come. Those that wait for stability have been served already.
    fn check_lost(&mut self, node: usize) {
        let Some(bucket) = self.nodes[node].member.as_ref().and_then(Seat::bucket) else {
            return;
        };
        let member = bucket.member();
        if !member.is_lost() || !member.serving() {
            return;
        }
        let (parked, missing) = (bucket.parked(), member.progress().0);
        self.cover.count(match missing {
            0 => "service: a lost group's data bucket, whole",
            _ => "service: a lost group's data bucket, with pages missing",
        });
        let load = self.group_at(node).load.as_ref();
        if parked > 0 && load.is_some_and(|load| load.reports_loss()) {
            self.violation(format!(
                "R14 {parked} requests wait at node {node}, whose group is lost, with {missing} pages missing"
            ));
        }
    }

    /// The node's process is gone, and with it every request that waited there.
    pub(crate) fn forget_tokens(&mut self, node: usize) {
        self.open.retain(|(n, _), _| *n != node);
    }

    /// The node's process starts again over its old memory: the service begins anew around the member.
    pub(crate) fn restart_service(&mut self, node: usize) {
        self.forget_tokens(node);
        if let Some(Seat::Served(bucket)) =
            self.nodes[node].member.take_if(|s| s.bucket().is_some())
        {
            let g = self.nodes[node].group;
            let seat = self.seat_of(g, bucket.into_member());
            self.nodes[node].member = Some(seat);
        }
    }

    /// At rest each bucket's state agrees with its pages, and each object is read once more.
    pub(crate) fn service_at_rest(&mut self, g: usize) {
        let group = self.committed(g).clone();
        let seats = group.listed().filter_map(|(_, x)| self.entry_of(g, x.id));
        let buckets = seats.filter_map(|n| self.nodes[n].member.as_ref()?.bucket());
        let bad: Vec<String> = buckets.filter_map(|b| b.check().err()).collect();
        for what in bad {
            self.violation(format!("at rest: {what}"));
        }
        let of = &self.groups[g];
        let Some(load) = &of.load else { return };
        let newest = of.regions.len().saturating_sub(1);
        let objects = load.objects().into_iter().filter(|o| o.0 == newest);
        let objects: Vec<_> = objects.collect();
        for object in objects {
            self.read_at_rest(g, object);
        }
    }

    fn read_at_rest(&mut self, g: usize, object: ObjectId) {
        let Some(load) = &mut self.groups[g].load else {
            return;
        };
        let operation = load.begin_read(object, self.now);
        let c = self.clients.len();
        self.clients.push(SimClient::with(g, operation));
        let Some(to) = self.op_of(g, operation).map(|op| op.to) else {
            return;
        };
        for _ in 0..TRIES_AT_REST {
            let data = self.committed(g).member(to.slot());
            if let Some(node) = data.and_then(|x| self.node_of(x.id.node)) {
                self.ask_service(c, node);
            }
            let end = self.now + 50 * MS;
            while self.now < end && self.step() {
                if self.clients[c].under_way.is_none() {
                    return;
                }
            }
        }
        self.violation(format!("I11 a read of {object:?} has no answer at rest"));
    }
}

fn refusal(why: Refused) -> Answer {
    Answer::error(why.code(), why.to_string())
}
