//! A group of buckets joined by a queue of messages, with a stand-in for the directory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use staves_group::{DirectoryCall, Effects, Event, Member as GroupMember};
use staves_memory::{Answers, Ask, Bucket, Options};
use staves_model::{
    ClientId, Epoch, Group, GroupId, Incarnation, LastOpen, Member, MemberId, MemberSlot, NodeId,
    PoolId, Revision, Time,
};
use staves_store::{Arena, Budget, EXTENT_BYTES};
use staves_wire::ErrorCode;
use staves_wire::cache::Answer;
use staves_wire::group::{GroupEnvelope, RequestId};
use staves_wire::memory::Action;

const GROUP: GroupId = GroupId(1);
const LIFE: Incarnation = Incarnation(1);

pub struct Cluster {
    pub now: Time,
    pub buckets: Vec<Bucket>,
    pub budgets: Vec<Arc<Budget>>,
    pub group: Group,
    net: VecDeque<(NodeId, GroupEnvelope)>,
    /// Messages to and from these nodes are lost.
    pub cut_off: Vec<usize>,
    pub answers: BTreeMap<u64, Answer>,
    next_token: u64,
    /// No lease is granted.
    pub no_lease: bool,
    /// No page comes to who lacks it.
    pub no_parts: bool,
    /// If not 0: messages are lost and reordered at random, from this state on.
    pub weather: u64,
}

pub fn options() -> Options {
    Options {
        grant_wait: Duration::from_millis(60),
        ..Options::default()
    }
}

fn id(node: usize) -> MemberId {
    MemberId::new(NodeId(node as u64), LIFE)
}

fn member(node: usize, complete: bool) -> Option<Member> {
    Some(Member {
        id: id(node),
        complete,
    })
}

impl Cluster {
    /// `nodes` nodes with so many extents each, of which the first `m + k` are members.
    pub fn new(m: u8, k: u8, nodes: usize, extents: u32) -> Cluster {
        let group_options = staves_group::Options {
            log_bytes_max: 300 << 10,
            fetch_pages: 5,
            fetch_window: 2,
            ..staves_group::Options::default()
        };
        let budgets: Vec<_> = (0..nodes).map(|_| Arc::new(Budget::new(extents))).collect();
        let bucket = |node: usize| {
            let arena = Arena::new(u64::from(extents) * EXTENT_BYTES as u64).expect("memory");
            let budget = budgets[node].clone();
            let member = GroupMember::new(group_options.clone(), GROUP, id(node), arena, budget);
            Bucket::new(options(), member)
        };
        let width = usize::from(m + k);
        let group = Group {
            id: GROUP,
            pool: PoolId(1),
            bucket: 0,
            m,
            epoch: Epoch(1),
            open: false,
            leader: MemberSlot(0),
            members: (0..width).map(|n| member(n, true)).collect(),
            kept: vec![None; width],
            fresh: true,
            last_open: LastOpen::default(),
            lost: false,
            revision: Revision(1),
        };
        let mut cluster = Cluster {
            now: Time::from_millis(1000),
            buckets: (0..nodes).map(bucket).collect(),
            budgets,
            group,
            net: VecDeque::new(),
            cut_off: Vec::new(),
            answers: BTreeMap::new(),
            next_token: 0,
            no_lease: false,
            no_parts: false,
            weather: 0,
        };
        cluster.announce();
        cluster.ticks(8);
        assert!(cluster.group.open, "a fresh epoch opens");
        cluster
    }

    /// The node of a data bucket.
    pub fn node_of(&self, slot: u8) -> usize {
        let member = self.group.members[usize::from(slot)].as_ref();
        member.expect("data slots are never vacant").id.node.0 as usize
    }

    /// Commits the next epoch with these nodes in slots 0, 1, ...; those of the last open epoch are kept,
    /// in their slots where m > 1.
    pub fn change(&mut self, nodes: &[usize]) {
        let old = self.group.last_open.clone();
        let kept: Vec<_> = nodes.iter().map(|n| old.slot_of(id(*n))).collect();
        let complete = |kept: &Option<MemberSlot>| {
            let member = kept.and_then(|slot| old.members[slot.index()]);
            member.is_some_and(|m| m.complete)
        };
        self.group.epoch = self.group.epoch.next();
        self.group.revision = self.group.revision.next();
        self.group.open = false;
        self.group.fresh = false;
        let leader = kept.iter().position(complete).expect("somebody is kept");
        self.group.leader = MemberSlot(leader as u8);
        let members = nodes
            .iter()
            .zip(&kept)
            .map(|(n, k)| member(*n, complete(k)));
        self.group.members = members.collect();
        self.group.kept = kept;
        self.announce();
    }

    /// Runs until the epoch is open.
    pub fn open(&mut self) {
        for _ in 0..400 {
            self.tick();
            if self.group.open {
                return;
            }
        }
        panic!("the epoch does not open: {:?}", self.group);
    }

    /// Runs until the epoch is open and every member is complete.
    pub fn settle(&mut self) {
        for _ in 0..1000 {
            self.tick();
            let complete = self.group.members.iter().flatten().all(|m| m.complete);
            if self.group.open && complete {
                self.ticks(8);
                return;
            }
        }
        panic!(
            "the epoch does not open, or a joiner does not complete: {:?}",
            self.group
        );
    }

    pub fn announce(&mut self) {
        let group = Arc::new(self.group.clone());
        for node in 0..self.buckets.len() {
            self.step(node, Event::Map(group.clone()));
        }
    }

    fn step(&mut self, node: usize, event: Event) {
        let (mut effects, mut answers) = (Effects::default(), Answers::new());
        let bucket = &mut self.buckets[node];
        bucket.step(self.now, event, &mut effects, &mut answers);
        self.take(effects, answers);
    }

    fn take(&mut self, effects: Effects, answers: Answers) {
        self.net.extend(effects.sends);
        for (token, answer) in answers {
            let before = self.answers.insert(token, answer);
            assert!(before.is_none(), "token {token} was answered twice");
        }
        for call in effects.directory {
            self.directory(call);
        }
    }

    fn directory(&mut self, call: DirectoryCall) {
        let changed = match call {
            DirectoryCall::Open { epoch, .. } if epoch == self.group.epoch && !self.group.open => {
                self.group.open = true;
                true
            }
            DirectoryCall::Complete { epoch, slot, .. } if epoch == self.group.epoch => {
                let member = self.group.members[slot.index()].as_mut();
                !std::mem::replace(&mut member.expect("it is listed").complete, true)
            }
            _ => false,
        };
        if changed {
            let members = self.group.members.clone();
            self.group.last_open = LastOpen {
                epoch: self.group.epoch,
                members,
            };
            self.group.revision = self.group.revision.next();
            self.announce();
        }
    }

    /// Delivers every message, and those that they cause.
    pub fn deliver(&mut self) {
        // Under weather a message may be sent round for ever; the next tick goes on.
        self.deliver_at_most(4000);
    }

    /// Delivers so many messages; how many there were.
    pub fn deliver_at_most(&mut self, count: usize) -> usize {
        let mut delivered = 0;
        while delivered < count
            && let Some((to, envelope)) = self.net.pop_front()
        {
            delivered += 1;
            if self.weather != 0 {
                match self.random(20) {
                    0 => continue,
                    1..4 => {
                        self.net.push_back((to, envelope));
                        continue;
                    }
                    4 => self.net.push_back((to, envelope.clone())),
                    _ => {}
                }
            }
            let (to, from) = (to.0 as usize, envelope.from.node.0 as usize);
            let parts = matches!(
                envelope.message,
                staves_wire::group::GroupMessage::Parts { .. }
            );
            let lost = self.cut_off.contains(&to) || self.cut_off.contains(&from);
            if !(lost || parts && self.no_parts) {
                self.step(to, Event::Message(envelope));
            }
        }
        delivered
    }

    /// A number below `n` (xorshift), from `weather`.
    pub fn random(&mut self, n: u64) -> u64 {
        let mut x = self.weather;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.weather = x;
        (x >> 11) % n
    }

    pub fn tick(&mut self) {
        self.tick_without_delivery();
        self.deliver();
    }

    pub fn tick_without_delivery(&mut self) {
        self.now = self.now + Duration::from_millis(25);
        for slot in 0..self.group.m {
            let data = self.node_of(slot);
            if self.group.open && !self.no_lease && !self.cut_off.contains(&data) {
                let event = Event::Lease {
                    epoch: self.group.epoch,
                    incarnation: LIFE,
                    clock: self.now,
                };
                self.step(data, event);
            }
        }
        for node in 0..self.buckets.len() {
            self.step(node, Event::Tick);
        }
    }

    pub fn ticks(&mut self, count: usize) {
        for _ in 0..count {
            self.tick();
        }
    }

    /// Submits to a data bucket, and delivers nothing. The token under which the answer will be in
    /// `answers`.
    pub fn submit(&mut self, slot: u8, request: Option<u64>, action: &Action) -> u64 {
        self.submit_at(self.node_of(slot), slot, request, action)
    }

    pub fn submit_at(
        &mut self,
        node: usize,
        slot: u8,
        request: Option<u64>,
        action: &Action,
    ) -> u64 {
        self.next_token += 1;
        let request = request.map(|number| RequestId {
            client: ClientId(1),
            number,
            floor: 0,
        });
        let ask = Ask {
            token: self.next_token,
            request,
            deadline: self.now + Duration::from_secs(2),
        };
        let (mut effects, mut answers) = (Effects::default(), Answers::new());
        let (now, bucket) = (self.now, &mut self.buckets[node]);
        let slot = MemberSlot(slot);
        let answer = bucket.submit(now, ask, slot, action, &mut effects, &mut answers);
        bucket.flush(now, &mut effects);
        self.take(effects, answers);
        if let Some(answer) = answer {
            assert!(self.answers.insert(ask.token, answer).is_none());
        }
        ask.token
    }

    /// Submits and runs until there is an answer.
    pub fn run(&mut self, slot: u8, request: Option<u64>, action: &Action) -> Answer {
        let token = self.submit(slot, request, action);
        self.wait(token)
    }

    pub fn wait(&mut self, token: u64) -> Answer {
        for _ in 0..200 {
            if let Some(answer) = self.answers.remove(&token) {
                return answer;
            }
            self.deliver();
            if !self.answers.contains_key(&token) {
                self.tick();
            }
        }
        panic!("token {token} has no answer after its deadline");
    }

    pub fn write(&mut self, slot: u8, offset: u64, bytes: &[u8]) {
        let answer = self.run(slot, None, &write(offset, bytes));
        assert_eq!(answer, Answer::Ok, "write of {} at {offset}", bytes.len());
    }

    pub fn read(&mut self, slot: u8, offset: u64, len: u32) -> Bytes {
        match self.run(slot, None, &Action::Read { offset, len }) {
            Answer::Value(bytes) => bytes,
            other => panic!("a read is answered {other:?}"),
        }
    }

    pub fn check(&self) {
        for (node, bucket) in self.buckets.iter().enumerate() {
            if let Err(what) = bucket.check() {
                panic!("node {node}: {what}");
            }
        }
    }

    /// I4: at rest, parity is the sum of the data, byte for byte (first parity bucket; m = 1: a copy).
    pub fn check_code(&self) {
        let m = usize::from(self.group.m);
        let pages = |slot: usize| {
            let node = self.group.members[slot].as_ref()?.id.node.0 as usize;
            self.buckets[node].member().pages()
        };
        for parity in m..self.group.members.len() {
            let Some(parity) = pages(parity) else {
                continue;
            };
            let end = (0..m).filter_map(pages).map(|p| p.end_page()).max();
            for page in 0..end.unwrap_or(0).max(parity.end_page()) {
                let mut sum = vec![0; staves_model::PAGE_BYTES];
                for data in (0..m).filter_map(pages).filter_map(|p| p.page(page)) {
                    sum.iter_mut().zip(data).for_each(|(s, d)| *s ^= d);
                }
                let zero = vec![0; staves_model::PAGE_BYTES];
                assert!(parity.page(page).unwrap_or(&zero) == sum, "page {page}");
            }
            if m > 1 {
                break;
            }
        }
    }
}

pub fn write(offset: u64, bytes: &[u8]) -> Action {
    Action::Write {
        offset,
        bytes: Bytes::copy_from_slice(bytes),
    }
}

pub fn code(answer: &Answer) -> Option<ErrorCode> {
    match answer {
        Answer::Error(code, _) => Some(*code),
        _ => None,
    }
}

/// Bytes that tell where they come from.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (seed.wrapping_mul(31).wrapping_add(i * 7 + i / 251)) as u8)
        .collect()
}
