//! The bytes of version 2, as docs/reference/journal.md has them. Whoever changes one changes the version.

use super::{DISK, commit, made, opened};
use crate::faulty::FaultyDevice;
use crate::format::{BATCH_HEADER, JournalHeader, RING_OFFSET};
use crate::replay::newest_header;
use crate::{BLOCK_BYTES, Device, Journal, PageFile, PlacedBlock, RecordBytes, VERSION};

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
        version: VERSION,
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
    assert_eq!((bytes.len(), header.offset(), VERSION), (BLOCK_BYTES, 0, 2));
    assert_eq!(&bytes[..4], b"SJH1");
    assert_eq!(u64::from(short(&bytes, 4)), crc(&bytes[8..104]));
    assert_eq!((short(&bytes, 8), &bytes[16..32]), (2, &DISK.0[..]));
    let numbers = [32, 40, 48, 56, 64, 72].map(|at| number(&bytes, at));
    assert_eq!((numbers, short(&bytes, 80)), ([2, 3, 4, 5, 6, 7], 8));
    assert!(bytes[84..].iter().all(|b| *b == 0));
    assert_eq!(
        short(&bytes, 4),
        0x99F1_F3B7,
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

#[test]
fn a_record_with_blocks_in_the_page_file_has_its_fields_where_they_are_documented() {
    let device = made(2);
    let pages = FaultyDevice::new(8 * BLOCK_BYTES, 3);
    let (mut journal, _) = opened(&device).expect("it opens");
    let tail = [&b"ab"[..], &[7; 2 * BLOCK_BYTES], b"c", &[8; BLOCK_BYTES]].concat();
    let tail = bytes::Bytes::from(tail);
    let at = [2, 2 + BLOCK_BYTES as u32, 3 + 2 * BLOCK_BYTES as u32];
    let blocks = [(at[0], 3), (at[1], 4), (at[2], 6)];
    let blocks = blocks.map(|(at, place)| PlacedBlock::new(&tail, at, place));
    let record = RecordBytes {
        head: b"head",
        tail: &tail,
        placed: &blocks,
    };
    let number = journal.append_placed(&record, false).expect("room");
    let performed = journal.next_commit().expect("a record");
    let performed = performed.perform_with(&device, Some(&pages));
    journal.finish(performed).expect("well");
    let mut bytes = vec![0; BLOCK_BYTES];
    device.read(RING_OFFSET, &mut bytes).expect("well");
    let record = &bytes[BATCH_HEADER..];
    let whole = 4 + tail.len() as u32;
    let fields = [0, 4, 8].map(|at| short(record, at));
    assert_eq!(fields, [1 << 31 | (8 + 3 * 12 + 7), whole, 3]);
    for (entry, (at, place, byte)) in [(at[0], 3, 7u8), (at[1], 4, 7), (at[2], 6, 8)]
        .iter()
        .enumerate()
    {
        let fields = [0, 4, 8].map(|field| short(record, 12 + 12 * entry + field));
        let sum = crc(&[*byte; BLOCK_BYTES]) as u32;
        assert_eq!(fields, [4 + at, *place, sum]);
        let mut block = vec![0; BLOCK_BYTES];
        pages
            .read(u64::from(*place) * BLOCK_BYTES as u64, &mut block)
            .expect("well");
        assert!(block.iter().all(|b| b == byte), "it lies at its place");
    }
    assert_eq!(&record[48..55], b"headabc");
    drop(journal);
    let mut found = Vec::new();
    Journal::open_with(&device, Some(&pages), &mut |number, bytes, blocks| {
        found.push((number, bytes.to_vec(), blocks.places.to_vec()));
        Ok(())
    })
    .expect("it opens");
    assert_eq!(
        found,
        [(number, [b"head", &tail[..]].concat(), vec![3, 4, 6])]
    );
}

/// Version 1 had no records with blocks elsewhere, and no places for them; its other bytes are the same.
#[test]
fn what_version_1_wrote_is_read_and_its_journal_is_of_this_version_from_then_on() {
    let device = made(4);
    let (mut journal, _) = opened(&device).expect("it opens");
    journal.append(b"old").expect("room");
    commit(&mut journal, &device).expect("well");
    drop(journal);
    let mut block = vec![0; BLOCK_BYTES];
    for at in [0, BLOCK_BYTES as u64] {
        device.read(at, &mut block).expect("well");
        let header = JournalHeader::decode(&block).expect("a header");
        let old = JournalHeader {
            version: 1,
            ..header
        };
        device.write(at, &old.encode()).expect("well");
    }
    let (_, records) = opened(&device).expect("it opens");
    assert_eq!(records.into_values().collect::<Vec<_>>(), [b"old"]);
    assert_eq!(newest_header(&device).expect("a header").version, VERSION);
    let (pages, table) = (
        FaultyDevice::new(40 * BLOCK_BYTES, 5),
        FaultyDevice::new(1 << 20, 6),
    );
    PageFile::create(&pages, &table, DISK).expect("it is large enough");
    pages.read(0, &mut block).expect("well");
    block[8] = 1;
    let sum = crc(&block[8..32]) as u32;
    block[4..8].copy_from_slice(&sum.to_le_bytes());
    pages.write(0, &block).expect("well");
    let mut file = PageFile::open(&pages, &table).expect("it opens");
    assert_eq!((file.take_for_journal(1), file.held()), (None, (0, 0)));
}
