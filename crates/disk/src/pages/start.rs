//! An empty page file, and the start of one that is there.

use std::collections::BTreeSet;
use std::error::Error;
use std::io;

use staves_model::mutant::{Mutant, planted};

use super::format::{PAGES_VERSION, TableRecord, header, parse_header};
use super::limits::{CHANGE_PART, ROWS_PART, TABLE_BYTES_MIN};
use super::machine::PageFile;
use super::mark::Sweep;
use super::member::StoredMember;
use crate::device::{BLOCK_BYTES, Device};
use crate::format::DiskId;
use crate::journal::Journal;
use crate::places::FreePlaces;
use crate::replay::{OpenError, newest_header};

/// The end of places that are used: they have 32 bits.
const PLACES_END: u64 = u32::MAX as u64 - 127;

/// A page file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PagesOpenError {
    /// Its table cannot be used.
    #[error("the table of pages: {0}")]
    Table(#[from] OpenError),
    /// The disk did not read.
    #[error("the page file's header cannot be read: {0}")]
    Read(io::Error),
    /// There is no header, or it is damaged.
    #[error("the page file has no whole header: it is none, or its first block is damaged")]
    NoHeader,
    /// Written by another program.
    #[error("the page file's version is {0}, and this program reads {PAGES_VERSION}")]
    Version(u32),
    /// The page file and its table are of two disks.
    #[error("the page file is of another disk than its table: files of two disks were mixed up")]
    OtherDisk,
    /// The table says what cannot be.
    #[error("the table of pages contradicts itself: {0}")]
    Contradiction(String),
}

impl PageFile {
    /// Makes an empty page file for a disk, and its table; each fills its device. Neither device has anything of a disk of the same name.
    ///
    /// # Errors
    /// Those of the devices; one of them is too small.
    pub fn create(pages: &dyn Device, table: &dyn Device, disk: DiskId) -> io::Result<()> {
        PageFile::create_with(pages, table, disk, 0)
    }

    /// The same of one in which so many places are for blocks of the journal's records, beside those for pages.
    ///
    /// # Errors
    /// As [`PageFile::create`].
    pub fn create_with(
        pages: &dyn Device,
        table: &dyn Device,
        disk: DiskId,
        journal_places: u32,
    ) -> io::Result<()> {
        if pages.bytes() < 2 * BLOCK_BYTES as u64 {
            let small = format!(
                "a page file of {} bytes has no room for a page",
                pages.bytes()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, small));
        }
        if table.bytes() < TABLE_BYTES_MIN {
            let small = format!(
                "a table of {} bytes, where {TABLE_BYTES_MIN} are the least",
                table.bytes()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, small));
        }
        pages.write(0, &header(disk, journal_places))?;
        pages.sync()?;
        Journal::create(table, disk)
    }

    /// Opens a page file with its table.
    ///
    /// # Errors
    /// See [`PagesOpenError`].
    pub fn open(pages: &dyn Device, table: &dyn Device) -> Result<PageFile, PagesOpenError> {
        let mut block = vec![0; BLOCK_BYTES];
        pages.read(0, &mut block).map_err(PagesOpenError::Read)?;
        let (version, disk, held_max) = parse_header(&block).ok_or(PagesOpenError::NoHeader)?;
        if !(1..=PAGES_VERSION).contains(&version) {
            return Err(PagesOpenError::Version(version));
        }
        // Before anything is written to it.
        if newest_header(table)?.disk != disk {
            return Err(PagesOpenError::OtherDisk);
        }
        let end = (pages.bytes() / BLOCK_BYTES as u64).min(PLACES_END);
        #[allow(clippy::cast_possible_truncation)] // PLACES_END
        let end = end as u32;
        if held_max > 0 && held_max >= end / 2 {
            let what = format!("{held_max} of {end} places are for the journal");
            return Err(PagesOpenError::Contradiction(what));
        }
        let places = FreePlaces::new(end, held_max);
        let mut file = PageFile {
            disk,
            members: Default::default(),
            places,
            table: None,
            bytes: 0,
            bytes_max: 0,
            change_bytes_max: 0,
            sweep: Sweep::default(),
            kept_from: 1,
            journal_from: 1,
            failed: None,
        };
        let mut journal = Journal::open(table, &mut |_, bytes| file.replay(bytes))?;
        if file.kept_from > journal.last() + 1 {
            let what = "its last record lets go of some that do not exist".to_owned();
            return Err(PagesOpenError::Contradiction(what));
        }
        journal.let_go(file.kept_from);
        file.bytes_max = journal.ring_bytes() / 100 * ROWS_PART;
        file.change_bytes_max = journal.record_bytes_max() / CHANGE_PART;
        file.table = Some(journal);
        file.claim_places()?;
        file.bytes = file.members.values().map(StoredMember::bytes).sum();
        Ok(file)
    }

    /// Takes a record of the table.
    fn replay(&mut self, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let record = TableRecord::decode(bytes).ok_or("a record is none of a table of pages")?;
        for change in record.changes {
            self.apply(change, &mut BTreeSet::new());
        }
        self.journal_from = record.journal_from;
        self.kept_from = record.kept_from;
        if !planted(Mutant::PagesSweepForgotten) {
            self.sweep = record.sweep;
        }
        Ok(())
    }

    fn claim_places(&mut self) -> Result<(), PagesOpenError> {
        for (group, member) in &self.members {
            for (page, row) in member.rows(0).filter(|(_, row)| row.place != 0) {
                if !self.places.claim(row.place) {
                    let what = format!(
                        "place {} of page {page} of group {} is another page's, or beyond the end",
                        row.place, group.0
                    );
                    return Err(PagesOpenError::Contradiction(what));
                }
            }
        }
        Ok(())
    }
}
