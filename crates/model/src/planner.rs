//! The planner: proposals of the directory's leader for takeovers, repairs and moves (rows D5, X2, X3, X5).
//!
//! **Path of the data.** Each tick, and at each change of the map, [`Planner::step`] looks at every group
//! and decides at most one next epoch for it; `planner/plan.rs` holds those decisions as plain functions
//! of the map. What is urgent (somebody in the group died, is stuck, or did not open in time) goes for
//! all groups in one proposal. What can wait (repairs, drains, balance, in this order) goes for
//! so many groups at a time that traffic stays bounded; what only spreads buckets over the nodes goes alone (`planner/balance.rs`).
//!
//! **A move** never lowers what a group bears: the joiner comes in as one parity bucket more (m > 1: as the
//! twin of who goes), is filled under live writes, takes its place when it is complete, and only then
//! the surplus goes. A group that stands where the ring has it is left alone.
//!
//! **At rest**, when no group needs anything, none is looked at until the map changes, a report comes, a cut is seen or a deadline passes
//! (`planner/rest.rs`): what a leader costs does not grow with the groups that are well.
//!
//! **Promises.** A proposal made on a map is one that this map accepts. The planner is a policy: if it
//! errs or forgets (a new leader starts with an empty one), time is lost, never data; the rules are
//! `change/epochs.rs`'s.

mod balance;
mod coordinator;
mod fills;
mod isolated;
mod odd;
mod plan;
mod pool_plan;
mod rest;
mod unflushed;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use self::balance::Load;
use self::fills::{Filling, is_cut_off};
use self::isolated::{sole_source, sole_survivor};
use self::odd::StuckMembers;
use self::plan::{Choice, EpochReason, Fit, View};
use self::pool_plan::PoolPlan;
use self::rest::Rest;
pub use self::unflushed::GIVE_UP_AFTER;
use crate::change::{Change, NewEpoch};
use crate::ids::{Epoch, GroupId, Incarnation, MemberId, MemberSlot, NodeId, PoolId, Revision};
use crate::map::{ClusterMap, Group, Medium, Member, Node, NodeState, Pool};
use crate::mutant::{Mutant, planted};
use crate::reach::{Cuts, NarrowNodes};
use crate::ring::Ring;
use crate::time::Time;

/// The time that the directory waits before a group starts empty, and so the time for which a member may go on
/// without an answer of the directory (GROUP rule 13).
pub const START_EMPTY_AFTER: Duration = Duration::from_secs(5);
/// A report of stuck members that comes so soon after an epoch opened may be older than that; if it still holds it is repeated.
const REPORT_ON_ITS_WAY: Duration = Duration::from_millis(100);
/// A report that is not repeated for so long is over. Of an epoch that is not open it holds as long as that.
const REPORT_KEPT: Duration = Duration::from_secs(2);
/// The time from an epoch's opening, and from the beginning of a cut, after which a member that does not reach one that serves has been reported, or is not.
const TEAR_REPORTED: Duration = Duration::from_secs(2);
/// Most (group, life of a node) pairs remembered as unable.
const UNABLE_MAX: usize = 4096;
/// The number of epochs in vain, 3 to 9 s in all, after which a group that does not open counts no more among those in change.
const TRIES_COUNTED: u64 = 4;
/// The longest time that a raised budget takes to reach all nodes that are well.
const BUDGET_SPREADS: Duration = Duration::from_millis(500);
/// Most groups that begin at a time: a pool or a region may have very many.
const STARTS_AT_ONCE: usize = 64;
/// So many that begin together take twice the time of one, as far as patience goes: nobody waits for bytes that they have.
const STARTS_PER_PATIENCE: u32 = 16;
/// The number of times that the exclusion of a member doubles.
pub const UNABLE_DOUBLINGS_MAX: u32 = 5;

/// If others are too few, a member is chosen again after this part of its exclusion: most that do not
/// follow had a slow moment, and without them a group may be unable to go on.
const BARRED_FOR_PART: u32 = 32;

/// The planner's times and widths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannerConfig {
    /// The time that an epoch may stay committed and not open before another is tried. Doubles with each try.
    pub open_deadline: Duration,
    /// The time for which a group must have been without members before it starts empty, if it may.
    pub start_empty_after: Duration,
    /// Most groups in change at a time for the sake of repairs, drains and balance.
    pub moves_at_once: usize,
    /// The time for which a group that is being filled counts as in change: one that takes longer is slow, or waits for what it
    /// may never get, and others are not kept waiting for it.
    pub fill_patience: Duration,
    /// The time for which a member that could not follow is not chosen again for that group. Doubles each time
    /// that it could not again, up to [`UNABLE_DOUBLINGS_MAX`] times.
    pub unable_for: Duration,
    /// The time for which a group must have been open, unchanged, before a parity bucket is given up so that its node can
    /// take a lost data bucket's place: until that is made anew the group bears one loss less, and nodes
    /// that fail together are not found dead together.
    pub calm_after: Duration,
    /// The time for which a node must have been draining before twins are called in for its members: a node that stops drains for a
    /// moment, to hand over what others hold as well, and nobody is to begin to copy the rest.
    pub twins_after: Duration,
    /// The time before a proposal that has not reached the map is made again.
    pub propose_again: Duration,
    /// The time before a node that is down, holds nothing and cannot come back is forgotten.
    pub forget_after: Duration,
    /// The time for which a node must have been down before a group with write-back goes on without what only it may hold.
    pub give_up_after: Duration,
}

impl Default for PlannerConfig {
    fn default() -> Self {
        PlannerConfig {
            open_deadline: Duration::from_millis(600),
            start_empty_after: START_EMPTY_AFTER,
            moves_at_once: 16,
            fill_patience: Duration::from_secs(60),
            unable_for: Duration::from_secs(30),
            calm_after: Duration::from_secs(5),
            twins_after: Duration::from_secs(3),
            propose_again: Duration::from_millis(300),
            forget_after: Duration::from_secs(60),
            give_up_after: GIVE_UP_AFTER,
        }
    }
}

/// Members that do not follow: the coordinator of an epoch not yet open names those that did not seal or
/// sync; the data bucket of an open one names parity buckets that do not acknowledge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StuckReport {
    /// The group.
    pub group: GroupId,
    /// The epoch in which it was found.
    pub epoch: Epoch,
    /// Their member slots in that epoch.
    pub slots: Vec<MemberSlot>,
    /// The reporter.
    pub reporter: NodeId,
}

/// The planner. Deterministic; bounded by the number of groups and nodes.
#[derive(Clone, Debug)]
pub struct Planner {
    config: PlannerConfig,
    watches: BTreeMap<GroupId, GroupWatch>,
    /// The lives of nodes that could not follow, per group.
    unable: BTreeMap<(GroupId, MemberId), Unable>,
    /// Pairs of nodes that do not reach each other, or too late.
    cuts: Cuts,
    /// Those of them that do not at all: an epoch with both may never open, and nothing is filled from one to the other.
    silent: Cuts,
    narrow: NarrowNodes,
    down_since: BTreeMap<NodeId, Time>,
    draining_since: BTreeMap<NodeId, Time>,
    /// Every node's life and state as last seen: proposals under way rest on them.
    lives: Vec<(NodeId, Incarnation, NodeState)>,
    /// The number of groups whose first epoch is not open yet, as last seen.
    starting: u32,
    /// The address of every node, and the first of its lives that was seen there.
    homes: BTreeMap<NodeId, Home>,
    ring: Ring,
    plans: BTreeMap<PoolId, PoolPlan>,
    rest: Option<Rest>,
}

/// The planner's memory of one group.
#[derive(Clone, Debug, Default)]
struct GroupWatch {
    epoch: Epoch,
    /// Since when that epoch was seen committed and not open.
    waiting_since: Option<Time>,
    /// The members of that epoch that were reported stuck.
    stuck: StuckMembers,
    /// Those who join with that epoch, while it is not open.
    joiners: Vec<MemberId>,
    /// Those with whom an epoch did not open, since one did.
    in_vain: BTreeSet<MemberId>,
    /// Since when that epoch was seen open.
    open_since: Option<Time>,
    /// Since when two members of it have been cut from each other.
    torn_since: Option<Time>,
    /// The members that are being filled, over epochs that go on with them.
    filling: Vec<Filling>,
    /// The last report of stuck members.
    stuck_at: Time,
    /// Since when the group was seen with too few complete members, and in which epoch that was open.
    gone_since: Option<Time>,
    gone_of: Epoch,
    /// The group's revision for which a proposal was made, and when.
    proposed: Option<(Revision, Time)>,
}

/// A node's address, and since which of its lives, as far as this planner has seen, it has had that one.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Home {
    native: String,
    since: Incarnation,
}

/// One life of a node that could not follow a group.
#[derive(Clone, Copy, Debug)]
struct Unable {
    /// Until when it is not chosen at all.
    barred_until: Time,
    /// Until when it is chosen only where others are too few.
    until: Time,
    /// Until when it is remembered, so that the next time is longer.
    known_until: Time,
    times: u32,
}

/// The next step of a group.
enum Need {
    Nothing,
    Epoch(EpochReason, NewEpoch),
    MarkLost,
}

/// The needs of all groups, before they are held to what may be done at once.
#[derive(Default)]
struct Needs {
    urgent: Vec<NewEpoch>,
    /// First epochs of groups.
    starts: Vec<NewEpoch>,
    moves: Vec<(EpochReason, NewEpoch)>,
    lost: Vec<GroupId>,
    /// The number of groups in change, and of those for which a proposal is under way.
    in_change: usize,
    under_way: usize,
}

impl Planner {
    /// A planner that has seen nothing yet. A new directory leader starts with a new one.
    pub fn new(config: PlannerConfig) -> Planner {
        Planner {
            config,
            watches: BTreeMap::new(),
            unable: BTreeMap::new(),
            cuts: BTreeSet::new(),
            silent: BTreeSet::new(),
            narrow: NarrowNodes::default(),
            down_since: BTreeMap::new(),
            draining_since: BTreeMap::new(),
            lives: Vec::new(),
            starting: 0,
            homes: BTreeMap::new(),
            ring: Ring::default(),
            plans: BTreeMap::new(),
            rest: None,
        }
    }

    /// Takes in which nodes do not reach each other (`Detector::cuts`): no node joins a member that it does not reach.
    pub fn see_cuts(&mut self, cuts: Cuts) {
        self.silent = cuts.clone();
        self.cuts = cuts;
    }

    /// Takes in which of the cuts are only late (`Detector::late`): such nodes join where there are no others.
    pub fn see_late(&mut self, late: &Cuts) {
        self.silent = self.cuts.difference(late).copied().collect();
    }

    /// True if a node has reached few others for a while, as of the last step.
    pub fn is_narrow(&self, node: NodeId) -> bool {
        self.narrow.contains(node)
    }

    /// Forgets a proposal that was rejected or lost: the next step may make it anew at once.
    pub fn refused(&mut self) {
        self.rest = None;
        self.watches.values_mut().for_each(|w| w.proposed = None);
    }

    /// Looks at the map, and gives the changes to propose with the revision on which each was decided.
    /// They rest on different things: none of them makes another stale.
    pub fn step(
        &mut self,
        now: Time,
        map: &ClusterMap,
        stuck: &[StuckReport],
    ) -> Vec<(Revision, Change)> {
        if stuck.is_empty() && self.rests(now, map) {
            debug_assert!(self.finds_nothing(now, map), "a deadline was missed");
            return Vec::new();
        }
        self.look(now, map);
        self.narrow.look(now, map, &self.cuts);
        stuck.iter().for_each(|report| self.hear(now, map, report));
        let starting = map.groups.values().filter(|g| starts_now(g)).count();
        self.starting = starting as u32;
        let held_up = |g: &&Group| starts_now(g) && is_held_up(g);
        let starting = starting - map.groups.values().filter(held_up).count();
        let found = self.scan(now, map);
        let nothing = found.is_nothing();
        let Needs {
            mut urgent,
            mut starts,
            mut moves,
            lost,
            in_change,
            under_way,
        } = found;
        // Buckets are spread over the nodes anew when it is plain again who reaches whom.
        moves.retain(|(kind, _)| *kind < EpochReason::Balance || !self.narrow.lapse());
        starts.truncate(STARTS_AT_ONCE.saturating_sub(starting));
        urgent.extend(starts);
        // Stable: equals stay in order of group.
        moves.sort_by_key(|(kind, _)| *kind);
        // One such at a time, and only while nothing else is to be done.
        let busy = in_change + under_way + urgent.len() > 0;
        let from = moves.partition_point(|(kind, _)| *kind < EpochReason::Spread);
        moves.truncate(from.max(usize::from(!busy)));
        let hold_up = |new: &&NewEpoch| map.groups.get(&new.group).is_some_and(is_held_up);
        let held_up = urgent.iter().filter(hold_up).count();
        let budget = self
            .config
            .moves_at_once
            .saturating_sub(in_change + urgent.len() - held_up);
        // A group that is in change already takes up no more by another step.
        let counts = |new: &NewEpoch| {
            map.groups
                .get(&new.group)
                .is_none_or(|g| !in_change_now(map, g))
        };
        let (begin, go_on): (Vec<_>, Vec<_>) =
            moves.into_iter().map(|(_, new)| new).partition(counts);
        urgent.extend(go_on);
        urgent.extend(begin.into_iter().take(budget));
        let changes = self.propose(now, map, urgent, lost);
        if nothing && changes.is_empty() {
            self.rest = self.rest_from(now, map);
        }
        changes
    }

    fn finds_nothing(&self, now: Time, map: &ClusterMap) -> bool {
        self.scan(now, map).is_nothing() && self.node_to_forget(now, map).is_none()
    }

    /// The needs of each group, as the map stands.
    fn scan(&self, now: Time, map: &ClusterMap) -> Needs {
        let (load, mut found) = (Load::of(map), Needs::default());
        for group in map.groups.values() {
            let takes_long = self.fills_for_long(now, group) || is_held_up(group);
            let changes = in_change_now(map, group) && !takes_long;
            found.in_change += usize::from(changes);
            if self.under_way(now, group) {
                found.under_way += 1;
                continue;
            }
            match self.need(now, map, group, &load) {
                Need::Nothing => {}
                // The first start of a group: nobody waits for bytes that it has.
                Need::Epoch(EpochReason::Urgent, new) if group.epoch == Epoch(0) => {
                    found.starts.push(new)
                }
                Need::Epoch(EpochReason::Urgent, new) => found.urgent.push(new),
                Need::Epoch(kind, new) => found.moves.push((kind, new)),
                Need::MarkLost => found.lost.push(group.id),
            }
        }
        found
    }

    fn propose(
        &mut self,
        now: Time,
        map: &ClusterMap,
        epochs: Vec<NewEpoch>,
        lost: Vec<GroupId>,
    ) -> Vec<(Revision, Change)> {
        for id in epochs.iter().map(|n| n.group).chain(lost.iter().copied()) {
            if let (Some(watch), Some(group)) = (self.watches.get_mut(&id), map.groups.get(&id)) {
                watch.proposed = Some((group.revision, now));
            }
        }
        let mut out = Vec::new();
        let commits = unflushed::commits(map, epochs).into_iter();
        out.extend(commits.map(|change| (map.revision, change)));
        if !lost.is_empty() {
            out.push((map.revision, Change::MarkLost { groups: lost }));
        }
        if out.is_empty() {
            // This one rests on the whole map, so it goes alone.
            out.extend(self.node_to_forget(now, map).map(|c| (map.revision, c)));
        }
        out
    }

    /// Brings what is remembered in line with the map, without planning anything. The caller MUST call it
    /// with the map with which its lead began, before a node can join, and before it proposes a death: a
    /// node that was back for a moment has heard the directory again, and the time after which its groups
    /// start empty begins anew.
    pub fn look(&mut self, now: Time, map: &ClusterMap) {
        self.rest = None;
        let lives: Vec<_> = map
            .nodes
            .values()
            .map(|n| (n.id, n.incarnation, n.state))
            .collect();
        if lives != self.lives {
            self.lives = lives;
            self.refused();
        }
        self.homes.retain(|node, _| map.nodes.contains_key(node));
        for node in map.nodes.values() {
            let home = self.homes.get(&node.id);
            if home.is_none_or(|home| home.native != node.native) {
                let (native, since) = (node.native.clone(), node.incarnation);
                self.homes.insert(node.id, Home { native, since });
            }
        }
        self.unable.retain(|(group, member), unable| {
            let known = unable.known_until > now && map.groups.contains_key(group);
            known && map.runs(*member)
        });
        record_since(&mut self.down_since, now, map, |n| {
            n.state == NodeState::Down
        });
        record_since(&mut self.draining_since, now, map, |n| n.draining);
        self.watches.retain(|id, _| map.groups.contains_key(id));
        let mut unable = Vec::new();
        for group in map.groups.values() {
            let watch = self.watches.entry(group.id).or_default();
            if watch.epoch != group.epoch {
                let joiners = std::mem::take(&mut watch.joiners).into_iter();
                let twice = joiners.filter(|id| map.runs(*id) && !watch.in_vain.insert(*id));
                unable.extend(twice.map(|id| (group.id, id)));
                watch.epoch = group.epoch;
                watch.waiting_since = None;
                watch.open_since = None;
                watch.stuck.clear();
                // All others were put out: no other can do its part.
                if let Some(sole) = sole_source(group) {
                    self.unable.remove(&(group.id, sole));
                }
            }
            let over = now.since(watch.stuck_at) >= REPORT_KEPT;
            if group.open && (watch.open_since.is_none() || over) {
                // Whoever was stuck has come along after all.
                watch.stuck.clear();
            }
            watch.look(now, group, &self.silent);
            if watch.gone_of != group.last_open.epoch {
                // Another life perhaps, whose members may have reached the directory until now.
                watch.gone_of = group.last_open.epoch;
                watch.gone_since = None;
            }
            watch.open_since = group.open.then(|| watch.open_since.unwrap_or(now));
            let joins = |x: &Member| !group.open && group.last_open.slot_of(x.id).is_none();
            watch.joiners = group
                .listed()
                .map(|(_, x)| x)
                .filter(|x| joins(x))
                .map(|x| x.id)
                .collect();
            if group.open {
                watch.in_vain.clear();
            }
            let waits = !group.open && group.epoch > Epoch(0);
            watch.waiting_since = waits.then(|| watch.waiting_since.unwrap_or(now));
            let gone = group.last_open.epoch > Epoch(0)
                && map.complete_sources_up(group) < usize::from(group.m);
            watch.gone_since = gone.then(|| watch.gone_since.unwrap_or(now));
        }
        // Once it may have been another's fault.
        unable
            .into_iter()
            .for_each(|key| self.note_unable(now, key));
        self.look_at_ring(now, map);
    }

    fn look_at_ring(&mut self, now: Time, map: &ClusterMap) {
        let raised = |plan: &PoolPlan| {
            let now = map.pools.get(&plan.pool.id);
            now.is_some_and(|p| p.node_budget_bytes > plan.pool.node_budget_bytes)
        };
        let raised: Vec<PoolId> = self
            .plans
            .values()
            .filter(|p| raised(p))
            .map(|p| p.pool.id)
            .collect();
        self.forgive(now, map, &raised);
        if !self.ring.is_of(map) {
            self.ring = Ring::of(map);
            self.plans.clear();
        }
        self.plans
            .retain(|id, plan| map.pools.get(id) == Some(&plan.pool));
        for pool in map.pools.values() {
            let ring = &self.ring;
            self.plans
                .entry(pool.id)
                .or_insert_with(|| PoolPlan::of(ring, pool));
        }
    }

    /// Shortens the exclusion of members that could not follow a group of these pools for want of memory: they can, as
    /// soon as the raised budget has reached them.
    fn forgive(&mut self, now: Time, map: &ClusterMap, pools: &[PoolId]) {
        for ((group, ..), unable) in &mut self.unable {
            let of = map.groups.get(group).map(|g| g.pool);
            if of.is_some_and(|pool| pools.contains(&pool)) {
                unable.times = 0;
                unable.until = unable.until.min(now + BUDGET_SPREADS);
                unable.barred_until = unable.barred_until.min(unable.until);
            }
        }
    }

    /// Takes in a report of stuck members, if who makes it is entitled to and they are still listed.
    fn hear(&mut self, now: Time, map: &ClusterMap, report: &StuckReport) {
        let Some(group) = map.groups.get(&report.group) else {
            return;
        };
        let speaks =
            |s: MemberSlot, x: &Member| x.id.node == report.reporter && speaks_for(group, s);
        if report.epoch != group.epoch || !group.listed().any(|(s, x)| speaks(s, x)) {
            return;
        }
        let open_since = self.watches.get(&group.id).and_then(|w| w.open_since);
        if open_since.is_some_and(|since| now.since(since) < REPORT_ON_ITS_WAY) {
            return; // perhaps of the time before it opened
        }
        let named = |(s, x): &(MemberSlot, &Member)| report.slots.contains(s) && !speaks(*s, x);
        let named: Vec<_> = group.listed().filter(named).collect();
        let Some(watch) = self.watches.get_mut(&group.id) else {
            return;
        };
        let before = watch.stuck.left_out(map, group, &self.cuts);
        let mut news: Vec<_> = named
            .into_iter()
            .filter(|(s, _)| watch.stuck.slots.insert(*s))
            .collect();
        let reporters = || group.listed().filter(|(s, x)| speaks(*s, x));
        watch.stuck_at = now;
        watch.stuck.by.extend(reporters().map(|(s, _)| s));
        let sole = sole_survivor(map, group, &watch.stuck.slots, &self.cuts);
        if let Some(sole) = sole.filter(|_| !news.is_empty()) {
            // Another than the reporter goes on, and they do not reach each other.
            news.extend(reporters());
            news.retain(|(_, x)| x.id != sole);
        } else {
            let out = watch.stuck.left_out(map, group, &self.cuts);
            let new = |s: &MemberSlot| out.contains(s) && !before.contains(s);
            news = group.listed().filter(|(s, _)| new(s)).collect();
        }
        for (_, member) in news {
            self.note_unable(now, (group.id, member.id));
        }
    }

    fn note_unable(&mut self, now: Time, key: (GroupId, MemberId)) {
        let before = self.unable.get(&key).map_or(0, |u| u.times);
        // When very many are unable at once, forgetting one costs a try in vain.
        if before == 0 && self.unable.len() >= UNABLE_MAX {
            self.unable.pop_first();
        }
        let long = self.config.unable_for * (1 << before.min(UNABLE_DOUBLINGS_MAX));
        let until = now + long;
        self.unable.insert(
            key,
            Unable {
                barred_until: now + long / BARRED_FOR_PART,
                until,
                known_until: until + long,
                times: before + 1,
            },
        );
    }

    /// True if a proposal for this group may still be under way.
    fn under_way(&self, now: Time, group: &Group) -> bool {
        let proposed = self.watches.get(&group.id).and_then(|w| w.proposed);
        proposed.is_some_and(|(revision, at)| {
            revision == group.revision && now.since(at) < self.config.propose_again
        })
    }

    fn fit(
        &self,
        now: Time,
        group: GroupId,
        member: MemberId,
        cut_off: impl Fn(&Cuts) -> bool,
    ) -> Fit {
        match self.unable.get(&(group, member)) {
            _ if cut_off(&self.silent) => Fit::Unable,
            Some(u) if u.barred_until > now => Fit::Unable,
            Some(u) if u.until > now => Fit::IfNeeded,
            _ if cut_off(&self.cuts) => Fit::IfNeeded,
            _ if self.narrow.contains(member.node) => Fit::IfNeeded,
            _ => Fit::Able,
        }
    }

    fn need(&self, now: Time, map: &ClusterMap, group: &Group, load: &Load) -> Need {
        let (Some(pool), Some(watch), Some(plan)) = (
            map.pools.get(&group.pool),
            self.watches.get(&group.id),
            self.plans.get(&group.pool),
        ) else {
            return Need::Nothing;
        };
        let order = with_medium(map, pool, plan.order_of(group));
        let order = &order[..];
        let stuck = &watch.stuck.slots;
        let left_out = watch.stuck.left_out(map, group, &self.cuts);
        let stay_behind = if group.m == 1 { stuck } else { &left_out };
        let sole = sole_survivor(map, group, stuck, &self.cuts);
        let cut_off = |cuts: &Cuts, member| {
            let out = stay_behind;
            is_cut_off(cuts, &self.narrow, map, group, out, sole, member)
        };
        let fit = |member| self.fit(now, group.id, member, |cuts| cut_off(cuts, member));
        let choice = Choice::new(map, group, order, pool.scheme.width(), fit);
        let view = View {
            map,
            group,
            pool,
            choice,
            stuck,
            left_out: &left_out,
            sole,
            narrow: &self.narrow,
            cuts: &self.cuts,
            silent: &self.silent,
            starved: &|id| watch.has_starved(now, id),
            drained: &|node| {
                let since = self.draining_since.get(&node);
                since.is_some_and(|since| now.since(*since) >= self.config.twins_after)
            },
            awaited: &|node| {
                let since = self.down_since.get(&node);
                since.is_none_or(|since| now.since(*since) < self.config.give_up_after)
            },
            calm: watch
                .open_since
                .is_some_and(|since| now.since(since) >= self.config.calm_after),
            load,
        };
        let found = match watch.gone_since {
            _ if group.last_open.epoch == Epoch(0) => {
                let due = group.epoch == Epoch(0) || self.disturbed(now, &view, watch);
                due.then(|| plan::start(&view)).flatten()
            }
            Some(since) => return self.need_of_gone(now, &view, watch, since),
            None if self.disturbed(now, &view, watch) && !view.would_go_on() => {
                plan::takeover(&view)
            }
            None if group.open => return self.need_of_open(now, &view, watch),
            None => None,
        };
        found.map_or(Need::Nothing, |new| Need::Epoch(EpochReason::Urgent, new))
    }

    /// The next step of a group that serves as it is.
    fn need_of_open(&self, now: Time, view: &View<'_>, watch: &GroupWatch) -> Need {
        // An epoch would not open while a member does not reach one that serves. That one is reported soon, and left out; whoever
        // is not (two data buckets) is in nobody's way, but nothing is moved for balance then, nor where answers are late.
        let open_for = watch.open_since.map(|since| now.since(since));
        let torn_for = watch.torn_since.map(|since| now.since(since));
        let reported = torn_for.min(open_for) >= Some(TEAR_REPORTED);
        let waits = |kind| match kind {
            EpochReason::Balance | EpochReason::Spread => view.is_torn(view.cuts),
            kind if view.group.m > 1 && kind < EpochReason::Drain => false,
            _ => !reported && view.is_torn(view.silent),
        };
        let next = view.next_move().filter(|(kind, _)| !waits(*kind));
        next.map_or(Need::Nothing, into_need)
    }

    /// Too few complete members are left to go on with.
    fn need_of_gone(&self, now: Time, view: &View<'_>, watch: &GroupWatch, since: Time) -> Need {
        if !view.pool.may_start_empty {
            let waits = !view.map.awaited_disks(view.group).is_empty();
            return match view.group.lost || waits {
                true => Need::Nothing,
                false => Need::MarkLost,
            };
        }
        let begun = view.group.fresh && !view.group.open;
        let due = if begun {
            self.disturbed(now, view, watch)
        } else {
            let may_live = view.sources().any(|x| self.may_live(view.map, x));
            now.since(since) >= self.config.start_empty_after || !may_live
        };
        match plan::start(view).filter(|_| due) {
            Some(new) => Need::Epoch(EpochReason::Urgent, new),
            None => Need::Nothing,
        }
    }

    /// True if this life of a node may still run, unseen. Not if the node has started anew at the same
    /// address, which has one owner. A later life at another address proves nothing: the data folder may
    /// have been copied, and the process that it was copied from be cut off and serve on.
    fn may_live(&self, map: &ClusterMap, x: &Member) -> bool {
        let later = |home: &Home| home.since > x.id.incarnation;
        match map.nodes.get(&x.id.node) {
            None => false, // removed, which is refused while it runs
            Some(node) if node.incarnation == x.id.incarnation => true,
            Some(_) => self.homes.get(&x.id.node).is_none_or(later),
        }
    }

    /// True if the newest epoch cannot go on as it is.
    fn disturbed(&self, now: Time, view: &View<'_>, watch: &GroupWatch) -> bool {
        let waited = watch.waiting_since.map(|since| now.since(since));
        let (mut patience, mut hears) = (self.config.open_deadline, true);
        if view.group.last_open.epoch == Epoch(0) && !planted(Mutant::StartsHurried) {
            patience *= 1 + self.starting / STARTS_PER_PATIENCE;
            hears = waited >= Some(patience);
        }
        let late = waited >= Some(patience * (1 << view.tries().min(4)));
        // Where nothing has opened again and again, and known cuts keep the next one from it, no report is a reason for that.
        let hears = hears && !(is_held_up(view.group) && view.is_hopeless());
        let stuck = hears && !watch.stuck.slots.is_empty();
        late || stuck || view.somebody_is_dead() || view.found_again() || view.narrow_serves()
    }

    /// A node without a data folder gets a new id when it starts again: its old entry is waste.
    fn node_to_forget(&self, now: Time, map: &ClusterMap) -> Option<Change> {
        let long_down = self
            .down_since
            .iter()
            .filter(|(_, since)| now.since(**since) >= self.config.forget_after);
        let mut useless = long_down.map(|(n, _)| *n).filter(|n| {
            let returns = map.nodes.get(n).is_none_or(|n| n.durable);
            !returns && !map.groups.values().any(|g| g.names(*n))
        });
        useless.next().map(|node| Change::ForgetNode { node })
    }
}

/// Records the time since which `holds` is true of each node, as far as the caller has seen the map.
pub fn record_since(
    since: &mut BTreeMap<NodeId, Time>,
    now: Time,
    map: &ClusterMap,
    holds: impl Fn(&Node) -> bool,
) {
    since.retain(|node, _| map.nodes.get(node).is_some_and(&holds));
    for node in map.nodes.values().filter(|node| holds(node)) {
        since.entry(node.id).or_insert(now);
    }
}

/// The nodes that have what a pool's pages lie on.
fn with_medium<'a>(map: &ClusterMap, pool: &Pool, order: &'a [NodeId]) -> Cow<'a, [NodeId]> {
    let has_disk = |id: &&NodeId| map.nodes.get(id).is_some_and(|node| node.disk_bytes > 0);
    match pool.medium {
        Medium::Ram => Cow::Borrowed(order),
        Medium::Disk => order.iter().filter(has_disk).copied().collect(),
    }
}

/// True if the report of the member in a slot counts on stuck members: the coordinator's while the epoch is not open, then
/// the data buckets'.
fn speaks_for(group: &Group, slot: MemberSlot) -> bool {
    match group.open {
        true => slot.0 < group.m,
        false => slot == group.coordinator,
    }
}

fn into_need((kind, new): (EpochReason, NewEpoch)) -> Need {
    Need::Epoch(kind, new)
}

/// True if the group's first epoch is not open yet.
fn starts_now(group: &Group) -> bool {
    group.last_open.epoch == Epoch(0) && group.epoch > Epoch(0)
}

/// True if so many epochs of the group did not open that something keeps them from it: others are not kept waiting for it.
fn is_held_up(group: &Group) -> bool {
    !group.open && plan::tries(group) >= TRIES_COUNTED
}

/// True if the group counts against the bound on moves: it is between epochs or is being filled, and
/// can get on by itself.
fn in_change_now(map: &ClusterMap, group: &Group) -> bool {
    let filling = group.members.iter().flatten().any(|x| !x.complete);
    let can = map.complete_sources_up(group) >= usize::from(group.m);
    can && (!group.open || filling)
}

#[cfg(test)]
mod tests;
