//! The invariants of docs/reference/group-protocol.md, checked as the run goes on. I8 and I9 are checked over the clients'
//! history at its end (`history.rs`), I4 at rest (`run.rs`).

use std::collections::BTreeMap;

use staves_erasure::field;
use staves_group::{Durability, Member};
use staves_model::{Epoch, Group, Label, MemberSlot, PAGE_BYTES, bucket_slot};
use staves_wire::group::{Delta, RequestId};

use crate::ghost::Done;
use crate::node::PAGES;
use crate::world::World;

impl World {
    /// After each step of a member.
    pub fn check_member(&mut self, node: usize) {
        // Who still has the group of a region that is gone is judged by what its clients see.
        let Some(member) = self.nodes[node]
            .member
            .as_ref()
            .filter(|m| self.is_of_group(node, m))
        else {
            return;
        };
        let g = self.nodes[node].group;
        let mut bad = Vec::new();
        let mut rose = Vec::new();
        for stream in 0..self.groups[g].m {
            let Some(s) = member.stream(stream) else {
                continue;
            };
            // What is brought to a cut may take as much again, and a single delta is always let in.
            if s.log.bytes() > 2 * self.log_bytes_max(g).max(self.delta_max(g)) {
                bad.push(format!(
                    "I10 log of {} bytes at node {node} (slot {:?}): from {:?}, received {}, stable {}, highest {:?}",
                    s.log.bytes(),
                    member.slot(),
                    s.log.first(),
                    s.prefix,
                    s.stable,
                    s.log.highest()
                ));
            }
            if s.stable > s.prefix
                && member.is_data()
                && member.slot() == Some(MemberSlot(stream as u8))
            {
                bad.push(format!(
                    "I1 stable {} beyond own prefix {} at node {node}",
                    s.stable, s.prefix
                ));
            }
            if s.synced > s.prefix {
                bad.push(format!(
                    "S3 node {node} counts {} of stream {stream} as synced, received is {}",
                    s.synced, s.prefix
                ));
            }
            let purged = s.log.first().map_or(s.prefix, |f| f - 1);
            let (epoch, before) = self.purged[node][stream];
            if epoch == member.installed() && purged > before {
                rose.push((stream, purged));
            }
            self.purged[node][stream] = (member.installed(), purged);
        }
        for (stream, purged) in rose {
            if let Some(what) = self.bad_purge(node, stream, purged) {
                bad.push(what);
            }
        }
        if self.groups[g].m > 1 && member.is_stalled() {
            bad.push(format!(
                "a seq is never refused, but node {node} (slot {:?}) has no memory for what it has received",
                member.slot()
            ));
        }
        bad.extend(self.bad_rest(node, member));
        bad.extend(self.bad_promise(node));
        bad.extend(self.bad_reset(node));
        for what in bad {
            self.violation(what);
        }
        if self.steps.is_multiple_of(16) {
            self.check_page(node);
        }
    }

    fn is_of_group(&self, node: usize, member: &Member) -> bool {
        member.id() == self.group_at(node).id
    }

    // Rule 16: a page that was done stays done while its member lives, unless it carries what was cut off.
    fn bad_reset(&mut self, node: usize) -> Option<String> {
        let member = self.nodes[node].member.as_deref()?;
        let (table, slot) = (member.table()?, member.slot()?);
        let m = self.group_at(node).m;
        let life = Some((self.nodes[node].incarnation, slot));
        let here = PAGES.iter().filter(|p| table.is_here(**p));
        let pages: BTreeMap<u32, Vec<Label>> = here.map(|p| (*p, table.labels(*p))).collect();
        let before = &self.done[node];
        let stays = before.life == life && member.view().is_some_and(|g| g.retained(slot));
        let cut_off = |labels: &[Label]| {
            let beyond = |(column, label): (usize, &Label)| {
                let stream = if labels.len() == 1 {
                    bucket_slot(m as u8, slot).index().min(m - 1)
                } else {
                    column
                };
                member.stream(stream).is_none_or(|s| label.seq > s.prefix)
            };
            labels.iter().enumerate().any(beyond)
        };
        let mut gone = before.pages.iter().filter(|(p, _)| !pages.contains_key(p));
        let gone = gone.find(|(_, labels)| stays && !cut_off(labels));
        let what = gone.map(|(page, labels)| {
            format!("R16 page {page} of node {node} ({slot}), done at {labels:?}, is missing again")
        });
        self.done[node] = Done { life, pages };
        what
    }

    // What I7 rests on: a promise that a data bucket counts was made, and by that very member.
    fn bad_promise(&self, node: usize) -> Option<String> {
        let g = self.nodes[node].group;
        let member = self.nodes[node].member.as_ref()?;
        let group = member.view()?;
        for slot in group.protectors(member.slot()?.index()) {
            let x = group.member(slot)?;
            let counted = self.nodes[node].true_time(member.promise_of(slot)?);
            let Some(other) = self
                .entry_of(g, x.id)
                .filter(|n| self.nodes[*n].lives(x.id.incarnation))
            else {
                continue;
            };
            let Some(peer) = self.nodes[other]
                .member
                .as_deref()
                .filter(|p| p.epoch() == member.epoch())
            else {
                continue;
            };
            let made = peer
                .promised(member.slot()?.index())
                .map_or(0, |t| self.nodes[other].true_time(t));
            if counted > self.now && counted > made {
                return Some(format!(
                    "I7 node {node} counts a promise of node {other} until {counted}, which made one until {made}"
                ));
            }
        }
        None
    }

    // I3: purged means received by every member listed, and nothing is purged in an epoch not open.
    fn bad_purge(&self, node: usize, stream: usize, purged: u64) -> Option<String> {
        let (g, m) = (self.nodes[node].group, self.group_at(node).m);
        let member = self.nodes[node].member.as_ref()?;
        let own = member
            .slot()
            .map(|s| bucket_slot(m as u8, s).index())
            .is_some_and(|s| s != stream && s < m);
        if own {
            return None;
        }
        if !member.is_open() {
            return Some(format!(
                "I3 node {node} purged to {purged} in {:?}, not open",
                member.epoch()
            ));
        }
        let group = member.view()?;
        for slot in group.protectors(stream) {
            let x = group.member(slot)?;
            let Some(other) = self
                .entry_of(g, x.id)
                .filter(|n| self.nodes[*n].lives(x.id.incarnation))
            else {
                continue;
            };
            let Some(peer) = self.nodes[other]
                .member
                .as_deref()
                .filter(|p| p.epoch() == member.epoch())
            else {
                continue;
            };
            let (prefix, synced) = peer.stream(stream).map_or((0, 0), |s| (s.prefix, s.synced));
            if peer.installed() == peer.epoch() && prefix < purged {
                return Some(format!(
                    "I3 node {node} purged to {purged}, node {other} has {prefix}"
                ));
            }
            if peer.installed() == peer.epoch() && synced < purged {
                return Some(format!(
                    "S2 node {node} purged to {purged}, node {other} has synced {synced}"
                ));
            }
        }
        None
    }

    // I2, I6: a page that is here holds what its labels say, no delta twice, no version mixed.
    fn check_page(&mut self, node: usize) {
        let page = PAGES[(self.steps / 16) as usize % PAGES.len()];
        if let Some(what) = self.nodes[node]
            .member
            .as_ref()
            .and_then(|m| self.bad_page(node, m, page))
        {
            self.violation(what);
        }
    }

    /// The fault of a member's page, by the deltas that its labels name. (The deltas of a
    /// service are its own; its state is checked against the pages instead.)
    pub fn bad_page(&self, node: usize, member: &Member, page: u32) -> Option<String> {
        let of = self.group_at(node);
        if of.load.is_some() {
            return None;
        }
        let slot = bucket_slot(of.m as u8, member.slot()?).index();
        let table = member.table()?;
        if !table.is_here(page) {
            return None;
        }
        let streams: Vec<usize> = if slot < of.m {
            vec![slot]
        } else {
            (0..of.m).collect()
        };
        let mut expected = vec![0u8; PAGE_BYTES];
        for (column, stream) in streams.iter().enumerate() {
            let applied = member.stream(*stream)?.applied;
            let label = table.label(page, column);
            let content = of.ghost.page(*stream, page, label);
            // One that changed nothing on this page leaves no label there.
            let newest = of.ghost.newest_of(*stream, page, applied);
            let changed = |l: &Label| of.ghost.page(*stream, page, *l) != content;
            let due = newest.filter(|l| *l > label && l.epoch <= member.epoch());
            if due.filter(changed).is_some() {
                return Some(format!(
                    "I6 page {page} of node {node} (slot {slot}) is at {label:?}, but {newest:?} of stream {stream} was applied"
                ));
            }
            if let Some(what) = self.bad_label(node, member, *stream, page, label) {
                return Some(what);
            }
            let coefficient = match slot.checked_sub(of.m) {
                Some(parity) => of.code.coefficient(parity, *stream),
                None => 1,
            };
            for (e, c) in expected.iter_mut().zip(&content?) {
                *e ^= field::mul(coefficient, *c);
            }
        }
        let held = table
            .pages()
            .page(page)
            .map_or(vec![0; PAGE_BYTES], <[u8]>::to_vec);
        (held != expected).then(|| {
            let at = held.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or(0);
            format!(
                "I2/I6 page {page} of node {node} (slot {slot}) differs at byte {at} from its labels {:?}",
                table.labels(page)
            )
        })
    }

    // Rules 9 and 15: a page that is here carries nothing that its member has not received, and nothing
    // that was cut off.
    fn bad_label(
        &self,
        node: usize,
        member: &Member,
        stream: usize,
        page: u32,
        label: Label,
    ) -> Option<String> {
        let prefix = member.stream(stream)?.prefix;
        if label.seq > prefix {
            return Some(format!(
                "I6 page {page} of node {node} is at {label:?}, received is {prefix}"
            ));
        }
        let current = member.epoch() == self.committed(self.nodes[node].group).last_open.epoch
            && member.installed() == member.epoch();
        let counts = self.group_at(node).ghost.label_at(stream, label.seq)?;
        (current && counts != label && counts.epoch <= member.epoch()).then(|| {
            format!("I5 page {page} of node {node} is at {label:?}, what counts is {counts:?}")
        })
    }

    /// A read is about to be answered (I7).
    pub fn check_read(&mut self, node: usize) {
        self.check_life(node);
        let Some(member) = self.nodes[node]
            .member
            .as_ref()
            .filter(|m| self.is_of_group(node, m))
        else {
            return;
        };
        let last_open = &self.committed(self.nodes[node].group).last_open;
        let slot = member.slot().unwrap_or_default();
        let holds = last_open
            .members
            .get(slot.index())
            .copied()
            .flatten()
            .is_some_and(|x| x.id == self.nodes[node].member_id());
        if last_open.epoch > member.epoch() && !holds {
            let what = format!(
                "I7 node {node} answers a read in {:?}, open is {:?}",
                member.epoch(),
                last_open.epoch
            );
            self.violation(what);
        }
    }

    /// A read is about to show what a request wrote (I8): every listed copy that is there has it.
    pub(crate) fn check_shown(&mut self, node: usize, request: RequestId) {
        let name = |r: &RequestId| (r.client, r.number);
        let what = self.bad_shown(node, |delta| {
            delta.request.as_ref().map(name) == Some(name(&request))
        });
        what.into_iter().for_each(|what| self.violation(what));
    }

    /// The same of a register's value.
    pub(crate) fn check_shown_value(&mut self, node: usize, value: u64) {
        let what = self.bad_shown(node, |delta| delta.bytes[..] == value.to_le_bytes());
        what.into_iter().for_each(|what| self.violation(what));
    }

    // By the data bucket's own log, which holds what may not be everywhere yet, and by what its peers really received.
    fn bad_shown(&self, node: usize, is_shown: impl Fn(&Delta) -> bool) -> Option<String> {
        let member = self.nodes[node].member.as_deref()?;
        let stream = member.slot().filter(|_| member.is_data())?.index();
        let log = &member.stream(stream)?.log;
        let label = log.all().filter(|delta| is_shown(delta)).last()?.label;
        let group = member.view().filter(|_| label.epoch == member.epoch())?;
        for slot in group.protectors(stream) {
            let other = group.member(slot);
            let other = other.and_then(|x| self.entry_of(self.nodes[node].group, x.id));
            let peer = other.and_then(|n| self.nodes[n].member.as_deref());
            let peer = peer.filter(|p| p.installed() == member.epoch());
            let received = peer.and_then(|p| p.stream(stream)).map(|s| s.prefix);
            if received.is_some_and(|received| received < label.seq) {
                return Some(format!(
                    "I8 node {node} shows what {label:?} wrote, and slot {slot} has received {received:?}"
                ));
            }
        }
        None
    }

    /// A write is about to be answered (I7, I1). A seq of 0: a retry, answered again.
    pub fn check_ack(&mut self, node: usize, seq: u64) {
        self.check_life(node);
        let Some(member) = &self.nodes[node].member else {
            return;
        };
        let (epoch, stream) = (member.epoch(), member.slot().unwrap_or_default().index());
        let g = self.nodes[node].group;
        let last_open = self.committed(g).last_open.epoch;
        if last_open > epoch {
            let next = self.groups[g].ghost.cuts.range(epoch.next()..).next();
            let cut = next.and_then(|(_, cuts)| cuts.get(&stream)).copied();
            if cut.is_some_and(|cut| seq > cut) {
                let what = format!(
                    "I7 node {node} acknowledges {seq} of {epoch:?}, beyond its successor's cut {cut:?}"
                );
                self.violation(what);
            }
        } else {
            let acked = self.groups[g].ghost.acked.entry(stream).or_default();
            *acked = (*acked).max(seq);
            if let Some(what) = self.bad_sync(node, stream, seq) {
                self.violation(what);
            }
        }
    }

    // S1: where answers are durable, every listed member has synced what is acknowledged.
    fn bad_sync(&self, node: usize, stream: usize, seq: u64) -> Option<String> {
        let g = self.nodes[node].group;
        if self.groups[g]
            .late
            .is_none_or(|late| late.durability != Durability::Durable)
        {
            return None;
        }
        let member = self.nodes[node].member.as_deref()?;
        let group = member.view()?;
        for slot in group.protectors(stream).chain([MemberSlot(stream as u8)]) {
            let other = group.member(slot).and_then(|x| self.entry_of(g, x.id));
            let peer = other.and_then(|n| self.nodes[n].member.as_deref());
            let Some(peer) = peer.filter(|p| p.installed() == member.epoch()) else {
                continue;
            };
            let synced = peer.stream(stream).map_or(0, |s| s.synced);
            if synced < seq {
                return Some(format!(
                    "S1 node {node} acknowledges {seq}, slot {slot} has synced {synced}"
                ));
            }
        }
        None
    }

    /// The directory has just opened an epoch: what was acknowledged must be within its cut (I1).
    pub fn check_opened(&mut self, g: usize) {
        let (group, m) = (self.committed(g).clone(), self.groups[g].m);
        let mut cuts = BTreeMap::new();
        for stream in 0..m {
            let holders: Vec<(u64, u64)> = group
                .listed()
                .filter(|(slot, _)| {
                    let of = group.bucket_slot(*slot).index();
                    of >= m || of == stream
                })
                .filter_map(|(_, x)| {
                    self.entry_of(g, x.id)
                        .filter(|n| self.nodes[*n].lives(x.id.incarnation))
                })
                .filter_map(|n| {
                    let member = self.nodes[n].member.as_deref()?;
                    Some(member).filter(|m| self.is_of_group(n, m))
                })
                .filter(|m| m.installed() == group.epoch)
                .filter_map(|m| m.stream(stream).map(|s| (s.prefix, s.synced)))
                .collect();
            let synced = holders.iter().map(|holder| holder.1).min();
            let Some(cut) = holders.iter().map(|holder| holder.0).min() else {
                continue;
            };
            let acked = self.groups[g]
                .ghost
                .acked
                .get(&stream)
                .copied()
                .unwrap_or(0);
            if let Some(synced) = synced.filter(|synced| *synced < cut) {
                self.violation(format!(
                    "S4 {:?} opens with stream {stream} cut at {cut}, of which a member has synced {synced}",
                    group.epoch
                ));
            }
            if acked > cut {
                self.violation(format!(
                    "I1 {:?} opens with stream {stream} cut at {cut}, acknowledged was {acked}",
                    group.epoch
                ));
            }
            cuts.insert(stream, cut);
            if let Some(made) = self.groups[g].ghost.streams.get_mut(&stream) {
                made.split_off(&(cut + 1));
            }
        }
        self.groups[g].ghost.cuts.insert(group.epoch, cuts);
        self.check_leases(g, &group);
    }

    // I7: at the opening nobody else's lease holds any more.
    fn check_leases(&mut self, g: usize, group: &Group) {
        for node in 0..self.nodes.len() {
            let n = &self.nodes[node];
            let own = n.member.as_ref().filter(|_| n.group == g);
            let Some(member) = own.filter(|m| self.is_of_group(node, m)) else {
                continue;
            };
            let stays = group
                .slot_of(n.member_id())
                .is_some_and(|slot| slot.index() < self.groups[g].m && group.retained(slot));
            if n.up && !stays && member.may_read(n.clock(self.now)) {
                let what = format!(
                    "I7 {:?} opens while node {node} holds a lease of {:?}",
                    group.epoch,
                    member.epoch()
                );
                self.violation(what);
            }
        }
    }

    /// A takeover that nothing hindered must be over (I11).
    pub fn check_takeover(&mut self, g: usize, epoch: Epoch) {
        if self.healing {
            return;
        }
        let group = self.committed(g);
        if group.epoch == epoch && !group.open {
            self.violation(format!(
                "I11 {epoch:?} is still not open, though nothing hindered it"
            ));
        }
    }

    /// The map is right about losses: as many nodes as it says may go, any of them, and one node stops only
    /// where enough stay.
    pub(crate) fn check_tolerance(&mut self, g: usize) {
        let (map, group, m) = (&self.directory.map, self.committed(g), self.groups[g].m);
        if m == 1 || group.starts_anew() {
            return;
        }
        let (mut bad, hosts) = (Vec::new(), self.hosts());
        // By the map: who is dead and not found dead yet counts.
        let stay = |gone: u32| {
            staves_model::whole_buckets(group.m, &group.last_open.members, |x| {
                let at = self.node_of(x.id.node).unwrap_or(hosts);
                map.runs(x.id) && gone >> at & 1 == 0
            })
        };
        let tolerates = group.tolerates(|id| map.runs(id));
        if let Some(nodes) = tolerates.map(u32::from) {
            let sets = (0..1u32 << hosts).filter(|gone| gone.count_ones() == nodes);
            let fatal = sets.into_iter().find(|gone| stay(*gone) < m);
            bad.extend(
                fatal.map(|gone| format!("bears {nodes} losses, and not those of {gone:b}")),
            );
        }
        let keeps = self.loss != crate::scenario::Loss::StartsEmpty && tolerates.is_some();
        for node in (0..hosts).filter(|_| keeps) {
            let broken = map.after_stop(self.nodes[node].id, |_| false).broken;
            if broken.contains(&group.id) != (stay(1 << node) < m) {
                bad.push(format!(
                    "node {node} is asked to stop, and {broken:?} break"
                ));
            }
        }
        for what in bad {
            let group = self.committed(g).clone();
            self.violation(format!("R6 {what}: {group:?}"));
        }
    }

    /// A twin takes the place of another only with all its pages: until then the group would bear less.
    pub(crate) fn check_twins(&mut self, group: &Group) {
        for (slot, x) in group.listed() {
            let moved = group.kept[slot.index()].is_some_and(|from| from != slot);
            if group.m > 1 && moved && group.bucket_slot(slot) == slot && !x.complete {
                self.violation(format!("R14 a twin takes slot {slot} half made: {group:?}"));
            }
        }
    }
}
