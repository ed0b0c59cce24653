//! Operations on many blocks at once: some at a time, so that a process that reads or puts meanwhile never waits for all of it.

use std::sync::atomic::Ordering::Relaxed;

use parking_lot::MutexGuard;

use super::block::{BLOCK_PARTS, BlockKey, Copies, PART_BYTES};
use super::entry::FrameEntry;
use super::writer::{Blocks, BlocksInner, Listed, PutError};

/// Blocks that are looked at while others wait.
const LOOKS: usize = 1024;
/// Blocks that are evicted, and frames given back to the kernel, while others wait.
const EVICTIONS: usize = 64;
const FRAMES: usize = EVICTIONS * BLOCK_PARTS;

impl Blocks {
    /// Does something to each block of a bucket that was there and stays, and maybe to some that come meanwhile.
    fn each(
        &self,
        bucket: u32,
        looks: usize,
        mut on: impl FnMut(&mut BlocksInner, usize, &FrameEntry),
    ) {
        let mut place = usize::MAX;
        let mut inner = self.inner.lock();
        loop {
            place = self.some(&mut inner, bucket, place, looks, &mut on);
            if place == 0 {
                return;
            }
            MutexGuard::bump(&mut inner);
        }
    }

    /// The same to so many of them, from before a place down. Where to go on; 0: nowhere.
    fn some(
        &self,
        inner: &mut BlocksInner,
        bucket: u32,
        mut place: usize,
        looks: usize,
        mut on: impl FnMut(&mut BlocksInner, usize, &FrameEntry),
    ) -> usize {
        for _ in 0..looks {
            let Some((before, index)) = inner.buckets.before(bucket, place) else {
                return 0;
            };
            #[cfg(test)]
            {
                inner.looked += 1;
            }
            on(inner, index as usize, self.mapping.entry(index as usize));
            place = before;
        }
        place
    }

    /// Blocks of a bucket, by pages of no more than `most`: those before a place, and where the next page begins; 0: there is
    /// none. The first one begins at `usize::MAX`. What stays is met, once or, if it was moved into a gap meanwhile, twice.
    pub fn list(&self, bucket: u32, before: usize, most: usize) -> (Vec<Listed>, usize) {
        let mut all = Vec::new();
        let mut place = before;
        while place > 0 && all.len() < most {
            let looks = LOOKS.min(most - all.len());
            let mut inner = self.inner.lock();
            place = self.some(&mut inner, bucket, place, looks, |_, _, entry| {
                all.push(Listed {
                    key: entry.key(),
                    bytes: entry.bytes.load(Relaxed),
                    parts: entry.parts.load(Relaxed),
                });
            });
        }
        (all, place)
    }

    /// Bytes that each bucket takes.
    pub fn bucket_bytes(&self) -> Vec<u64> {
        let inner = self.inner.lock();
        let bytes = |frames| u64::from(frames) * PART_BYTES as u64;
        inner.buckets.frames().map(bytes).collect()
    }

    /// Lets go of a bucket's blocks.
    pub fn drop_bucket(&self, bucket: u32) {
        self.each(bucket, EVICTIONS, |inner, index, _| {
            self.evict(inner, index)
        });
    }

    /// Says of a bucket whether another node has a copy of it. That is so of what comes from now on, too.
    pub fn set_copies(&self, bucket: u32, copies: Copies) {
        if self.inner.lock().buckets.set_copies(bucket, copies) {
            self.each(bucket, LOOKS, |inner, index, _| {
                let now = inner.buckets.copies(bucket);
                inner.policy.set_copies(index as u32, now);
            });
        }
    }

    /// Pins all blocks of a bucket that `which` says, or lets them be evicted again. How many there were.
    pub fn pin_where(&self, bucket: u32, on: bool, which: impl Fn(BlockKey) -> bool) -> usize {
        let mut count = 0;
        self.each(bucket, LOOKS, |inner, index, entry| {
            if which(entry.key()) {
                inner.policy.pin(index as u32, on);
                count += 1;
            }
        });
        count
    }

    /// Changes how much may be used, within what was given at first. The limit goes down step by step, and what is too much with
    /// it, and its memory back to the kernel: so this takes as long as that does.
    pub fn set_limit(&self, bytes: u64) -> Result<(), PutError> {
        let frames = usize::try_from(bytes).unwrap_or(usize::MAX) / PART_BYTES;
        self.limit(frames.clamp(BLOCK_PARTS, self.mapping.layout().frames))
    }

    /// Lets go of everything, and gives the memory back though others have it mapped still: they find nothing there. Nothing is
    /// put in from now on.
    pub fn close(&self) {
        // Pinned blocks stay at first, and are no error.
        let _ = self.limit(0);
        for bucket in 0..self.buckets() {
            self.drop_bucket(bucket);
        }
        let _ = self.limit(0);
    }

    fn limit(&self, frames: usize) -> Result<(), PutError> {
        let _alone = self.limiting.lock();
        let mut shrunk = Ok(());
        loop {
            let mut inner = self.inner.lock();
            if shrunk.is_ok() {
                shrunk = self.shrink(&mut inner, frames);
            }
            if shrunk.is_err() {
                inner.frames_max = frames; // what is pinned stays, and nothing comes until that fits
            }
            let given = inner.beyond_limit();
            let done = inner.frames_max == frames && given.is_empty();
            drop(inner);
            if done {
                return shrunk;
            }
            let (punched, kept) = self.mapping.punch_all(given);
            let stuck = punched.is_empty();
            let mut inner = self.inner.lock();
            inner.punched.extend(punched);
            inner.free.extend(kept);
            if stuck && inner.frames_max == frames {
                return shrunk; // the kernel does not take it back
            }
        }
    }

    /// One step towards a limit.
    fn shrink(&self, inner: &mut BlocksInner, frames: usize) -> Result<(), PutError> {
        let step = inner.taken.saturating_sub(FRAMES);
        inner.frames_max = frames.max(step.min(inner.frames_max));
        while inner.taken > inner.frames_max {
            let victim = inner.policy.victim(inner.frames_max);
            let victim = victim.ok_or(PutError::Pinned { frames })?;
            self.make_room(inner, victim as usize);
        }
        Ok(())
    }
}

impl BlocksInner {
    /// Some free frames whose memory is there still, if with them there is more than the limit. They are nobody's then: there are
    /// enough others for whoever wants one.
    fn beyond_limit(&mut self) -> Vec<u32> {
        let there = self.taken + self.free.len();
        let many = there.saturating_sub(self.frames_max).min(FRAMES);
        self.free
            .split_off(self.free.len() - many.min(self.free.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{BLOCK, key, put_whole};
    use super::*;

    /// A process that waits for the lock while a pool shrinks waits for one step, whatever there is to let go of; and puts find room
    /// between steps, for the limit goes down with what there is.
    #[test]
    fn a_limit_goes_down_step_by_step() {
        let blocks = Blocks::new(300 * BLOCK, 8).unwrap();
        for i in 0..300 {
            put_whole(&blocks, key(1, i), Copies::Last);
        }
        let mut left = 300;
        while left > 10 {
            blocks
                .shrink(&mut blocks.inner.lock(), 10 * BLOCK_PARTS)
                .unwrap();
            let figures = blocks.figures();
            assert!(left - figures.blocks <= EVICTIONS, "{figures:?}");
            assert_eq!(figures.frames_max, figures.blocks * BLOCK_PARTS);
            left = figures.blocks;
            assert!(blocks.inner.lock().beyond_limit().len() <= FRAMES);
        }
        put_whole(&blocks, key(2, 0), Copies::Last);
        assert_eq!(blocks.figures().blocks, 10);
    }
}
