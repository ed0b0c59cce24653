//! One log's durable share of a unit: the term, slots, sessions and map pages.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::entry::Entry;
use crate::mutant::{LogMutant, planted};
use crate::sessions::SessionTable;
use crate::slots::{DataSlot, Slots};
use crate::types::{
    AppendId, BACK_POINTERS, DataPlace, LogOptions, Low, PageRun, Position, TagLink, Term,
};

/// Bytes of memory that a log without records takes at a unit, beside the map's own.
pub const LOG_SHARE_BYTES: usize = size_of::<LogShare>();

/// One log's share of a unit, which survives with the unit's group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogShare {
    /// The term that it is sealed for.
    pub(crate) term: Term,
    /// The log's options.
    pub(crate) options: LogOptions,
    /// The term's start, once known.
    pub(crate) start: Option<Position>,
    /// The content of positions.
    pub(crate) slots: Slots,
    /// Durable appends that their clients may still ask for, by session: first position and records.
    pub(crate) sessions: SessionTable<(Position, u32)>,
    /// The highest position that was ever claimed, and one more. Never lowered.
    pub(crate) claimed: Position,
    /// Positions below are trimmed.
    pub(crate) trim: Position,
    /// The last positions of each tag, ascending: at most [`BACK_POINTERS`].
    pub(crate) tags: BTreeMap<u64, Vec<Position>>,
    /// Map pages.
    pub(crate) pages: BTreeMap<u64, Vec<PageRun>>,
    /// All positions below are decided at every unit.
    pub(crate) prefix: Position,
}

impl LogShare {
    /// The term that the unit is sealed for.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The first position that is not trimmed.
    pub fn trim(&self) -> Position {
        self.trim
    }

    /// The number of positions that hold data.
    pub fn records(&self) -> usize {
        self.slots.records()
    }

    /// The places of all data that it holds.
    pub fn places(&self) -> impl Iterator<Item = DataPlace> + '_ {
        self.slots.places()
    }

    /// Bytes of its checkpoint, about, and no fewer.
    pub(crate) fn checkpoint_bytes(&self) -> usize {
        let (lows, ids) = (self.sessions.lows().len(), self.sessions.ids().len());
        let tag = 12 + 8 * BACK_POINTERS;
        let table = 256 + lows * 16 + ids * 28;
        table + self.tags.len() * tag + self.slots.without_data_len() * 13 + self.pages.len() * 8
    }

    /// Replays an entry of this log. Places that nothing names any more are added to `freed`.
    pub(crate) fn apply(&mut self, entry: &Entry, freed: &mut Vec<DataPlace>) {
        match entry {
            Entry::Seal { term, options, .. } => {
                self.term = *term;
                self.options = *options;
                self.start = None;
                if planted(LogMutant::FloorLostAtSeal) {
                    self.sessions.forget_floor();
                }
            }
            Entry::Start { start, .. } => self.start = Some(*start),
            Entry::Commit {
                position,
                id,
                low,
                links,
                places,
                ..
            } => self.commit(*position, *id, *low, links, places, freed),
            Entry::Junk {
                position, count, ..
            } => {
                self.slots.junk(*position, *count);
                self.claim(position + u64::from(*count));
            }
            Entry::Trim { position, .. } => self.trim_to(*position, freed),
            Entry::Punch { position, .. } => {
                freed.extend(self.slots.punch(*position));
            }
            Entry::Page { page, runs, .. } => {
                let early = planted(LogMutant::PageEarly);
                if early || !self.pages.contains_key(page) {
                    self.pages.insert(*page, runs.clone());
                }
            }
            Entry::Prefix { position, .. } => self.prefix = self.prefix.max(*position),
            Entry::Floor { session, .. } => self.sessions.raise_floor(*session),
            _ => {}
        }
    }

    fn claim(&mut self, end: Position) {
        self.claimed = self.claimed.max(end);
    }

    fn commit(
        &mut self,
        position: Position,
        id: AppendId,
        low: Low,
        links: &[TagLink],
        places: &[DataPlace],
        freed: &mut Vec<DataPlace>,
    ) {
        let shared: Option<Arc<[TagLink]>> = (!links.is_empty()).then(|| links.into());
        let count = places.len() as u32;
        for (at, (index, place)) in (position..).zip((0..).zip(places)) {
            let data = DataSlot {
                id,
                index,
                count,
                place: *place,
                links: shared.clone(),
            };
            freed.extend(self.slots.data(at, data));
        }
        let end = position + u64::from(count);
        for link in links {
            let positions = self.tags.entry(link.tag).or_default();
            positions.extend(position..end);
            // Data comes in any order.
            positions.sort_unstable();
            keep_last(positions);
        }
        self.claim(end);
        self.sessions.insert(id, (position, count));
        self.sessions.raise(id.session, low);
    }

    fn trim_to(&mut self, position: Position, freed: &mut Vec<DataPlace>) {
        self.trim = self.trim.max(position);
        if planted(LogMutant::IdsTrimmed) {
            self.sessions.retain_ids(|(at, _)| *at >= position);
        }
        self.slots.trim(position, freed);
        for positions in self.tags.values_mut() {
            positions.retain(|p| *p >= position);
        }
        self.tags.retain(|_, positions| !positions.is_empty());
        let page_end = |page: &u64| (page + 1).saturating_mul(self.options.page_positions.into());
        // The last page stays, trimmed or not: from it a later sequencer knows how far pages go.
        let last = self.pages.keys().next_back().copied();
        self.pages
            .retain(|page, _| page_end(page) > position || Some(*page) == last);
        if planted(LogMutant::TailTrimmed) {
            self.claimed = self.slots.end();
        }
    }
}

/// The last positions of a tag, as many as records name.
pub(crate) fn keep_last(positions: &mut Vec<Position>) {
    let over = positions.len().saturating_sub(BACK_POINTERS);
    positions.drain(..over);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_log_costs_a_named_number_of_bytes() {
        assert_eq!(LOG_SHARE_BYTES, 208);
    }
}
