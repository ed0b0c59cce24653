//! The key-value service at a simulated node: requests in, answers out, and what must hold of both.

use staves_group::Event;
use staves_model::{MemberSlot, PAGE_BYTES};
use staves_service::{Ask, BucketEffects, Refused};
use staves_wire::cache::{Condition, Op};
use staves_wire::service::Answer;

use crate::event::{KvRequest, Packet};
use crate::kv::{KEYS, Open, Seat, WAITING_MAX};
use crate::kv_client::{last_read, name, number};
use crate::kv_history::Act;
use crate::world::{MS, World};

/// What a check of one bucket costs is a scan of its pages; so only each so many steps.
const CHECK_EVERY: u64 = 64;

impl World {
    /// Lets a node's seat know of an event.
    pub fn step_member(&mut self, node: usize, event: Event) {
        match &self.nodes[node].member {
            Some(Seat::Kv(_)) => self.step_kv(node, event),
            Some(Seat::Memory(_)) => self.step_memory(node, event),
            _ => self.with_member(node, |m, now, out, applied| {
                m.step(now, event, out, applied)
            }),
        }
    }

    fn step_kv(&mut self, node: usize, event: Event) {
        let Some(Seat::Kv(mut bucket)) = self.nodes[node].member.take() else {
            return;
        };
        let (now, tick) = (
            self.nodes[node].clock(self.now),
            matches!(event, Event::Tick),
        );
        let (mut out, before) = (BucketEffects::default(), bucket.service().stats());
        bucket.step(now, event, &mut out);
        for _ in before.compactions..bucket.service().stats().compactions {
            self.cover.count("key-value: compaction");
        }
        self.nodes[node].member = Some(Seat::Kv(bucket));
        self.after_bucket(node, out);
        if tick {
            self.check_deadlines(node);
        }
    }

    pub(crate) fn request_kv(&mut self, node: usize, r: &KvRequest) {
        let Some(Seat::Kv(_)) = &self.nodes[node].member else {
            return;
        };
        let Some(kv) = self.kv.as_mut() else { return };
        let asked = &kv.history[r.operation];
        let Some(Seat::Kv(mut bucket)) = self.nodes[node].member.take() else {
            return;
        };
        let (key, act) = (name(asked.key), asked.act);
        let value = act.text().map(|t| t.bytes()).unwrap_or_default();
        let now = self.nodes[node].clock(self.now);
        kv.tokens += 1;
        let ask = Ask {
            token: kv.tokens,
            slot: MemberSlot(0),
            request: (act != Act::Get).then_some(r.id),
            deadline: now + std::time::Duration::from_millis(40 + self.rng.below(400)),
        };
        let open = Open {
            client: r.client,
            number: r.id.number,
            attempt: r.attempt,
            operation: r.operation,
            deadline: ask.deadline,
        };
        kv.open.insert((node, ask.token), open);
        let (mut out, before) = (BucketEffects::default(), bucket.service().stats());
        let answer = bucket.submit(now, ask, op(act, &key, &value), &mut out);
        if self.rng.chance(900) {
            bucket.flush(now, &mut out);
        }
        for _ in before.compactions..bucket.service().stats().compactions {
            self.cover.count("key-value: compaction");
        }
        self.nodes[node].member = Some(Seat::Kv(bucket));
        let answer = answer.transpose();
        out.answers.extend(answer.map(|a| (ask.token, a)));
        self.after_bucket(node, out);
    }

    fn after_bucket(&mut self, node: usize, out: BucketEffects) {
        self.after_step(node);
        for (token, answer) in out.answers {
            self.answer_kv(node, token, answer);
        }
        self.carry_out(node, out.effects);
        let Some(bucket) = self.nodes[node].member.as_ref().and_then(Seat::bucket) else {
            return;
        };
        // Waiters, parked requests and one large write.
        let (waiting, most) = (bucket.waiting(), 2 * WAITING_MAX + 1);
        let checked = if self.steps.is_multiple_of(CHECK_EVERY) {
            bucket.check()
        } else {
            Ok(())
        };
        let slot = bucket.member().slot();
        if waiting > most {
            self.violation(format!(
                "{waiting} requests wait at node {node}, more than {most}"
            ));
        }
        if let Err(what) = checked {
            self.violation(format!("index of node {node} ({slot:?}): {what}"));
        }
    }

    fn answer_kv(&mut self, node: usize, token: u64, answer: Result<Answer, Refused>) {
        let Some(kv) = self.kv.as_mut() else { return };
        let Some(open) = kv.open.remove(&(node, token)) else {
            return self.violation(format!(
                "node {node} answers token {token} again, or nobody: {answer:?}"
            ));
        };
        let answer = match answer {
            Ok(answer) => answer,
            // The client asks again.
            Err(why) => {
                return self.cover.count(match why {
                    Refused::NotServing => "key-value: not serving",
                    Refused::Interrupted => "key-value: interrupted",
                    Refused::Busy => "key-value: busy",
                    Refused::Deadline => "key-value: deadline",
                });
            }
        };
        if kv.history[open.operation].act == Act::Get {
            self.check_read(node);
        }
        self.check_life(node);
        let life = self.life();
        let (number, attempt) = (open.number, open.attempt);
        self.send(
            node,
            open.client,
            Packet::KvAnswer {
                number,
                life,
                attempt,
                answer,
            },
        );
    }

    // Each request is answered or refused by its deadline, at the latest with the next tick.
    fn check_deadlines(&mut self, node: usize) {
        let now = self.nodes[node].clock(self.now);
        let Some(kv) = &self.kv else { return };
        let of_node = kv.open.range((node, 0)..=(node, u64::MAX));
        let late = of_node
            .filter(|(_, o)| o.deadline <= now)
            .map(|((_, token), _)| *token)
            .next();
        if let Some(token) = late {
            self.violation(format!(
                "node {node} has not answered token {token} by its deadline"
            ));
        }
    }

    /// The node's process is gone, and with it whoever waited there.
    pub(crate) fn forget_tokens(&mut self, node: usize) {
        if let Some(kv) = &mut self.kv {
            kv.open.retain(|(n, _), _| *n != node);
        }
        if let Some(memory) = &mut self.memory {
            memory.open.retain(|(n, _), _| *n != node);
        }
    }

    /// The node's process starts again over its old memory: the service begins anew around the member.
    pub(crate) fn restart_service(&mut self, node: usize) {
        self.forget_tokens(node);
        let seat = self.nodes[node].member.take();
        self.nodes[node].member = seat.map(Seat::begin_again);
    }

    /// At rest: index and pages agree everywhere, all members hold the same pages, keys and values; and
    /// these are what the history allows.
    pub(crate) fn kv_at_rest(&mut self) {
        let group = self.committed().clone();
        let mut bad = Vec::new();
        let mut first = None;
        for (slot, x) in group.listed() {
            let seat = self
                .entry_of(x.id)
                .and_then(|n| self.nodes[n].member.as_ref());
            let Some(bucket) = seat.and_then(Seat::bucket) else {
                bad.push(format!("slot {slot} has no service"));
                continue;
            };
            if let Err(what) = bucket.check() {
                bad.push(format!("index of slot {slot} at rest: {what}"));
            }
            let entries = bucket.service().entries(bucket.member());
            let pages: Vec<Vec<u8>> = bucket.member().pages().map_or_else(Vec::new, |p| {
                let mut all: Vec<Vec<u8>> = (0..p.end_page())
                    .map(|i| {
                        p.page(i)
                            .map_or_else(|| vec![0; PAGE_BYTES], <[u8]>::to_vec)
                    })
                    .collect();
                while all.last().is_some_and(|p| p.iter().all(|b| *b == 0)) {
                    all.pop();
                }
                all
            });
            let (of_first, pages_of_first) =
                first.get_or_insert_with(|| (entries.clone(), pages.clone()));
            if *of_first != entries {
                bad.push(format!(
                    "I4 slot {slot} holds other keys or values than the data bucket"
                ));
            }
            if *pages_of_first != pages {
                bad.push(format!(
                    "I4 slot {slot} holds other bytes than the data bucket"
                ));
            }
        }
        let now = self.now + MS;
        if let (Some((entries, _)), Some(kv)) = (&first, self.kv.as_mut()) {
            for key in 0..KEYS {
                let held = entries.iter().find(|(k, _)| *k == name(key));
                let life = self.lives.len() - 1;
                kv.history
                    .push(last_read(key, held.map(|(_, v)| &v[..]), now, life));
            }
            if let Some((stranger, _)) = entries.iter().find(|(k, _)| number(k).is_none()) {
                bad.push(format!("nobody wrote the key {stranger:?}"));
            }
        }
        for what in bad {
            self.violation(what);
        }
    }
}

fn op<'a>(act: Act, key: &'a [u8], value: &'a [u8]) -> Op<'a> {
    let set = |condition| Op::Set {
        key,
        value,
        condition,
        get_old: false,
    };
    match act {
        Act::Get => Op::Get { key },
        Act::Set(_) => set(Condition::Always),
        Act::SetIfAbsent(_) => set(Condition::IfAbsent),
        Act::Del => Op::Del { key },
        Act::Incr(by) => Op::IncrBy { key, by },
        Act::Append(_) => Op::Append { key, value },
        Act::GetDel => Op::GetDel { key },
    }
}
