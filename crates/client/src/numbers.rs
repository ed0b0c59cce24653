//! Numbers for writes, so that a retry is known for one (GROUP rule 18), in a window that never grows
//! wider than what buckets remember.
//!
//! Each bucket remembers for itself, so each has a window and a floor of its own, or shares them with few
//! others: one whose writes stand still does not hold up those of the rest.
//!
//! They are drawn from the clock, in microseconds since 1970, so that they lie above those of clients
//! that were there before: a bucket that has forgotten some can tell a new one from them. Should our
//! clock be behind theirs, the bucket says how far, and [`Numbers::draw_above`] makes up for it: by
//! that much and no more, so that numbers do not run away from the clocks.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use staves_model::{ClientId, GroupId};
use tokio::sync::Notify;

/// One client's numbers.
pub(crate) struct Numbers {
    client: ClientId,
    window: u64,
    state: Mutex<State>,
    freed: Notify,
}

/// There are so many windows: the bits of [`Windows`].
const WINDOWS: usize = 64;

/// The windows that a write counts in: one, or all where its bucket is not known yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Windows(u64);

impl Windows {
    /// None at all.
    pub(crate) const NONE: Windows = Windows(0);
    /// Every one.
    pub(crate) const ALL: Windows = Windows(u64::MAX);

    /// The window of a group's buckets.
    pub(crate) fn of(group: GroupId) -> Windows {
        Windows(1 << (group.0 as usize % WINDOWS))
    }

    /// Those of both.
    pub(crate) fn and(self, other: Windows) -> Windows {
        Windows(self.0 | other.0)
    }

    fn places(self) -> impl Iterator<Item = usize> {
        (0..WINDOWS).filter(move |place| self.0 & (1 << place) != 0)
    }
}

struct State {
    last: u64,
    /// The next run lies above this: our clock is behind.
    ahead: u64,
    windows: [Window; WINDOWS],
}

#[derive(Default)]
struct Window {
    /// Runs with numbers in this window, from the oldest in use on: the first number of each, how many are in this
    /// window, and whether they are in use.
    taken: BTreeMap<u64, (u64, bool)>,
    /// The count of these numbers.
    count: u64,
}

impl State {
    /// A client without a number in use has the answers of all that were drawn.
    fn floor(&self, windows: Windows) -> u64 {
        let oldest = |place: usize| self.windows[place].taken.first_key_value();
        let oldest = windows.places().filter_map(oldest).map(|(first, _)| *first);
        oldest.min().unwrap_or(self.last.saturating_add(1))
    }
}

impl Window {
    fn has_room(&self, count: u64, max: u64) -> bool {
        self.count + count <= max || self.taken.is_empty()
    }

    fn give_back(&mut self, first: u64) {
        if let Some((_, in_use)) = self.taken.get_mut(&first) {
            *in_use = false;
        }
        while let Some(oldest) = self.taken.first_entry().filter(|run| !run.get().1) {
            self.count -= oldest.remove().0;
        }
    }
}

/// A run of numbers in use. Given back when dropped: from then on no retry carries them.
pub(crate) struct Taken<'a> {
    numbers: &'a Numbers,
    first: u64,
    count: u64,
    windows: Windows,
}

impl Numbers {
    /// For a new life of a client: its id is new too.
    pub(crate) fn new(client: ClientId, window: u64) -> Numbers {
        let state = Mutex::new(State {
            last: 0,
            ahead: 0,
            windows: std::array::from_fn(|_| Window::default()),
        });
        Numbers {
            client,
            window: window.max(1),
            state,
            freed: Notify::new(),
        }
    }

    pub(crate) fn client(&self) -> ClientId {
        self.client
    }

    /// The lowest number in these windows that is in use, or the next one.
    pub(crate) fn floor(&self, windows: Windows) -> u64 {
        self.state.lock().floor(windows)
    }

    /// Takes a number for each write, in turn, once all fit into the windows that each counts in.
    pub(crate) async fn take(&self, writes: impl Iterator<Item = Windows>) -> Taken<'_> {
        let mut counts = [0; WINDOWS];
        let mut count = 0;
        for windows in writes {
            count += 1;
            windows.places().for_each(|place| counts[place] += 1);
        }
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if let Some(taken) = self.try_take(count, &counts) {
                return taken;
            }
            freed.await;
        }
    }

    fn try_take(&self, count: u64, counts: &[u64; WINDOWS]) -> Option<Taken<'_>> {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        self.try_take_at(
            count,
            counts,
            since_1970.map_or(0, |d| d.as_micros() as u64),
        )
    }

    fn try_take_at(&self, count: u64, counts: &[u64; WINDOWS], clock: u64) -> Option<Taken<'_>> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut windows = Windows::NONE;
        for (place, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            if !state.windows[place].has_room(*count, self.window) {
                return None;
            }
            windows.0 |= 1 << place;
        }
        let first = clock.max(state.last.max(state.ahead).saturating_add(1));
        if count > 0 {
            for place in windows.places() {
                let window = &mut state.windows[place];
                window.taken.insert(first, (counts[place], true));
                window.count += counts[place];
            }
            state.last = first.saturating_add(count - 1);
        }
        Some(Taken {
            numbers: self,
            first,
            count,
            windows,
        })
    }

    /// A bucket cannot tell numbers up to `mark` from those of clients that it has forgotten.
    pub(crate) fn draw_above(&self, mark: u64) {
        let mut state = self.state.lock();
        state.ahead = state.ahead.max(mark.min(u64::MAX / 2));
    }
}

impl Taken<'_> {
    /// The numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + use<> {
        self.first..self.first + self.count
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            let mut state = self.numbers.state.lock();
            for place in self.windows.places() {
                state.windows[place].give_back(self.first);
            }
            drop(state);
            self.numbers.freed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Numbers {
        /// In the window of a group.
        fn take_of(&self, group: u32, count: u64, clock: u64) -> Option<Taken<'_>> {
            let mut counts = [0; WINDOWS];
            counts[group as usize] = count;
            self.try_take_at(count, &counts, clock)
        }

        fn floor_of(&self, group: u32) -> u64 {
            self.floor(Windows::of(GroupId(group)))
        }
    }

    #[test]
    fn the_floor_follows_the_oldest_and_the_window_holds() {
        let numbers = Numbers::new(ClientId(1), 10);
        assert_eq!(numbers.floor_of(3), 1);
        let a = numbers.take_of(3, 4, 1).expect("1 to 4");
        let b = numbers.take_of(3, 6, 1).expect("5 to 10");
        assert!(b.iter().eq(5..=10));
        assert!(numbers.take_of(3, 1, 1).is_none(), "11 is ten beyond 1");
        assert!(numbers.take_of(3, 0, 1).is_some(), "reads need none");
        drop(b);
        assert_eq!(numbers.floor_of(3), 1, "the oldest still holds it");
        drop(a);
        assert_eq!(numbers.floor_of(3), 11);
        // A run larger than the window goes alone.
        let c = numbers.take_of(3, 25, 1).expect("alone");
        assert!(numbers.take_of(3, 1, 1).is_none());
        drop(c);
        assert!(
            numbers
                .take_of(3, 1, 1)
                .is_some_and(|taken| taken.iter().eq(36..=36))
        );
    }

    #[test]
    fn numbers_follow_the_clock_and_lie_just_above_a_mark_when_it_is_behind() {
        let numbers = Numbers::new(ClientId(1), 10);
        let first = |clock| numbers.take_of(3, 2, clock).and_then(|t| t.iter().next());
        assert_eq!(first(500), Some(500));
        assert_eq!(first(500), Some(502), "never the same twice");
        assert_eq!(first(9000), Some(9000));
        numbers.draw_above(70_000);
        assert_eq!(first(9002), Some(70_001), "no further than asked");
        numbers.draw_above(60_000);
        assert_eq!(first(9003), Some(70_003), "a lower mark changes nothing");
        assert_eq!(first(80_000), Some(80_000), "the clock has caught up");
        assert_eq!(numbers.floor_of(3), 80_002, "nothing is in use");
    }

    /// A bucket that stands still holds up its own writes, and nobody else's.
    #[test]
    fn each_bucket_has_a_window_and_a_floor_of_its_own() {
        let numbers = Numbers::new(ClientId(1), 10);
        let stuck = numbers.take_of(3, 10, 1).expect("1 to 10");
        assert!(numbers.take_of(3, 1, 1).is_none());
        for turn in 0..100 {
            let first = 11 + turn * 10;
            let other = numbers.take_of(4, 10, 1).expect("of another");
            assert!(other.iter().eq(first..first + 10));
            assert_eq!((numbers.floor_of(3), numbers.floor_of(4)), (1, first));
        }
        let both = Windows::of(GroupId(3)).and(Windows::of(GroupId(4 + 64)));
        assert_eq!(numbers.floor(both), 1, "no higher than either's");
        assert_eq!(numbers.floor(Windows::ALL), 1);
        drop(stuck);
        assert_eq!(numbers.floor(Windows::ALL), 1011);
    }
}
