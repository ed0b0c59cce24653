//! Tests that count every frame, and hold to each pin: whatever is put, raced for, evicted and limited.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use staves_hunts::{Hunt, hunt};
use staves_model::mutant::Mutant;

use super::super::*;
use super::{BLOCK, key};

/// Each frame that was ever used is of one block, or free, or the kernel's: once. And the counts say so.
fn audit(blocks: &Blocks) {
    let inner = blocks.inner.lock();
    let mut found: BTreeMap<u32, u32> = BTreeMap::new();
    let mut named = 0;
    for index in 0..blocks.mapping.layout().entries() {
        let entry = blocks.mapping.entry(index);
        let parts = match blocks.is_taken(index) {
            true => entry.parts.load(Relaxed),
            false => 0,
        };
        for part in (0..BLOCK_PARTS).filter(|part| parts & 1 << part != 0) {
            let stored = blocks.mapping.part(entry, entry.key(), part);
            let frame = stored.expect("an entry of ours").frame;
            *found.entry(frame).or_default() += 1;
            named += 1;
        }
    }
    for frame in inner.free.iter().chain(&inner.punched) {
        *found.entry(*frame).or_default() += 1;
    }
    assert_eq!(inner.taken, named, "frames in use are those of blocks");
    let all = (0..inner.untouched).map(|frame| (frame, 1));
    assert!(found.into_iter().eq(all), "each frame is somewhere once");
    let (spare, last) = inner.policy.frames();
    assert_eq!(spare + last, named, "the policy counts the same");
}

fn put_part(blocks: &Blocks, block: u32, block_bytes: usize, part: usize, moment: u32) {
    let bytes = [block as u8; PART_BYTES];
    let len = (block_bytes - part * PART_BYTES).min(PART_BYTES);
    // Where all is pinned it is refused, and costs nothing.
    let _ = blocks.put(key(1, block), block_bytes, part, &bytes[..len], moment);
}

/// A fixed series of chance.
struct Lot(u32);

impl Lot {
    fn below(&mut self, most: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) % most
    }
}

#[test]
fn no_frame_is_lost_or_given_twice_whatever_happens() {
    let blocks = Blocks::new(6 * BLOCK, 8).unwrap();
    let mut lot = Lot(7);
    for moment in 0..6000 {
        let (block, bucket) = (lot.below(40), lot.below(8));
        match lot.below(24) {
            0 => blocks.drop_bucket(bucket),
            1 => {
                let _ = blocks.set_limit(u64::from(lot.below(7)) * BLOCK);
            }
            2 => drop(blocks.pin(key(1, block), lot.below(4) == 0)),
            3 => blocks.set_copies(bucket, [Copies::Spare, Copies::Last][lot.below(2) as usize]),
            // Of a version of another size, under the same key: it is refused late.
            4 => put_part(&blocks, block, 3 * PART_BYTES, 2, moment),
            _ => put_part(&blocks, block, BLOCK_BYTES, lot.below(32) as usize, moment),
        }
        audit(&blocks);
    }
    blocks.close();
    audit(&blocks);
    assert_eq!(blocks.figures().blocks, 0);
}

/// Two that fetched the same bring it at the same time.
#[test]
fn no_frame_is_lost_where_two_bring_the_same() {
    let blocks = Blocks::new(6 * BLOCK, 8).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for round in 0..600u32 {
                    put_part(&blocks, round % 40, BLOCK_BYTES, round as usize % 32, round);
                }
            });
        }
    });
    audit(&blocks);
}

/// Blocks so short that their places in the table run out before the frames do, and others that fill the frames.
#[test]
fn pinned_blocks_stay_while_others_come_and_go() {
    for block_bytes in [100, BLOCK_BYTES] {
        let blocks = Blocks::new(16 * BLOCK, 8).unwrap();
        let parts = block_bytes.div_ceil(PART_BYTES);
        let bring = |block: u32| {
            (0..parts).for_each(|part| put_part(&blocks, block, block_bytes, part, block));
        };
        (0..8).for_each(bring);
        for block in 0..8 {
            assert!(blocks.pin(key(1, block), true), "it is there");
        }
        (8..2000).for_each(bring);
        let evicted = blocks.figures().evicted;
        assert!(evicted > 500, "many came and went: {evicted}");
        for block in 0..8 {
            let there = blocks.parts(key(1, block)).count_ones() as usize;
            assert_eq!(there, parts, "pinned block {block} of {block_bytes} bytes");
        }
        audit(&blocks);
    }
}

#[test]
fn planted_bugs_of_the_blocks_are_seen() {
    let of = |mutant, test, shows| Hunt {
        mutant,
        test,
        shows,
    };
    hunt(&[
        of(
            Mutant::PinnedGoesOnConflict,
            "blocks::tests::accounts::pinned_blocks_stay_while_others_come_and_go",
            "pinned block",
        ),
        of(
            Mutant::PinnedGoesInTurn,
            "blocks::tests::accounts::pinned_blocks_stay_while_others_come_and_go",
            "pinned block",
        ),
        of(
            Mutant::FrameLeaked,
            "blocks::tests::accounts::no_frame_is_lost_or_given_twice_whatever_happens",
            "frames in use are those of blocks",
        ),
        of(
            Mutant::ChangeNotNoted,
            "blocks::changes::tests::who_asks_for_changes_alone_knows_all_that_is_there",
            "assertion `left == right` failed",
        ),
        of(
            Mutant::ChangesNumberedLate,
            "blocks::changes::tests::nothing_is_missed_of_what_changes_while_it_is_told",
            "it is not known",
        ),
    ]);
}
