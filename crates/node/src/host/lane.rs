//! Numbers for the writes that the RESP door brings to one bucket (GROUP rule 18).
//!
//! Each bucket has a lane of its own, a client by itself in the bucket's request table. So a bucket
//! that stands still holds up its own numbers only, and the node counts as one client, however many
//! connections it has.

use std::collections::VecDeque;

use staves_model::ClientId;
use staves_wire::group::RequestId;

/// Most numbers from the lowest that is not answered to the next: below what buckets remember of a
/// client, so that no retry is ever forgotten.
const WINDOW: usize = 3072;
const _: () = assert!(WINDOW < staves_group::REQUESTS_PER_CLIENT_MAX);

/// One bucket's numbers.
#[derive(Debug)]
pub(crate) struct Lane {
    client: ClientId,
    floor: u64,
    /// From `floor` on: whether it is answered.
    answered: VecDeque<bool>,
}

impl Lane {
    /// For one life of a node: the client's id must never have been used before.
    pub(crate) fn new(client: ClientId) -> Lane {
        Lane {
            client,
            floor: 1,
            answered: VecDeque::new(),
        }
    }

    /// The next number, unless too many before it are not answered.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<RequestId> {
        if self.answered.len() >= WINDOW {
            return None;
        }
        let number = self.floor + self.answered.len() as u64;
        self.answered.push_back(false);
        Some(RequestId {
            client: self.client,
            number,
            floor: self.floor,
        })
    }

    /// Whoever waited for it has an answer: no retry will carry it.
    #[inline]
    pub(crate) fn answered(&mut self, request: &RequestId) {
        let at = request.number.wrapping_sub(self.floor) as usize;
        if let Some(answered) = self.answered.get_mut(at) {
            *answered = true;
        }
        while self.answered.front() == Some(&true) {
            self.answered.pop_front();
            self.floor += 1;
        }
    }

    /// The lowest number that is not answered, for a retry.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_the_lowest_that_is_not_answered() {
        let mut lane = Lane::new(ClientId(7));
        let taken: Vec<RequestId> = (0..3).filter_map(|_| lane.take()).collect();
        let numbers: Vec<u64> = taken.iter().map(|r| r.number).collect();
        assert_eq!(numbers, [1, 2, 3]);
        lane.answered(&taken[1]);
        assert_eq!(lane.floor(), 1);
        lane.answered(&taken[0]);
        assert_eq!(lane.floor(), 3);
        assert_eq!(lane.take().map(|r| (r.number, r.floor)), Some((4, 3)));
        lane.answered(&taken[0]);
        assert_eq!(lane.floor(), 3, "an old number changes nothing");
    }

    #[test]
    fn the_window_is_bounded() {
        let mut lane = Lane::new(ClientId(7));
        let first = lane.take().expect("room");
        while lane.take().is_some() {}
        assert_eq!(lane.answered.len(), WINDOW);
        lane.answered(&first);
        assert!(lane.take().is_some());
    }
}
