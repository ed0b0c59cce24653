//! The places of a bucket's chunks in its pages.
//!
//! ```text
//!   place 0                   place 1      place 2      place 3
//!   +------+----------+------+------------+------------+------------+
//!   | head | the rest | free |  a chunk   |  a chunk   |  not taken |
//!   +------+----------+------+------------+------------+------------+
//!   0      4096     36,864   65,536       131,072      196,608
//!
//!   table: for each chunk of the bucket, in order, a u16 LE: its place, or 0 while it has none. The first 1,024 are in the
//!   head, and 2,048 in each of the eight pages behind it, which only buckets of more than 64 MiB ever write to;
//!   at 2048 a u64 LE: the session that may write, if the region is a volume that was ever attached, or 0.
//! ```
//!
//! The pages of the table are pages like any other: they are coded, fetched and rebuilt with them. The lowest free place is taken
//! first, so the bytes of a bucket lie close together however widely its region is written. A place
//! that is free is all zeroes, and a chunk without a place reads as zeroes.
//!
//! A bucket does not know how many bytes its region gives it: it bears as many as any may have.

use staves_group::PageTable;
use staves_model::{BUCKET_CHUNKS_MAX, CHUNK_BYTES, PAGE_BYTES};
use staves_store::Pages;
use staves_wire::group::{Run, RunKind};

/// The first page of the table: it has the session, too.
pub(crate) const HEAD_PAGE: u32 = 0;
const ENTRY_BYTES: usize = 2;
/// Chunks whose entries are in the head.
const HEAD_CHUNKS: u32 = 1024;
/// Chunks whose entries are in each further page.
const PAGE_CHUNKS: u32 = (PAGE_BYTES / ENTRY_BYTES) as u32;
/// All pages of the table.
pub(crate) const TABLE_PAGES: u32 = 1 + (BUCKET_CHUNKS_MAX - HEAD_CHUNKS).div_ceil(PAGE_CHUNKS);
const _: () = assert!(TABLE_PAGES as u64 * PAGE_BYTES as u64 <= CHUNK_BYTES);
// A place has a number of two bytes.
const _: () = assert!(BUCKET_CHUNKS_MAX < u16::MAX as u32);
/// The offset of the session.
const SESSION_AT: usize = HEAD_CHUNKS as usize * ENTRY_BYTES;
const SESSION_BYTES: usize = 8;
const _: () = assert!(SESSION_AT + SESSION_BYTES <= PAGE_BYTES);

/// The chunk of an offset.
pub(crate) fn chunk_of(offset: u64) -> u32 {
    (offset / CHUNK_BYTES) as u32
}

/// The byte at `offset` of the bucket, in the place that its chunk has.
pub(crate) fn at(place: u16, offset: u64) -> u64 {
    u64::from(place) * CHUNK_BYTES + offset % CHUNK_BYTES
}

/// The offset of a chunk's entry.
fn entry_at(chunk: u32) -> u64 {
    let within = match chunk.checked_sub(HEAD_CHUNKS) {
        None => chunk as usize * ENTRY_BYTES,
        Some(behind) => PAGE_BYTES + behind as usize * ENTRY_BYTES,
    };
    within as u64
}

/// The pages of the table with the entries of these chunks, the last one included.
pub(crate) fn table_of(first: u32, last: u32) -> Run {
    let page = |chunk| entry_at(chunk) / PAGE_BYTES as u64;
    let (from, to) = (page(first), page(last));
    run(
        from * PAGE_BYTES as u64,
        (to + 1 - from) * PAGE_BYTES as u64,
    )
}

/// All of the table.
pub(crate) fn whole_table() -> Run {
    table_of(0, BUCKET_CHUNKS_MAX - 1)
}

/// Bytes of these.
pub(crate) fn run(offset: u64, len: u64) -> Run {
    Run {
        offset,
        len: len as u32,
        kind: RunKind::Bytes,
    }
}

/// The place of a chunk; `None` while it has none. Its page of the table must be here.
pub(crate) fn place_of(table: &PageTable, chunk: u32) -> Option<u16> {
    let at = entry_at(chunk);
    if is_unwritten(table, (at / PAGE_BYTES as u64) as u32) {
        return None;
    }
    let entry = table.pages().slice(at, ENTRY_BYTES);
    match u16::from_le_bytes([entry[0], entry[1]]) {
        0 => None,
        place => Some(place),
    }
}

// Most buckets never write to the pages behind the head, and a look at such a page of a disk would give it memory.
fn is_unwritten(table: &PageTable, page: u32) -> bool {
    page != HEAD_PAGE && table.label(page, 0) == Default::default()
}

/// The session that may write. The table's head must be here.
pub(crate) fn session(pages: &Pages) -> u64 {
    let session = pages.slice(SESSION_AT as u64, SESSION_BYTES);
    session.try_into().map_or(0, u64::from_le_bytes)
}

/// The change to the table that lets a session write, and no earlier one.
pub(crate) fn session_entry(session: u64) -> (Run, [u8; SESSION_BYTES]) {
    let run = run(SESSION_AT as u64, SESSION_BYTES as u64);
    (run, session.to_le_bytes())
}

/// The change to the table that gives a chunk its place; 0 takes it away.
pub(crate) fn entry(chunk: u32, place: u16) -> (Run, [u8; ENTRY_BYTES]) {
    let run = run(entry_at(chunk), ENTRY_BYTES as u64);
    (run, place.to_le_bytes())
}

/// Extents in use once places up to this one are taken.
pub(crate) fn extents_upto(place: u16) -> u32 {
    staves_store::extents_for((u64::from(place) + 1) * CHUNK_BYTES)
}

/// Chunks that have a place, in order of chunk. All pages of the table must be here.
pub(crate) fn taken(table: &PageTable) -> impl Iterator<Item = (u32, u16)> + '_ {
    let pages = (HEAD_PAGE..TABLE_PAGES).filter(|page| !is_unwritten(table, *page));
    pages.flat_map(|page| {
        let (first, count) = match page {
            HEAD_PAGE => (0, HEAD_CHUNKS),
            page => (HEAD_CHUNKS + (page - 1) * PAGE_CHUNKS, PAGE_CHUNKS),
        };
        let at = u64::from(page) * PAGE_BYTES as u64;
        let entries = table.pages().slice(at, count as usize * ENTRY_BYTES);
        let places = entries.as_chunks::<ENTRY_BYTES>().0.iter();
        let places = places.map(|entry| u16::from_le_bytes(*entry));
        (first..).zip(places).filter(|(_, place)| *place != 0)
    })
}

/// True if all pages of the table are here.
pub(crate) fn is_here(table: &PageTable) -> bool {
    (HEAD_PAGE..TABLE_PAGES).all(|page| table.is_here(page))
}
