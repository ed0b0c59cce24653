//! The pages that are kept of members: written with a round of saving, struck, and read back by a start.

use std::collections::BTreeSet;

use staves_disk::{
    Checkpoint, Device, Located, PageBytes, PageFileError, PageImage, PageVersion, PageWork,
    PagesPerformed,
};
use staves_group::{ImageBytes, KeptBytes, KeptPage, SavedPages};
use staves_model::mutant::{Mutant, planted};
use staves_model::{Epoch, GroupId, Label};
use staves_store::Unread;

use crate::store::DiskStore;

/// The header of a member in the page file: the epoch in which it had joined, and whether all of its pages are there.
pub(crate) struct SavedHeader {
    pub(crate) join: Epoch,
    pub(crate) is_whole: bool,
}

impl SavedHeader {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.join.0.to_le_bytes().to_vec();
        bytes.push(self.is_whole.into());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<SavedHeader> {
        let (join, rest) = bytes.split_first_chunk()?;
        let is_whole = match rest {
            [0] => false,
            [1] => true,
            _ => return None,
        };
        Some(SavedHeader {
            join: Epoch(u64::from_le_bytes(*join)),
            is_whole,
        })
    }
}

impl DiskStore {
    pub(crate) fn header(&self, group: GroupId) -> Option<SavedHeader> {
        SavedHeader::decode(self.pages.header(group)?)
    }

    /// Most pages of a member that are saved at once.
    pub(crate) fn pages_at_once(&self, columns: usize) -> usize {
        self.pages.pages_at_once(columns)
    }

    /// Begins to write pages of a member, all of whose deltas are durable.
    ///
    /// # Errors
    /// There is no room, or the page file has failed.
    pub(crate) fn begin_checkpoint(
        &mut self,
        group: GroupId,
        saved: SavedPages,
    ) -> Result<PageWork, PageFileError> {
        let SavedPages {
            slot,
            join,
            is_whole,
            pages,
            mut forgotten,
        } = saved;
        let lost = !forgotten.is_empty();
        // Pages of another bucket of the group are of no use to this one (D-15): the node had another slot before.
        let is_other = self.pages.slot(group).is_some_and(|of| of != slot)
            && !planted(Mutant::OtherBucketsPagesKept);
        forgotten.retain(|page| !is_other && self.pages.version(group, *page).is_some());
        if is_whole == Some(true) && !is_other {
            self.forget_former(group, join, &pages, &mut forgotten);
        }
        let header = match (is_whole, lost) {
            (None, false) => None,
            (is_whole, _) => Some(SavedHeader {
                join,
                is_whole: is_whole.unwrap_or(false),
            }),
        };
        let mut images = Vec::with_capacity(pages.len());
        for (page, labels, bytes) in pages {
            let bytes = match bytes {
                ImageBytes::Zero => PageBytes::Zero,
                ImageBytes::Block(bytes) => PageBytes::Block(bytes),
                ImageBytes::Placed => self.placed_bytes(group, page, &labels)?,
            };
            images.push(PageImage {
                group,
                slot,
                page,
                version: PageVersion { join, labels },
                bytes,
            });
        }
        self.pages.begin(Checkpoint {
            gone: is_other.then_some(group).into_iter().collect(),
            headers: header
                .map(|header| (group, header.encode()))
                .into_iter()
                .collect(),
            forgotten: forgotten.into_iter().map(|page| (group, page)).collect(),
            pages: images,
            ..Checkpoint::default()
        })
    }

    // The page is as a record of the journal has it, and lies where that says.
    fn placed_bytes(
        &self,
        group: GroupId,
        page: u32,
        labels: &[Label],
    ) -> Result<PageBytes, PageFileError> {
        let placed = self.placed.find(group, page, labels);
        let placed = placed.ok_or(PageFileError::NotHeld {
            group: group.0,
            page,
        })?;
        let located = self.pages.locate(group, page);
        Ok(match located.is_some_and(|of| of.is_at(placed.place)) {
            true => PageBytes::Kept,
            false => PageBytes::Journaled {
                place: placed.place,
                sum: placed.sum,
            },
        })
    }

    // Pages of an earlier membership, some at a time: they are of no use once all of this one's are kept.
    fn forget_former(
        &self,
        group: GroupId,
        join: Epoch,
        pages: &[(u32, Vec<Label>, ImageBytes)],
        forgotten: &mut Vec<u32>,
    ) {
        let written: BTreeSet<u32> = pages.iter().map(|(page, ..)| *page).collect();
        let known: BTreeSet<u32> = forgotten.iter().copied().collect();
        let columns = pages.first().map_or(1, |(_, labels, _)| labels.len());
        let room = self.pages_at_once(columns);
        let room = room.saturating_sub(pages.len() + forgotten.len());
        let former = self.pages.pages(group);
        let former = former.filter(|(_, version)| version.join != join);
        let former = former.map(|(page, _)| page);
        let former = former.filter(|page| !written.contains(page) && !known.contains(page));
        forgotten.extend(former.take(room));
    }

    /// Begins to strike members with all their pages.
    pub(crate) fn begin_strike(&mut self, gone: Vec<GroupId>) -> Result<PageWork, PageFileError> {
        self.pages.begin(Checkpoint {
            gone,
            ..Checkpoint::default()
        })
    }

    /// Brings a checkpoint back.
    pub(crate) fn finish(&mut self, performed: PagesPerformed) -> Result<(), PageFileError> {
        self.pages.finish(performed)
    }

    /// The pages that are kept of a group's member, in order.
    pub fn kept_pages(&self, group: GroupId) -> impl Iterator<Item = KeptPage> + '_ {
        self.pages.pages(group).map(move |(page, version)| {
            let bytes = match self.pages.locate(group, page) {
                Some(located) if self.is_bad(group, page, located) => KeptBytes::Bad,
                Some(located) if located.is_zero() => KeptBytes::Zero,
                Some(_) => KeptBytes::There,
                None => KeptBytes::Bad,
            };
            let PageVersion { join, labels } = version;
            KeptPage {
                page,
                join,
                labels,
                bytes,
            }
        })
    }

    /// Reads every page that is kept of a group's member that joined in `join`. Those that are bad are not kept any more, until they are saved anew; how many
    /// they are.
    pub(crate) fn check_pages(
        &mut self,
        group: GroupId,
        join: Epoch,
        device: &dyn Device,
    ) -> usize {
        let pages = self.pages.pages(group);
        let pages = pages.filter(|(_, version)| version.join == join);
        let pages: Vec<u32> = pages.map(|(page, _)| page).collect();
        let located = pages
            .iter()
            .filter_map(|page| Some((*page, self.pages.locate(group, *page)?)));
        let bad = located.filter(|(_, located)| located.read(device).is_err());
        let bad: Vec<(u32, Located)> = bad.collect();
        let keys = bad.iter().map(|(page, at)| ((group, *page), *at));
        self.bad.extend(keys);
        bad.len()
    }

    fn is_bad(&self, group: GroupId, page: u32, located: Located) -> bool {
        self.bad.get(&(group, page)) == Some(&located)
    }

    /// Returns whether this version of a page is kept, and is not known to be bad.
    pub fn keeps(&self, group: GroupId, page: u32, join: Epoch, labels: &[Label]) -> bool {
        let located = self.pages.locate(group, page);
        let version = self.pages.version(group, page);
        let first = |labels: &[Label]| labels.first().copied();
        let one_is_enough = planted(Mutant::OneLabelLetsGo)
            && version.is_some_and(|(of, kept)| of == join && first(kept) == first(labels));
        (version == Some((join, labels)) || one_is_enough)
            && located.is_some_and(|located| !self.is_bad(group, page, located))
    }

    /// The place of a page, if it is kept of a member that joined in `join`.
    pub fn locate(&self, group: GroupId, page: u32, join: Epoch) -> Option<Located> {
        let (of, _) = self.pages.version(group, page)?;
        self.pages.locate(group, page).filter(|_| of == join)
    }
}

/// Reads a page that is kept into `into`, which is all zero. `locate` says where it lies, under the store's lock: a page that was written anew while it was read
/// is read once more.
///
/// # Errors
/// It is not kept, or cannot be read.
pub fn read_kept(
    mut locate: impl FnMut() -> Option<Located>,
    device: &dyn Device,
    into: &mut [u8],
) -> Result<(), Unread> {
    let mut located = locate().ok_or(Unread::NotKept)?;
    loop {
        let error = match located.read_into(device, into) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        into.fill(0);
        match locate().ok_or(Unread::NotKept)? {
            again if again != located => located = again,
            _ => return Err(Unread::Bad(error.to_string())),
        }
    }
}
