//! Starts after one fault or two, each laid out: what a start believes, and what it must not.

use super::{BLOCK_BYTES, RING, commit, filled, made, opened};
use crate::faulty::FaultyDevice;
use crate::{Journal, OpenError};

/// Regression: the last batch was read a second time before it was written again, when the system may have forgotten it.
#[test]
fn a_start_keeps_what_it_believed() {
    for seed in 0..200 {
        let device = made(seed);
        let mut journal = filled(&device, &[b"one"]);
        journal.append(&[2; 5_000]).expect("room");
        device.fail_syncs(true);
        commit(&mut journal, &device).expect_err("the sync fails");
        device.fail_syncs(false);
        device.evict_while_reading(true);
        let (_, believed) = opened(&device).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        device.lose_power();
        let (_, there) = opened(&device).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(there, believed, "seed {seed}");
    }
}

/// Appends two records, the second of which is always the same, and loses the power in their sync.
fn cut_off(device: &FaultyDevice, journal: &mut Journal, first: u8) {
    journal.append(&[first; 100]).expect("room");
    journal.append(&[9; 1_000]).expect("room");
    device.power_off_after(1);
    commit(journal, device).expect_err("the power goes off");
    device.lose_power();
}

/// Regression: sectors of the batch that took the place of a dropped one made the dropped one whole again.
#[test]
fn a_batch_that_was_dropped_stays_dropped() {
    let mut dropped = 0;
    for seed in 0..1_500 {
        let device = made(seed);
        let (mut journal, _) = opened(&device).expect("it opens");
        cut_off(&device, &mut journal, 1);
        let (mut journal, records) = opened(&device).expect("it opens");
        if journal.last() > 0 {
            let whole = records[&1] == [1; 100] && records[&2] == [9; 1_000];
            assert!(whole, "seed {seed}: a record is not what was appended");
            continue;
        }
        dropped += 1;
        cut_off(&device, &mut journal, 2);
        // A header of the second life that rots makes no difference.
        if seed % 3 > 0 {
            let header = (seed % 3 - 1) as usize * BLOCK_BYTES;
            device.rot(header + 40);
        }
        let (_, records) = opened(&device).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let back = records.get(&1).is_some_and(|record| *record == [1; 100]);
        assert!(!back, "seed {seed}: a dropped record came back");
    }
    assert!(dropped > 500, "only {dropped} were dropped");
}

/// Regression: a header that was only in memory was believed, and the next one written over the only new one on disk.
#[test]
fn a_header_that_was_read_is_on_disk_before_the_other_one_is_written() {
    for seed in 0..1_600 {
        let device = made(seed);
        let (mut journal, _) = opened(&device).expect("it opens");
        let append = |journal: &mut Journal, count: u8| {
            for byte in 0..count {
                journal.append(&[byte; 6_000]).expect("room");
                commit(journal, &device).expect("well");
            }
        };
        append(&mut journal, 5);
        journal.let_go(5);
        // The header that makes room; then what the header before it names is overwritten.
        append(&mut journal, 5);
        journal.let_go(11);
        journal.append_reserved(b"last").expect("room");
        device.fail_syncs(true);
        commit(&mut journal, &device).expect_err("the sync fails");
        device.fail_syncs(false);
        device.power_off_after(seed % 8);
        let _ = opened(&device);
        device.lose_power();
        let (journal, _) = opened(&device).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(journal.last() >= 10, "seed {seed}: {}", journal.last());
    }
}

/// A start is cut at each of its writes, and at each of those of the starts after it.
#[test]
fn a_start_may_be_cut_at_any_step() {
    for seed in 0..200 {
        let device = made(seed);
        let mut journal = filled(&device, &[b"one"]);
        journal.append(b"two").expect("room");
        device.power_off_after(seed % 2);
        let _ = commit(&mut journal, &device);
        device.lose_power();
        let mut last = 1;
        for cut in 0..10 {
            device.power_off_after(cut);
            match opened(&device) {
                Ok((journal, records)) => {
                    assert!(journal.last() >= last, "seed {seed}, cut {cut}");
                    assert_eq!(records[&1], b"one");
                    last = journal.last();
                }
                Err(OpenError::Write(_)) => {}
                Err(error) => panic!("seed {seed}, cut {cut}: {error}"),
            }
            device.lose_power();
        }
        let (journal, _) = opened(&device).expect("it opens");
        assert!(journal.last() >= last, "seed {seed}");
    }
}

/// Records are durable when the caller sees the first, and none is seen of a damaged journal.
#[test]
fn records_are_shown_once_they_are_safe() {
    let device = made(1);
    filled(&device, &[b"one", b"two"]);
    let mut calls = Vec::new();
    let mut seen = |_: u64, _: &[u8]| {
        calls.push(device.calls());
        Ok(())
    };
    Journal::open(&device, &mut seen).expect("it opens");
    assert_eq!(calls, [device.calls(); 2], "a start writes and syncs first");
    device.rot(RING + 66);
    let mut unseen = |number: u64, _: &[u8]| panic!("record {number} of a damaged journal");
    assert!(Journal::open(&device, &mut unseen).is_err());
}

#[test]
fn a_record_that_the_caller_cannot_use_ends_the_start() {
    let device = made(1);
    filled(&device, &[b"one", b"two", b"three"]);
    let mut each = |_: u64, record: &[u8]| match record {
        b"two" => Err("it is of tomorrow".into()),
        _ => Ok(()),
    };
    let error = Journal::open(&device, &mut each).expect_err("the second is refused");
    assert!(matches!(error, OpenError::Unusable { number: 2, .. }));
    assert!(error.to_string().contains("of tomorrow"), "{error}");
    let (journal, _) = opened(&device).expect("it may be tried again");
    assert_eq!(journal.last(), 3);
}
