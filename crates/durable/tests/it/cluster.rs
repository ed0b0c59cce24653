//! Nodes with faulty disks, the messages between them, and one client that remembers what it was told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use staves_disk::faulty::FaultyDevice;
use staves_disk::{DiskId, RecordBytes};
use staves_durable::{DiskFiles, create_with, save, strike};
use staves_group::{Effects, Event};
use staves_model::{GroupId, MemberId, NodeId, PAGE_BYTES, Time};
use staves_wire::group::{GroupEnvelope, GroupMessage};

use crate::client::{Pending, REGISTERS, Register};
use crate::directory::Directory;
use crate::process::{Process, Saver};
use crate::writeback::{Flush, Writeback};

const JOURNAL_BYTES: usize = 136 << 10;
const TABLE_BYTES: usize = 1 << 20;
pub const PAGES: usize = 96;
/// Places of the page file that are for the journal.
const JOURNAL_PLACES: usize = 24;
pub const EXTENTS: u32 = 24;

/// A node: its disk stays, the rest goes with its process.
pub struct Node {
    pub id: u64,
    pub files: Arc<DiskFiles<FaultyDevice>>,
    /// A page could not be read: the next start looks at all.
    pub is_suspect: bool,
    pub process: Option<Process>,
    pub disks: u64,
    /// Updates are answered when they are held.
    pub is_writeback: bool,
}

pub struct Cluster {
    pub rng: SmallRng,
    pub now: Time,
    pub nodes: Vec<Node>,
    pub directory: Directory,
    pub registers: BTreeMap<(GroupId, u64), Register>,
    pub acked: u64,
    pub messages: Vec<(u64, GroupEnvelope)>,
    pub pending: Vec<Pending>,
    /// Flushes that have no answer yet, those that were answered, and the session that the client has of each group.
    pub flushes: Vec<Flush>,
    pub flushed: u64,
    pub sessions: BTreeMap<GroupId, u64>,
    pub next_version: u64,
    /// Messages are lost and doubled.
    pub rough: bool,
    /// A member that was asked for and never ended: (group, slot, epoch).
    pub stuck: BTreeSet<(GroupId, u8)>,
    pub seed: u64,
    /// Data buckets of each group.
    pub m: u8,
    /// Starts that failed.
    pub open_errors: Vec<String>,
    /// Nodes that have ended because a page could not be read.
    pub ends_unread: u32,
}

/// Prints what happens, if the environment asks for it.
pub fn note(what: impl FnOnce() -> String) {
    if std::env::var_os("STAVES_TRACE").is_some() {
        eprintln!("{}", what());
    }
}

fn disk_id(node: u64, disks: u64) -> DiskId {
    let mut id = [7; 16];
    (id[0], id[1]) = (node as u8, disks as u8);
    DiskId(id)
}

/// Parity has the logs and the requests of all streams.
fn journal_bytes(m: u8) -> usize {
    JOURNAL_BYTES * usize::from(m)
}

/// The faults of a disk are over, and what was not synced may be gone.
pub fn mend(files: &DiskFiles<FaultyDevice>) {
    for device in [&files.journal, &files.pages, &files.table] {
        device.fail_syncs(false);
        device.lose_power();
    }
}

pub fn new_files(node: u64, disks: u64, seed: u64, m: u8) -> DiskFiles<FaultyDevice> {
    let seed = seed ^ (node << 20) ^ (disks << 40);
    let files = DiskFiles {
        journal: FaultyDevice::new(journal_bytes(m), seed),
        pages: FaultyDevice::new((PAGES + JOURNAL_PLACES + 1) * PAGE_BYTES, seed + 1),
        table: FaultyDevice::new(TABLE_BYTES, seed + 2),
    };
    create_with(&files, disk_id(node, disks), JOURNAL_PLACES as u32).expect("an empty disk");
    files
}

impl Cluster {
    pub fn new(seed: u64, nodes: u64, groups: u32, (m, width): (u8, usize)) -> Cluster {
        Cluster::with(seed, nodes, groups, (m, width), false)
    }

    /// The same, with write-back or without.
    pub fn with(
        seed: u64,
        nodes: u64,
        groups: u32,
        (m, width): (u8, usize),
        is_writeback: bool,
    ) -> Cluster {
        let node = |id| Node {
            id,
            files: Arc::new(new_files(id, 0, seed, m)),
            is_suspect: false,
            process: None,
            disks: 0,
            is_writeback,
        };
        let mut cluster = Cluster {
            rng: SmallRng::seed_from_u64(seed),
            now: Time::from_millis(10_000),
            nodes: (1..=nodes).map(node).collect(),
            directory: Directory::new(groups, m, width),
            registers: BTreeMap::new(),
            acked: 0,
            messages: Vec::new(),
            pending: Vec::new(),
            flushes: Vec::new(),
            flushed: 0,
            sessions: BTreeMap::new(),
            next_version: 0,
            rough: false,
            stuck: BTreeSet::new(),
            seed,
            m,
            open_errors: Vec::new(),
            ends_unread: 0,
        };
        for group in 1..=groups {
            for register in 0..REGISTERS * u64::from(m) {
                let key = (GroupId(group), register);
                cluster.registers.insert(key, Register::default());
            }
        }
        cluster.directory.writeback = is_writeback.then(Writeback::default);
        (0..nodes as usize).for_each(|at| cluster.start(at));
        cluster
    }

    pub fn tell_map(&mut self, at: usize) {
        for group in self.directory.groups.clone().into_values() {
            self.tell_sessions(at, group.id);
            self.step(at, group.id, Event::Map(Arc::new(group)));
        }
    }

    pub fn tell_all(&mut self, group: GroupId) {
        let entry = Arc::new(self.directory.groups[&group].clone());
        for at in 0..self.nodes.len() {
            if self.rough && self.rng.random_bool(0.1) {
                continue; // it hears of it later
            }
            self.tell_sessions(at, group);
            self.step(at, group, Event::Map(entry.clone()));
        }
    }

    pub fn step(&mut self, at: usize, group: GroupId, event: Event) {
        let now = self.now;
        let Some(process) = &mut self.nodes[at].process else {
            return;
        };
        let mut out = Effects::default();
        let member = process.members.get_mut(&group).expect("one of each group");
        member.step(now, event, &mut out, &mut |_, _| {});
        process.let_go(self.rng.random_bool(0.3));
        self.carry(at, out);
    }

    pub fn carry(&mut self, at: usize, mut out: Effects) {
        if !self.has_read(at) {
            return;
        }
        let Some(process) = &mut self.nodes[at].process else {
            return;
        };
        process.hand_over(&mut out);
        let life = process.life;
        let me = MemberId::new(NodeId(self.nodes[at].id), life);
        for (to, envelope) in out.sends {
            // There is memory for all, so whoever has none for a cut was not told to reserve it.
            let unable = matches!(envelope.message, GroupMessage::Synced { able: false, .. });
            assert!(!unable, "UNABLE to be brought to a cut: {envelope:?}");
            if self.rough && self.rng.random_bool(0.05) {
                continue;
            }
            if self.rough && self.rng.random_bool(0.03) {
                self.messages.push((to.0, envelope.clone()));
            }
            self.messages.push((to.0, envelope));
        }
        for call in out.directory {
            let before = self.directory.groups.clone();
            for (group, slot) in self.directory.call(me, &call) {
                self.stuck.insert((group, slot.0));
            }
            for (group, entry) in before {
                if self.directory.groups[&group].revision != entry.revision {
                    self.tell_all(group);
                }
            }
        }
    }

    /// Delivers a message, mostly one of the oldest.
    pub fn deliver(&mut self) -> bool {
        if self.messages.is_empty() {
            return false;
        }
        let among = self.messages.len().min(if self.rough { 8 } else { 1 });
        let pick = self.rng.random_range(0..among);
        let (to, envelope) = self.messages.remove(pick);
        let at = to as usize - 1;
        self.step(at, envelope.group, Event::Message(envelope));
        true
    }

    /// One commit of a node's journal.
    pub fn commit(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let Some(process) = &mut node.process else {
            return;
        };
        let mut out = Effects::default();
        process.commit(&node.files, self.now, &mut out);
        let failed = process.failed;
        self.carry(at, out);
        if failed {
            // D-9: it returns as another life, perhaps with what the system remembers.
            let power = self.rng.random_bool(0.5);
            self.crash(at, power);
        }
    }

    /// A commit that is begun, and done: all that was appended before it is durable.
    pub fn commit_whole(&mut self, at: usize) {
        (0..3).for_each(|_| self.commit(at));
    }

    /// A round of saving at a node.
    pub fn save(&mut self, at: usize, group: GroupId, for_room: bool) {
        let node = &mut self.nodes[at];
        let Some(process) = &mut node.process else {
            return;
        };
        let mut saver = Saver {
            files: &node.files,
            process,
            now: self.now,
            out: Effects::default(),
        };
        let synced = saver.process.journal.synced();
        let saved = save(&mut saver, group, for_room).map(|done| {
            note(|| format!("node {} {group}: a round of saving, done: {done}", at + 1));
        });
        let saved = saved.and_then(|()| strike(&mut saver, synced));
        let saved = saved.map_err(|error| note(|| error.to_string()));
        let out = std::mem::take(&mut saver.out);
        self.carry(at, out);
        if saved.is_err() {
            let power = self.rng.random_bool(0.5);
            self.crash(at, power);
        }
    }

    /// Lets go of what no start of a node needs.
    pub fn release(&mut self, at: usize) {
        let Some(process) = &mut self.nodes[at].process else {
            return;
        };
        for (group, member) in &mut process.members {
            if let Some(before) = member.needed_from() {
                process.store.lock().release(*group, before);
            }
        }
        let all = process.journal.synced() + 1;
        let needed = process.store.lock().needed_from();
        let from = needed.map_or(all, |from| from.min(all));
        process.journal.let_go(from);
        process.journal.want_room();
        let journal = &mut process.journal;
        let mut append =
            |record: &RecordBytes<'_>, frees: bool| journal.append_placed(record, frees);
        process.failed |= process.store.lock().append_waiting(&mut append).is_err();
        process.note_room();
    }

    pub fn tick(&mut self) {
        self.now = self.now + Duration::from_millis(10);
        for at in 0..self.nodes.len() {
            for group in self.directory.groups.keys().copied().collect::<Vec<_>>() {
                self.step(at, group, Event::Tick);
            }
        }
        self.grant_leases();
        self.answers();
        self.answer_flushes();
    }

    /// The directory looks at its groups.
    pub fn look(&mut self) {
        for group in self.directory.groups.keys().copied().collect::<Vec<_>>() {
            let stuck: Vec<_> = self.stuck.iter().filter(|(g, _)| *g == group).collect();
            let stuck: Vec<_> = stuck
                .into_iter()
                .map(|(_, s)| staves_model::MemberSlot(*s))
                .collect();
            self.stuck.retain(|(g, _)| *g != group);
            let disturbed = self.directory.is_disturbed(group) || !stuck.is_empty();
            if disturbed && self.directory.commit(group, &stuck) {
                let entry = &self.directory.groups[&group];
                note(|| {
                    let (members, kept) = (&entry.members, &entry.kept);
                    format!(
                        "{group}: epoch {} committed: {members:?} kept {kept:?}",
                        entry.epoch
                    )
                });
                self.tell_all(group);
            }
        }
    }
}
