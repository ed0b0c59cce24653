//! The bytes of a page file, and of the records in the journal that is its table. All numbers are little-endian; check sums are CRC-32C.
//!
//! ```text
//! page file  0 magic "SPF1"   4 crc of 8..32   8 version   12 places for the journal
//!           16 disk id (16)   then zeroes; from 4096 on: a page at each place, 1, 2, ...
//!
//! record     0 the first record of the members' journal that is still needed (8)
//!            8 the first record of the table that is still needed once this one is there (8)
//!           16 the record with which the present sweep began (8; 0: none)   24 of the next group 0 or the next page and one (8)
//!           32 the next group (4)   36 zero (4)   40 changes, made in their order
//!
//! change     0 kind (1)       1 columns   2 slot   3 zero   4 group (4)   8 count (4)   12 zero (4)   16 as many of these:
//!            1 gone           nothing; count, columns and slot are 0
//!            2 header         bytes of whoever stands on this
//!            3 forgotten      a page (4)
//!            4 pages          page (4), place (4; 0: all zero), crc of its bytes (4), join epoch (8), for each column: epoch (8), seq (8)
//! ```

use staves_model::{Epoch, GroupId, Label, MemberSlot};

use super::mark::Sweep;
use crate::device::BLOCK_BYTES;
use crate::format::{DiskId, crc};

/// The version of these bytes. In version 1 the journal has no places.
pub const PAGES_VERSION: u32 = 2;

const MAGIC: [u8; 4] = *b"SPF1";
const HEADER_END: usize = 32;
/// The most columns, a label for each data bucket, so that no record says anything else.
pub(crate) const COLUMNS_MAX: usize = 32;
/// The bytes of a record before its changes.
const RECORD_HEAD: usize = 40;
/// The bytes of a change before what it has.
pub(crate) const CHANGE_HEAD: usize = 16;

/// The header of a page file.
pub(crate) fn header(disk: DiskId, journal_places: u32) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    block[..4].copy_from_slice(&MAGIC);
    block[8..12].copy_from_slice(&PAGES_VERSION.to_le_bytes());
    block[12..16].copy_from_slice(&journal_places.to_le_bytes());
    block[16..32].copy_from_slice(&disk.0);
    let sum = crc(&block[8..HEADER_END]);
    block[4..8].copy_from_slice(&sum.to_le_bytes());
    block
}

/// The version, the disk and the places for the journal that a page file's header names, if it is whole.
pub(crate) fn parse_header(block: &[u8]) -> Option<(u32, DiskId, u32)> {
    let sum = crc(block.get(8..HEADER_END)?);
    let is_whole = block[..4] == MAGIC && block[4..8] == sum.to_le_bytes();
    let mut at = &block[8..HEADER_END];
    let version = u32::from_le_bytes(take(&mut at)?);
    let journal_places = u32::from_le_bytes(take(&mut at)?);
    let disk = DiskId(take(&mut at)?);
    is_whole.then_some((version, disk, journal_places))
}

/// The place and the version of a page, as the table has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PageRow {
    pub(crate) page: u32,
    /// 0: it is all zero, and has none.
    pub(crate) place: u32,
    pub(crate) sum: u32,
    pub(crate) join: Epoch,
    pub(crate) labels: Vec<Label>,
}

/// Rows of one member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PageRows {
    pub(crate) group: GroupId,
    pub(crate) slot: MemberSlot,
    pub(crate) columns: usize,
    pub(crate) rows: Vec<PageRow>,
}

/// The bytes of one row.
pub(crate) fn row_bytes(columns: usize) -> usize {
    20 + 16 * columns
}

/// A change of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum TableChange {
    Gone(GroupId),
    Header(GroupId, Vec<u8>),
    Forgotten(GroupId, Vec<u32>),
    Pages(PageRows),
}

impl TableChange {
    /// The bytes of it.
    pub(crate) fn bytes(&self) -> usize {
        let body = match self {
            TableChange::Gone(_) => 0,
            TableChange::Header(_, bytes) => bytes.len(),
            TableChange::Forgotten(_, pages) => 4 * pages.len(),
            TableChange::Pages(of) => of.rows.len() * row_bytes(of.columns),
        };
        CHANGE_HEAD + body
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            TableChange::Gone(group) => head(out, [1, 0, 0], *group, 0),
            TableChange::Header(group, bytes) => {
                head(out, [2, 0, 0], *group, bytes.len());
                out.extend_from_slice(bytes);
            }
            TableChange::Forgotten(group, pages) => {
                head(out, [3, 0, 0], *group, pages.len());
                let pages = pages.iter().flat_map(|page| page.to_le_bytes());
                out.extend(pages);
            }
            TableChange::Pages(of) => {
                #[allow(clippy::cast_possible_truncation)] // COLUMNS_MAX
                let columns = of.columns as u8;
                head(out, [4, columns, of.slot.0], of.group, of.rows.len());
                of.rows.iter().for_each(|row| row.encode(out));
            }
        }
    }

    /// `None`: it is none of these, whatever its check sum says.
    fn decode(at: &mut &[u8]) -> Option<TableChange> {
        let [kind, columns, slot, _] = take(at)?;
        let group = GroupId(u32::from_le_bytes(take(at)?));
        let count = u32::from_le_bytes(take(at)?) as usize;
        let _: [u8; 4] = take(at)?;
        let columns = usize::from(columns);
        let size = [0, 1, 4, row_bytes(columns)];
        let size = size.get(usize::from(kind).checked_sub(1)?)?;
        let (mut body, rest) = at.split_at_checked(count.checked_mul(*size)?)?;
        *at = rest;
        let body = &mut body;
        Some(match kind {
            1 => TableChange::Gone(group),
            2 => TableChange::Header(group, body.to_vec()),
            3 => {
                let page = |_| Some(u32::from_le_bytes(take(body)?));
                TableChange::Forgotten(group, (0..count).map(page).collect::<Option<_>>()?)
            }
            _ if !(1..=COLUMNS_MAX).contains(&columns) => return None,
            _ => TableChange::Pages(PageRows {
                group,
                slot: MemberSlot(slot),
                columns,
                rows: (0..count)
                    .map(|_| PageRow::decode(body, columns))
                    .collect::<Option<_>>()?,
            }),
        })
    }
}

impl PageRow {
    fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.page, self.place, self.sum] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.join.0.to_le_bytes());
        for label in &self.labels {
            out.extend_from_slice(&label.epoch.0.to_le_bytes());
            out.extend_from_slice(&label.seq.to_le_bytes());
        }
    }

    fn decode(at: &mut &[u8], columns: usize) -> Option<PageRow> {
        let label = |at: &mut &[u8]| {
            Some(Label {
                epoch: Epoch(u64::from_le_bytes(take(at)?)),
                seq: u64::from_le_bytes(take(at)?),
            })
        };
        Some(PageRow {
            page: u32::from_le_bytes(take(at)?),
            place: u32::from_le_bytes(take(at)?),
            sum: u32::from_le_bytes(take(at)?),
            join: Epoch(u64::from_le_bytes(take(at)?)),
            labels: (0..columns).map(|_| label(at)).collect::<Option<_>>()?,
        })
    }
}

/// A record of the table: what one checkpoint changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TableRecord {
    pub(crate) journal_from: u64,
    pub(crate) kept_from: u64,
    pub(crate) sweep: Sweep,
    pub(crate) changes: Vec<TableChange>,
}

impl TableRecord {
    /// The bytes of it.
    pub(crate) fn bytes(&self) -> usize {
        RECORD_HEAD + self.changes.iter().map(TableChange::bytes).sum::<usize>()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes());
        let Sweep { at, since } = self.sweep;
        for number in [self.journal_from, self.kept_from, since.unwrap_or(0), at.1] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&at.0.0.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        self.changes
            .iter()
            .for_each(|change| change.encode(&mut out));
        assert_eq!(out.len(), self.bytes(), "bytes that were not counted");
        out
    }

    pub(crate) fn decode(mut bytes: &[u8]) -> Option<TableRecord> {
        let at = &mut bytes;
        let mut number = || Some(u64::from_le_bytes(take(at)?));
        let [journal_from, kept_from, since, next] = [number()?, number()?, number()?, number()?];
        let group = GroupId(u32::from_le_bytes(take(at)?));
        let _: [u8; 4] = take(at)?;
        let mut record = TableRecord {
            journal_from,
            kept_from,
            sweep: Sweep {
                at: (group, next),
                since: Some(since).filter(|since| *since != 0),
            },
            changes: Vec::new(),
        };
        while !at.is_empty() {
            record.changes.push(TableChange::decode(at)?);
        }
        Some(record)
    }
}

fn head(out: &mut Vec<u8>, [kind, columns, slot]: [u8; 3], group: GroupId, count: usize) {
    out.extend_from_slice(&[kind, columns, slot, 0]);
    out.extend_from_slice(&group.0.to_le_bytes());
    #[allow(clippy::cast_possible_truncation)] // a record is shorter
    let count = count as u32;
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
}

fn take<const N: usize>(at: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = at.split_first_chunk()?;
    *at = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a page file's header and of a record of its table, as `docs/reference/pages.md` has them.
    #[test]
    fn the_bytes_of_a_table_of_pages_are_these() {
        let disk = DiskId(*b"a disk of a test");
        let block = header(disk, 9);
        assert_eq!(&block[..4], b"SPF1");
        assert_eq!(block[4..8], crc(&block[8..32]).to_le_bytes());
        assert_eq!(&block[8..16], [2, 0, 0, 0, 9, 0, 0, 0]);
        assert_eq!(block[16..32], disk.0);
        assert_eq!(parse_header(&block), Some((PAGES_VERSION, disk, 9)));
        let label = Label {
            epoch: Epoch(3),
            seq: 4,
        };
        let changes = vec![
            TableChange::Gone(GroupId(7)),
            TableChange::Header(GroupId(7), vec![8, 9]),
            TableChange::Forgotten(GroupId(1), vec![5]),
            TableChange::Pages(PageRows {
                group: GroupId(2),
                slot: MemberSlot(1),
                columns: 1,
                rows: vec![PageRow {
                    page: 0x0a0b,
                    place: 12,
                    sum: 13,
                    join: Epoch(14),
                    labels: vec![label],
                }],
            }),
        ];
        let record = TableRecord {
            journal_from: 77,
            kept_from: 78,
            sweep: Sweep {
                at: (GroupId(3), 80),
                since: Some(79),
            },
            changes,
        };
        let bytes = record.encode();
        let head = |kind, columns, slot, group, count: u8| {
            [
                kind, columns, slot, 0, group, 0, 0, 0, count, 0, 0, 0, 0, 0, 0, 0,
            ]
        };
        let mut expected = Vec::new();
        for number in [77, 78, 79, 80u64, 3] {
            expected.extend(number.to_le_bytes());
        }
        expected.extend(head(1, 0, 0, 7, 0));
        expected.extend(head(2, 0, 0, 7, 2));
        expected.extend([8, 9]);
        expected.extend(head(3, 0, 0, 1, 1));
        expected.extend([5, 0, 0, 0]);
        expected.extend(head(4, 1, 1, 2, 1));
        expected.extend([0x0b, 0x0a, 0, 0, 12, 0, 0, 0, 13, 0, 0, 0]);
        for number in [14, 3, 4u64] {
            expected.extend(number.to_le_bytes());
        }
        assert_eq!(bytes, expected);
        assert_eq!(TableRecord::decode(&bytes), Some(record));
    }

    #[test]
    fn bytes_that_are_cut_or_changed_are_no_record_or_another_one_and_no_panic() {
        let record = TableRecord {
            journal_from: 1,
            kept_from: 1,
            sweep: Sweep::default(),
            changes: vec![
                TableChange::Header(GroupId(7), vec![8, 9]),
                TableChange::Forgotten(GroupId(1), vec![5, 6]),
            ],
        };
        let bytes = record.encode();
        for end in 0..bytes.len() {
            TableRecord::decode(&bytes[..end]);
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[end] ^= 1 << bit;
                TableRecord::decode(&bytes);
            }
        }
        assert_eq!(TableRecord::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(TableRecord::decode(&bytes[..7]), None);
    }
}
