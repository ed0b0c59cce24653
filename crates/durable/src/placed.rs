//! Blocks of deltas that lie in the page file: bytes of whole pages are written there, once, and the journal names their places.
//!
//! A delta of many whole pages is such a record ([`split`]). A place is the journal's until no start finds the record any more. As long as the newest
//! version of a page is the one that such a delta made, a round of saving has nothing to write: the page's row names that place.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use staves_disk::{PageFile, PlacedBlock, RecordBytes};
use staves_model::mutant::{Mutant, planted};
use staves_model::{GroupId, Label, PAGE_BYTES};
use staves_wire::group::{Delta, JournalRecord, MemberRecord, RunKind};

use crate::open::DiskOpenError;
use crate::store::DiskStore;

/// A delta with so many whole pages has them in the page file: a second sync costs less then than a second copy of the bytes.
pub(crate) const PLACED_PAGES_MIN: usize = 16;

/// Deltas of more runs than this are written as they are.
const RUNS_MAX: usize = 64;

/// A page as a durable record, or one on its way to the journal, has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlacedPage {
    pub(crate) place: u32,
    pub(crate) sum: u32,
    label: Label,
}

/// The pages of all members that lie at places of the journal.
#[derive(Debug, Default)]
pub(crate) struct PlacedPages {
    newest: BTreeMap<(GroupId, u32), PlacedPage>,
    /// Records with their pages, in the order of their numbers.
    held: VecDeque<HeldPlaces>,
}

#[derive(Debug)]
struct HeldPlaces {
    number: u64,
    group: GroupId,
    /// Pages and their places; of a record that a start has found, the places alone.
    pages: Vec<(Option<u32>, u32)>,
}

impl PlacedPages {
    /// A record has this number in the journal.
    pub(crate) fn appended(&mut self, number: u64, group: GroupId, split: &SplitRecord) {
        let SplitRecord { blocks, pages, .. } = split;
        if blocks.is_empty() {
            return;
        }
        let label = split.label;
        for (page, block) in pages.iter().zip(blocks) {
            let PlacedBlock { place, sum, .. } = *block;
            let placed = PlacedPage { place, sum, label };
            self.newest.insert((group, *page), placed);
        }
        let pages = pages.iter().zip(blocks);
        let pages = pages.map(|(page, block)| (Some(*page), block.place));
        self.held.push_back(HeldPlaces {
            number,
            group,
            pages: pages.collect(),
        });
    }

    /// A start has found a record that names places.
    pub(crate) fn found(&mut self, number: u64, places: &[u32]) {
        let pages = places.iter().map(|place| (None, *place)).collect();
        self.held.push_back(HeldPlaces {
            number,
            group: GroupId(0),
            pages,
        });
    }

    /// No start finds records below a number any more: their places go back to the page file.
    pub(crate) fn release(&mut self, below: u64, file: &mut PageFile) {
        while self.held.front().is_some_and(|held| held.number < below) {
            let Some(held) = self.held.pop_front() else {
                return;
            };
            for (page, place) in held.pages {
                let key = page.map(|page| (held.group, page));
                let is_newest =
                    |key: &(GroupId, u32)| self.newest.get(key).is_some_and(|of| of.place == place);
                if let Some(key) = key.filter(is_newest) {
                    self.newest.remove(&key);
                }
                file.release(place);
            }
        }
    }

    /// A member's pages are another member's from now on.
    pub(crate) fn forget(&mut self, group: GroupId) {
        self.newest.retain(|(of, _), _| *of != group);
    }

    /// The pages of a group, each with the label of the delta that left it so.
    pub(crate) fn labels_of(&self, group: GroupId) -> BTreeMap<u32, Label> {
        let of = self.newest.range((group, 0)..=(group, u32::MAX));
        of.map(|((_, page), placed)| (*page, placed.label))
            .collect()
    }

    /// The place of a page whose one label is this.
    pub(crate) fn find(&self, group: GroupId, page: u32, labels: &[Label]) -> Option<PlacedPage> {
        let placed = *self.newest.get(&(group, page))?;
        let is_same = labels == [placed.label] || planted(Mutant::PlacedOfAnyLabel);
        is_same.then_some(placed)
    }
}

impl DiskStore {
    /// Deltas of so many whole pages have them in the page file: for tests, whose deltas are small.
    pub fn place_from(&mut self, pages: usize) {
        self.placed_pages_min = pages;
    }

    /// Records that a start has found, and the places that they name.
    pub(crate) fn hold(&mut self, records: Vec<(u64, Vec<u32>)>) -> Result<(), DiskOpenError> {
        for (number, places) in records {
            if let Some(place) = places.iter().find(|place| !self.pages.hold(**place)) {
                let place = *place;
                return Err(DiskOpenError::Place { place, number });
            }
            self.placed.found(number, &places);
        }
        Ok(())
    }

    /// No start finds records of the journal below this one any more ([`staves_disk::Journal::released`]): the places that they name are free.
    pub fn released(&mut self, below: u64) {
        self.placed.release(below, &mut self.pages);
    }

    /// The journal has half of the places that it may have: pages are to be saved, so that it lets go of some.
    pub fn is_short_of_places(&self) -> bool {
        let (held, most) = self.pages.held();
        held > most / 2
    }
}

/// A record as it goes to the journal, and which pages its blocks are.
pub(crate) struct SplitRecord {
    head: BytesMut,
    tail: Bytes,
    pub(crate) blocks: Vec<PlacedBlock>,
    pages: Vec<u32>,
    /// The delta's.
    label: Label,
}

impl SplitRecord {
    pub(crate) fn bytes(&self) -> RecordBytes<'_> {
        RecordBytes {
            head: &self.head,
            tail: &self.tail,
            placed: &self.blocks,
        }
    }
}

/// A record with its delta's bytes behind its other ones, without a copy of them. Those of whole pages get places of the page file, if they are `least` pages or
/// more and there are places for them.
pub(crate) fn split(
    record: &JournalRecord,
    least: Option<usize>,
    file: &mut PageFile,
) -> SplitRecord {
    let mut split = SplitRecord {
        head: BytesMut::new(),
        tail: Bytes::new(),
        blocks: Vec::new(),
        pages: Vec::new(),
        label: Label::default(),
    };
    let MemberRecord::Delta {
        stream,
        purgeable,
        delta,
    } = &record.record
    else {
        record.encode(&mut split.head);
        return split;
    };
    split.tail = delta.bytes.clone();
    split.label = delta.label;
    encode_head(record.group, (*stream, *purgeable), delta, &mut split.head);
    let enough = least.filter(|least| delta.bytes.len() / PAGE_BYTES >= *least);
    let whole = enough.map_or_else(Vec::new, |_| whole_pages(delta));
    if enough.is_none_or(|least| whole.len() < least) {
        return split;
    }
    let places = u32::try_from(whole.len())
        .ok()
        .and_then(|n| file.take_for_journal(n));
    let places = places.into_iter().flatten().flat_map(|run: Range<u32>| run);
    for ((page, at), place) in whole.into_iter().zip(places) {
        split.pages.push(page);
        split.blocks.push(PlacedBlock::new(&split.tail, at, place));
    }
    split
}

/// The bytes of a delta are the last ones of its record, behind their length.
fn encode_head(group: GroupId, (stream, purgeable): (u8, u64), delta: &Delta, out: &mut BytesMut) {
    let bare = Delta {
        label: delta.label,
        request: delta.request,
        answer: delta.answer.clone(),
        runs: delta.runs.clone(),
        bytes: Bytes::new(),
    };
    let record = MemberRecord::Delta {
        stream,
        purgeable,
        delta: bare,
    };
    JournalRecord { group, record }.encode(out);
    #[allow(clippy::cast_possible_truncation)] // a record is shorter
    let length = (delta.bytes.len() as u32).to_le_bytes();
    let from = out.len() - length.len();
    out[from..].copy_from_slice(&length);
}

/// Pages that a delta puts whole, and touches once, with the offsets of their bytes among its own.
fn whole_pages(delta: &Delta) -> Vec<(u32, u32)> {
    if delta.runs.len() > RUNS_MAX {
        return Vec::new();
    }
    let page = PAGE_BYTES as u64;
    let (mut whole, mut at) = (Vec::new(), 0u64);
    let mut others = Vec::new();
    for run in &delta.runs {
        let (from, end) = (run.offset, run.offset.saturating_add(run.len.into()));
        let (first, behind) = (from.div_ceil(page), end / page);
        if run.kind != RunKind::Bytes || first >= behind {
            others.push((from / page)..end.div_ceil(page));
        } else {
            others.extend([(from / page)..first, behind..end.div_ceil(page)]);
            whole.extend((first..behind).map(|p| (p, at + p * page - from)));
        }
        at += if run.kind == RunKind::Bytes {
            run.len.into()
        } else {
            0
        };
    }
    whole.sort_unstable();
    let pages: Vec<u64> = whole.iter().map(|(page, _)| *page).collect();
    let is_twice =
        |p: u64| pages.partition_point(|q| *q <= p) - pages.partition_point(|q| *q < p) > 1;
    whole.retain(|(p, _)| !is_twice(*p) && others.iter().all(|of| !of.contains(p)));
    whole.sort_unstable_by_key(|(_, at)| *at);
    let short = |(p, at): (u64, u64)| Some((u32::try_from(p).ok()?, u32::try_from(at).ok()?));
    whole.into_iter().filter_map(short).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::Epoch;
    use staves_wire::group::Run;

    fn delta(runs: &[(u64, u32, RunKind)]) -> Delta {
        let runs = runs.iter().map(|(offset, len, kind)| Run {
            offset: *offset,
            len: *len,
            kind: *kind,
        });
        let runs: Vec<Run> = runs.collect();
        let bytes = runs.iter().filter(|run| run.kind == RunKind::Bytes);
        let bytes: usize = bytes.map(|run| run.len as usize).sum();
        Delta {
            label: Label {
                epoch: Epoch(3),
                seq: 4,
            },
            request: None,
            answer: Bytes::from_static(b"yes"),
            runs,
            bytes: (0..bytes).map(|at| at as u8).collect(),
        }
    }

    #[test]
    fn pages_are_whole_that_one_run_puts_and_no_other_touches() {
        use RunKind::{Bytes, Zero};
        const P: u64 = PAGE_BYTES as u64;
        let p = PAGE_BYTES as u32;
        assert_eq!(whole_pages(&delta(&[(P, 2 * p, Bytes)])), [(1, 0), (2, p)]);
        let ragged = delta(&[(7, 3, Bytes), (P - 5, 2 * p, Bytes)]);
        assert_eq!(whole_pages(&ragged), [(1, 3 + 5)]);
        let behind = delta(&[(0, 1, Bytes), (64 * P, p, Zero), (9 * P, p, Bytes)]);
        assert_eq!(whole_pages(&behind), [(9, 1)], "zeroed pages have no bytes");
        let twice = delta(&[(P, 2 * p, Bytes), (2 * P, p, Bytes)]);
        assert_eq!(whole_pages(&twice), [(1, 0)]);
        let touched = delta(&[(P, 2 * p, Bytes), (3 * P - 1, 2, Bytes)]);
        assert_eq!(whole_pages(&touched), [(1, 0)]);
        let zeroed = delta(&[(P, 2 * p, Bytes), (2 * P, p, Zero)]);
        assert_eq!(whole_pages(&zeroed), [(1, 0)]);
    }

    #[test]
    fn a_record_is_the_same_bytes_split_or_not() {
        let delta = delta(&[(0, 9, RunKind::Bytes), (8192, 70_000, RunKind::Bytes)]);
        let (group, stream, purgeable) = (GroupId(7), 1, 5);
        let record = JournalRecord {
            group,
            record: MemberRecord::Delta {
                stream,
                purgeable,
                delta: delta.clone(),
            },
        };
        let (mut whole, mut head) = (BytesMut::new(), BytesMut::new());
        record.encode(&mut whole);
        encode_head(group, (stream, purgeable), &delta, &mut head);
        head.extend_from_slice(&delta.bytes);
        assert_eq!(head, whole);
    }
}
