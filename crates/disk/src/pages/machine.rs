//! The machine: what is where, and the checkpoints that change it.

use std::collections::{BTreeMap, BTreeSet};

use staves_model::mutant::{Mutant, planted};
use staves_model::{Epoch, GroupId, Label, MemberSlot};

use super::checkpoint::{
    Checkpoint, PageBytes, PageFileError, PageImage, PageVersion, PlacedPages, change_bytes,
    changes_of,
};
use super::format::{CHANGE_HEAD, TableChange, TableRecord, row_bytes};
use super::limits::{CHANGE_BYTES_MIN, ROOM_PART, SPARE_MIN, SPARE_PART, SWEPT_PER_CHANGED};
use super::located::Located;
use super::mark::Sweep;
use super::member::{StoredMember, StoredRow};
use super::room::{bytes_with, check, journaled, kept_place, placed};
use super::sweep::swept;
use super::work::{PageWork, PagesPerformed};
use crate::device::Device;
use crate::format::{DiskId, crc};
use crate::journal::Journal;
use crate::places::FreePlaces;

/// The pages of a disk, and the machine that writes them: see the module.
#[derive(Debug)]
pub struct PageFile {
    pub(super) disk: DiskId,
    pub(super) members: BTreeMap<GroupId, StoredMember>,
    pub(super) places: FreePlaces,
    /// The table on disk; away while a checkpoint is performed.
    pub(super) table: Option<Journal>,
    /// The bytes of its rows, at most.
    pub(super) bytes: u64,
    pub(super) bytes_max: u64,
    pub(super) change_bytes_max: usize,
    pub(super) sweep: Sweep,
    /// Records of the table below this number are let go.
    pub(super) kept_from: u64,
    pub(super) journal_from: u64,
    pub(super) failed: Option<String>,
}

impl PageFile {
    /// The disk's name.
    pub fn disk(&self) -> DiskId {
        self.disk
    }

    /// The first record of the members' journal that is still needed.
    pub fn journal_from(&self) -> u64 {
        self.journal_from
    }

    /// Pages that have a place, and places that other pages may have.
    pub fn places(&self) -> (u32, u32) {
        let used = self.places.count();
        (used, self.places.for_pages().saturating_sub(used))
    }

    /// The most pages that one checkpoint takes, beside a small header, of a member whose pages have so many labels.
    pub fn pages_at_once(&self, columns: usize) -> usize {
        (self.change_bytes_max / (row_bytes(columns) + CHANGE_HEAD + 4)).saturating_sub(2)
    }

    /// The reason why it takes nothing more, if it has failed.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// The groups of which anything is kept.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.members.keys().copied()
    }

    /// The bytes that are kept of a member beside its pages.
    pub fn header(&self, group: GroupId) -> Option<&[u8]> {
        self.members.get(&group)?.header.as_deref()
    }

    /// The pages of a group, with their versions.
    pub fn pages(&self, group: GroupId) -> impl Iterator<Item = (u32, PageVersion)> + '_ {
        let member = self.members.get(&group);
        member.into_iter().flat_map(|member| {
            member.rows(0).filter_map(|(page, row)| {
                let (join, labels) = (row.join, member.labels_of(page)?.to_vec());
                Some((page, PageVersion { join, labels }))
            })
        })
    }

    /// The slot of a group's pages; `None` if none is kept.
    pub fn slot(&self, group: GroupId) -> Option<MemberSlot> {
        let member = self.members.get(&group)?;
        (member.count > 0).then_some(member.slot)
    }

    /// The version of a page: the epoch in which its member had joined, and its labels.
    pub fn version(&self, group: GroupId, page: u32) -> Option<(Epoch, &[Label])> {
        let member = self.members.get(&group)?;
        let row = member.row(page)?;
        Some((row.join, member.labels_of(page)?))
    }

    /// The place of a page; `None` if it is not kept.
    pub fn locate(&self, group: GroupId, page: u32) -> Option<Located> {
        let row = self.members.get(&group)?.row(page)?;
        Some(Located {
            group,
            page,
            place: row.place,
            sum: row.sum,
        })
    }

    /// Begins a checkpoint. What it returns must be performed and brought back to [`finish`](Self::finish); there is one at a time.
    ///
    /// # Errors
    /// See [`PageFileError`]. Nothing has changed then.
    ///
    /// # Panics
    /// If a page is no block, is there twice, is said to be kept and is not, or is of another slot than others of its member, which must be gone
    /// first; if the journal's mark goes back.
    pub fn begin(&mut self, checkpoint: Checkpoint) -> Result<PageWork, PageFileError> {
        if let Some(why) = &self.failed {
            return Err(PageFileError::Failed(why.clone()));
        }
        check(&self.members, &checkpoint);
        let from = checkpoint.journal_from.unwrap_or(self.journal_from);
        assert!(from >= self.journal_from, "the journal's mark goes back");
        self.fits(&checkpoint)?;
        let Some(table) = self.table.take() else {
            let why = "a checkpoint was begun and not brought back";
            let why = self.failed.get_or_insert(why.into());
            return Err(PageFileError::Failed(why.clone()));
        };
        let journaled = journaled(&checkpoint);
        let work = self.work(checkpoint, &table);
        match work {
            Ok((record, writes)) => {
                for place in journaled {
                    assert!(self.places.claim(place), "place {place} is another page's");
                }
                Ok(PageWork {
                    table,
                    writes,
                    record,
                })
            }
            Err(full) => {
                self.table = Some(table);
                Err(full)
            }
        }
    }

    /// The record of a checkpoint, and the pages that are written before it.
    fn work(
        &mut self,
        checkpoint: Checkpoint,
        table: &Journal,
    ) -> Result<(TableRecord, PlacedPages), PageFileError> {
        let fresh = self.take_places(&checkpoint)?;
        let next = table.last() + 1;
        let is_low = table.room_reserved() < table.ring_bytes() / ROOM_PART;
        let (mut record, writes, goes_on) = self.plan(checkpoint, &fresh, is_low);
        let since = self.sweep.since.unwrap_or(next);
        (record.sweep, record.kept_from) = match goes_on {
            // What was written before all of it is let go, and it begins anew.
            None => (Sweep::default(), since),
            Some(at) => {
                let since = Some(since);
                (Sweep { at, since }, self.kept_from)
            }
        };
        if planted(Mutant::PagesSweptLetGo) {
            record.kept_from = next;
        }
        let (bytes, max) = (Journal::record_room(record.bytes()), table.room_reserved());
        if bytes > max {
            fresh.iter().for_each(|place| self.places.give(*place));
            return Err(PageFileError::TableFull { bytes, max });
        }
        Ok((record, writes))
    }

    /// A free place for each page that has bytes, all or none. Some are for pages that have one already.
    fn take_places(&mut self, checkpoint: &Checkpoint) -> Result<Vec<u32>, PageFileError> {
        let writes = checkpoint.pages.iter();
        let writes = writes.filter(|page| matches!(page.bytes, PageBytes::Block(_)));
        let (mut needed, mut new) = (0, 0);
        for image in writes.filter(|page| kept_place(&self.members, page).is_none()) {
            needed += 1;
            new += usize::from(placed(&self.members, image).is_none());
        }
        let free = self.places.free();
        let spare = match new > 0 && !planted(Mutant::PagesNoSpare) {
            true => self.spare_places() as usize,
            false => 0,
        };
        let full = PageFileError::Full { needed, free };
        if needed + spare > free as usize {
            return Err(full);
        }
        let runs = u32::try_from(needed).ok().and_then(|n| self.places.take(n));
        let places = runs.map(|runs| runs.into_iter().flatten().collect());
        places.ok_or(full)
    }

    /// Places that pages without one do not get: so many pages that have one can be written over at once, however full the disk is.
    pub fn spare_places(&self) -> u32 {
        (self.places.for_pages() / SPARE_PART).max(SPARE_MIN)
    }

    /// The record of a checkpoint, the pages that are written before, and where the sweep goes on; `None` if it is done.
    fn plan(
        &self,
        checkpoint: Checkpoint,
        fresh: &[u32],
        is_low: bool,
    ) -> (TableRecord, PlacedPages, Option<(GroupId, u64)>) {
        let journal_from = checkpoint.journal_from.unwrap_or(self.journal_from);
        let mut fresh = fresh.iter().copied();
        let mut place = |page: &PageImage| match &page.bytes {
            PageBytes::Zero => (0, 0),
            PageBytes::Kept => placed(&self.members, page).unwrap_or((0, 0)),
            PageBytes::Journaled { place, sum } => (*place, *sum),
            PageBytes::Block(bytes) => {
                let place = kept_place(&self.members, page).or_else(|| fresh.next());
                (place.unwrap_or(0), crc(bytes))
            }
        };
        let (changes, writes) = changes_of(checkpoint, &mut place);
        assert!(
            writes.iter().all(|(place, _)| *place != 0),
            "as many places were taken"
        );
        let changed: usize = changes.iter().map(TableChange::bytes).sum();
        let faster = if is_low { 4 } else { 1 };
        let quota = changed.max(CHANGE_BYTES_MIN) * SWEPT_PER_CHANGED * faster;
        let swept = swept(&self.members, self.sweep, quota);
        // Rows as they were before, then the changes.
        let changes = match planted(Mutant::PagesSweepOverrides) {
            true => [changes, swept.changes].concat(),
            false => [swept.changes, changes].concat(),
        };
        let record = TableRecord {
            journal_from,
            kept_from: 0,
            sweep: Sweep::default(),
            changes,
        };
        (record, writes, (!swept.is_done).then_some(swept.at))
    }

    /// Brings a checkpoint back: it counts now.
    ///
    /// # Errors
    /// [`PageFileError::Failed`] if it failed; so does all that follows.
    pub fn finish(&mut self, performed: PagesPerformed) -> Result<(), PageFileError> {
        let PagesPerformed {
            table,
            record,
            outcome,
        } = performed;
        self.table = Some(table);
        if let Err(why) = outcome
            && !planted(Mutant::PagesFailureForgotten)
        {
            self.failed.get_or_insert(why.clone());
            return Err(PageFileError::Failed(why));
        }
        // Rows that did not change are among its changes: their places stay.
        let mut left = BTreeSet::new();
        for change in record.changes {
            self.apply(change, &mut left);
        }
        for place in left {
            if !planted(Mutant::PagesPlaceLeaked) {
                self.places.give(place);
            }
        }
        self.journal_from = record.journal_from;
        (self.sweep, self.kept_from) = (record.sweep, record.kept_from);
        self.bytes = self.members.values().map(StoredMember::bytes).sum();
        Ok(())
    }

    /// Marks on disk where the table ends, after which damage to its last record is seen as such.
    ///
    /// # Errors
    /// [`PageFileError::Failed`].
    pub fn close(mut self, table: &dyn Device) -> Result<(), PageFileError> {
        if let Some(why) = self.failed {
            return Err(PageFileError::Failed(why));
        }
        let Some(journal) = &mut self.table else {
            return Err(PageFileError::Failed("a checkpoint is under way".into()));
        };
        journal.mark_end();
        while let Some(commit) = journal.next_commit() {
            let done = journal.finish(commit.perform(table));
            done.map_err(|error| PageFileError::Failed(error.to_string()))?;
        }
        Ok(())
    }

    /// Refuses what the table has no room for a checkpoint's changes.
    fn fits(&self, checkpoint: &Checkpoint) -> Result<(), PageFileError> {
        let (bytes, max) = (change_bytes(checkpoint), self.change_bytes_max);
        if bytes > max {
            return Err(PageFileError::TooMuch { bytes, max });
        }
        let (bytes, max) = (
            bytes_with(&self.members, self.bytes, checkpoint),
            self.bytes_max,
        );
        match bytes > max {
            true => Err(PageFileError::TableFull { bytes, max }),
            false => Ok(()),
        }
    }

    /// Makes a change of the table. Places that nothing names any more are added to `left`, and those that something names taken off.
    pub(super) fn apply(&mut self, change: TableChange, left: &mut BTreeSet<u32>) {
        let named = |row: StoredRow| Some(row.place).filter(|place| *place != 0);
        match change {
            TableChange::Gone(group) => {
                let member = self.members.remove(&group).unwrap_or_default();
                left.extend(member.rows(0).filter_map(|(_, row)| named(row)));
            }
            TableChange::Header(group, bytes) => {
                self.members.entry(group).or_default().header = Some(bytes);
            }
            TableChange::Forgotten(group, pages) => {
                let mut member = self.members.get_mut(&group);
                let forgotten = |page| member.as_mut()?.forget(page);
                left.extend(pages.into_iter().filter_map(forgotten).filter_map(named));
            }
            TableChange::Pages(of) => {
                let member = self.members.entry(of.group).or_default();
                if member.count == 0 {
                    member.clear(of.slot, of.columns);
                }
                for row in &of.rows {
                    left.extend(member.put(row).and_then(named));
                    left.remove(&row.place);
                }
            }
        }
    }
}
