//! Tests of pages.

mod beside;

use super::*;
use proptest::prelude::*;

const EXTENT: u64 = EXTENT_BYTES as u64;

/// Keeps pages as they were when they were let go of, and checks that nobody asks for others.
#[derive(Default, Debug)]
struct Keeper {
    kept: parking_lot::Mutex<std::collections::BTreeMap<u32, Vec<u8>>>,
    /// Those that are read at once; without any, all.
    near: std::sync::OnceLock<u32>,
}

const JOIN: Epoch = Epoch(7);

impl PageKeeper for Keeper {
    fn keeps(&self, page: u32, join: Epoch, _labels: &[staves_model::Label]) -> bool {
        join == JOIN && self.kept.lock().contains_key(&page)
    }

    fn read(&self, page: u32, join: Epoch, into: &mut [u8]) -> Result<(), Unread> {
        assert!(join == JOIN && into.iter().all(|b| *b == 0));
        let kept = self.kept.lock();
        let bytes = kept.get(&page).ok_or(Unread::NotKept)?;
        into.copy_from_slice(bytes);
        Ok(())
    }

    fn read_now(&self, page: u32, join: Epoch, into: &mut [u8]) -> bool {
        let is_near = self.near.get().is_none_or(|near| *near == page);
        is_near && self.read(page, join, into).is_ok()
    }

    fn lost(&self, page: u32, why: Unread) {
        panic!("page {page}: {why}");
    }
}

fn on_disk(arena_extents: u64, budget: u32) -> (Arc<Keeper>, Arc<Residency>, Pages) {
    let arena = Arena::sparse(arena_extents * EXTENT).unwrap();
    let keeper = Arc::new(Keeper::default());
    let residency = Arc::new(Residency::new(10));
    let on = KeptOn {
        keeper: keeper.clone(),
        residency: residency.clone(),
    };
    let budget = Arc::new(Budget::new(budget));
    (keeper, residency, Pages::on_disk(arena, budget, on, JOIN))
}

/// Lets pages go, zero ones without keeping them; of those that were used of late not before all others.
fn let_go(pages: &mut Pages, keeper: &Keeper, most: u32) -> u32 {
    let mut once = |most| {
        pages.let_go(most, &mut |page, bytes| {
            if bytes.iter().all(|b| *b == 0) {
                return Idle::Zero;
            }
            keeper.kept.lock().insert(page, bytes.to_vec());
            Idle::Kept
        })
    };
    let gone = once(most);
    gone + once(most - gone)
}

#[test]
fn a_page_that_was_let_go_has_no_memory_and_comes_back_from_the_disk() {
    let (keeper, residency, mut pages) = on_disk(2, 2);
    assert!(pages.reserve(2));
    let has_memory = |pages: &Pages, page: u32| {
        let extent = pages.table[(page / EXTENT_PAGES) as usize].as_ref();
        extent
            .unwrap()
            .has_memory((page % EXTENT_PAGES) as usize * PAGE_BYTES)
    };
    let at = |page: u32| u64::from(page) * PAGE_BYTES as u64;
    (60..70).for_each(|page| pages.write(at(page), &[page as u8; PAGE_BYTES]).unwrap());
    assert_eq!((residency.pages(), residency.is_over()), (10, false));
    pages.write(at(3), b"one more").unwrap();
    assert!(residency.is_over());
    assert_eq!(let_go(&mut pages, &keeper, 4), 4);
    assert_eq!((residency.pages(), residency.is_over()), (7, false));
    assert_eq!(let_go(&mut pages, &keeper, 100), 7);
    assert_eq!((residency.pages(), residency.reads()), (0, 0));
    assert!([3, 60, 63, 64, 69].iter().all(|p| !has_memory(&pages, *p)));
    // A whole page is replaced without a look at what it was; of others the rest is read.
    pages.write(at(61), &[9; PAGE_BYTES]).unwrap();
    assert_eq!((residency.pages(), residency.reads()), (1, 0));
    pages.write(at(62) + 5, b"x").unwrap();
    assert_eq!((residency.pages(), residency.reads()), (2, 1));
    assert_eq!(pages.slice(at(62) + 4, 3), [62, b'x', 62]);
    assert_eq!(pages.slice(at(63) + 4094, 2), [63; 2]);
    assert!(has_memory(&pages, 63) && !has_memory(&pages, 60));
    // What is freed needs no read.
    pages.zero(at(64), EXTENT);
    assert_eq!((residency.pages(), residency.reads()), (3, 2));
    assert_eq!((pages.used(), pages.slice(at(66), 2)), (1, &[0, 0][..]));
    pages.write(at(65), b"anew").unwrap();
    assert_eq!(pages.slice(at(66), 2), [0, 0], "not what is kept of it");
    drop(pages);
    assert_eq!(residency.pages(), 0);
}

#[test]
fn pages_that_are_used_again_and_again_stay() {
    let (keeper, residency, mut pages) = on_disk(2, 2);
    assert!(pages.reserve(2));
    let at = |page: u32| u64::from(page) * PAGE_BYTES as u64;
    (0..40).for_each(|page| pages.write(at(page), &[1; PAGE_BYTES]).unwrap());
    for _ in 0..6 {
        pages.slice(at(7), 10);
        let_go(&mut pages, &keeper, 5);
    }
    assert_eq!(residency.pages(), 10);
    pages.slice(at(7), 10);
    assert_eq!(residency.reads(), 0, "it was there all the time");
}

#[test]
fn a_page_of_a_former_member_may_be_kept_no_longer() {
    let (keeper, _, mut pages) = on_disk(1, 1);
    assert!(pages.reserve(1));
    pages.write(0, b"old").unwrap();
    let_go(&mut pages, &keeper, 9);
    let kept = std::mem::take(&mut *keeper.kept.lock());
    assert_eq!(pages.page_of_former(0), Err(NotKept));
    *keeper.kept.lock() = kept;
    assert_eq!(&pages.page_of_former(0).unwrap().unwrap()[..4], b"old\0");
    assert_eq!(pages.page_of_former(64), Ok(None));
}

#[test]
fn a_start_says_of_pages_that_they_are_kept() {
    let (keeper, residency, mut pages) = on_disk(2, 1);
    assert!(matches!(pages.set_kept(5), Err(Full::Reservation { .. })));
    assert!(pages.reserve(1));
    keeper.kept.lock().insert(5, vec![5; PAGE_BYTES]);
    pages.set_kept(5).unwrap();
    assert_eq!((residency.pages(), pages.used()), (0, 1));
    assert_eq!(pages.slice(5 * PAGE_BYTES as u64, 1), [5]);
}

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
