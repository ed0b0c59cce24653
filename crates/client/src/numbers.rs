//! Numbers for writes, so that a retry is known for one (GROUP rule 18), in a window that never grows
//! wider than what buckets remember.
//!
//! They are drawn from the clock, in microseconds since 1970, so that they lie above those of clients
//! that were there before: a bucket that has forgotten some can tell a new one from them. Should our
//! clock be behind theirs, the bucket says how far, and [`Numbers::draw_above`] makes up for it: by
//! that much and no more, so that numbers do not run away from the clocks.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use staves_model::ClientId;
use tokio::sync::Notify;

/// One client's numbers.
pub(crate) struct Numbers {
    client: ClientId,
    window: u64,
    state: Mutex<State>,
    freed: Notify,
}

struct State {
    last: u64,
    /// The next run lies above this: our clock is behind.
    ahead: u64,
    /// Runs of numbers from the oldest in use on: the first, how many, and whether they are in use.
    taken: BTreeMap<u64, (u64, bool)>,
    /// How many numbers these are.
    count: u64,
}

impl State {
    fn floor(&self) -> u64 {
        self.taken
            .first_key_value()
            .map_or(self.last.saturating_add(1), |(first, _)| *first)
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
}

impl Numbers {
    /// For a new life of a client: its id is new too.
    pub(crate) fn new(client: ClientId, window: u64) -> Numbers {
        let state = Mutex::new(State {
            last: 0,
            ahead: 0,
            taken: BTreeMap::new(),
            count: 0,
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

    /// The lowest number that is in use, or the next one.
    pub(crate) fn floor(&self) -> u64 {
        self.state.lock().floor()
    }

    /// Takes the next `count` numbers, once they fit into the window.
    pub(crate) async fn take(&self, count: u64) -> Taken<'_> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if let Some(taken) = self.try_take(count) {
                return taken;
            }
            freed.await;
        }
    }

    fn try_take(&self, count: u64) -> Option<Taken<'_>> {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        self.try_take_at(count, since_1970.map_or(0, |d| d.as_micros() as u64))
    }

    fn try_take_at(&self, count: u64, clock: u64) -> Option<Taken<'_>> {
        let mut state = self.state.lock();
        let first = clock.max(state.last.max(state.ahead).saturating_add(1));
        if count > 0 {
            let fits = state.count + count <= self.window;
            if !fits && !state.taken.is_empty() {
                return None;
            }
            state.taken.insert(first, (count, true));
            state.count += count;
            state.last = first.saturating_add(count - 1);
        }
        Some(Taken {
            numbers: self,
            first,
            count,
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
            self.numbers.state.lock().give_back(self.first);
            self.numbers.freed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_follows_the_oldest_and_the_window_holds() {
        let numbers = Numbers::new(ClientId(1), 10);
        assert_eq!(numbers.floor(), 1);
        let a = numbers.try_take_at(4, 1).expect("1 to 4");
        let b = numbers.try_take_at(6, 1).expect("5 to 10");
        assert!(b.iter().eq(5..=10));
        assert!(numbers.try_take_at(1, 1).is_none(), "11 is ten beyond 1");
        assert!(numbers.try_take_at(0, 1).is_some(), "reads need none");
        drop(b);
        assert_eq!(numbers.floor(), 1, "the oldest still holds it");
        drop(a);
        assert_eq!(numbers.floor(), 11);
        // A run larger than the window goes alone.
        let c = numbers.try_take_at(25, 1).expect("alone");
        assert!(numbers.try_take_at(1, 1).is_none());
        drop(c);
        assert!(
            numbers
                .try_take_at(1, 1)
                .is_some_and(|taken| taken.iter().eq(36..=36))
        );
    }

    #[test]
    fn numbers_follow_the_clock_and_lie_just_above_a_mark_when_it_is_behind() {
        let numbers = Numbers::new(ClientId(1), 10);
        let first = |clock| numbers.try_take_at(2, clock).and_then(|t| t.iter().next());
        assert_eq!(first(500), Some(500));
        assert_eq!(first(500), Some(502), "never the same twice");
        assert_eq!(first(9000), Some(9000));
        numbers.draw_above(70_000);
        assert_eq!(first(9002), Some(70_001), "no further than asked");
        numbers.draw_above(60_000);
        assert_eq!(first(9003), Some(70_003), "a lower mark changes nothing");
        assert_eq!(first(80_000), Some(80_000), "the clock has caught up");
        assert_eq!(numbers.floor(), 80_002, "nothing is in use");
    }
}
