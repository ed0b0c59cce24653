//! The two headers: one that is whole is enough, and one that says what cannot be is refused.

use super::{BLOCK, BLOCK_BYTES, BYTES, DISK, commit, filled, made, opened};
use crate::faulty::FaultyDevice;
use crate::format::{JournalHeader, RING_OFFSET};
use crate::{Device, Journal, OpenError, VERSION};

#[test]
fn one_whole_header_is_enough_and_none_is_an_error() {
    for rotten in [40, BLOCK_BYTES + 40] {
        let device = made(5);
        filled(&device, &[b"one"]);
        device.rot(BLOCK_BYTES / 2);
        device.rot(rotten);
        let (journal, records) = opened(&device).expect("the other header is whole");
        assert_eq!((journal.last(), records.len()), (1, 1));
        device.rot(40);
        device.rot(BLOCK_BYTES + 40);
        assert!(matches!(opened(&device), Err(OpenError::NoHeader)));
    }
    let empty = FaultyDevice::new(BYTES, 6);
    assert!(matches!(opened(&empty), Err(OpenError::NoHeader)));
}

/// An old header, whose first batch was overwritten long ago, is that of no empty journal.
#[test]
fn an_old_header_does_not_hide_what_came_after_it() {
    let device = made(14);
    let (mut journal, _) = opened(&device).expect("it opens");
    for round in 0..20 {
        journal.append(&[round; 6_000]).expect("room");
        commit(&mut journal, &device).expect("well");
        journal.let_go(journal.synced() + 1);
    }
    for generation in [1, 2] {
        let old = JournalHeader {
            generation,
            ..header()
        };
        device.write(old.offset(), &old.encode()).expect("well");
    }
    assert!(matches!(opened(&device), Err(OpenError::Damaged { .. })));
}

fn header() -> JournalHeader {
    JournalHeader {
        version: VERSION,
        disk: DISK,
        generation: 9,
        life: 3,
        ring_bytes: BYTES as u64 - RING_OFFSET,
        start: 0,
        first: 1,
        synced: 0,
        previous: 0,
    }
}

fn with_header(header: JournalHeader) -> FaultyDevice {
    let device = made(7);
    device
        .write(header.offset(), &header.encode())
        .expect("well");
    device
}

#[test]
fn a_header_that_contradicts_itself_is_refused() {
    let ring = header().ring_bytes;
    #[rustfmt::skip]
    let wrong = [
        JournalHeader { ring_bytes: ring + BLOCK, ..header() },
        JournalHeader { ring_bytes: 0, ..header() },
        JournalHeader { ring_bytes: ring - 1, ..header() },
        JournalHeader { start: 1, synced: 1, ..header() },
        JournalHeader { synced: 1, ..header() },
        JournalHeader { start: BLOCK, ..header() },
        JournalHeader { synced: ring + BLOCK, ..header() },
        JournalHeader { first: 0, ..header() },
        JournalHeader { first: u64::MAX, ..header() },
        JournalHeader { life: u64::MAX, ..header() },
        JournalHeader { generation: u64::MAX, ..header() },
        JournalHeader { start: u64::MAX - BLOCK + 1, synced: u64::MAX - BLOCK + 1, ..header() },
    ];
    for header in wrong {
        let refused = opened(&with_header(header));
        assert!(
            matches!(refused, Err(OpenError::Contradiction { .. })),
            "{header:?}: {refused:?}"
        );
    }
    opened(&with_header(header())).expect("this one is well");
}

#[test]
fn another_version_is_named() {
    let mut block = header().encode();
    block[8] = 77;
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &block[8..104]);
    block[4..8].copy_from_slice(&crc.to_le_bytes()[..4]);
    let device = made(8);
    device.write(header().offset(), &block).expect("well");
    match opened(&device) {
        Err(error @ OpenError::Version(77)) => {
            assert!(error.to_string().contains("77"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn too_small_a_file_is_refused() {
    let device = FaultyDevice::new(BYTES - BLOCK_BYTES, 13);
    let error = Journal::create(&device, DISK).expect_err("a block too few");
    assert!(error.to_string().contains("are the least"), "{error}");
}
