//! The bounds of a table of pages, and what is written with each checkpoint.

use crate::device::BLOCK_BYTES;

/// So many bytes of rows that have not changed are written for each byte of change.
pub(super) const SWEPT_PER_CHANGED: usize = 4;
/// A checkpoint's changes count as so many bytes at least: those of a block that holds little else.
pub(super) const CHANGE_BYTES_MIN: usize = BLOCK_BYTES;
/// The changes of one checkpoint take at most this part of the largest record: four times as much is written with them, and a header more.
pub(super) const CHANGE_PART: usize = 8;
/// The rows of the table take at most so many hundredths of its ring: two sweeps and the changes beside them fit into what is not reserved.
pub(super) const ROWS_PART: u64 = 29;
/// The smallest table: what has been said holds from there on.
pub(super) const TABLE_BYTES_MIN: u64 = 1 << 20;
/// Most rows in a change.
pub(super) const ROWS_MAX: usize = 1024;
/// A member's part of the table beside its rows and its header.
pub(super) const MEMBER_BYTES: u64 = 128;
