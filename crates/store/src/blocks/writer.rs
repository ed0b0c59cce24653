//! Putting blocks in, and letting them go.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use parking_lot::Mutex;
use staves_model::bucket_of;
use staves_model::mutant::{Mutant, planted};

use super::block::{BLOCK_BYTES, BLOCK_PARTS, BlockKey, PART_BYTES, SUM_BYTES};
use super::buckets::Buckets;
use super::changes::Changes;
use super::entry::{FrameEntry, StoredPart};
use super::policy::Policy;
use super::shared::{BlockMapping, Layout, Miss, WAYS};

/// A part was not put in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PutError {
    /// Everything that is there is pinned.
    #[error(
        "no frame can be freed: all {frames} are pinned; unpin files or give the pool more memory"
    )]
    Pinned {
        /// Frames in all.
        frames: usize,
    },
    /// The memory was given back.
    #[error("the pool is gone: nothing is kept for it any more")]
    Closed,
    /// It is not a part of such a block.
    #[error("{bytes} bytes are not part {part} of a block of {block_bytes} bytes")]
    Shape {
        /// The part.
        part: usize,
        /// Its bytes, as given.
        bytes: usize,
        /// The block's bytes, as given.
        block_bytes: usize,
    },
}

/// Counts, for people and for placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Frames that may be used.
    pub frames_max: usize,
    /// Frames of spare copies.
    pub frames_spare: usize,
    /// Frames of last copies.
    pub frames_last: usize,
    /// Blocks, whole or in part.
    pub blocks: usize,
    /// Blocks that were evicted, ever.
    pub evicted: u64,
    /// Those of them that were last copies.
    pub evicted_last: u64,
    /// Blocks that were dropped because their bytes were not those that came in, ever.
    pub damaged: u64,
}

/// A block that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its name.
    pub key: BlockKey,
    /// Its bytes, all parts together.
    pub bytes: u32,
    /// A bit for each part that is there.
    pub parts: u32,
}

/// The result of a look through some blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checked {
    /// The place in the table to go on; `None` at its end.
    pub next: Option<usize>,
    /// Bytes that were looked at.
    pub bytes: u64,
    /// Blocks that were damaged, and are dropped.
    pub damaged: u32,
}

/// A node's blocks.
#[derive(Debug)]
pub struct Blocks {
    pub(super) mapping: Arc<BlockMapping>,
    pub(super) inner: Mutex<BlocksInner>,
    /// Held by whoever changes the limit: one at a time.
    pub(super) limiting: Mutex<()>,
    buckets: u32,
}

#[derive(Debug)]
pub(super) struct BlocksInner {
    pub(super) policy: Policy,
    pub(super) buckets: Buckets,
    pub(super) changes: Changes,
    /// Frames that nobody has and whose memory is there still.
    pub(super) free: Vec<u32>,
    /// The same, and the kernel has their memory back.
    pub(super) punched: Vec<u32>,
    /// From here on never used.
    pub(super) untouched: u32,
    /// Places for the frames of a block that nobody has, and from where on they were never used.
    spreads: Vec<u32>,
    spreads_untouched: u32,
    /// Frames in use or on their way into it, and how many there may be.
    pub(super) taken: usize,
    pub(super) frames_max: usize,
    blocks: usize,
    /// Blocks that were looked at to do something to many.
    #[cfg(test)]
    pub(super) looked: usize,
    evicted: u64,
    evicted_last: u64,
    damaged: u64,
}

impl Blocks {
    /// Memory for so many bytes of blocks of so many buckets, rounded down to whole parts, at least one block's. The
    /// kernel provides it as it is touched.
    pub fn new(bytes: u64, buckets: u32) -> io::Result<Blocks> {
        let frames = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)? / PART_BYTES;
        let frames = frames.max(BLOCK_PARTS);
        let layout = Layout::for_frames(frames);
        let inner = BlocksInner {
            changes: Changes::new(layout.entries()),
            policy: Policy::new(layout.entries()),
            buckets: Buckets::new(buckets, layout.entries()),
            free: Vec::new(),
            punched: Vec::new(),
            untouched: 0,
            spreads: Vec::new(),
            spreads_untouched: 0,
            taken: 0,
            frames_max: frames,
            blocks: 0,
            evicted: 0,
            evicted_last: 0,
            damaged: 0,
            #[cfg(test)]
            looked: 0,
        };
        Ok(Blocks {
            mapping: Arc::new(BlockMapping::create(layout)?),
            inner: Mutex::new(inner),
            limiting: Mutex::new(()),
            buckets,
        })
    }

    /// For reading, without any lock.
    pub fn mapping(&self) -> &Arc<BlockMapping> {
        &self.mapping
    }

    /// The memory, opened anew for reading only: what a mount on this machine is given.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.mapping.memfd().as_raw_fd());
        Ok(std::fs::File::open(path)?.into())
    }

    /// Puts a part of a block in, if it is not there yet. Others may go for it.
    ///
    /// `moment` is a coarse clock: reads within one moment count as one.
    pub fn put(
        &self,
        key: BlockKey,
        block_bytes: usize,
        part: usize,
        bytes: &[u8],
        moment: u32,
    ) -> Result<(), PutError> {
        check_shape(block_bytes, part, bytes.len())?;
        let frame = {
            let mut inner = self.inner.lock();
            if let Some(index) = self.mapping.find(key) {
                let entry = self.mapping.entry(index);
                if entry.parts.load(Relaxed) & 1 << part != 0 {
                    return Ok(());
                }
            }
            self.take_frame(&mut inner)?
        };
        // Outside the lock: nobody else has the frame.
        self.mapping.fill(frame, bytes);
        let mut stored = StoredPart {
            frame,
            ..StoredPart::default()
        };
        for (sum, bytes) in stored.sums.iter_mut().zip(bytes.chunks(SUM_BYTES)) {
            *sum = super::block::sum(bytes);
        }
        let mut inner = self.inner.lock();
        if inner.frames_max == 0 {
            inner.give(frame); // closed meanwhile
            return Err(PutError::Pinned { frames: 0 });
        }
        let Some(index) = self.place(&mut inner, key, block_bytes, moment) else {
            inner.give(frame);
            return Err(PutError::Pinned {
                frames: inner.frames_max,
            });
        };
        let entry = self.mapping.entry(index);
        let parts = entry.parts.load(Relaxed);
        if parts & 1 << part != 0 || entry.bytes.load(Relaxed) as usize != block_bytes {
            // Somebody was faster.
            if !planted(Mutant::FrameLeaked) {
                inner.give(frame);
            }
            return Ok(());
        }
        self.add_part(&mut inner, entry, part, stored);
        inner.policy.grew(index as u32);
        inner.buckets.grew(index as u32);
        inner.changes.note(index);
        Ok(())
    }

    /// Names one more part of a block in its entry; from the second one on in a spread.
    fn add_part(
        &self,
        inner: &mut BlocksInner,
        entry: &FrameEntry,
        part: usize,
        stored: StoredPart,
    ) {
        let (key, parts) = (entry.key(), entry.parts.load(Relaxed));
        let number = match entry.spread() {
            None if parts != 0 => Some(inner.take_spread()),
            number => number,
        };
        entry.change(|entry| {
            match number {
                None => entry.set_only(key, part, stored),
                Some(number) => {
                    let spread = self.mapping.spread(number).expect("a spread of ours");
                    if entry.spread().is_none() {
                        let first = parts.trailing_zeros() as usize;
                        spread.set(key, first, entry.named_here(key));
                        entry.set_spread(number);
                    }
                    spread.set(key, part, stored);
                }
            }
            entry.parts.store(parts | 1 << part, Relaxed);
        });
    }

    /// The number of buckets.
    pub fn buckets(&self) -> u32 {
        self.buckets
    }

    /// The bucket that a block is of.
    pub fn bucket_of(&self, key: BlockKey) -> u32 {
        bucket_of(key.file, key.block, self.buckets)
    }

    /// The entry of a key, made if it has none; `None` if its set is full of what is pinned.
    fn place(
        &self,
        inner: &mut BlocksInner,
        key: BlockKey,
        block_bytes: usize,
        moment: u32,
    ) -> Option<usize> {
        if let Some(index) = self.mapping.find(key) {
            return Some(index);
        }
        let tag = key.mixed();
        let index = match self.emptier(tag) {
            Some(index) => index,
            None => {
                let all = self.mapping.ways(tag).map(|index| index as u32);
                let victim = inner.policy.least(all)? as usize;
                self.make_room(inner, victim);
                victim
            }
        };
        let bytes = block_bytes as u32;
        let entry = self.mapping.entry(index);
        entry.change(|entry| entry.name(key, bytes));
        self.mapping.tag(index).store(tag, Release);
        let bucket = self.bucket_of(key);
        let copies = inner.buckets.copies(bucket);
        inner.policy.insert(index as u32, tag, copies, moment);
        inner.buckets.insert(index as u32, bucket);
        inner.blocks += 1;
        Some(index)
    }

    /// An entry that nobody is in, in the emptier of a key's two sets.
    fn emptier(&self, tag: u64) -> Option<usize> {
        let free = |index: &usize| !self.is_taken(*index);
        let in_set = |index: usize| {
            let set = index / WAYS * WAYS;
            (set..set + WAYS).filter(free).count()
        };
        let all = self.mapping.ways(tag).filter(free);
        all.max_by_key(|index| in_set(*index))
    }

    fn take_frame(&self, inner: &mut BlocksInner) -> Result<u32, PutError> {
        if inner.frames_max == 0 {
            return Err(PutError::Closed);
        }
        while inner.taken >= inner.frames_max {
            let frames = inner.frames_max;
            let victim = inner.policy.victim(frames);
            let victim = victim.ok_or(PutError::Pinned { frames })?;
            self.make_room(inner, victim as usize);
        }
        inner.taken += 1;
        let frame = inner.free.pop().or_else(|| inner.punched.pop());
        Ok(frame.unwrap_or_else(|| {
            inner.untouched += 1;
            inner.untouched - 1
        }))
    }

    /// Evicts whoever is in an entry.
    pub(super) fn make_room(&self, inner: &mut BlocksInner, index: usize) {
        inner.evicted += 1;
        inner.evicted_last += u64::from(!inner.policy.is_spare(index as u32));
        self.evict(inner, index);
    }

    /// Empties an entry.
    pub(super) fn evict(&self, inner: &mut BlocksInner, index: usize) {
        let entry = self.mapping.entry(index);
        self.mapping.tag(index).store(0, Release);
        let (key, parts) = (entry.key(), entry.parts.load(Relaxed));
        entry.change(|entry| entry.parts.store(0, Relaxed));
        match entry.spread() {
            None if parts == 0 => {}
            None => inner.give(entry.named_here(key).frame),
            Some(number) => {
                let spread = self.mapping.spread(number).expect("a spread of ours");
                for part in (0..BLOCK_PARTS).filter(|part| parts & 1 << part != 0) {
                    inner.give(spread.part(key, part).frame);
                }
                inner.spreads.push(number);
            }
        }
        inner.policy.remove(index as u32);
        inner.buckets.remove(index as u32, parts.count_ones());
        if !planted(Mutant::ChangeNotNoted) {
            inner.changes.note(index);
        }
        inner.blocks -= 1;
    }

    /// Reads, and counts the read. A block that is damaged is dropped.
    pub fn read(
        &self,
        key: BlockKey,
        from: usize,
        into: &mut [u8],
        moment: u32,
    ) -> Result<(), Miss> {
        match self.mapping.read(key, from, into) {
            Ok(entry) => {
                // A count that waits for nobody: whoever holds the lock does more for the order than it would.
                if let Some(mut inner) = self.inner.try_lock() {
                    inner.policy.read(entry, moment);
                }
                Ok(())
            }
            Err(Miss::Damaged) => {
                self.drop_damaged(key);
                Err(Miss::Damaged)
            }
            Err(Miss::Absent) => Err(Miss::Absent),
        }
    }

    /// Lets go of a block that a reader found damaged, if it still is. Whether it was.
    pub fn drop_damaged(&self, key: BlockKey) -> bool {
        let mut inner = self.inner.lock();
        let Some(index) = self.mapping.find(key) else {
            return false;
        };
        let (_, wrong) = self.look_at(index);
        if wrong {
            self.evict(&mut inner, index);
            inner.damaged += 1;
        }
        wrong
    }

    /// Compares the checksums of all that an entry has. How many bytes that is, and whether any is wrong.
    fn look_at(&self, index: usize) -> (u64, bool) {
        let entry = self.mapping.entry(index);
        let (key, parts) = (entry.key(), entry.parts.load(Relaxed));
        let bytes = (entry.bytes.load(Relaxed) as usize).min(BLOCK_BYTES);
        let mut part_bytes = [0; PART_BYTES];
        let mut looked = 0;
        for part in (0..BLOCK_PARTS).filter(|part| parts & 1 << part != 0) {
            let start = part * PART_BYTES;
            let into = &mut part_bytes[..bytes.saturating_sub(start).min(PART_BYTES)];
            looked += into.len() as u64;
            if self.mapping.read(key, start, into) == Err(Miss::Damaged) {
                return (looked, true);
            }
        }
        (looked, false)
    }

    /// Looks through the table from an entry on, until it has compared so many bytes or is at its end, and drops
    /// what is damaged. Nobody waits for it but for what is dropped.
    pub fn check(&self, from: usize, bytes_max: u64) -> Checked {
        let mut checked = Checked::default();
        for index in from..self.mapping.layout().entries() {
            if checked.bytes >= bytes_max {
                checked.next = Some(index);
                break;
            }
            if !self.is_taken(index) {
                continue;
            }
            let key = self.mapping.entry(index).key();
            let (bytes, wrong) = self.look_at(index);
            checked.bytes += bytes;
            // Looked at again under the lock: it may have been evicted meanwhile.
            checked.damaged += u32::from(wrong && self.drop_damaged(key));
        }
        checked
    }

    /// Counts reads that a mount made by itself: entries as [`BlockMapping::read`] gave them.
    pub fn touch(&self, entries: &[u32], moment: u32) {
        let mut inner = self.inner.lock();
        let known = self.mapping.layout().entries() as u32;
        for entry in entries.iter().filter(|entry| **entry < known) {
            inner.policy.read(*entry, moment);
        }
    }

    /// The parts of a block that are there, a bit each.
    pub fn parts(&self, key: BlockKey) -> u32 {
        let found = self.mapping.find(key);
        found.map_or(0, |index| self.mapping.entry(index).parts.load(Relaxed))
    }

    pub(super) fn is_taken(&self, index: usize) -> bool {
        self.mapping.tag(index).load(Relaxed) != 0
    }

    /// Pins one block, or lets it be evicted again. Whether it is there.
    pub fn pin(&self, key: BlockKey, on: bool) -> bool {
        let mut inner = self.inner.lock();
        let found = self.mapping.find(key);
        if let Some(index) = found {
            inner.policy.pin(index as u32, on);
        }
        found.is_some()
    }

    /// Counts.
    pub fn figures(&self) -> Figures {
        let inner = self.inner.lock();
        let (frames_spare, frames_last) = inner.policy.frames();
        Figures {
            frames_max: inner.frames_max,
            frames_spare,
            frames_last,
            blocks: inner.blocks,
            evicted: inner.evicted,
            evicted_last: inner.evicted_last,
            damaged: inner.damaged,
        }
    }
}

impl BlocksInner {
    fn give(&mut self, frame: u32) {
        self.taken = self.taken.checked_sub(1).expect("a frame comes back once");
        self.free.push(frame);
    }

    /// There is one for each block of several frames, and frames are bounded.
    fn take_spread(&mut self) -> u32 {
        self.spreads.pop().unwrap_or_else(|| {
            self.spreads_untouched += 1;
            self.spreads_untouched - 1
        })
    }
}

fn check_shape(block_bytes: usize, part: usize, bytes: usize) -> Result<(), PutError> {
    let start = part.saturating_mul(PART_BYTES);
    let right = block_bytes <= BLOCK_BYTES
        && start < block_bytes
        && bytes == (block_bytes - start).min(PART_BYTES);
    match right {
        true => Ok(()),
        false => Err(PutError::Shape {
            part,
            bytes,
            block_bytes,
        }),
    }
}
