//! The pages that are kept of members: written with a round of saving, struck, and read back by a start.

use std::collections::BTreeSet;

use bytes::Bytes;
use staves_disk::{
    Checkpoint, Device, Located, PageBytes, PageFileError, PageImage, PageVersion, PageWork,
    PagesPerformed,
};
use staves_group::{KeptPage, SavedPages};
use staves_model::{Epoch, GroupId};

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
        forgotten.retain(|page| self.pages.version(group, *page).is_some());
        if is_whole == Some(true) {
            self.forget_former(group, join, &pages, &mut forgotten);
        }
        let header = match (is_whole, lost) {
            (None, false) => None,
            (is_whole, _) => Some(SavedHeader {
                join,
                is_whole: is_whole.unwrap_or(false),
            }),
        };
        let image = |(page, labels, bytes): (u32, _, Option<Bytes>)| PageImage {
            group,
            slot,
            page,
            version: PageVersion { join, labels },
            bytes: bytes.map_or(PageBytes::Zero, |bytes| {
                PageBytes::Block(bytes.to_vec().into())
            }),
        };
        self.pages.begin(Checkpoint {
            headers: header
                .map(|header| (group, header.encode()))
                .into_iter()
                .collect(),
            forgotten: forgotten.into_iter().map(|page| (group, page)).collect(),
            pages: pages.into_iter().map(image).collect(),
            ..Checkpoint::default()
        })
    }

    // Pages of an earlier membership, some at a time: they are of no use once all of this one's are kept.
    fn forget_former(
        &self,
        group: GroupId,
        join: Epoch,
        pages: &[(u32, Vec<staves_model::Label>, Option<Bytes>)],
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

    /// The pages that are kept of a group's member, in order, each read when it is asked for.
    pub fn kept_pages<'a>(
        &'a self,
        group: GroupId,
        device: &'a dyn Device,
    ) -> impl Iterator<Item = KeptPage> + 'a {
        let read = |located: Option<Located>| match located.map(|located| located.read(device)) {
            Some(Ok(bytes)) => (bytes.map(Bytes::from), false),
            Some(Err(_)) | None => (None, true),
        };
        self.pages.pages(group).map(move |(page, version)| {
            let (bytes, is_bad) = read(self.pages.locate(group, page));
            KeptPage {
                page,
                join: version.join,
                labels: version.labels,
                bytes,
                is_bad,
            }
        })
    }
}
