//! The machine: what is where, and the checkpoints that change it.

use std::collections::{BTreeMap, BTreeSet};

use staves_model::GroupId;
use staves_model::mutant::{Mutant, planted};

use super::checkpoint::{
    Checkpoint, PageFileError, PageImage, PageVersion, PlacedPages, change_bytes, changes_of,
};
use super::format::{TableChange, TableRecord};
use super::limits::{CHANGE_BYTES_MIN, SWEPT_PER_CHANGED};
use super::located::Located;
use super::member::{StoredMember, StoredRow};
use super::room::{bytes_with, check, kept_place};
use super::sweep::{Sweep, swept};
use super::work::{PageWork, PagesPerformed};
use crate::format::DiskId;
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

    /// Pages that have a place, and places that are free.
    pub fn places(&self) -> (u32, u32) {
        (self.places.count(), self.places.free())
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
            #[allow(clippy::cast_possible_truncation)] // pages have numbers of 32 bits
            let pages = 0..member.rows.len() as u32;
            pages.filter_map(|page| {
                let row = member.page_row(page)?;
                let (join, labels) = (row.join, row.labels);
                Some((page, PageVersion { join, labels }))
            })
        })
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
    /// If a page is no block, is there twice, or is of another slot than others of its member.
    pub fn begin(&mut self, checkpoint: Checkpoint) -> Result<PageWork, PageFileError> {
        if let Some(why) = &self.failed {
            return Err(PageFileError::Failed(why.clone()));
        }
        check(&self.members, &checkpoint);
        self.fits(&checkpoint)?;
        let Some(table) = self.table.take() else {
            let why = "a checkpoint was begun and not brought back";
            return Err(PageFileError::Failed(why.into()));
        };
        let fresh = match self.take_places(&checkpoint) {
            Ok(fresh) => fresh,
            Err(full) => {
                self.table = Some(table);
                return Err(full);
            }
        };
        let next = table.last() + 1;
        let (record, writes, goes_on) = self.plan(checkpoint, fresh);
        let since = self.sweep.since.unwrap_or(next);
        let (sweep, let_go) = match goes_on {
            // What was written before all of it is let go, and it begins anew.
            None => (Sweep::default(), Some(since)),
            Some(at) => {
                let since = Some(since);
                (Sweep { at, since }, None)
            }
        };
        let let_go = match planted(Mutant::PagesSweptLetGo) {
            true => Some(next),
            false => let_go,
        };
        Ok(PageWork {
            table,
            writes,
            record,
            sweep,
            let_go,
        })
    }

    /// A free place for each page that has bytes, all or none.
    fn take_places(&mut self, checkpoint: &Checkpoint) -> Result<Vec<u32>, PageFileError> {
        let writes = checkpoint.pages.iter().filter(|page| page.bytes.is_some());
        let needed = writes.filter(|page| kept_place(&self.members, page).is_none());
        let (needed, free) = (needed.count(), self.places.free());
        let runs = u32::try_from(needed).ok().and_then(|n| self.places.take(n));
        let places = runs.map(|runs| runs.into_iter().flatten().collect());
        places.ok_or(PageFileError::Full { needed, free })
    }

    /// The record of a checkpoint, the pages that are written before, and where the sweep goes on; `None` if it is done.
    fn plan(
        &self,
        checkpoint: Checkpoint,
        fresh: Vec<u32>,
    ) -> (TableRecord, PlacedPages, Option<(GroupId, u64)>) {
        let journal_from = checkpoint.journal_from;
        let mut taken = 0;
        let mut place = |page: &PageImage| {
            kept_place(&self.members, page).unwrap_or_else(|| {
                taken += 1;
                fresh[taken - 1]
            })
        };
        let (changes, writes) = changes_of(checkpoint, &mut place);
        let changed: usize = changes.iter().map(TableChange::bytes).sum();
        let quota = changed.max(CHANGE_BYTES_MIN) * SWEPT_PER_CHANGED;
        let swept = swept(&self.members, self.sweep, quota);
        // Rows as they were before, then the changes.
        let changes = match planted(Mutant::PagesSweepOverrides) {
            true => [changes, swept.changes].concat(),
            false => [swept.changes, changes].concat(),
        };
        let record = TableRecord {
            journal_from,
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
            sweep,
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
        self.bytes = self.members.values().map(StoredMember::bytes).sum();
        self.sweep = sweep;
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

    /// Makes a change of the table. FreePlaces that nothing names any more are added to `left`, and those that something names taken off.
    pub(super) fn apply(&mut self, change: TableChange, left: &mut BTreeSet<u32>) {
        let named = |row: StoredRow| Some(row.place).filter(|place| *place != 0);
        match change {
            TableChange::Gone(group) => {
                let member = self.members.remove(&group).unwrap_or_default();
                let rows = member.rows.into_iter().filter(|row| row.is_there);
                left.extend(rows.filter_map(named));
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
                    (member.slot, member.columns) = (of.slot, of.columns);
                    (member.rows, member.labels) = (Vec::new(), Vec::new());
                }
                for row in &of.rows {
                    left.extend(member.put(row).and_then(named));
                    left.remove(&row.place);
                }
            }
        }
    }
}
