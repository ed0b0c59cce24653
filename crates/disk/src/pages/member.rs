//! The pages that are kept of a member, by number, as the table has them.

use std::collections::BTreeMap;

use staves_model::{Epoch, Label, MemberSlot};

use super::format::{PageRow, row_bytes};
use super::limits::{MEMBER_BYTES, ROWS_MAX};

/// A row of the table in memory. Its labels lie beside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredRow {
    pub(super) place: u32,
    pub(super) sum: u32,
    pub(super) join: Epoch,
    pub(super) is_there: bool,
}

const NO_ROW: StoredRow = StoredRow {
    place: 0,
    sum: 0,
    join: Epoch(0),
    is_there: false,
};

/// Rows that lie together in memory: a page that is far from all others costs no more than these.
const CHUNK: u32 = 64;

/// Rows and their labels; those that are not there are empty.
#[derive(Clone, Debug)]
struct RowChunk {
    rows: Vec<StoredRow>,
    labels: Vec<Label>,
    /// Rows that are there.
    count: usize,
}

/// A member's pages and header.
#[derive(Debug, Default)]
pub(super) struct StoredMember {
    pub(super) header: Option<Vec<u8>>,
    pub(super) slot: MemberSlot,
    /// Labels of each page; 0 while it has no page.
    pub(super) columns: usize,
    /// By number of the page, in chunks.
    chunks: BTreeMap<u32, RowChunk>,
    /// Rows that are there.
    pub(super) count: usize,
}

impl StoredMember {
    /// A member without pages, whose pages have so many labels.
    pub(super) fn clear(&mut self, slot: MemberSlot, columns: usize) {
        (self.slot, self.columns) = (slot, columns);
        self.chunks.clear();
    }

    pub(super) fn row(&self, page: u32) -> Option<StoredRow> {
        let chunk = self.chunks.get(&(page / CHUNK))?;
        let row = chunk.rows[(page % CHUNK) as usize];
        Some(row).filter(|row| row.is_there)
    }

    pub(super) fn labels_of(&self, page: u32) -> Option<&[Label]> {
        let chunk = self.chunks.get(&(page / CHUNK))?;
        let at = (page % CHUNK) as usize * self.columns;
        Some(&chunk.labels[at..at + self.columns])
    }

    pub(super) fn page_row(&self, page: u32) -> Option<PageRow> {
        let row = self.row(page)?;
        Some(PageRow {
            page,
            place: row.place,
            sum: row.sum,
            join: row.join,
            labels: self.labels_of(page)?.to_vec(),
        })
    }

    /// All of its rows from a page on, in order.
    pub(super) fn rows(&self, from: u32) -> impl Iterator<Item = (u32, StoredRow)> + '_ {
        let chunks = self.chunks.range(from / CHUNK..);
        let rows = chunks.flat_map(|(chunk, of)| {
            let pages = (0..CHUNK).map(move |at| chunk * CHUNK + at);
            pages.zip(of.rows.iter().copied())
        });
        rows.filter(move |(page, row)| *page >= from && row.is_there)
    }

    /// Takes a row, and returns the one that it had of that page.
    pub(super) fn put(&mut self, row: &PageRow) -> Option<StoredRow> {
        let before = self.row(row.page);
        let columns = self.columns;
        let chunk = self.chunks.entry(row.page / CHUNK);
        let chunk = chunk.or_insert_with(|| RowChunk {
            rows: vec![NO_ROW; CHUNK as usize],
            labels: vec![Label::default(); CHUNK as usize * columns],
            count: 0,
        });
        let at = (row.page % CHUNK) as usize;
        chunk.rows[at] = StoredRow {
            place: row.place,
            sum: row.sum,
            join: row.join,
            is_there: true,
        };
        chunk.labels[at * columns..][..columns].copy_from_slice(&row.labels);
        chunk.count += usize::from(before.is_none());
        self.count += usize::from(before.is_none());
        before
    }

    /// Rows from a page on: as many as a record has, and as fit into so many bytes, but one at least.
    pub(super) fn rows_from(&self, page: u64, bytes: usize) -> Vec<PageRow> {
        let most = (bytes / row_bytes(self.columns)).clamp(1, ROWS_MAX);
        let Ok(page) = u32::try_from(page) else {
            return Vec::new(); // behind the last page that there can be
        };
        let pages = self.rows(page).map(|(page, _)| page).take(most);
        pages.filter_map(|page| self.page_row(page)).collect()
    }

    pub(super) fn forget(&mut self, page: u32) -> Option<StoredRow> {
        let before = self.row(page)?;
        let chunk = self.chunks.get_mut(&(page / CHUNK))?;
        chunk.rows[(page % CHUNK) as usize] = NO_ROW;
        chunk.count -= 1;
        if chunk.count == 0 {
            self.chunks.remove(&(page / CHUNK));
        }
        self.count -= 1;
        Some(before)
    }

    /// The bytes of the table that it takes at most.
    pub(super) fn bytes(&self) -> u64 {
        let header = self.header.as_ref().map_or(0, Vec::len) as u64;
        MEMBER_BYTES + header + self.count as u64 * row_bytes(self.columns) as u64
    }
}
