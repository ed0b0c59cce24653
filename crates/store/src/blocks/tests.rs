//! Blocks under reads, evictions and damage.

mod accounts;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;

pub(super) fn key(file: u64, block: u32) -> BlockKey {
    BlockKey {
        file: [file, !file],
        block,
    }
}

/// The byte of a block at an offset: other for each block, and for each offset.
fn byte(key: BlockKey, at: usize) -> u8 {
    let x = key.file[0] << 40 ^ u64::from(key.block) << 20 ^ at as u64;
    let x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u8
}

fn part_of(key: BlockKey, block_bytes: usize, part: usize) -> Vec<u8> {
    let start = part * PART_BYTES;
    let end = (start + PART_BYTES).min(block_bytes);
    (start..end).map(|at| byte(key, at)).collect()
}

fn put(blocks: &Blocks, key: BlockKey, block_bytes: usize, part: usize, copies: Copies) {
    let bytes = part_of(key, block_bytes, part);
    blocks.set_copies(blocks.bucket_of(key), copies);
    blocks.put(key, block_bytes, part, &bytes, 0).unwrap();
}

pub(super) fn put_whole(blocks: &Blocks, key: BlockKey, copies: Copies) {
    for part in 0..BLOCK_PARTS {
        put(blocks, key, BLOCK_BYTES, part, copies);
    }
}

fn pin_where(blocks: &Blocks, on: bool, which: impl Fn(BlockKey) -> bool + Copy) -> usize {
    let buckets = 0..blocks.buckets();
    buckets.map(|b| blocks.pin_where(b, on, which)).sum()
}

/// The memory as whoever may write to it sees it.
fn raw(blocks: &Blocks) -> File {
    let path = format!("/proc/self/fd/{}", blocks.mapping().memfd().as_raw_fd());
    File::options().read(true).write(true).open(path).unwrap()
}

pub(super) const BLOCK: u64 = BLOCK_BYTES as u64;
/// So many that few files of a test share one.
const BUCKETS: u32 = 4096;

#[test]
fn what_is_read_is_what_was_put_at_any_offset() {
    let blocks = Blocks::new(4 * BLOCK, BUCKETS).unwrap();
    let other = BlockMapping::open(blocks.descriptor().unwrap()).unwrap();
    let short = 5 * PART_BYTES + 1234;
    let k = key(1, 7);
    for part in [0, 1, 2, 4, 5] {
        put(&blocks, k, short, part, Copies::Last);
    }
    for (from, len) in [
        (0, 1),
        (1, 8192),
        (4095, 2),
        (16383, 2),
        (3, 40_000),
        (5 * PART_BYTES, 1234),
    ] {
        let mut got = vec![0; len];
        let read = other.read(k, from, &mut got);
        let there = from + len <= 3 * PART_BYTES || from >= 4 * PART_BYTES;
        assert_eq!(read.is_ok(), there, "{from}+{len}");
        if there {
            let want: Vec<u8> = (from..from + len).map(|at| byte(k, at)).collect();
            assert_eq!(got, want, "{from}+{len}");
        }
    }
    let mut past = vec![0; 1235];
    assert_eq!(other.read(k, 5 * PART_BYTES, &mut past), Err(Miss::Absent));
    assert_eq!(other.read(k, usize::MAX, &mut past), Err(Miss::Absent));
    assert_eq!(other.read(key(1, 8), 0, &mut past), Err(Miss::Absent));
    assert_eq!(blocks.parts(k), 0b11_0111);
}

#[test]
fn a_part_of_the_wrong_length_is_refused() {
    let blocks = Blocks::new(BLOCK, BUCKETS).unwrap();
    let k = key(1, 0);
    for (block_bytes, part, bytes) in [
        (BLOCK_BYTES + 1, 0, PART_BYTES),
        (BLOCK_BYTES, BLOCK_PARTS, PART_BYTES),
        (100, 0, 101),
        (100, 1, 0),
        (PART_BYTES, usize::MAX, 1),
    ] {
        let put = blocks.put(k, block_bytes, part, &vec![0; bytes], 0);
        assert!(
            matches!(put, Err(PutError::Shape { .. })),
            "{block_bytes} {part} {bytes}"
        );
    }
}

/// Regression: an entry kept the sums and places of the block before, so that one flipped bit of what is there gave its bytes.
#[test]
fn d9_a_flipped_bit_of_what_is_there_brings_back_no_former_block() {
    let blocks = Blocks::new(BLOCK, BUCKETS).unwrap();
    let before = key(1, 0);
    put_whole(&blocks, before, Copies::Last);
    let entry = blocks.mapping().find(before);
    blocks.drop_bucket(blocks.bucket_of(before));
    let after = (2..).map(|file| key(file, 0)).find(|k| {
        put(&blocks, *k, BLOCK_BYTES, 0, Copies::Last);
        let is_there = blocks.mapping().find(*k) == entry;
        if !is_there {
            blocks.drop_bucket(blocks.bucket_of(*k));
        }
        is_there
    });
    let after = after.expect("some key comes to the same place");
    let parts = &blocks.mapping().entry(entry.unwrap()).parts;
    parts.fetch_or(1 << 1, Ordering::Relaxed);
    let mut into = vec![0; 4096];
    let read = blocks.mapping().read(after, PART_BYTES, &mut into);
    assert_eq!(read, Err(Miss::Damaged));
    parts.fetch_and(!(1 << 1), Ordering::Relaxed);
}

/// Row D9: bytes that changed in memory are never given, to nobody, and the block goes.
#[test]
fn d9_a_flipped_bit_is_never_returned() {
    let blocks = Blocks::new(2 * BLOCK, BUCKETS).unwrap();
    let mount = BlockMapping::open(blocks.descriptor().unwrap()).unwrap();
    let k = key(3, 0);
    put_whole(&blocks, k, Copies::Last);
    let memory = raw(&blocks);
    let len = memory.metadata().unwrap().len();
    let mut all = vec![0; len as usize];
    memory.read_exact_at(&mut all, 0).unwrap();
    let needle = part_of(k, BLOCK_BYTES, 9);
    let at = all
        .windows(64)
        .position(|w| w == &needle[5000..5064])
        .unwrap() as u64;
    memory.write_all_at(&[all[at as usize] ^ 4], at).unwrap();
    let mut into = vec![0; 4096];
    assert_eq!(
        mount.read(k, 9 * PART_BYTES + 4096, &mut into),
        Err(Miss::Damaged)
    );
    assert!(
        mount.read(k, 9 * PART_BYTES, &mut into).is_ok(),
        "the 4 KiB beside it are right"
    );
    assert_eq!(
        blocks.read(k, 9 * PART_BYTES + 4096, &mut into, 0),
        Err(Miss::Damaged)
    );
    assert_eq!(blocks.read(k, 0, &mut into, 0), Err(Miss::Absent));
    assert_eq!(blocks.figures().damaged, 1);
}

#[test]
fn a_strange_memory_is_an_error_and_harms_nobody() {
    let blocks = Blocks::new(2 * BLOCK, BUCKETS).unwrap();
    let memory = raw(&blocks);
    put_whole(&blocks, key(1, 0), Copies::Last);
    let open = || {
        BlockMapping::open(blocks.descriptor().unwrap())
            .map(drop)
            .map_err(|e| e.to_string())
    };
    open().unwrap();
    for (at, value, says) in [
        (8, 0, "sizes cannot be"),
        (8, u64::MAX, "sizes cannot be"),
        (16, 1 << 20, "sizes cannot be"),
        (16, u64::MAX, "sizes cannot be"),
        (0, 1, "another version"),
    ] {
        let mut was = [0; 8];
        memory.read_exact_at(&mut was, at).unwrap();
        memory.write_all_at(&value.to_le_bytes(), at).unwrap();
        let error = open().unwrap_err();
        assert!(error.contains(says), "{at} {value}: {error}");
        memory.write_all_at(&was, at).unwrap();
    }
    // Whatever is in the table: no read leaves the memory.
    let mount = BlockMapping::open(blocks.descriptor().unwrap()).unwrap();
    let index = mount.find(key(1, 0)).unwrap();
    let entry = mount.entry(index);
    let spread = mount.spread(entry.spread().unwrap()).unwrap();
    let frames = &raw const spread.frames as u64;
    let base = mount.set(0) as *const _ as u64 - 4096;
    memory
        .write_all_at(&u32::MAX.to_le_bytes(), frames - base)
        .unwrap();
    let mut into = vec![0; 4096];
    assert_eq!(mount.read(key(1, 0), 0, &mut into), Err(Miss::Damaged));
    assert!(mount.read(key(1, 0), PART_BYTES, &mut into).is_ok());
    let plain = File::open("/proc/self/exe").unwrap();
    assert!(
        BlockMapping::open(plain.into())
            .unwrap_err()
            .to_string()
            .contains("not a node's blocks")
    );
}

#[test]
fn spare_copies_go_first_last_ones_after_them_pinned_ones_never() {
    let blocks = Blocks::new(8 * BLOCK, BUCKETS).unwrap();
    for i in 0..8 {
        let copies = if i % 2 == 0 {
            Copies::Spare
        } else {
            Copies::Last
        };
        put_whole(&blocks, key(i, 0), copies);
    }
    assert_eq!(pin_where(&blocks, true, |k| k.file[0] == 0), 1);
    for i in 8..11 {
        put_whole(&blocks, key(i, 0), Copies::Last);
    }
    let here = |i| blocks.parts(key(i, 0)) != 0;
    assert_eq!([2, 4, 6].map(here), [false; 3]);
    assert_eq!([0, 1, 3, 5, 7, 8, 9, 10].map(here), [true; 8]);
    // A last copy of which another node now has one is spare.
    blocks.set_copies(blocks.bucket_of(key(9, 0)), Copies::Spare);
    put_whole(&blocks, key(11, 0), Copies::Last);
    assert!(!here(9) && here(1));
    pin_where(&blocks, true, |_| true);
    let full = blocks.put(key(12, 0), 1, 0, &[0], 0);
    assert_eq!(
        full,
        Err(PutError::Pinned {
            frames: 8 * BLOCK_PARTS
        })
    );
    pin_where(&blocks, false, |_| true);
    put(&blocks, key(12, 0), 1, 0, Copies::Last);
}

/// Blocks that are read again stay while others, read once, go by.
#[test]
fn what_is_read_again_outlives_a_scan() {
    let blocks = Blocks::new(20 * BLOCK, BUCKETS).unwrap();
    let mut into = [0; 64];
    for i in 0..10 {
        put_whole(&blocks, key(1, i), Copies::Last);
    }
    for moment in 1..3 {
        for i in 0..10 {
            blocks.read(key(1, i), 0, &mut into, moment).unwrap();
        }
    }
    for i in 0..100 {
        put_whole(&blocks, key(2, i), Copies::Last);
        for _ in 0..32 {
            blocks.read(key(2, i), 0, &mut into, 0).unwrap(); // one program goes through it
        }
    }
    let stayed = (0..10).filter(|i| blocks.parts(key(1, *i)) != 0).count();
    assert_eq!(stayed, 10);
    assert!(blocks.figures().evicted >= 90);
}

#[test]
fn a_lower_limit_is_kept_at_once_and_memory_goes_back() {
    let blocks = Blocks::new(64 * BLOCK, BUCKETS).unwrap();
    for i in 0..64 {
        put_whole(&blocks, key(1, i), Copies::Last);
    }
    assert_eq!(blocks.figures().blocks, 64);
    assert!(resident(&blocks) >= 64 * BLOCK);
    blocks.set_limit(10 * BLOCK).unwrap();
    let figures = blocks.figures();
    assert!(
        figures.frames_last <= 10 * BLOCK_PARTS && figures.blocks == 10,
        "{figures:?}"
    );
    // Pages of 2 MiB, where the machine gives such, go back only whole.
    assert!(resident(&blocks) < 40 * BLOCK, "{}", resident(&blocks));
    blocks.set_limit(u64::MAX).unwrap();
    for i in 0..64 {
        put_whole(&blocks, key(2, i), Copies::Last);
    }
    assert_eq!(blocks.figures().blocks, 64);
    blocks.drop_bucket(blocks.bucket_of(key(2, 9)));
    assert!((8..12).all(|i| blocks.parts(key(2, i)) == 0));
    assert_eq!(blocks.figures().frames_last, 60 * BLOCK_PARTS);
}

/// Training data is often of files that are much shorter than a block.
#[test]
fn files_of_64_kib_fill_the_memory() {
    let blocks = Blocks::new(512 * BLOCK, BUCKETS).unwrap();
    let parts = (64 << 10) / PART_BYTES;
    for file in 0..3000 {
        for part in 0..parts {
            put(&blocks, key(file, 0), 64 << 10, part, Copies::Last);
        }
    }
    let used = blocks.figures().frames_last;
    assert!(used >= 512 * BLOCK_PARTS * 97 / 100, "{used} frames");
}

/// Regression: there was an entry for each seven frames, so that a file of 4 KiB took 56 KiB of a pool that was full.
#[test]
fn files_of_4_kib_take_8_kib_each() {
    let blocks = Blocks::new(64 << 20, BUCKETS).unwrap();
    let files = (64 << 20) / PART_BYTES as u64;
    for file in 0..files {
        put(&blocks, key(file, 0), 4000, 0, Copies::Last);
    }
    let figures = blocks.figures();
    assert!(
        figures.blocks as u64 >= files * 97 / 100,
        "{figures:?} of {files}"
    );
    let bytes = blocks.mapping().layout().bytes() as u64;
    let table = bytes - (64 << 20);
    assert!(table <= (64 << 20) * 4 / 100, "the table has {table} bytes");
    // What is there can be read, by whoever maps it; and one that gets a second part keeps the first.
    let mount = BlockMapping::open(blocks.descriptor().unwrap()).unwrap();
    let there = |file: &u64| blocks.parts(key(*file, 0)) == 1;
    let mut into = vec![0; 4000];
    for file in (0..files).filter(there) {
        mount.read(key(file, 0), 0, &mut into).unwrap();
        assert!(into == part_of(key(file, 0), 4000, 0));
    }
    assert!(resident(&blocks) <= (64 << 20) + table);
}

/// The entry of a block with one part names it by itself: with the second one both lie in another place.
#[test]
fn d9_a_flipped_bit_of_an_entry_leads_to_no_other_block() {
    let blocks = Blocks::new(4 * BLOCK, BUCKETS).unwrap();
    let (one, many) = (key(1, 0), key(2, 0));
    for part in [3, 5, 31] {
        put(&blocks, one, BLOCK_BYTES, part, Copies::Last);
        let mut into = vec![0; PART_BYTES];
        for there in [3, 5, 31].into_iter().filter(|there| *there <= part) {
            let read = blocks.mapping().read(one, there * PART_BYTES, &mut into);
            read.unwrap();
            assert!(
                into == part_of(one, BLOCK_BYTES, there),
                "{there} of {part}"
            );
        }
    }
    put_whole(&blocks, many, Copies::Last);
    let entry = |key| blocks.mapping().entry(blocks.mapping().find(key).unwrap());
    let own = entry(one).spread().unwrap();
    entry(one).set_spread(entry(many).spread().unwrap());
    let mut into = vec![0; 4096];
    let read = blocks.mapping().read(one, 3 * PART_BYTES, &mut into);
    assert_eq!(read, Err(Miss::Damaged));
    entry(one).set_spread(u32::MAX - 1);
    let read = blocks.mapping().read(one, 3 * PART_BYTES, &mut into);
    assert_eq!(read, Err(Miss::Damaged));
    entry(one).set_spread(own);
    // All comes back.
    for key in [one, many] {
        blocks.drop_bucket(blocks.bucket_of(key));
    }
    assert_eq!(blocks.figures().frames_last, 0);
    for i in 0..4 {
        put_whole(&blocks, key(9, i), Copies::Last);
    }
    assert_eq!(blocks.figures().blocks, 4);
}

proptest! {
    /// Beside a plain table: a read gives what was put or nothing, frames never pass the limit, and what is kept of each bucket is
    /// what a look at every block finds.
    #[test]
    fn never_other_bytes_never_too_many(
        steps in prop::collection::vec((0u8..12, 0u64..3, 0u32..20, 0usize..BLOCK_PARTS, 0usize..3), 1..200)
    ) {
        let blocks = Blocks::new(3 * BLOCK, 5).unwrap();
        let mut put_ever: HashMap<(BlockKey, usize), ()> = HashMap::new();
        let mut copies_of = [Copies::Last; 5];
        let mut limit = 3 * BLOCK_PARTS;
        for (moment, (step, file, block, part, size)) in steps.into_iter().enumerate() {
            let k = key(file + 1, block);
            let bucket = blocks.bucket_of(k);
            let block_bytes = [BLOCK_BYTES, 100_000, 77][k.block as usize % 3];
            let moment = moment as u32;
            let in_block = part * PART_BYTES < block_bytes;
            match step {
                0..6 if in_block => {
                    put(&blocks, k, block_bytes, part, copies_of[bucket as usize]);
                    put_ever.insert((k, part), ());
                }
                6..9 if in_block => {
                    let want = part_of(k, block_bytes, part);
                    let mut got = vec![0; want.len()];
                    if blocks.read(k, part * PART_BYTES, &mut got, moment).is_ok() {
                        prop_assert!(put_ever.contains_key(&(k, part)));
                        prop_assert_eq!(got, want);
                    }
                }
                9 => { blocks.drop_bucket(bucket); prop_assert_eq!(blocks.list(bucket, usize::MAX, 9), (vec![], 0)); }
                10 => {
                    limit = (1 + size) * BLOCK_PARTS;
                    blocks.set_limit((limit * PART_BYTES) as u64).unwrap();
                }
                11 => {
                    let copies = if size == 0 { Copies::Spare } else { Copies::Last };
                    copies_of[bucket as usize] = copies;
                    blocks.set_copies(bucket, copies);
                }
                _ => {}
            }
            let figures = blocks.figures();
            prop_assert!(figures.frames_spare + figures.frames_last <= limit);
            let (every, mut spare) = (every(&blocks), 0);
            for (bucket, bytes) in blocks.bucket_bytes().into_iter().enumerate() {
                let mut of: Vec<Listed> = every.clone();
                of.retain(|block| blocks.bucket_of(block.key) as usize == bucket);
                let parts: u32 = of.iter().map(|b| b.parts.count_ones()).sum();
                prop_assert_eq!(bytes, u64::from(parts) * PART_BYTES as u64);
                prop_assert_eq!(listed(&blocks, bucket as u32, 7), of);
                spare += if copies_of[bucket] == Copies::Spare { parts as usize } else { 0 };
            }
            let parts: u32 = every.iter().map(|b| b.parts.count_ones()).sum();
            prop_assert_eq!(parts as usize, figures.frames_spare + figures.frames_last);
            prop_assert_eq!(spare, figures.frames_spare);
            prop_assert_eq!(every.len(), figures.blocks);
        }
    }
}

/// All blocks, by a look at the whole table.
fn every(blocks: &Blocks) -> Vec<Listed> {
    let mapping = blocks.mapping();
    let taken =
        (0..mapping.layout().entries()).filter(|i| mapping.tag(*i).load(Ordering::Relaxed) != 0);
    let mut all: Vec<Listed> = taken
        .map(|index| mapping.entry(index))
        .map(|entry| Listed {
            key: entry.key(),
            bytes: entry.bytes.load(Ordering::Relaxed),
            parts: entry.parts.load(Ordering::Relaxed),
        })
        .collect();
    all.sort_unstable_by_key(|block| block.key);
    all
}

/// A node looks at what each bucket takes four times a second, and others ask what it has of one: neither looks at all that
/// there is.
#[test]
fn a_bucket_is_listed_by_looks_at_its_own_blocks_alone() {
    let blocks = Blocks::new(2000 * BLOCK, 16).unwrap();
    for i in 0..2000 {
        put(&blocks, key(1, i), BLOCK_BYTES, 0, Copies::Last);
    }
    let looked = || std::mem::take(&mut blocks.inner.lock().looked);
    looked();
    let bytes = blocks.bucket_bytes();
    assert_eq!(bytes.iter().sum::<u64>(), 2000 * PART_BYTES as u64);
    assert_eq!(looked(), 0);
    for (bucket, bytes) in bytes.into_iter().enumerate() {
        let listed = listed(&blocks, bucket as u32, 100).len();
        assert_eq!(listed as u64 * PART_BYTES as u64, bytes);
        assert_eq!(looked(), listed);
    }
    blocks.set_copies(3, Copies::Last);
    assert_eq!(looked(), 0, "nothing is other than before");
    blocks.set_copies(3, Copies::Spare);
    assert_eq!(looked(), blocks.figures().frames_spare);
    assert_eq!(
        blocks.list(99, usize::MAX, 9),
        (vec![], 0),
        "there is no such bucket"
    );
}

/// The blocks of a bucket, by pages.
fn listed(blocks: &Blocks, bucket: u32, most: usize) -> Vec<Listed> {
    let (mut all, mut before) = (Vec::new(), usize::MAX);
    while before > 0 {
        let (page, next) = blocks.list(bucket, before, most);
        assert!(page.len() <= most && (page.len() == most || next == 0) && next < before);
        all.extend(page);
        before = next;
    }
    all.sort_unstable_by_key(|block| block.key);
    all
}

/// Buckets that stay are listed, whatever goes and comes between two pages.
#[test]
fn what_stays_is_on_some_page_whatever_goes_between() {
    let blocks = Blocks::new(400 * BLOCK, 1).unwrap();
    for i in 0..300 {
        put(&blocks, key(1, i), BLOCK_BYTES, 0, Copies::Last);
    }
    let (mut seen, mut before, mut gone) = (Vec::new(), usize::MAX, 0);
    while before > 0 {
        let (page, next) = blocks.list(0, before, 10);
        assert!(page.len() <= 10);
        seen.extend(page.iter().map(|block| block.key));
        before = next;
        // Every fifth goes, from both ends: what is last fills the gaps.
        for i in [gone, 295 - gone] {
            if let Some(index) = blocks.mapping.find(key(1, i)) {
                blocks.evict(&mut blocks.inner.lock(), index);
            }
        }
        gone += 5;
        put(&blocks, key(2, gone), BLOCK_BYTES, 0, Copies::Last);
    }
    let stays = every(&blocks).into_iter().map(|block| block.key);
    for key in stays.filter(|key| key.file == self::key(1, 0).file) {
        assert!(seen.contains(&key), "{key:?}");
    }
}

/// A process that has the memory mapped keeps no byte of it from going back, reads on without harm, and finds nothing.
#[test]
fn a_pool_that_is_closed_gives_all_back_under_its_readers() {
    let blocks = Blocks::new(300 * BLOCK, BUCKETS).unwrap();
    let mount = BlockMapping::open(blocks.descriptor().unwrap()).unwrap();
    for i in 0..300 {
        put_whole(&blocks, key(1, i), Copies::Last);
    }
    blocks.pin(key(1, 7), true);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut into, mut i) = (vec![0; 9000], 0);
            while !over.load(Ordering::Relaxed) {
                i = (i + 1) % 300;
                match mount.read(key(1, i), 3, &mut into) {
                    Ok(_) => assert!((0..9000).all(|at| into[at] == byte(key(1, i), at + 3))),
                    Err(miss) => assert_eq!(miss, Miss::Absent),
                }
            }
        });
        blocks.close();
        over.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    assert_eq!(blocks.figures().blocks, 0);
    let mut into = [0; 64];
    for i in 0..300 {
        assert_eq!(mount.read(key(1, i), 0, &mut into), Err(Miss::Absent));
    }
    let put = blocks.put(key(1, 0), 1, 0, &[0], 0);
    assert_eq!(put, Err(PutError::Closed));
    assert!(resident(&blocks) < 30 * BLOCK, "{}", resident(&blocks));
}

fn resident(blocks: &Blocks) -> u64 {
    use std::os::unix::fs::MetadataExt;
    raw(blocks).metadata().unwrap().blocks() * 512
}

/// Readers with a mapping of their own, while blocks come and go in too few frames.
#[test]
fn readers_beside_evictions_see_right_bytes_or_none() {
    let blocks = Blocks::new(2 * BLOCK, BUCKETS).unwrap();
    let over = AtomicBool::new(false);
    let (hits, misses) = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2u32)
            .map(|reader| {
                let mount = BlockMapping::open(blocks.descriptor().unwrap()).unwrap();
                let over = &over;
                scope.spawn(move || {
                    let (mut hits, mut misses, mut i) = (0, 0, reader);
                    let mut into = vec![0; 9000];
                    while !over.load(Ordering::Relaxed) {
                        i = i.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let k = key(1, i >> 29);
                        let from = (i >> 8) as usize % (BLOCK_BYTES - 9000);
                        match mount.read(k, from, &mut into) {
                            Ok(_) => {
                                hits += 1;
                                let wrong = into
                                    .iter()
                                    .enumerate()
                                    .find(|(n, b)| **b != byte(k, from + n));
                                assert_eq!(wrong, None, "{k:?} from {from}");
                            }
                            Err(Miss::Absent) => misses += 1,
                            Err(Miss::Damaged) => panic!("{k:?} from {from} is damaged"),
                        }
                    }
                    (hits, misses)
                })
            })
            .collect();
        for round in 0..400u32 {
            put_whole(&blocks, key(1, round % 8), Copies::Last);
        }
        over.store(true, Ordering::Relaxed);
        let each = readers.into_iter().map(|r| r.join().unwrap());
        each.fold((0u64, 0u64), |a, b| (a.0 + b.0, a.1 + b.1))
    });
    assert!(hits > 0 && misses > 0, "{hits} {misses}");
}

/// Row D9: what changed in memory is found though nobody reads it, once, and goes alone.
#[test]
fn d9_a_look_through_all_blocks_finds_what_is_damaged() {
    let blocks = Blocks::new(16 * BLOCK, BUCKETS).unwrap();
    for i in 0..10 {
        put_whole(&blocks, key(1, i), Copies::Last);
    }
    put(&blocks, key(2, 0), 3 * PART_BYTES + 77, 3, Copies::Last);
    let all = |bytes_max| {
        let (mut from, mut sum, mut looks) = (0, Checked::default(), 0);
        loop {
            let found = blocks.check(from, bytes_max);
            sum.bytes += found.bytes;
            sum.damaged += found.damaged;
            looks += 1;
            match found.next {
                Some(next) => from = next,
                None => return (sum.bytes, sum.damaged, looks),
            }
        }
    };
    assert_eq!(all(u64::MAX), (10 * BLOCK + 77, 0, 1));
    let (file, victim) = (raw(&blocks), key(1, 3));
    let mut memory = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut memory, 0).unwrap();
    let part = part_of(victim, BLOCK_BYTES, 2);
    let at = memory.windows(64).position(|w| w == &part[..64]).unwrap();
    file.write_all_at(&[part[9] ^ 16], at as u64 + 9).unwrap();
    let (_, damaged, looks) = all(BLOCK);
    assert_eq!(damaged, 1);
    assert!(looks >= 9, "a look is bounded: {looks}");
    assert_eq!((blocks.parts(victim), blocks.figures().damaged), (0, 1));
    assert_eq!(all(u64::MAX), (9 * BLOCK + 77, 0, 1));
}

/// Raising the limit gives nothing back to the kernel, and frames that were given back serve again.
#[test]
fn a_limit_goes_down_and_up_many_times() {
    let blocks = Blocks::new(32 * BLOCK, BUCKETS).unwrap();
    for round in 1..20u64 {
        for i in 0..32 {
            put_whole(&blocks, key(round, i), Copies::Last);
        }
        blocks.set_limit((round % 7 + 1) * BLOCK).unwrap();
        blocks.set_limit(u64::MAX).unwrap();
    }
    for i in 0..32 {
        put_whole(&blocks, key(99, i), Copies::Last);
    }
    let mut into = vec![0; BLOCK_BYTES];
    for i in 0..32 {
        blocks.read(key(99, i), 0, &mut into, 0).unwrap();
        assert!(
            (0..BLOCK_BYTES)
                .step_by(997)
                .all(|at| into[at] == byte(key(99, i), at))
        );
    }
    assert_eq!(blocks.figures().frames_last, 32 * BLOCK_PARTS);
}
