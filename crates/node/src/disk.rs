//! One disk of a node: the journal's thread, the thread that saves pages, and the way of members' records between them. [`Disks`](crate::disks::Disks) has all of them.
//!
//! Locks are taken in this order: a cell's, the recovered members', the store's, the journal's. The journal's thread holds none of its own while it tells cells what is durable.

mod closed;
mod error;
mod facts;
mod health;
mod kept;
mod lost;
pub(crate) mod readers;
mod wake;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use staves_disk::{Committer, Device, FileDevice, Journal, JournalError, RecordBytes};
use staves_durable::{DiskFiles, DiskStore, OpenedDisk, room_of};
use staves_group::{DiskRoom, KeptPage, RecoveredMember};
use staves_model::{GroupId, PAGE_BYTES};
use staves_store::{Arena, EXTENT_BYTES, Extent, Residency};
use staves_wire::group::MemberRecord;
use tokio::sync::Notify;

pub(crate) use self::closed::{ClosedDisk, StartedDisk, create};
pub use self::error::NodeDiskError;
pub use self::facts::{DiskFacts, DiskState};
use self::health::Progress;
pub(crate) use self::lost::unless_lost;
pub(crate) use self::readers::ReadQueue;
use self::wake::SaverWake;

/// With more of the journal's ring taken than one in so many parts, pages are saved until there is less.
pub(crate) const FULL_PART: u64 = 4;
/// With more of it taken than one in so many parts, members that wait have their records written again.
const COPY_PART: u64 = 3;
/// And again once it has gone on for one in so many parts.
const COPY_AGAIN_PART: u64 = 8;
/// If one in so many parts is free then.
const COPY_SPARE_PART: u64 = 8;
/// The longest that a round of saving waits for the journal.
const JOURNAL_WAIT: Duration = Duration::from_secs(10);

/// A disk of a running node.
pub(crate) struct NodeDisk {
    pub(crate) store: Mutex<DiskStore>,
    /// Records have become durable, or the journal has failed.
    pub(crate) synced: Condvar,
    pub(crate) journal: OnceLock<Committer>,
    pub(crate) pages: FileDevice,
    pub(crate) table: FileDevice,
    /// Members that it had at the start, and that no bucket has taken over yet.
    recovered: Mutex<BTreeMap<GroupId, RecoveredMember>>,
    /// Groups of which it has a member that no bucket can take over: bytes of its records have rotted.
    rotten: Mutex<BTreeSet<GroupId>>,
    /// The end of the journal when the records of one had been written again.
    copied_to: Mutex<BTreeMap<GroupId, u64>>,
    /// Pages of it that are in memory.
    pub(crate) residency: Arc<Residency>,
    /// The address space of those.
    pub(crate) arena: Arc<Arena>,
    /// The extent of it for which the disk has not all places.
    _partial: Vec<Extent>,
    folder: PathBuf,
    /// The group whose member let pages go last.
    pub(crate) hand: AtomicU32,
    /// Members on it are brought elsewhere, and no further ones come.
    draining: AtomicBool,
    /// It has been taken out: its threads end.
    closed: AtomicBool,
    failed: OnceLock<String>,
    ends_node: AtomicBool,
    /// Buckets that were given up because a page could not be read, until the directory is told.
    lost: Mutex<BTreeMap<GroupId, String>>,
    pages_lost: AtomicU64,
    /// Woken when it fails.
    failing: Arc<Notify>,
    /// Bytes of pages that it takes.
    page_bytes: u64,
    pub(crate) saver: Arc<SaverWake>,
    /// Pages that are to be read for operations that wait.
    pub(crate) reads: Arc<ReadQueue>,
    /// The time at which the first look was made at what it has.
    pub(crate) serves_since: Mutex<Option<Instant>>,
    room: Arc<DiskRoom>,
    /// Since then buckets have taken no update.
    held_since: Mutex<Option<Instant>>,
    progress: Mutex<Progress>,
}

impl std::fmt::Debug for NodeDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeDisk").finish_non_exhaustive()
    }
}

/// The memory for a disk's pages, of which those that are there have theirs; the part of its last extent that the disk has no place for; and
/// the bytes of all places.
fn arena_of(
    opened: &mut OpenedDisk,
    folder: &Path,
) -> Result<(Arc<Arena>, Vec<Extent>, u64), NodeDiskError> {
    let (used, free) = opened.store.page_file().places();
    let spare = opened.store.page_file().spare_places();
    let page_bytes = u64::from((used + free).saturating_sub(spare)) * PAGE_BYTES as u64;
    let arena = Arena::sparse(page_bytes).map_err(NodeDiskError::Arena)?;
    // Members that are new here begin before all of them are taken over.
    for group in opened.hold(&arena) {
        tracing::warn!(%group, disk = %folder.display(), "the disk has less room than what is on it needs");
    }
    // The arena ends with a whole extent, the disk's places perhaps within it: nobody gets that one, unless what is there needs it.
    let mut partial = Vec::new();
    if !page_bytes.is_multiple_of(EXTENT_BYTES as u64) {
        arena.take(1, &mut partial);
    }
    Ok((arena, partial, page_bytes))
}

impl NodeDisk {
    /// Of a disk whose journal is not driven yet, and that journal.
    fn new(
        closed: ClosedDisk,
        residency: Arc<Residency>,
        failing: Arc<Notify>,
    ) -> Result<(Arc<NodeDisk>, DrivenJournal), NodeDiskError> {
        let ClosedDisk {
            mut opened,
            files,
            placed,
            folder,
            ..
        } = closed;
        let DiskFiles {
            journal: device,
            pages,
            table,
        } = files;
        let (arena, partial, page_bytes) = arena_of(&mut opened, &folder)?;
        let disk = NodeDisk {
            residency,
            arena,
            _partial: partial,
            folder,
            hand: AtomicU32::new(0),
            store: Mutex::new(opened.store),
            synced: Condvar::new(),
            journal: OnceLock::new(),
            pages,
            table,
            recovered: Mutex::new(opened.members),
            rotten: Mutex::new(opened.rotten),
            copied_to: Mutex::default(),
            draining: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            failed: OnceLock::new(),
            ends_node: AtomicBool::new(false),
            lost: Mutex::default(),
            pages_lost: AtomicU64::new(0),
            failing,
            page_bytes,
            saver: Arc::default(),
            reads: Arc::default(),
            serves_since: Mutex::default(),
            room: Arc::default(),
            held_since: Mutex::default(),
            progress: Mutex::default(),
        };
        let journal = DrivenJournal {
            journal: opened.journal,
            device: Box::new(device),
            pages: Box::new(placed),
        };
        Ok((Arc::new(disk), journal))
    }

    /// Bytes of pages that it takes.
    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Its folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Bytes that its members have reserved.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        let free = u64::from(self.arena.free_extents()) * EXTENT_BYTES as u64;
        self.page_bytes.saturating_sub(free)
    }

    /// Extents that its members may still reserve.
    pub(crate) fn free_extents(&self) -> u32 {
        self.arena.free_extents()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn set_draining(&self, on: bool) {
        self.draining.store(on, Ordering::Relaxed);
    }

    /// The groups of the members that a start has found, and that no bucket has taken over.
    pub(crate) fn recovered(&self) -> Vec<GroupId> {
        self.recovered.lock().keys().copied().collect()
    }

    /// Takes records of members.
    pub(crate) fn hand_over(&self, records: impl IntoIterator<Item = (GroupId, MemberRecord)>) {
        let Some(journal) = self.journal.get() else {
            debug_assert!(false, "a record before the journal is driven");
            return;
        };
        let handed = self
            .store
            .lock()
            .hand_over(records, &mut append_to(journal));
        self.note(handed);
    }

    /// A group's member is to be made: as the disk has it, if it does.
    pub(crate) fn take_recovered(&self, group: GroupId) -> Option<RecoveredMember> {
        let mut all = self.recovered.lock();
        self.rotten.lock().remove(&group);
        // Its records are counted anew: some may have been written already.
        self.store.lock().begin(group);
        all.remove(&group)
    }

    /// Members that no bucket has taken over have the journal keep all since the first record of theirs. Where that takes much of it, and one of them has the oldest
    /// records of all, its records are written again.
    ///
    /// # Errors
    /// The journal has failed.
    pub(crate) fn copy_forward(&self) -> Result<(), String> {
        let Some(journal) = self.journal.get() else {
            return Ok(());
        };
        let (of, room, end) =
            journal.look(|journal| (journal.ring_bytes(), journal.room_reserved(), journal.end()));
        if of - room <= of / COPY_PART {
            return Ok(());
        }
        // Until all are handed over no bucket takes it over.
        let recovered = self.recovered.lock();
        let mut store = self.store.lock();
        let oldest = store.needed_from();
        let is_oldest =
            |(group, _): &(&GroupId, &RecoveredMember)| store.needed_from_of(**group) == oldest;
        let Some((group, member)) = recovered.iter().find(is_oldest) else {
            return Ok(());
        };
        // What is always there must not be written again and again for the sake of little else.
        let mut copied_to = self.copied_to.lock();
        let last = copied_to.get(group).copied().unwrap_or_default();
        let goes_on = end.saturating_sub(last) > of / COPY_AGAIN_PART || !self.room.admits();
        let needed = room_of(member);
        if !goes_on || needed > room.saturating_sub(of / COPY_SPARE_PART) {
            return Ok(());
        }
        copied_to.insert(*group, end + needed);
        let (group, records) = (*group, member.copy_forward());
        let handed = store.copy_forward(group, records, &mut append_to(journal));
        let life = store.life_of(group);
        drop((copied_to, store, recovered));
        let last = handed.map_err(|error| error.to_string())?;
        let is_whole = last.map_or(Ok(false), |last| self.wait_in(life, group, last))?;
        tracing::debug!(%group, is_whole, "a bucket that waits was written again in the journal");
        Ok(())
    }

    /// A member that the disk has cannot be used as things are: the node ends, and nothing of it is given up.
    pub(crate) fn give_back(&self, group: GroupId, why: &str) {
        self.end_node(&format!("group {group} on it cannot be used: {why}"));
    }

    /// The pages that are kept of a group's member.
    pub(crate) fn kept_pages(&self, group: GroupId) -> Vec<KeptPage> {
        self.store.lock().kept_pages(group).collect()
    }

    /// A group's member is given up, with all that is kept of it.
    pub(crate) fn end(&self, group: GroupId) {
        self.recovered.lock().remove(&group);
        self.end_records(group);
    }

    fn end_records(&self, group: GroupId) {
        if let Some(journal) = self.journal.get() {
            let ended = self.store.lock().end(group, &mut append_to(journal));
            self.note(ended);
        }
    }

    /// Members that no bucket has taken over are given up, but for those that are wanted yet: the map has no place for the others.
    pub(crate) fn end_unwanted(&self, wanted: impl Fn(GroupId) -> bool) {
        // Until it is ended nobody makes another one.
        let mut recovered = self.recovered.lock();
        let unwanted = recovered.keys().copied().filter(|group| !wanted(*group));
        for group in unwanted.collect::<Vec<_>>() {
            recovered.remove(&group);
            tracing::info!(%group, "the disk has a bucket that is elsewhere now: its pages go");
            self.end_records(group);
        }
        let mut rotten = self.rotten.lock();
        let unwanted = rotten.iter().copied().filter(|group| !wanted(*group));
        for group in unwanted.collect::<Vec<_>>() {
            rotten.remove(&group);
            self.end_records(group);
        }
    }

    /// Members know how much room the journal has. True if pages are to be saved for the sake of it.
    pub(crate) fn note_room(&self) -> bool {
        self.journal.get().is_some_and(|journal| {
            let (taken, of) = journal.look(|journal| {
                let of = journal.ring_bytes();
                (of - journal.room_reserved(), of)
            });
            self.room.set_taken(taken, of);
            let mut held = self.held_since.lock();
            let admits = self.room.admits() && self.residency.admits();
            *held = (!admits).then(|| held.unwrap_or_else(Instant::now));
            taken > of / FULL_PART
                || self.residency.is_over()
                || self.store.lock().is_short_of_places()
        })
    }

    /// The room of its journal, for its members' options.
    pub(crate) fn room(&self) -> Arc<DiskRoom> {
        self.room.clone()
    }

    pub(crate) fn note(&self, outcome: Result<(), JournalError>) {
        if let Err(error) = outcome {
            self.fail(&error.to_string());
        }
    }

    /// Waits until so many records of a group's member are durable.
    pub(crate) fn wait(&self, group: GroupId, records: u64) -> Result<bool, String> {
        let life = self.store.lock().life_of(group);
        self.wait_in(life, group, records)
    }

    /// The same, of a life of the member; false once that has ended.
    fn wait_in(&self, life: Option<u64>, group: GroupId, records: u64) -> Result<bool, String> {
        let until = Instant::now() + JOURNAL_WAIT;
        let mut store = self.store.lock();
        while store.synced_of(group) < records {
            if let Some(why) = self.failure() {
                return Err(why.to_owned());
            }
            if store.life_of(group) != life {
                return Ok(false);
            }
            if self.synced.wait_until(&mut store, until).timed_out() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A journal and its device, for the thread that drives it.
pub(crate) struct DrivenJournal {
    pub(crate) journal: Journal,
    pub(crate) device: Box<dyn Device>,
    /// The page file, by a handle of its own.
    pub(crate) pages: Box<dyn Device>,
}

pub(crate) fn append_to(
    journal: &Committer,
) -> impl FnMut(&RecordBytes<'_>, bool) -> Result<u64, JournalError> + '_ {
    |record, frees| journal.append_placed(record, frees)
}
