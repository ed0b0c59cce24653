//! The mark of a sweep: it is in each record, so that a start goes on where it stood.

use staves_model::GroupId;

/// The rewriting of rows that do not change: from the first one to the last, again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Sweep {
    /// The next member, and of it 0: its header, or the next page and one.
    pub(super) at: (GroupId, u64),
    /// The first record of the table's journal that was written since it began.
    pub(super) since: Option<u64>,
}
