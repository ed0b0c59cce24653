//! The blocks of each bucket, and the memory that each bucket takes. Kept as blocks come and go, so that nobody
//! looks at all of them to know it.

use super::block::Copies;

/// The place of an entry.
#[derive(Clone, Copy, Debug, Default)]
struct BucketPlace {
    bucket: u32,
    /// Among the entries of its bucket.
    at: u32,
}

#[derive(Debug)]
struct BucketEntries {
    /// The entries of its blocks, in no order.
    entries: Vec<u32>,
    frames: u32,
    copies: Copies,
}

#[derive(Debug)]
pub(super) struct Buckets {
    all: Vec<BucketEntries>,
    /// By entry; of those that nobody is in it means nothing.
    places: Vec<BucketPlace>,
}

impl Buckets {
    pub(super) fn new(buckets: u32, entries: usize) -> Buckets {
        let empty = || BucketEntries {
            entries: Vec::new(),
            frames: 0,
            copies: Copies::Last,
        };
        Buckets {
            all: (0..buckets).map(|_| empty()).collect(),
            places: vec![BucketPlace::default(); entries],
        }
    }

    /// A block of a bucket came into an entry.
    pub(super) fn insert(&mut self, entry: u32, bucket: u32) {
        let entries = &mut self.all[bucket as usize].entries;
        let at = entries.len() as u32;
        entries.push(entry);
        self.places[entry as usize] = BucketPlace { bucket, at };
    }

    /// The block took one frame more.
    pub(super) fn grew(&mut self, entry: u32) {
        let bucket = self.places[entry as usize].bucket;
        self.all[bucket as usize].frames += 1;
    }

    /// The entry is empty again, and so many frames are free.
    pub(super) fn remove(&mut self, entry: u32, frames: u32) {
        let BucketPlace { bucket, at } = self.places[entry as usize];
        let bucket = &mut self.all[bucket as usize];
        let gone = bucket.entries.swap_remove(at as usize);
        assert_eq!(gone, entry, "an entry is where it was put");
        if let Some(moved) = bucket.entries.get(at as usize) {
            self.places[*moved as usize].at = at;
        }
        bucket.frames -= frames;
        if bucket.entries.is_empty() {
            bucket.entries = Vec::new();
        }
    }

    /// The last of a bucket's entries before a place, and its place: who goes down so, from the number of them on, meets each
    /// that stays, whatever comes and goes meanwhile. What comes is put at the end, and there is where what fills a gap comes from.
    pub(super) fn before(&self, bucket: u32, place: usize) -> Option<(usize, u32)> {
        let entries = &self.all.get(bucket as usize)?.entries;
        let at = place.min(entries.len()).checked_sub(1)?;
        Some((at, entries[at]))
    }

    /// Returns whether other nodes have copies of a bucket's blocks.
    pub(super) fn copies(&self, bucket: u32) -> Copies {
        self.all[bucket as usize].copies
    }

    /// Says it anew; what is there is told apart by the caller. Whether there is such a bucket, and it was other.
    pub(super) fn set_copies(&mut self, bucket: u32, copies: Copies) -> bool {
        let bucket = self.all.get_mut(bucket as usize);
        bucket.is_some_and(|b| std::mem::replace(&mut b.copies, copies) != copies)
    }

    /// Frames of each bucket.
    pub(super) fn frames(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.all.iter().map(|bucket| bucket.frames)
    }
}
