//! Bytes that are not as they were written.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{BLOCK, BLOCK_BYTES, DISK, RING, commit, filled, made, opened};
use crate::format::{BATCH_HEADER, BatchHeader, RING_OFFSET, header_sum};
use crate::{Device, DiskId, Journal, JournalError, OpenError};

#[test]
fn damage_in_the_middle_is_no_end() {
    for (block, byte) in [(0, 66), (1, 66), (2, 66), (0, 20), (1, 54)] {
        let device = made(1);
        filled(&device, &[b"one", b"two", b"three", b"four"]);
        device.rot(RING + block * BLOCK_BYTES + byte);
        let damaged = block as u64 * BLOCK;
        match opened(&device) {
            Err(OpenError::Damaged { place, proof }) => {
                assert_eq!((place, proof), (damaged, damaged + BLOCK));
            }
            other => panic!("damage was taken for the end: {other:?}"),
        }
    }
}

/// Regression: a batch that the power tore was no proof that the one before it had been synced.
#[test]
fn a_torn_batch_behind_damage_proves_it() {
    let device = made(1);
    filled(&device, &[b"one", b"two", b"three"]);
    device.rot(RING + BLOCK_BYTES + 66);
    device.rot(RING + 2 * BLOCK_BYTES + 66);
    match opened(&device) {
        Err(OpenError::Damaged { place, proof }) => {
            assert_eq!((place, proof), (BLOCK, 2 * BLOCK));
        }
        other => panic!("damage was taken for the end: {other:?}"),
    }
}

/// Of the last batch nobody knows whether it was synced, but where a header says so: that of a start, or of a clean end.
#[test]
fn damage_at_the_end_is_seen_where_a_header_tells_of_it() {
    let device = made(2);
    filled(&device, &[b"one", b"two"]);
    let (_, records) = opened(&device).expect("it opens, and its header says where it ended");
    assert_eq!(records.len(), 2);
    device.rot(RING + BLOCK_BYTES + 66);
    assert!(matches!(opened(&device), Err(OpenError::Damaged { .. })));

    let device = made(3);
    filled(&device, &[b"one", b"two"]);
    device.rot(RING + BLOCK_BYTES + 66);
    let (journal, _) = opened(&device).expect("as after a crash in the last batch");
    assert_eq!(journal.last(), 1);

    let device = made(4);
    let mut journal = filled(&device, &[b"one", b"two"]);
    journal.mark_end();
    commit(&mut journal, &device).expect("well");
    assert!(journal.next_commit().is_none(), "it is marked once");
    device.rot(RING + BLOCK_BYTES + 66);
    let opened = opened(&device);
    assert!(
        matches!(opened, Err(OpenError::Damaged { .. })),
        "damage was taken for the end: {opened:?}"
    );
}

#[test]
fn a_sector_that_cannot_be_read_is_no_end() {
    let device = made(4);
    filled(&device, &[b"one", b"two"]);
    device.make_unreadable(RING + BLOCK_BYTES);
    let error = opened(&device).expect_err("it cannot be read");
    assert!(matches!(error, OpenError::Read { at, .. } if at == RING_OFFSET + BLOCK));
    assert!(error.to_string().contains("12288"), "{error}");
}

/// Batches that another disk's journal left in the file are not taken for its own.
#[test]
fn batches_of_another_disk_do_not_count() {
    let device = made(9);
    filled(&device, &[b"one", b"two"]);
    Journal::create(&device, DiskId([7; 16])).expect("it is large enough");
    let (journal, records) = opened(&device).expect("it opens");
    assert_eq!((journal.last(), records.len()), (0, 0));
}

/// Writes a batch with right check sums behind the first one of a journal, and opens that.
fn with_second(change: impl FnOnce(&mut BatchHeader)) -> Result<u64, OpenError> {
    let device = made(15);
    filled(&device, &[b"one"]);
    let mut first = vec![0; BLOCK_BYTES];
    device.read(RING_OFFSET, &mut first).expect("well");
    let mut batch = BatchHeader {
        place: BLOCK,
        life: 1,
        first: 2,
        records: 1,
        payload: 7,
        previous: header_sum(&first),
    };
    change(&mut batch);
    let mut bytes = vec![0; BATCH_HEADER + batch.payload as usize];
    bytes[BATCH_HEADER..][..7].copy_from_slice(b"\x03\0\0\0two");
    batch.seal(DISK, &mut bytes);
    device.write(RING_OFFSET + BLOCK, &bytes).expect("well");
    opened(&device).map(|(journal, _)| journal.last())
}

#[test]
fn a_batch_with_right_sums_counts_only_if_it_follows() {
    assert_eq!(with_second(|_| {}).expect("it follows"), 2);
    let wrong: [fn(&mut BatchHeader); 5] = [
        |batch| batch.previous ^= 1,
        |batch| batch.first = 3,
        |batch| batch.life = 2,
        |batch| batch.payload = 8,
        |batch| (batch.records, batch.payload) = (2, 8),
    ];
    for wrong in wrong {
        let refused = with_second(wrong);
        assert!(
            matches!(refused, Err(OpenError::Damaged { place, proof }) if (place, proof) == (BLOCK, BLOCK)),
            "it does not follow and counts: {refused:?}"
        );
    }
    // Those that no journal of this size writes, or that were left behind, are no batches at all.
    let none: [fn(&mut BatchHeader); 6] = [
        |batch| batch.life = 0,
        |batch| batch.life = u64::MAX,
        |batch| batch.first = u64::MAX,
        |batch| batch.place = 0,
        |batch| batch.place = u64::MAX - BLOCK + 1,
        |batch| batch.payload = 17_000,
    ];
    for none in none {
        assert_eq!(with_second(none).expect("it ends before"), 1);
    }
}

/// The bytes of a journal are anything: a start ends, with an error, or with records as they were appended.
#[test]
fn any_bytes_at_all_do_no_harm() {
    let mut rng = SmallRng::seed_from_u64(10);
    let written: [&[u8]; 4] = [b"one", &[7; 9_000], b"three", &[8; 5_000]];
    for seed in 0..400 {
        let device = made(seed);
        filled(&device, &written);
        for _ in 0..rng.random_range(1..4) {
            device.rot(rng.random_range(0..RING + 6 * BLOCK_BYTES));
        }
        let Ok((journal, records)) = opened(&device) else {
            continue;
        };
        assert_eq!(journal.last(), records.len() as u64);
        for (record, written) in records.values().zip(written) {
            assert_eq!(record, written, "seed {seed}");
        }
    }
    for seed in 0..400 {
        let device = made(seed);
        let mut block = vec![0; BLOCK_BYTES];
        rng.fill(&mut block[..]);
        let batch = BatchHeader {
            place: rng.random_range(0..2) * BLOCK,
            life: rng.random_range(0..3),
            first: rng.random_range(0..3),
            records: rng.random_range(1..4),
            payload: rng.random_range(4..200),
            previous: rng.random_range(0..2),
        };
        block.truncate(BATCH_HEADER + batch.payload as usize);
        batch.seal(DISK, &mut block);
        device
            .write(RING_OFFSET + batch.place, &block)
            .expect("well");
        let _ = opened(&device);
    }
}

#[test]
fn a_failed_journal_takes_nothing_more() {
    let device = made(12);
    let mut journal = filled(&device, &[b"one"]);
    device.fail_syncs(true);
    journal.append(b"two").expect("room");
    let failed = commit(&mut journal, &device);
    failed.expect_err("a failed sync counts");
    device.fail_syncs(false);
    assert!(matches!(
        journal.append(b"three"),
        Err(JournalError::Failed(_))
    ));
    assert!(journal.next_commit().is_none(), "no sync is tried again");
    assert_eq!(journal.synced(), 1);
    assert_eq!(journal.failed(), Some("the sync failed"));
}
