//! The places of a bucket's chunks in its pages.
//!
//! ```text
//!   place 0          place 1      place 2      place 3
//!   +-------+------+------------+------------+------------+
//!   | table | free |  a chunk   |  a chunk   |  not taken |
//!   +-------+------+------------+------------+------------+
//!   0       4096   65,536       131,072      196,608
//!
//!   table: for each chunk of the bucket, in order, a u16 LE: its place, or 0 while it has none;
//!   at 2048 a u64 LE: the session that may write, if the region is a volume that was ever attached, or 0.
//! ```
//!
//! The table is a page like any other: it is coded, fetched and rebuilt with them. The lowest free place is taken
//! first, so the bytes of a bucket lie close together however widely its region is written. A place
//! that is free is all zeroes, and a chunk without a place reads as zeroes.

use staves_model::{BUCKET_CHUNKS, CHUNK_BYTES, PAGE_BYTES};
use staves_store::{EXTENT_BYTES, Pages};
use staves_wire::group::{Run, RunKind};

/// The page of the table.
pub(crate) const TABLE_PAGE: u32 = 0;
const ENTRY_BYTES: usize = 2;
/// The offset of the session.
const SESSION_AT: usize = BUCKET_CHUNKS as usize * ENTRY_BYTES;
const SESSION_BYTES: usize = 8;
const _: () = assert!(SESSION_AT + SESSION_BYTES <= PAGE_BYTES);
/// Places of one extent.
const EXTENT_PLACES: u16 = (EXTENT_BYTES as u64 / CHUNK_BYTES) as u16;
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

/// The lowest place that no chunk has. The table's page must be here.
pub(crate) fn free_place(pages: &Pages) -> u16 {
    let mut taken = [false; BUCKET_CHUNKS as usize + 1];
    for (_, place) in self::taken(pages) {
        if let Some(taken) = taken.get_mut(usize::from(place)) {
            *taken = true;
        }
    }
    let mut places = (1..).zip(&taken[1..]);
    let free = places.find(|(_, taken)| !**taken);
    // A chunk that has none leaves one.
    free.map_or(BUCKET_CHUNKS as u16, |(place, _)| place)
}

/// The session that may write. The table's page must be here.
pub(crate) fn session(pages: &Pages) -> u64 {
    let session = pages.slice(SESSION_AT as u64, SESSION_BYTES);
    session.try_into().map_or(0, u64::from_le_bytes)
}

/// The change to the table that lets a session write, and no earlier one.
pub(crate) fn session_entry(session: u64) -> (Run, [u8; SESSION_BYTES]) {
    let run = Run {
        offset: SESSION_AT as u64,
        len: SESSION_BYTES as u32,
        kind: RunKind::Bytes,
    };
    (run, session.to_le_bytes())
}

/// The extent of a place, if that place is the only one in it that is taken. The table's page must be here.
pub(crate) fn extent_of_last(pages: &Pages, place: u16) -> Option<u64> {
    let extent = place / EXTENT_PLACES;
    let others = taken(pages).filter(|(_, other)| *other / EXTENT_PLACES == extent);
    // The first extent has the table.
    (extent > 0 && others.count() == 1).then(|| u64::from(extent) * EXTENT_BYTES as u64)
}

/// The change to the table that gives a chunk its place; 0 takes it away.
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
