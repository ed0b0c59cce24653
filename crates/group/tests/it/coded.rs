//! Groups with m > 1: one pass for all that was lost, k raised while it serves, freed ranks, and what a reader
//! is told meanwhile.

use bytes::Bytes;
use staves_erasure::Code;
use staves_group::{Effects, ReadError};
use staves_model::{MemberSlot, NodeId, PAGE_BYTES, twin};
use staves_store::EXTENT_BYTES;
use staves_wire::group::{Run, RunKind};

use crate::test_group::TestGroup;

const PAGE: u64 = PAGE_BYTES as u64;

/// Writes `pages` pages at each of m data buckets, each with bytes of its own; at stable when done.
pub fn load(cluster: &mut TestGroup, m: usize, pages: u64) {
    for data in 0..m {
        cluster.write_at(data, 0, b"");
        for page in 0..pages {
            let bytes: Vec<u8> = (0..PAGE)
                .map(|i| (i * 7 + page * 31 + data as u64) as u8 | 1)
                .collect();
            let at = page * PAGE + 100;
            assert!(
                cluster.write_at(data, at, &bytes[..PAGE_BYTES - 200]),
                "page {page}"
            );
        }
    }
    cluster.ticks(30);
}

fn page_of(cluster: &TestGroup, index: usize, page: u32) -> Vec<u8> {
    let pages = cluster.members[index].pages().expect("a member");
    pages
        .page(page)
        .map_or_else(|| vec![0; PAGE_BYTES], <[u8]>::to_vec)
}

/// Compares the parity buckets on these nodes (by slot from m on) with the code of the data.
pub fn check_parity(cluster: &TestGroup, data: &[usize], parity: &[usize], pages: u64) {
    let code = Code::new(data.len(), parity.len()).expect("a small code");
    for page in 0..pages as u32 {
        let bytes: Vec<Vec<u8>> = data.iter().map(|d| page_of(cluster, *d, page)).collect();
        let sources: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        let mut made = vec![vec![0; PAGE_BYTES]; parity.len()];
        let mut outputs: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(&sources, &mut outputs);
        for (p, made) in parity.iter().zip(&made) {
            assert!(
                page_of(cluster, *p, page) == *made,
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
    let mut cluster = TestGroup::new(4, 0, 3);
    load(&mut cluster, 4, 50);
    for data in 0..4 {
        let stream = cluster.members[data].stream(data).expect("a data bucket");
        assert_eq!((stream.log.bytes(), stream.stable), (0, stream.prefix));
    }
    cluster.exchange(&[(4, 5), (5, 6), (6, 7)]);
    cluster.fill();
    check_parity(&cluster, &[0, 1, 2, 3], &[4, 5, 6], 50);
    for data in 1..=4 {
        assert_eq!(
            cluster.given[&NodeId(data)],
            50,
            "one pass: each page once, to one joiner"
        );
    }
    assert_eq!(
        cluster.given[&NodeId(5)],
        2 * 50,
        "which makes those of the two others"
    );
    assert!(!cluster.given.contains_key(&NodeId(6)) && !cluster.given.contains_key(&NodeId(7)));

    // What is written now reaches all of them as deltas.
    load(&mut cluster, 4, 8);
    check_parity(&cluster, &[0, 1, 2, 3], &[4, 5, 6], 50);
}

/// Row H5: a data bucket and a parity bucket lost at once are made in one pass over m others.
#[test]
fn two_lost_members_are_made_in_one_pass() {
    let mut cluster = TestGroup::new(3, 2, 2);
    load(&mut cluster, 3, 20);
    let before: Vec<Vec<u8>> = (0..20).map(|page| page_of(&cluster, 1, page)).collect();
    cluster.exchange(&[(1, 6), (3, 7)]);
    cluster.fill();
    for (page, bytes) in before.iter().enumerate() {
        assert!(
            page_of(&cluster, 5, page as u32) == *bytes,
            "page {page} of the data bucket"
        );
    }
    check_parity(&cluster, &[0, 5, 2], &[6, 4], 20);
    assert_eq!(
        cluster.given.values().sum::<usize>(),
        (3 + 1) * 20,
        "{:?}",
        cluster.given
    );
}

/// A freed page counts as zero: an extent that is free at all data buckets has no memory at parity.
#[test]
fn a_rank_that_is_free_everywhere_has_no_memory() {
    let mut cluster = TestGroup::new(2, 2, 0);
    load(&mut cluster, 2, 10);
    let used = |cluster: &TestGroup, index: usize| cluster.members[index].pages().map(|p| p.used());
    let free = |cluster: &mut TestGroup, index: usize| {
        let run = Run {
            offset: 0,
            len: EXTENT_BYTES as u32,
            kind: RunKind::Zero,
        };
        let mut out = Effects::default();
        cluster.members[index].update(None, Bytes::new(), vec![run], Bytes::new());
        cluster.members[index].flush(cluster.now, &mut out);
        cluster.carry(out);
        cluster.ticks(20);
    };
    free(&mut cluster, 0);
    assert_eq!((used(&cluster, 0), used(&cluster, 1)), (Some(0), Some(1)));
    assert_eq!(
        (used(&cluster, 2), used(&cluster, 3)),
        (Some(1), Some(1)),
        "the other's is coded"
    );
    check_parity(&cluster, &[0, 1], &[2, 3], 10);
    free(&mut cluster, 1);
    for index in 0..4 {
        assert_eq!(used(&cluster, index), Some(0), "node {}", index + 1);
    }
}

/// Row H6: the replacement of a data bucket answers at once, but for pages that are not made yet; it says
/// which, asks for that one at once, and never guesses.
#[test]
fn a_reader_is_told_what_is_missing_and_asks_for_it() {
    let mut cluster = TestGroup::new(2, 1, 1);
    load(&mut cluster, 2, 10);
    let wanted = page_of(&cluster, 0, 7);
    cluster.keep_parts = true;
    cluster.exchange(&[(0, 4)]);
    // What parity promised to the one that is gone must run out first.
    cluster.ticks(80);
    let mut bytes = Vec::new();
    let read = |cluster: &TestGroup, bytes: &mut Vec<u8>| {
        cluster.members[3].read(cluster.now, 7 * PAGE, PAGE_BYTES as u32, bytes)
    };
    let missing = Err(ReadError::Missing { page: 7 });
    assert_eq!(read(&cluster, &mut bytes), missing);
    assert_eq!(read(&cluster, &mut bytes), missing);
    let run = Run {
        offset: 7 * PAGE + 8,
        len: 8,
        kind: RunKind::Bytes,
    };
    assert_eq!(
        cluster.members[3].absent_in(&[run]),
        Some(7),
        "a write waits too"
    );
    let mut out = Effects::default();
    cluster.members[1].seek_promises(cluster.now, &mut out);
    cluster.carry(out);
    assert_eq!(
        cluster.members[1]
            .read(cluster.now, 7 * PAGE, 8, &mut Vec::new())
            .map(|_| ()),
        Ok(()),
        "the others answer"
    );

    // Too few are left to make it of: that is said, for what is missing.
    cluster.group.lost = true;
    cluster.group.revision.0 += 1;
    cluster.tell_map();
    assert_eq!(read(&cluster, &mut bytes), Err(ReadError::Lost));
    cluster.group.lost = false;
    cluster.group.revision.0 += 1;
    cluster.tell_map();

    cluster.keep_parts = false;
    cluster.kept_back.clear();
    let mut out = Effects::default();
    cluster.now = cluster.now + std::time::Duration::from_millis(150);
    cluster.members[3].demand(cluster.now, 7, 1, &mut out);
    cluster.members[3].seek_promises(cluster.now, &mut out);
    cluster.carry(out);
    assert!(bytes.is_empty());
    let seq = read(&cluster, &mut bytes).expect("it was made");
    assert!(bytes == wanted && cluster.members[3].releases(seq));
    assert_eq!(
        cluster.members[2].read(cluster.now, 0, 1, &mut bytes),
        Err(ReadError::NotServing)
    );
}

/// Parity reserves what the largest of its data buckets wants, and gives back what none does any more.
#[test]
fn parity_reserves_for_the_largest_data_bucket() {
    let mut cluster = TestGroup::new(2, 1, 0);
    let want = |cluster: &mut TestGroup, index: usize, extents: u32| {
        cluster.members[index].want_extents(extents);
        cluster.ticks(30);
        let reserved = |m: &staves_group::Member| m.pages().map_or(0, |p| p.reserved());
        (
            reserved(&cluster.members[2]),
            cluster.members[index].usable_extents(),
        )
    };
    assert_eq!(want(&mut cluster, 0, 5), (5, 5));
    assert_eq!(want(&mut cluster, 1, 2), (5, 2));
    assert_eq!(want(&mut cluster, 0, 1), (2, 1));
    assert_eq!(want(&mut cluster, 1, 3), (3, 3));
}

/// Row H2: parity acknowledges what it has received and does its arithmetic later; a part that it gives away
/// meanwhile has all of it.
#[test]
fn nobody_waits_for_parity_arithmetic() {
    let mut cluster = TestGroup::new(2, 1, 1);
    load(&mut cluster, 2, 3);
    let at = cluster.members[2].stream(0).map(|s| (s.applied, s.prefix));
    cluster.write(PAGE, b"one more");
    cluster.write(PAGE + 8, b"and one");
    let then = cluster.members[2].stream(0).map(|s| (s.applied, s.prefix));
    assert_eq!(then.map(|t| t.0), at.map(|t| t.0), "not applied");
    assert_eq!(then.map(|t| t.1), at.map(|t| t.1 + 2), "but received");
    assert_eq!(
        cluster.members[0].stable(),
        cluster.members[0].last(),
        "and answered"
    );
    cluster.ticks(3);
    check_parity(&cluster, &[0, 1], &[2], 3);
}

/// The widest scheme there is loses as much as it bears, data and parity, and has it all again.
#[test]
fn the_widest_scheme_bears_what_it_says() {
    let mut cluster = TestGroup::new(32, 8, 8);
    load(&mut cluster, 32, 2);
    let lost = [0, 7, 8, 30, 31, 32, 35, 39];
    let before: Vec<Vec<u8>> = lost[..5].iter().map(|d| page_of(&cluster, *d, 1)).collect();
    let joiners: Vec<(usize, u64)> = lost.iter().copied().zip(41..).collect();
    cluster.exchange(&joiners);
    cluster.fill();
    let holder = |slot: usize| match lost.iter().position(|l| *l == slot) {
        Some(at) => 40 + at,
        None => slot,
    };
    for (slot, before) in lost[..5].iter().zip(&before) {
        assert!(
            page_of(&cluster, holder(*slot), 1) == *before,
            "data bucket {slot}"
        );
    }
    let data: Vec<usize> = (0..32).map(holder).collect();
    let parity: Vec<usize> = (32..40).map(holder).collect();
    check_parity(&cluster, &data, &parity, 2);
}

/// I6: two streams may use the same label. A part that a lagging parity bucket rolls forward has the deltas
/// of both.
#[test]
fn a_part_is_rolled_forward_by_streams_whose_labels_are_equal() {
    let mut cluster = TestGroup::new(3, 1, 1);
    load(&mut cluster, 3, 3);
    let wanted = page_of(&cluster, 0, 1);
    cluster.keep_parts = true;
    cluster.exchange(&[(0, 5)]);
    cluster.ticks(80);
    assert!(cluster.write_at(1, PAGE, b"one of a stream"));
    assert!(cluster.write_at(2, PAGE, b"one of another with the same label"));
    assert!(cluster.write_at(2, PAGE + 100, b"and one after it"));
    let last = |slot: usize| cluster.members[slot].stream(slot).map(|s| s.prefix);
    assert_eq!(last(1).map(|seq| seq + 1), last(2));
    cluster.keep_parts = false;
    cluster.kept_back.clear();
    cluster.now = cluster.now + std::time::Duration::from_millis(150);
    // Parity does its arithmetic with a tick, and there is none before the page is asked for.
    let mut out = Effects::default();
    cluster.members[4].demand(cluster.now, 1, 1, &mut out);
    cluster.carry(out);
    assert!(page_of(&cluster, 4, 1) == wanted);
}

/// I11: memory that one data bucket wished for and parity refused is nothing that an epoch needs.
#[test]
fn a_refused_wish_does_not_keep_an_epoch_shut() {
    let mut cluster = TestGroup::new(2, 1, 1);
    load(&mut cluster, 2, 3);
    cluster.budgets[2].set_limit(2);
    cluster.members[0].want_extents(5);
    cluster.ticks(20);
    assert_eq!(cluster.members[0].usable_extents(), 2, "parity refuses");
    cluster.exchange(&[(1, 4)]);
    cluster.ticks(100);
    assert!(cluster.group.open, "{:?}", cluster.calls.last());
    cluster.fill();
    check_parity(&cluster, &[0, 3], &[2], 3);
}

/// I11: a data bucket that stays needs no memory for what another one holds.
#[test]
fn a_data_bucket_that_stays_reserves_no_more_than_it_has() {
    let mut cluster = TestGroup::new(2, 1, 1);
    load(&mut cluster, 2, 3);
    cluster.budgets[1].set_limit(2);
    cluster.members[0].want_extents(5);
    cluster.ticks(20);
    assert_eq!(cluster.members[0].usable_extents(), 5);
    cluster.exchange(&[(2, 4)]);
    cluster.ticks(100);
    assert!(cluster.group.open, "{:?}", cluster.calls.last());
    cluster.fill();
    check_parity(&cluster, &[0, 1], &[3], 3);
    let usable = |cluster: &TestGroup| [0, 1].map(|d| cluster.members[d].usable_extents());
    assert_eq!(usable(&cluster), [5, 2]);
    // It may want more once there is more.
    cluster.budgets[1].set_limit(4);
    cluster.members[1].want_extents(4);
    cluster.ticks(20);
    assert_eq!(usable(&cluster), [5, 4]);
}

/// Regression: a twin took as much memory as parity, which has room for the largest data bucket, and a bucket could
/// not move to a node with room for that bucket alone.
#[test]
fn a_twin_needs_no_more_memory_than_its_original() {
    let mut cluster = TestGroup::new(2, 1, 1);
    load(&mut cluster, 2, 3);
    cluster.members[0].want_extents(5);
    cluster.ticks(20);
    assert_eq!(cluster.members[0].usable_extents(), 5);
    cluster.budgets[3].set_limit(2);
    let beside = twin(2, MemberSlot(1));
    cluster.exchange(&[(beside.index(), 4)]);
    cluster.ticks(100);
    assert!(cluster.group.open, "{:?}", cluster.calls.last());
    cluster.fill();
    let size = |cluster: &TestGroup| cluster.members[3].pages().expect("it has some").reserved();
    assert!(size(&cluster) <= 2, "{}", size(&cluster));
    // Nor does it as one that stays.
    let members = cluster.group.members.clone();
    let stays = |s: usize| members[s].map(|_| MemberSlot(s as u8));
    let kept = (0..members.len()).map(stays).collect();
    cluster.commit(members.clone(), kept);
    cluster.ticks(100);
    assert!(cluster.group.open, "{:?}", cluster.calls.last());
    assert!(size(&cluster) <= 2, "{}", size(&cluster));
    assert!((0..3).all(|page| page_of(&cluster, 1, page) == page_of(&cluster, 3, page)));
}

/// Extents that parity has reserved for one data bucket are not granted to another that did not ask: they go when the
/// one wants it no more.
#[test]
fn what_parity_has_for_one_data_bucket_is_not_granted_to_another() {
    let mut cluster = TestGroup::new(2, 1, 0);
    for (data, extents) in [(0, 5), (1, 2)] {
        cluster.members[data].want_extents(extents);
        cluster.ticks(20);
    }
    // The wish is not sent yet, and at parity the other one's may be lowered before it comes.
    cluster.members[1].want_extents(4);
    assert_eq!(cluster.members[1].usable_extents(), 2);
    cluster.members[0].want_extents(1);
    cluster.ticks(20);
    assert_eq!(cluster.members[1].usable_extents(), 4);
}

/// I11: a replacement that wants less does not give back the memory that its missing pages need.
#[test]
fn memory_for_missing_pages_is_not_given_back() {
    let mut cluster = TestGroup::new(2, 1, 1);
    load(&mut cluster, 2, 70);
    let before = page_of(&cluster, 0, 69);
    cluster.keep_parts = true;
    cluster.exchange(&[(0, 4)]);
    cluster.ticks(80);
    assert!(cluster.group.open);
    cluster.members[3].want_extents(0);
    // Others take what there is.
    let free = cluster.budgets[3].limit() - cluster.budgets[3].taken();
    assert!(cluster.budgets[3].take(free));
    cluster.keep_parts = false;
    cluster.fill();
    assert!(page_of(&cluster, 3, 69) == before);
}

/// Row X5: a bucket moves to another node while the one that has it serves on. Its twin takes the pages as they
/// are, from that one alone, and all that is written meanwhile; then they change places, and the old one goes.
fn moves(slot: u8) {
    let (m, k) = (2u8, 2u8);
    let mut cluster = TestGroup::new(m, k, 1);
    load(&mut cluster, 2, 20);
    let (from, to, beside) = (usize::from(slot), 4, twin(m, MemberSlot(slot)));
    cluster.keep_parts = true;
    cluster.exchange(&[(beside.index(), 5)]);
    assert!(cluster.members[from].is_open(), "it serves on");
    assert_eq!(cluster.group.tolerates(|_| true), Some(2), "and counts");
    assert!(cluster.write_at(0, 3 * PAGE, &[7; 64]) && cluster.write_at(1, 4 * PAGE, &[8; 64]));
    cluster.ticks(3);
    cluster.keep_parts = false;
    cluster.fill();
    let kept: Vec<usize> = (0..3).filter(|s| cluster.members[to].keeps(*s)).collect();
    let carried = if slot < m { vec![from] } else { vec![0, 1] };
    assert_eq!(kept, carried, "of other streams it knows nothing newer");
    assert_eq!(cluster.given.keys().max(), Some(&NodeId(from as u64 + 1)));
    assert_eq!(cluster.group.tolerates(|_| true), Some(2), "two are one");
    assert!(cluster.write_at(0, 5 * PAGE, &[9; 64]) && cluster.write_at(1, 5 * PAGE, &[9; 64]));

    // They change places; a data bucket that was left out would have to be waited for.
    let mut members = cluster.group.members.clone();
    let mut kept: Vec<_> = (0..members.len())
        .map(|s| members[s].map(|_| MemberSlot(s as u8)))
        .collect();
    members.swap(from, beside.index());
    kept.swap(from, beside.index());
    let now = cluster.now;
    cluster.commit(members.clone(), kept);
    cluster.ticks(4);
    assert!(cluster.group.open, "nobody waits for a lease to run out");
    assert!(cluster.now.since(now) < crate::test_group::options().lease);
    assert_eq!(cluster.members[to].serving(), slot < m);
    assert!(!cluster.members[from].serving());

    // What it made before and what comes now is in both, and in parity.
    let data = |s: usize| if s == from { to } else { s };
    assert!(
        cluster.write_at(data(0), 6 * PAGE, &[5; 64]) && cluster.write_at(data(1), 6, &[6; 64])
    );
    cluster.ticks(30);
    assert!((0..20).all(|page| page_of(&cluster, from, page) == page_of(&cluster, to, page)));
    check_parity(&cluster, &[data(0), data(1)], &[data(2), data(3)], 20);

    let members = members[..4].to_vec();
    let kept = (0..4).map(|s| Some(MemberSlot(s))).collect();
    cluster.commit(members, kept);
    cluster.ticks(60);
    assert!(cluster.group.open && cluster.members[from].slot().is_none());
    assert!(
        cluster.write_at(data(0), 7 * PAGE, &[4; 64]) && cluster.write_at(data(1), 7, &[3; 64])
    );
    cluster.ticks(30);
    check_parity(&cluster, &[data(0), data(1)], &[data(2), data(3)], 20);
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
    let mut cluster = TestGroup::new(3, 2, 0);
    load(&mut cluster, 3, 2);
    let before = [3, 4].map(|p| cluster.members[p].arithmetic());
    for i in 0..120u64 {
        let data = (i % 3) as usize;
        let at = PAGE + 100 + i % 5 * 8;
        assert!(cluster.write_at(data, at, &(i + 1).to_le_bytes()));
        if i % 30 == 29 {
            cluster.ticks(3);
        }
    }
    cluster.ticks(10);
    check_parity(&cluster, &[0, 1, 2], &[3, 4], 2);
    for (p, before) in [3, 4].into_iter().zip(before) {
        let now = cluster.members[p].arithmetic();
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
    let mut cluster = TestGroup::new(2, 2, 0);
    load(&mut cluster, 2, 2);
    let before = cluster.members[2].arithmetic();
    for at in [0, 1000, 2000, PAGE - 4] {
        assert!(cluster.write_at(0, at, b"over a page's end"));
    }
    cluster.ticks(10);
    check_parity(&cluster, &[0, 1], &[2, 3], 2);
    let now = cluster.members[2].arithmetic();
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
    let mut cluster = TestGroup::new(2, 1, 0);
    let wish = |cluster: &mut TestGroup, extents| {
        cluster.members[0].want_extents(extents);
        let mut out = Effects::default();
        cluster.members[0].flush(cluster.now, &mut out);
        cluster.carry(out);
    };
    wish(&mut cluster, 5);
    cluster.ticks(2);
    assert_eq!(cluster.members[0].usable_extents(), 5);
    assert!(cluster.write_at(0, 0, b"what parity applies with its next tick"));
    wish(&mut cluster, 2);
    cluster.now = cluster.now + std::time::Duration::from_millis(1);
    assert!(cluster.write_at(0, 8, b"and this"));
    assert_eq!(cluster.members[2].pages().expect("parity").reserved(), 5);
    cluster.silent = Some(NodeId(1));
    cluster.ticks(30);
    assert_eq!(cluster.members[2].pages().expect("parity").reserved(), 2);
    wish(&mut cluster, 5);
    assert_eq!(cluster.members[0].usable_extents(), 2, "the answer is lost");
    cluster.silent = None;
    cluster.ticks(30);
    assert_eq!(cluster.members[0].usable_extents(), 5);
}

/// A data bucket that changes its wish twice in one moment: the messages come in the other order, and what was
/// granted for the second is kept (seed 5497 of the wide worlds).
#[test]
fn the_larger_of_two_wishes_of_one_moment_counts() {
    let mut cluster = TestGroup::new(2, 1, 0);
    cluster.ticks(10);
    let now = cluster.now;
    let wish = |cluster: &mut TestGroup, extents: u32| {
        let mut out = Effects::default();
        cluster.members[0].want_extents(extents);
        cluster.members[0].flush(now, &mut out);
        out
    };
    let (first, second) = (wish(&mut cluster, 2), wish(&mut cluster, 5));
    cluster.carry(second);
    assert_eq!(cluster.members[0].usable_extents(), 5);
    cluster.carry(first);
    let reserved = cluster.members[2].pages().map(|p| p.reserved());
    assert_eq!(reserved, Some(5), "what is granted stays");
    // The next message says what counts.
    cluster.members[0].want_extents(3);
    cluster.ticks(20);
    let reserved = cluster.members[2].pages().map(|p| p.reserved());
    assert_eq!(
        (reserved, cluster.members[0].usable_extents()),
        (Some(3), 3)
    );
}
