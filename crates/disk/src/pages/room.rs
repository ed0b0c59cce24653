//! The soundness of a checkpoint, and the room that it takes.

use std::collections::{BTreeMap, BTreeSet};

use staves_model::GroupId;
use staves_model::mutant::{Mutant, planted};

use super::checkpoint::{Checkpoint, PageBytes, PageImage};
use super::format::{COLUMNS_MAX, row_bytes};
use super::limits::MEMBER_BYTES;
use super::member::StoredMember;
use crate::device::BLOCK_BYTES;

/// The members of a page file.
type Members = BTreeMap<GroupId, StoredMember>;

// Both sides of the boundary: whoever stands on this has made a mistake that nothing here can mend.
pub(super) fn check(members: &Members, checkpoint: &Checkpoint) {
    let mut seen = BTreeSet::new();
    let mut slots = BTreeMap::new();
    for image in &checkpoint.pages {
        let (group, page) = (image.group, image.page);
        assert!(
            seen.insert((group, page)),
            "page {page} of {group} is there twice"
        );
        let columns = image.version.labels.len();
        assert!((1..=COLUMNS_MAX).contains(&columns), "{columns} labels");
        match &image.bytes {
            PageBytes::Block(bytes) => assert_eq!(bytes.len(), BLOCK_BYTES, "a page is a block"),
            PageBytes::Kept => {
                let stays = members
                    .get(&group)
                    .filter(|_| !checkpoint.gone.contains(&group));
                let row = stays.and_then(|member| member.row(page));
                assert!(row.is_some(), "page {page} of {group} is not kept");
            }
            PageBytes::Zero | PageBytes::Journaled { .. } => {}
        }
        let known = members
            .get(&group)
            .filter(|member| member.count > 0 && !checkpoint.gone.contains(&group));
        let is = (image.slot, columns);
        let was = known.map_or(is, |member| (member.slot, member.columns));
        assert_eq!(
            *slots.entry(group).or_insert(was),
            is,
            "a page of another slot of {group}"
        );
    }
    let mut headers = BTreeSet::new();
    for (group, _) in &checkpoint.headers {
        assert!(headers.insert(group), "two headers of {group}");
    }
    for gone in &checkpoint.forgotten {
        assert!(!seen.contains(gone), "{gone:?} is forgotten and written");
    }
}

/// The place and check sum of what is kept of a page, if it has a place.
pub(super) fn placed(members: &Members, image: &PageImage) -> Option<(u32, u32)> {
    let row = members.get(&image.group)?.row(image.page)?;
    (row.place != 0).then_some((row.place, row.sum))
}

/// The place that the next version of a page keeps: none, for nothing is written in place.
pub(super) fn kept_place(members: &Members, image: &PageImage) -> Option<u32> {
    let (place, _) = placed(members, image).filter(|_| planted(Mutant::PagesInPlace))?;
    Some(place)
}

/// The places of the journal that pages have from a checkpoint on.
pub(super) fn journaled(checkpoint: &Checkpoint) -> Vec<u32> {
    let place = |image: &PageImage| match image.bytes {
        PageBytes::Journaled { place, .. } => Some(place),
        _ => None,
    };
    checkpoint.pages.iter().filter_map(place).collect()
}

/// The bytes of the table's rows after a checkpoint, at most.
pub(super) fn bytes_with(members: &Members, bytes: u64, checkpoint: &Checkpoint) -> u64 {
    let stays = |group: &GroupId| match checkpoint.gone.contains(group) {
        true => None,
        false => members.get(group),
    };
    let gone: BTreeSet<&GroupId> = checkpoint.gone.iter().collect();
    let gone = gone.into_iter().filter_map(|group| members.get(group));
    let mut bytes = bytes - gone.map(StoredMember::bytes).sum::<u64>();
    let mut new: BTreeSet<&GroupId> = BTreeSet::new();
    for (group, header) in &checkpoint.headers {
        let before = stays(group).and_then(|member| member.header.as_ref());
        bytes = bytes + header.len() as u64 - before.map_or(0, Vec::len) as u64;
        new.extend(Some(group).filter(|group| stays(group).is_none()));
    }
    for image in &checkpoint.pages {
        let member = stays(&image.group);
        if member.is_none_or(|member| member.row(image.page).is_none()) {
            bytes += row_bytes(image.version.labels.len()) as u64;
        }
        new.extend(Some(&image.group).filter(|_| member.is_none()));
    }
    bytes + new.len() as u64 * MEMBER_BYTES
}
