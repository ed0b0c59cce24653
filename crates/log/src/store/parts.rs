//! Checkpoints that are too large for one delta: made in parts, with changes of the log between them.
//!
//! A checkpoint is the state after one entry, its *base*. Its bytes are written as entries of their own, one delta each, and at last an entry names
//! them all. That one stands for the entries up to the base, and for none of those that came between the parts. Parts that none names are dead
//! once another checkpoint of the log is begun: whoever had begun theirs is gone.

use super::ledger::{CheckpointOf, Ledger};
use super::stored::StoredEntry;

/// Bytes of a part.
pub(crate) const PART_BYTES: usize = 192 << 10;

/// A checkpoint on its way to the pages.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointParts {
    of: CheckpointOf,
    base: u64,
    bytes: Vec<u8>,
    part_bytes: usize,
    written: usize,
    numbers: Vec<u64>,
}

impl CheckpointParts {
    /// The checkpoint of a state after the entry `base`, as one entry would have it, in parts of so many bytes.
    pub(crate) fn new(
        of: CheckpointOf,
        base: u64,
        bytes: Vec<u8>,
        part_bytes: usize,
    ) -> CheckpointParts {
        CheckpointParts {
            of,
            base,
            bytes,
            part_bytes,
            written: 0,
            numbers: Vec::new(),
        }
    }

    /// True if what it is of was forgotten, or deleted, since it was begun: the rest would be in vain.
    pub(crate) fn is_void(&self, ledger: &Ledger) -> bool {
        ledger.is_gone_since(&self.of, self.base)
    }

    /// The next entry: a part, or the one that names all parts, which is the last.
    pub(crate) fn next_entry(&self) -> StoredEntry {
        let (of, base) = (self.of.clone(), self.base);
        match &self.bytes[self.written..] {
            [] => StoredEntry::Parted(of, base, self.numbers.clone()),
            rest => {
                let part = &rest[..rest.len().min(self.part_bytes)];
                StoredEntry::Part(of, base, part.to_vec())
            }
        }
    }

    /// The next entry was made, with this number. True if it was the last.
    pub(crate) fn made(&mut self, number: u64) -> bool {
        if self.written == self.bytes.len() {
            return true;
        }
        self.written += self.part_bytes.min(self.bytes.len() - self.written);
        self.numbers.push(number);
        false
    }
}
