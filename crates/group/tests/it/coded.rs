//! Groups with m > 1: one pass for all that was lost, k raised while it serves, freed ranks, and what a reader
//! is told meanwhile.

use bytes::Bytes;
use staves_erasure::Code;
use staves_group::{Effects, Unread};
use staves_model::{MemberSlot, NodeId, PAGE_BYTES, twin};
use staves_store::EXTENT_BYTES;
use staves_wire::group::{Run, RunKind};

use crate::town::Town;

const PAGE: u64 = PAGE_BYTES as u64;

/// Writes `pages` pages at each of m data buckets, each with bytes of its own; at stable when done.
pub fn load(town: &mut Town, m: usize, pages: u64) {
    for data in 0..m {
        town.write_at(data, 0, b"");
        for page in 0..pages {
            let bytes: Vec<u8> = (0..PAGE)
                .map(|i| (i * 7 + page * 31 + data as u64) as u8 | 1)
                .collect();
            let at = page * PAGE + 100;
            assert!(
                town.write_at(data, at, &bytes[..PAGE_BYTES - 200]),
                "page {page}"
            );
        }
    }
    town.ticks(30);
}

fn page_of(town: &Town, index: usize, page: u32) -> Vec<u8> {
    let pages = town.members[index].pages().expect("a member");
    pages
        .page(page)
        .map_or_else(|| vec![0; PAGE_BYTES], <[u8]>::to_vec)
}

/// Compares the parity buckets on these nodes (by slot from m on) with the code of the data.
pub fn check_parity(town: &Town, data: &[usize], parity: &[usize], pages: u64) {
    let code = Code::new(data.len(), parity.len()).expect("a small code");
    for page in 0..pages as u32 {
        let bytes: Vec<Vec<u8>> = data.iter().map(|d| page_of(town, *d, page)).collect();
        let sources: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        let mut made = vec![vec![0; PAGE_BYTES]; parity.len()];
        let mut outputs: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(&sources, &mut outputs);
        for (p, made) in parity.iter().zip(&made) {
            assert!(
                page_of(town, *p, page) == *made,
                "page {page} of node {}",
                p + 1
            );
        }
    }
}

/// Rows H5, H10 and H11: a pool is loaded without parity, so that nothing is logged; then k is raised, and
/// one pass over the m data buckets makes the pages of all parity buckets.
#[test]
fn a_load_without_parity_is_encoded_in_one_pass() {
    let mut town = Town::new(4, 0, 3);
    load(&mut town, 4, 50);
    for data in 0..4 {
        let stream = town.members[data].stream(data).expect("a data bucket");
        assert_eq!((stream.log.bytes(), stream.stable), (0, stream.prefix));
    }
    town.exchange(&[(4, 5), (5, 6), (6, 7)]);
    town.fill();
    check_parity(&town, &[0, 1, 2, 3], &[4, 5, 6], 50);
    for data in 1..=4 {
        assert_eq!(
            town.given[&NodeId(data)],
            50,
            "one pass: each page once, to one joiner"
        );
    }
    assert_eq!(
        town.given[&NodeId(5)],
        2 * 50,
        "which makes those of the two others"
    );
    assert!(!town.given.contains_key(&NodeId(6)) && !town.given.contains_key(&NodeId(7)));

    // What is written now reaches all of them as deltas.
    load(&mut town, 4, 8);
    check_parity(&town, &[0, 1, 2, 3], &[4, 5, 6], 50);
}

/// Row H5: a data bucket and a parity bucket lost at once are made in one pass over m others.
#[test]
fn two_lost_members_are_made_in_one_pass() {
    let mut town = Town::new(3, 2, 2);
    load(&mut town, 3, 20);
    let before: Vec<Vec<u8>> = (0..20).map(|page| page_of(&town, 1, page)).collect();
    town.exchange(&[(1, 6), (3, 7)]);
    town.fill();
    for (page, bytes) in before.iter().enumerate() {
        assert!(
            page_of(&town, 5, page as u32) == *bytes,
            "page {page} of the data bucket"
        );
    }
    check_parity(&town, &[0, 5, 2], &[6, 4], 20);
    assert_eq!(
        town.given.values().sum::<usize>(),
        (3 + 1) * 20,
        "{:?}",
        town.given
    );
}

/// A freed page counts as zero: an extent that is free at all data buckets has no memory at parity.
#[test]
fn a_rank_that_is_free_everywhere_has_no_memory() {
    let mut town = Town::new(2, 2, 0);
    load(&mut town, 2, 10);
    let used = |town: &Town, index: usize| town.members[index].pages().map(|p| p.used());
    let free = |town: &mut Town, index: usize| {
        let run = Run {
            offset: 0,
            len: EXTENT_BYTES as u32,
            kind: RunKind::Zero,
        };
        let mut out = Effects::default();
        town.members[index].update(None, Bytes::new(), vec![run], Bytes::new());
        town.members[index].flush(town.now, &mut out);
        town.carry(out);
        town.ticks(20);
    };
    free(&mut town, 0);
    assert_eq!((used(&town, 0), used(&town, 1)), (Some(0), Some(1)));
    assert_eq!(
        (used(&town, 2), used(&town, 3)),
        (Some(1), Some(1)),
        "the other's is coded"
    );
    check_parity(&town, &[0, 1], &[2, 3], 10);
    free(&mut town, 1);
    for index in 0..4 {
        assert_eq!(used(&town, index), Some(0), "node {}", index + 1);
    }
}

/// Row H6: the replacement of a data bucket answers at once, but for pages that are not made yet; it says
/// which, asks for that one at once, and never guesses.
#[test]
fn a_reader_is_told_what_is_missing_and_asks_for_it() {
    let mut town = Town::new(2, 1, 1);
    load(&mut town, 2, 10);
    let wanted = page_of(&town, 0, 7);
    town.keep_parts = true;
    town.exchange(&[(0, 4)]);
    // What parity promised to the one that is gone must run out first.
    town.ticks(80);
    let mut bytes = Vec::new();
    let read = |town: &Town, bytes: &mut Vec<u8>| {
        town.members[3].read(town.now, 7 * PAGE, PAGE_BYTES as u32, bytes)
    };
    assert_eq!(read(&town, &mut bytes), Err(Unread::Missing { page: 7 }));
    assert_eq!(read(&town, &mut bytes), Err(Unread::Missing { page: 7 }));
    let run = Run {
        offset: 7 * PAGE + 8,
        len: 8,
        kind: RunKind::Bytes,
    };
    assert_eq!(
        town.members[3].absent_in(&[run]),
        Some(7),
        "a write waits too"
    );
    assert_eq!(
        town.members[1]
            .read(town.now, 7 * PAGE, 8, &mut Vec::new())
            .map(|_| ()),
        Ok(()),
        "the others answer"
    );

    // Too few are left to make it of: that is said, for what is missing.
    town.group.lost = true;
    town.group.revision.0 += 1;
    town.tell_map();
    assert_eq!(read(&town, &mut bytes), Err(Unread::Lost));
    town.group.lost = false;
    town.group.revision.0 += 1;
    town.tell_map();

    town.keep_parts = false;
    town.kept_back.clear();
    let mut out = Effects::default();
    town.now = town.now + std::time::Duration::from_millis(150);
    town.members[3].demand(town.now, 7, 1, &mut out);
    town.carry(out);
    assert!(bytes.is_empty());
    let seq = read(&town, &mut bytes).expect("it was made");
    assert!(bytes == wanted && town.members[3].releases(seq));
    assert_eq!(
        town.members[2].read(town.now, 0, 1, &mut bytes),
        Err(Unread::NotServing)
    );
}

/// Parity reserves what the largest of its data buckets wants, and gives back what none does any more.
#[test]
fn parity_reserves_for_the_largest_data_bucket() {
    let mut town = Town::new(2, 1, 0);
    let want = |town: &mut Town, index: usize, extents: u32| {
        town.members[index].want_extents(extents);
        town.ticks(30);
        let reserved = |m: &staves_group::Member| m.pages().map_or(0, |p| p.reserved());
        (
            reserved(&town.members[2]),
            town.members[index].usable_extents(),
        )
    };
    assert_eq!(want(&mut town, 0, 5), (5, 5));
    assert_eq!(want(&mut town, 1, 2), (5, 2));
    assert_eq!(want(&mut town, 0, 1), (2, 1));
    assert_eq!(want(&mut town, 1, 3), (3, 3));
}

/// Row H2: parity acknowledges what it has received and does its arithmetic later; a part that it gives away
/// meanwhile has all of it.
#[test]
fn nobody_waits_for_parity_arithmetic() {
    let mut town = Town::new(2, 1, 1);
    load(&mut town, 2, 3);
    let at = town.members[2].stream(0).map(|s| (s.applied, s.prefix));
    town.write(PAGE, b"one more");
    town.write(PAGE + 8, b"and one");
    let then = town.members[2].stream(0).map(|s| (s.applied, s.prefix));
    assert_eq!(then.map(|t| t.0), at.map(|t| t.0), "not applied");
    assert_eq!(then.map(|t| t.1), at.map(|t| t.1 + 2), "but received");
    assert_eq!(
        town.members[0].stable(),
        town.members[0].last(),
        "and answered"
    );
    town.ticks(3);
    check_parity(&town, &[0, 1], &[2], 3);
}

/// The widest scheme there is loses as much as it bears, data and parity, and has it all again.
#[test]
fn the_widest_scheme_bears_what_it_says() {
    let mut town = Town::new(32, 8, 8);
    load(&mut town, 32, 2);
    let lost = [0, 7, 8, 30, 31, 32, 35, 39];
    let before: Vec<Vec<u8>> = lost[..5].iter().map(|d| page_of(&town, *d, 1)).collect();
    let joiners: Vec<(usize, u64)> = lost.iter().copied().zip(41..).collect();
    town.exchange(&joiners);
    town.fill();
    let holder = |slot: usize| match lost.iter().position(|l| *l == slot) {
        Some(at) => 40 + at,
        None => slot,
    };
    for (slot, before) in lost[..5].iter().zip(&before) {
        assert!(
            page_of(&town, holder(*slot), 1) == *before,
            "data bucket {slot}"
        );
    }
    let data: Vec<usize> = (0..32).map(holder).collect();
    let parity: Vec<usize> = (32..40).map(holder).collect();
    check_parity(&town, &data, &parity, 2);
}

/// I6: two streams may use the same label. A part that a lagging parity bucket rolls forward has the deltas
/// of both.
#[test]
fn a_part_is_rolled_forward_by_streams_whose_labels_are_equal() {
    let mut town = Town::new(3, 1, 1);
    load(&mut town, 3, 3);
    let wanted = page_of(&town, 0, 1);
    town.keep_parts = true;
    town.exchange(&[(0, 5)]);
    town.ticks(80);
    assert!(town.write_at(1, PAGE, b"one of a stream"));
    assert!(town.write_at(2, PAGE, b"one of another with the same label"));
    assert!(town.write_at(2, PAGE + 100, b"and one after it"));
    let last = |slot: usize| town.members[slot].stream(slot).map(|s| s.prefix);
    assert_eq!(last(1).map(|seq| seq + 1), last(2));
    town.keep_parts = false;
    town.kept_back.clear();
    town.now = town.now + std::time::Duration::from_millis(150);
    // Parity does its arithmetic with a tick, and there is none before the page is asked for.
    let mut out = Effects::default();
    town.members[4].demand(town.now, 1, 1, &mut out);
    town.carry(out);
    assert!(page_of(&town, 4, 1) == wanted);
}

/// I11: memory that one data bucket wished for and parity refused is nothing that an epoch needs.
#[test]
fn a_refused_wish_does_not_keep_an_epoch_shut() {
    let mut town = Town::new(2, 1, 1);
    load(&mut town, 2, 3);
    town.budgets[2].set_limit(2);
    town.members[0].want_extents(5);
    town.ticks(20);
    assert_eq!(town.members[0].usable_extents(), 2, "parity refuses");
    town.exchange(&[(1, 4)]);
    town.ticks(100);
    assert!(town.group.open, "{:?}", town.calls.last());
    town.fill();
    check_parity(&town, &[0, 3], &[2], 3);
}

/// I11: a data bucket that stays needs no memory for what another one holds.
#[test]
fn a_data_bucket_that_stays_reserves_no_more_than_it_has() {
    let mut town = Town::new(2, 1, 1);
    load(&mut town, 2, 3);
    town.budgets[1].set_limit(2);
    town.members[0].want_extents(5);
    town.ticks(20);
    assert_eq!(town.members[0].usable_extents(), 5);
    town.exchange(&[(2, 4)]);
    town.ticks(100);
    assert!(town.group.open, "{:?}", town.calls.last());
    town.fill();
    check_parity(&town, &[0, 1], &[3], 3);
    let usable = |town: &Town| [0, 1].map(|d| town.members[d].usable_extents());
    assert_eq!(usable(&town), [5, 2]);
    // It may want more once there is more.
    town.budgets[1].set_limit(4);
    town.members[1].want_extents(4);
    town.ticks(20);
    assert_eq!(usable(&town), [5, 4]);
}

/// Regression: a twin took as much memory as parity, which has room for the largest data bucket, and a bucket could
/// not move to a node with room for that bucket alone.
#[test]
fn a_twin_needs_no_more_memory_than_its_original() {
    let mut town = Town::new(2, 1, 1);
    load(&mut town, 2, 3);
    town.members[0].want_extents(5);
    town.ticks(20);
    assert_eq!(town.members[0].usable_extents(), 5);
    town.budgets[3].set_limit(2);
    let beside = twin(2, MemberSlot(1));
    town.exchange(&[(beside.index(), 4)]);
    town.ticks(100);
    assert!(town.group.open, "{:?}", town.calls.last());
    town.fill();
    let size = |town: &Town| town.members[3].pages().expect("it has some").reserved();
    assert!(size(&town) <= 2, "{}", size(&town));
    // Nor does it as one that stays.
    let members = town.group.members.clone();
    let stays = |s: usize| members[s].map(|_| MemberSlot(s as u8));
    let kept = (0..members.len()).map(stays).collect();
    town.commit(members.clone(), kept);
    town.ticks(100);
    assert!(town.group.open, "{:?}", town.calls.last());
    assert!(size(&town) <= 2, "{}", size(&town));
    assert!((0..3).all(|page| page_of(&town, 1, page) == page_of(&town, 3, page)));
}

/// Extents that parity has reserved for one data bucket are not granted to another that did not ask: they go when the
/// one wants it no more.
#[test]
fn what_parity_has_for_one_data_bucket_is_not_granted_to_another() {
    let mut town = Town::new(2, 1, 0);
    for (data, extents) in [(0, 5), (1, 2)] {
        town.members[data].want_extents(extents);
        town.ticks(20);
    }
    // The wish is not sent yet, and at parity the other one's may be lowered before it comes.
    town.members[1].want_extents(4);
    assert_eq!(town.members[1].usable_extents(), 2);
    town.members[0].want_extents(1);
    town.ticks(20);
    assert_eq!(town.members[1].usable_extents(), 4);
}

/// I11: a replacement that wants less does not give back the memory that its missing pages need.
#[test]
fn memory_for_missing_pages_is_not_given_back() {
    let mut town = Town::new(2, 1, 1);
    load(&mut town, 2, 70);
    let before = page_of(&town, 0, 69);
    town.keep_parts = true;
    town.exchange(&[(0, 4)]);
    town.ticks(80);
    assert!(town.group.open);
    town.members[3].want_extents(0);
    // Others take what there is.
    let free = town.budgets[3].limit() - town.budgets[3].taken();
    assert!(town.budgets[3].take(free));
    town.keep_parts = false;
    town.fill();
    assert!(page_of(&town, 3, 69) == before);
}

/// Row X5: a bucket moves to another node while the one that has it serves on. Its twin takes the pages as they
/// are, from that one alone, and all that is written meanwhile; then they change places, and the old one goes.
fn moves(slot: u8) {
    let (m, k) = (2u8, 2u8);
    let mut town = Town::new(m, k, 1);
    load(&mut town, 2, 20);
    let (from, to, beside) = (usize::from(slot), 4, twin(m, MemberSlot(slot)));
    town.keep_parts = true;
    town.exchange(&[(beside.index(), 5)]);
    assert!(town.members[from].is_open(), "it serves on");
    assert_eq!(town.group.tolerates(|_| true), Some(2), "and counts");
    assert!(town.write_at(0, 3 * PAGE, &[7; 64]) && town.write_at(1, 4 * PAGE, &[8; 64]));
    town.ticks(3);
    town.keep_parts = false;
    town.fill();
    let kept: Vec<usize> = (0..3).filter(|s| town.members[to].keeps(*s)).collect();
    let carried = if slot < m { vec![from] } else { vec![0, 1] };
    assert_eq!(kept, carried, "of other streams it knows nothing newer");
    assert_eq!(town.given.keys().max(), Some(&NodeId(from as u64 + 1)));
    assert_eq!(town.group.tolerates(|_| true), Some(2), "two are one");
    assert!(town.write_at(0, 5 * PAGE, &[9; 64]) && town.write_at(1, 5 * PAGE, &[9; 64]));

    // They change places; a data bucket that was left out would have to be waited for.
    let mut members = town.group.members.clone();
    let mut kept: Vec<_> = (0..members.len())
        .map(|s| members[s].map(|_| MemberSlot(s as u8)))
        .collect();
    members.swap(from, beside.index());
    kept.swap(from, beside.index());
    let now = town.now;
    town.commit(members.clone(), kept);
    town.ticks(4);
    assert!(town.group.open, "nobody waits for a lease to run out");
    assert!(town.now.since(now) < crate::town::options().lease);
    assert_eq!(town.members[to].serving(), slot < m);
    assert!(!town.members[from].serving());

    // What it made before and what comes now is in both, and in parity.
    let data = |s: usize| if s == from { to } else { s };
    assert!(town.write_at(data(0), 6 * PAGE, &[5; 64]) && town.write_at(data(1), 6, &[6; 64]));
    town.ticks(30);
    assert!((0..20).all(|page| page_of(&town, from, page) == page_of(&town, to, page)));
    check_parity(&town, &[data(0), data(1)], &[data(2), data(3)], 20);

    let members = members[..4].to_vec();
    let kept = (0..4).map(|s| Some(MemberSlot(s))).collect();
    town.commit(members, kept);
    town.ticks(60);
    assert!(town.group.open && town.members[from].slot().is_none());
    assert!(town.write_at(data(0), 7 * PAGE, &[4; 64]) && town.write_at(data(1), 7, &[3; 64]));
    town.ticks(30);
    check_parity(&town, &[data(0), data(1)], &[data(2), data(3)], 20);
}

#[test]
fn a_data_bucket_moves_by_a_twin() {
    moves(1);
}

#[test]
fn a_parity_bucket_moves_by_a_twin() {
    moves(2);
}

/// Row H2: what one page is hit by between two ticks is added up and multiplied once; the bytes are the same.
#[test]
fn a_page_that_is_written_over_and_over_is_multiplied_seldom() {
    let mut town = Town::new(3, 2, 0);
    load(&mut town, 3, 2);
    let before = [3, 4].map(|p| town.members[p].arithmetic());
    for i in 0..120u64 {
        let data = (i % 3) as usize;
        let at = PAGE + 100 + i % 5 * 8;
        assert!(town.write_at(data, at, &(i + 1).to_le_bytes()));
        if i % 30 == 29 {
            town.ticks(3);
        }
    }
    town.ticks(10);
    check_parity(&town, &[0, 1, 2], &[3, 4], 2);
    for (p, before) in [3, 4].into_iter().zip(before) {
        let now = town.members[p].arithmetic();
        let parts = now.parts - before.parts;
        let multiplications = now.multiplications - before.multiplications;
        assert_eq!(parts, 120, "each delta was received");
        assert!(
            (12..=40).contains(&multiplications),
            "{multiplications} for {parts} deltas, ten of each data bucket between two ticks"
        );
    }
}

/// Parts that lie apart in a page stay apart: nothing between them is multiplied, and nothing is lost.
#[test]
fn parts_that_lie_apart_are_multiplied_apart() {
    let mut town = Town::new(2, 2, 0);
    load(&mut town, 2, 2);
    let before = town.members[2].arithmetic();
    for at in [0, 1000, 2000, PAGE - 4] {
        assert!(town.write_at(0, at, b"over a page's end"));
    }
    town.ticks(10);
    check_parity(&town, &[0, 1], &[2, 3], 2);
    let now = town.members[2].arithmetic();
    let parts = now.parts - before.parts;
    assert_eq!(
        (parts, now.multiplications - before.multiplications),
        (5, 5)
    );
}

/// Regression: a data bucket wished for less while parity had deltas to apply, was told that it still had as much as
/// before, and took that for the answer when it wished for more again; parity had given it back by then.
#[test]
fn what_is_held_at_a_lower_wish_is_not_granted_to_a_higher_one() {
    let mut town = Town::new(2, 1, 0);
    let wish = |town: &mut Town, extents| {
        town.members[0].want_extents(extents);
        let mut out = Effects::default();
        town.members[0].flush(town.now, &mut out);
        town.carry(out);
    };
    wish(&mut town, 5);
    town.ticks(2);
    assert_eq!(town.members[0].usable_extents(), 5);
    assert!(town.write_at(0, 0, b"what parity applies with its next tick"));
    wish(&mut town, 2);
    town.now = town.now + std::time::Duration::from_millis(1);
    assert!(town.write_at(0, 8, b"and this"));
    assert_eq!(town.members[2].pages().expect("parity").reserved(), 5);
    town.silent = Some(NodeId(1));
    town.ticks(30);
    assert_eq!(town.members[2].pages().expect("parity").reserved(), 2);
    wish(&mut town, 5);
    assert_eq!(town.members[0].usable_extents(), 2, "the answer is lost");
    town.silent = None;
    town.ticks(30);
    assert_eq!(town.members[0].usable_extents(), 5);
}

/// A data bucket that changes its wish twice in one moment: the messages come in the other order, and what was
/// granted for the second is kept (seed 5497 of the wide worlds).
#[test]
fn the_larger_of_two_wishes_of_one_moment_counts() {
    let mut town = Town::new(2, 1, 0);
    town.ticks(10);
    let now = town.now;
    let wish = |town: &mut Town, extents: u32| {
        let mut out = Effects::default();
        town.members[0].want_extents(extents);
        town.members[0].flush(now, &mut out);
        out
    };
    let (first, second) = (wish(&mut town, 2), wish(&mut town, 5));
    town.carry(second);
    assert_eq!(town.members[0].usable_extents(), 5);
    town.carry(first);
    let reserved = town.members[2].pages().map(|p| p.reserved());
    assert_eq!(reserved, Some(5), "what is granted stays");
    // The next message says what counts.
    town.members[0].want_extents(3);
    town.ticks(20);
    let reserved = town.members[2].pages().map(|p| p.reserved());
    assert_eq!((reserved, town.members[0].usable_extents()), (Some(3), 3));
}
