//! A start: what of the journal is whole, and the next life of it.
//!
//! **The end.** Batches are read in order. A batch is begun only once those before it are synced, so the first one that is not whole is the end:
//! nothing can lie behind it. If something does, or a header says that more had been synced, then bytes were damaged, and what they were is not to be
//! guessed. For that a batch's header alone is proof enough, and it is the only one if its own records were torn by the same loss of power.
//!
//! **No batch comes back.** A batch that was not whole is dropped, and the next life writes another one to the same place, with the same number and the
//! same batch before it. If that one is torn, too, their sectors may make the dropped one whole again. But a life begins with a synced header, which
//! says where the journal ended then (`synced`); so a batch from there on counts only if it is of the header's own life.
//!
//! **A rotten header.** The other one is taken then, and that must not be one of an earlier life, which would let that life's dropped batches
//! count. So a start writes both, each synced, before the life's first batch is begun: batches of a life exist only while both headers are of that life.
//! The older header of one life names the same batches or more (those that were let go come back); if one of them was overwritten
//! meanwhile, what stands there has a place behind the end, and the journal is refused. If a start was cut off between its headers, the older one
//! is of the life before, and right: no batch of the new life exists. A header that is torn by a loss of power was not synced, and nothing was begun
//! that rests on it.
//!
//! **What was read may be nowhere.** The last whole batch and the header may have come from memory of the system that a failed sync left
//! without their being on disk (rule D-10). They are written again and synced before anybody counts on them: the bytes that were checked, for a second
//! look may find others, once that memory is given back. Where they are on disk already, a torn write of them changes nothing. Only then is the
//! header beside it overwritten, and only then does the caller see the records. They are read a second time for that, so that the
//! memory needed is that of a batch and not that of the journal.

mod blocks;

use std::collections::VecDeque;
use std::error::Error;
use std::io;

use staves_model::mutant::{Mutant, planted};

use crate::device::{BLOCK_BYTES, Device};
use crate::format::{
    BatchHeader, HeaderFault, JournalHeader, NUMBERS_END, RING_MIN, RING_OFFSET, VERSION,
    batch_bytes, header_sum, pieces, records,
};
use crate::journal::{BatchMark, Journal};
use crate::placed::{FoundBlocks, PlacedWrite};

/// The bytes that the search for proofs of damage reads at once.
const SCAN_BYTES: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// A caller's view of a record, with its number; an error if the record is of no use to it.
pub type EachRecord<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> + 'a;

/// The same of a journal beside a page file, with the record's blocks there.
pub type EachPlaced<'a> =
    dyn FnMut(u64, &[u8], FoundBlocks<'_>) -> Result<(), Box<dyn Error + Send + Sync>> + 'a;

const NO_BLOCKS: FoundBlocks<'static> = FoundBlocks {
    places: &[],
    are_whole: true,
};

/// A journal that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk did not read.
    #[error(
        "the journal cannot be read, somewhere in the {bytes} bytes from byte {at} on: {error}"
    )]
    Read {
        /// The offset on the device.
        at: u64,
        /// The number of bytes that were asked for.
        bytes: usize,
        /// The disk's error.
        error: io::Error,
    },
    /// The disk did not write or sync.
    #[error("the journal cannot be written: {0}")]
    Write(io::Error),
    /// There are no headers, or both are damaged.
    #[error(
        "neither header of the journal is whole: this is no journal, or its first two blocks are damaged"
    )]
    NoHeader,
    /// Written by another program.
    #[error("the journal's version is {0}, and this program reads {ours}", ours = crate::format::VERSION)]
    Version(u32),
    /// The header says what cannot be.
    #[error(
        "the journal's header contradicts itself or the size of its file ({bytes} bytes): {what}"
    )]
    Contradiction {
        /// The size of the device.
        bytes: u64,
        /// The contradiction.
        what: &'static str,
    },
    /// Synced bytes are not as they were.
    #[error(
        "the journal is damaged at its place {place}: more had been synced than is whole there (the place {proof} shows it); this disk's members must be filled anew from their groups"
    )]
    Damaged {
        /// The place of the first batch that is not as it was.
        place: u64,
        /// The place of a batch behind it, or up to which a header says that all had been synced.
        proof: u64,
    },
    /// The caller cannot use a record.
    #[error("record {number} of the journal cannot be used: {error}")]
    Unusable {
        /// Its number.
        number: u64,
        /// The caller's error.
        error: Box<dyn Error + Send + Sync>,
    },
}

impl Journal {
    /// Reads a journal back: calls `each` with every record that is kept, in order, and its number. All of them are durable when the first call is
    /// made. If the newest header is damaged, the one before it counts, and some records that were let go may come back.
    ///
    /// # Errors
    /// See [`OpenError`]. An error of `each` ends the start as [`OpenError::Unusable`]; it may be tried again.
    pub fn open(device: &dyn Device, each: &mut EachRecord<'_>) -> Result<Journal, OpenError> {
        Journal::open_with(device, None, &mut |number, bytes, _| each(number, bytes))
    }

    /// The same of a journal whose records may have blocks in a page file.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_with(
        device: &dyn Device,
        pages: Option<&dyn Device>,
        each: &mut EachPlaced<'_>,
    ) -> Result<Journal, OpenError> {
        let header = newest_header(device)?;
        let mut replay = Replay::new(device, pages, header);
        while replay.next()? {}
        replay.look_at_blocks()?;
        replay.look_behind_the_end()?;
        replay.begin_life().map_err(OpenError::Write)?;
        replay.bring_back(each)?;
        Ok(Journal::resume(replay.header, replay.batches, replay.end))
    }
}

fn read(device: &dyn Device, at: u64, into: &mut [u8]) -> Result<(), OpenError> {
    let bytes = into.len();
    let read = device.read(at, into);
    read.map_err(|error| OpenError::Read { at, bytes, error })
}

pub(crate) fn newest_header(device: &dyn Device) -> Result<JournalHeader, OpenError> {
    let mut newest: Option<JournalHeader> = None;
    let mut version = None;
    for offset in [0, BLOCK] {
        let mut block = vec![0; BLOCK_BYTES];
        read(device, offset, &mut block)?;
        match JournalHeader::decode(&block) {
            Ok(header) if newest.is_none_or(|n| n.generation < header.generation) => {
                newest = Some(header);
            }
            Ok(_) | Err(HeaderFault::Not) => {}
            Err(HeaderFault::Version(other)) => version = Some(other),
        }
    }
    if let Some(version) = version {
        return Err(OpenError::Version(version));
    }
    let header = newest.ok_or(OpenError::NoHeader)?;
    let bytes = device.bytes();
    match contradiction(&header, bytes) {
        Some(what) => Err(OpenError::Contradiction { bytes, what }),
        None => Ok(header),
    }
}

/// The part of a header that cannot be, on a device of so many bytes.
fn contradiction(header: &JournalHeader, bytes: u64) -> Option<&'static str> {
    let ring = header.ring_bytes;
    let whole = |place: u64| place.is_multiple_of(BLOCK);
    let numbers = [header.generation, header.life, header.start, header.first];
    let far = header.synced.checked_sub(header.start);
    if ring > bytes.saturating_sub(RING_OFFSET) || ring < RING_MIN {
        return Some("the size of the ring");
    }
    if !whole(ring) || !whole(header.start) || !whole(header.synced) {
        return Some("a place that is no multiple of a block");
    }
    if far.is_none_or(|far| far > ring) || header.first == 0 {
        return Some("the places of what is kept");
    }
    let endless = numbers.iter().any(|number| *number >= NUMBERS_END);
    endless.then_some("a number that no journal reaches")
}

struct Replay<'a> {
    device: &'a dyn Device,
    pages: Option<&'a dyn Device>,
    header: JournalHeader,
    batches: VecDeque<BatchMark>,
    /// Behind the last whole batch.
    end: BatchMark,
    /// The last whole batch, as it was checked.
    last: Vec<u8>,
    /// Its records' blocks in the page file, as they were checked.
    last_blocks: Vec<PlacedWrite>,
    /// Memory to read into.
    bytes: Vec<u8>,
}

impl<'a> Replay<'a> {
    fn new(
        device: &'a dyn Device,
        pages: Option<&'a dyn Device>,
        header: JournalHeader,
    ) -> Replay<'a> {
        let end = BatchMark {
            place: header.start,
            first: header.first,
            previous: header.previous,
        };
        Replay {
            device,
            pages,
            header,
            batches: VecDeque::new(),
            end,
            last: Vec::new(),
            last_blocks: Vec::new(),
            bytes: Vec::new(),
        }
    }

    fn read(&self, place: u64, into: &mut [u8]) -> Result<(), OpenError> {
        for (offset, range) in pieces(place, into.len(), self.header.ring_bytes) {
            if !range.is_empty() {
                read(self.device, offset, &mut into[range])?;
            }
        }
        Ok(())
    }

    fn decode(&self, block: &[u8]) -> Option<BatchHeader> {
        BatchHeader::decode(self.header.disk, self.header.ring_bytes, block)
    }

    /// Reads the batch that begins at this place into memory: its header, if it says so, and whether its records are whole.
    fn batch_at(
        &self,
        place: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<(BatchHeader, bool)>, OpenError> {
        bytes.resize(BLOCK_BYTES, 0);
        self.read(place, bytes)?;
        let Some(batch) = self.decode(bytes).filter(|batch| batch.place == place) else {
            return Ok(None);
        };
        bytes.resize(batch_bytes(batch.payload as usize), 0);
        self.read(place + BLOCK, &mut bytes[BLOCK_BYTES..])?;
        let is_whole = batch.is_whole(bytes);
        Ok(Some((batch, is_whole)))
    }

    /// Takes the next batch. False at the end.
    fn next(&mut self) -> Result<bool, OpenError> {
        let place = self.end.place;
        let left = self.header.start + self.header.ring_bytes - place;
        if left == 0 {
            return Ok(false);
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        let found = self.batch_at(place, &mut bytes)?;
        self.bytes = bytes;
        let Some((batch, is_whole)) = found else {
            return Ok(false);
        };
        // Dropped by a start after it: an earlier life left it behind.
        let is_dropped = place >= self.header.synced && batch.life < self.header.life;
        if is_dropped && !planted(Mutant::JournalOldLifeCounts) {
            return Ok(false);
        }
        let follows = batch.previous == self.end.previous
            && batch.first == self.end.first
            && batch.life <= self.header.life;
        if !follows && !planted(Mutant::JournalChainIgnored) {
            // A life writes one batch to a place, behind those that stand before it: they are not what they were.
            let proof = place;
            return Err(OpenError::Damaged { place, proof });
        }
        if !is_whole || self.bytes.len() as u64 > left {
            return Ok(false);
        }
        if records(&batch, &self.bytes).is_none() {
            let proof = place;
            return Err(OpenError::Damaged { place, proof });
        }
        self.batches.push_back(self.end);
        self.end = BatchMark {
            place: place + self.bytes.len() as u64,
            first: batch.first + u64::from(batch.records),
            previous: header_sum(&self.bytes),
        };
        std::mem::swap(&mut self.last, &mut self.bytes);
        Ok(true)
    }

    /// An error if something shows that more than what is whole was synced once.
    fn look_behind_the_end(&mut self) -> Result<(), OpenError> {
        let (place, ring) = (self.end.place, self.header.ring_bytes);
        let damaged = |proof| Err(OpenError::Damaged { place, proof });
        if self.header.synced > place {
            return damaged(self.header.synced);
        }
        if planted(Mutant::JournalDamageIsItsEnd) {
            return Ok(());
        }
        let mut bytes = Vec::new();
        let (mut at, until) = (place, self.header.start + ring);
        while at < until {
            #[allow(clippy::cast_possible_truncation)] // SCAN_BYTES at most
            bytes.resize((until - at).min(SCAN_BYTES) as usize, 0);
            self.read(at, &mut bytes)?;
            for block in bytes.chunks(BLOCK_BYTES) {
                // Also a place more than a round behind, if only an old header is left.
                let behind =
                    |batch: &BatchHeader| batch.place > place && batch.place % ring == at % ring;
                let proof = self.decode(block).filter(behind).filter(|batch| {
                    !planted(Mutant::JournalTornProofUnseen) || batch.is_whole(block)
                });
                if let Some(batch) = proof {
                    return damaged(batch.place);
                }
                at += BLOCK;
            }
        }
        Ok(())
    }

    /// Writes again what may not be on disk, and begins the next life.
    fn begin_life(&mut self) -> io::Result<()> {
        self.write_last_again()?;
        if !planted(Mutant::JournalHeaderTrusted) {
            let block = self.header.encode();
            self.device.write(self.header.offset(), &block)?;
        }
        self.device.sync()?;
        self.header.version = VERSION;
        self.header.life += 1;
        self.header.synced = self.end.place;
        let copies = match planted(Mutant::JournalOneHeaderPerLife) {
            true => 1,
            false => 2,
        };
        for _ in 0..copies {
            self.header.generation += 1;
            let block = self.header.encode();
            self.device.write(self.header.offset(), &block)?;
            self.device.sync()?;
        }
        Ok(())
    }

    /// Reads the batches once more and hands out their records.
    fn bring_back(&mut self, each: &mut EachPlaced<'_>) -> Result<(), OpenError> {
        let mut bytes = std::mem::take(&mut self.bytes);
        let behind = self.batches.iter().skip(1).chain([&self.end]);
        for (mark, behind) in self.batches.iter().zip(behind) {
            let place = mark.place;
            let proof = self.end.place;
            let found = self.batch_at(place, &mut bytes)?;
            let same =
                found.filter(|(_, is_whole)| *is_whole && header_sum(&bytes) == behind.previous);
            let records = same.and_then(|(batch, _)| records(&batch, &bytes));
            let records = records.ok_or(OpenError::Damaged { place, proof })?;
            for (number, record) in (mark.first..).zip(records) {
                let handed = match record.is_placed {
                    false => each(number, record.bytes, NO_BLOCKS),
                    true => {
                        let record = record.put_together(self.pages);
                        let record = record.ok_or(OpenError::Damaged { place, proof })?;
                        let places: Vec<u32> = record.blocks.iter().map(|b| b.place).collect();
                        let blocks = FoundBlocks {
                            places: &places,
                            are_whole: !record.is_torn && !record.is_unread,
                        };
                        each(number, &record.bytes, blocks)
                    }
                };
                handed.map_err(|error| OpenError::Unusable { number, error })?;
            }
        }
        Ok(())
    }
}
