//! Numbers for writes, so that a retry is known for one (GROUP rule 18), in a window that never grows
//! wider than what buckets remember.

use std::collections::BTreeMap;

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
    next: u64,
    /// Runs of numbers that are taken and not given back: the first, and how many.
    taken: BTreeMap<u64, u64>,
}

impl State {
    fn floor(&self) -> u64 {
        self.taken
            .first_key_value()
            .map_or(self.next, |(first, _)| *first)
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
            next: 1,
            taken: BTreeMap::new(),
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
        let mut state = self.state.lock();
        let first = state.next;
        if count > 0 {
            let fits = first + count <= state.floor() + self.window;
            if !fits && !state.taken.is_empty() {
                return None;
            }
            state.taken.insert(first, count);
            state.next += count;
        }
        Some(Taken {
            numbers: self,
            first,
            count,
        })
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
            self.numbers.state.lock().taken.remove(&self.first);
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
        let a = numbers.try_take(4).expect("1 to 4");
        let b = numbers.try_take(6).expect("5 to 10");
        assert!(b.iter().eq(5..=10));
        assert!(numbers.try_take(1).is_none(), "11 is ten beyond 1");
        assert!(numbers.try_take(0).is_some(), "reads need none");
        drop(b);
        assert_eq!(numbers.floor(), 1, "the oldest still holds it");
        drop(a);
        assert_eq!(numbers.floor(), 11);
        // A run larger than the window goes alone.
        let c = numbers.try_take(25).expect("alone");
        assert!(numbers.try_take(1).is_none());
        drop(c);
        assert!(
            numbers
                .try_take(1)
                .is_some_and(|taken| taken.iter().eq(36..=36))
        );
    }
}
