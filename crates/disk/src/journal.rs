//! The journal: records in batches in a ring, and what of them is synced.

mod error;

use std::collections::VecDeque;
use std::io;

use staves_model::mutant::{Mutant, planted};

pub use self::error::JournalError;
use crate::commit::{Commit, Performed};
use crate::device::{BLOCK_BYTES, Device};
use crate::format::{
    BATCH_HEADER, BatchHeader, DiskId, JOURNAL_BYTES_MIN, JournalHeader, RECORD_HEADER,
    RING_OFFSET, VERSION, batch_bytes, batch_max, reserved,
};
use crate::placed::{PLACED_BYTES_MAX, PlacedWrite, RecordBytes};

/// The beginning of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BatchMark {
    pub(crate) place: u64,
    pub(crate) first: u64,
    /// The header's check sum of the batch before it.
    pub(crate) previous: u32,
}

/// A row of records on a device. Records have numbers from 1 on, which go on over starts.
#[derive(Debug)]
pub struct Journal {
    /// As it is on disk, synced.
    header: JournalHeader,
    /// The batches of the ring from the header's first one on, which are the newest: those that were begun included.
    batches: VecDeque<BatchMark>,
    /// The batch that is being filled. The check sum in it is right while no commit is under way.
    end: BatchMark,
    /// Room for its header, and its records.
    pending: Vec<u8>,
    records: u32,
    /// Blocks of them for the page file.
    placed: Vec<PlacedWrite>,
    placed_bytes: usize,
    /// The memory of the batch before, for the one after this.
    spare: Vec<u8>,
    /// All that lies before this place is synced, and the number of the last record of it.
    synced_place: u64,
    synced: u64,
    /// Records below this number are let go.
    kept_from: u64,
    /// Records below this number are named by no header on disk.
    released: u64,
    under_way: bool,
    wants_room: bool,
    marks_end: bool,
    failed: Option<String>,
}

impl Journal {
    /// Makes an empty journal that fills the device. The disk's id must be a new one if there was a journal on the device before: the ring is not
    /// emptied, and what is there of another disk does not count.
    ///
    /// # Errors
    /// Those of the device; it is smaller than [`JOURNAL_BYTES_MIN`].
    pub fn create(device: &dyn Device, disk: DiskId) -> io::Result<()> {
        if device.bytes() < JOURNAL_BYTES_MIN {
            let small = format!(
                "a journal of {} bytes, where {JOURNAL_BYTES_MIN} are the least",
                device.bytes()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, small));
        }
        let block = BLOCK_BYTES as u64;
        let header = JournalHeader {
            version: VERSION,
            disk,
            generation: 1,
            life: 0,
            ring_bytes: (device.bytes() - RING_OFFSET) / block * block,
            start: 0,
            first: 1,
            synced: 0,
            previous: 0,
        };
        device.write(0, &vec![0; RING_OFFSET as usize])?;
        device.sync()?;
        device.write(header.offset(), &header.encode())?;
        device.sync()
    }

    /// A journal at the end of what was read back.
    pub(crate) fn resume(
        header: JournalHeader,
        batches: VecDeque<BatchMark>,
        end: BatchMark,
    ) -> Journal {
        Journal {
            header,
            batches,
            end,
            pending: vec![0; BATCH_HEADER],
            records: 0,
            placed: Vec::new(),
            placed_bytes: 0,
            spare: vec![0; BATCH_HEADER],
            synced_place: end.place,
            synced: end.first - 1,
            kept_from: header.first,
            released: header.first,
            under_way: false,
            wants_room: false,
            marks_end: false,
            failed: None,
        }
    }

    /// Takes a record into the next batch and returns its number. It is durable once [`synced`](Self::synced) has reached that.
    ///
    /// # Errors
    /// See [`JournalError`]. Nothing has changed then.
    pub fn append(&mut self, record: &[u8]) -> Result<u64, JournalError> {
        self.append_placed(&RecordBytes::plain(record), false)
    }

    /// Takes a record, blocks of which may go to places of the page file that nothing else names, until [`released`](Self::released) has passed it. `frees`: as
    /// [`append_reserved`](Self::append_reserved) takes one.
    ///
    /// # Errors
    /// See [`JournalError`]. Nothing has changed then.
    pub fn append_placed(
        &mut self,
        record: &RecordBytes<'_>,
        frees: bool,
    ) -> Result<u64, JournalError> {
        let kept_free = match frees || planted(Mutant::JournalReserveTaken) {
            true => 0,
            false => reserved(self.header.ring_bytes),
        };
        self.take(record, kept_free)
    }

    /// Takes a record as [`append`](Self::append) does, and may fill the reserved part of the ring with it. That part is for records that let others be
    /// let go: without them a full journal could never be emptied. It is also for records whose room was promised while [`room`](Self::room)
    /// had it.
    ///
    /// # Errors
    /// See [`JournalError`]. Nothing has changed then.
    pub fn append_reserved(&mut self, record: &[u8]) -> Result<u64, JournalError> {
        self.append_placed(&RecordBytes::plain(record), true)
    }

    fn take(&mut self, record: &RecordBytes<'_>, kept_free: u64) -> Result<u64, JournalError> {
        if let Some(why) = &self.failed {
            return Err(JournalError::Failed(why.clone()));
        }
        let (bytes, max) = (record.journaled(), self.record_bytes_max());
        let placed = record.placed_bytes();
        if bytes > max || placed > PLACED_BYTES_MAX {
            return Err(JournalError::TooLarge { bytes, max });
        }
        let filled = batch_bytes(self.pending.len() - BATCH_HEADER + RECORD_HEADER + bytes);
        let is_full = self.placed_bytes + placed > PLACED_BYTES_MAX;
        if is_full || filled > batch_max(self.header.ring_bytes) {
            return Err(JournalError::Busy);
        }
        let needed = filled as u64 - self.pending_bytes();
        let room = self.room_reserved().saturating_sub(kept_free);
        if needed > room {
            self.wants_room = true;
            return Err(JournalError::Full { needed, room });
        }
        record.put(&mut self.pending);
        record.writes(&mut self.placed);
        self.placed_bytes += placed;
        self.records += 1;
        Ok(self.last())
    }

    /// The bytes of the ring that the batch being filled takes.
    fn pending_bytes(&self) -> u64 {
        match self.records {
            0 => 0,
            _ => batch_bytes(self.pending.len() - BATCH_HEADER) as u64,
        }
    }

    /// The number up to which all records are durable.
    pub fn synced(&self) -> u64 {
        self.synced
    }

    /// The number of the last record that was appended.
    pub fn last(&self) -> u64 {
        self.end.first + u64::from(self.records) - 1
    }

    /// The number below which all records are let go. A start brings back whole batches, of those that the last header names: some records
    /// below this number may come first.
    pub fn kept_from(&self) -> u64 {
        self.kept_from
    }

    /// The number below which no start brings a record back, whichever header on disk it finds: places that only such records name are free.
    pub fn released(&self) -> u64 {
        match planted(Mutant::PlacesReleasedEarly) {
            true => self.kept_from,
            false => self.released,
        }
    }

    /// The bytes of the ring that [`append`](Self::append) may still fill. Records whose [`record_room`](Self::record_room) is no more than
    /// this in all are not refused as [`JournalError::Full`], however they fall into batches.
    pub fn room(&self) -> u64 {
        self.room_reserved()
            .saturating_sub(reserved(self.header.ring_bytes))
    }

    /// The bytes of the ring that [`append_reserved`](Self::append_reserved) may still fill.
    pub fn room_reserved(&self) -> u64 {
        let mut start = self.header.start;
        if planted(Mutant::JournalRoomAtOnce) {
            start = self.start_kept().map_or(start, |kept| kept.place);
        }
        self.header.ring_bytes - (self.end.place - start) - self.pending_bytes()
    }

    /// The bytes that were ever given to batches: it only grows.
    pub fn end(&self) -> u64 {
        self.end.place
    }

    /// The bytes of the ring.
    pub fn ring_bytes(&self) -> u64 {
        self.header.ring_bytes
    }

    /// The bytes of the ring that a record of so many bytes takes at most: those of a batch that it does not share.
    pub fn record_room(bytes: usize) -> u64 {
        batch_bytes(RECORD_HEADER + bytes) as u64
    }

    /// The largest record in bytes: one that fills a batch.
    pub fn record_bytes_max(&self) -> usize {
        batch_max(self.header.ring_bytes) - BATCH_HEADER - RECORD_HEADER
    }

    /// The disk's name.
    pub fn disk(&self) -> DiskId {
        self.header.disk
    }

    /// The number of this start; 1 is the first. It tells batches apart, and is no identity for anything else: the number of a start that was
    /// cut off may be given again.
    pub fn life(&self) -> u64 {
        self.header.life
    }

    /// The reason why the journal takes nothing more, if it has failed.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Ends the journal: nothing more is taken, written or synced.
    pub(crate) fn fail(&mut self, why: String) {
        self.failed.get_or_insert(why);
    }

    /// Lets go of all records below a number: no start needs them any more. Their room comes back with a later commit: the next one that has
    /// records, or one of its own if [`want_room`](Self::want_room) or a record that found no room asks for it.
    ///
    /// # Panics
    /// If one of them is not durable: what stands in their place must have been durable before.
    pub fn let_go(&mut self, below: u64) {
        assert!(
            below <= self.synced + 1,
            "records up to {} are let go, and {} are synced",
            below - 1,
            self.synced
        );
        self.kept_from = self.kept_from.max(below);
    }

    /// Asks for the room of what was let go, though no record needs it: the next commit that can make room does so.
    pub fn want_room(&mut self) {
        self.wants_room = true;
    }

    /// Asks for a last commit, once nothing else is to be written, that marks on disk where the journal ends: so damage to its last batch is seen.
    pub fn mark_end(&mut self) {
        self.marks_end = true;
    }

    /// The next writes, if there is anything to write and none are under way. They must be performed and brought back to [`finish`](Self::finish).
    #[must_use = "the journal stands still until they are brought back"]
    pub fn next_commit(&mut self) -> Option<Commit> {
        if self.under_way || self.failed.is_some() {
            return None;
        }
        let header = self.next_header();
        if self.records == 0 && header.is_none() {
            return None;
        }
        let batch = (self.records > 0).then(|| self.next_batch());
        self.under_way = true;
        self.placed_bytes = 0;
        self.wants_room &= header.is_none();
        Some(Commit {
            disk: self.header.disk,
            ring_bytes: self.header.ring_bytes,
            batch,
            header,
            placed: std::mem::take(&mut self.placed),
        })
    }

    /// Closes the batch that is being filled, and begins the next.
    fn next_batch(&mut self) -> (BatchHeader, Vec<u8>) {
        let spare = std::mem::take(&mut self.spare);
        let bytes = std::mem::replace(&mut self.pending, spare);
        #[allow(clippy::cast_possible_truncation)] // at most a batch
        let payload = (bytes.len() - BATCH_HEADER) as u32;
        let header = BatchHeader {
            place: self.end.place,
            life: self.header.life,
            first: self.end.first,
            records: self.records,
            payload,
            previous: self.end.previous,
        };
        self.batches.push_back(self.end);
        self.end.place += batch_bytes(payload as usize) as u64;
        self.end.first += u64::from(self.records);
        self.records = 0;
        (header, bytes)
    }

    /// The first batch of those that are kept; the end if nothing is. All before it was synced.
    fn start_kept(&self) -> Option<BatchMark> {
        let passed =
            |mark: &BatchMark| mark.first <= self.kept_from && mark.place <= self.synced_place;
        if passed(&self.end) {
            return Some(self.end);
        }
        let passed = self.batches.partition_point(passed);
        self.batches.get(passed.checked_sub(1)?).copied()
    }

    /// A header, if it makes room and there is a reason to write it, or if the end is to be marked.
    fn next_header(&self) -> Option<JournalHeader> {
        let start = self.start_kept()?;
        // Beside a batch a header costs no further sync.
        let makes_room = start.place > self.header.start && (self.records > 0 || self.wants_room);
        let marks_end = self.marks_end
            && self.records == 0
            && self.header.synced < self.synced_place
            && !planted(Mutant::JournalEndNotMarked);
        (makes_room || marks_end).then_some(JournalHeader {
            generation: self.header.generation + 1,
            start: start.place,
            first: start.first,
            synced: self.synced_place,
            previous: start.previous,
            ..self.header
        })
    }

    /// Brings writes back: what they made durable counts now.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if they failed; so does all that follows.
    pub fn finish(&mut self, performed: Performed) -> Result<(), JournalError> {
        assert!(self.under_way, "a commit that was not begun");
        self.under_way = false;
        if let Err(error) = performed.outcome
            && !planted(Mutant::JournalSyncTriedAgain)
        {
            self.fail(error.to_string());
        }
        if let Some(why) = &self.failed {
            return Err(JournalError::Failed(why.clone()));
        }
        if let Some(header) = performed.commit.header {
            // The one before it is on disk, too, and counts if this one rots.
            self.released = self.header.first;
            self.header = header;
            let passed = |mark: &BatchMark| mark.place < header.start;
            while self.batches.front().is_some_and(passed) {
                self.batches.pop_front();
            }
        }
        if let Some((_, mut bytes)) = performed.commit.batch {
            bytes.truncate(BATCH_HEADER);
            self.spare = bytes;
            self.end.previous = performed.sum;
            self.synced_place = self.end.place;
            self.synced = self.end.first - 1;
        }
        Ok(())
    }
}
