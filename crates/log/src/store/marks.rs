//! The entries that a scan of a unit's pages has found to stand for others.

use std::collections::BTreeMap;

use super::ledger::{CheckpointOf, owner_of};
use super::stored::StoredEntry;
use crate::entry::Entry;

/// A checkpoint that a scan has found.
#[derive(Clone, Default)]
pub(super) struct FoundCheckpoint {
    pub number: u64,
    /// The last entry that it stands for.
    pub base: u64,
    pub parts: Vec<u64>,
}

/// Entries up to which nothing counts any more but a checkpoint, by what they are of.
#[derive(Default)]
pub(super) struct Marks {
    pub checkpoints: BTreeMap<CheckpointOf, FoundCheckpoint>,
    pub forgotten: BTreeMap<CheckpointOf, u64>,
    /// The last entry that has the number of logs that were ever created here.
    pub counter: u64,
}

impl Marks {
    /// Takes in an entry that a scan has found, in order.
    pub fn see(&mut self, number: u64, entry: &StoredEntry) {
        if let StoredEntry::Record(..) | StoredEntry::Change(Entry::Create { .. }) = entry {
            self.counter = number;
        }
        match entry {
            StoredEntry::Share(..) | StoredEntry::Record(..) | StoredEntry::Parted(..) => {
                let (base, parts) = match entry {
                    StoredEntry::Parted(_, base, parts) => (*base, parts.clone()),
                    _ => (number, Vec::new()),
                };
                let found = FoundCheckpoint {
                    number,
                    base,
                    parts,
                };
                self.checkpoints.insert(owner_of(entry), found);
            }
            StoredEntry::Change(Entry::Forget { .. } | Entry::Delete { .. }) => {
                self.forgotten.insert(owner_of(entry), number);
            }
            StoredEntry::Change(_) | StoredEntry::Part(..) => {}
        }
    }
}
