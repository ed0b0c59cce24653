//! Entries of the table: a cache line for each block, and the frames of blocks of several parts beside it.
//!
//! Most blocks of a pool may be of one part: small files, and large ones that are read here and there. Their frame is named in the
//! entry itself, so that there may be an entry for each frame.

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, Release},
    fence,
};

use super::block::{BLOCK_PARTS, BlockKey, PART_BYTES, SUM_BYTES};

/// Checksums of a part.
pub(super) const PART_SUMS: usize = PART_BYTES / SUM_BYTES;

/// The entry of a block.
#[repr(C, align(64))]
pub(super) struct FrameEntry {
    /// Odd while the rest changes.
    pub seq: AtomicU64,
    file: [AtomicU64; 2],
    block: AtomicU32,
    /// Bytes of the block: less than `BLOCK_BYTES` only at a file's end.
    pub bytes: AtomicU32,
    /// A bit for each part that is there.
    pub parts: AtomicU32,
    /// The number of the [`Spread`] that names the frames, and one; 0: the block has one part, named here.
    spread: AtomicU32,
    only: AtomicU32,
    frame: AtomicU32,
    sums: [AtomicU32; PART_SUMS],
}

/// The frames of a block of several parts.
#[repr(C, align(64))]
pub(super) struct Spread {
    pub frames: [AtomicU32; BLOCK_PARTS],
    sums: [[AtomicU32; PART_SUMS]; BLOCK_PARTS],
}

/// The place of a part, and the checksums of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct StoredPart {
    pub frame: u32,
    pub sums: [u32; PART_SUMS],
}

impl FrameEntry {
    /// Changes an entry, so that readers who are at it begin again. One caller at a time.
    pub fn change(&self, change: impl FnOnce(&FrameEntry)) {
        let seq = self.seq.load(Relaxed);
        self.seq.store(seq.wrapping_add(1), Relaxed);
        fence(Release);
        change(self);
        self.seq.store(seq.wrapping_add(2), Release);
    }

    pub fn name(&self, key: BlockKey, bytes: u32) {
        self.file[0].store(key.file[0], Relaxed);
        self.file[1].store(key.file[1], Relaxed);
        self.block.store(key.block, Relaxed);
        self.bytes.store(bytes, Relaxed);
        self.parts.store(0, Relaxed);
        self.spread.store(0, Relaxed);
    }

    pub fn key(&self) -> BlockKey {
        BlockKey {
            file: [self.file[0].load(Relaxed), self.file[1].load(Relaxed)],
            block: self.block.load(Relaxed),
        }
    }

    /// The number of its spread, if it has one.
    pub fn spread(&self) -> Option<u32> {
        self.spread.load(Relaxed).checked_sub(1)
    }

    pub fn set_spread(&self, number: u32) {
        self.spread.store(number + 1, Relaxed);
    }

    /// The one part of a block without a spread; `None` if that is another one, or there are more: a bit has flipped.
    pub fn only(&self, key: BlockKey, part: usize) -> Option<StoredPart> {
        let only = self.only.load(Relaxed);
        let is_it = only as usize == part && self.parts.load(Relaxed) == 1 << part;
        is_it.then(|| self.named_here(key))
    }

    /// The part that is named here, whichever that is.
    pub fn named_here(&self, key: BlockKey) -> StoredPart {
        load(key, &self.frame, &self.sums)
    }

    pub fn set_only(&self, key: BlockKey, part: usize, stored: StoredPart) {
        self.only.store(part as u32, Relaxed);
        store(key, stored, &self.frame, &self.sums);
    }
}

impl Spread {
    pub fn part(&self, key: BlockKey, part: usize) -> StoredPart {
        load(key, &self.frames[part], &self.sums[part])
    }

    pub fn set(&self, key: BlockKey, part: usize, stored: StoredPart) {
        store(key, stored, &self.frames[part], &self.sums[part]);
    }
}

/// The sums in memory are mixed with the key: those that another block left behind, or that a flipped bit leads to, are wrong for
/// this one.
fn load(key: BlockKey, frame: &AtomicU32, sums: &[AtomicU32; PART_SUMS]) -> StoredPart {
    let salt = salt(key);
    StoredPart {
        frame: frame.load(Relaxed),
        sums: std::array::from_fn(|i| sums[i].load(Relaxed) ^ salt),
    }
}

fn store(key: BlockKey, stored: StoredPart, frame: &AtomicU32, sums: &[AtomicU32; PART_SUMS]) {
    frame.store(stored.frame, Relaxed);
    for (to, sum) in sums.iter().zip(stored.sums) {
        to.store(sum ^ salt(key), Relaxed);
    }
}

fn salt(key: BlockKey) -> u32 {
    key.mixed() as u32
}
