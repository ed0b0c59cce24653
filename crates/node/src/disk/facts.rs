//! A disk's report of itself.

use serde::{Deserialize, Serialize};
use staves_model::PAGE_BYTES;

use super::NodeDisk;

/// The state of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskState {
    /// It is used.
    #[default]
    Healthy,
    /// Its buckets are brought elsewhere.
    Draining,
    /// It has nothing any more, and may be taken out.
    Drained,
    /// It is not used: it failed, or could not be opened.
    Failed,
}

impl DiskState {
    /// The word for people.
    pub fn word(self) -> &'static str {
        match self {
            DiskState::Healthy => "healthy",
            DiskState::Draining => "draining",
            DiskState::Drained => "drained",
            DiskState::Failed => "failed",
        }
    }
}

/// A disk of a node, as it stands.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskFacts {
    /// Its folder.
    pub folder: String,
    /// Its state.
    pub state: DiskState,
    /// The reason why it failed; empty otherwise.
    pub why: String,
    /// Buckets on it.
    pub buckets: u64,
    /// Bytes of pages that it takes.
    pub bytes: u64,
    /// Bytes of pages that it keeps, without those that are zero.
    pub used_bytes: u64,
    /// Bytes of it that its buckets have reserved, for pages that they have and for the next ones: what is left of `bytes` is for all pools on it.
    pub reserved_bytes: u64,
    /// Bytes of pages that may be in memory, of all disks of the node.
    pub memory_bytes: u64,
    /// Bytes of pages that are, of all disks.
    pub in_memory_bytes: u64,
    /// Pages that were read because they were needed, of all disks, since the node's start.
    pub page_reads: u64,
    /// Pages that could not be read since the node's start, or were not what was written; their buckets were filled again from other copies.
    pub bad_pages: u64,
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

impl DiskFacts {
    /// All disks of a node as if they were one.
    pub fn sum(all: &[DiskFacts]) -> DiskFacts {
        let sum = |of: fn(&DiskFacts) -> u64| all.iter().map(of).sum();
        let most = |of: fn(&DiskFacts) -> u64| all.iter().map(of).max().unwrap_or(0);
        DiskFacts {
            buckets: sum(|disk| disk.buckets),
            bytes: sum(|disk| disk.bytes),
            used_bytes: sum(|disk| disk.used_bytes),
            reserved_bytes: sum(|disk| disk.reserved_bytes),
            memory_bytes: most(|disk| disk.memory_bytes),
            in_memory_bytes: most(|disk| disk.in_memory_bytes),
            page_reads: most(|disk| disk.page_reads),
            bad_pages: sum(|disk| disk.bad_pages),
            journal_bytes: sum(|disk| disk.journal_bytes),
            journal_taken_bytes: sum(|disk| disk.journal_taken_bytes),
            journal_written_bytes: sum(|disk| disk.journal_written_bytes),
            syncs: sum(|disk| disk.syncs),
            syncs_us: sum(|disk| disk.syncs_us),
            waiting: sum(|disk| disk.waiting),
            held_ms: most(|disk| disk.held_ms),
            ..DiskFacts::default()
        }
    }
}

impl NodeDisk {
    /// As it stands now.
    pub(crate) fn facts(&self) -> DiskFacts {
        let state = match self.failure() {
            Some(_) => DiskState::Failed,
            None if self.is_draining() => DiskState::Draining,
            None => DiskState::Healthy,
        };
        let why = self.failure().map(str::to_owned);
        let known = DiskFacts {
            folder: self.folder().display().to_string(),
            state,
            why: why.unwrap_or_default(),
            ..DiskFacts::default()
        };
        let Some(journal) = self.journal.get() else {
            return known;
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
            reserved_bytes: self.reserved_bytes(),
            memory_bytes: self.residency.max() * PAGE_BYTES as u64,
            in_memory_bytes: self.residency.pages() * PAGE_BYTES as u64,
            page_reads: self.residency.reads(),
            bad_pages: self.pages_lost.load(std::sync::atomic::Ordering::Relaxed),
            journal_bytes: of,
            journal_taken_bytes: of - free,
            journal_written_bytes: written,
            syncs,
            syncs_us: took.as_micros() as u64,
            waiting,
            held_ms: held.map_or(0, |held| held.as_millis() as u64),
            ..known
        }
    }
}
