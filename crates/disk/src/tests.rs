//! Journals over disks that forget, tear, fail and rot.

mod checkpoints;
mod crashes;
mod damage;
mod files;
mod golden;
mod headers;
mod page_room;
mod pages;
mod placed;
mod room;
mod starts;
mod threads;

use std::collections::BTreeMap;

use crate::faulty::FaultyDevice;
use crate::format::JOURNAL_BYTES_MIN;
use crate::{BLOCK_BYTES, Device, DiskId, Journal, JournalError, OpenError};

const DISK: DiskId = DiskId(*b"a disk of a test");
/// As small as can be, so that the ring goes round often.
const BYTES: usize = JOURNAL_BYTES_MIN as usize;
/// The offset of the ring.
const RING: usize = 2 * BLOCK_BYTES;
const BLOCK: u64 = BLOCK_BYTES as u64;

type Records = BTreeMap<u64, Vec<u8>>;

fn made(seed: u64) -> FaultyDevice {
    let device = FaultyDevice::new(BYTES, seed);
    Journal::create(&device, DISK).expect("it is large enough");
    device
}

fn opened(device: &dyn Device) -> Result<(Journal, Records), OpenError> {
    let mut records = Records::new();
    let journal = Journal::open(device, &mut |number, record| {
        let twice = records.insert(number, record.to_vec());
        assert!(twice.is_none(), "record {number} came twice");
        Ok(())
    })?;
    Ok((journal, records))
}

/// Commits all that there is.
fn commit(journal: &mut Journal, device: &FaultyDevice) -> Result<(), JournalError> {
    while let Some(commit) = journal.next_commit() {
        journal.finish(commit.perform(device))?;
    }
    Ok(())
}

/// A journal with a batch for each of some records.
fn filled(device: &FaultyDevice, records: &[&[u8]]) -> Journal {
    let (mut journal, _) = opened(device).expect("it opens");
    for record in records {
        journal.append(record).expect("there is room");
        commit(&mut journal, device).expect("the disk is well");
    }
    journal
}
