//! A directory that does what the rules ask for, for groups of copies (m = 1); of coded ones see [`crate::coded`].

use std::collections::BTreeMap;

use staves_group::{DirectoryCall, GroupStep};
use staves_model::{
    Epoch, Group, GroupId, Incarnation, LastOpen, Member, MemberId, MemberSlot, NodeId, PoolId,
    Revision, Unflushed,
};

use crate::writeback::Writeback;

/// The entries of all groups, and the lives of the nodes that run.
pub struct Directory {
    pub groups: BTreeMap<GroupId, Group>,
    /// The present life of each node that runs.
    pub lives: BTreeMap<u64, Incarnation>,
    /// Copies that are wanted.
    pub width: usize,
    /// An older disk counts, too: a planted bug.
    pub takes_older: bool,
    /// Write-back, if the groups have it.
    pub writeback: Option<Writeback>,
    next_life: u64,
}

impl Directory {
    pub fn new(groups: u32, m: u8, width: usize) -> Directory {
        let entry = |id| Group {
            id: GroupId(id),
            pool: PoolId(1),
            bucket: id,
            m,
            epoch: Epoch(0),
            open: false,
            coordinator: MemberSlot(0),
            members: vec![None; usize::from(m)],
            kept: vec![None; usize::from(m)],
            fresh: false,
            last_open: LastOpen::default(),
            lost: false,
            revision: Revision(1),
        };
        Directory {
            groups: (1..=groups).map(|id| (GroupId(id), entry(id))).collect(),
            lives: BTreeMap::new(),
            width,
            takes_older: false,
            writeback: None,
            next_life: 1,
        }
    }

    /// A node starts, with these members on its disk. Members of last open epochs are retained in the new life (D-11).
    pub fn node_up(&mut self, node: u64, claims: &[(GroupId, Epoch)]) -> Incarnation {
        let life = Incarnation(self.next_life);
        self.next_life += 1;
        self.lives.insert(node, life);
        if let Some(writeback) = &mut self.writeback {
            writeback.last_lives.insert(node, life);
        }
        for (group, epoch) in claims {
            let entry = self.groups.get_mut(group).expect("a group");
            if *epoch < entry.last_open.epoch && !self.takes_older {
                continue;
            }
            let members = entry.last_open.members.iter_mut().flatten();
            for member in members.filter(|x| x.id.node.0 == node && x.complete) {
                member.id.incarnation = life;
                entry.revision.0 += 1;
                if let Some(writeback) = &mut self.writeback {
                    writeback.broke(*group, node);
                }
            }
        }
        life
    }

    /// A member is not there any more, though its node runs: its entries have no life.
    pub fn give_up(&mut self, group: GroupId, me: MemberId) {
        let entry = self.groups.get_mut(&group).expect("a group");
        let all = entry.members.iter_mut();
        let all = all.chain(&mut entry.last_open.members).flatten();
        for member in all.filter(|x| x.id == me) {
            member.id.incarnation = Incarnation::NONE;
            entry.revision.0 += 1;
        }
    }

    pub fn runs(&self, id: MemberId) -> bool {
        self.lives.get(&id.node.0) == Some(&id.incarnation)
    }

    /// Commits the next epoch of a group, without these slots, if enough of its sources run.
    pub fn commit(&mut self, group: GroupId, without: &[MemberSlot]) -> bool {
        let entry = &self.groups[&group];
        if entry.m > 1 {
            return self.commit_coded(group, without);
        }
        let sources: Vec<(MemberSlot, Member)> = (0..)
            .zip(&entry.last_open.members)
            .filter_map(|(slot, x)| Some((MemberSlot(slot), (*x)?)))
            .filter(|(_, x)| self.runs(x.id))
            .collect();
        let fresh = entry.last_open.epoch == Epoch(0);
        let goes = |x: &Member| {
            entry
                .slot_of(x.id)
                .is_some_and(|slot| without.contains(&slot))
        };
        let mut kept: Vec<_> = sources.iter().filter(|(_, x)| !goes(x)).copied().collect();
        let keeps = |kept: &[(MemberSlot, Member)]| kept.iter().map(|(_, x)| x.id).collect();
        let loses = self.fate(group, keeps(&kept)) == Unflushed::Awaited;
        if !kept.iter().any(|(_, x)| x.complete) || loses {
            kept = sources.clone();
        }
        let fate = self.fate(group, keeps(&kept));
        if fate == Unflushed::Awaited {
            return false;
        }
        kept.sort_by_key(|(_, x)| !x.complete);
        if !fresh && !kept.first().is_some_and(|(_, x)| x.complete) {
            return false;
        }
        let is_source = |node: u64| sources.iter().any(|(_, x)| x.id.node.0 == node);
        let joiners = self.lives.iter().filter(|(node, _)| !is_source(**node));
        let joiners = joiners.map(|(node, life)| MemberId::new(NodeId(*node), *life));
        let room = self.width.saturating_sub(kept.len());
        let joiners: Vec<MemberId> = joiners.take(room).collect();
        if kept.len() + joiners.len() == 0 {
            return false;
        }
        self.give_up_unflushed(group, fate);
        let entry = self.groups.get_mut(&group).expect("a group");
        entry.epoch = entry.epoch.next();
        (entry.open, entry.fresh) = (false, fresh);
        entry.coordinator = MemberSlot(0);
        let complete = fresh;
        let seats = kept.iter().map(|(_, x)| *x);
        let new = joiners.iter().map(|id| Member { id: *id, complete });
        entry.members = seats.chain(new).map(Some).collect();
        let from = kept.iter().map(|(slot, _)| Some(*slot));
        entry.kept = from.chain(joiners.iter().map(|_| None)).collect();
        entry.revision.0 += 1;
        true
    }

    /// True if a group's newest epoch cannot go on, or could have more copies.
    pub fn is_disturbed(&self, group: GroupId) -> bool {
        let entry = &self.groups[&group];
        let dead = entry.listed().any(|(_, x)| !self.runs(x.id));
        let all = entry.open && entry.listed().all(|(_, x)| x.complete);
        let few = all && entry.listed().count() < self.width.min(self.lives.len());
        dead || few || entry.epoch == Epoch(0)
    }

    /// Does what a member calls for. Slots that are reported stuck.
    pub fn call(&mut self, from: MemberId, call: &DirectoryCall) -> Vec<(GroupId, MemberSlot)> {
        match call {
            DirectoryCall::Step(GroupStep::Open { group, epoch }) => {
                let leased = self.writeback.as_ref().is_some_and(|w| w.leases(*group));
                let entry = self.groups.get_mut(group).expect("a group");
                if *epoch == entry.epoch && !entry.open && keeps_lives(entry) && !leased {
                    if let Some(writeback) = &mut self.writeback {
                        writeback.broken.remove(group);
                    }
                    entry.open = true;
                    entry.last_open = LastOpen {
                        epoch: *epoch,
                        members: entry.members.clone(),
                    };
                    entry.revision.0 += 1;
                }
            }
            DirectoryCall::Step(GroupStep::Complete {
                group, epoch, slot, ..
            }) => {
                let entry = self.groups.get_mut(group).expect("a group");
                let member = entry.members.get_mut(slot.index()).and_then(Option::as_mut);
                let Some(member) = member.filter(|x| x.id == from) else {
                    return Vec::new();
                };
                if *epoch == entry.epoch && entry.open && !member.complete {
                    member.complete = true;
                    let same = entry.last_open.members[slot.index()].as_mut();
                    if let Some(same) = same.filter(|x| x.id == from) {
                        same.complete = true;
                    }
                    entry.revision.0 += 1;
                }
            }
            DirectoryCall::Stuck {
                group,
                epoch,
                slots,
            } if self.groups[group].epoch == *epoch => {
                return slots.iter().map(|slot| (*group, *slot)).collect();
            }
            _ => {}
        }
        Vec::new()
    }
}

/// An epoch does not open with a life of which the node's disk has been claimed for a later one.
fn keeps_lives(entry: &Group) -> bool {
    let is_later = |x: &Member| {
        let mut sources = entry.last_open.members.iter().flatten();
        sources.any(|s| s.id.place() == x.id.place() && s.id.incarnation > x.id.incarnation)
    };
    !entry.listed().any(|(_, x)| is_later(x))
}
