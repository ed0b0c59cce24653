//! One log's durable share of a unit: the term, slots, ids, clients' marks and map pages.

use std::collections::BTreeMap;
use std::sync::Arc;

use staves_model::ClientId;

use crate::entry::Entry;
use crate::mutant::{LogMutant, planted};
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
    /// Durable appends that their clients may still ask for: first position and records.
    pub(crate) ids: BTreeMap<AppendId, (Position, u32)>,
    /// Clients' marks.
    pub(crate) lows: BTreeMap<ClientId, Low>,
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

    /// True if the append is below its client's mark.
    pub(crate) fn is_abandoned(&self, id: &AppendId) -> bool {
        let below = self.lows.get(&id.client).is_some_and(|l| id.mark() < *l);
        below && !planted(LogMutant::NoLow)
    }

    /// Replays an entry of this log. Places that nothing names any more are added to `freed`.
    pub(crate) fn apply(&mut self, entry: &Entry, freed: &mut Vec<DataPlace>) {
        match entry {
            Entry::Seal { term, options, .. } => {
                self.term = *term;
                self.options = *options;
                self.start = None;
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
        self.ids.insert(id, (position, count));
        self.raise_low(id.client, low);
    }

    fn raise_low(&mut self, client: ClientId, low: Low) {
        let mark = self.lows.entry(client).or_default();
        *mark = (*mark).max(low);
        if planted(LogMutant::NoLow) {
            return;
        }
        drop_below(&mut self.ids, client, *mark);
    }

    fn trim_to(&mut self, position: Position, freed: &mut Vec<DataPlace>) {
        self.trim = self.trim.max(position);
        if planted(LogMutant::IdsTrimmed) {
            self.ids.retain(|_, (at, _)| *at >= position);
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

/// Drops a client's ids below its mark.
pub(crate) fn drop_below<V>(ids: &mut BTreeMap<AppendId, V>, client: ClientId, mark: Low) {
    let id = |low: Low| AppendId {
        client,
        incarnation: low.incarnation,
        seq: low.seq,
    };
    let below = ids.range(id(Low::default())..id(mark));
    let below: Vec<AppendId> = below.map(|(id, _)| *id).collect();
    for id in below {
        ids.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_log_costs_a_named_number_of_bytes() {
        assert_eq!(LOG_SHARE_BYTES, 184);
    }
}
