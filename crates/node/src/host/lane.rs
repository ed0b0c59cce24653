//! Numbers for the writes that the RESP door brings to one bucket (GROUP rule 18).
//!
//! Each bucket has a lane of its own, a client by itself in the bucket's request table. So a bucket
//! that stands still holds up its own numbers only, and the node counts as one client, however many
//! connections it has.
//!
//! Numbers are drawn from the clock, in microseconds, so that they lie above those of clients that were
//! there before: a bucket that has forgotten some can tell a new one from them.

use std::collections::VecDeque;

use staves_model::{ClientId, Time};
use staves_wire::group::RequestId;

/// Most numbers from the lowest that is not answered to the next: below what buckets remember of a
/// client, so that no retry is ever forgotten.
const WINDOW: usize = 3072;
const _: () = assert!(WINDOW < staves_group::REQUESTS_PER_CLIENT_MAX);

/// One bucket's numbers.
#[derive(Debug)]
pub(crate) struct Lane {
    client: ClientId,
    /// Microseconds since 1970 at the clock's zero.
    began: u64,
    last: u64,
    /// From the lowest that is not answered on: each number, and whether it is answered.
    taken: VecDeque<(u64, bool)>,
}

impl Lane {
    /// For one life of a node: the client's id must never have been used before.
    pub(crate) fn new(client: ClientId, began: u64) -> Lane {
        Lane {
            client,
            began,
            last: 0,
            taken: VecDeque::new(),
        }
    }

    /// The next number, above `forgotten`, unless too many before it are not answered.
    #[inline]
    pub(crate) fn take(&mut self, now: Time, forgotten: u64) -> Option<RequestId> {
        if self.taken.len() >= WINDOW {
            return None;
        }
        let clock = self.began.saturating_add(now.0 / 1000);
        let number = clock.max(self.last.max(forgotten).saturating_add(1));
        self.last = number;
        self.taken.push_back((number, false));
        Some(RequestId {
            client: self.client,
            number,
            floor: self.floor(),
        })
    }

    /// The request has its answer: no retry will carry it.
    #[inline]
    pub(crate) fn answered(&mut self, request: &RequestId) {
        if request.client != self.client {
            return; // of a pool that is gone
        }
        let found = self
            .taken
            .binary_search_by_key(&request.number, |(n, _)| *n);
        if let Some((_, answered)) = found.ok().and_then(|at| self.taken.get_mut(at)) {
            *answered = true;
        }
        while self.taken.front().is_some_and(|(_, answered)| *answered) {
            self.taken.pop_front();
        }
    }

    /// The lowest number that is not answered, for a retry; below the next one if all are.
    pub(crate) fn floor(&self) -> u64 {
        self.taken
            .front()
            .map_or(self.last.saturating_add(1), |(n, _)| *n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(lane: &mut Lane) -> Option<RequestId> {
        lane.take(Time::ZERO, 0)
    }

    #[test]
    fn the_floor_is_the_lowest_that_is_not_answered() {
        let mut lane = Lane::new(ClientId(7), 1);
        let taken: Vec<RequestId> = (0..3).filter_map(|_| take(&mut lane)).collect();
        let numbers: Vec<u64> = taken.iter().map(|r| r.number).collect();
        assert_eq!(numbers, [1, 2, 3]);
        lane.answered(&taken[1]);
        assert_eq!(lane.floor(), 1);
        lane.answered(&taken[0]);
        assert_eq!(lane.floor(), 3);
        assert_eq!(take(&mut lane).map(|r| (r.number, r.floor)), Some((4, 3)));
        lane.answered(&taken[0]);
        assert_eq!(lane.floor(), 3, "an old number changes nothing");
    }

    #[test]
    fn numbers_follow_the_clock_and_lie_above_what_was_forgotten() {
        let mut lane = Lane::new(ClientId(7), 1000);
        let mut at = |ms, forgotten| {
            let taken = lane.take(Time::from_millis(ms), forgotten);
            taken.map(|r| r.number)
        };
        assert_eq!(at(5, 0), Some(6000));
        assert_eq!(at(5, 0), Some(6001));
        assert_eq!(at(6, 0), Some(7000));
        assert_eq!(at(6, 90_000), Some(90_001), "whatever the clock says");
        assert_eq!(at(7, 0), Some(90_002));
    }

    #[test]
    fn the_window_is_bounded() {
        let mut lane = Lane::new(ClientId(7), 1);
        let first = take(&mut lane).expect("room");
        while take(&mut lane).is_some() {}
        assert_eq!(lane.taken.len(), WINDOW);
        lane.answered(&first);
        assert!(take(&mut lane).is_some());
    }
}
