//! The places of a bucket that chunks have, so that a first write need not look through the whole table for a free one, nor a write where
//! there are images through all tables for others that have its place.
//!
//! They are made of the tables of chunks, and kept up with the changes that this bucket makes of them. Whatever else changes pages
//! is another epoch, other pages, or a delta of which this index does not know: then it is made of the tables anew.

use staves_group::{Member, PageTable};
use staves_model::{CHUNK_BYTES, Epoch};
use staves_store::EXTENT_BYTES;

use crate::chunks;

/// Places of one extent.
const EXTENT_PLACES: u16 = (EXTENT_BYTES as u64 / CHUNK_BYTES) as u16;
// A chunk never lies in two extents.
const _: () = assert!((EXTENT_BYTES as u64).is_multiple_of(CHUNK_BYTES));
// Each image has a place at most once, and its table one.
const _: () = assert!(chunks::IMAGES_MAX + 2 < u8::MAX as usize);

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

/// The number of tables that have each place, up to the highest that any has; and 1 for a place that a table lies in.
#[derive(Clone, Default)]
pub(crate) struct Places {
    of: Option<PagesState>,
    users: Vec<u8>,
    /// All places below are taken.
    taken_below: u16,
}

impl Places {
    /// The places that the tables give away. All of them must be here.
    fn of_tables(pages: &PageTable) -> Vec<u8> {
        let mut users = Vec::new();
        for table in chunks::tables(pages) {
            add(&mut users, table.place(), 1);
            for (_, place) in table.taken(pages) {
                add(&mut users, place, 1);
            }
        }
        users
    }

    /// Makes them anew, if the pages are others than those they are of. All of the tables must be here.
    pub(crate) fn follow(&mut self, member: &Member) {
        let now = PagesState::of(member);
        if let Some(pages) = member.table().filter(|_| self.of != now || now.is_none()) {
            self.users = Places::of_tables(pages);
            self.taken_below = 0;
            self.of = now;
        }
    }

    /// The pages have changed from one state to the present one, and these places with them.
    pub(crate) fn keep_up(&mut self, from: Option<PagesState>, member: &Member) {
        if self.of == from {
            self.of = PagesState::of(member);
        }
    }

    /// A table has another place for a chunk than before.
    pub(crate) fn moved(&mut self, from: Option<u16>, to: Option<u16>) {
        if let Some(from) = from {
            add(&mut self.users, from, -1);
            if self.users[usize::from(from)] == 0 {
                self.taken_below = self.taken_below.min(from);
            }
        }
        if let Some(to) = to {
            add(&mut self.users, to, 1);
            self.taken_below = self.lowest_free(0).unwrap_or(chunks::PLACE_MAX);
        }
    }

    /// The pages are others in a way that `moved` cannot say: the places are made anew when they are next asked for.
    pub(crate) fn forget(&mut self) {
        self.of = None;
    }

    /// The lowest place from `from` on that no table has; `None` if all are taken.
    pub(crate) fn lowest_free(&self, from: u16) -> Option<u16> {
        let from = usize::from(from.max(self.taken_below));
        let known = self.users.iter().skip(from);
        let free = from + known.take_while(|users| **users != 0).count();
        u16::try_from(free).ok()
    }

    /// True if several tables have a place: nothing is written to it.
    pub(crate) fn is_shared(&self, place: u16) -> bool {
        let users = self.users.get(usize::from(place));
        users.is_some_and(|users| *users > 1)
    }

    /// The highest that a chunk has; 0 for none.
    pub(crate) fn highest(&self) -> u16 {
        let highest = self.users.iter().rposition(|users| *users != 0);
        highest.unwrap_or(0) as u16
    }

    /// The extent of a place, if that place is the only one in it that is taken, and by one table.
    pub(crate) fn extent_of_last(&self, place: u16) -> Option<u64> {
        self.extent_of(place, 1)
    }

    /// The extent of some places of it, if they are all that are taken in it, each by one table.
    pub(crate) fn extent_of(&self, place: u16, count: usize) -> Option<u64> {
        let extent = place / EXTENT_PLACES;
        let first = usize::from(extent * EXTENT_PLACES);
        let of_extent = self.users.iter().skip(first).take(EXTENT_PLACES.into());
        let users: usize = of_extent.map(|users| usize::from(*users)).sum();
        // The first extent has the first table.
        (extent > 0 && users == count).then(|| u64::from(extent) * EXTENT_BYTES as u64)
    }

    /// Checks that they are those of the tables, if they are of the present pages.
    pub(crate) fn check(&self, member: &Member, pages: &PageTable) -> Result<(), String> {
        let is_present = self.of.is_some() && self.of == PagesState::of(member);
        let known = |users: &[u8]| users.iter().rposition(|u| *u != 0).map_or(0, |at| at + 1);
        let anew = Places::of_tables(pages);
        match is_present && self.users[..known(&self.users)] != anew[..known(&anew)] {
            true => Err("the index of places is not what the tables of chunks say".into()),
            false => Ok(()),
        }
    }
}

fn add(users: &mut Vec<u8>, place: u16, count: i8) {
    let at = usize::from(place);
    if users.len() <= at {
        users.resize(at + 1, 0);
    }
    users[at] = users[at].saturating_add_signed(count);
}
