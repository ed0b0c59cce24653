//! The last batch of a start, with the blocks of its records that lie in the page file.

use std::io;

use staves_model::mutant::{Mutant, planted};

use super::{OpenError, Replay};
use crate::commit::write_pieces;
use crate::format::records;
use crate::placed::{RecordBytes, sync_blocks, write_blocks};

impl Replay<'_> {
    /// The last whole batch counts if the blocks of its records are whole, too: those may have been torn as any part of it. Batches before it were begun with
    /// all of theirs synced.
    pub(super) fn look_at_blocks(&mut self) -> Result<(), OpenError> {
        let Some(last) = self.batches.back().copied() else {
            return Ok(());
        };
        let place = last.place;
        let mut blocks = Vec::new();
        let records = self
            .decode(&self.last)
            .map(|batch| records(&batch, &self.last));
        let records = records.flatten().into_iter().flatten();
        for record in records.filter(|record| record.is_placed) {
            let damaged = OpenError::Damaged {
                place,
                proof: place.max(self.header.synced),
            };
            let record = record.put_together(self.pages).ok_or(damaged)?;
            // A block that cannot be read is no end, as no sector is.
            if record.is_torn && !record.is_unread && place >= self.header.synced {
                self.end = last;
                self.batches.pop_back();
                self.last.clear();
                return Ok(());
            }
            if !record.is_torn && !record.is_unread {
                let again = RecordBytes {
                    head: &[],
                    tail: &record.bytes.into(),
                    placed: &record.blocks,
                };
                again.writes(&mut blocks);
            }
        }
        self.last_blocks = blocks;
        Ok(())
    }

    pub(super) fn write_last_again(&mut self) -> io::Result<()> {
        let Some(last) = self.batches.back() else {
            return Ok(());
        };
        // Before `synced` there is nothing that a sync has not confirmed.
        if last.place < self.header.synced || planted(Mutant::JournalTailTrusted) {
            return Ok(());
        }
        // What stands behind it was dropped: it was whole, and synced, before that was begun.
        if self.last.is_empty() {
            return Ok(());
        }
        write_blocks(&self.last_blocks, self.pages)?;
        sync_blocks(&self.last_blocks, self.pages)?;
        let mut bytes = std::mem::take(&mut self.last);
        if planted(Mutant::JournalTailReadAgain) {
            let read = self.read(last.place, &mut bytes);
            read.map_err(io::Error::other)?;
        }
        write_pieces(self.device, self.header.ring_bytes, last.place, &bytes)
    }
}
