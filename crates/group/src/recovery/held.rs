//! The room of a disk that members need which it has already, before others may take it.

use std::collections::BTreeSet;
use std::sync::Arc;

use staves_store::{Arena, BUCKET_EXTENTS_MAX, EXTENT_BYTES, EXTENT_PAGES};

use staves_wire::group::RunKind;

use super::RecoveredMember;
use crate::kept_page::{KeptBytes, KeptPage};

impl RecoveredMember {
    /// Takes the extents of an arena that its pages and its log need at most, until a bucket takes it over; `kept` are the pages that its disk has. False, and it holds
    /// none, if there are fewer.
    pub fn hold(&mut self, arena: &Arc<Arena>, kept: impl Iterator<Item = KeptPage>) -> bool {
        let join = self.snapshot.join;
        let mut extents = BTreeSet::new();
        // A reservation bounds the offsets of deltas; a coded member's those of all pages. Zeroes among them.
        let is_coded = self.streams.len() > 1;
        let mut end = 0;
        for kept in kept.filter(|kept| kept.join == join) {
            if kept.bytes == KeptBytes::There {
                extents.insert(kept.page / EXTENT_PAGES);
            }
            if is_coded {
                end = end.max(kept.page / EXTENT_PAGES + 1);
            }
        }
        let deltas = self.streams.iter().flat_map(|s| s.log.all());
        for run in deltas
            .flat_map(|delta| &delta.runs)
            .filter(|run| run.len > 0)
        {
            let extent = EXTENT_BYTES as u64;
            let last = (run.offset + u64::from(run.len)).div_ceil(extent);
            let last = u32::try_from(last).unwrap_or(u32::MAX);
            let last = last.min(BUCKET_EXTENTS_MAX);
            let first = u32::try_from(run.offset / extent).unwrap_or(u32::MAX);
            if run.kind == RunKind::Bytes {
                extents.extend(first..last);
            }
            end = end.max(last);
        }
        arena.take(end.max(extents.len() as u32), &mut self.held)
    }
}
