//! A commit: the writes and the one sync that make records durable. It needs no lock of the journal.

use std::io;

use staves_model::mutant::{Mutant, planted};

use crate::device::Device;
use crate::format::{BatchHeader, DiskId, JournalHeader, pieces};
use crate::placed::{PlacedWrite, sync_blocks, write_blocks};

/// Writes that make all records up to a number durable, and perhaps room. The journal stands still until they are performed and brought back.
#[must_use]
#[derive(Debug)]
pub struct Commit {
    pub(crate) disk: DiskId,
    pub(crate) ring_bytes: u64,
    pub(crate) batch: Option<(BatchHeader, Vec<u8>)>,
    pub(crate) header: Option<JournalHeader>,
    /// Blocks of its records for the page file.
    pub(crate) placed: Vec<PlacedWrite>,
}

/// Writes that were tried, for [`Journal::finish`](crate::Journal::finish).
#[must_use]
#[derive(Debug)]
pub struct Performed {
    pub(crate) commit: Commit,
    /// The check sum of the batch's header.
    pub(crate) sum: u32,
    pub(crate) outcome: io::Result<()>,
}

impl Commit {
    /// Writes and syncs. An error of the device is brought back with the rest.
    pub fn perform(self, device: &dyn Device) -> Performed {
        self.perform_with(device, None)
    }

    /// The same of a journal whose records have blocks in a page file, which are written and synced with it: the next batch begins only when this one is
    /// whole with all of its blocks.
    pub fn perform_with(mut self, device: &dyn Device, pages: Option<&dyn Device>) -> Performed {
        let mut sum = 0;
        if let Some((header, bytes)) = &mut self.batch {
            sum = header.seal(self.disk, bytes);
        }
        let outcome = self.write(device, pages);
        Performed {
            commit: self,
            sum,
            outcome,
        }
    }

    fn write(&self, device: &dyn Device, pages: Option<&dyn Device>) -> io::Result<()> {
        write_blocks(&self.placed, pages)?;
        if let Some((header, bytes)) = &self.batch {
            write_pieces(device, self.ring_bytes, header.place, bytes)?;
        }
        if let Some(header) = &self.header {
            device.write(header.offset(), &header.encode())?;
        }
        sync_blocks(&self.placed, pages)?;
        if planted(Mutant::JournalUnsynced) {
            return Ok(());
        }
        device.sync()
    }
}

/// Writes into the ring from a place on.
pub(crate) fn write_pieces(
    device: &dyn Device,
    ring: u64,
    place: u64,
    bytes: &[u8],
) -> io::Result<()> {
    for (offset, range) in pieces(place, bytes.len(), ring) {
        if !range.is_empty() {
            device.write(offset, &bytes[range])?;
        }
    }
    Ok(())
}
