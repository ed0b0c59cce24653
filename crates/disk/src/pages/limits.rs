//! The bounds of a table of pages, and what is written with each checkpoint.

use crate::device::BLOCK_BYTES;

/// So many bytes of rows that have not changed are written for each byte of change.
pub(super) const SWEPT_PER_CHANGED: usize = 4;
/// A checkpoint's changes count as so many bytes at least: those of a block that holds little else.
pub(super) const CHANGE_BYTES_MIN: usize = BLOCK_BYTES;
/// The changes of one checkpoint take at most this part of the largest record: up to sixteen times as much is written with them, and a header more.
pub(super) const CHANGE_PART: usize = 32;
/// The rows of the table take at most so many hundredths of its ring: two sweeps, the changes beside them and what fills blocks take some 60.
pub(super) const ROWS_PART: u64 = 20;
/// With less than this part of the ring free, four times as many rows are written again: a sweep ends sooner.
pub(super) const ROOM_PART: u64 = 4;
/// This part of all places is for the next versions of pages that have one, so that a full disk can be written over; and so many at least.
pub(super) const SPARE_PART: u32 = 128;
pub(super) const SPARE_MIN: u32 = 8;
/// The smallest table: what has been said holds from there on.
pub(super) const TABLE_BYTES_MIN: u64 = 1 << 20;
/// Most rows in a change.
pub(super) const ROWS_MAX: usize = 1024;
/// A member's part of the table beside its rows and its header.
pub(super) const MEMBER_BYTES: u64 = 128;
