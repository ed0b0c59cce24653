//! The open part of the map from positions to units: everything since the last map page that is durable (rule 16).

use std::collections::VecDeque;

use crate::types::{PageEntry, PageRun, Position};

/// Positions from the first page that is not durable on, and their content as far as it is decided.
#[derive(Clone, Default, Debug)]
pub(super) struct OpenMap {
    /// Positions of a page; 0 keeps no map.
    page_positions: u64,
    /// The first page that is not durable.
    page: u64,
    entries: VecDeque<Option<PageEntry>>,
}

impl OpenMap {
    /// An empty one that begins at a page. `page_positions` of 0 keeps none.
    pub fn new(page_positions: u64, page: u64) -> OpenMap {
        OpenMap {
            page_positions,
            page,
            entries: VecDeque::new(),
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
        (self.page_positions > 0).then(|| self.first() + self.page_positions)
    }

    /// The pages that are begun, complete or not, up to a position.
    pub fn pages_to(&self, next: Position) -> u64 {
        next.saturating_sub(self.first())
            .checked_div(self.page_positions)
            .unwrap_or(0)
    }

    /// Writes the content of positions down.
    pub fn set(&mut self, position: Position, count: u32, entry: PageEntry) {
        if self.page_positions == 0 {
            return;
        }
        for at in position..position + u64::from(count) {
            let Some(index) = at.checked_sub(self.first()) else {
                continue;
            };
            let index = index as usize;
            if self.entries.len() <= index {
                self.entries.resize(index + 1, None);
            }
            self.entries[index] = Some(entry);
        }
    }

    /// The content of a position, if it is decided and no durable page has it.
    pub fn get(&self, position: Position) -> Option<PageEntry> {
        let index = position.checked_sub(self.first())?;
        *self.entries.get(index as usize)?
    }

    /// The contents of the first page, once all of it is decided.
    pub fn runs(&self) -> Option<Vec<PageRun>> {
        let mut runs: Vec<PageRun> = Vec::new();
        for index in 0..self.page_positions {
            let entry = (*self.entries.get(index as usize)?)?;
            push_run(&mut runs, entry);
        }
        (self.page_positions > 0).then_some(runs)
    }

    /// The first page is durable.
    pub fn page_written(&mut self) {
        let gone = (self.page_positions as usize).min(self.entries.len());
        self.entries.drain(..gone);
        self.page += 1;
    }

    /// Checks that nothing past the next position is written down.
    pub fn check(&self, next: Position) -> Result<(), String> {
        match self.first() + self.entries.len() as u64 > next.max(self.first()) {
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
