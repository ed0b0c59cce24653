//! The writes of a checkpoint. They need no lock of the page file.

use staves_model::mutant::{Mutant, planted};

use super::format::TableRecord;
use super::located::offset;
use crate::device::{BLOCK_BYTES, Device};
use crate::journal::{Journal, JournalError};

/// Pages that lie together are written together, up to so many bytes.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// A checkpoint to be performed. The page file stands still until it is brought back.
#[must_use]
#[derive(Debug)]
pub struct PageWork {
    pub(super) table: Journal,
    /// Pages and their places.
    pub(super) writes: Vec<(u32, Box<[u8]>)>,
    pub(super) record: TableRecord,
}

/// A checkpoint that was tried, for [`PageFile::finish`](crate::PageFile::finish).
#[must_use]
#[derive(Debug)]
pub struct PagesPerformed {
    pub(super) table: Journal,
    pub(super) record: TableRecord,
    pub(super) outcome: Result<(), String>,
}

impl PageWork {
    /// Writes the pages, syncs them, writes the rows that name them, syncs those. An error of a device is brought back with the rest.
    pub fn perform(mut self, pages: &dyn Device, table: &dyn Device) -> PagesPerformed {
        let outcome = self.write_pages(pages);
        let outcome = outcome.and_then(|()| {
            let written = self.write_table(table);
            written.map_err(|error| format!("the table of pages: {error}"))
        });
        PagesPerformed {
            table: self.table,
            record: self.record,
            outcome,
        }
    }

    fn write_pages(&self, device: &dyn Device) -> Result<(), String> {
        let together = |(a, _): &(u32, _), (b, _): &(u32, _)| a + 1 == *b;
        let mut buffer = Vec::new();
        for run in self.writes.chunk_by(together) {
            for part in run.chunks(WRITE_BYTES_MAX / BLOCK_BYTES) {
                buffer.clear();
                for (_, bytes) in part {
                    buffer.extend_from_slice(bytes);
                }
                let written = device.write(offset(part[0].0), &buffer);
                written.map_err(|error| format!("pages cannot be written: {error}"))?;
            }
        }
        if self.writes.is_empty() || planted(Mutant::PagesUnsynced) {
            return Ok(());
        }
        let synced = device.sync();
        synced.map_err(|error| format!("pages cannot be synced: {error}"))
    }

    fn write_table(&mut self, device: &dyn Device) -> Result<(), JournalError> {
        // It is what lets others be let go.
        self.table.append_reserved(&self.record.encode())?;
        while let Some(commit) = self.table.next_commit() {
            self.table.finish(commit.perform(device))?;
        }
        self.table.let_go(self.record.kept_from);
        Ok(())
    }
}
