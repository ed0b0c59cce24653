//! Losses beyond what the scheme bears (rule 13, and `lost`).
//!
//! Every world loses no more than k members at a time, but some of those in which the program's own
//! planner works. There, all members of the group die at once, or are cut off from the rest together
//! with the clients, and what must follow depends on the pool. If it **may start empty**, the directory
//! waits T, and a new *life* of the group begins with nothing; whoever is left of the old one must be
//! quiet by then. If it **waits**, the group is marked `lost`, nobody makes an answer up, and the group
//! goes on as soon as enough of its members come back with what they held.
//!
//! What clients saw is judged life by life. A life knows nothing of the one before; a request that was
//! sent in an earlier one may still reach it.

use std::collections::BTreeSet;

use staves_model::MemberSlot;

use crate::event::Happening;
use crate::scale::{MS, QUIET};
use crate::scenario::Loss;
use crate::world::World;

/// Before this time of a run nothing is lost for good, so that there is something to lose.
const FATAL_FROM: u64 = 3000 * MS;

impl World {
    /// The number of a group's present life.
    pub fn life(&self, g: usize) -> usize {
        self.groups[g].lives.len() - 1
    }

    /// Each life with its beginning and end.
    pub(crate) fn spans(&self, g: usize) -> Vec<(usize, u64, u64)> {
        let lives = &self.groups[g].lives;
        let ends = lives[1..].iter().copied().chain([u64::MAX]);
        let spans = lives.iter().copied().zip(ends);
        spans.enumerate().map(|(i, (b, e))| (i, b, e)).collect()
    }

    /// The directory has opened an epoch that starts from nothing.
    pub(crate) fn begin_life(&mut self, g: usize) {
        self.cover.count("group started empty");
        self.note(|| "NEW LIFE".into());
        let epoch = self.committed(g).epoch;
        self.groups[g].lives.push(self.now);
        self.groups[g].ghost.begin_life(epoch);
    }

    /// An answer is about to be given: none is by a member of a life that is over (rule 13).
    pub(crate) fn check_life(&mut self, node: usize) {
        let epoch = self.nodes[node].member.as_ref().map(|m| m.epoch());
        let life = self.group_at(node).ghost.life();
        if epoch.is_some_and(|e| e < life) {
            self.violation(format!(
                "R13 node {node} answers in {epoch:?}, though the group began anew in {life:?}"
            ));
        }
    }

    /// A fault beyond what the scheme bears; when the next may follow.
    pub(crate) fn lose_group(&mut self) -> u64 {
        let mut begun = self.all_groups();
        if !begun.all(|g| self.committed(g).last_open.epoch.0 > 0) || self.any_doomed() {
            return 0;
        }
        let g = self.some_group();
        let m = self.groups[g].m;
        if self.rng.chance(600) {
            return self.cut_group_off(g);
        }
        self.fault_at("group lost");
        let late = self.rng.chance(500);
        let fatal = self.loss == Loss::Waits && self.now > FATAL_FROM && self.rng.chance(300);
        let mut spared = m - 1;
        let mut nodes = self.group_nodes(g);
        nodes.retain(|n| self.nodes[*n].up);
        // With m > 1 mostly one more than the group bears: who is left has to say so.
        if m > 1 && self.loss == Loss::Waits && !fatal && self.rng.chance(700) {
            let few = self.committed(g).parity_slots().count() + 1;
            while nodes.len() > few {
                let spare = self.rng.below(nodes.len() as u64) as usize;
                nodes.remove(spare);
            }
            self.cover.count("one more lost than the scheme bears");
        }
        for node in nodes {
            let back = (20 + self.rng.below(400)) * MS + if late { 1000 * MS } else { 0 };
            if fatal && spared > 0 {
                spared -= 1;
            } else if fatal || self.loss == Loss::StartsEmpty {
                self.stop(node);
                self.queue.push(self.now + back, Happening::Start(node));
            } else {
                self.sleep(node, back);
            }
        }
        if self.any_doomed() {
            self.cover.count("lost for good");
        }
        self.now + 500 * MS
    }

    // The nodes that a group names, now or in its last open epoch.
    fn group_nodes(&self, g: usize) -> Vec<usize> {
        let group = self.committed(g);
        (0..self.hosts())
            .filter(|n| group.names(self.nodes[*n].id))
            .collect()
    }

    // The group's nodes are cut off from all others, in one of three ways; clients reach all, and its
    // members reach each other.
    fn cut_group_off(&mut self, g: usize) -> u64 {
        self.fault_at("group cut off");
        let inside = self.group_nodes(g);
        let (from_directory, deaf) = match self.rng.below(3) {
            0 => (true, false),
            1 => (false, false),
            _ => (false, true),
        };
        for node in inside.iter().copied() {
            for other in (0..self.first_client()).filter(|o| !inside.contains(o)) {
                if self.is_directory(other) && !from_directory {
                    continue;
                }
                self.cut.insert((other, node));
                if !deaf {
                    self.cut.insert((node, other));
                }
            }
        }
        self.now + QUIET.as_nanos() as u64 / 2 * (1 + self.rng.below(6))
    }

    /// A process stops and keeps what it holds, but for what it had promised.
    fn sleep(&mut self, node: usize, ms: u64) {
        self.note(|| format!("SLEEP node {node}"));
        self.nodes[node].up = false;
        self.nodes[node].off = self.rng.chance(400);
        for seat in self.seats_of(node) {
            self.nodes[seat].waiting = Default::default();
            self.forget_tokens(seat);
        }
        self.mirror(node);
        self.queue.push(self.now + ms, Happening::Wake(node));
    }

    /// It goes on.
    pub(crate) fn wake(&mut self, node: usize) {
        self.note(|| format!("WAKE node {node}"));
        self.cover.count("woke with its state");
        self.nodes[node].up = true;
        self.nodes[node].watch = Default::default();
        self.mirror(node);
        self.begin_again(node);
    }

    /// True if a group is doomed.
    pub fn any_doomed(&self) -> bool {
        self.all_groups().any(|g| self.doomed(g))
    }

    /// True if a group's pool waits for members that can never come back with what they held.
    pub fn doomed(&self, g: usize) -> bool {
        let keeps = |x: &staves_model::Member| {
            let node = self.entry_of(g, x.id).map(|n| &self.nodes[n]);
            node.is_some_and(|n| n.incarnation == x.id.incarnation && n.member.is_some())
        };
        let group = self.committed(g);
        let sources = (0..).zip(&group.last_open.members);
        let kept = sources.filter(|(_, x)| x.as_ref().is_some_and(|x| x.complete && keeps(x)));
        // Twins hold the same bucket.
        let buckets: BTreeSet<_> = kept
            .map(|(slot, _)| group.bucket_slot(MemberSlot(slot)))
            .collect();
        self.loss == Loss::Waits && group.last_open.epoch.0 > 0 && buckets.len() < self.groups[g].m
    }
}
