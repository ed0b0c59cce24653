//! Pages that are kept on a disk, and not all in memory.

use bytes::Bytes;
use staves_model::{Label, mutant::Mutant, mutant::planted};
use staves_store::{Full, Idle, NotKept};

use super::{PageTable, UNWRITTEN, is_zero};
use crate::kept_page::{KeptBytes, KeptPage};
use crate::on_disk::ImageBytes;
use crate::page_set::PageSet;

impl PageTable {
    /// A page's bytes, for the disk.
    pub(crate) fn image(&self, page: u32) -> ImageBytes {
        match self.pages.page(page) {
            Some(bytes) if !is_zero(bytes) => ImageBytes::Block(bytes.into()),
            _ => ImageBytes::Zero,
        }
    }

    /// A page is as the disk keeps it.
    pub(crate) fn install_kept(&mut self, kept: &KeptPage) -> Result<(), Full> {
        if kept.bytes == KeptBytes::Zero {
            return self.install(kept.page, &kept.labels, None);
        }
        self.pages.set_kept(kept.page)?;
        for (column, label) in kept.labels.iter().enumerate() {
            self.set_label(kept.page, column, *label);
        }
        self.set_here(kept.page);
        Ok(())
    }

    /// Lets the memory of up to `most` pages go that were not used of late, and are on the disk as they are here. Those that changed since they were saved, and
    /// those that are being `saved`, are not: a page that was made anew has the label of the one before, and perhaps not its bytes.
    pub(crate) fn let_go(&mut self, most: u32, saved: Option<&PageSet>) -> u32 {
        let Some((on, join)) = self.pages.kept_on() else {
            return 0;
        };
        let (keeper, labels, columns) = (on.keeper.clone(), &self.labels, self.columns);
        let busy = [self.changed.as_ref(), saved];
        self.pages.let_go(most, &mut |page, bytes| {
            if planted(Mutant::UnsavedLetGo) {
                return Idle::Kept;
            }
            let labels = labels_of(labels, columns, page);
            let is_busy = || busy.iter().flatten().any(|set| set.contains(page));
            if labels.iter().all(|label| *label == UNWRITTEN) {
                return match is_zero(bytes) {
                    true => Idle::Zero,
                    false => Idle::Stays,
                };
            }
            let stays = is_busy() && !planted(Mutant::OneLabelLetsGo);
            match !stays && keeper.keeps(page, join, labels) {
                true => Idle::Kept,
                false => Idle::Stays,
            }
        })
    }

    /// The same of a former membership, whose pages can do no more than save others the sending: those that the disk does not keep count as never written.
    pub(crate) fn let_go_of_former(&mut self, most: u32) -> u32 {
        let Some((on, join)) = self.pages.kept_on() else {
            return 0;
        };
        let (keeper, labels, columns) = (on.keeper.clone(), &mut self.labels, self.columns);
        let changed = self.changed.as_ref();
        self.pages.let_go(most, &mut |page, _| {
            let labels = labels_of_mut(labels, columns, page);
            let is_busy = changed.is_some_and(|set| set.contains(page));
            if !is_busy && keeper.keeps(page, join, labels) {
                return Idle::Kept;
            }
            labels.fill(UNWRITTEN);
            Idle::Zero
        })
    }

    /// The label and the bytes of a page of a former membership. `None`, and it counts as one never written, if the disk does not keep it any more.
    pub(crate) fn copy_of_former(&mut self, page: u32) -> Option<(Label, Option<Bytes>)> {
        let label = self.label(page, 0);
        match self.pages.page_of_former(page) {
            Ok(bytes) => {
                let bytes = bytes.filter(|bytes| !is_zero(bytes));
                Some((label, bytes.map(Bytes::copy_from_slice)))
            }
            Err(NotKept) => {
                (0..self.columns).for_each(|column| self.set_label(page, column, UNWRITTEN));
                None
            }
        }
    }
}

fn labels_of(labels: &[Label], columns: usize, page: u32) -> &[Label] {
    let at = page as usize * columns;
    labels.get(at..at + columns).unwrap_or_default()
}

fn labels_of_mut(labels: &mut [Label], columns: usize, page: u32) -> &mut [Label] {
    let at = page as usize * columns;
    labels.get_mut(at..at + columns).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use staves_model::{Epoch, PAGE_BYTES};
    use staves_store::{Arena, Budget, EXTENT_BYTES, KeptOn, PageKeeper, Pages, Residency, Unread};

    use super::*;

    /// A disk that has every page with the label that it has in memory, and other bytes.
    #[derive(Debug)]
    struct Stale;

    impl PageKeeper for Stale {
        fn keeps(&self, _page: u32, _join: Epoch, _labels: &[Label]) -> bool {
            true
        }

        fn read(&self, _page: u32, _join: Epoch, into: &mut [u8]) -> Result<(), Unread> {
            into.fill(13);
            Ok(())
        }

        fn lost(&self, page: u32, why: Unread) {
            panic!("page {page}: {why}");
        }
    }

    fn table() -> PageTable {
        let on = KeptOn {
            keeper: Arc::new(Stale),
            residency: Arc::new(Residency::new(1)),
        };
        let arena = Arena::sparse(EXTENT_BYTES as u64).expect("memory");
        let mut pages = Pages::on_disk(arena, Arc::new(Budget::new(1)), on, Epoch(1));
        assert!(pages.reserve(1));
        let mut table = PageTable::whole(pages, 1);
        table.note_changes();
        let label = Label {
            epoch: Epoch(1),
            seq: 5,
        };
        let installed = table.install(3, &[label], Some(&[7; PAGE_BYTES]));
        installed.expect("it is reserved");
        table
    }

    /// A page that a scrub found wrong was fetched again: it has the label of the one that the disk has.
    #[test]
    fn a_page_that_is_not_saved_stays_though_its_label_is_on_the_disk() {
        let mut table = table();
        let try_twice = |table: &mut PageTable, saved: Option<&PageSet>| {
            table.let_go(9, saved) + table.let_go(9, saved)
        };
        assert_eq!(try_twice(&mut table, None), 0, "it changed");
        let round = table.take_changed();
        assert_eq!(try_twice(&mut table, Some(&round)), 0, "it is being saved");
        assert_eq!(table.copy_out(3).expect("bytes")[0], 7);
        assert_eq!(try_twice(&mut table, None), 1, "it was saved");
    }

    #[test]
    fn a_page_of_a_former_member_that_was_not_saved_is_given_up() {
        let mut table = table();
        let gone = table.let_go_of_former(9) + table.let_go_of_former(9);
        assert_eq!(gone, 1);
        assert_eq!((table.label(3, 0), table.copy_out(3)), (UNWRITTEN, None));
    }
}
