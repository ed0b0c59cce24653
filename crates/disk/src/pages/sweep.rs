//! Rows that have not changed, written again with each checkpoint.

use std::collections::BTreeMap;

use staves_model::GroupId;

use super::format::{PageRows, TableChange};
use super::mark::Sweep;
use super::member::StoredMember;

/// Rows as they are before a checkpoint, for so many bytes.
pub(super) fn swept(
    members: &BTreeMap<GroupId, StoredMember>,
    sweep: Sweep,
    quota: usize,
) -> Swept {
    let mut swept = Swept {
        changes: Vec::new(),
        left: quota,
        at: (GroupId(0), 0),
        is_done: false,
    };
    let (first, mut from) = sweep.at;
    for (group, member) in members.range(first..) {
        // The sweep had come so far in the first of them only.
        let from = if *group == first {
            std::mem::take(&mut from)
        } else {
            0
        };
        swept.at = (*group, from);
        if !swept.take(*group, member) {
            return swept;
        }
    }
    swept.is_done = true;
    swept
}

/// Rows that are written again with a checkpoint.
pub(super) struct Swept {
    pub(super) changes: Vec<TableChange>,
    /// Bytes that may still be written.
    left: usize,
    /// The place at which the sweep goes on.
    pub(super) at: (GroupId, u64),
    /// All rows have been written since it began.
    pub(super) is_done: bool,
}

impl Swept {
    /// Takes what is left of a member. False if there is no room for all of it.
    fn take(&mut self, group: GroupId, member: &StoredMember) -> bool {
        if self.at.1 == 0 {
            if let Some(header) = &member.header {
                self.push(TableChange::Header(group, header.clone()));
            }
            self.at.1 = 1;
        }
        while self.left > 0 {
            let rows = member.rows_from(self.at.1 - 1, self.left);
            let Some(last) = rows.last() else {
                return true;
            };
            self.at.1 = u64::from(last.page) + 2;
            let of = PageRows {
                group,
                slot: member.slot,
                columns: member.columns,
                rows,
            };
            self.push(TableChange::Pages(of));
        }
        false
    }

    fn push(&mut self, change: TableChange) {
        self.left = self.left.saturating_sub(change.bytes());
        self.changes.push(change);
    }
}
