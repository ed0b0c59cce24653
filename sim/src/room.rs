//! Memory in worlds with m > 1: data buckets that wish for more of it and give it back, nodes that have too
//! little, and bursts of updates to one page.

use bytes::Bytes;
use staves_model::{ClientId, Label, PAGE_BYTES};
use staves_store::EXTENT_PAGES;
use staves_wire::group::{RequestId, Run, RunKind};

use crate::kv::Service;
use crate::node::PAGES;
use crate::rng::Rng;
use crate::run::Scenario;
use crate::world::{MS, NODE_EXTENTS, World};

/// Most extents that a data bucket of registers wishes for; it needs two.
const WISH_MAX: u64 = 5;
/// Most extents of a node that has few. Registers need two, a region up to three.
const FEW_EXTENTS: u64 = 3;
/// The name of the requests in a burst.
const BURSTS: ClientId = ClientId(1 << 40);
/// With memory as short as it was, everything listed must be open and whole within so long.
const SHORT_MS_MAX: u64 = 15_000;

/// How a world with m > 1 treats memory. Chances are per mille.
#[derive(Clone, Copy, Default, Debug)]
pub struct Room {
    /// A data bucket changes its wish, each time its timer comes.
    pub wishes: u64,
    /// A burst, each time a client acts.
    pub bursts: u64,
    /// Some nodes have few extents, until somebody gives them more.
    pub tight: bool,
}

impl Room {
    /// By the scenario's seed. Its chances are its own, so that worlds with m = 1 stay as they are.
    pub fn of(s: &Scenario) -> Room {
        let mut rng = Rng::new(s.seed ^ 0x524F_4F4D);
        if s.m == 1 {
            return Room::default();
        }
        Room {
            wishes: rng.pick(&[0, 15, 60]),
            bursts: rng.pick(&[0, 30, 150]),
            tight: rng.chance(350),
        }
    }
}

impl World {
    /// Makes nodes small in a tight world: most of them, so that no choice of members avoids them.
    pub(crate) fn make_tight(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ 0x5449_4748);
        let least = match self.service() {
            Service::Memory => 3,
            _ => 2,
        };
        for n in &self.nodes {
            if self.room.tight && rng.chance(700) {
                let few = least + rng.below(FEW_EXTENTS + 1 - least);
                n.budget.set_limit(few as u32);
            }
        }
    }

    /// A small node is given as much as the others have.
    pub(crate) fn raise_limit(&mut self, node: usize) {
        let budget = &self.nodes[node].budget;
        if u64::from(budget.limit()) < NODE_EXTENTS {
            budget.set_limit(NODE_EXTENTS as u32);
            self.cover.count("memory of a small node raised");
        }
    }

    /// A data bucket of registers wishes for more than it has, or less.
    pub(crate) fn change_wish(&mut self, node: usize) {
        let calm = self.healing || self.service() != Service::Registers;
        if calm || self.room.wishes == 0 || !self.rng.chance(self.room.wishes) {
            return;
        }
        let extents = self.rng.below(WISH_MAX + 1) as u32;
        let Some(member) = self.nodes[node].member.as_deref_mut() else {
            return;
        };
        if !member.serving() {
            return;
        }
        let (before, missing) = (member.wanted_extents(), member.progress().0);
        member.want_extents(extents);
        let after = member.wanted_extents();
        let has = member.pages().map_or(0, |p| p.reserved());
        self.cover.count(match () {
            () if after > has => "wish beyond the own memory",
            () if after > before => "wish raised",
            () if after < before && missing > 0 => "wish lowered with pages missing",
            () if after < before => "wish lowered",
            () => "wish as before",
        });
        self.with_member(node, |m, now, out, _| m.flush(now, out));
    }

    /// Every data bucket that serves makes some updates to one page, at the same offsets in it. In half of
    /// the bursts they are given the same seqs.
    pub(crate) fn burst(&mut self) {
        let calm = self.healing || self.service() != Service::Registers;
        if calm || self.room.bursts == 0 || !self.rng.chance(self.room.bursts) {
            return;
        }
        let page = self.rng.pick(&PAGES);
        let serving: Vec<usize> = (0..self.nodes.len())
            .filter(|n| {
                let member = self.nodes[*n].member.as_deref();
                member.is_some_and(|m| m.serving())
            })
            .collect();
        let last = |w: &World, n: usize| w.nodes[n].member.as_deref().map_or(0, |m| m.last());
        let from = serving.iter().map(|n| last(self, *n)).max();
        let from = from.filter(|_| self.rng.chance(500)).unwrap_or(0);
        let lacks = |n: &crate::world::SimNode| {
            let table = n.member.as_deref().and_then(|m| m.table());
            table.is_some_and(|t| !t.is_here(page))
        };
        self.cover.count(match self.nodes.iter().any(lacks) {
            true => "burst at a page that somebody lacks",
            false => "burst at a page",
        });
        for node in serving {
            // Updates without bytes bring it to the others' seq.
            let behind = from.saturating_sub(last(self, node)).min(12);
            let count = 2 + self.rng.below(4);
            let made = (0..behind).all(|_| self.update(node, None));
            let made = made && (0..count).all(|i| self.update(node, Some((page, i))));
            if !made {
                self.cover.count("burst cut short");
            }
            self.with_member(node, |m, now, out, _| m.flush(now, out));
        }
    }

    // An update of eight bytes that no register has, or of none; false if it cannot be made now.
    fn update(&mut self, node: usize, at: Option<(u32, u64)>) -> bool {
        let value = self.rng.number();
        let number = self.made + 1;
        let Some(member) = self.nodes[node].member.as_deref_mut() else {
            return false;
        };
        let run = |(page, i): (u32, u64)| Run {
            offset: u64::from(page) * PAGE_BYTES as u64 + 2048 + 8 * i,
            len: 8,
            kind: RunKind::Bytes,
        };
        let runs: Vec<Run> = at.map(run).into_iter().collect();
        let need = at.map_or(0, |(page, _)| page / EXTENT_PAGES + 1);
        let fits = member.usable_extents() >= need
            && member.absent_in(&runs).is_none()
            && member.admit(120).is_ok();
        let (Some(slot), true) = (member.slot(), fits) else {
            return false;
        };
        let bytes = match at {
            Some(_) => Bytes::copy_from_slice(&value.to_le_bytes()),
            None => Bytes::new(),
        };
        let epoch = member.epoch();
        let seq = member.update(None, Bytes::new(), runs.clone(), bytes.clone());
        self.made = number;
        let (label, client, floor) = (Label { epoch, seq }, BURSTS, 0);
        let request = RequestId {
            client,
            number,
            floor,
        };
        self.ghost.made(slot.index(), label, request, runs, bytes);
        true
    }

    /// I11 where memory stays short: whoever has not got what it wished for, or no memory for a joiner, keeps
    /// nobody from opening an epoch; and a joiner that is listed in an open epoch has the memory it needs.
    pub(crate) fn heal_short_of_memory(&mut self) {
        if self.m == 1 || self.doomed() {
            return;
        }
        for node in 0..self.nodes.len() {
            if self.rng.chance(500) {
                self.fill_memory(node);
            }
        }
        let end = self.now + SHORT_MS_MAX * MS;
        let whole = |w: &World| {
            let group = w.committed();
            group.open && group.listed().all(|(_, x)| x.complete && !w.is_dead(x))
        };
        while self.now < end && self.violations.is_empty() && !whole(self) && self.step() {}
        self.cover.count("healed while short of memory");
        if !whole(self) && self.violations.is_empty() && !self.doomed() {
            let (group, members) = (self.committed().clone(), self.describe());
            self.violation(format!(
                "I11 no rest while memory is short: {group:?}; {members}"
            ));
        }
    }
}
