//! A few members of one group that talk at once and lose nothing, with a directory that does as it is
//! asked.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use staves_group::{DirectoryCall, Effects, Event, GroupStep, Member, Options};
use staves_model::{
    Epoch, Group, GroupId, Incarnation, LastOpen, MemberId, MemberSlot, NodeId, PoolId, Revision,
    Time,
};
use staves_store::{Arena, Budget, EXTENT_BYTES};
use staves_wire::group::{GroupEnvelope, GroupMessage, Run, RunKind};

/// Extents of each member's arena.
const EXTENTS: u32 = 16;

pub fn options() -> Options {
    Options {
        log_bytes_max: 16 << 10,
        message_bytes_max: 4 << 10,
        ..Options::default()
    }
}

/// A node's life in these tests: node n is in its life 10 n.
pub fn life(node: u64) -> staves_model::Member {
    staves_model::Member {
        id: MemberId::new(NodeId(node), Incarnation(10 * node)),
        complete: true,
    }
}

/// Members 1, 2, ... in slots 0, 1, ... of group 1.
pub struct TestGroup {
    pub members: Vec<Member>,
    /// The extents that each member may take of its arena.
    pub budgets: Vec<Arc<Budget>>,
    pub group: Group,
    pub now: Time,
    /// Messages that were sent to nodes that are no members here, or were kept back.
    pub kept_back: Vec<(NodeId, GroupEnvelope)>,
    /// Calls to the directory that are not done yet.
    pub calls: Vec<DirectoryCall>,
    /// Messages to this node are kept back.
    pub silent: Option<NodeId>,
    /// Pages for joiners are kept back.
    pub keep_parts: bool,
    /// The pages that all members together may have asked for.
    pub backfill_budget: Arc<Budget>,
    /// Pages that each node gave to joiners.
    pub given: BTreeMap<NodeId, usize>,
}

impl TestGroup {
    /// A group m+k, open and empty, and so many nodes more.
    pub fn new(m: u8, k: u8, more: u8) -> TestGroup {
        TestGroup::with(options(), m, k, more)
    }

    /// The same, with other options.
    pub fn with(options: Options, m: u8, k: u8, more: u8) -> TestGroup {
        let width = m + k;
        let group = Group {
            id: GroupId(1),
            pool: PoolId(1),
            bucket: 0,
            m,
            epoch: Epoch(1),
            open: false,
            coordinator: MemberSlot(0),
            members: (1..=u64::from(width)).map(|n| Some(life(n))).collect(),
            kept: vec![None; usize::from(width)],
            fresh: true,
            last_open: LastOpen::default(),
            lost: false,
            revision: Revision(1),
        };
        let budgets: Vec<Arc<Budget>> = (0..width + more)
            .map(|_| Arc::new(Budget::new(EXTENTS)))
            .collect();
        let backfill_budget = options.backfill_budget.clone();
        let member = |n: u64| {
            let arena = Arena::new(u64::from(EXTENTS) * EXTENT_BYTES as u64).expect("memory");
            let budget = budgets[n as usize - 1].clone();
            Member::new(options.clone(), group.id, life(n).id, arena, budget)
        };
        let mut cluster = TestGroup {
            members: (1..=u64::from(width + more)).map(member).collect(),
            budgets,
            group,
            now: Time::from_millis(10_000),
            kept_back: Vec::new(),
            calls: Vec::new(),
            silent: None,
            keep_parts: false,
            backfill_budget,
            given: BTreeMap::new(),
        };
        cluster.tell_map();
        cluster.ticks(2);
        assert!(cluster.group.open, "the first epoch opens");
        cluster
    }

    /// Steps one member, and everything that follows from it.
    pub fn step(&mut self, index: usize, event: Event) {
        let mut out = Effects::default();
        self.members[index].step(self.now, event, &mut out, &mut |_, _| {});
        self.carry(out);
    }

    /// Carries effects out until nothing is under way.
    pub fn carry(&mut self, out: Effects) {
        let mut under_way: VecDeque<(NodeId, GroupEnvelope)> = out.sends.into();
        let mut calls = out.directory;
        while let Some((to, envelope)) = under_way.pop_front() {
            let index = to.0.wrapping_sub(1) as usize;
            let parts = matches!(envelope.message, GroupMessage::Parts { .. });
            if let GroupMessage::Parts { parts, .. } = &envelope.message {
                *self.given.entry(envelope.from.node).or_default() += parts.len();
            }
            let kept = self.silent == Some(to) || (parts && self.keep_parts);
            if index >= self.members.len() || kept {
                self.kept_back.push((to, envelope));
                continue;
            }
            let mut out = Effects::default();
            let event = Event::Message(envelope);
            self.members[index].step(self.now, event, &mut out, &mut |_, _| {});
            under_way.extend(out.sends);
            calls.extend(out.directory);
        }
        for call in calls {
            self.ask_directory(call);
        }
    }

    fn ask_directory(&mut self, call: DirectoryCall) {
        match call {
            DirectoryCall::Step(GroupStep::Open { epoch, .. })
                if epoch == self.group.epoch && !self.group.open =>
            {
                self.group.open = true;
                self.group.revision.0 += 1;
                self.group.last_open = LastOpen {
                    epoch,
                    members: self.group.members.clone(),
                };
                self.tell_map();
            }
            call => self.calls.push(call),
        }
    }

    /// Tells all members the directory's entry.
    pub fn tell_map(&mut self) {
        for index in 0..self.members.len() {
            self.step(index, Event::Map(Arc::new(self.group.clone())));
        }
    }

    /// Lets 10 ms pass, so many times.
    pub fn ticks(&mut self, count: usize) {
        for _ in 0..count {
            self.now = self.now + Duration::from_millis(10);
            for index in 0..self.members.len() {
                self.step(index, Event::Tick);
            }
        }
    }

    /// The next epoch: the node in a slot is replaced by a new one.
    pub fn replace(&mut self, slot: usize, node: u64) {
        let group = &mut self.group;
        group.epoch = group.epoch.next();
        (group.open, group.fresh) = (false, false);
        group.revision.0 += 1;
        group.kept = (0..group.members.len())
            .map(|s| (s != slot).then_some(MemberSlot(s as u8)))
            .collect();
        group.members[slot] = Some(staves_model::Member {
            complete: false,
            ..life(node)
        });
        group.coordinator = MemberSlot(u8::from(slot == 0));
    }

    /// The next epoch: these nodes join in these slots, in place of whoever was there; all others stay.
    pub fn exchange(&mut self, joiners: &[(usize, u64)]) {
        let group = &mut self.group;
        group.epoch = group.epoch.next();
        (group.open, group.fresh) = (false, false);
        group.revision.0 += 1;
        let end = joiners.iter().map(|(slot, _)| slot + 1).max();
        let end = end.unwrap_or(0).max(group.members.len());
        group.kept = (0..end)
            .map(|s| {
                group
                    .members
                    .get(s)
                    .copied()
                    .flatten()
                    .map(|_| MemberSlot(s as u8))
            })
            .collect();
        group.members.resize(end, None);
        for (slot, node) in joiners {
            group.kept[*slot] = None;
            group.members[*slot] = Some(staves_model::Member {
                complete: false,
                ..life(*node)
            });
        }
        let leader = group.kept.iter().position(Option::is_some);
        group.coordinator = MemberSlot(leader.expect("somebody stays") as u8);
        self.tell_map();
    }

    /// The next epoch: who is listed, and where each is kept from.
    pub fn commit(
        &mut self,
        members: Vec<Option<staves_model::Member>>,
        kept: Vec<Option<MemberSlot>>,
    ) {
        let group = &mut self.group;
        group.epoch = group.epoch.next();
        (group.open, group.fresh) = (false, false);
        group.revision.0 += 1;
        let leader = kept.iter().position(Option::is_some);
        group.coordinator = MemberSlot(leader.expect("somebody stays") as u8);
        (group.members, group.kept) = (members, kept);
        self.tell_map();
    }

    /// Lets time pass until every joiner has said that it is complete, and marks them so.
    pub fn fill(&mut self) {
        for _ in 0..200 {
            self.ticks(1);
            for call in std::mem::take(&mut self.calls) {
                let DirectoryCall::Step(GroupStep::Complete { slot, .. }) = call else {
                    continue;
                };
                let member = self.group.members[slot.index()].as_mut();
                member.expect("who is complete is listed").complete = true;
                self.group.last_open.members = self.group.members.clone();
                self.group.revision.0 += 1;
                self.tell_map();
            }
            if self.group.listed().all(|(_, x)| x.complete) {
                return;
            }
        }
        panic!("joiners do not complete: {:?}", self.group);
    }

    /// Writes bytes at the data bucket of slot 0, and sends them.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> bool {
        self.write_at(0, offset, bytes)
    }

    /// Writes bytes at a node's data bucket, and sends them.
    pub fn write_at(&mut self, index: usize, offset: u64, bytes: &[u8]) -> bool {
        let data = &mut self.members[index];
        if data.usable_extents() == 0 {
            data.want_extents(2);
        }
        let mut out = Effects::default();
        let room = data.serving() && data.usable_extents() > 0;
        let wrote = room && data.admit(128 + bytes.len()).is_ok();
        if wrote {
            let run = Run {
                offset,
                len: bytes.len() as u32,
                kind: RunKind::Bytes,
            };
            data.update(None, Bytes::new(), vec![run], Bytes::copy_from_slice(bytes));
        }
        data.flush(self.now, &mut out);
        self.carry(out);
        wrote
    }

    /// The group's messages that were kept back, and nothing else of them.
    pub fn kept_back_deltas(&mut self) -> usize {
        let deltas = |e: &GroupEnvelope| match &e.message {
            GroupMessage::Deltas { deltas, .. } => deltas.len(),
            _ => 0,
        };
        self.kept_back.drain(..).map(|(_, e)| deltas(&e)).sum()
    }
}
