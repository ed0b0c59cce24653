//! A disk's files, and the start of what they have.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use staves_disk::{
    BLOCK_BYTES, Device, DiskId, FileDevice, Journal, JournalError, OpenError, PageFile,
    PageFileError, PagesOpenError,
};
use staves_group::{RecoveredMember, Recovery};
use staves_model::mutant::{Mutant, planted};
use staves_model::{Epoch, GroupId};
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
}

impl DiskSizes {
    /// The sizes with which a disk takes so many bytes of pages.
    pub fn of(page_bytes: u64) -> DiskSizes {
        let block = BLOCK_BYTES as u64;
        // Some places are for pages that are written over.
        let places = page_bytes / block + page_bytes / block / 64 + 32;
        DiskSizes {
            journal: (page_bytes / JOURNAL_PART).clamp(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX),
            pages: (places + 1) * block,
            table: (places * TABLE_BYTES_A_PAGE).max(TABLE_BYTES_MIN),
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
    PageFile::create(&files.pages, &files.table, disk)?;
    Journal::create(&files.journal, disk)
}

impl DiskFiles<FileDevice> {
    /// Opens the files of a disk in a folder.
    ///
    /// # Errors
    /// One is not there, or open elsewhere; those of the disk.
    pub fn open(folder: &Path) -> Result<DiskFiles<FileDevice>, DiskOpenError> {
        let file = |file| {
            let opened = FileDevice::open(&folder.join(file));
            opened.map_err(|error| DiskOpenError::File { file, error })
        };
        Ok(DiskFiles {
            journal: file(JOURNAL)?,
            pages: file(PAGES)?,
            table: file(TABLE)?,
        })
    }
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
    create(&files, disk)?;
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
}

/// Opens a disk: all of it that counts is durable then.
///
/// # Errors
/// See [`DiskOpenError`].
pub fn open<D: Device>(files: &DiskFiles<D>) -> Result<OpenedDisk, DiskOpenError> {
    let mut recovery = Recovery::default();
    let journal = Journal::open(&files.journal, &mut |number, bytes| {
        let taken = recovery.take(number, Bytes::copy_from_slice(bytes));
        taken.map_err(Into::into)
    })?;
    let pages = PageFile::open(&files.pages, &files.table)?;
    if pages.disk() != journal.disk() {
        return Err(DiskOpenError::OtherDisk);
    }
    let store = DiskStore::new(pages);
    let is_whole = |group: &GroupId, member: &RecoveredMember| match store.header(*group) {
        Some(header) if header.join == member.join() => header.is_whole,
        _ => member.is_whole(),
    };
    let (members, partial): (BTreeMap<_, _>, BTreeMap<_, _>) = recovery
        .into_members()
        .into_iter()
        .partition(|(group, member)| is_whole(group, member));
    let mut opened = OpenedDisk {
        store,
        dropped: partial.into_keys().collect(),
        journal,
        members,
        bad: BTreeSet::new(),
    };
    opened.drop_rest(files)?;
    for (group, member) in &opened.members {
        opened.store.found(*group, member.needed_from());
    }
    Ok(opened)
}

impl OpenedDisk {
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
            !self.members.contains_key(group) && !is_left
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
