//! The open part of the map from positions to units: everything since the last map page that is durable (rule 16).

use std::collections::BTreeMap;
use std::ops::Range;

use crate::types::{PageEntry, PageRun, Position};

/// Positions in a row of one content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MapRun {
    end: Position,
    entry: PageEntry,
}

/// Positions from the first page that is not durable on, and their content as far as it is decided: as runs, for one term may leave any number
/// of positions unclaimed.
#[derive(Clone, Default, Debug)]
pub(super) struct OpenMap {
    /// Positions of a page; 0 keeps no map.
    page_positions: u64,
    /// The first page that is not durable.
    page: u64,
    /// Runs by first position. No two of them overlap.
    runs: BTreeMap<Position, MapRun>,
}

impl OpenMap {
    /// An empty one that begins at a page. `page_positions` of 0 keeps none.
    pub fn new(page_positions: u64, page: u64) -> OpenMap {
        OpenMap {
            page_positions,
            page,
            runs: BTreeMap::new(),
        }
    }

    /// The first page that is not durable.
    pub fn page(&self) -> u64 {
        self.page
    }

    /// The first position that no durable page has.
    pub fn first(&self) -> Position {
        self.page.saturating_mul(self.page_positions)
    }

    /// The position past the first page that is not durable. None without a map.
    pub fn page_end(&self) -> Option<Position> {
        (self.page_positions > 0).then(|| self.first().saturating_add(self.page_positions))
    }

    /// The pages that are begun, complete or not, up to a position.
    pub fn pages_to(&self, next: Position) -> u64 {
        next.saturating_sub(self.first())
            .checked_div(self.page_positions)
            .unwrap_or(0)
    }

    /// Writes the content of positions down.
    pub fn set(&mut self, position: Position, count: u64, entry: PageEntry) {
        let end = position.saturating_add(count);
        let mut first = position.max(self.first());
        if self.page_positions == 0 || first >= end {
            return;
        }
        self.cut(first);
        self.cut(end);
        let covered = self.runs.range(first..end).map(|(at, _)| *at);
        for at in covered.collect::<Vec<_>>() {
            self.runs.remove(&at);
        }
        let mut run = MapRun { end, entry };
        let before = self.runs.range(..first).next_back();
        if let Some((at, _)) = before.filter(|(_, b)| b.end == first && b.entry == entry) {
            first = *at;
        }
        if let Some(after) = self.runs.get(&end).filter(|after| after.entry == entry) {
            run.end = after.end;
            self.runs.remove(&end);
        }
        self.runs.insert(first, run);
    }

    /// Has a run begin at a position, if one covers it.
    fn cut(&mut self, position: Position) {
        let Some((at, run)) = self.runs.range_mut(..position).next_back() else {
            return;
        };
        if *at < position && position < run.end {
            let tail = *run;
            run.end = position;
            self.runs.insert(position, tail);
        }
    }

    /// The content of a position, if it is decided and no durable page has it.
    pub fn get(&self, position: Position) -> Option<PageEntry> {
        let (_, run) = self.runs.range(..=position).next_back()?;
        (position < run.end).then_some(run.entry)
    }

    /// The number of positions within a range that are junk.
    pub fn junk_within(&self, range: Range<Position>) -> u64 {
        let junk = self
            .runs
            .iter()
            .filter(|(_, run)| run.entry == PageEntry::Junk);
        let within = |(at, run): (&Position, &MapRun)| {
            let (from, to) = ((*at).max(range.start), run.end.min(range.end));
            to.saturating_sub(from)
        };
        junk.map(within).sum()
    }

    /// The contents of the first page, once all of it is decided.
    pub fn runs(&self) -> Option<Vec<PageRun>> {
        let (mut at, end) = (self.first(), self.page_end()?);
        let mut runs = Vec::new();
        while at < end {
            let (_, run) = self.runs.range(..=at).next_back()?;
            let to = run.end.min(end);
            let count = u32::try_from(to.checked_sub(at).filter(|n| *n > 0)?).ok()?;
            let entry = run.entry;
            runs.push(PageRun { count, entry });
            at = to;
        }
        Some(runs)
    }

    /// The first page is durable.
    pub fn page_written(&mut self) {
        let Some(end) = self.page_end() else {
            return;
        };
        self.cut(end);
        self.runs = self.runs.split_off(&end);
        self.page += 1;
    }

    /// Checks that nothing past the next position is written down.
    pub fn check(&self, next: Position) -> Result<(), String> {
        let last = self.runs.last_key_value().map_or(0, |(_, run)| run.end);
        match last > next.max(self.first()) {
            true => Err("the map goes past the next position".into()),
            false => Ok(()),
        }
    }
}

/// Appends a position to runs.
pub(super) fn push_run(runs: &mut Vec<PageRun>, entry: PageEntry) {
    match runs.last_mut() {
        Some(run) if run.entry == entry => run.count += 1,
        _ => runs.push(PageRun { count: 1, entry }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::GroupId;

    #[test]
    fn a_run_of_any_length_is_one_item_and_pages_are_cut_from_it() {
        let mut map = OpenMap::new(4, 0);
        map.set(0, 1 << 50, PageEntry::Junk);
        let unit = PageEntry::Unit(GroupId(7));
        map.set(2, 3, unit);
        map.set(5, 1, unit);
        assert_eq!(map.runs.len(), 3);
        let entries: Vec<_> = (0..8).filter_map(|at| map.get(at)).collect();
        let junk = PageEntry::Junk;
        assert_eq!(entries, [junk, junk, unit, unit, unit, unit, junk, junk]);
        assert_eq!(map.junk_within(1..10), 5);
        let run = |count, entry| PageRun { count, entry };
        assert_eq!(map.runs(), Some(vec![run(2, junk), run(2, unit)]));
        map.page_written();
        assert_eq!((map.first(), map.get(3)), (4, None));
        assert_eq!(map.runs(), Some(vec![run(2, unit), run(2, junk)]));
        assert!(map.check(1 << 49).is_err() && map.check(1 << 50).is_ok());
        assert_eq!(map.get(1 << 50), None);
    }
}
