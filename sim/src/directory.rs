//! The directory's stand-in: one linearizable map behind its real rules and its real lease book, with
//! what a replicated one does to those who use it: leaders change (and forget their lease book), it
//! stalls, and nodes see old entries late.
//!
//! In the wild it proposes whatever the rules allow, with little reason: members suspected that live,
//! data buckets switched, epochs abandoned half way. Its proposals are refused by the same
//! `ClusterMap::apply` that refuses them in the program.

use std::collections::BTreeSet;
use std::sync::Arc;

use staves_group::DirectoryCall;
use staves_model::mutant::{Mutant, planted};
use staves_model::{
    Change, ClusterId, DiskId, Epoch, Group, GroupStep, LeaseRequest, Medium, Member, MemberSlot,
    NewEpoch, NodeId, Outcome, PoolKind, Scheme, StuckReport,
};

use crate::event::{Happening, Packet, Place};
use crate::scale::MS;
use crate::scenario::Loss;
use crate::stop_state::NodeStop;
use crate::watch::Watch;
use crate::world::World;

/// Entries of the group that may still be on their way to somebody.
const ENTRIES_MAX: usize = 6;

/// Reports of nodes that the leader keeps until it next looks.
const EVIDENCE_MAX: usize = 200;

impl World {
    /// Makes the cluster: nodes up, a pool for each group, nothing open yet.
    pub fn bootstrap(&mut self, first_nodes: usize) {
        let bootstrap = Change::Bootstrap {
            cluster: ClusterId(7),
        };
        self.directory
            .map
            .apply(None, &bootstrap)
            .expect("an empty map takes a bootstrap");
        for g in self.all_groups() {
            self.create_pool(g);
        }
        for node in 0..first_nodes {
            self.start_node(node);
        }
        for g in self.all_groups() {
            self.entry_changed(g);
            self.propose(g, &BTreeSet::new(), false);
        }
    }

    fn create_pool(&mut self, g: usize) {
        let of = &self.groups[g];
        let memory = of.has_regions;
        let create = Change::CreatePool {
            name: of.pool_name.clone(),
            kind: match memory {
                true => PoolKind::Memory { regions: vec![] },
                false => PoolKind::Cache,
            },
            scheme: Scheme {
                m: of.m as u8,
                k: of.k as u8,
            },
            medium: Medium::Ram,
            node_budget_bytes: 1 << 21,
            buckets: u32::from(!memory),
            may_start_empty: self.loss == Loss::StartsEmpty,
        };
        self.directory.map.apply(None, &create).expect("a pool");
        let pool = self.directory.map.pool_named(&self.groups[g].pool_name);
        let pool = pool.expect("the pool was created").id;
        self.groups[g].pool = pool;
        self.create_region(g);
        let mut groups = self.directory.map.groups.values();
        let group = groups.find(|group| group.pool == pool);
        self.groups[g].id = group.expect("the pool has a group").id;
    }

    /// A node's process starts: the directory gives it a life.
    pub fn start_node(&mut self, node: usize) {
        if self.nodes[node].up || self.nodes[node].member.is_some() {
            return;
        }
        if !self.directory.answers(self.now) {
            let later = self.directory.stalled_until + MS;
            return self.queue.push(later, Happening::Start(node));
        }
        let id = (self.nodes[node].id != NodeId(0)).then_some(self.nodes[node].id);
        let up = Change::NodeUp {
            id,
            facts: staves_model::testing::node_facts(&format!("node-{node}"), 1 << 21),
            durable: true,
            claims: Vec::new(),
        };
        let Ok(Outcome::Node { id, incarnation }) = self.directory.map.apply(None, &up) else {
            return self.violation(format!("directory refused node {node} at its start"));
        };
        self.note(|| format!("START node {node} as {id:?} {incarnation:?}"));
        let n = &mut self.nodes[node];
        n.id = id;
        n.incarnation = incarnation;
        n.up = true;
        n.watch = Watch::default();
        n.known.clear();
        n.stop = NodeStop::default();
        self.mirror(node);
        for seat in self.seats_of(node) {
            self.make_seat(seat, self.group_at(seat).id);
        }
    }

    /// A packet for the directory.
    pub fn deliver_directory(&mut self, from: Place, here: Place, packet: Packet) {
        let newest = here == self.directory_place();
        let answers = if newest {
            self.directory.answers(self.now)
        } else {
            self.former_leader().is_some()
        };
        if !answers {
            return;
        }
        match packet {
            Packet::LeaseRequest {
                incarnation,
                clock,
                wanted,
            } => {
                let node = self.nodes[from].id;
                let request = LeaseRequest {
                    node,
                    incarnation,
                    wanted,
                };
                self.lease_requested(from, here, clock, request);
            }
            Packet::StopRequest {
                incarnation,
                attempt,
            } => self.stop_requested(from, here, incarnation, attempt),
            Packet::StopReply { round, reply } => self.stop_replied(from, here, round, reply),
            // Its proposals are of a term that is over.
            Packet::Call(_) | Packet::Report(_) | Packet::Back(_) if !newest => {
                self.cover.count("deposed leader: called in vain")
            }
            Packet::Report(report) if self.directory.evidence.len() < EVIDENCE_MAX => {
                self.directory.evidence.push(report);
            }
            Packet::Back(incarnation) => self.comes_back(from, incarnation),
            Packet::Call(DirectoryCall::Step(GroupStep::Open { group, epoch })) => {
                self.open(group, epoch);
            }
            Packet::Call(DirectoryCall::Step(step @ GroupStep::Complete { group, .. }))
                if self.directory.map.apply(None, &Change::step(step)).is_ok() =>
            {
                self.cover.count("joiner complete");
                if let Some(g) = self.index_of(group) {
                    self.entry_changed(g);
                }
            }
            Packet::Call(DirectoryCall::Stuck {
                group,
                epoch,
                slots,
            }) => {
                let g = self.index_of(group);
                let newest = |g: &usize| self.groups[*g].id == group;
                if let Some(g) = g.filter(newest)
                    && epoch == self.committed(g).epoch
                {
                    self.take_report(from, g, epoch, slots);
                }
            }
            _ => {}
        }
    }

    fn take_report(&mut self, from: Place, g: usize, epoch: Epoch, slots: Vec<MemberSlot>) {
        self.cover.count("stuck reported");
        let group = self.committed(g);
        let places: Vec<_> = slots
            .iter()
            .filter_map(|s| group.member(*s).map(|x| x.id.place()))
            .collect();
        self.groups[g].stuck.extend(places);
        let (group, reporter) = (self.groups[g].id, self.nodes[from].id);
        if self.directory.reports.len() < 100 {
            self.directory.reports.push(StuckReport {
                group,
                epoch,
                slots,
                reporter,
            });
        }
    }

    fn open(&mut self, group: staves_model::GroupId, epoch: Epoch) {
        let Some(g) = self.index_of(group) else {
            return;
        };
        let now = self.directory.clock(self.now);
        if !self
            .directory
            .leader
            .leases
            .may_open(now, self.committed(g))
        {
            self.cover.count("open waits for leases");
            return;
        }
        let anew = self.committed(g).fresh && self.committed(g).last_open.epoch > Epoch(0);
        if self
            .directory
            .map
            .apply(None, &Change::step(GroupStep::Open { group, epoch }))
            .is_ok()
        {
            if anew {
                self.begin_life(g);
            }
            self.cover.count("epoch opened");
            self.note(|| format!("OPEN {group:?} {epoch:?} {:?}", self.committed(g).members));
            self.entry_changed(g);
            self.check_opened(g);
        }
    }

    pub(crate) fn entry_changed(&mut self, g: usize) {
        let entry = Arc::new(self.committed(g).clone());
        let of = &mut self.groups[g];
        if entry.open {
            of.opened = Some(entry.clone());
        }
        of.entries.push(entry);
        if of.entries.len() > ENTRIES_MAX {
            of.entries.remove(0);
        }
        of.since = self.now;
        self.check_tolerance(g);
    }

    /// The directory shows its map around, sees who seems dead, and proposes.
    pub fn tick_directory(&mut self) {
        self.queue.push(self.now + 20 * MS, Happening::Directory);
        self.show_former_map();
        self.tick_stops();
        self.check_drains();
        if !self.directory.answers(self.now) {
            return;
        }
        for g in self.all_groups() {
            self.tend_region(g);
        }
        self.show_map();
        if self.now < self.calm_until {
            return;
        }
        if self.keeping || self.healing {
            return self.keep();
        }
        for g in self.all_groups() {
            self.propose_by_chance(g);
        }
    }

    fn propose_by_chance(&mut self, g: usize) {
        let suspects = self.suspects(g);
        let listed = |w: &World, (node, disk): &(NodeId, DiskId)| {
            let mut members = w.committed(g).members.iter().flatten();
            members.any(|x| x.id.place() == (*node, *disk))
        };
        if self.committed(g).open {
            let of = &self.groups[g];
            let width = of.m + of.k;
            let switch = !self.healing && self.rng.chance(self.profile.switched);
            let vacant = self.committed(g).members.iter().any(Option::is_none)
                || self.committed(g).members.len() < width;
            let fills = vacant && self.rng.chance(100);
            if suspects.iter().any(|n| listed(self, n)) || fills || switch {
                self.propose(g, &suspects, switch);
            }
            return;
        }
        let dead = self.committed(g).listed().any(|(_, x)| self.is_dead(g, x));
        let patience = if dead { 100 } else { 500 };
        if self.now - self.groups[g].since > patience * MS {
            self.propose(g, &suspects, false);
        }
    }

    fn show_map(&mut self) {
        let here = self.directory_place();
        if self.directory.shown.revision != self.directory.map.revision {
            self.directory.shown = Arc::new(self.directory.map.clone());
        }
        for node in 0..self.hosts() {
            if self.detecting() {
                let shown = self.directory.shown.clone();
                self.send(here, node, Packet::Cluster(shown));
            }
            for g in self.all_groups() {
                self.show_entry(here, node, g);
            }
        }
    }

    fn show_entry(&mut self, here: Place, node: usize, g: usize) {
        if !self.is_sound() && self.rng.chance(500) {
            return;
        }
        // A slow watch shows an entry as it was.
        let entries = &self.groups[g].entries;
        let back = if !self.is_sound() && self.rng.chance(60) {
            self.rng.below(entries.len() as u64) as usize
        } else {
            0
        };
        let entry = entries[entries.len() - 1 - back].clone();
        self.send(here, node, Packet::Map(entry));
    }

    /// True if the life of a group's member is over.
    pub fn is_dead(&self, g: usize, x: &Member) -> bool {
        self.entry_of(g, x.id)
            .is_none_or(|n| !self.nodes[n].lives(x.id.incarnation))
    }

    fn suspects(&mut self, g: usize) -> BTreeSet<(NodeId, DiskId)> {
        let mut suspects = std::mem::take(&mut self.groups[g].stuck);
        let group = self.committed(g).clone();
        for x in group
            .members
            .iter()
            .chain(&group.last_open.members)
            .flatten()
        {
            let paused = self
                .entry_of(g, x.id)
                .is_some_and(|n| self.nodes[n].paused_until > self.now);
            let chance = match () {
                () if self.is_dead(g, x) => 400,
                () if paused => 120,
                () if self.healing => 0,
                () => self.profile.suspected,
            };
            if self.rng.chance(chance) {
                suspects.insert(x.id.place());
            }
        }
        suspects
    }

    /// Proposes a new epoch of a group without the suspects; `switch`: with another data bucket (m = 1).
    pub fn propose(&mut self, g: usize, suspects: &BTreeSet<(NodeId, DiskId)>, switch: bool) {
        let Some(new) = self.new_epoch(g, suspects, switch) else {
            return;
        };
        let (epoch, was_open) = (new.epoch, self.committed(g).open);
        if self
            .directory
            .map
            .apply(None, &Change::CommitEpochs(vec![new]))
            .is_err()
        {
            return self.cover.count("proposal refused by the map's rules");
        }
        self.cover.count("epoch committed");
        if !was_open {
            self.cover.count("epoch abandoned");
        }
        self.note(|| {
            let group = self.committed(g);
            let (members, kept) = (&group.members, &group.kept);
            format!("COMMIT {:?} {epoch:?} {members:?} kept {kept:?}", group.id)
        });
        self.entry_changed(g);
    }

    fn new_epoch(
        &mut self,
        g: usize,
        suspects: &BTreeSet<(NodeId, DiskId)>,
        switch: bool,
    ) -> Option<NewEpoch> {
        let (group, m) = (self.committed(g).clone(), self.groups[g].m);
        let fresh = group.last_open.epoch == Epoch(0);
        let sources = if planted(Mutant::SourcesFromCommitted) && !fresh {
            group.members.clone()
        } else {
            group.last_open.members.clone()
        };
        let mut plan = Plan::keep(&sources, suspects, m, self.wanted_parity(g));
        if m == 1 && !fresh {
            plan.choose_data(switch)?;
        }
        self.add_joiners(g, &mut plan, &group, suspects)?;
        if planted(Mutant::SourceListedAsJoiner) && !fresh && self.rng.chance(300) {
            plan.forget_one_source(m, self.rng.number() as usize);
        }
        let leader = plan.leader(fresh)?;
        Some(NewEpoch {
            group: group.id,
            epoch: group.epoch.next(),
            members: plan.members.iter().map(|x| x.map(|x| x.id)).collect(),
            kept: plan.kept,
            coordinator: leader,
            fresh,
        })
    }

    // k raised and lowered while it serves; as wanted once it heals.
    fn wanted_parity(&mut self, g: usize) -> usize {
        let k = self.groups[g].k;
        if self.healing || self.rng.chance(700) {
            return k;
        }
        self.cover.count("k changed");
        self.rng.below(k as u64 + 2) as usize
    }

    fn add_joiners(
        &mut self,
        g: usize,
        plan: &mut Plan,
        group: &Group,
        suspects: &BTreeSet<(NodeId, DiskId)>,
    ) -> Option<()> {
        let (m, fresh) = (self.groups[g].m, group.last_open.epoch == Epoch(0));
        for slot in 0..plan.members.len() {
            if plan.members[slot].is_some() {
                continue;
            }
            // With m > 1 a lost data bucket may wait for its node, but none is there at the start.
            let may_wait = slot >= m || (m > 1 && !fresh);
            let waits = if slot >= m { 150 } else { 60 };
            if may_wait && !self.healing && self.rng.chance(waits) {
                continue;
            }
            let Some(node) = self.choose_joiner(g, plan, group, suspects) else {
                if !may_wait {
                    return None;
                }
                continue;
            };
            if slot < m
                && group
                    .last_open
                    .members
                    .get(slot)
                    .is_some_and(Option::is_none)
            {
                self.cover.count("vacant data bucket taken");
            }
            let n = &self.nodes[node];
            plan.members[slot] = Some(Member {
                id: n.member_id(),
                complete: fresh,
            });
        }
        Some(())
    }

    fn choose_joiner(
        &mut self,
        g: usize,
        plan: &Plan,
        group: &Group,
        suspects: &BTreeSet<(NodeId, DiskId)>,
    ) -> Option<usize> {
        let free: Vec<usize> = (0..self.nodes.len())
            .filter(|n| {
                let id = self.nodes[*n].member_id();
                let used = plan
                    .members
                    .iter()
                    .flatten()
                    .any(|x| x.id.place() == id.place());
                let source = group.last_open.slot_of(id).is_some();
                let known = self.directory.map.runs(id);
                let own = self.nodes[*n].group == g;
                own && !used
                    && !source
                    && known
                    && (self.healing || !suspects.contains(&id.place()))
            })
            .collect();
        let returning: Vec<usize> = free
            .iter()
            .copied()
            .filter(|n| {
                self.nodes[*n]
                    .member
                    .as_ref()
                    .is_some_and(|m| m.has_old_pages())
            })
            .collect();
        // Whoever proposes at random lets a node hold two now and then, though others are there.
        let own = free
            .iter()
            .filter(|n| !self.nodes[**n].member_id().is_second());
        let own: Vec<usize> = own.copied().collect();
        let (free, returning) = match own.is_empty() || self.rng.chance(100) {
            true => (free, returning),
            false => {
                let own_too = returning.into_iter().filter(|n| own.contains(n));
                (own.clone(), own_too.collect())
            }
        };
        if free.is_empty() {
            return None;
        }
        if !returning.is_empty() && self.rng.chance(600) {
            return Some(self.rng.pick(&returning));
        }
        let node = self.rng.pick(&free);
        let paused = self.nodes[node].paused_until > self.now;
        (!paused || self.rng.chance(200)).then_some(node)
    }
}

/// An epoch on the drawing board.
struct Plan {
    members: Vec<Option<Member>>,
    kept: Vec<Option<MemberSlot>>,
}

impl Plan {
    fn keep(
        sources: &[Option<Member>],
        suspects: &BTreeSet<(NodeId, DiskId)>,
        m: usize,
        k: usize,
    ) -> Plan {
        let width = m + k;
        let mut plan = Plan {
            members: vec![None; width],
            kept: vec![None; width],
        };
        // m = 1: fewer copies are wanted than there are: the complete ones come first.
        let mut order: Vec<usize> = (0..sources.len()).collect();
        if m == 1 {
            order[usize::from(!sources.is_empty())..]
                .sort_by_key(|s| sources[*s].is_none_or(|x| !x.complete));
        }
        for (to, from) in order.into_iter().take(width).enumerate() {
            let to = if m == 1 { to } else { from };
            let stays = sources[from].filter(|x| !suspects.contains(&x.id.place()));
            if let Some(x) = stays {
                plan.members[to] = Some(x);
                plan.kept[to] = Some(MemberSlot(from as u8));
            }
        }
        plan
    }

    // m = 1: the data bucket must be a complete source; another one if it is gone, or for a switch.
    fn choose_data(&mut self, switch: bool) -> Option<()> {
        let complete = |x: &Option<Member>| x.is_some_and(|x| x.complete);
        if complete(&self.members[0]) && !switch {
            return Some(());
        }
        match (1..self.members.len()).find(|s| complete(&self.members[*s])) {
            Some(s) => {
                self.members.swap(0, s);
                self.kept.swap(0, s);
                Some(())
            }
            None => complete(&self.members[0]).then_some(()),
        }
    }

    // The planted bug 18: a source is listed as if it had nothing.
    fn forget_one_source(&mut self, m: usize, at: usize) {
        let from = if m == 1 { 1 } else { 0 };
        let slot = from + at % (self.kept.len() - from).max(1);
        if let (Some(kept), Some(Some(member))) =
            (self.kept.get_mut(slot), self.members.get_mut(slot))
        {
            *kept = None;
            member.complete = false;
        }
    }

    fn leader(&self, fresh: bool) -> Option<MemberSlot> {
        let fit = |s: &usize| self.members[*s].is_some() && (fresh || self.kept[*s].is_some());
        (0..self.members.len())
            .find(fit)
            .map(|s| MemberSlot(s as u8))
    }
}
