//! A group of buckets joined by a queue of messages, with a stand-in for the directory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use staves_cache::{Ask, Bucket, BucketEffects, Options, Refused};
use staves_group::{DirectoryCall, Event, Member as GroupMember};
use staves_model::{
    ClientId, Epoch, Group, GroupId, Incarnation, LastOpen, Member, MemberId, MemberSlot, NodeId,
    PoolId, Revision, Time,
};
use staves_store::{Arena, Budget, EXTENT_BYTES};
use staves_wire::cache::{Answer, Op};
use staves_wire::group::{GroupEnvelope, RequestId};

const GROUP: GroupId = GroupId(1);

pub type Result = std::result::Result<Answer, Refused>;

pub struct Cluster {
    pub now: Time,
    pub buckets: Vec<Bucket>,
    pub budgets: Vec<Arc<Budget>>,
    group: Group,
    net: VecDeque<(NodeId, GroupEnvelope)>,
    /// Messages to these nodes are lost.
    pub cut_off: Vec<usize>,
    pub answers: BTreeMap<u64, Result>,
    /// The tokens in the order of their answers.
    pub order: Vec<u64>,
    next_token: u64,
    /// No lease is granted.
    pub no_lease: bool,
    /// If not 0: messages are lost and reordered at random, from this state on.
    pub weather: u64,
}

pub fn small_options() -> Options {
    Options {
        value_bytes_max: 4 << 20,
        inline_bytes_max: 8 << 10,
        chunk_bytes: 6000,
        chunks_per_step: 8,
        grant_wait: Duration::from_millis(60),
        ..Options::default()
    }
}

fn id(node: usize) -> MemberId {
    MemberId::new(NodeId(node as u64), Incarnation(1))
}

fn member(node: usize, complete: bool) -> Option<Member> {
    Some(Member {
        id: id(node),
        complete,
    })
}

impl Cluster {
    /// One data bucket and `k` copies, open and empty, with so many extents each.
    pub fn new(k: usize, extents: u32, options: Options) -> Cluster {
        Cluster::with(k, k + 1, extents, options, staves_group::Options::default())
    }

    /// `nodes` nodes, of which the first `k + 1` are members.
    pub fn with(
        k: usize,
        nodes: usize,
        extents: u32,
        options: Options,
        group_options: staves_group::Options,
    ) -> Cluster {
        let budgets: Vec<_> = (0..nodes).map(|_| Arc::new(Budget::new(extents))).collect();
        let bucket = |node: usize| {
            let arena = Arena::new(u64::from(extents) * EXTENT_BYTES as u64).unwrap();
            let budget = budgets[node].clone();
            let member = GroupMember::new(group_options.clone(), GROUP, id(node), arena, budget);
            Bucket::new(options.clone(), member)
        };
        let group = Group {
            id: GROUP,
            pool: PoolId(1),
            bucket: 0,
            m: 1,
            epoch: Epoch(1),
            open: false,
            leader: MemberSlot(0),
            members: (0..=k).map(|n| member(n, true)).collect(),
            kept: vec![None; k + 1],
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
            order: Vec::new(),
            next_token: 0,
            no_lease: false,
            weather: 0,
        };
        cluster.announce();
        cluster.ticks(8);
        assert!(cluster.group.open, "a fresh epoch opens");
        cluster
    }

    pub fn data(&self) -> usize {
        self.group.members[0].as_ref().unwrap().id.node.0 as usize
    }

    pub fn bucket(&mut self) -> &mut Bucket {
        let data = self.data();
        &mut self.buckets[data]
    }

    /// Commits the next epoch with these nodes in slots 0, 1, ...; those of the last open epoch are kept.
    pub fn change(&mut self, nodes: &[usize]) {
        let old = self.group.last_open.clone();
        let kept: Vec<_> = nodes.iter().map(|n| old.slot_of(id(*n))).collect();
        self.group.epoch = self.group.epoch.next();
        self.group.revision = self.group.revision.next();
        self.group.open = false;
        self.group.fresh = false;
        self.group.leader = MemberSlot(kept.iter().position(Option::is_some).unwrap() as u8);
        self.group.members = nodes
            .iter()
            .zip(&kept)
            .map(|(n, k)| member(*n, k.is_some()))
            .collect();
        self.group.kept = kept;
        self.announce();
    }

    /// Commits an epoch that starts from nothing, on the same nodes.
    pub fn start_afresh(&mut self) {
        self.group.epoch = self.group.epoch.next();
        self.group.revision = self.group.revision.next();
        self.group.open = false;
        self.group.fresh = true;
        self.group.leader = MemberSlot(0);
        self.group.kept.fill(None);
        self.announce();
    }

    /// Runs until the epoch is open and every member is complete.
    pub fn settle(&mut self) {
        for _ in 0..400 {
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

    pub fn step(&mut self, node: usize, event: Event) {
        let mut out = BucketEffects::default();
        self.buckets[node].step(self.now, event, &mut out);
        self.take(out);
    }

    pub fn take(&mut self, out: BucketEffects) {
        self.net.extend(out.effects.sends);
        for (token, answer) in out.answers {
            let before = self.answers.insert(token, answer);
            self.order.push(token);
            assert!(before.is_none(), "token {token} was answered twice");
        }
        for call in out.effects.directory {
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
                let member = self.group.members[slot.index()].as_mut().unwrap();
                !std::mem::replace(&mut member.complete, true)
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
        let mut left = 2000;
        while left > 0
            && let Some((to, envelope)) = self.net.pop_front()
        {
            left -= 1;
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
            if !self.cut_off.contains(&to) && !self.cut_off.contains(&from) {
                self.step(to, Event::Message(envelope));
            }
        }
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
        self.now = self.now + Duration::from_millis(25);
        let data = self.data();
        if self.group.open && !self.no_lease && !self.cut_off.contains(&data) {
            let (epoch, clock) = (self.group.epoch, self.now);
            self.step(
                data,
                Event::Lease {
                    epoch,
                    incarnation: Incarnation(1),
                    clock,
                },
            );
        }
        for node in 0..self.buckets.len() {
            self.step(node, Event::Tick);
        }
        self.deliver();
    }

    pub fn ticks(&mut self, count: usize) {
        for _ in 0..count {
            self.tick();
        }
    }

    pub fn ask(&mut self, request: Option<u64>) -> Ask {
        self.next_token += 1;
        let request = request.map(|number| RequestId {
            client: ClientId(1),
            number,
            floor: 0,
        });
        let deadline = self.now + Duration::from_secs(2);
        Ask {
            token: self.next_token,
            request,
            retry: false,
            deadline,
        }
    }

    /// Submits, and delivers nothing. The token under which the answer will be in `answers`.
    pub fn submit(&mut self, request: Option<u64>, op: &Op<'_>) -> u64 {
        let ask = self.ask(request);
        let mut out = BucketEffects::default();
        let now = self.now;
        let bucket = self.bucket();
        let answer = bucket.submit(now, ask, op, &mut out);
        bucket.flush(now, &mut out);
        self.take(out);
        if let Some(answer) = answer {
            self.order.push(ask.token);
            assert!(self.answers.insert(ask.token, Ok(answer)).is_none());
        }
        ask.token
    }

    /// Submits and runs until there is an answer.
    pub fn run(&mut self, request: Option<u64>, op: &Op<'_>) -> Result {
        let token = self.submit(request, op);
        self.wait(token)
    }

    pub fn wait(&mut self, token: u64) -> Result {
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

    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result {
        self.run(None, &set(key, value))
    }

    pub fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        match self.run(None, &Op::Get { key }) {
            Ok(Answer::Nil) => None,
            Ok(Answer::Value(bytes)) => Some(bytes.to_vec()),
            other => panic!("GET is answered {other:?}"),
        }
    }

    pub fn check(&self) {
        for (node, bucket) in self.buckets.iter().enumerate() {
            if let Err(what) = bucket.check() {
                panic!("node {node}: {what}");
            }
        }
    }
}

pub fn set<'a>(key: &'a [u8], value: &'a [u8]) -> Op<'a> {
    Op::Set {
        key,
        value,
        condition: Default::default(),
        get_old: false,
    }
}

/// Bytes that tell where they come from.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (seed.wrapping_mul(31).wrapping_add(i * 7 + i / 251)) as u8)
        .collect()
}
