//! The bytes of version 1, as docs/reference/journal.md has them. Whoever changes one changes the version.

use super::{DISK, commit, made, opened};
use crate::format::{BATCH_HEADER, JournalHeader, RING_OFFSET};
use crate::{BLOCK_BYTES, Device, VERSION};

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

fn short(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

fn crc(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes)
}

#[test]
fn a_header_has_its_fields_where_they_are_documented() {
    let header = JournalHeader {
        disk: DISK,
        generation: 2,
        life: 3,
        ring_bytes: 4,
        start: 5,
        first: 6,
        synced: 7,
        previous: 8,
    };
    let bytes = header.encode();
    assert_eq!((bytes.len(), header.offset(), VERSION), (BLOCK_BYTES, 0, 1));
    assert_eq!(&bytes[..4], b"SJH1");
    assert_eq!(u64::from(short(&bytes, 4)), crc(&bytes[8..104]));
    assert_eq!((short(&bytes, 8), &bytes[16..32]), (1, &DISK.0[..]));
    let numbers = [32, 40, 48, 56, 64, 72].map(|at| number(&bytes, at));
    assert_eq!((numbers, short(&bytes, 80)), ([2, 3, 4, 5, 6, 7], 8));
    assert!(bytes[84..].iter().all(|b| *b == 0));
    assert_eq!(
        short(&bytes, 4),
        0xD1BC_54EF,
        "the check sum of these very bytes"
    );
}

#[test]
fn a_batch_has_its_fields_where_they_are_documented() {
    let device = made(1);
    let (mut journal, _) = opened(&device).expect("it opens");
    journal.append(b"first").expect("room");
    commit(&mut journal, &device).expect("well");
    journal.append(b"second").expect("room");
    journal.append(b"").expect("room");
    commit(&mut journal, &device).expect("well");
    let mut bytes = vec![0; 2 * BLOCK_BYTES];
    device.read(RING_OFFSET, &mut bytes).expect("well");
    let (one, two) = bytes.split_at(BLOCK_BYTES);
    assert_eq!(&two[..4], b"SJB1");
    let end = BATCH_HEADER + 4 + 6 + 4;
    assert_eq!(u64::from(short(two, 4)), crc(&two[8..64]));
    assert_eq!(u64::from(short(two, 52)), crc(&two[64..end]));
    assert_eq!([8, 16, 24].map(|at| number(two, at)), [4096, 1, 2]);
    assert_eq!(&two[32..40], &DISK.0[..8]);
    assert_eq!([40, 44].map(|at| short(two, at)), [2, 14]);
    assert_eq!(short(two, 48), short(one, 4), "that of the batch before");
    assert_eq!(
        (short(two, 64), &two[68..74], short(two, 74)),
        (6, &b"second"[..], 0)
    );
    assert!(two[56..64].iter().chain(&two[end..]).all(|b| *b == 0));
    assert_eq!(
        short(two, 4),
        0x1BB4_A2D6,
        "the check sum of these very bytes"
    );
}
