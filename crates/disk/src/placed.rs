//! Records some of whose bytes lie in the page file: whole blocks go to places there, once, and the journal has their places and check sums instead.
//!
//! ```text
//! record  0 its length in the batch, with the highest bit set (4)
//!         4 bytes of the whole record   8 blocks of it that lie elsewhere
//!        12 for each: its offset in the record (4), its place (4), its check sum (4), in the order of their offsets; then all other bytes of the record
//! ```

use std::io;

use bytes::Bytes;
use staves_model::mutant::{Mutant, planted};

use crate::device::{BLOCK_BYTES, Device};
use crate::format::crc;

/// The bit of a record's length that says that blocks of it lie in the page file.
pub(crate) const PLACED: u32 = 1 << 31;
/// Most bytes of one batch that lie in the page file.
pub const PLACED_BYTES_MAX: usize = 8 << 20;

const BLOCKS_MAX: usize = PLACED_BYTES_MAX / BLOCK_BYTES;
const HEAD: usize = 8;
const ENTRY: usize = 12;

/// A block of a record and its place in the page file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlacedBlock {
    /// Its offset in the record's tail.
    pub at: u32,
    /// Its place.
    pub place: u32,
    /// The check sum of its bytes.
    pub sum: u32,
}

impl PlacedBlock {
    /// The block at an offset of a record's tail, for a place.
    ///
    /// # Panics
    /// If the tail ends before.
    pub fn new(tail: &[u8], at: u32, place: u32) -> PlacedBlock {
        let sum = crc(&tail[at as usize..][..BLOCK_BYTES]);
        PlacedBlock { at, place, sum }
    }

    fn goes_on(self, next: PlacedBlock) -> bool {
        self.at as usize + BLOCK_BYTES == next.at as usize && self.place + 1 == next.place
    }
}

/// A record on its way to a journal: its head, and a tail some of whose blocks go to places of the page file.
#[derive(Clone, Copy, Debug)]
pub struct RecordBytes<'a> {
    /// Its first bytes.
    pub head: &'a [u8],
    /// Those that follow.
    pub tail: &'a Bytes,
    /// Blocks of the tail, in their order, none of which overlap.
    pub placed: &'a [PlacedBlock],
}

static NO_TAIL: Bytes = Bytes::new();

impl<'a> RecordBytes<'a> {
    /// A record all of which goes to the journal.
    pub fn plain(bytes: &'a [u8]) -> RecordBytes<'a> {
        RecordBytes {
            head: bytes,
            tail: &NO_TAIL,
            placed: &[],
        }
    }

    /// The bytes that it takes in a batch, without its length.
    pub(crate) fn journaled(&self) -> usize {
        let all = self.head.len() + self.tail.len();
        match self.placed.len() {
            0 => all,
            blocks => all - blocks * BLOCK_BYTES + blocks * ENTRY + HEAD,
        }
    }

    /// Bytes that go to the page file.
    pub(crate) fn placed_bytes(&self) -> usize {
        self.placed.len() * BLOCK_BYTES
    }

    /// Appends what goes to the journal, with its length.
    #[allow(clippy::cast_possible_truncation)] // at most a batch, and its blocks
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let length = self.journaled() as u32;
        if self.placed.is_empty() {
            out.extend_from_slice(&length.to_le_bytes());
            out.extend_from_slice(self.head);
            return out.extend_from_slice(self.tail);
        }
        let (head, whole) = (self.head.len(), self.head.len() + self.tail.len());
        for number in [length | PLACED, whole as u32, self.placed.len() as u32] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for block in self.placed {
            for number in [head as u32 + block.at, block.place, block.sum] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        out.extend_from_slice(self.head);
        let mut at = 0;
        for block in self.placed {
            out.extend_from_slice(&self.tail[at..block.at as usize]);
            at = block.at as usize + BLOCK_BYTES;
        }
        out.extend_from_slice(&self.tail[at..]);
    }

    /// Adds what goes to the page file: blocks that follow one another are one write.
    pub(crate) fn writes(&self, writes: &mut Vec<PlacedWrite>) {
        for run in self.placed.chunk_by(|a, b| a.goes_on(*b)) {
            let from = run[0].at as usize;
            writes.push(PlacedWrite {
                place: run[0].place,
                bytes: self.tail.slice(from..from + run.len() * BLOCK_BYTES),
            });
        }
    }
}

/// Blocks that are written to the page file, from a place on.
#[derive(Debug)]
pub(crate) struct PlacedWrite {
    place: u32,
    bytes: Bytes,
}

impl PlacedWrite {
    fn goes_on(&self, next: &PlacedWrite) -> bool {
        offset(self.place) + self.bytes.len() as u64 == offset(next.place)
    }
}

/// Writes blocks to the page file.
pub(crate) fn write_blocks(writes: &[PlacedWrite], pages: Option<&dyn Device>) -> io::Result<()> {
    if writes.is_empty() {
        return Ok(());
    }
    let Some(pages) = pages else {
        return Err(io::Error::other("the journal has no page file beside it"));
    };
    // Records that come one after another have places that do, too.
    for run in writes.chunk_by(PlacedWrite::goes_on) {
        let parts: Vec<&[u8]> = run.iter().map(|write| &write.bytes[..]).collect();
        pages.write_parts(offset(run[0].place), &parts)?;
    }
    Ok(())
}

/// Makes blocks durable that were written.
pub(crate) fn sync_blocks(writes: &[PlacedWrite], pages: Option<&dyn Device>) -> io::Result<()> {
    match pages.filter(|_| !writes.is_empty() && !planted(Mutant::PlacedUnsynced)) {
        Some(pages) => pages.sync(),
        None => Ok(()),
    }
}

/// A record as a batch has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchRecord<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) is_placed: bool,
}

/// A record that was put together again.
#[derive(Default)]
pub(crate) struct WholeRecord {
    /// As it was appended, but for blocks that are not what they were.
    pub(crate) bytes: Vec<u8>,
    pub(crate) blocks: Vec<PlacedBlock>,
    /// A block is not what its check sum says.
    pub(crate) is_torn: bool,
    /// A block cannot be read.
    pub(crate) is_unread: bool,
}

/// The blocks of a record that lie in the page file, as a start finds them.
#[derive(Clone, Copy, Debug)]
pub struct FoundBlocks<'a> {
    /// Their places.
    pub places: &'a [u32],
    /// False if one of them is not what was written, or cannot be read: the record has other bytes there.
    pub are_whole: bool,
}

impl BatchRecord<'_> {
    /// Reads the blocks of a record that lie in the page file. `None`: its description contradicts itself.
    pub(crate) fn put_together(&self, pages: Option<&dyn Device>) -> Option<WholeRecord> {
        let (pages, (blocks, mut rest, whole)) = (pages?, parse(self.bytes)?);
        let mut record = WholeRecord::default();
        record.bytes.reserve(whole);
        for run in blocks.chunk_by(|a, b| a.goes_on(*b)) {
            let at = run[0].at as usize;
            let (before, behind) = rest.split_at_checked(at - record.bytes.len())?;
            record.bytes.extend_from_slice(before);
            rest = behind;
            let place = run[0].place;
            let end = offset(place) + (run.len() * BLOCK_BYTES) as u64;
            if place == 0 || end > pages.bytes() {
                return None;
            }
            record.bytes.resize(at + run.len() * BLOCK_BYTES, 0);
            if pages.read(offset(place), &mut record.bytes[at..]).is_err() {
                record.is_unread = true;
                continue;
            }
            let mut found = run.iter().zip(record.bytes[at..].chunks_exact(BLOCK_BYTES));
            let is_torn = found.any(|(block, bytes)| crc(bytes) != block.sum);
            record.is_torn |= is_torn && !planted(Mutant::PlacedUnchecked);
        }
        record.bytes.extend_from_slice(rest);
        record.blocks = blocks;
        Some(record)
    }
}

/// The blocks of a record, the other bytes of it, and how many it has in all; `None` if they contradict each other.
fn parse(bytes: &[u8]) -> Option<(Vec<PlacedBlock>, &[u8], usize)> {
    let mut rest = bytes;
    let whole = number(&mut rest)? as usize;
    let count = number(&mut rest)? as usize;
    if count == 0 || count > BLOCKS_MAX {
        return None;
    }
    let mut blocks: Vec<PlacedBlock> = Vec::with_capacity(count);
    let mut end = 0;
    for _ in 0..count {
        let [at, place, sum] = [number(&mut rest)?, number(&mut rest)?, number(&mut rest)?];
        if (at as usize) < end {
            return None;
        }
        end = at as usize + BLOCK_BYTES;
        blocks.push(PlacedBlock { at, place, sum });
    }
    let is_whole = end <= whole && rest.len() + count * BLOCK_BYTES == whole;
    is_whole.then_some((blocks, rest, whole))
}

fn number(at: &mut &[u8]) -> Option<u32> {
    let (first, rest) = at.split_first_chunk()?;
    *at = rest;
    Some(u32::from_le_bytes(*first))
}

/// The offset of a place in the page file.
pub(crate) fn offset(place: u32) -> u64 {
    u64::from(place) * BLOCK_BYTES as u64
}
