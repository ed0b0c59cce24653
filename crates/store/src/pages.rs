//! The pages of one bucket: a table from offset to extent, within a reservation.

mod kept;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use staves_model::{Epoch, PAGE_BYTES};

use self::kept::Keeping;
pub use self::kept::{Idle, KeptOn, PageKeeper, Residency, Unread};
use crate::{Arena, BUCKET_EXTENTS_MAX, Budget, EXTENT_BYTES, EXTENT_PAGES, Extent};

/// The bytes of an offset without an extent.
static ZEROES: [u8; EXTENT_BYTES] = [0; EXTENT_BYTES];

/// A write that cannot be: nothing of it was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Full {
    /// It needs more extents than the bucket has reserved.
    #[error(
        "the write needs {needed} more extents of 256 KiB and the bucket has {spare} of its {reserved} reserved ones left; reserve more first"
    )]
    Reservation {
        /// Extents that the write would add.
        needed: u32,
        /// Reserved and not used.
        spare: u32,
        /// Reserved in all.
        reserved: u32,
    },
    /// It lies beyond what a bucket may hold.
    #[error("offset {offset} lies beyond the largest bucket, which ends at {} bytes", u64::from(BUCKET_EXTENTS_MAX) * EXTENT_BYTES as u64)]
    TooFar {
        /// The write's end.
        offset: u64,
    },
}

/// A page that its disk does not keep any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the disk does not keep the page any more")]
pub struct NotKept;

/// One bucket's pages.
///
/// Offsets that were never written, or were zeroed, have no extent and read as zeroes. Each extent that
/// exists, and each that is reserved, is taken from both the arena and the budget.
#[derive(Debug)]
pub struct Pages {
    arena: Arc<Arena>,
    budget: Arc<Budget>,
    /// By offset / EXTENT_BYTES. The last entry is never `None`.
    table: Vec<Option<Extent>>,
    used: u32,
    /// Reserved, not in the table; all zero.
    spare: Vec<Extent>,
    /// As `spare`, but as they were when they left the table. Cleared when they are used again, so
    /// that freeing much at once (a large value) costs nothing at once.
    dirty: Vec<Extent>,
    generation: u64,
    /// The page after the last that was replaced, and up to where its neighbours have memory already.
    replaced: u32,
    provided: u32,
    /// They are kept on a disk, and in memory only while they are used.
    keeping: Option<Keeping>,
}

/// For pages that are replaced one after another, the kernel is asked for the memory of so many at once: that takes a
/// fifth of the time of as many page faults. As many as a chunk of a region has, so that what is sparse stays so.
const PROVIDED_PAGES: u32 = 16;

impl Pages {
    /// No pages, nothing reserved.
    pub fn new(arena: Arc<Arena>, budget: Arc<Budget>) -> Pages {
        Pages {
            arena,
            budget,
            table: Vec::new(),
            used: 0,
            spare: Vec::new(),
            dirty: Vec::new(),
            generation: next_generation(),
            replaced: 0,
            provided: 0,
            keeping: None,
        }
    }

    /// The same, of a member that joined in `join` and whose pages are kept on a disk as well: they are in memory only while they are used
    /// ([`Pages::let_go`]). The arena is a [sparse](Arena::sparse) one.
    pub fn on_disk(arena: Arc<Arena>, budget: Arc<Budget>, on: KeptOn, join: Epoch) -> Pages {
        let mut pages = Pages::new(arena, budget);
        pages.keeping = Some(Keeping::new(on, join));
        pages
    }

    /// Makes the reservation `extents`, or what is used if that is more, and returns true. If the budget
    /// or the arena does not have them, leaves it as it was and returns false.
    pub fn reserve(&mut self, extents: u32) -> bool {
        self.reserve_of(extents, Budget::take)
    }

    /// The same for what a disk has already, or has promised to have: it is there, whether or not the budget still has room for it.
    pub fn reserve_kept(&mut self, extents: u32) -> bool {
        self.reserve_of(extents, |budget, more| {
            budget.take_kept(more);
            true
        })
    }

    fn reserve_of(&mut self, extents: u32, take: impl Fn(&Budget, u32) -> bool) -> bool {
        let (now, then) = (self.reserved(), extents.max(self.used));
        if then <= now {
            let keep = (then - self.used) as usize;
            self.spare.truncate(keep);
            self.dirty.truncate(keep - self.spare.len());
            self.budget.give(now - then);
            return true;
        }
        if !take(&self.budget, then - now) {
            return false;
        }
        let taken = self.arena.take(then - now, &mut self.spare);
        if !taken {
            self.budget.give(then - now);
        }
        taken
    }

    /// Extents of the arena that were held for what a disk has become reserved.
    pub fn adopt(&mut self, held: Vec<Extent>) {
        self.budget.take_kept(held.len() as u32);
        self.spare.extend(held);
    }

    /// The room that there is for more, in words.
    pub fn room(&self) -> String {
        let (taken, limit) = (self.budget.taken(), self.budget.limit());
        let (free, of) = (self.arena.free_extents(), self.arena.extents());
        format!(
            "{taken} of {limit} extents of its pool's share are taken, {free} of {of} of its disk are free"
        )
    }

    /// Extents reserved, those in use among them.
    pub fn reserved(&self) -> u32 {
        self.used + self.unused() as u32
    }

    /// A number that no other pages of this process have had, and that [`Pages::clear`] renews: who
    /// keeps an index of pages sees by it that they began anew. To be compared only for equality.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Extents that exist.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// The page after the last that exists (rounded up to a whole extent).
    pub fn end_page(&self) -> u32 {
        self.table.len() as u32 * EXTENT_PAGES
    }

    /// Returns whether the extent that holds this offset exists.
    pub fn exists(&self, offset: u64) -> bool {
        self.extent(offset).is_some()
    }

    /// Puts bytes at an offset.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Full> {
        self.change(offset, bytes, true, |old, new| old.copy_from_slice(new))
    }

    /// XORs bytes into those at an offset.
    pub fn xor(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Full> {
        self.add(offset, bytes, |old, new| {
            for (o, n) in old.iter_mut().zip(new) {
                *o ^= n;
            }
        })
    }

    /// Adds bytes to those at an offset, by a sum to which zeroes add nothing: where no extent exists
    /// they make none. `sum` is given the bytes there and those to add, extent by extent.
    pub fn add(
        &mut self,
        offset: u64,
        bytes: &[u8],
        sum: impl Fn(&mut [u8], &[u8]),
    ) -> Result<(), Full> {
        let one = split(offset).1 + bytes.len() <= EXTENT_BYTES;
        if one && !self.exists(offset) && bytes.iter().all(|b| *b == 0) {
            return Ok(());
        }
        self.change(offset, bytes, false, sum)
    }

    /// Lets go of the extent that holds this offset if all of it is zero; its memory goes back to this
    /// bucket's own reservation.
    pub fn release_if_zero(&mut self, offset: u64) {
        let zero = |x: &Extent| {
            x.chunks_exact(64)
                .all(|c| c.iter().fold(0, |a, b| a | b) == 0)
        };
        let index = split(offset).0;
        if let (Some(Some(extent)), Some(keeping)) = (self.table.get(index), &self.keeping) {
            keeping.need(index, extent, 0, EXTENT_BYTES);
        }
        if self.extent(offset).is_some_and(zero) {
            self.release(index);
            while self.table.last().is_some_and(Option::is_none) {
                self.table.pop();
            }
        }
    }

    /// Makes a range zero. Extents that it covers whole cease to exist, and their memory goes back to
    /// this bucket's own reservation.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let table_end = self.table.len() as u64 * EXTENT_BYTES as u64;
        let end = offset.saturating_add(len).min(table_end);
        let mut at = offset;
        while at < end {
            let (index, within) = split(at);
            let part = (EXTENT_BYTES - within).min((end - at) as usize);
            if part == EXTENT_BYTES {
                self.release(index);
            } else if let Some(extent) = &mut self.table[index] {
                match &mut self.keeping {
                    None => extent[within..within + part].fill(0),
                    Some(keeping) => keeping.fill_zero(index, extent, within, part),
                }
            }
            at += part as u64;
        }
        while self.table.last().is_some_and(Option::is_none) {
            self.table.pop();
        }
    }

    /// Bytes at an offset, without a copy. The range must lie within one extent.
    ///
    /// # Panics
    /// If it does not: check lengths that come from elsewhere first.
    #[inline]
    pub fn slice(&self, offset: u64, len: usize) -> &[u8] {
        let (index, within) = split(offset);
        assert!(
            len <= EXTENT_BYTES - within,
            "{len} bytes at offset {offset} leave their extent"
        );
        match self.table.get(index) {
            Some(Some(extent)) => {
                if let Some(keeping) = &self.keeping {
                    keeping.need(index, extent, within, len);
                }
                extent.part(within, len)
            }
            _ => &ZEROES[..len],
        }
    }

    /// Appends a range, which may cross extents, to `into`.
    pub fn read_into(&self, offset: u64, len: usize, into: &mut Vec<u8>) {
        into.reserve(len);
        let (mut at, mut left) = (offset, len);
        while left > 0 {
            let part = left.min(EXTENT_BYTES - split(at).1);
            into.extend_from_slice(self.slice(at, part));
            at = at.saturating_add(part as u64);
            left -= part;
        }
    }

    /// A page's bytes; `None` if its extent does not exist, and it so reads as zeroes.
    pub fn page(&self, page: u32) -> Option<&[u8]> {
        let offset = u64::from(page) * PAGE_BYTES as u64;
        self.extent(offset)?;
        Some(self.slice(offset, PAGE_BYTES))
    }

    /// The same of pages whose member is not one any more: the disk may keep them no longer, and then it is an error.
    ///
    /// # Errors
    /// It does not.
    pub fn page_of_former(&self, page: u32) -> Result<Option<&[u8]>, NotKept> {
        let offset = u64::from(page) * PAGE_BYTES as u64;
        let (index, within) = split(offset);
        let (Some(extent), Some(keeping)) = (self.extent(offset), &self.keeping) else {
            return Ok(self.page(page));
        };
        match keeping.still_has(index, extent, within, PAGE_BYTES) {
            true => Ok(self.page(page)),
            false => Err(NotKept),
        }
    }

    /// A page is as the disk keeps it, and is read from there when it is first needed.
    ///
    /// # Errors
    /// [`Full`] if its extent is not reserved.
    ///
    /// # Panics
    /// If they are not kept on a disk, or the page is here.
    pub fn set_kept(&mut self, page: u32) -> Result<(), Full> {
        let offset = u64::from(page) * PAGE_BYTES as u64;
        self.make_exist(offset, PAGE_BYTES)?;
        assert!(self.keeping.is_some(), "they are kept on a disk");
        if let Some(keeping) = &mut self.keeping {
            keeping.set_kept(split(offset).0, page % EXTENT_PAGES);
        }
        Ok(())
    }

    /// Appends the pages of a range to `cold` that are on the disk alone and for which a reader would wait. It is given others on the way.
    pub fn cold(&self, offset: u64, len: u64, cold: &mut Vec<u32>) {
        let Some(keeping) = &self.keeping else {
            return;
        };
        let end = offset.saturating_add(len);
        let mut at = offset;
        while at < end {
            let (index, within) = split(at);
            let part = (EXTENT_BYTES - within).min((end - at) as usize);
            match self.table.get(index) {
                Some(Some(extent)) => keeping.cold(index, extent, (within, part), cold),
                Some(None) => {}
                None => return,
            }
            at += part as u64;
        }
    }

    /// A page that is on the disk alone gets the bytes that `read` puts, if it returns true; others stay as they are.
    pub fn give(&self, page: u32, read: &mut dyn FnMut(&mut [u8]) -> bool) {
        let (index, within) = split(u64::from(page) * PAGE_BYTES as u64);
        if let (Some(Some(extent)), Some(keeping)) = (self.table.get(index), &self.keeping) {
            keeping.give(index, extent, (within / PAGE_BYTES) as u32, read);
        }
    }

    /// Lets the memory of some pages go, `most` of them at most, that were not used of late; `idle` says of each what holds of it. How many went.
    pub fn let_go(&mut self, most: u32, idle: &mut dyn FnMut(u32, &[u8]) -> Idle) -> u32 {
        match &mut self.keeping {
            Some(keeping) => keeping.let_go(&mut self.table, most, idle),
            None => 0,
        }
    }

    /// The disk that they are kept on, and the pages of it in memory.
    pub fn kept_on(&self) -> Option<(&KeptOn, Epoch)> {
        self.keeping.as_ref().map(Keeping::on)
    }

    /// Replaces a page; `None` makes it zero, without making its extent exist.
    ///
    /// # Panics
    /// If the bytes are not one page.
    pub fn set_page(&mut self, page: u32, bytes: Option<&[u8]>) -> Result<(), Full> {
        let offset = u64::from(page) * PAGE_BYTES as u64;
        let Some(bytes) = bytes else {
            self.zero(offset, PAGE_BYTES as u64);
            return Ok(());
        };
        assert_eq!(bytes.len(), PAGE_BYTES, "bytes of page {page}");
        self.make_exist(offset, PAGE_BYTES)?;
        // Those kept on a disk are counted as they come.
        if self.keeping.is_none() {
            self.provide(page);
        }
        self.write(offset, bytes)
    }

    // One page by itself is left to a page fault.
    fn provide(&mut self, page: u32) {
        let follows = std::mem::replace(&mut self.replaced, page + 1) == page;
        if !follows {
            self.provided = page + 1;
        } else if page >= self.provided {
            self.provided = (page / PROVIDED_PAGES + 1) * PROVIDED_PAGES;
            let (index, within) = split(u64::from(page) * PAGE_BYTES as u64);
            let len = (self.provided - page) as usize * PAGE_BYTES;
            if let Some(Some(extent)) = self.table.get_mut(index) {
                extent.provide(within, len);
            }
        }
    }

    /// No extent exists any more; the reservation stays. Renews [`Pages::generation`].
    pub fn clear(&mut self) {
        self.zero(0, u64::MAX);
        self.generation = next_generation();
        debug_assert!(self.table.is_empty() && self.used == 0);
    }

    fn extent(&self, offset: u64) -> Option<&Extent> {
        self.table.get(split(offset).0)?.as_ref()
    }

    /// Applies `put` to each extent's part of a range, once all its extents are sure to exist. If it `replaces` the bytes, those of before are not read.
    fn change(
        &mut self,
        offset: u64,
        bytes: &[u8],
        replaces: bool,
        put: impl Fn(&mut [u8], &[u8]),
    ) -> Result<(), Full> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.make_exist(offset, bytes.len())?;
        let (mut index, mut within) = split(offset);
        let mut rest = bytes;
        while !rest.is_empty() {
            let (part, tail) = rest.split_at(rest.len().min(EXTENT_BYTES - within));
            let extent = self.table[index].as_mut().expect("made to exist above");
            if let Some(keeping) = &mut self.keeping {
                keeping.need_to_write(index, extent, within, part.len(), replaces);
            }
            put(&mut extent[within..within + part.len()], part);
            (index, within, rest) = (index + 1, 0, tail);
        }
        Ok(())
    }

    #[inline]
    fn make_exist(&mut self, offset: u64, len: usize) -> Result<(), Full> {
        let (first, within) = split(offset);
        let last = first.saturating_add((within + len - 1) / EXTENT_BYTES);
        if first == last && matches!(self.table.get(first), Some(Some(_))) {
            return Ok(());
        }
        if last >= BUCKET_EXTENTS_MAX as usize {
            return Err(Full::TooFar {
                offset: offset.saturating_add(len as u64),
            });
        }
        let missing = |i: &usize| !matches!(self.table.get(*i), Some(Some(_)));
        let needed = (first..=last).filter(missing).count();
        if needed > self.unused() {
            let (spare, reserved) = (self.unused() as u32, self.reserved());
            return Err(Full::Reservation {
                needed: needed as u32,
                spare,
                reserved,
            });
        }
        if self.table.len() <= last {
            self.table.resize_with(last + 1, || None);
            if let Some(keeping) = &mut self.keeping {
                keeping.resize(last + 1);
            }
        }
        for index in first..=last {
            if self.table[index].is_none() {
                self.table[index] = self.next_unused();
                self.used += 1;
            }
        }
        Ok(())
    }

    fn unused(&self) -> usize {
        self.spare.len() + self.dirty.len()
    }

    fn next_unused(&mut self) -> Option<Extent> {
        self.spare.pop().or_else(|| {
            let mut extent = self.dirty.pop()?;
            extent.fill(0);
            Some(extent)
        })
    }

    fn release(&mut self, index: usize) {
        if let Some(mut extent) = self.table[index].take() {
            let is_clean = match &mut self.keeping {
                Some(keeping) => keeping.forget(index, &mut extent),
                None => false,
            };
            match is_clean {
                true => self.spare.push(extent),
                false => self.dirty.push(extent),
            }
            self.used -= 1;
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let reserved = self.reserved();
        // The arena first, so that whoever finds room in the budget finds it in the arena too.
        self.table.clear();
        self.spare.clear();
        self.dirty.clear();
        self.budget.give(reserved);
    }
}

fn next_generation() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The extent of an offset, and the place in it.
#[inline]
fn split(offset: u64) -> (usize, usize) {
    let extent = EXTENT_BYTES as u64;
    ((offset / extent) as usize, (offset % extent) as usize)
}

#[cfg(test)]
mod tests;
