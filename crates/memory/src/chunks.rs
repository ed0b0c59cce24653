//! The places of a bucket's chunks in its pages.
//!
//! ```text
//!   place 0          place 1      place 2      place 3
//!   +-------+------+------------+------------+------------+
//!   | table | free |  a chunk   |  a chunk   |  not taken |
//!   +-------+------+------------+------------+------------+
//!   0       4096   65,536       131,072      196,608
//!
//!   table: for each chunk of the bucket, in order, a u16 LE: its place, or 0 while it has none.
//! ```
//!
//! The table is a page like any other: it is coded, fetched and rebuilt with them. Places are taken in
//! order, so the bytes of a bucket lie close together however widely its region is written. A place
//! that was never taken is all zeroes, and a chunk without a place reads as zeroes.

use staves_model::{BUCKET_CHUNKS, CHUNK_BYTES, PAGE_BYTES};
use staves_store::{EXTENT_BYTES, Pages};
use staves_wire::group::{Run, RunKind};

/// The page of the table.
pub(crate) const TABLE_PAGE: u32 = 0;
const ENTRY_BYTES: usize = 2;
const _: () = assert!(BUCKET_CHUNKS as usize * ENTRY_BYTES <= PAGE_BYTES);
// A chunk never lies in two extents.
const _: () = assert!((EXTENT_BYTES as u64).is_multiple_of(CHUNK_BYTES));

/// The chunk of an offset.
pub(crate) fn chunk_of(offset: u64) -> u32 {
    (offset / CHUNK_BYTES) as u32
}

/// The byte at `offset` of the bucket, in the place that its chunk has.
pub(crate) fn at(place: u16, offset: u64) -> u64 {
    u64::from(place) * CHUNK_BYTES + offset % CHUNK_BYTES
}

/// The place of a chunk; `None` while it has none. The table's page must be here.
pub(crate) fn place_of(pages: &Pages, chunk: u32) -> Option<u16> {
    let entry = pages.slice(u64::from(chunk) * ENTRY_BYTES as u64, ENTRY_BYTES);
    match u16::from_le_bytes([entry[0], entry[1]]) {
        0 => None,
        place => Some(place),
    }
}

/// The next place to be taken. The table's page must be here.
pub(crate) fn next_place(pages: &Pages) -> u16 {
    let table = pages.slice(0, BUCKET_CHUNKS as usize * ENTRY_BYTES);
    let places = table.chunks_exact(ENTRY_BYTES);
    let highest = places
        .map(|entry| u16::from_le_bytes([entry[0], entry[1]]))
        .max();
    highest.unwrap_or(0) + 1
}

/// The change to the table that gives a chunk its place.
pub(crate) fn entry(chunk: u32, place: u16) -> (Run, [u8; ENTRY_BYTES]) {
    let run = Run {
        offset: u64::from(chunk) * ENTRY_BYTES as u64,
        len: ENTRY_BYTES as u32,
        kind: RunKind::Bytes,
    };
    (run, place.to_le_bytes())
}

/// Extents in use once places up to this one are taken.
pub(crate) fn extents_upto(place: u16) -> u32 {
    staves_store::extents_for((u64::from(place) + 1) * CHUNK_BYTES)
}

/// Chunks that have a place: in order of chunk. For checks, and for figures.
pub(crate) fn taken(pages: &Pages) -> impl Iterator<Item = (u32, u16)> + '_ {
    (0..BUCKET_CHUNKS).filter_map(|chunk| Some((chunk, place_of(pages, chunk)?)))
}
