//! A disk's report of itself.

use serde::{Deserialize, Serialize};
use staves_model::PAGE_BYTES;

use super::NodeDisk;

/// The disk of a node, as it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskFacts {
    /// Bytes of pages that it takes.
    pub bytes: u64,
    /// Bytes of pages that it keeps, without those that are zero.
    pub used_bytes: u64,
    /// Bytes of pages that may be in memory.
    pub memory_bytes: u64,
    /// Bytes of pages that are.
    pub in_memory_bytes: u64,
    /// Pages that were read from it because they were needed, since the node's start.
    pub page_reads: u64,
    /// Bytes of its journal.
    pub journal_bytes: u64,
    /// Bytes of those that hold records which a start would need, or on their way there.
    pub journal_taken_bytes: u64,
    /// Bytes that were written to the journal since the disk was made.
    pub journal_written_bytes: u64,
    /// Writes and syncs of the journal since the node's start.
    pub syncs: u64,
    /// The time that these took together, in microseconds.
    pub syncs_us: u64,
    /// Buckets that it has and that are served by nobody here: they wait for other disks, or are not needed any more.
    pub waiting: u64,
    /// For so long buckets on it have taken no update, for want of room in the journal; 0 while they do.
    pub held_ms: u64,
}

impl NodeDisk {
    /// As it stands now.
    pub(crate) fn facts(&self) -> DiskFacts {
        let Some(journal) = self.journal.get() else {
            return DiskFacts::default();
        };
        let waiting = self.recovered.lock().len() as u64;
        let (used, _) = self.store.lock().page_file().places();
        let (of, free, written) =
            journal.look(|journal| (journal.ring_bytes(), journal.room_reserved(), journal.end()));
        let (syncs, took) = journal.commits();
        let held = self.held_since.lock().map(|since| since.elapsed());
        DiskFacts {
            bytes: self.page_bytes,
            used_bytes: u64::from(used) * PAGE_BYTES as u64,
            memory_bytes: self.residency.max() * PAGE_BYTES as u64,
            in_memory_bytes: self.residency.pages() * PAGE_BYTES as u64,
            page_reads: self.residency.reads(),
            journal_bytes: of,
            journal_taken_bytes: of - free,
            journal_written_bytes: written,
            syncs,
            syncs_us: took.as_micros() as u64,
            waiting,
            held_ms: held.map_or(0, |held| held.as_millis() as u64),
        }
    }
}
