//! A disk's files, and the start of what they have.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use staves_disk::{
    BLOCK_BYTES, Device, DiskId, FileDevice, Journal, JournalError, OpenError, PageFile,
    PageFileError, PagesOpenError,
};
use staves_group::{RecoveredMember, Recovery};
use staves_model::mutant::{Mutant, planted};
use staves_model::{Epoch, GroupId};
use staves_store::Arena;
use staves_wire::group::{JournalRecord, MemberRecord};

use crate::store::DiskStore;

const JOURNAL: &str = "journal";
const PAGES: &str = "pages";
const TABLE: &str = "table";
/// Bytes of the table for each page. A fifth of it may be used, which is a row of 84 bytes: with four labels. Pages that were made zero have a row, too.
const TABLE_BYTES_A_PAGE: u64 = 440;
const TABLE_BYTES_MIN: u64 = 4 << 20;
/// Of a snapshot of each member, and of deltas until pages are saved.
const JOURNAL_PART: u64 = 8;
/// Of blocks of the journal's records, until pages are saved; and pages at least and at most.
const PLACED_PART: u64 = 8;
const PLACED_MIN: u64 = (16 << 20) / BLOCK_BYTES as u64;
const PLACED_MAX: u64 = (4 << 30) / BLOCK_BYTES as u64;
const JOURNAL_BYTES_MIN: u64 = 128 << 20;
const JOURNAL_BYTES_MAX: u64 = 4 << 30;

/// A disk that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskOpenError {
    /// A file cannot be opened.
    #[error("{file}: {error}")]
    File {
        /// Its name.
        file: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// The journal takes nothing.
    #[error(transparent)]
    Append(#[from] JournalError),
    /// The page file cannot be used.
    #[error(transparent)]
    Pages(#[from] PagesOpenError),
    /// The page file takes nothing.
    #[error(transparent)]
    PageFile(#[from] PageFileError),
    /// Two records of the journal have one place of the page file, or one that there is not.
    #[error(
        "place {place} of the page file, which record {number} of the journal names, is another record's, or beyond the end"
    )]
    Place {
        /// The place.
        place: u32,
        /// The record's number.
        number: u64,
    },
    /// The files are of two disks.
    #[error("the journal is of another disk than the page file: files of two disks were mixed up")]
    OtherDisk,
}

/// The sizes of a disk's files, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskSizes {
    /// The journal.
    pub journal: u64,
    /// The page file.
    pub pages: u64,
    /// Its table.
    pub table: u64,
    /// Places of the page file that are for the journal: blocks of its records lie there.
    pub journal_places: u32,
}

impl DiskSizes {
    /// The sizes with which a disk takes so many bytes of pages.
    pub fn of(page_bytes: u64) -> DiskSizes {
        let block = BLOCK_BYTES as u64;
        // Some places are for pages that are written over.
        let places = page_bytes / block + page_bytes / block / 64 + 32;
        let held = page_bytes / PLACED_PART / block;
        let held = held.clamp(PLACED_MIN.min(places / 2), PLACED_MAX);
        DiskSizes {
            journal: (page_bytes / JOURNAL_PART).clamp(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX),
            pages: (places + held + 1) * block,
            table: (places * TABLE_BYTES_A_PAGE).max(TABLE_BYTES_MIN),
            journal_places: u32::try_from(held).unwrap_or(0),
        }
    }

    /// The bytes of all.
    pub fn total(&self) -> u64 {
        self.journal + self.pages + self.table
    }
}

/// The devices of a disk.
#[derive(Debug)]
pub struct DiskFiles<D> {
    /// The journal's.
    pub journal: D,
    /// The page file's.
    pub pages: D,
    /// The table's.
    pub table: D,
}

/// Makes an empty disk on three devices.
///
/// # Errors
/// Those of the devices; one of them is too small.
pub fn create<D: Device>(files: &DiskFiles<D>, disk: DiskId) -> io::Result<()> {
    create_with(files, disk, 0)
}

/// The same with so many places of the page file for blocks of the journal's records.
///
/// # Errors
/// Those of the devices; one of them is too small.
pub fn create_with<D: Device>(
    files: &DiskFiles<D>,
    disk: DiskId,
    journal_places: u32,
) -> io::Result<()> {
    PageFile::create_with(&files.pages, &files.table, disk, journal_places)?;
    Journal::create(&files.journal, disk)
}

impl DiskFiles<FileDevice> {
    /// Opens the files of a disk in a folder.
    ///
    /// # Errors
    /// One is not there, or open elsewhere; those of the disk.
    pub fn open(folder: &Path) -> Result<DiskFiles<FileDevice>, DiskOpenError> {
        let named = |file| move |error| DiskOpenError::File { file, error };
        let written = |file| FileDevice::open_to_write(&folder.join(file)).map_err(named(file));
        // What pages the system has in memory are read from there.
        let pages = FileDevice::open(&folder.join(PAGES)).map_err(named(PAGES))?;
        Ok(DiskFiles {
            journal: written(JOURNAL)?,
            pages,
            table: written(TABLE)?,
        })
    }
}

/// The page file of a disk in a folder once more, for the journal's thread: a system tells each handle once that bytes could not be written, and so each
/// thread that syncs has its own. Whoever calls has the disk open.
///
/// # Errors
/// It is not there; those of the disk.
pub fn open_pages_again(folder: &Path) -> Result<FileDevice, DiskOpenError> {
    let file = PAGES;
    let opened = FileDevice::open_again(&folder.join(file));
    opened.map_err(|error| DiskOpenError::File { file, error })
}

/// Makes an empty disk in a folder that does not exist. It has its name once all of it is durable: a crash leaves a whole disk, or none and perhaps a
/// folder `NAME.new`, in whose place the next attempt makes its own.
///
/// # Errors
/// There is such a folder; no room, and nothing is left; those of the disk.
pub fn create_files(folder: &Path, sizes: DiskSizes, disk: DiskId) -> io::Result<()> {
    if folder.try_exists()? {
        let there = format!("{} exists", folder.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, there));
    }
    let mut temporary = folder.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = Path::new(&temporary);
    if temporary.try_exists()? {
        std::fs::remove_dir_all(temporary)?;
    }
    std::fs::create_dir(temporary)?;
    let made = fill(temporary, sizes, disk).and_then(|()| std::fs::rename(temporary, folder));
    if made.is_err() {
        let _ = std::fs::remove_dir_all(temporary);
    }
    made?;
    match folder.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

fn fill(folder: &Path, sizes: DiskSizes, disk: DiskId) -> io::Result<()> {
    let files = DiskFiles {
        journal: FileDevice::allocate(&folder.join(JOURNAL), sizes.journal)?,
        pages: FileDevice::allocate(&folder.join(PAGES), sizes.pages)?,
        table: FileDevice::allocate(&folder.join(TABLE), sizes.table)?,
    };
    create_with(&files, disk, sizes.journal_places)?;
    for file in [&files.journal, &files.pages, &files.table] {
        file.sync_all()?;
    }
    File::open(folder)?.sync_all()
}

/// A disk that was opened.
pub struct OpenedDisk {
    /// Its store.
    pub store: DiskStore,
    /// Its journal.
    pub journal: Journal,
    /// The members that it has, whole.
    pub members: BTreeMap<GroupId, RecoveredMember>,
    /// Groups of which it had something that is of no use: a member that was being filled.
    pub dropped: Vec<GroupId>,
    /// Groups some of whose pages are bad, as far as they were looked at.
    pub bad: BTreeSet<GroupId>,
    /// Groups that have a member here which cannot be made of it: bytes of its records are not what they were. It stays until the group does without it.
    pub rotten: BTreeSet<GroupId>,
}

/// Opens a disk: all of it that counts is durable then.
///
/// # Errors
/// See [`DiskOpenError`].
pub fn open<D: Device>(files: &DiskFiles<D>) -> Result<OpenedDisk, DiskOpenError> {
    let mut recovery = Recovery::default();
    let (mut held, mut rotten) = (Vec::new(), BTreeMap::new());
    let journal = Journal::open_with(
        &files.journal,
        Some(&files.pages),
        &mut |number, bytes, blocks| {
            if !blocks.places.is_empty() {
                held.push((number, blocks.places.to_vec()));
            }
            if let Some(group) = bytes.first_chunk().filter(|_| !blocks.are_whole) {
                rotten.insert(GroupId(u32::from_le_bytes(*group)), number);
            }
            let taken = recovery.take(number, Bytes::copy_from_slice(bytes));
            taken.map_err(Into::into)
        },
    )?;
    let pages = PageFile::open(&files.pages, &files.table)?;
    if pages.disk() != journal.disk() {
        return Err(DiskOpenError::OtherDisk);
    }
    let mut store = DiskStore::new(pages);
    store.hold(held)?;
    let is_whole = |group: &GroupId, member: &RecoveredMember| match store.header(*group) {
        Some(header) if header.join == member.join() => header.is_whole,
        _ => member.is_whole(),
    };
    let (mut members, partial): (BTreeMap<_, _>, BTreeMap<_, _>) = recovery
        .into_members()
        .into_iter()
        .partition(|(group, member)| is_whole(group, member));
    for (group, member) in &members {
        store.found(*group, member);
    }
    // One of its records may be of a membership before this one.
    rotten.retain(|group, last| {
        members
            .get(group)
            .is_some_and(|of| of.needed_from() <= *last)
    });
    members.retain(|group, _| !rotten.contains_key(group));
    let mut opened = OpenedDisk {
        store,
        dropped: partial.into_keys().collect(),
        journal,
        members,
        bad: BTreeSet::new(),
        rotten: rotten.into_keys().collect(),
    };
    opened.drop_rest(files)?;
    Ok(opened)
}

impl OpenedDisk {
    /// Has each member hold the extents of an arena that it needs, before others may take them. Those of which there are too few.
    pub fn hold(&mut self, arena: &Arc<Arena>) -> Vec<GroupId> {
        let store = &self.store;
        let held = |(group, member): (&GroupId, &mut RecoveredMember)| {
            let is_held = member.hold(arena, store.kept_pages(*group));
            (!is_held).then_some(*group)
        };
        self.members.iter_mut().filter_map(held).collect()
    }

    /// Reads every page: how many are bad.
    pub fn check<D: Device>(&mut self, files: &DiskFiles<D>) -> usize {
        let mut all = 0;
        for (group, member) in &self.members {
            let bad = self.store.check_pages(*group, member.join(), &files.pages);
            if bad > 0 {
                self.bad.insert(*group);
            }
            all += bad;
        }
        all
    }

    /// The members that the disk has, with the epochs to whose cuts they were brought last, as the directory is to know of them. One with bad pages is not what
    /// it was: the others of its group go on without it, and then it is filled with what it lacks. But where too few others were complete, they cannot go on without what it has.
    pub fn claims(&self) -> impl Iterator<Item = (GroupId, Epoch)> + '_ {
        let is_alone = |member: &RecoveredMember| {
            let listed = member.view().listed();
            let others = listed.filter(|(slot, x)| *slot != member.slot() && x.complete);
            others.count() < usize::from(member.view().m)
        };
        let counts = move |(group, member): &(&GroupId, &RecoveredMember)| {
            !self.bad.contains(group) || is_alone(member) || planted(Mutant::BadPagesClaimed)
        };
        let members = self.members.iter().filter(counts);
        members.map(|(group, member)| (*group, member.epoch()))
    }

    /// Strikes what is of no use: first in the journal, so that no start takes what is left for a member without pages.
    fn drop_rest<D: Device>(&mut self, files: &DiskFiles<D>) -> Result<(), DiskOpenError> {
        let mut struck = Vec::new();
        for group in &self.dropped {
            let record = JournalRecord {
                group: *group,
                record: MemberRecord::Gone,
            };
            let mut bytes = BytesMut::new();
            record.encode(&mut bytes);
            let is_full = loop {
                match self.journal.append_reserved(&bytes) {
                    Ok(_) => break false,
                    Err(JournalError::Busy) => commit(&mut self.journal, files)?,
                    Err(JournalError::Full { .. }) => break true,
                    Err(error) => return Err(error.into()),
                }
            };
            // The next start looks at it again.
            if is_full {
                break;
            }
            struck.push(*group);
        }
        commit(&mut self.journal, files)?;
        let known = self.store.page_file().groups();
        let is_rest = |group: &GroupId| {
            let is_left = self.dropped.contains(group) && !struck.contains(group);
            !self.members.contains_key(group) && !is_left && !self.rotten.contains(group)
        };
        let rest: Vec<GroupId> = known.filter(is_rest).collect();
        for gone in rest.chunks(256) {
            let work = self.store.begin_strike(gone.to_vec())?;
            let performed = work.perform(&files.pages, &files.table);
            self.store.page_file_mut().finish(performed)?;
        }
        Ok(())
    }
}

fn commit<D: Device>(journal: &mut Journal, files: &DiskFiles<D>) -> Result<(), DiskOpenError> {
    while let Some(commit) = journal.next_commit() {
        journal.finish(commit.perform(&files.journal))?;
    }
    Ok(())
}
