//! The line of those who wait for room: who has waited longest goes first.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// After this wait nobody who holds nothing yet goes before a request.
pub(super) const GOES_FIRST: Duration = Duration::from_millis(500);

/// The place of a request in the line: since when it waits, and a number of its own.
pub(super) type LinePlace = (Instant, u64);

/// Those who wait for room, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Line {
    places: Mutex<BTreeSet<LinePlace>>,
    len: AtomicUsize,
    next: AtomicU64,
}

impl Line {
    pub(super) fn enter(&self) -> LinePlace {
        let place = (Instant::now(), self.next.fetch_add(1, Ordering::Relaxed));
        self.places.lock().insert(place);
        self.len.fetch_add(1, Ordering::Relaxed);
        place
    }

    pub(super) fn leave(&self, place: &LinePlace) {
        if self.places.lock().remove(place) {
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// True if somebody else is first in the line, and has waited long enough to be waited for.
    pub(super) fn is_before(&self, mine: Option<&LinePlace>) -> bool {
        if self.len.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let places = self.places.lock();
        let first = places.first().filter(|first| Some(*first) != mine);
        first.is_some_and(|(since, _)| since.elapsed() >= GOES_FIRST)
    }
}
