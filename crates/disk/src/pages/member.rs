//! The pages that are kept of a member, by number, as the table has them.

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

/// A member's pages and header.
#[derive(Debug, Default)]
pub(super) struct StoredMember {
    pub(super) header: Option<Vec<u8>>,
    pub(super) slot: MemberSlot,
    /// Labels of each page; 0 while it has no page.
    pub(super) columns: usize,
    /// By page.
    pub(super) rows: Vec<StoredRow>,
    pub(super) labels: Vec<Label>,
    /// Rows that are there.
    pub(super) count: usize,
}

impl StoredMember {
    pub(super) fn row(&self, page: u32) -> Option<StoredRow> {
        let row = self.rows.get(page as usize).copied();
        row.filter(|row| row.is_there)
    }

    fn labels_of(&self, page: u32) -> &[Label] {
        &self.labels[page as usize * self.columns..][..self.columns]
    }

    pub(super) fn page_row(&self, page: u32) -> Option<PageRow> {
        let row = self.row(page)?;
        Some(PageRow {
            page,
            place: row.place,
            sum: row.sum,
            join: row.join,
            labels: self.labels_of(page).to_vec(),
        })
    }

    /// Takes a row, and returns the one that it had of that page.
    pub(super) fn put(&mut self, row: &PageRow) -> Option<StoredRow> {
        let before = self.row(row.page);
        let at = row.page as usize;
        if self.rows.len() <= at {
            self.rows.resize(at + 1, NO_ROW);
            let unwritten = Label::default();
            self.labels.resize((at + 1) * self.columns, unwritten);
        }
        self.rows[at] = StoredRow {
            place: row.place,
            sum: row.sum,
            join: row.join,
            is_there: true,
        };
        self.labels[at * self.columns..][..self.columns].copy_from_slice(&row.labels);
        self.count += usize::from(before.is_none());
        before
    }

    /// Rows from a page on: as many as a record has, and as fit into so many bytes, but one at least.
    pub(super) fn rows_from(&self, page: u32, bytes: usize) -> Vec<PageRow> {
        let most = (bytes / row_bytes(self.columns)).clamp(1, ROWS_MAX);
        #[allow(clippy::cast_possible_truncation)] // pages have numbers of 32 bits
        let rows = (page..self.rows.len() as u32).filter_map(|page| self.page_row(page));
        rows.take(most).collect()
    }

    pub(super) fn forget(&mut self, page: u32) -> Option<StoredRow> {
        let before = self.row(page)?;
        self.rows[page as usize].is_there = false;
        self.count -= 1;
        Some(before)
    }

    /// The bytes of the table that it takes at most.
    pub(super) fn bytes(&self) -> u64 {
        let header = self.header.as_ref().map_or(0, Vec::len) as u64;
        MEMBER_BYTES + header + self.count as u64 * row_bytes(self.columns) as u64
    }
}
