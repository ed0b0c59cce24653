//! The memory that an edit needs at every member.

use std::collections::BTreeSet;

use staves_model::Time;
use staves_service::{BucketContext, Growth};
use staves_store::EXTENT_BYTES;
use staves_wire::group::RunKind;

use crate::chunks;
use crate::edit::Edit;

/// Most extents that are requested beyond those needed now.
const AHEAD_MAX: u32 = 16;

/// The extents that members must have reserved for an edit: those that it adds to what is in use, and with m > 1 all up to its place. Extents
/// that were given back lie between others, so that a place may be low and its extent one more than there are.
pub(crate) fn extents_for(context: &BucketContext, edit: &Edit) -> u32 {
    let upto = chunks::extents_upto(edit.place);
    let Some(pages) = context.member().pages() else {
        return upto;
    };
    let written = edit
        .runs
        .iter()
        .filter(|run| run.kind == RunKind::Bytes && run.len > 0);
    let mut added = BTreeSet::new();
    for run in written {
        let extent = EXTENT_BYTES as u64;
        let last = (run.offset + u64::from(run.len) - 1) / extent;
        let all = (run.offset / extent)..=last;
        added.extend(all.filter(|index| !pages.exists(index * extent)));
    }
    upto.max(pages.used() + added.len() as u32)
}

/// Requests so many extents in all, and some more.
pub(crate) fn grow(context: &mut BucketContext, now: Time, need: u32) -> Growth {
    let ahead = with_ahead(need);
    context.grow(now, need, ahead, ahead)
}

/// An eighth more, so that a long write need not wait for each.
pub(crate) fn with_ahead(extents: u32) -> u32 {
    extents + (extents / 8).clamp(1, AHEAD_MAX)
}
