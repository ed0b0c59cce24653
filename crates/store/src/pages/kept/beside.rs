//! Pages that are read beside the bucket: which ones those are, and their bytes once they are there.

use std::sync::atomic::Ordering;

use staves_model::PAGE_BYTES;

use super::{Keeping, bits, pages_of};
use crate::{EXTENT_PAGES, Extent};

impl Keeping {
    /// The pages of a range that are on the disk alone, and of which reading one would wait for the disk.
    pub(in crate::pages) fn cold(
        &self,
        index: usize,
        extent: &Extent,
        (from, len): (usize, usize),
        cold: &mut Vec<u32>,
    ) {
        let marks = &self.marks[index];
        let missing = pages_of(from, len) & !marks.here.load(Ordering::Acquire);
        for at in bits(missing & marks.kept.load(Ordering::Relaxed)) {
            let page = index as u32 * EXTENT_PAGES + at;
            let mut read = |into: &mut [u8]| self.on.keeper.read_now(page, self.join, into);
            if !self.give(index, extent, at, &mut read) {
                cold.push(page);
            }
        }
    }

    /// A page that is on the disk alone gets the bytes that `read` puts, if it returns true. False if it has none then.
    pub(in crate::pages) fn give(
        &self,
        index: usize,
        extent: &Extent,
        at: u32,
        read: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> bool {
        let one = self.reading.lock();
        let marks = &self.marks[index];
        let bit = 1 << at;
        if marks.here.load(Ordering::Acquire) & bit != 0 {
            return true;
        }
        if marks.kept.load(Ordering::Relaxed) & bit == 0 {
            return false;
        }
        let put = |into: &mut [u8]| {
            let is_read = read(into);
            if !is_read {
                into.fill(0);
            }
            is_read
        };
        if !extent.fill_page(at as usize * PAGE_BYTES, put, &one) {
            return false;
        }
        self.on.residency.reads.fetch_add(1, Ordering::Relaxed);
        self.on.residency.add(1);
        marks.kept.fetch_and(!bit, Ordering::Relaxed);
        marks.recent.fetch_or(bit, Ordering::Relaxed);
        marks.here.fetch_or(bit, Ordering::Release);
        true
    }
}
