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
//!   at 2048 a u64 LE: the session that may write, if the region is a volume that was ever attached, or 0;
//!   at 2064, in the head of place 0: 64 entries of 8 bytes, one for each further image, without gaps: a u32 LE, its number, a
//!   u16 LE, the place that its table has, and two zero bytes. The first entry whose number is 0 ends them.
//! ```
//!
//! The pages of the table are pages like any other: they are coded, fetched and rebuilt with them. The lowest free place is taken
//! first, so the bytes of a bucket lie close together however widely its region is written. A place
//! that is free is all zeroes, and a chunk without a place reads as zeroes.
//!
//! **Images.** A snapshot or a clone of a volume is an image of its own in the buckets that the volume had then: a table like the first one, at the
//! beginning of a place that it has for itself. A copy of an image is a copy of its table: both have the same places then. A place that
//! several tables have is never written to; a write takes another place and copies what it does not overwrite.
//!
//! A bucket does not know how many bytes its region gives it: it bears as many as any may have. Its places are more than that has
//! chunks, for the sake of images.

use staves_group::PageTable;
use staves_model::{BUCKET_CHUNKS_MAX, CHUNK_BYTES, PAGE_BYTES};
use staves_store::{BUCKET_EXTENTS_MAX, EXTENT_BYTES};
use staves_wire::group::{Run, RunKind};

/// The first page of a table: it has the session, too.
pub(crate) const HEAD_PAGE: u32 = 0;
const ENTRY_BYTES: usize = 2;
/// Chunks whose entries are in the head.
const HEAD_CHUNKS: u32 = 1024;
/// Chunks whose entries are in each further page.
const PAGE_CHUNKS: u32 = (PAGE_BYTES / ENTRY_BYTES) as u32;
/// All pages of a table.
pub(crate) const TABLE_PAGES: u32 = 1 + (BUCKET_CHUNKS_MAX - HEAD_CHUNKS).div_ceil(PAGE_CHUNKS);
const _: () = assert!(TABLE_PAGES as u64 * PAGE_BYTES as u64 <= CHUNK_BYTES);
// A place has a number of two bytes.
const _: () = assert!(BUCKET_CHUNKS_MAX < PLACE_MAX as u32);
const _: () = assert!(
    (PLACE_MAX as u64 + 1) * CHUNK_BYTES <= BUCKET_EXTENTS_MAX as u64 * EXTENT_BYTES as u64
);
/// The offset of the session in a table.
const SESSION_AT: usize = HEAD_CHUNKS as usize * ENTRY_BYTES;
const SESSION_BYTES: usize = 8;
/// The offset of the list of images.
const IMAGES_AT: usize = 2064;
const IMAGE_BYTES: usize = 8;
/// Most further images of a bucket.
pub(crate) const IMAGES_MAX: usize = 64;
const _: () = assert!(SESSION_AT + SESSION_BYTES <= IMAGES_AT);
const _: () = assert!(IMAGES_AT + IMAGES_MAX * IMAGE_BYTES <= PAGE_BYTES);
/// The highest place.
pub(crate) const PLACE_MAX: u16 = u16::MAX;

/// The table of an image, by the place that it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Table(u16);

/// The table of the image that the bucket was made for.
pub(crate) const FIRST: Table = Table(0);

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

impl Table {
    /// The table of an image; `None` if the bucket has no such image. The head of the first table must be here.
    pub(crate) fn of(pages: &PageTable, image: u32) -> Option<Table> {
        if image == 0 {
            return Some(FIRST);
        }
        let mut all = images(pages);
        all.find(|(number, _)| *number == image)
            .map(|(_, table)| table)
    }

    /// The table that begins at a place of its own.
    pub(crate) fn at_place(place: u16) -> Table {
        Table(place)
    }

    /// The place that it has.
    pub(crate) fn place(self) -> u16 {
        self.0
    }

    /// The offset of one of its bytes in the bucket.
    fn at(self, within: u64) -> u64 {
        at(self.0, 0) + within
    }

    fn page(self, page: u32) -> u32 {
        (self.at(0) / PAGE_BYTES as u64) as u32 + page
    }

    /// Its pages with the entries of these chunks, the last one included.
    pub(crate) fn run(self, first: u32, last: u32) -> Run {
        let page = |chunk| entry_at(chunk) / PAGE_BYTES as u64;
        let (from, to) = (page(first), page(last));
        run(
            self.at(from * PAGE_BYTES as u64),
            (to + 1 - from) * PAGE_BYTES as u64,
        )
    }

    /// All of it.
    pub(crate) fn whole(self) -> Run {
        self.run(0, BUCKET_CHUNKS_MAX - 1)
    }

    /// The place of a chunk; `None` while it has none. Its page of the table must be here.
    pub(crate) fn place_of(self, pages: &PageTable, chunk: u32) -> Option<u16> {
        let at = entry_at(chunk);
        if self.is_unwritten(pages, (at / PAGE_BYTES as u64) as u32) {
            return None;
        }
        let entry = pages.pages().slice(self.at(at), ENTRY_BYTES);
        match u16::from_le_bytes([entry[0], entry[1]]) {
            0 => None,
            place => Some(place),
        }
    }

    // Most buckets never write to the pages behind the head, and a look at such a page of a disk would give it memory.
    fn is_unwritten(self, pages: &PageTable, page: u32) -> bool {
        page != HEAD_PAGE && pages.label(self.page(page), 0) == Default::default()
    }

    /// The session that may write. Its head must be here.
    pub(crate) fn session(self, pages: &PageTable) -> u64 {
        let session = pages
            .pages()
            .slice(self.at(SESSION_AT as u64), SESSION_BYTES);
        session.try_into().map_or(0, u64::from_le_bytes)
    }

    /// The change that lets a session write, and no earlier one.
    pub(crate) fn session_entry(self, session: u64) -> (Run, [u8; SESSION_BYTES]) {
        let run = run(self.at(SESSION_AT as u64), SESSION_BYTES as u64);
        (run, session.to_le_bytes())
    }

    /// The change that gives a chunk its place; 0 takes it away.
    pub(crate) fn entry(self, chunk: u32, place: u16) -> (Run, [u8; ENTRY_BYTES]) {
        let run = run(self.at(entry_at(chunk)), ENTRY_BYTES as u64);
        (run, place.to_le_bytes())
    }

    /// The changes that take the places of all these chunks away, the last one included.
    pub(crate) fn no_entries(self, first: u32, last: u32) -> impl Iterator<Item = (Run, Vec<u8>)> {
        let parts = [
            (first, last.min(HEAD_CHUNKS - 1)),
            (first.max(HEAD_CHUNKS), last),
        ];
        let parts = parts.into_iter().filter(|(first, last)| first <= last);
        parts.map(move |(first, last)| {
            let none = vec![0; (last + 1 - first) as usize * ENTRY_BYTES];
            (run(self.at(entry_at(first)), none.len() as u64), none)
        })
    }

    /// Chunks that have a place, in order of chunk. All of the table must be here.
    pub(crate) fn taken(self, pages: &PageTable) -> impl Iterator<Item = (u32, u16)> + '_ {
        let written = (HEAD_PAGE..TABLE_PAGES).filter(move |page| !self.is_unwritten(pages, *page));
        written.flat_map(move |page| {
            let (first, _) = chunks_of(page);
            let entries = pages
                .pages()
                .slice(self.entries(page).offset, entry_bytes(page));
            let places = entries.as_chunks::<ENTRY_BYTES>().0.iter();
            let places = places.map(|entry| u16::from_le_bytes(*entry));
            (first..).zip(places).filter(|(_, place)| *place != 0)
        })
    }

    /// The entries that one of its pages has.
    fn entries(self, page: u32) -> Run {
        run(
            self.at(u64::from(page) * PAGE_BYTES as u64),
            entry_bytes(page) as u64,
        )
    }

    /// The changes that make another table a copy of it, but for the session; of pages that have no entry there is none.
    /// All of it must be here.
    pub(crate) fn copied_to(
        self,
        pages: &PageTable,
        copy: Table,
    ) -> impl Iterator<Item = (Run, &[u8])> {
        let written = (HEAD_PAGE..TABLE_PAGES).filter(move |page| !self.is_unwritten(pages, *page));
        let entries = written.map(move |page| {
            let of = self.entries(page);
            let bytes = pages.pages().slice(of.offset, of.len as usize);
            (copy.entries(page), bytes)
        });
        entries.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0))
    }

    /// True if all of it is here.
    pub(crate) fn is_here(self, pages: &PageTable) -> bool {
        (HEAD_PAGE..TABLE_PAGES).all(|page| pages.is_here(self.page(page)))
    }
}

/// The chunks whose entries are in a page of a table: the first, and how many.
fn chunks_of(page: u32) -> (u32, u32) {
    match page {
        HEAD_PAGE => (0, HEAD_CHUNKS),
        page => (HEAD_CHUNKS + (page - 1) * PAGE_CHUNKS, PAGE_CHUNKS),
    }
}

fn entry_bytes(page: u32) -> usize {
    chunks_of(page).1 as usize * ENTRY_BYTES
}

/// The images that the bucket has beside the first, in the order of the list. The head of the first table must be here.
pub(crate) fn images(pages: &PageTable) -> impl Iterator<Item = (u32, Table)> + '_ {
    let list = pages
        .pages()
        .slice(IMAGES_AT as u64, IMAGES_MAX * IMAGE_BYTES);
    let entries = list.as_chunks::<IMAGE_BYTES>().0.iter();
    let entries = entries.map(|[a, b, c, d, low, high, ..]| {
        let number = u32::from_le_bytes([*a, *b, *c, *d]);
        (number, Table(u16::from_le_bytes([*low, *high])))
    });
    entries.take_while(|(number, _)| *number != 0)
}

/// All tables, the first one first.
pub(crate) fn tables(pages: &PageTable) -> impl Iterator<Item = Table> + '_ {
    std::iter::once(FIRST).chain(images(pages).map(|(_, table)| table))
}

/// True if all of all tables is here.
pub(crate) fn are_here(pages: &PageTable) -> bool {
    pages.is_here(HEAD_PAGE) && tables(pages).all(|table| table.is_here(pages))
}

/// The change that puts an image at an index of the list; none ends the list there.
pub(crate) fn listed(index: usize, image: Option<(u32, Table)>) -> (Run, [u8; IMAGE_BYTES]) {
    let mut bytes = [0; IMAGE_BYTES];
    if let Some((number, table)) = image {
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes[4..6].copy_from_slice(&table.0.to_le_bytes());
    }
    let at = IMAGES_AT + index * IMAGE_BYTES;
    (run(at as u64, IMAGE_BYTES as u64), bytes)
}

/// The bytes of a place.
pub(crate) fn of_place(place: u16) -> Run {
    run(at(place, 0), CHUNK_BYTES)
}

/// Bytes of these.
pub(crate) fn run(offset: u64, len: u64) -> Run {
    Run {
        offset,
        len: len as u32,
        kind: RunKind::Bytes,
    }
}

/// Extents in use once places up to this one are taken.
pub(crate) fn extents_upto(place: u16) -> u32 {
    staves_store::extents_for((u64::from(place) + 1) * CHUNK_BYTES)
}
