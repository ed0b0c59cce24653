//! The bytes that a node keeps on a disk: the journal of its durable members.
//!
//! **Promises.** A record whose number is at or below [`Journal::synced`] survives a loss of power, a killed process, and both in any
//! order, for as long as the journal is not told to let it go. What is read back after a start is a run of records without a gap, in the order in
//! which they were appended. A torn end is told from damage in the middle: the first is normal, the second an error that says where. One hole is
//! left: damage to the last batch before a crash looks like a torn end (after a clean close it does not). A record that does not fit is refused before
//! anything is written ([`JournalError::Full`]); a part of the ring is reserved for records that let others be let go
//! ([`Journal::append_reserved`]), so that a full journal can be emptied. Once a write or a sync has failed, the journal takes
//! nothing more (rule D-9): whoever stands on it leaves its group and starts anew.
//!
//! **Path of a record.** [`Journal::append`] puts it into the next batch, in memory. Whoever drives the journal takes that batch
//! ([`Journal::next_commit`]), performs it on the [`Device`] (a write, one sync) and brings the outcome back ([`Journal::finish`]); what is
//! appended meanwhile makes the batch after it. So many that wait share one sync, and none waits for a timer. [`Committer`] is a thread that
//! does that.
//!
//! **Invariants.** One batch is under way at most. No block of the ring is written that the header on disk, synced, still names. A batch
//! counts at a start if it names this disk, its own place, the number that follows and the check sum of the batch before it; and, from the place on that the
//! newest header says was the end, if it is of that header's life. So nothing that an earlier life dropped comes back (`replay` says why).
//!
//! **Blocks elsewhere.** Whole blocks of a record may lie in the page file ([`Journal::append_placed`]), and the journal has their places and check sums:
//! so large writes are written once. They are synced with the batch, which counts only with them.
//!
//! **Layout.** `device`: what is asked of a disk. `file`: a file as one. `faulty`: the same with every fault, for tests. `format`: the bytes of the
//! journal, field by field. `journal`: the machine. `placed`: records with blocks in the page file. `commit`: its writes. `replay`: a start. `committer`: its thread.
//!
//! **Not here.** The meaning of records (`staves-group`); pages; a defence against bytes made to look like a batch: a client that knows a disk's
//! id could write some, so ids are for the cluster alone.

mod commit;
mod committer;
mod device;
#[cfg(any(test, feature = "faults"))]
pub mod faulty;
mod file;
mod format;
mod journal;
mod pages;
mod placed;
mod places;
mod replay;
#[cfg(test)]
mod tests;

pub use commit::{Commit, Performed};
pub use committer::Committer;
pub use device::{BLOCK_BYTES, Device};
pub use file::FileDevice;
pub use format::{BATCH_BYTES_MAX, DiskId, JOURNAL_BYTES_MIN, VERSION};
pub use journal::{Journal, JournalError};
pub use pages::{
    Checkpoint, Located, PAGES_VERSION, PageBytes, PageError, PageFile, PageFileError, PageImage,
    PageVersion, PageWork, PagesOpenError, PagesPerformed,
};
pub use placed::{FoundBlocks, PLACED_BYTES_MAX, PlacedBlock, RecordBytes};
pub use replay::{EachPlaced, EachRecord, OpenError};
