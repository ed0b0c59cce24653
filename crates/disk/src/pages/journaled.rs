//! Places of the page file that the journal has: blocks of its records lie there.

use std::ops::Range;

use super::machine::PageFile;

impl PageFile {
    /// Free places for so many blocks of the journal's records, in runs; `None` if it has too many already. They are the journal's until
    /// [`release`](Self::release).
    pub fn take_for_journal(&mut self, wanted: u32) -> Option<Vec<Range<u32>>> {
        self.places.take_for_journal(wanted)
    }

    /// A record of the journal that a start has found names a place. False if another one does, or if there is no such place.
    #[must_use]
    pub fn hold(&mut self, place: u32) -> bool {
        self.places.hold(place)
    }

    /// No start finds the record any more that named a place ([`Journal::released`](crate::Journal::released)), or it was not appended.
    ///
    /// # Panics
    /// If the journal does not have it.
    pub fn release(&mut self, place: u32) {
        self.places.release(place);
    }

    /// Places that the journal has, and the most that it may.
    pub fn held(&self) -> (u32, u32) {
        self.places.held()
    }
}
