//! Groups of several data buckets and parity (m > 1): their directory, and the check that parity is the code of the data.

use staves_erasure::Code;
use staves_model::{
    Epoch, GroupId, Member, MemberId, MemberSlot, NodeId, PAGE_BYTES, PARITY_SLOTS, Unflushed,
};

use crate::client::{REGISTERS, place};
use crate::cluster::Cluster;
use crate::directory::Directory;

impl Directory {
    /// Commits the next epoch of a coded group: members keep their slots, and vacant ones go to nodes that have none.
    pub fn commit_coded(&mut self, group: GroupId, without: &[MemberSlot]) -> bool {
        let entry = &self.groups[&group];
        let (m, width) = (usize::from(entry.m), self.width);
        let fresh = entry.last_open.epoch == Epoch(0);
        let mut sources = entry.last_open.members.clone();
        sources.resize(width, None);
        let sources = sources
            .into_iter()
            .map(|x: Option<Member>| x.filter(|x| self.runs(x.id)));
        let sources: Vec<Option<Member>> = sources.collect();
        let stays = |x: &Member| {
            let slot = entry.slot_of(x.id);
            !slot.is_some_and(|slot| without.contains(&slot))
        };
        let whole = |kept: &[Option<Member>]| kept.iter().flatten().filter(|x| x.complete).count();
        let mut kept: Vec<Option<Member>> = sources.iter().map(|x| x.filter(stays)).collect();
        let keeps = |kept: &[Option<Member>]| kept.iter().flatten().map(|x| x.id).collect();
        let loses = self.fate(group, keeps(&kept)) == Unflushed::Awaited;
        if whole(&kept) < m || loses {
            kept = sources.clone();
        }
        let fate = self.fate(group, keeps(&kept));
        if fate == Unflushed::Awaited {
            return false;
        }
        if !fresh && whole(&kept) < m {
            return false;
        }
        let is_source = |node: u64| sources.iter().flatten().any(|x| x.id.node.0 == node);
        let joiners = self.lives.iter().filter(|(node, _)| !is_source(**node));
        let mut joiners = joiners.map(|(node, life)| MemberId::new(NodeId(*node), *life));
        let mut members = kept.clone();
        for x in members.iter_mut().filter(|x| x.is_none()) {
            let complete = fresh;
            *x = joiners.next().map(|id| Member { id, complete });
        }
        if fresh && members[..m].iter().any(Option::is_none) {
            return false;
        }
        let leads = |x: &Option<Member>| x.is_some_and(|x| x.complete);
        let coordinator = match fresh {
            true => Some(0),
            false => kept.iter().position(leads),
        };
        let Some(coordinator) = coordinator else {
            return false;
        };
        let from = (0..).zip(&kept);
        let from = from.map(|(slot, x)| x.map(|_| MemberSlot(slot))).collect();
        self.give_up_unflushed(group, fate);
        let entry = self.groups.get_mut(&group).expect("a group");
        entry.epoch = entry.epoch.next();
        (entry.open, entry.fresh) = (false, fresh);
        entry.coordinator = MemberSlot(coordinator as u8);
        (entry.members, entry.kept) = (members, from);
        entry.revision.0 += 1;
        true
    }
}

impl Cluster {
    /// Once all is quiet, each page of a parity bucket is the code of those of the data buckets, and has their labels.
    pub fn check_code(&self) {
        let m = usize::from(self.m);
        let code = Code::new(m, usize::from(PARITY_SLOTS)).expect("a code");
        for (group, entry) in &self.directory.groups {
            let table = |slot: usize| {
                let id = entry.members[slot]?.id;
                let process = self.nodes[id.node.0 as usize - 1].process.as_ref()?;
                process.members.get(group)?.table()
            };
            let data: Vec<_> = (0..m).map(|slot| table(slot).expect("it serves")).collect();
            for slot in m..entry.members.len() {
                let Some(parity) = table(slot) else { continue };
                for register in 0..REGISTERS {
                    let (at, page) = (
                        place(register),
                        (place(register) / PAGE_BYTES as u64) as u32,
                    );
                    let mut sum = vec![0; PAGE_BYTES];
                    for (stream, data) in data.iter().enumerate() {
                        let label = (data.label(page, 0), parity.label(page, stream));
                        let bytes = data.pages().slice(at, PAGE_BYTES);
                        code.apply(slot - m, stream, bytes, &mut sum);
                        assert!(
                            label.0 == label.1,
                            "UNEQUAL labels of group {group}, slot {slot}, page {register}: {label:?}"
                        );
                    }
                    let same = parity.pages().slice(at, PAGE_BYTES) == sum;
                    assert!(same, "UNEQUAL: group {group}, slot {slot}, page {register}");
                }
            }
        }
    }
}
