//! The places of a bucket that chunks have, so that a first write need not look through the whole table for a free one.
//!
//! They are made of the table of chunks, and kept up with the changes that this bucket makes of it. Whatever else changes pages
//! is another epoch, other pages, or a delta of which this index does not know: then it is made of the table anew.

use staves_group::{Member, PageTable};
use staves_model::{BUCKET_CHUNKS_MAX, CHUNK_BYTES, Epoch};
use staves_store::EXTENT_BYTES;

use crate::chunks;

/// Places of one extent.
const EXTENT_PLACES: u16 = (EXTENT_BYTES as u64 / CHUNK_BYTES) as u16;
// A chunk never lies in two extents, nor do the places of an extent in two words.
const _: () = assert!((EXTENT_BYTES as u64).is_multiple_of(CHUNK_BYTES));
const _: () = assert!(u64::BITS.is_multiple_of(EXTENT_PLACES as u32));
const WORDS: usize = BUCKET_CHUNKS_MAX as usize / u64::BITS as usize + 1;

/// The state of a bucket's pages: no two of them have the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PagesState {
    generation: u64,
    epoch: Epoch,
    last: u64,
}

impl PagesState {
    /// The present one; `None` without pages.
    pub(crate) fn of(member: &Member) -> Option<PagesState> {
        member.pages().map(|pages| PagesState {
            generation: pages.generation(),
            epoch: member.epoch(),
            last: member.last(),
        })
    }
}

/// A bit for each place: set if a chunk has it, and for place 0, which the table has.
#[derive(Clone, Default)]
pub(crate) struct Places {
    of: Option<PagesState>,
    taken: Vec<u64>,
}

impl Places {
    /// The places that the table gives away. All of it must be here.
    fn of_table(table: &PageTable) -> Vec<u64> {
        let mut taken = vec![0; WORDS];
        taken[0] = 1;
        for (_, place) in chunks::taken(table) {
            set(&mut taken, place, true);
        }
        taken
    }

    /// Makes them anew, if the pages are others than those they are of. All of the table must be here.
    pub(crate) fn follow(&mut self, member: &Member) {
        let now = PagesState::of(member);
        if let Some(table) = member.table().filter(|_| self.of != now || now.is_none()) {
            self.taken = Places::of_table(table);
            self.of = now;
        }
    }

    /// The pages have changed from one state to the present one, and these places with them.
    pub(crate) fn keep_up(&mut self, from: Option<PagesState>, member: &Member) {
        if self.of == from {
            self.of = PagesState::of(member);
        }
    }

    /// A chunk had one place, and has another one.
    pub(crate) fn moved(&mut self, from: Option<u16>, to: Option<u16>) {
        for (place, is_taken) in [(from, false), (to, true)] {
            if let Some(place) = place {
                set(&mut self.taken, place, is_taken);
            }
        }
    }

    /// The lowest that no chunk has.
    pub(crate) fn lowest_free(&self) -> u16 {
        let mut words = self.taken.iter().enumerate();
        let free = words.find(|(_, word)| **word != u64::MAX);
        // A chunk that has none leaves one.
        free.map_or(BUCKET_CHUNKS_MAX as u16, |(at, word)| {
            (at as u32 * u64::BITS + word.trailing_ones()) as u16
        })
    }

    /// The highest that a chunk has; 0 for none.
    pub(crate) fn highest(&self) -> u16 {
        let word = self.taken.iter().rposition(|word| *word != 0);
        word.map_or(0, |at| {
            (at as u32 * u64::BITS + self.taken[at].ilog2()) as u16
        })
    }

    /// The extent of a place, if that place is the only one in it that is taken.
    pub(crate) fn extent_of_last(&self, place: u16) -> Option<u64> {
        let extent = place / EXTENT_PLACES;
        let first = u32::from(extent * EXTENT_PLACES);
        let word = self.taken.get((first / u64::BITS) as usize)?;
        let of_extent = word >> (first % u64::BITS) & ((1 << EXTENT_PLACES) - 1);
        let is_last = of_extent == 1 << (place % EXTENT_PLACES);
        // The first extent has the table.
        (extent > 0 && is_last).then(|| u64::from(extent) * EXTENT_BYTES as u64)
    }

    /// Checks that they are those of the table, if they are of the present pages.
    pub(crate) fn check(&self, member: &Member, table: &PageTable) -> Result<(), String> {
        let is_present = self.of.is_some() && self.of == PagesState::of(member);
        match is_present && self.taken != Places::of_table(table) {
            true => Err("the index of places is not what the table of chunks says".into()),
            false => Ok(()),
        }
    }
}

// A place that none may have is not kept.
fn set(taken: &mut [u64], place: u16, is_taken: bool) {
    let place = u32::from(place);
    if let Some(word) = taken.get_mut((place / u64::BITS) as usize) {
        let bit = 1 << (place % u64::BITS);
        match is_taken {
            true => *word |= bit,
            false => *word &= !bit,
        }
    }
}
