//! The memory service at a simulated node: requests in, answers out, and what must hold of both.

use bytes::Bytes;
use staves_group::Event;
use staves_model::{CHUNK_BYTES, GroupId};
use staves_service::{Ask, BucketEffects, Refused};
use staves_wire::memory::Action;
use staves_wire::service::Answer;

use crate::event::{MemoryRequest, Packet};
use crate::kv::{Open, Seat};
use crate::memory::MemoryOperation;
use crate::memory_history::{Act, WORDS};
use crate::world::World;

/// What a check of one bucket costs is a look at its table; so only each so many steps.
const CHECK_EVERY: u64 = 16;

impl World {
    pub(crate) fn step_memory(&mut self, node: usize, event: Event) {
        let Some(Seat::Memory(mut bucket)) = self.nodes[node].member.take() else {
            return;
        };
        let now = self.nodes[node].clock(self.now);
        let tick = matches!(event, Event::Tick);
        let mut out = BucketEffects::default();
        bucket.step(now, event, &mut out);
        self.nodes[node].member = Some(Seat::Memory(bucket));
        self.after_memory(node, out);
        self.check_lost(node);
        if tick {
            self.check_memory_deadlines(node);
        }
    }

    pub(crate) fn request_memory(&mut self, node: usize, r: &MemoryRequest) {
        let node = self.answering(node, self.stream_of(r));
        let Some(Seat::Memory(bucket)) = &self.nodes[node].member else {
            return;
        };
        // Of a region that is no more, or that this node does not know yet.
        if bucket.member().id() != r.group {
            return self.cover.count("memory: another group asked for");
        }
        let Some(memory) = self.memory.as_mut() else {
            return;
        };
        let asked = &memory.history[r.operation];
        let region = &memory.regions[asked.region];
        let place = region.place(asked.chunk * CHUNK_BYTES, self.m as u8);
        let place = place.expect("clients ask within the region");
        let action = action_of(asked, place.offset);
        memory.tokens += 1;
        let now = self.nodes[node].clock(self.now);
        let ask = Ask {
            token: memory.tokens,
            slot: place.slot,
            request: action.is_write().then_some(r.id),
            deadline: now + std::time::Duration::from_millis(40 + self.rng.below(400)),
        };
        let open = Open {
            client: r.client,
            number: r.id.number,
            attempt: r.attempt,
            operation: r.operation,
            deadline: ask.deadline,
        };
        memory.open.insert((node, ask.token), open);
        let Some(Seat::Memory(mut bucket)) = self.nodes[node].member.take() else {
            return;
        };
        let mut out = BucketEffects::default();
        let answer = bucket.submit(now, ask, &action, &mut out);
        if self.rng.chance(900) {
            bucket.flush(now, &mut out);
        }
        self.nodes[node].member = Some(Seat::Memory(bucket));
        let answer = answer.transpose();
        out.answers.extend(answer.map(|a| (ask.token, a)));
        self.after_memory(node, out);
    }

    // The data bucket that a request is for.
    fn stream_of(&self, r: &MemoryRequest) -> usize {
        let place = self.memory.as_ref().and_then(|memory| {
            let asked = &memory.history[r.operation];
            let region = &memory.regions[asked.region];
            region.place(asked.chunk * CHUNK_BYTES, self.m as u8)
        });
        place.map_or(0, |place| place.slot.index())
    }

    fn after_memory(&mut self, node: usize, out: BucketEffects) {
        self.after_step(node);
        for (token, answer) in out.answers {
            self.answer_memory(node, token, answer);
        }
        self.carry_out(node, out.effects);
        let Some(Seat::Memory(bucket)) = &self.nodes[node].member else {
            return;
        };
        if let Err(what) = bucket.check()
            && self.steps.is_multiple_of(CHECK_EVERY)
        {
            let slot = bucket.member().slot();
            self.violation(format!("table of node {node} ({slot:?}): {what}"));
        }
    }

    fn answer_memory(&mut self, node: usize, token: u64, answer: Result<Answer, Refused>) {
        let Some(memory) = self.memory.as_mut() else {
            return;
        };
        let Some(open) = memory.open.remove(&(node, token)) else {
            return self.violation(format!(
                "node {node} answers token {token} again, or nobody: {answer:?}"
            ));
        };
        let answer = match answer {
            Ok(answer) => answer,
            // The client asks again.
            Err(why) => {
                return self.cover.count(match why {
                    Refused::NotServing => "memory: not serving",
                    Refused::Interrupted => "memory: interrupted",
                    Refused::Busy => "memory: busy",
                    Refused::Deadline => "memory: deadline",
                });
            }
        };
        let act = memory.history[open.operation].act;
        if matches!((act, &answer), (Act::Read { .. }, Answer::Value(_))) {
            self.check_read(node);
        }
        let (number, attempt, life) = (open.number, open.attempt, self.life());
        let answer = Packet::KvAnswer {
            number,
            life,
            attempt,
            answer,
        };
        self.send(node, open.client, answer);
    }

    // Each request is answered or refused by its deadline, at the latest with the next tick.
    fn check_memory_deadlines(&mut self, node: usize) {
        let now = self.nodes[node].clock(self.now);
        let Some(memory) = &self.memory else { return };
        let of_node = memory.open.range((node, 0)..=(node, u64::MAX));
        let late = of_node.filter(|(_, o)| o.deadline <= now).map(|(k, _)| k.1);
        if let Some(token) = late.min() {
            self.violation(format!(
                "node {node} has not answered token {token} by its deadline"
            ));
        }
    }

    // DESIGN section 9: more lost than the scheme bears is said, and nobody is let wait for what may never
    // come. Who waits for stability has been served already.
    fn check_lost(&mut self, node: usize) {
        let Some(Seat::Memory(bucket)) = &self.nodes[node].member else {
            return;
        };
        let member = bucket.member();
        if !member.is_lost() || !member.serving() {
            return;
        }
        let (parked, missing) = (bucket.parked(), member.progress().0);
        self.cover.count(match missing {
            0 => "memory: a lost group's data bucket, whole",
            _ => "memory: a lost group's data bucket, with pages missing",
        });
        if parked > 0 {
            self.violation(format!(
                "R14 {parked} requests wait at node {node}, whose group is lost, with {missing} pages missing"
            ));
        }
    }

    /// A node hears of a group that is newer than the one whose bucket it holds: it lets go of that.
    pub(crate) fn take_seat(&mut self, node: usize, group: GroupId) {
        let n = &mut self.nodes[node];
        let Some(Seat::Memory(bucket)) = &n.member else {
            return;
        };
        if bucket.member().id() >= group {
            return;
        }
        n.member = None;
        self.forget_tokens(node);
        self.cover
            .count("memory: a node lets go of a deleted region");
        self.make_seat(node, group);
    }
}

fn action_of(asked: &MemoryOperation, chunk: u64) -> Action {
    let at = |word: usize| chunk + WORDS[word];
    match asked.act {
        Act::Read { from, to } => Action::Read {
            offset: at(from),
            len: (WORDS[to] + 8 - WORDS[from]) as u32,
        },
        Act::Write { from, to, value } => {
            let words = (WORDS[to] + 8 - WORDS[from]) / 8;
            let bytes: Vec<u8> = (0..words).flat_map(|_| value.to_le_bytes()).collect();
            Action::Write {
                offset: at(from),
                bytes: Bytes::from(bytes),
            }
        }
        Act::Swap {
            word,
            expected,
            new,
        } => Action::CompareSwap {
            offset: at(word),
            expected,
            new,
        },
        Act::Add { word, by } => Action::FetchAdd {
            offset: at(word),
            by,
        },
    }
}
