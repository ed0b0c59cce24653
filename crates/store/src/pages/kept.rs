//! Pages that are kept on a disk, and in memory only as long as they are used.
//!
//! Each page of an extent that exists is in one of three states: *here* (it has memory), *kept* (its bytes are on the disk alone, and come from
//! there when they are next needed), or neither (it is all zero, and has no memory yet). Whoever touches a page makes it one that is here.

mod beside;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use staves_model::{Epoch, Label, PAGE_BYTES};

use crate::{EXTENT_BYTES, EXTENT_PAGES, Extent};

/// The place where the pages of a group's members are kept: a disk.
pub trait PageKeeper: Send + Sync + std::fmt::Debug {
    /// Returns whether this version of a page is kept: of a member that joined in `join`, with these labels.
    fn keeps(&self, page: u32, join: Epoch, labels: &[Label]) -> bool;

    /// Reads the page that is kept of a member that joined in `join` into `into`, which is all zero, and is so again if it fails.
    ///
    /// # Errors
    /// None is kept, or it cannot be read.
    fn read(&self, page: u32, join: Epoch, into: &mut [u8]) -> Result<(), Unread>;

    /// As [`PageKeeper::read`], if it takes no wait for the disk; false if it would, or fails. A keeper that cannot tell waits: nothing is read beside a bucket then.
    fn read_now(&self, page: u32, join: Epoch, into: &mut [u8]) -> bool {
        self.read(page, join, into).is_ok()
    }

    /// A page that a member needs could not be read: nothing that follows from this call may leave the process.
    fn lost(&self, page: u32, why: Unread);
}

/// A page that was not read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unread {
    /// The disk does not keep it.
    #[error("the disk does not keep it")]
    NotKept,
    /// It is not what was written, or the disk does not read it.
    #[error("{0}")]
    Bad(String),
}

/// The pages of a node's disk that are in memory, and how many may be.
#[derive(Debug)]
pub struct Residency {
    pages: AtomicU64,
    max: AtomicU64,
    reads: AtomicU64,
}

impl Residency {
    /// So many pages may be in memory.
    pub fn new(max: u64) -> Residency {
        Residency {
            pages: AtomicU64::new(0),
            max: AtomicU64::new(max),
            reads: AtomicU64::new(0),
        }
    }

    /// Pages in memory.
    pub fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// The number that may be.
    pub fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    /// Changes that number.
    pub fn set_max(&self, max: u64) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Pages that were read from the disk because they were needed.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Returns whether there are more in memory than may be: some are to be let go of.
    pub fn is_over(&self) -> bool {
        self.pages() > self.max()
    }

    /// So many more than may be, and an eighth beyond.
    pub fn beyond(&self) -> u32 {
        let most = self.max() + self.max() / 8;
        u32::try_from(self.pages().saturating_sub(most)).unwrap_or(u32::MAX)
    }

    /// False if there are so many more that updates are to wait: what is in memory and not saved yet cannot go.
    pub fn admits(&self) -> bool {
        self.pages() <= self.max() + self.max() / 4
    }

    /// The same of what is on its way already.
    pub fn takes_in(&self) -> bool {
        self.pages() <= self.max() + self.max() / 2
    }

    fn add(&self, pages: u32) {
        self.pages.fetch_add(pages.into(), Ordering::Relaxed);
    }

    fn sub(&self, pages: u32) {
        let before = self.pages.fetch_sub(pages.into(), Ordering::Relaxed);
        assert!(before >= pages.into(), "{pages} pages left of {before}");
    }
}

/// The disk behind a member's pages.
#[derive(Clone, Debug)]
pub struct KeptOn {
    /// It keeps them.
    pub keeper: Arc<dyn PageKeeper>,
    /// The count of those in memory, with all others of the disk.
    pub residency: Arc<Residency>,
}

/// The lot of a page that was not used of late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// It stays in memory.
    Stays,
    /// Its bytes are on the disk: its memory can go.
    Kept,
    /// It is all zero, and on no disk: its memory can go.
    Zero,
}

/// Pages that are looked at for each that is to go.
const ASKED_FOR_EACH: u32 = 4;

/// Pages that are written together get their memory from the kernel at once from so many bytes on: that takes a fifth of the time of as many page faults.
const PROVIDED_BYTES: usize = 4 * PAGE_BYTES;

/// One bit for each page of an extent.
#[derive(Default, Debug)]
struct Marks {
    here: AtomicU64,
    kept: AtomicU64,
    recent: AtomicU64,
}

const _: () = assert!(EXTENT_PAGES == u64::BITS);

/// The states of a bucket's pages.
#[derive(Debug)]
pub(super) struct Keeping {
    on: KeptOn,
    join: Epoch,
    /// As long as the table.
    marks: Vec<Marks>,
    /// The extent at which the next look for pages that can go begins.
    hand: usize,
    /// Held while a page is read.
    reading: Mutex<()>,
}

impl Keeping {
    pub(super) fn new(on: KeptOn, join: Epoch) -> Keeping {
        Keeping {
            on,
            join,
            marks: Vec::new(),
            hand: 0,
            reading: Mutex::new(()),
        }
    }

    pub(super) fn resize(&mut self, extents: usize) {
        self.marks.resize_with(extents, Marks::default);
    }

    /// Sees to it that all pages of a range of an extent are in memory.
    #[inline]
    pub(super) fn need(&self, index: usize, extent: &Extent, from: usize, len: usize) {
        let mask = pages_of(from, len);
        let marks = &self.marks[index];
        // Most often nothing changes, and nothing is written.
        if marks.recent.load(Ordering::Relaxed) & mask != mask {
            marks.recent.fetch_or(mask, Ordering::Relaxed);
        }
        let missing = mask & !marks.here.load(Ordering::Acquire);
        if missing != 0
            && let Err((page, why)) = self.bring(index, extent, missing)
        {
            self.on.keeper.lost(page, why);
        }
    }

    /// The same with pages of a former member, which the disk may keep no longer: false then.
    pub(super) fn still_has(&self, index: usize, extent: &Extent, from: usize, len: usize) -> bool {
        let missing = pages_of(from, len) & !self.marks[index].here.load(Ordering::Acquire);
        missing == 0 || self.bring(index, extent, missing).is_ok()
    }

    #[cold]
    fn bring(&self, index: usize, extent: &Extent, missing: u64) -> Result<(), (u32, Unread)> {
        let one = self.reading.lock();
        let marks = &self.marks[index];
        let missing = missing & !marks.here.load(Ordering::Acquire);
        for at in bits(missing) {
            let page = index as u32 * EXTENT_PAGES + at;
            if marks.kept.load(Ordering::Relaxed) & (1 << at) != 0 {
                let read = |into: &mut [u8]| self.on.keeper.read(page, self.join, into);
                self.on.residency.reads.fetch_add(1, Ordering::Relaxed);
                let filled = extent.fill_page(at as usize * PAGE_BYTES, read, &one);
                filled.map_err(|why| (page, why))?;
                marks.kept.fetch_and(!(1 << at), Ordering::Relaxed);
            }
            self.on.residency.add(1);
            marks.here.fetch_or(1 << at, Ordering::Release);
        }
        Ok(())
    }

    /// The pages of a range will be written; all of them whole if `whole`, so that nothing need be read of those that lie in it.
    pub(super) fn need_to_write(
        &mut self,
        index: usize,
        extent: &mut Extent,
        from: usize,
        len: usize,
        whole: bool,
    ) {
        let covered = match whole {
            true => pages_within(from, len),
            false => 0,
        };
        let marks = &mut self.marks[index];
        *marks.kept.get_mut() &= !covered;
        // Their memory is asked for at once, as all of it is written now.
        let fresh = covered & !*marks.here.get_mut();
        for (from, len) in runs(fresh).filter(|(_, len)| *len >= PROVIDED_BYTES) {
            extent.provide(from, len);
        }
        self.need(index, extent, from, len);
    }

    /// Makes a range of an extent zero. Pages that lie in it whole and have no memory get none.
    pub(super) fn fill_zero(&mut self, index: usize, extent: &mut Extent, from: usize, len: usize) {
        let (covered, touched) = (pages_within(from, len), pages_of(from, len));
        let marks = &mut self.marks[index];
        *marks.kept.get_mut() &= !covered;
        let missing = touched & !covered;
        if missing & *marks.here.get_mut() != missing
            && let Err((page, why)) = self.bring(index, extent, missing)
        {
            self.on.keeper.lost(page, why);
        }
        for at in bits(*self.marks[index].here.get_mut() & touched) {
            let start = at as usize * PAGE_BYTES;
            let (first, end) = (start.max(from), (start + PAGE_BYTES).min(from + len));
            extent[first..end].fill(0);
        }
    }

    /// The disk, and the epoch in which their member joined.
    pub(super) fn on(&self) -> (&KeptOn, Epoch) {
        (&self.on, self.join)
    }

    /// A page is as it is kept.
    pub(super) fn set_kept(&mut self, index: usize, at: u32) {
        let marks = &mut self.marks[index];
        assert!(
            *marks.here.get_mut() & (1 << at) == 0,
            "a page that is here"
        );
        *marks.kept.get_mut() |= 1 << at;
    }

    /// An extent leaves the table: nothing of it is here or kept any more. True if it has no memory, and is all zero.
    pub(super) fn forget(&mut self, index: usize, extent: &mut Extent) -> bool {
        let here = self.forget_marks(index);
        here == 0 || extent.punch(0, EXTENT_BYTES)
    }

    fn forget_marks(&mut self, index: usize) -> u64 {
        let mut marks = std::mem::take(&mut self.marks[index]);
        let here = *marks.here.get_mut();
        self.on.residency.sub(here.count_ones());
        here
    }

    /// Lets the memory of up to `most` pages go that were not used since the last look, as `idle` says of each.
    pub(super) fn let_go(
        &mut self,
        table: &mut [Option<Extent>],
        most: u32,
        idle: &mut dyn FnMut(u32, &[u8]) -> Idle,
    ) -> u32 {
        let (mut gone, mut asked) = (0, 0);
        // Once around, and not for long where few can go.
        for _ in 0..table.len() {
            if gone >= most || asked >= most.saturating_mul(ASKED_FOR_EACH) {
                break;
            }
            let index = self.hand % table.len();
            self.hand = index + 1;
            let Some(extent) = &mut table[index] else {
                continue;
            };
            let marks = &mut self.marks[index];
            let recent = std::mem::take(marks.recent.get_mut());
            let (mut out, mut kept) = (0u64, 0u64);
            for at in bits(*marks.here.get_mut() & !recent) {
                let from = at as usize * PAGE_BYTES;
                let page = index as u32 * EXTENT_PAGES + at;
                asked += 1;
                match idle(page, extent.part(from, PAGE_BYTES)) {
                    Idle::Stays => continue,
                    Idle::Kept => kept |= 1 << at,
                    Idle::Zero => {}
                }
                out |= 1 << at;
                if gone + out.count_ones() >= most {
                    break;
                }
            }
            let punched = |(from, len): &(usize, usize)| extent.punch(*from, *len);
            let out: u64 = runs(out).filter(punched).map(|(f, l)| pages_of(f, l)).sum();
            *marks.here.get_mut() &= !out;
            *marks.kept.get_mut() |= kept & out;
            self.on.residency.sub(out.count_ones());
            gone += out.count_ones();
        }
        gone
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        for index in 0..self.marks.len() {
            self.forget_marks(index);
        }
    }
}

/// The pages that a range of an extent touches.
#[inline]
fn pages_of(from: usize, len: usize) -> u64 {
    if len == 0 {
        return 0;
    }
    let (first, last) = (from / PAGE_BYTES, (from + len - 1) / PAGE_BYTES);
    (u64::MAX >> (63 - (last - first))) << first
}

/// The pages that lie in it whole.
fn pages_within(from: usize, len: usize) -> u64 {
    let (first, end) = (from.div_ceil(PAGE_BYTES), (from + len) / PAGE_BYTES);
    match first < end {
        true => pages_of(first * PAGE_BYTES, (end - first) * PAGE_BYTES),
        false => 0,
    }
}

fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let at = word.trailing_zeros();
            word &= word - 1;
            at
        })
    })
}

/// Pages that follow one another, as ranges of bytes of an extent.
fn runs(mut word: u64) -> impl Iterator<Item = (usize, usize)> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let first = word.trailing_zeros();
            let count = (word >> first).trailing_ones();
            word &= !pages_of(first as usize * PAGE_BYTES, count as usize * PAGE_BYTES);
            (first as usize * PAGE_BYTES, count as usize * PAGE_BYTES)
        })
    })
}

const _: () = assert!(EXTENT_BYTES == 64 * PAGE_BYTES);
