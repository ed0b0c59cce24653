//! The bytes of a journal. All numbers are little-endian; check sums are CRC-32C.
//!
//! ```text
//! two headers, one block each (the valid one of the higher generation counts), then the ring
//!
//! header  0 magic "SJH1"    4 crc of 8..104   8 version       12 zero
//!        16 disk id (16)   32 generation     40 life         48 bytes of the ring
//!        56 place of the first batch kept    64 number of its first record
//!        72 place up to which all is synced  80 crc of the batch before the first one kept    84 zero (20)
//!
//! batch   0 magic "SJB1"    4 crc of 8..64     8 place
//!        16 life           24 number of its first record                    32 the first 8 bytes of the disk's id
//!        40 records        44 bytes of the records with their lengths       48 crc (at 4) of the batch before it
//!        52 crc of the records with their lengths                           56 zero (8)
//!        64 the records: a length of 4 bytes, then as many (`placed` has those whose length has its highest bit set); then zeroes up to a whole block
//! ```
//!
//! A batch's header has a check sum of its own, for it tells something without its records: that all batches before it were synced.
//!
//! A *place* counts the bytes of all batches ever written; its offset in the ring is the place modulo the ring's bytes, so a batch may
//! go on at the ring's beginning. Places are multiples of a block.

use staves_model::mutant::{Mutant, planted};

use crate::device::BLOCK_BYTES;
use crate::placed::{BatchRecord, PLACED};

/// The version of the journal's bytes. In version 1 no record has blocks elsewhere.
pub const VERSION: u32 = 2;
const VERSION_MIN: u32 = 1;
/// The largest batch, with its header; a small journal has [`batch_max`].
pub const BATCH_BYTES_MAX: usize = 4 << 20;
/// The smallest journal.
pub const JOURNAL_BYTES_MIN: u64 = RING_OFFSET + RING_MIN;

/// The offset of the ring on the device.
pub(crate) const RING_OFFSET: u64 = 2 * BLOCK_BYTES as u64;
/// The smallest ring, and how many of the largest batches any ring holds.
pub(crate) const RING_MIN: u64 = 16 * BLOCK_BYTES as u64;
const BATCHES_MIN: usize = 4;
/// The part of the ring that only [`Journal::append_reserved`](crate::Journal::append_reserved) may fill: as large as the largest batch at least,
/// so that any record can be kept anew in a journal that is full.
const RESERVED_PART: u64 = 4;
/// Numbers from here on are no numbers of a journal: counting on from those below never overflows.
pub(crate) const NUMBERS_END: u64 = u64::MAX / 2;
/// The bytes before a batch's records.
pub(crate) const BATCH_HEADER: usize = 64;
/// The bytes before a record.
pub(crate) const RECORD_HEADER: usize = 4;

const HEADER_MAGIC: [u8; 4] = *b"SJH1";
const BATCH_MAGIC: [u8; 4] = *b"SJB1";
const HEADER_END: usize = 104;

/// The name of a disk, drawn when it is made: an empty one has a new name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskId(pub [u8; 16]);

impl DiskId {
    fn short(self) -> [u8; 8] {
        take(&self.0, 0)
    }
}

/// The header as it is on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct JournalHeader {
    pub(crate) version: u32,
    pub(crate) disk: DiskId,
    pub(crate) generation: u64,
    pub(crate) life: u64,
    pub(crate) ring_bytes: u64,
    pub(crate) start: u64,
    pub(crate) first: u64,
    pub(crate) synced: u64,
    pub(crate) previous: u32,
}

/// A header that cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeaderFault {
    /// No header, or not whole.
    Not,
    /// Whole, of another version.
    Version(u32),
}

impl JournalHeader {
    /// The offset of the block that it goes to.
    pub(crate) fn offset(&self) -> u64 {
        (self.generation % 2) * BLOCK_BYTES as u64
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        block[..4].copy_from_slice(&HEADER_MAGIC);
        block[8..12].copy_from_slice(&self.version.to_le_bytes());
        block[16..32].copy_from_slice(&self.disk.0);
        let numbers = [
            self.generation,
            self.life,
            self.ring_bytes,
            self.start,
            self.first,
            self.synced,
        ];
        for (at, number) in (32..).step_by(8).zip(numbers) {
            block[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        block[80..84].copy_from_slice(&self.previous.to_le_bytes());
        let crc = crc(&block[8..HEADER_END]);
        block[4..8].copy_from_slice(&crc.to_le_bytes());
        block
    }

    pub(crate) fn decode(block: &[u8]) -> Result<JournalHeader, HeaderFault> {
        let whole = block.len() >= HEADER_END
            && block[..4] == HEADER_MAGIC
            && block[4..8] == crc(&block[8..HEADER_END]).to_le_bytes();
        if !whole {
            return Err(HeaderFault::Not);
        }
        let version = u32::from_le_bytes(take(block, 8));
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(HeaderFault::Version(version));
        }
        let number = |at| u64::from_le_bytes(take(block, at));
        Ok(JournalHeader {
            version,
            disk: DiskId(take(block, 16)),
            generation: number(32),
            life: number(40),
            ring_bytes: number(48),
            start: number(56),
            first: number(64),
            synced: number(72),
            previous: u32::from_le_bytes(take(block, 80)),
        })
    }
}

/// A batch's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BatchHeader {
    pub(crate) place: u64,
    pub(crate) life: u64,
    pub(crate) first: u64,
    pub(crate) records: u32,
    pub(crate) payload: u32,
    /// The header's check sum of the batch before it.
    pub(crate) previous: u32,
}

impl BatchHeader {
    /// Fills in the header of a batch whose records stand at `BATCH_HEADER..` of `bytes`, and the zeroes behind them. Returns the header's check sum.
    pub(crate) fn seal(&self, disk: DiskId, bytes: &mut Vec<u8>) -> u32 {
        let end = BATCH_HEADER + self.payload as usize;
        assert_eq!(bytes.len(), end, "a batch of another size than it says");
        let records = crc(&bytes[BATCH_HEADER..]);
        bytes[..4].copy_from_slice(&BATCH_MAGIC);
        for (at, number) in (8..).step_by(8).zip([self.place, self.life, self.first]) {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        let numbers = [self.records, self.payload, self.previous, records];
        for (at, number) in (40..).step_by(4).zip(numbers) {
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        bytes[32..40].copy_from_slice(&disk.short());
        let crc = crc(&bytes[8..BATCH_HEADER]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes.resize(batch_bytes(self.payload as usize), 0);
        crc
    }

    /// Reads the header of a batch of this disk, if it is whole and says what can be in a ring of so many bytes. The records are not looked at.
    pub(crate) fn decode(disk: DiskId, ring: u64, block: &[u8]) -> Option<BatchHeader> {
        let mine = block.len() >= BATCH_HEADER
            && block[..4] == BATCH_MAGIC
            && block[32..40] == disk.short()
            && header_sum(block) == crc(&block[8..BATCH_HEADER]);
        if !mine {
            return None;
        }
        let long = |at| u64::from_le_bytes(take(block, at));
        let short = |at| u32::from_le_bytes(take(block, at));
        let batch = BatchHeader {
            place: long(8),
            life: long(16),
            first: long(24),
            records: short(40),
            payload: short(44),
            previous: short(48),
        };
        let fits = batch_bytes(batch.payload as usize) <= batch_max(ring);
        let counted = batch.records as usize <= batch.payload as usize / RECORD_HEADER;
        let far = batch.place.max(batch.life).max(batch.first);
        (fits && counted && batch.records > 0 && far < NUMBERS_END).then_some(batch)
    }

    /// True if the records of a batch, which begins at the first of `bytes`, are there as they were written.
    pub(crate) fn is_whole(&self, bytes: &[u8]) -> bool {
        let records = bytes.get(BATCH_HEADER..BATCH_HEADER + self.payload as usize);
        records.is_some_and(|records| {
            u32::from_le_bytes(take(bytes, 52)) == crc(records) || planted(Mutant::JournalUnchecked)
        })
    }
}

/// The check sum that a batch's header says of itself.
pub(crate) fn header_sum(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(take(bytes, 4))
}

/// The records of a batch; `None` where they are not as many as it says.
pub(crate) fn records<'a>(batch: &BatchHeader, bytes: &'a [u8]) -> Option<Vec<BatchRecord<'a>>> {
    let mut rest = bytes.get(BATCH_HEADER..BATCH_HEADER + batch.payload as usize)?;
    let mut records = Vec::with_capacity(batch.records as usize);
    for _ in 0..batch.records {
        let (length, behind) = rest.split_at_checked(RECORD_HEADER)?;
        let length = u32::from_le_bytes(take(length, 0));
        let is_placed = length & PLACED != 0;
        let (bytes, behind) = behind.split_at_checked((length & !PLACED) as usize)?;
        records.push(BatchRecord { bytes, is_placed });
        rest = behind;
    }
    rest.is_empty().then_some(records)
}

/// The largest batch of a journal, of whole blocks: a quarter of its ring at most.
pub(crate) fn batch_max(ring: u64) -> usize {
    let part = usize::try_from(ring).unwrap_or(usize::MAX) / BATCHES_MIN;
    part.min(BATCH_BYTES_MAX) / BLOCK_BYTES * BLOCK_BYTES
}

/// The bytes of a ring that are reserved, of whole blocks.
pub(crate) fn reserved(ring: u64) -> u64 {
    let block = BLOCK_BYTES as u64;
    ring / RESERVED_PART / block * block
}

/// The bytes of a batch on disk.
pub(crate) fn batch_bytes(payload: usize) -> usize {
    (BATCH_HEADER + payload).next_multiple_of(BLOCK_BYTES)
}

/// The pieces of the ring that hold `length` bytes from a place on: their offsets on the device, and their ranges in those bytes.
pub(crate) fn pieces(place: u64, length: usize, ring: u64) -> [(u64, std::ops::Range<usize>); 2] {
    let offset = place % ring;
    let before = length.min(usize::try_from(ring - offset).unwrap_or(usize::MAX));
    [
        (RING_OFFSET + offset, 0..before),
        (RING_OFFSET, before..length),
    ]
}

#[allow(clippy::cast_possible_truncation)] // 32 bits of 64 are in use
pub(crate) fn crc(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut taken = [0; N];
    taken.copy_from_slice(&bytes[at..at + N]);
    taken
}
