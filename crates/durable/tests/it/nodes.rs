//! Nodes start from their disks and end, their disks are lost, and pages rot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use rand::Rng;
use staves_durable::{OpenedDisk, open};
use staves_group::{DiskRoom, Member, RecoveredMember};
use staves_model::mutant::{Mutant, planted};
use staves_model::{Epoch, GroupId, Incarnation, MemberId, NodeId, PAGE_BYTES, Time};
use staves_store::{Arena, Budget, EXTENT_BYTES, KeptOn, Residency};

use crate::cluster::{Cluster, EXTENTS, Node, PAGES, mend, new_files, note};
use crate::process::{Keeper, Process, RESIDENT_MAX, copy_forward, options};

impl Cluster {
    /// A node's process starts from its disk.
    pub fn start(&mut self, at: usize) {
        let least = self.pages_placed();
        let node = &mut self.nodes[at];
        // The disk may fail while it is opened: another attempt is made later.
        let opened = open(&node.files);
        if let Err(error) = &opened {
            self.open_errors.push(format!("node {}: {error}", node.id));
        }
        let Ok(mut opened) = opened else {
            return mend(&node.files);
        };
        // Some wait for long to be taken over, and the journal goes on meanwhile; the power may go, too.
        if self.rng.random_bool(0.3) && !copy_forward(&node.files, &mut opened, &mut self.rng) {
            return mend(&node.files);
        }
        if std::mem::take(&mut node.is_suspect) {
            opened.check(&node.files);
        }
        let claims: Vec<(GroupId, Epoch)> = opened.claims().collect();
        let life = self.directory.node_up(node.id, &claims);
        let dropped = &opened.dropped;
        note(|| {
            format!(
                "node {} starts as {life}, has {claims:?}, drops {dropped:?}",
                node.id
            )
        });
        let groups: Vec<GroupId> = self.directory.groups.keys().copied().collect();
        node.process = Some(node.process(opened, life, &groups, self.now, least));
        if !self.has_read(at) {
            return;
        }
        self.tell_map(at);
    }

    /// Deltas of so many whole pages have them in the page file.
    fn pages_placed(&self) -> usize {
        match self.puts_pages() {
            true => 1,
            false => usize::MAX,
        }
    }

    /// False, and the node has ended, if it could not read a page: nothing that followed from that has left it.
    pub fn has_read(&mut self, at: usize) -> bool {
        let process = self.nodes[at].process.as_ref();
        let unread = process.is_some_and(|process| process.unread.load(Ordering::Relaxed));
        if unread {
            self.ends_unread += 1;
            self.nodes[at].is_suspect = true;
            self.crash(at, false);
        }
        !unread
    }

    /// A node's process ends. With its power, what was not synced may be gone.
    pub fn crash(&mut self, at: usize, power: bool) {
        let node = &mut self.nodes[at];
        note(|| format!("node {} crashes, power lost: {power}", node.id));
        node.process = None;
        self.directory.lives.remove(&node.id);
        for device in [&node.files.journal, &node.files.pages, &node.files.table] {
            device.fail_syncs(false);
            match power {
                true => device.lose_power(),
                false => device.restart_process(),
            }
        }
        // Its messages on the way arrive, some of them.
        let (id, rng) = (node.id, &mut self.rng);
        self.messages
            .retain(|(_, m)| m.from.node.0 != id || rng.random_bool(0.5));
    }

    fn let_all_go(&mut self, at: usize) {
        if let Some(process) = &mut self.nodes[at].process {
            process.let_go(true);
        }
    }

    /// Pages of a node's disk rot; whoever needs one of them next sees it, and the node ends.
    pub fn rot(&mut self, at: usize) {
        for group in self.directory.groups.keys().copied().collect::<Vec<_>>() {
            self.save(at, group, false);
        }
        for place in 1..=PAGES {
            if self.rng.random_bool(0.5) {
                let byte = place * PAGE_BYTES + self.rng.random_range(0..PAGE_BYTES);
                self.nodes[at].files.pages.rot(byte);
            }
        }
        self.let_all_go(at);
        self.check();
        if self.has_read(at) {
            // Those that nobody has read yet are found by a start that looks.
            self.nodes[at].is_suspect = true;
            self.crash(at, false);
        }
        self.ends_unread = 0;
    }

    /// All copies are read from their disks: of pages that had rotted, and that a start has found, none is left.
    pub fn check_disks(&mut self) {
        for at in 0..self.nodes.len() {
            self.let_all_go(at);
        }
        self.check_copies();
        for at in 0..self.nodes.len() {
            self.has_read(at);
        }
        let ends = self.ends_unread;
        assert!(ends == 0, "ROTTEN: {ends} ends since a start found all");
    }

    /// A node's disk is replaced by an empty one.
    pub fn replace_disk(&mut self, at: usize) {
        self.crash(at, true);
        let node = &mut self.nodes[at];
        node.disks += 1;
        node.files = Arc::new(new_files(node.id, node.disks, self.seed, self.m));
    }

    /// A node goes on without the disk that it had: its members are given up, and the same life has others on an empty one.
    pub fn swap_disk(&mut self, at: usize) {
        let groups: Vec<GroupId> = self.directory.groups.keys().copied().collect();
        let Some(life) = self.nodes[at].process.as_ref().map(|p| p.life) else {
            return;
        };
        self.give_up(at, life, &groups);
        let least = self.pages_placed();
        let node = &mut self.nodes[at];
        note(|| format!("node {} swaps its disk as {life}", node.id));
        node.disks += 1;
        node.files = Arc::new(new_files(node.id, node.disks, self.seed, self.m));
        let opened = open(&node.files).expect("an empty disk");
        node.process = Some(node.process(opened, life, &groups, self.now, least));
        self.tell_map(at);
    }

    /// A node's member of a group is given up, and made anew, with nothing, on the same disk.
    pub fn empty_member(&mut self, at: usize, group: GroupId) {
        let Some(life) = self.nodes[at].process.as_ref().map(|p| p.life) else {
            return;
        };
        self.give_up(at, life, &[group]);
        let node = &mut self.nodes[at];
        note(|| format!("node {} has {group} anew as {life}", node.id));
        let Some(mut process) = node.process.take() else {
            return;
        };
        // It goes before the other one comes.
        process.members.remove(&group);
        process.end(group);
        let member = node.member(&process, group, None, self.now);
        process.members.insert(group, member);
        node.process = Some(process);
        self.tell_map(at);
    }

    /// The directory takes a life's members for dead.
    fn give_up(&mut self, at: usize, life: Incarnation, groups: &[GroupId]) {
        if planted(Mutant::GivenUpUnsaid) {
            return;
        }
        let me = MemberId::new(NodeId(self.nodes[at].id), life);
        for group in groups {
            self.directory.give_up(*group, me);
            if self.rng.random_bool(0.5) {
                self.tell_all(*group);
            }
        }
    }
}

impl Node {
    /// Its process, with what its disk has.
    fn process(
        &self,
        mut opened: OpenedDisk,
        life: Incarnation,
        groups: &[GroupId],
        now: Time,
        least: usize,
    ) -> Process {
        let disk_room = Arc::new(DiskRoom::default());
        opened.store.place_from(least);
        let arena = Arena::sparse(u64::from(EXTENTS) * EXTENT_BYTES as u64).expect("memory");
        assert_eq!(opened.hold(&arena), []);
        let mut process = Process {
            life,
            members: BTreeMap::new(),
            store: Arc::new(Mutex::new(opened.store)),
            journal: opened.journal,
            under_way: None,
            disk_room,
            residency: Arc::new(Residency::new(RESIDENT_MAX)),
            arena,
            budget: Arc::new(Budget::new(EXTENTS)),
            over: BTreeMap::new(),
            failed: false,
            unread: Arc::default(),
        };
        // Members that are new there may have taken all the rest before.
        let (mut others, free) = (Vec::new(), process.arena.free_extents());
        assert!(process.arena.take(free, &mut others) && process.budget.take(EXTENTS));
        for group in groups {
            let recovered = opened.members.remove(group);
            let member = self.member(&process, *group, recovered, now);
            process.members.insert(*group, member);
        }
        process.budget.give(EXTENTS);
        process
    }

    /// A member of its process, as the disk has it, or an empty one.
    fn member(
        &self,
        process: &Process,
        group: GroupId,
        recovered: Option<RecoveredMember>,
        now: Time,
    ) -> Member {
        let id = MemberId::new(NodeId(self.id), process.life);
        let (arena, budget) = (process.arena.clone(), process.budget.clone());
        let keeper = Arc::new(Keeper {
            group,
            store: process.store.clone(),
            files: self.files.clone(),
            unread: process.unread.clone(),
        });
        let residency = process.residency.clone();
        let options = options(
            &process.disk_room,
            KeptOn { keeper, residency },
            self.is_writeback,
        );
        process.store.lock().begin(group);
        let Some(recovered) = recovered else {
            return Member::new(options, group, id, arena, budget);
        };
        let kept: Vec<_> = process.store.lock().kept_pages(group).collect();
        let kept = &mut kept.into_iter();
        let member = Member::recover(options, group, id, arena, budget, now, recovered, kept);
        member.expect("a member of a sound disk")
    }
}
