//! The faults, at random times and aimed at steps of the protocol.

use staves_group::Member;
use staves_model::MemberSlot;
use staves_wire::group::GroupMessage;
use std::collections::BTreeSet;

use crate::clients::SimClient;
use crate::event::{Happening, Packet};
use crate::group::SimGroup;
use crate::scale::{LEASE, MS, NODE_EXTENTS};
use crate::scenario::Loss;
use crate::stop_state::NodeStop;
use crate::waiting::Waiting;
use crate::world::{SimNode, World};

impl World {
    /// The next fault.
    pub fn fault(&mut self) {
        if self.healing {
            return;
        }
        if let Some(node) = self.island.take() {
            self.island_second_half(node);
            self.queue.push(self.now + 150 * MS, Happening::Fault);
            return;
        }
        let node = self.rng.below(self.hosts() as u64) as usize;
        let delay = 20 + self.rng.below(self.profile.fault_gap);
        let mut next = self.now + delay * MS;
        if self.loss != Loss::Bounded && self.rng.chance(80) {
            next = next.max(self.lose_group());
            return self.queue.push(next, Happening::Fault);
        }
        if self.is_stop_due() {
            self.ask_to_stop();
            return self.queue.push(next, Happening::Fault);
        }
        let island = self.rng.chance(self.profile.islands);
        match if island { 80 } else { self.rng.below(100) } {
            0..30 => self.crash(node),
            30..40 => self.restart_with_state(node),
            40..57 => self.pause(node),
            57..67 => self.one_way_cuts(),
            67..73 => self.partial_partition(),
            73..79 => self.full_partition(node),
            79..84 => {
                if self.island_first_half() {
                    next = self.now + 15 * MS + u64::try_from(LEASE.as_nanos()).unwrap_or(u64::MAX);
                }
            }
            84..89 => {
                self.fault_at("directory leader change");
                self.directory_leader_changes();
                if self.rng.chance(600) {
                    self.fault_at("split between leaders");
                    self.split_between_leaders();
                }
            }
            89..92 => {
                self.fault_at("directory stall");
                self.directory.stalled_until = self.now + (50 + self.rng.below(600)) * MS;
            }
            92..95 => self.fill_memory(node),
            95..97 => next = next.max(self.takeover()),
            97 => self.operator(node),
            _ => self.heal_network(),
        }
        if self.island.is_none() && self.rng.chance(350) {
            self.heal_network();
        }
        self.queue.push(next, Happening::Fault);
    }

    pub(crate) fn fault_at(&mut self, fault: &'static str) {
        let step = self.protocol_step();
        self.cover.fault(fault, step);
        self.note(|| format!("FAULT {fault} while {step}"));
    }

    /// The step at which the protocol is: of several groups, that of the first with something to do.
    pub fn protocol_step(&self) -> &'static str {
        let mut steps = self.all_groups().map(|g| self.step_of(g));
        steps.find(|step| *step != "steady").unwrap_or("steady")
    }

    /// The step at which a group's protocol is.
    pub(crate) fn step_of(&self, g: usize) -> &'static str {
        let group = self.committed(g);
        if group.open {
            let joins = group.listed().any(|(_, x)| !x.complete);
            return if joins { "filling" } else { "steady" };
        }
        let planned = self
            .nodes
            .iter()
            .filter(|n| n.group == g)
            .filter_map(|n| n.member.as_deref())
            .any(|m| m.coordinates_sync_of(group.epoch));
        if planned { "syncing" } else { "sealing" }
    }

    // Fewer members may never live than are needed: what is lost beyond that is another scenario's.
    pub(crate) fn may_crash(&self, node: usize) -> bool {
        self.all_groups().all(|g| {
            let begun = self.committed(g).last_open.epoch.0 > 0;
            begun && self.alive_without(g, node) >= self.groups[g].m
        })
    }

    /// The number of a group's buckets that live if this node does not.
    fn alive_without(&self, g: usize, node: usize) -> usize {
        let group = self.committed(g);
        let alive = |members: &[Option<staves_model::Member>]| {
            staves_model::whole_buckets(group.m, members, |x| {
                !self.is_dead(g, x) && self.nodes[node].id != x.id.node
            })
        };
        alive(&group.last_open.members).min(alive(&group.members))
    }

    /// A process dies with all that it holds, and starts again later.
    pub fn crash(&mut self, node: usize) {
        if !self.nodes[node].up || !self.may_crash(node) {
            return;
        }
        self.fault_at("crash");
        let bare = |g: &usize| self.alive_without(*g, node) == self.groups[*g].m;
        if let Some(g) = self.all_groups().find(bare) {
            self.cover.count(match self.groups[g].k {
                3.. => "no bucket to spare, of a scheme that bears three losses",
                _ => "no bucket to spare",
            });
        }
        self.stop(node);
        let wide = |g: &SimGroup| g.m + g.k >= self.hosts();
        let cramped = self.groups.iter().any(wide);
        let k = self.groups.iter().map(|g| g.k).min().unwrap_or(0);
        let gone = self.nodes[..self.hosts()].iter().filter(|n| n.gone).count();
        let (for_good, most) = if cramped { (150, k) } else { (30, 1) };
        if self.keeping && gone < most && self.rng.chance(for_good) {
            self.cover.count(match cramped {
                true if gone + 1 == k => "k crashed for good, and no node to spare",
                true => "crash for good, and no node to spare",
                false => "crash for good",
            });
            self.nodes[node].gone = true;
            return self.mirror(node);
        }
        let back = self.now + (20 + self.rng.below(400)) * MS;
        self.queue.push(back, Happening::Start(node));
    }

    /// A process dies with all that it holds.
    pub(crate) fn stop(&mut self, node: usize) {
        self.note(|| format!("CRASH node {node}"));
        self.nodes[node].up = false;
        self.nodes[node].off = self.rng.chance(400);
        self.empty_seats(node);
    }

    /// A process starts again with what it held, but not with what it had promised.
    pub fn restart_with_state(&mut self, node: usize) {
        if !self.nodes[node].up || self.nodes[node].member.is_none() {
            return;
        }
        self.fault_at("restart with state");
        self.note(|| format!("RESTART node {node}"));
        self.begin_again(node);
    }

    /// A process begins over what it held.
    pub(crate) fn begin_again(&mut self, node: usize) {
        let clock = self.nodes[node].clock(self.now);
        self.nodes[node].stop = NodeStop::default();
        for seat in self.seats_of(node) {
            self.nodes[seat].waiting = Waiting::default();
            if let Some(member) = &mut self.nodes[seat].member {
                member.restart(clock);
            }
            self.restart_service(seat);
        }
    }

    fn pause(&mut self, node: usize) {
        self.fault_at("pause");
        let ms = 50 + self.rng.below(700);
        self.note(|| format!("PAUSE node {node} for {ms} ms"));
        self.nodes[node].paused_until = self.now + ms * MS;
        self.mirror(node);
    }

    fn one_way_cuts(&mut self) {
        self.fault_at("one-way cut");
        let places = self.places() as u64;
        for _ in 0..=self.rng.below(6) {
            let from = self.rng.below(places) as usize;
            let to = if self.rng.chance(300) {
                self.leader_of(from.min(self.hosts() - 1))
            } else {
                self.rng.below(self.hosts() as u64) as usize
            };
            self.cut.insert((from, to));
        }
    }

    // A and B do not reach each other; both reach everybody else.
    fn partial_partition(&mut self) {
        self.fault_at("partial partition");
        let n = self.hosts() as u64;
        let (a, b) = (self.rng.below(n) as usize, self.rng.below(n) as usize);
        self.cut.extend([(a, b), (b, a)]);
    }

    fn full_partition(&mut self, node: usize) {
        self.fault_at("full partition");
        for other in (0..self.first_client()).filter(|o| *o != node) {
            self.cut.extend([(node, other), (other, node)]);
        }
    }

    // The data bucket of a read-mostly client is cut from its peers; then from the directory too, which
    // changes its leader and puts another in its place while clients still reach the old one.
    fn island_first_half(&mut self) -> bool {
        let g = self.some_group();
        let Some(data) = self.committed(g).members.first().copied().flatten() else {
            return false;
        };
        let Some(node) = self.node_of(data.id.node) else {
            return false;
        };
        // The detector notices, and the only source cut off again and again would never come back.
        if self.keeping && !self.committed(g).open && self.rng.chance(800) {
            return false;
        }
        self.fault_at("island");
        for other in (0..self.hosts()).filter(|o| *o != node) {
            self.cut.insert((node, other));
        }
        self.island = Some(node);
        true
    }

    fn island_second_half(&mut self, node: usize) {
        // It may be left with the leader that was deposed.
        let changes = self.rng.chance(500);
        if changes {
            self.directory_leader_changes();
        }
        let forgotten = changes && self.rng.chance(500);
        for directory in self.nodes.len()..self.first_client() {
            if !forgotten || directory == self.directory_place() {
                self.cut.extend([(node, directory), (directory, node)]);
            }
        }
        let suspects = BTreeSet::from([self.nodes[node].member_id().place()]);
        for g in self.all_groups() {
            if self.committed(g).open {
                self.propose(g, &suspects, false);
            }
        }
    }

    // The data bucket is replaced though it lives and serves and knows nothing: with everybody well and a
    // sound network the new epoch must open soon after the leases end.
    fn takeover(&mut self) -> u64 {
        let g = self.some_group();
        let group = self.committed(g).clone();
        let all_up = self.nodes.iter().all(|n| n.up);
        // A joiner that finds no memory is not what is timed.
        let hindered = self.room.tight || self.is_crowded() || !self.directory.answers(self.now);
        if !group.open || !all_up || hindered {
            return 0;
        }
        self.fault_at("takeover");
        self.heal_network();
        for n in &mut self.nodes {
            n.paused_until = 0;
        }
        self.calm_until = self.now + 800 * MS;
        if let Some(data) = group.members[0] {
            self.propose(g, &BTreeSet::from([data.id.place()]), false);
        }
        let next = self.committed(g).clone();
        // Nor is one that shares its node's memory with another member or joiner, or with what its node held before.
        let shares_node = |slot: MemberSlot, x: &staves_model::Member| {
            let was_there = group.listed().any(|(_, o)| o.id.node == x.id.node);
            let joins = |(other, o): (MemberSlot, &staves_model::Member)| {
                other != slot && o.id.node == x.id.node
            };
            was_there || next.listed().any(joins)
        };
        let mut joiners = next.listed().filter(|(slot, _)| !next.retained(*slot));
        let shares = self.groups[g].m > 1 && joiners.any(|(slot, x)| shares_node(slot, x));
        let (epoch, timed) = (next.epoch, !next.open && !shares);
        if timed {
            self.queue
                .push(self.now + 700 * MS, Happening::TakeoverDue(g, epoch));
        }
        self.calm_until
    }

    // Somebody drains a node, or changes k, while it serves.
    fn operator(&mut self, node: usize) {
        self.fault_at("operator");
        if self.room.tight {
            self.raise_limit(node);
        }
        if self.rng.chance(500) {
            return self.drain(node);
        }
        let g = self.some_group();
        let k = self.rng.below(self.groups[g].k as u64 + 2) as usize;
        self.change_k(g, k);
    }

    pub(crate) fn fill_memory(&mut self, node: usize) {
        if !self.healing {
            self.fault_at("memory full");
        }
        let n = &mut self.nodes[node];
        let free = n.budget.limit().saturating_sub(n.budget.taken());
        if n.taken == 0 && n.budget.take(free) {
            n.taken = free;
        }
    }

    /// The network is whole again, and memory is there.
    pub fn heal_network(&mut self) {
        if !self.healing {
            self.fault_at("heal");
        }
        self.cut.clear();
        for n in &mut self.nodes {
            n.budget.give(n.taken);
            n.taken = 0;
        }
    }

    /// Aims a crash at a data bucket of a group, just now that a joiner has taken a page.
    pub fn aim_at_data(&mut self, g: usize) {
        let slot = self.rng.below(self.groups[g].m as u64) as usize;
        let data = self.committed(g).members.get(slot).copied().flatten();
        self.aim = data.and_then(|x| self.node_of(x.id.node));
    }

    /// The aimed crash: with the node go the deltas that it had sent and nobody has.
    pub fn aimed_crash(&mut self, node: usize) {
        self.cover.count("aimed crash");
        self.queue.remove(|h| match h {
            Happening::Deliver(from, _, Packet::Group(e)) => {
                *from == node
                    && matches!(&e.message, GroupMessage::Deltas { deltas, .. } if !deltas.is_empty())
            }
            _ => false,
        });
        self.crash(node);
    }

    /// True if there are other groups to take the memory that a joiner needs.
    fn is_crowded(&self) -> bool {
        let mut hosts = self.nodes[..self.hosts()].iter();
        let free = |n: &SimNode| n.budget.limit().saturating_sub(n.budget.taken());
        self.groups.len() > 1 && hosts.any(|n| u64::from(free(n)) < NODE_EXTENTS / 2)
    }

    /// True if every group is as it should be, and every client has its answer.
    pub fn converged(&self) -> bool {
        let idle = |c: &SimClient| c.under_way.is_none() && !c.router.is_busy();
        self.detected_all()
            && self.all_groups().all(|g| self.has_converged(g))
            && self.clients.iter().all(|c| idle(c) || self.doomed(c.group))
    }

    /// True if a group is as it should be: open, all wanted members listed, alive and complete; or doomed, and marked so.
    pub(crate) fn has_converged(&self, g: usize) -> bool {
        let (group, m) = (self.committed(g), self.groups[g].m);
        if self.doomed(g) {
            return group.lost;
        }
        let hosts = &self.nodes[..self.hosts()];
        let nodes = hosts.iter().filter(|n| !n.gone).count();
        let mut seats = self.nodes.iter().filter(|n| n.group == g);
        group.open
            && self.is_well_placed(g, nodes)
            && group.members[..m].iter().all(Option::is_some)
            && group
                .listed()
                .all(|(_, x)| x.complete && !self.is_dead(g, x))
            && seats.all(|n| {
                n.member
                    .as_deref()
                    .is_none_or(|m: &Member| m.stream(0).is_none() || m.is_open())
            })
    }
}
