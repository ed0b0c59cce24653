//! Changes of a page file that are made together, and why one is not taken.

use staves_model::{Epoch, GroupId, Label, MemberSlot};

use super::format::{CHANGE_HEAD, PageRow, PageRows, TableChange, row_bytes};
use super::limits::ROWS_MAX;

/// The version of a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageVersion {
    /// The epoch in which its member joined.
    pub join: Epoch,
    /// A label for each stream that the page carries.
    pub labels: Vec<Label>,
}

/// A page as it is to be kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageImage {
    /// Its group.
    pub group: GroupId,
    /// Its member's slot.
    pub slot: MemberSlot,
    /// Its number in the group.
    pub page: u32,
    /// Its version.
    pub version: PageVersion,
    /// Its bytes.
    pub bytes: PageBytes,
}

/// The bytes of a page that is to be kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PageBytes {
    /// Those that are kept of it already: only its version is another.
    Kept,
    /// All of them zero.
    Zero,
    /// A block.
    Block(Box<[u8]>),
    /// Those that a record of the journal has at a place, and is durable with.
    Journaled {
        /// The place.
        place: u32,
        /// The check sum of its bytes.
        sum: u32,
    },
}

/// Changes that are made together.
#[derive(Clone, Default, Debug)]
pub struct Checkpoint {
    /// Members that go, with their pages; before all that follows.
    pub gone: Vec<GroupId>,
    /// The bytes that are kept of a member beside its pages.
    pub headers: Vec<(GroupId, Vec<u8>)>,
    /// Pages that go.
    pub forgotten: Vec<(GroupId, u32)>,
    /// Pages that come, or come in another version; none of them twice, none that goes.
    pub pages: Vec<PageImage>,
    /// The first record of the members' journal that is still needed after it; `None`: the same as before.
    pub journal_from: Option<u64>,
}

/// A checkpoint that was not taken.
#[derive(Debug, thiserror::Error)]
pub enum PageFileError {
    /// There are too few free places; some are for pages that have one already. Nothing has changed.
    #[error(
        "{free} places for pages are free, some of them for pages that are written over, and {needed} are to be written"
    )]
    Full {
        /// Places that are needed.
        needed: usize,
        /// Places that are free.
        free: u32,
    },
    /// The table has no room for more rows. Nothing has changed.
    #[error("the table of pages would have {bytes} bytes, where {max} are the most")]
    TableFull {
        /// Its bytes with these changes.
        bytes: u64,
        /// Its most bytes.
        max: u64,
    },
    /// So much cannot be changed at once. Nothing has changed.
    #[error("the changes take {bytes} bytes of the table, and {max} are the most at once")]
    TooMuch {
        /// Their bytes.
        bytes: usize,
        /// The most bytes.
        max: usize,
    },
    /// The journal has a page's bytes no more, which are to be written then. Nothing has changed.
    #[error("the journal has page {page} of group {group} no more")]
    NotHeld {
        /// Its group.
        group: u32,
        /// Its number.
        page: u32,
    },
    /// A write or a sync failed: nothing that was not finished before can be trusted, and nothing is tried again.
    #[error("the page file has failed and takes nothing more: {0}")]
    Failed(String),
}

/// The bytes that a checkpoint's changes take in the table, at most: as if each were alone.
pub(super) fn change_bytes(checkpoint: &Checkpoint) -> usize {
    let headers = checkpoint.headers.iter().map(|(_, header)| header.len());
    let pages = checkpoint.pages.iter();
    let rows = pages.map(|image| row_bytes(image.version.labels.len()));
    let small = checkpoint.gone.len() + checkpoint.forgotten.len();
    let all = small + checkpoint.headers.len() + checkpoint.pages.len();
    headers.chain(rows).sum::<usize>() + all * (CHANGE_HEAD + 4)
}

/// The pages that a checkpoint writes, each with its place.
pub(super) type PlacedPages = Vec<(u32, Box<[u8]>)>;

/// A checkpoint as changes of the table, in their order, and the pages that are written before.
pub(super) fn changes_of(
    checkpoint: Checkpoint,
    place: &mut dyn FnMut(&PageImage) -> (u32, u32),
) -> (Vec<TableChange>, PlacedPages) {
    let gone = checkpoint.gone.into_iter().map(TableChange::Gone);
    let headers = checkpoint.headers.into_iter();
    let headers = headers.map(|(group, bytes)| TableChange::Header(group, bytes));
    let forgotten = checkpoint.forgotten.into_iter();
    let forgotten = forgotten.map(|(group, page)| TableChange::Forgotten(group, vec![page]));
    let mut changes: Vec<TableChange> = gone.chain(headers).chain(forgotten).collect();
    let mut writes = Vec::new();
    for image in checkpoint.pages {
        let (group, slot) = (image.group, image.slot);
        let (place, sum) = place(&image);
        let row = PageRow {
            page: image.page,
            place,
            sum,
            join: image.version.join,
            labels: image.version.labels,
        };
        if let PageBytes::Block(bytes) = image.bytes {
            writes.push((place, bytes));
        }
        match changes.last_mut() {
            Some(TableChange::Pages(of)) if of.group == group && of.rows.len() < ROWS_MAX => {
                of.rows.push(row);
            }
            _ => changes.push(TableChange::Pages(PageRows {
                group,
                slot,
                columns: row.labels.len(),
                rows: vec![row],
            })),
        }
    }
    (changes, writes)
}
