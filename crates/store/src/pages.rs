//! The pages of one bucket: a table from offset to extent, within a reservation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use staves_model::PAGE_BYTES;

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
        }
    }

    /// Makes the reservation `extents`, or what is used if that is more, and returns true. If the budget
    /// or the arena does not have them, leaves it as it was and returns false.
    pub fn reserve(&mut self, extents: u32) -> bool {
        let (now, then) = (self.reserved(), extents.max(self.used));
        if then <= now {
            let keep = (then - self.used) as usize;
            self.spare.truncate(keep);
            self.dirty.truncate(keep - self.spare.len());
            self.budget.give(now - then);
            return true;
        }
        if !self.budget.take(then - now) {
            return false;
        }
        let taken = self.arena.take(then - now, &mut self.spare);
        if !taken {
            self.budget.give(then - now);
        }
        taken
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
        self.change(offset, bytes, |old, new| old.copy_from_slice(new))
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
        self.change(offset, bytes, sum)
    }

    /// Lets go of the extent that holds this offset if all of it is zero; its memory goes back to this
    /// bucket's own reservation.
    pub fn release_if_zero(&mut self, offset: u64) {
        let zero = |x: &Extent| {
            x.chunks_exact(64)
                .all(|c| c.iter().fold(0, |a, b| a | b) == 0)
        };
        if self.extent(offset).is_some_and(zero) {
            self.release(split(offset).0);
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
                extent[within..within + part].fill(0);
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
            Some(Some(extent)) => &extent[within..within + len],
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
        let extent = self.table.get((page / EXTENT_PAGES) as usize)?.as_ref()?;
        let start = (page % EXTENT_PAGES) as usize * PAGE_BYTES;
        Some(&extent[start..start + PAGE_BYTES])
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
        self.provide(page);
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

    /// Applies `put` to each extent's part of a range, once all its extents are sure to exist.
    fn change(
        &mut self,
        offset: u64,
        bytes: &[u8],
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
        if let Some(extent) = self.table[index].take() {
            self.dirty.push(extent);
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXTENT: u64 = EXTENT_BYTES as u64;

    fn pages(arena_extents: u64, budget: u32) -> (Arc<Arena>, Arc<Budget>, Pages) {
        let arena = Arena::new(arena_extents * EXTENT).unwrap();
        let budget = Arc::new(Budget::new(budget));
        let pages = Pages::new(arena.clone(), budget.clone());
        (arena, budget, pages)
    }

    #[test]
    fn a_reservation_is_bounded_by_budget_and_arena() {
        let (arena, budget, mut pages) = pages(8, 4);
        assert!(!pages.reserve(5), "beyond the budget");
        assert_eq!(
            (pages.reserved(), budget.taken(), arena.free_extents()),
            (0, 0, 8)
        );
        assert!(pages.reserve(4) && pages.reserve(2));
        assert_eq!(
            (pages.reserved(), budget.taken(), arena.free_extents()),
            (2, 2, 6)
        );

        budget.set_limit(100);
        assert!(!pages.reserve(9), "beyond the arena");
        assert_eq!(
            (pages.reserved(), budget.taken(), arena.free_extents()),
            (2, 2, 6)
        );

        pages.write(EXTENT - 1, b"ab").unwrap();
        assert!(pages.reserve(0), "what is used stays");
        assert_eq!((pages.reserved(), pages.used()), (2, 2));
        drop(pages);
        assert_eq!((budget.taken(), arena.free_extents()), (0, 8));
    }

    #[test]
    fn a_write_beyond_the_reservation_changes_nothing() {
        let (_, _, mut pages) = pages(8, 8);
        assert!(pages.reserve(1));
        let full = pages.write(EXTENT - 1, b"ab").unwrap_err();
        assert_eq!(
            full,
            Full::Reservation {
                needed: 2,
                spare: 1,
                reserved: 1
            }
        );
        assert_eq!((pages.used(), pages.end_page()), (0, 0));
        assert!(matches!(
            pages.write(u64::MAX - 1, b"abc"),
            Err(Full::TooFar { .. })
        ));
        assert_eq!(pages.write(u64::MAX, b""), Ok(()));
    }

    #[test]
    fn a_zeroed_extent_can_be_written_again_when_the_arena_is_full() {
        let (arena, _, mut pages) = pages(1, 1);
        assert!(pages.reserve(1));
        pages.write(0, b"x").unwrap();
        pages.zero(0, EXTENT);
        assert_eq!(
            (pages.used(), pages.reserved(), arena.free_extents()),
            (0, 1, 0)
        );
        assert_eq!((pages.page(0), pages.end_page()), (None, 0));
        pages.write(5 * EXTENT, b"y").unwrap();
        assert_eq!(pages.slice(5 * EXTENT, 2), b"y\0");
        assert_eq!(pages.slice(0, 2), b"\0\0");
        assert_eq!(pages.end_page(), 6 * EXTENT_PAGES);
    }

    #[test]
    fn memory_is_provided_for_what_is_replaced_in_order_and_for_a_chunk_at_most() {
        let (_, _, mut pages) = pages(2, 2);
        assert!(pages.reserve(2));
        let provided = |pages: &Pages| {
            let extent = pages.table[0].as_ref().unwrap();
            (0..EXTENT_PAGES)
                .filter(|p| extent.has_memory(*p as usize * PAGE_BYTES))
                .collect::<Vec<_>>()
        };
        let one = [7; PAGE_BYTES];
        pages.set_page(40, Some(&one)).unwrap();
        assert_eq!(provided(&pages), [40]);
        pages.set_page(3, Some(&one)).unwrap();
        pages.set_page(4, Some(&one)).unwrap();
        assert_eq!(provided(&pages), (3..16).chain([40]).collect::<Vec<_>>());
        (5..17).for_each(|page| pages.set_page(page, Some(&one)).unwrap());
        assert_eq!(provided(&pages), (3..32).chain([40]).collect::<Vec<_>>());
        // Across the end of an extent, and of the table.
        (60..68).for_each(|page| pages.set_page(page, Some(&one)).unwrap());
        assert_eq!(pages.slice(67 * PAGE_BYTES as u64, 2), [7, 7]);
        assert_eq!(pages.slice(17 * PAGE_BYTES as u64, 2), [0, 0]);
    }

    #[test]
    #[should_panic(expected = "leave their extent")]
    fn a_slice_does_not_cross_extents() {
        let (_, _, pages) = pages(1, 1);
        pages.slice(EXTENT - 1, 2);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Write(u64, Vec<u8>),
        Xor(u64, Vec<u8>),
        Zero(u64, u64),
        SetPage(u32, Option<u8>),
        Release(u64),
        Reserve(u32),
        Clear,
    }

    const SPACE: u64 = 6 * EXTENT;

    fn offset() -> impl Strategy<Value = u64> {
        // Near the ends of extents, where things go wrong, and anywhere.
        prop_oneof![
            (0..6u64, -40..40i64).prop_map(|(e, d)| (e * EXTENT).saturating_add_signed(d)),
            0..SPACE,
        ]
    }

    fn op() -> impl Strategy<Value = Op> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..64);
        prop_oneof![
            4 => (offset(), bytes()).prop_map(|(o, b)| Op::Write(o, b)),
            2 => (offset(), bytes()).prop_map(|(o, b)| Op::Xor(o, b)),
            1 => (offset(), 0..64usize).prop_map(|(o, n)| Op::Xor(o, vec![0; n])),
            2 => offset().prop_map(Op::Release),
            2 => (offset(), 0..3 * EXTENT).prop_map(|(o, l)| Op::Zero(o, l)),
            2 => (0..6u64, 1..3u64).prop_map(|(e, n)| Op::Zero(e * EXTENT, n * EXTENT)),
            2 => (0..6 * EXTENT_PAGES, any::<Option<u8>>()).prop_map(|(p, b)| Op::SetPage(p, b)),
            2 => (0..8u32).prop_map(Op::Reserve),
            1 => Just(Op::Clear),
        ]
    }

    /// The reference: plain bytes and which extents exist.
    struct Model {
        bytes: Vec<u8>,
        exists: [bool; 7],
    }

    impl Model {
        fn put(&mut self, reserved: u32, at: u64, new: &[u8], xor: bool) -> bool {
            let range = at as usize..at as usize + new.len();
            let touched = range.start / EXTENT_BYTES..range.end.div_ceil(EXTENT_BYTES);
            let mut exists = self.exists;
            let nothing = xor && touched.len() == 1 && new.iter().all(|b| *b == 0);
            if new.is_empty() || (nothing && !exists[touched.start]) {
                return true;
            }
            exists[touched].fill(true);
            if exists.iter().filter(|e| **e).count() as u32 > reserved {
                return false;
            }
            self.exists = exists;
            for (old, new) in self.bytes[range].iter_mut().zip(new) {
                *old = if xor { *old ^ new } else { *new };
            }
            true
        }

        fn zero(&mut self, at: u64, len: u64) {
            let end = (at + len).min(self.bytes.len() as u64);
            self.bytes[at as usize..end as usize].fill(0);
            for (e, exists) in self.exists.iter_mut().enumerate() {
                let start = e as u64 * EXTENT;
                *exists &= !(at <= start && start + EXTENT <= end);
            }
        }
    }

    fn apply(op: &Op, pages: &mut Pages, model: &mut Model) {
        let reserved = pages.reserved();
        match op {
            Op::Write(at, b) => {
                assert_eq!(
                    pages.write(*at, b).is_ok(),
                    model.put(reserved, *at, b, false)
                );
            }
            Op::Xor(at, b) => {
                assert_eq!(pages.xor(*at, b).is_ok(), model.put(reserved, *at, b, true));
            }
            Op::Zero(at, len) => {
                pages.zero(*at, *len);
                model.zero(*at, *len);
            }
            Op::SetPage(page, Some(b)) => {
                let (at, b) = (u64::from(*page) * PAGE_BYTES as u64, vec![*b; PAGE_BYTES]);
                assert_eq!(
                    pages.set_page(*page, Some(&b)).is_ok(),
                    model.put(reserved, at, &b, false)
                );
            }
            Op::SetPage(page, None) => {
                pages.set_page(*page, None).unwrap();
                model.zero(u64::from(*page) * PAGE_BYTES as u64, PAGE_BYTES as u64);
            }
            Op::Release(at) => {
                pages.release_if_zero(*at);
                let extent = *at as usize / EXTENT_BYTES;
                let mut bytes = model.bytes[extent * EXTENT_BYTES..][..EXTENT_BYTES].iter();
                model.exists[extent] &= bytes.any(|b| *b != 0);
            }
            Op::Reserve(n) => {
                pages.reserve(*n);
            }
            Op::Clear => {
                pages.clear();
                model.zero(0, u64::MAX / 2);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn pages_are_what_plain_bytes_would_be(ops in prop::collection::vec(op(), 1..60)) {
            let (arena, budget, mut pages) = pages(6, 5);
            let mut model = Model { bytes: vec![0; 7 * EXTENT_BYTES], exists: [false; 7] };
            for op in &ops {
                apply(op, &mut pages, &mut model);
                let exist = model.exists.iter().filter(|e| **e).count() as u32;
                prop_assert_eq!(pages.used(), exist);
                prop_assert_eq!(pages.reserved(), budget.taken());
                prop_assert_eq!(arena.free_extents(), 6 - budget.taken());
            }
            let mut bytes = Vec::new();
            pages.read_into(0, model.bytes.len(), &mut bytes);
            prop_assert!(bytes == model.bytes);
            for page in 0..7 * EXTENT_PAGES {
                let exists = model.exists[(page / EXTENT_PAGES) as usize];
                prop_assert_eq!(pages.page(page).is_some(), exists);
            }
            drop(pages);
            prop_assert_eq!((budget.taken(), arena.free_extents()), (0, 6));
        }
    }
}
