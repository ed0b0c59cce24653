//! The data of appends whose entry is not made yet: soft, and gone with the bucket that serves.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::message::Records;
use crate::store::{DataPiece, NewData, OFFSET_BITS};
use crate::types::DataPlace;

/// Bytes that the entry of held data takes up beside them, at most on the average.
const ENTRY_BYTES: u64 = 512;

/// Data of one append.
#[derive(Clone, Debug)]
enum HeldBytes {
    Memory(Bytes),
    Staged(Vec<DataPiece>),
}

/// All data that is held.
#[derive(Default, Debug)]
pub(super) struct HeldData {
    all: BTreeMap<u64, HeldBytes>,
    /// Bytes of those in memory.
    bytes: u64,
    /// The highest number that was given out.
    last: u64,
}

impl HeldData {
    /// Nothing; numbers go on from `last`.
    pub fn after(last: u64) -> HeldData {
        HeldData {
            last,
            ..HeldData::default()
        }
    }

    /// Holds the bytes of records in memory. The place of each of them.
    pub fn keep(&mut self, records: &Records) -> Vec<DataPlace> {
        self.bytes += records.bytes.len() as u64;
        self.put(records, HeldBytes::Memory(records.bytes.clone()))
    }

    /// The same of what was staged.
    pub fn keep_staged(&mut self, records: &Records, pieces: Vec<DataPiece>) -> Vec<DataPlace> {
        self.put(records, HeldBytes::Staged(pieces))
    }

    fn put(&mut self, records: &Records, held: HeldBytes) -> Vec<DataPlace> {
        self.last += 1;
        self.all.insert(self.last, held);
        let begin = self.last << OFFSET_BITS;
        let mut at = begin;
        let place = |len: &u32| {
            // Behind the last byte of the longest data the next number begins: a record without bytes is there of this one all the same.
            let at_begin = if *len == 0 { begin } else { at };
            at += u64::from(*len);
            DataPlace {
                at: at_begin,
                bytes: *len,
            }
        };
        records.lens.iter().map(place).collect()
    }

    /// Lets data go. The pieces of it that were staged.
    pub fn remove(&mut self, number: u64) -> Vec<DataPiece> {
        match self.all.remove(&number) {
            Some(HeldBytes::Memory(bytes)) => {
                self.bytes -= bytes.len() as u64;
                Vec::new()
            }
            Some(HeldBytes::Staged(pieces)) => pieces,
            None => Vec::new(),
        }
    }

    /// The data as an entry is made with it.
    pub fn data(&self, number: u64) -> NewData<'_> {
        match self.all.get(&number) {
            Some(HeldBytes::Memory(bytes)) => NewData::Bytes(bytes),
            Some(HeldBytes::Staged(pieces)) => NewData::Staged(pieces),
            None => NewData::Nothing,
        }
    }

    /// Bytes of data that the entries will bring, and bytes of their frames.
    pub fn to_come(&self) -> (u64, u64) {
        let frames = self.all.len() as u64 * ENTRY_BYTES;
        (self.bytes + self.bytes / 8, frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{DATA_BYTES_MAX, data_of};

    /// Regression: the place of a record without bytes behind the longest data was that of the next append, and went with it.
    #[test]
    fn every_record_is_in_the_data_of_its_own_append() {
        let mut held = HeldData::default();
        let records = Records {
            lens: vec![DATA_BYTES_MAX as u32, 0],
            bytes: vec![7; DATA_BYTES_MAX].into(),
        };
        let places = held.keep(&records);
        let numbers: Vec<u64> = places.iter().map(data_of).collect();
        assert_eq!(numbers, [1, 1]);
    }
}
