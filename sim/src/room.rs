//! Memory in worlds with m > 1: data buckets that wish for more of it and give it back, nodes that have too
//! little, and bursts of updates to one page.

use bytes::Bytes;
use staves_model::{ClientId, Label, PAGE_BYTES};
use staves_store::{EXTENT_BYTES, EXTENT_PAGES};
use staves_wire::group::{RequestId, Run, RunKind};

use crate::group::SimGroup;
use crate::node::PAGES;
use crate::rng::Rng;
use crate::scale::{MS, NODE_EXTENTS};
use crate::world::World;

/// Most extents that a data bucket of registers wishes for; it needs two.
const WISH_MAX: u64 = 5;
/// Most extents of a node that has few. Registers need two, a region up to three.
const FEW_EXTENTS: u64 = 3;
/// The name of the requests in a burst.
const BURSTS: ClientId = ClientId(1 << 40);
/// With memory as short as it was, everything listed must be open and whole within so long.
const SHORT_MS_MAX: u64 = 15_000;

// Eight bytes in the middle of a page, where no register lies.
fn bytes_at(page: u32, i: u64) -> Run {
    Run {
        offset: u64::from(page) * PAGE_BYTES as u64 + 2048 + 8 * i,
        len: 8,
        kind: RunKind::Bytes,
    }
}

impl World {
    /// Makes nodes small in a tight world: most of them, so that no choice of members avoids them.
    pub(crate) fn make_tight(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ 0x5449_4748);
        let least = |g: &SimGroup| if g.has_regions { 3 } else { 2 };
        let least: u64 = self.groups.iter().map(least).sum();
        let few = FEW_EXTENTS.max(least + u64::from(self.groups.len() > 1));
        for n in &self.nodes[..self.hosts()] {
            if self.room.tight && rng.chance(700) {
                let few = least + rng.below(few + 1 - least);
                n.budget.set_limit(few as u32);
            }
        }
    }

    /// A small node is given as much as the others have.
    pub(crate) fn raise_limit(&mut self, node: usize) {
        let budget = &self.nodes[node].budget;
        let all = self.seats_of(node).len() as u64 * NODE_EXTENTS;
        if u64::from(budget.limit()) < all {
            budget.set_limit(all as u32);
            self.cover.count("memory of a small node raised");
        }
    }

    /// A data bucket of registers wishes for more than it has, or less, and uses it; and others on the node
    /// take what memory there is, or give it back.
    pub(crate) fn change_wish(&mut self, node: usize) {
        let of = self.group_at(node);
        let calm = self.is_sound() || of.load.is_some() || of.m == 1;
        if calm || self.room.wishes == 0 {
            return;
        }
        self.take_more(node);
        if !self.rng.chance(self.room.wishes) {
            return;
        }
        if self.room.tight && self.rng.chance(400) {
            return self.contend(node);
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
        self.use_up(node);
        self.with_member(node, |m, now, out, _| m.flush(now, out));
    }

    // Who has taken what there was takes what comes back, too.
    fn take_more(&mut self, node: usize) {
        let host = self.host_of(node);
        let n = &mut self.nodes[host];
        let free = n.budget.limit().saturating_sub(n.budget.taken());
        if self.room.tight && n.taken > 0 && n.budget.take(free) {
            n.taken += free;
        }
    }

    fn contend(&mut self, node: usize) {
        let host = self.host_of(node);
        let n = &mut self.nodes[host];
        let free = n.budget.limit().saturating_sub(n.budget.taken());
        if n.taken > 0 {
            n.budget.give(n.taken);
            n.taken = 0;
            self.cover.count("others give memory back");
        } else if n.budget.take(free) {
            n.taken = free;
            self.cover.count("others take what memory there is");
        }
    }

    // The last extent that may be used, beyond those of the registers, is written or freed.
    fn use_up(&mut self, node: usize) {
        let Some(member) = self.nodes[node].member.as_deref() else {
            return;
        };
        let last = member.usable_extents().saturating_sub(1);
        if last <= PAGES[PAGES.len() - 1] / EXTENT_PAGES {
            return;
        }
        let i = self.rng.below(8);
        if self.rng.chance(500) {
            let put = bytes_at(last * EXTENT_PAGES, i);
            if self.update(node, vec![put], true) {
                self.cover.count("extent used as soon as it is granted");
            }
        } else {
            let free = Run {
                offset: u64::from(last) * EXTENT_BYTES as u64,
                len: EXTENT_BYTES as u32,
                kind: RunKind::Zero,
            };
            self.update(node, vec![free], false);
        }
    }

    /// Every data bucket of a group that serves makes some updates to one page, mostly one that somebody lacks and now
    /// asks for. In half of the bursts one data bucket ends with the label with which the next begins.
    pub(crate) fn burst(&mut self, g: usize) {
        let calm = self.healing || self.groups[g].m == 1;
        if calm || self.room.bursts == 0 || !self.rng.chance(self.room.bursts) {
            return;
        }
        let (page, lacks) = self.lacked_page(g);
        let mut serving: Vec<(u8, usize)> = (0..self.nodes.len())
            .filter_map(|n| {
                let own = self.nodes[n]
                    .member
                    .as_deref()
                    .filter(|_| self.nodes[n].group == g);
                let member = own.filter(|m| m.serving())?;
                Some((member.slot()?.0, n))
            })
            .collect();
        serving.sort_unstable();
        let serving: Vec<usize> = serving.into_iter().map(|(_, n)| n).collect();
        self.cover.count(match lacks {
            Some(_) => "burst at a page that somebody lacks",
            None => "burst at a page",
        });
        let count: Vec<u64> = serving.iter().map(|_| 2 + self.rng.below(4)).collect();
        let mut ahead = vec![0; serving.len()];
        if serving.len() > 1 && self.rng.chance(700) {
            let first = self.rng.below(serving.len() as u64 - 1) as usize;
            let end = self.last_made(serving[first]) + count[first];
            let begin = self.last_made(serving[first + 1]) + 1;
            ahead[first] = begin.saturating_sub(end).min(20);
            ahead[first + 1] = end.saturating_sub(begin).min(20);
        }
        for (i, node) in serving.into_iter().enumerate() {
            // Updates without bytes bring it as far as the other.
            let made = (0..ahead[i]).all(|_| self.update(node, vec![], true));
            let made =
                made && (0..count[i]).all(|at| self.update(node, vec![bytes_at(page, at)], true));
            if !made {
                self.cover.count("burst cut short");
            }
            self.with_member(node, |m, now, out, _| m.flush(now, out));
        }
        if let Some(node) = lacks {
            self.with_member(node, |m, now, out, _| m.demand(now, page, 1, out));
        }
    }

    fn last_made(&self, node: usize) -> u64 {
        self.nodes[node].member.as_deref().map_or(0, |m| m.last())
    }

    // A page of the registers, and who lacks it; if nobody lacks any, whichever.
    fn lacked_page(&mut self, g: usize) -> (u32, Option<usize>) {
        let lacks = |node: usize, page: u32| {
            let member = self.nodes[node].member.as_deref().filter(|m| m.is_open());
            let table = member.and_then(|m| m.table());
            table.is_some_and(|t| !t.is_here(page))
        };
        let own = (0..self.nodes.len()).filter(|n| self.nodes[*n].group == g);
        let all = own.flat_map(|n| PAGES.map(|p| (p, n)));
        let lacked: Vec<(u32, usize)> = all.filter(|(p, n)| lacks(*n, *p)).collect();
        match lacked.is_empty() {
            true => (self.rng.pick(&PAGES), None),
            false => {
                let (page, node) = self.rng.pick(&lacked);
                (page, Some(node))
            }
        }
    }

    // An update of bytes that no register has; false if it cannot be made now.
    fn update(&mut self, node: usize, runs: Vec<Run>, puts: bool) -> bool {
        let value = self.rng.number();
        let number = self.made + 1;
        let Some(member) = self.nodes[node].member.as_deref_mut() else {
            return false;
        };
        let end = |r: &Run| (r.offset + u64::from(r.len)).div_ceil(EXTENT_BYTES as u64) as u32;
        let need = runs.iter().map(end).max().unwrap_or(0);
        let fits = member.serving()
            && member.usable_extents() >= need
            && member.absent_in(&runs).is_none()
            && member.admit(200).is_ok();
        let (Some(slot), true) = (member.slot(), fits) else {
            return false;
        };
        let bytes = match runs.is_empty() || !puts {
            true => Bytes::new(),
            false => Bytes::copy_from_slice(&value.to_le_bytes()),
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
        let ghost = &mut self.groups[self.nodes[node].group].ghost;
        ghost.made(slot.index(), label, request, runs, bytes);
        true
    }

    /// I11 where memory stays short: whoever has not got what it wished for, or no memory for a joiner, keeps
    /// nobody from opening an epoch; and a joiner that is listed in an open epoch has the memory it needs.
    pub(crate) fn heal_short_of_memory(&mut self) {
        let coded = |w: &World, g: &usize| w.groups[*g].m > 1 && !w.doomed(*g);
        if !self.all_groups().any(|g| coded(self, &g)) {
            return;
        }
        for node in 0..self.hosts() {
            if self.rng.chance(500) {
                self.fill_memory(node);
            }
        }
        let end = self.now + SHORT_MS_MAX * MS;
        let whole = |w: &World| {
            w.all_groups().filter(|g| coded(w, g)).all(|g| {
                let group = w.committed(g);
                group.open && group.listed().all(|(_, x)| x.complete && !w.is_dead(g, x))
            })
        };
        while self.now < end && self.violations.is_empty() && !whole(self) && self.step() {}
        self.cover.count("healed while short of memory");
        if !whole(self) && self.violations.is_empty() {
            let (group, members) = (self.restless(), self.describe());
            self.violation(format!(
                "I11 no rest while memory is short: {group}; {members}"
            ));
        }
    }
}
