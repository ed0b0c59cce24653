//! The entries of a unit in the pages of its bucket.
//!
//! **Promises.** Entries are appended, all of an operation or none ([`EntryLog::append`]); a scan of the pages finds those that live, in the
//! order in which they were appended ([`EntryLog::scan`]), and a copy that follows the deltas has the same ([`EntryLog::note`]). Whoever owns the
//! entries says when one is dead ([`EntryLog::release`]); then its room comes back ([`EntryLog::free`], [`EntryLog::clean`]). Nothing that lives
//! is ever lost by that. Bytes that are no entries are an error, and never a reason to panic.
//!
//! **Layout.** The bucket is a row of *segments*, one extent (256 KiB) each. The first one has the table:
//!
//! ```text
//! segment 0     0  "staveslg", version u32 (2), 0 u32
//!            4096  a byte for each segment: 0 free, 1 entries, 2 data, 3 spare
//! spare         eight bytes 255, by which its extent exists: it becomes one of entries or of data when there is no other room
//! entries       frames, one behind the other (`frame`), up to zeroes
//! data          bytes that frames name
//! ```
//!
//! An entry has a *head*, a few bytes that its owner's state is made of, and perhaps *data*, which are only read. They lie apart, so that
//! a scan reads the table and the segments of entries, and no data: at 100 bytes of a head for each record of 4 KiB, a fortieth of what the bucket holds.
//! A frame names its data by up to 16 pieces; data of 64 KiB and more begin with a page, so that a disk writes most of their pages once.
//!
//! **Numbers.** Each entry has a number, higher than those of all before it. It keeps it when the cleaner moves it; so its owner knows entries by
//! number, and a scan in order of numbers gives the entries in order of time.
//!
//! **Staged data.** Data may be written before its entry, to room that nothing names ([`EntryLog::stage`]), and be named by a small delta later. What
//! a data bucket has staged is nobody's when it ceases to serve.

mod append;
mod clean;
mod codec;
mod edit;
mod entry_log;
mod frame;
mod ledger;
mod marks;
mod parts;
mod segments;
mod stored;
mod unit_pages;

#[cfg(test)]
mod tests;

use staves_store::EXTENT_BYTES;

pub use append::{AppendedEntry, NewData};
pub use clean::Need;
pub(crate) use codec::{CodeError, CodeReader, CodeWriter, Coded};
pub use edit::PageEdit;
pub use entry_log::{EntryLog, NotedEntry};
pub use frame::{DataPiece, HEAD_BYTES_MAX};
pub(crate) use ledger::{OFFSET_BITS, data_of};
pub(crate) use parts::{CheckpointParts, PART_BYTES};
pub(crate) use stored::StoredEntry;
pub use unit_pages::UnitPages;

/// Most bytes of one entry's data.
pub const DATA_BYTES_MAX: usize = 1 << 20;
/// Most bytes of data that one delta brings; more is staged first.
pub const INLINE_BYTES_MAX: usize = EXTENT_BYTES;
/// Most entries of one delta, and so of one operation.
pub const ENTRIES_MAX: usize = 256;
/// Most bytes of frames of one delta: two segments of entries hold them.
pub const FRAMES_BYTES_MAX: usize = EXTENT_BYTES;

/// There is no place for an append.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoPlace {
    /// All segments of the bucket are in use.
    #[error(
        "all {} segments of the bucket are in use; trim logs",
        segments::UNIT_SEGMENTS_MAX
    )]
    Segments,
    /// It is beyond a bound of one delta.
    #[error(
        "an append has at most {ENTRIES_MAX} entries, {HEAD_BYTES_MAX} bytes of a head, {FRAMES_BYTES_MAX} bytes of heads and {INLINE_BYTES_MAX} bytes of data that are not staged; split it"
    )]
    TooLarge,
}

/// Pages that are not those of a unit.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the pages of the unit are damaged at offset {at}: {why}; remove this member, so that the group fills another"
)]
pub struct PageDamage {
    /// The offset in the bucket.
    pub at: u64,
    /// The reason.
    pub why: &'static str,
}
