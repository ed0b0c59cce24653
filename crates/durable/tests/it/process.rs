//! The part of a node that a crash ends: its members, and the driver of its disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;
use staves_disk::faulty::FaultyDevice;
use staves_disk::{Commit, Device, Journal, RecordBytes};
use staves_durable::{DiskFiles, DiskStore, OpenedDisk, SaveDriver, read_kept, room_of};
use staves_group::{DiskRoom, Durability, Effects, Event, Member, Options};
use staves_model::{Epoch, GroupId, Incarnation, Label, Time};
use staves_store::{Arena, Budget, KeptOn, PageKeeper, Residency, Unread};

/// Pages of a node that may be in memory: fewer than its groups have.
pub const RESIDENT_MAX: u64 = 12;

pub fn options(disk_room: &Arc<DiskRoom>, kept_on: KeptOn, is_writeback: bool) -> Options {
    Options {
        durability: match is_writeback {
            true => Durability::Writeback,
            false => Durability::Durable,
        },
        kept_on: Some(kept_on),
        disk_room: disk_room.clone(),
        lease: Duration::from_millis(50),
        log_bytes_max: 8 << 10,
        message_bytes_max: 3 << 10,
        fetch_pages: 3,
        fetch_window: 2,
        journal: staves_store::Journal::Disk,
        ..Options::default()
    }
}

/// The part of a node that a crash ends.
pub struct Process {
    pub life: Incarnation,
    pub members: BTreeMap<GroupId, Member>,
    pub store: Arc<Mutex<DiskStore>>,
    pub journal: Journal,
    /// A commit that was begun, and is not written yet.
    pub under_way: Option<Commit>,
    pub disk_room: Arc<DiskRoom>,
    pub residency: Arc<Residency>,
    pub arena: Arc<Arena>,
    pub budget: Arc<Budget>,
    /// The sessions that are over, by the maps that it has.
    pub over: BTreeMap<GroupId, u64>,
    /// Its disk has failed: it ends.
    pub failed: bool,
    /// A page that was let go of could not be read: nothing that followed from it may leave.
    pub unread: Arc<AtomicBool>,
}

/// The pages of a group on a node's disk.
#[derive(Debug)]
pub struct Keeper {
    pub group: GroupId,
    pub store: Arc<Mutex<DiskStore>>,
    pub files: Arc<DiskFiles<FaultyDevice>>,
    pub unread: Arc<AtomicBool>,
}

impl PageKeeper for Keeper {
    fn keeps(&self, page: u32, join: Epoch, labels: &[Label]) -> bool {
        self.store.lock().keeps(self.group, page, join, labels)
    }

    fn read(&self, page: u32, join: Epoch, into: &mut [u8]) -> Result<(), Unread> {
        let locate = || self.store.lock().locate(self.group, page, join);
        read_kept(locate, &self.files.pages, into)
    }

    fn lost(&self, page: u32, why: Unread) {
        let is_bad = why != Unread::NotKept;
        assert!(
            is_bad,
            "LOST page {page} of {}, which was let go of",
            self.group
        );
        self.unread.store(true, Ordering::Relaxed);
    }
}

/// Writes members' records again, and lets go of what lies before them. False if the disk fails, or the power goes.
pub fn copy_forward(
    files: &DiskFiles<FaultyDevice>,
    opened: &mut OpenedDisk,
    rng: &mut SmallRng,
) -> bool {
    let OpenedDisk {
        store,
        journal,
        members,
        ..
    } = opened;
    for (group, member) in members {
        if room_of(member) > journal.room_reserved() / 2 {
            continue;
        }
        let mut splits = 3;
        // Some come to lie in other batches than those before them.
        let mut append = |record: &RecordBytes<'_>, _: bool| {
            let commit = (splits > 0 && rng.random_bool(0.3)).then(|| journal.next_commit());
            if let Some(commit) = commit.flatten() {
                splits -= 1;
                journal.finish(commit.perform_with(&files.journal, Some(&files.pages)))?;
            }
            journal.append_placed(record, true)
        };
        let copied = store.copy_forward(*group, member.copy_forward(), &mut append);
        if copied.is_err() {
            return false;
        }
        for _ in 0..rng.random_range(0..4) {
            let commit = journal.next_commit();
            let done = commit.map(|commit| {
                journal.finish(commit.perform_with(&files.journal, Some(&files.pages)))
            });
            if done.is_some_and(|done| done.is_err()) {
                return false;
            }
            store.synced(journal.synced());
            store.released(journal.released());
            let mut append =
                |record: &RecordBytes<'_>, _: bool| journal.append_placed(record, true);
            if store.append_waiting(&mut append).is_err() {
                return false;
            }
            let needed = store.needed_from().unwrap_or(u64::MAX);
            journal.let_go(needed.min(journal.synced() + 1));
            journal.want_room();
        }
    }
    rng.random_bool(0.8)
}

/// Runs one round of saving on a node; every wait for the journal commits.
pub struct Saver<'a> {
    pub files: &'a DiskFiles<FaultyDevice>,
    pub process: &'a mut Process,
    pub now: Time,
    pub out: Effects,
}

impl SaveDriver for Saver<'_> {
    fn with_member(
        &mut self,
        group: GroupId,
        act: &mut dyn FnMut(&mut Member, &mut Effects),
    ) -> bool {
        let Some(member) = self.process.members.get_mut(&group) else {
            return false;
        };
        act(member, &mut self.out);
        self.process.hand_over(&mut self.out);
        true
    }

    fn with_store<R>(&mut self, act: impl FnOnce(&mut DiskStore) -> R) -> R {
        act(&mut self.process.store.lock())
    }

    fn append_waiting(&mut self) {
        self.process.hand_over(&mut Effects::default());
    }

    fn wait(&mut self, group: GroupId, records: u64) -> Result<bool, String> {
        for _ in 0..64 {
            // What was copied out may be what could not be read.
            if self.process.unread.load(Ordering::Relaxed) {
                return Err("a page could not be read".into());
            }
            if self.process.store.lock().synced_of(group) >= records {
                return Ok(true);
            }
            self.process.commit(self.files, self.now, &mut self.out);
            if self.process.failed {
                return Err("the journal has failed".into());
            }
        }
        // The journal is full, and it is this round that would make room.
        Ok(false)
    }

    fn pages(&self) -> &dyn Device {
        &self.files.pages
    }

    fn table(&self) -> &dyn Device {
        &self.files.table
    }
}

impl Process {
    /// Appends what members have handed over.
    pub fn hand_over(&mut self, out: &mut Effects) {
        let journal = &mut self.journal;
        let mut append =
            |record: &RecordBytes<'_>, frees: bool| journal.append_placed(record, frees);
        let handed = self
            .store
            .lock()
            .hand_over(out.records.drain(..), &mut append);
        self.failed |= handed.is_err();
    }

    /// A member is gone, with all that is kept of it.
    pub fn end(&mut self, group: GroupId) {
        let journal = &mut self.journal;
        let mut append =
            |record: &RecordBytes<'_>, frees: bool| journal.append_placed(record, frees);
        self.failed |= self.store.lock().end(group, &mut append).is_err();
    }

    pub fn note_room(&self) {
        let of = self.journal.ring_bytes();
        self.disk_room
            .set_taken(of - self.journal.room_reserved(), of);
    }

    /// Lets pages go beyond those that may be in memory; `all`: all that can go.
    pub fn let_go(&mut self, all: bool) {
        for member in self.members.values_mut() {
            match all {
                true => member.let_go(u32::MAX) + member.let_go(u32::MAX),
                false if self.residency.is_over() => member.let_go(4) + member.let_go(4),
                false => 0,
            };
        }
    }

    /// One commit of the journal, if there is anything, and what follows from it.
    pub fn commit(&mut self, files: &DiskFiles<FaultyDevice>, now: Time, out: &mut Effects) {
        // Begun by one call and done by the next: what is appended in between is not durable with it.
        let Some(commit) = self.under_way.take() else {
            self.under_way = self.journal.next_commit();
            return;
        };
        let done = self
            .journal
            .finish(commit.perform_with(&files.journal, Some(&files.pages)));
        self.failed |= done.is_err();
        if self.failed {
            return;
        }
        self.note_room();
        let told = {
            let mut store = self.store.lock();
            store.released(self.journal.released());
            store.synced(self.journal.synced())
        };
        for (group, count) in told {
            if let Some(member) = self.members.get_mut(&group) {
                member.step(now, Event::Synced(count), out, &mut |_, _| {});
            }
        }
        self.hand_over(out);
    }
}
