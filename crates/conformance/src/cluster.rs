//! A group of buckets joined by a queue of messages, with a stand-in for the directory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use staves_group::{DirectoryCall, Event, GroupStep, Member as GroupMember};
use staves_model::{
    ClientId, Epoch, Group, GroupId, Incarnation, LastOpen, Member, MemberId, MemberSlot, NodeId,
    PAGE_BYTES, PoolId, Revision, Time,
};
use staves_service::{Bucket, BucketEffects, OpHeader, Refused, Service};
use staves_store::{Arena, Budget, EXTENT_BYTES};
use staves_wire::group::{GroupEnvelope, GroupMessage, RequestId};
use staves_wire::service::Answer;

const GROUP: GroupId = GroupId(1);
const LIFE: Incarnation = Incarnation(1);
const TICK: Duration = Duration::from_millis(25);
/// Under weather a message may be sent round for ever; the next tick goes on.
const DELIVERIES_MAX: usize = 4000;

/// The reply to an operation.
pub type Reply = Result<Answer, Refused>;

/// Buckets of one group on nodes 0, 1, ..., in one thread.
pub struct TestCluster<S: Service> {
    /// The clock of every node.
    pub now: Time,
    /// The bucket of each node, a member or not.
    pub buckets: Vec<Bucket<S>>,
    /// The memory of each node.
    pub budgets: Vec<Arc<Budget>>,
    /// The directory's entry.
    pub group: Group,
    /// Nodes whose messages are lost, both ways.
    pub cut_off: Vec<usize>,
    /// Replies by token.
    pub answers: BTreeMap<u64, Reply>,
    /// The tokens in the order of their replies.
    pub order: Vec<u64>,
    /// No lease is granted.
    pub no_lease: bool,
    /// No page reaches a member that lacks it.
    pub no_parts: bool,
    /// The bytes of values for which each step has memory.
    pub value_bytes_max: Option<usize>,
    /// If not 0: messages are lost and reordered at random, from this state on.
    pub weather: u64,
    messages: VecDeque<(NodeId, GroupEnvelope)>,
    next_token: u64,
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

impl<S: Service> TestCluster<S> {
    /// `nodes` nodes with so many extents each, of which the first `m + k` are members of an open epoch.
    pub fn new(
        (m, k): (u8, u8),
        nodes: usize,
        extents: u32,
        options: staves_group::Options,
        bucket: impl Fn(GroupMember) -> Bucket<S>,
    ) -> TestCluster<S> {
        let budgets: Vec<_> = (0..nodes).map(|_| Arc::new(Budget::new(extents))).collect();
        let at = |node: usize| {
            let arena = Arena::new(u64::from(extents) * EXTENT_BYTES as u64).expect("memory");
            let budget = budgets[node].clone();
            bucket(GroupMember::new(
                options.clone(),
                GROUP,
                id(node),
                arena,
                budget,
            ))
        };
        let width = usize::from(m + k);
        let group = Group {
            id: GROUP,
            pool: PoolId(1),
            bucket: 0,
            m,
            epoch: Epoch(1),
            open: false,
            coordinator: MemberSlot(0),
            members: (0..width).map(|n| member(n, true)).collect(),
            kept: vec![None; width],
            fresh: true,
            last_open: LastOpen::default(),
            lost: false,
            revision: Revision(1),
        };
        let mut cluster = TestCluster {
            now: Time::from_millis(1000),
            buckets: (0..nodes).map(at).collect(),
            budgets,
            group,
            cut_off: Vec::new(),
            answers: BTreeMap::new(),
            order: Vec::new(),
            no_lease: false,
            no_parts: false,
            value_bytes_max: None,
            weather: 0,
            messages: VecDeque::new(),
            next_token: 0,
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

    /// The first data bucket.
    pub fn bucket(&mut self) -> &mut Bucket<S> {
        let data = self.node_of(0);
        &mut self.buckets[data]
    }

    /// Commits the next epoch with these nodes in slots 0, 1, ...; those of the last open epoch are kept,
    /// in their slots where m > 1.
    pub fn change(&mut self, nodes: &[usize]) {
        let old = self.group.last_open.clone();
        let slot = |node: &usize| old.slot_of(id(*node));
        let kept: Vec<_> = nodes.iter().map(slot).collect();
        let complete = |kept: &Option<MemberSlot>| {
            let member = kept.and_then(|slot| old.members[slot.index()]);
            member.is_some_and(|m| m.complete)
        };
        let coordinator = kept.iter().position(complete).expect("a member is kept");
        let members = nodes.iter().zip(&kept);
        self.group.members = members.map(|(n, k)| member(*n, complete(k))).collect();
        self.group.kept = kept;
        self.group.coordinator = MemberSlot(coordinator as u8);
        self.next_epoch(false);
    }

    /// Commits an epoch that starts from nothing, on the same nodes.
    pub fn start_afresh(&mut self) {
        self.group.coordinator = MemberSlot(0);
        self.group.kept.fill(None);
        self.next_epoch(true);
    }

    fn next_epoch(&mut self, fresh: bool) {
        self.group.epoch = self.group.epoch.next();
        self.group.open = false;
        self.group.fresh = fresh;
        self.revise();
    }

    /// Announces the entry under a new revision.
    pub fn revise(&mut self) {
        self.group.revision = self.group.revision.next();
        self.announce();
    }

    /// Sends the entry to every node.
    pub fn announce(&mut self) {
        let group = Arc::new(self.group.clone());
        for node in 0..self.buckets.len() {
            self.step(node, Event::Map(group.clone()));
        }
    }

    /// Runs until the epoch is open.
    pub fn open(&mut self) {
        self.run_until("the epoch does not open", |group| group.open);
    }

    /// Runs until the epoch is open and every member is complete.
    pub fn settle(&mut self) {
        let why = "the epoch does not open, or a joiner does not complete";
        self.run_until(why, |group| {
            group.open && group.members.iter().flatten().all(|m| m.complete)
        });
        self.ticks(8);
    }

    fn run_until(&mut self, why: &str, done: impl Fn(&Group) -> bool) {
        for _ in 0..1000 {
            self.tick();
            if done(&self.group) {
                return;
            }
        }
        panic!("{why}: {:?}", self.group);
    }

    /// Steps one bucket.
    pub fn step(&mut self, node: usize, event: Event) {
        let mut out = BucketEffects::within(self.value_bytes_max);
        self.buckets[node].step(self.now, event, &mut out);
        self.take(out);
    }

    fn take(&mut self, out: BucketEffects) {
        self.messages.extend(out.effects.sends);
        for (token, answer) in out.answers {
            let before = self.answers.insert(token, answer);
            self.order.push(token);
            assert!(before.is_none(), "token {token} was answered twice");
        }
        for call in out.effects.directory {
            self.directory(&call);
        }
    }

    fn directory(&mut self, call: &DirectoryCall) {
        let changed = match call {
            DirectoryCall::Step(GroupStep::Open { epoch, .. }) if *epoch == self.group.epoch => {
                !std::mem::replace(&mut self.group.open, true)
            }
            DirectoryCall::Step(GroupStep::Complete { epoch, slot, .. })
                if *epoch == self.group.epoch =>
            {
                let member = self.group.members[slot.index()].as_mut();
                !std::mem::replace(&mut member.expect("it is listed").complete, true)
            }
            _ => false,
        };
        if changed {
            self.group.last_open = LastOpen {
                epoch: self.group.epoch,
                members: self.group.members.clone(),
            };
            self.revise();
        }
    }

    /// Delivers every message, and those that they cause.
    pub fn deliver(&mut self) {
        self.deliver_at_most(DELIVERIES_MAX);
    }

    /// Delivers at most so many messages; the number delivered.
    pub fn deliver_at_most(&mut self, count: usize) -> usize {
        let mut delivered = 0;
        while delivered < count
            && let Some((to, envelope)) = self.messages.pop_front()
        {
            delivered += 1;
            if self.weather != 0 {
                match self.random(20) {
                    0 => continue,
                    1..4 => {
                        self.messages.push_back((to, envelope));
                        continue;
                    }
                    4 => self.messages.push_back((to, envelope.clone())),
                    _ => {}
                }
            }
            let (to, from) = (to.0 as usize, envelope.from.node.0 as usize);
            let parts = matches!(envelope.message, GroupMessage::Parts { .. });
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

    /// Moves the clock, grants leases, ticks every node and delivers.
    pub fn tick(&mut self) {
        self.tick_without_delivery();
        self.deliver();
    }

    /// As [`TestCluster::tick`], and delivers nothing.
    pub fn tick_without_delivery(&mut self) {
        self.now = self.now + TICK;
        for slot in 0..self.group.m {
            let data = self.node_of(slot);
            if self.group.open && !self.no_lease && !self.cut_off.contains(&data) {
                let lease = Event::Lease {
                    epoch: self.group.epoch,
                    incarnation: LIFE,
                    clock: self.now,
                };
                self.step(data, lease);
            }
        }
        for node in 0..self.buckets.len() {
            let rests = self.buckets[node].at_rest();
            (!rests).then(|| self.step(node, Event::Tick));
        }
    }

    /// So many ticks.
    pub fn ticks(&mut self, count: usize) {
        (0..count).for_each(|_| self.tick());
    }

    /// Submits an operation to the data bucket in a slot, and delivers nothing; the token of its reply.
    pub fn submit_to(&mut self, slot: u8, request: Option<u64>, op: S::Op<'_>) -> u64 {
        self.submit_at(self.node_of(slot), slot, request, op)
    }

    /// The same at any node.
    pub fn submit_at(&mut self, node: usize, slot: u8, request: Option<u64>, op: S::Op<'_>) -> u64 {
        self.next_token += 1;
        let request = request.map(|number| RequestId {
            client: ClientId(1),
            number,
            floor: 0,
        });
        let header = OpHeader {
            token: self.next_token,
            slot: MemberSlot(slot),
            request,
            deadline: self.now + Duration::from_secs(2),
        };
        let mut out = BucketEffects {
            value_bytes_max: self.value_bytes_max,
            ..BucketEffects::default()
        };
        let bucket = &mut self.buckets[node];
        let reply = bucket.submit(self.now, header, op, &mut out);
        bucket.flush(self.now, &mut out);
        out.answers
            .extend(reply.transpose().map(|reply| (header.token, reply)));
        self.take(out);
        header.token
    }

    /// Runs until there is a reply.
    pub fn wait_for(&mut self, token: u64) -> Reply {
        for _ in 0..200 {
            if let Some(reply) = self.answers.remove(&token) {
                return reply;
            }
            self.deliver();
            if !self.answers.contains_key(&token) {
                self.tick();
            }
        }
        panic!("token {token} has no reply after its deadline");
    }

    /// Checks the service's invariants at every node.
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
                let mut sum = vec![0; PAGE_BYTES];
                for data in (0..m).filter_map(pages).filter_map(|p| p.page(page)) {
                    sum.iter_mut().zip(data).for_each(|(s, d)| *s ^= d);
                }
                let zero = vec![0; PAGE_BYTES];
                assert!(parity.page(page).unwrap_or(&zero) == sum, "page {page}");
            }
            if m > 1 {
                break;
            }
        }
    }
}
