//! Numbers for writes, so that a retry is known for one (GROUP rule 18), in a window that never grows
//! wider than what buckets remember.
//!
//! Each bucket remembers for itself, so each has a window and a floor of its own, or shares them with few
//! others: one whose writes stand still does not hold up those of the rest.
//!
//! They are drawn from the clock, in microseconds since 1970, so that they lie above those of clients
//! that were there before: a bucket that has forgotten some can tell a new one from them. Should our
//! clock be behind theirs, the bucket says how far, and [`Numbers::draw_above`] makes up for it: by
//! that much and no more, so that numbers do not run away from the clocks. Where it is by far, the window has a
//! sequence of its own: one bucket that was told of the highest number there may be would else have all others refuse ours.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use staves_model::{ClientId, GroupId};
use tokio::sync::Notify;

/// A mark that lies further above the clock counts for the writes of its own window alone: 30 days, in microseconds. No clock is so
/// far behind, and nobody lifts all numbers step by step to where none are left.
const FAR: u64 = 30 * 86_400_000_000;

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

    fn is_one(self) -> bool {
        self.0.is_power_of_two()
    }

    fn places(self) -> impl Iterator<Item = usize> {
        (0..WINDOWS).filter(move |place| self.0 & (1 << place) != 0)
    }
}

struct State {
    last: u64,
    windows: [Window; WINDOWS],
}

#[derive(Default)]
struct Window {
    /// The next number lies above this: our clock is behind.
    ahead: u64,
    /// Runs with numbers in this window, from the oldest in use on: the first number of each, how many are in this
    /// window, and whether they are in use.
    taken: BTreeMap<u64, (u64, bool)>,
    /// The count of these numbers.
    count: u64,
}

impl State {
    /// A client without a number in use has the answers of all that were drawn.
    fn floor(&self, windows: Windows) -> u64 {
        let floor = |place: usize| self.windows[place].floor(self.last);
        windows.places().map(floor).min().unwrap_or(0)
    }
}

impl Window {
    fn floor(&self, last: u64) -> u64 {
        let oldest = self.taken.first_key_value().map(|(first, _)| *first);
        oldest.unwrap_or(self.ahead.max(last).saturating_add(1))
    }

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
    drawn: Vec<u64>,
    /// The first of them in each window.
    firsts: Vec<(usize, u64)>,
}

impl Numbers {
    /// For a new life of a client: its id is new too.
    pub(crate) fn new(client: ClientId, window: u64) -> Numbers {
        let state = Mutex::new(State {
            last: 0,
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
    pub(crate) async fn take(&self, writes: impl Iterator<Item = Windows> + Clone) -> Taken<'_> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if let Some(taken) = self.try_take(writes.clone()) {
                return taken;
            }
            freed.await;
        }
    }

    fn try_take(&self, writes: impl Iterator<Item = Windows> + Clone) -> Option<Taken<'_>> {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        self.try_take_at(writes, since_1970.map_or(0, |d| d.as_micros() as u64))
    }

    fn try_take_at(
        &self,
        writes: impl Iterator<Item = Windows> + Clone,
        clock: u64,
    ) -> Option<Taken<'_>> {
        let mut counts = [0; WINDOWS];
        for windows in writes.clone() {
            windows.places().for_each(|place| counts[place] += 1);
        }
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let with_room = |place: usize| {
            counts[place] == 0 || state.windows[place].has_room(counts[place], self.window)
        };
        if !(0..WINDOWS).all(with_room) {
            return None;
        }
        let mut firsts = Vec::new();
        let draw = |windows: Windows| {
            let ahead = windows.places().map(|place| state.windows[place].ahead);
            let ahead = ahead.max().unwrap_or(0);
            let is_far = ahead > clock.max(state.last).saturating_add(FAR);
            let above = match is_far {
                true if windows.is_one() => ahead,
                // It may be of another bucket than the one whose mark that is.
                true => state.last,
                false => ahead.max(state.last),
            };
            let is_far = is_far && windows.is_one();
            let number = clock.max(above.saturating_add(1));
            if !is_far {
                state.last = number;
            }
            for place in windows.places() {
                let window = &mut state.windows[place];
                if is_far {
                    window.ahead = number;
                }
                let count = std::mem::take(&mut counts[place]);
                if count > 0 {
                    window.taken.insert(number, (count, true));
                    window.count += count;
                    firsts.push((place, number));
                }
            }
            number
        };
        let drawn = writes.map(draw).collect();
        Some(Taken {
            numbers: self,
            drawn,
            firsts,
        })
    }

    /// A bucket of these windows cannot tell numbers up to `mark` from those of clients that it has forgotten.
    pub(crate) fn draw_above(&self, mark: u64, windows: Windows) {
        let mut state = self.state.lock();
        let is_far = mark > state.last.saturating_add(FAR);
        if is_far && !windows.is_one() {
            return;
        }
        for place in windows.places() {
            let window = &mut state.windows[place];
            window.ahead = window.ahead.max(mark.min(u64::MAX / 2));
        }
    }
}

impl Taken<'_> {
    /// The numbers, one for each write.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.drawn.iter().copied()
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.firsts.is_empty() {
            let mut state = self.numbers.state.lock();
            for (place, first) in &self.firsts {
                state.windows[*place].give_back(*first);
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
            self.try_take_at((0..count).map(|_| Windows::of(GroupId(group))), clock)
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
        numbers.draw_above(70_000, Windows::of(GroupId(3)));
        assert_eq!(first(9002), Some(70_001), "no further than asked");
        numbers.draw_above(60_000, Windows::of(GroupId(3)));
        assert_eq!(first(9003), Some(70_003), "a lower mark changes nothing");
        assert_eq!(first(80_000), Some(80_000), "the clock has caught up");
        assert_eq!(numbers.floor_of(3), 80_002, "nothing is in use");
    }

    /// Regression: one bucket that somebody had told of the highest number there may be had all others refuse what was drawn above it.
    #[test]
    fn a_mark_that_no_clock_explains_counts_in_its_own_window() {
        let numbers = Numbers::new(ClientId(1), 10);
        numbers.draw_above(1 << 61, Windows::of(GroupId(7)));
        let writes = [7, 3, 7, 3].map(|group| Windows::of(GroupId(group)));
        let taken = numbers.try_take_at(writes.into_iter(), 500);
        let taken = taken.expect("there is room");
        let drawn: Vec<u64> = taken.iter().collect();
        assert_eq!(drawn, [(1 << 61) + 1, 500, (1 << 61) + 2, 501]);
        assert_eq!(
            (numbers.floor_of(7), numbers.floor_of(3)),
            ((1 << 61) + 1, 500)
        );
        // Nor does a write of which the bucket is not known.
        let taken_of_all = numbers.try_take_at([Windows::ALL].into_iter(), 500);
        let of_all = taken_of_all.and_then(|taken| taken.iter().next());
        assert_eq!(of_all, Some(502));
        numbers.draw_above(1 << 61, Windows::ALL);
        let next = numbers.take_of(3, 1, 500);
        assert!(next.is_some_and(|taken| taken.iter().eq([503])));
        drop(taken);
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
