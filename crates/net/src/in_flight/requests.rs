//! The number of clients' requests that wait at a node, beside the bytes that they take.
//!
//! A request of a few bytes costs work all the same. Those that come faster than the node, or the nodes that it waits for, can answer
//! them would all be answered late; so beyond a bound they are refused at once. The first that waits of each connection is taken
//! in any case: who asks one thing after another is served while others flood the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use staves_model::mutant::{Mutant, planted};

use super::budget::InFlight;
use crate::refusals::Refusals;

/// The requests of clients that wait at a node.
#[derive(Debug)]
pub struct WaitingRequests {
    max: usize,
    waiting: AtomicUsize,
    refused: Refusals,
}

impl WaitingRequests {
    pub(super) fn new(max: usize) -> WaitingRequests {
        WaitingRequests {
            max,
            waiting: AtomicUsize::new(0),
            refused: Refusals::default(),
        }
    }

    /// Those that wait now.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// The most that should.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Those that were refused since the start.
    pub fn refused_total(&self) -> u64 {
        self.refused.total()
    }

    /// True if one more has no place, beside so many that are not counted yet.
    #[inline]
    pub(crate) fn is_full(&self, uncounted: usize) -> bool {
        self.waiting() + uncounted >= self.max && !planted(Mutant::WaitsWithoutBound)
    }

    /// Refuses one: the words for it.
    pub fn refuse(&self) -> String {
        let max = self.max;
        self.refused.add(|unsaid| {
            tracing::warn!(
                max,
                unsaid,
                "as many requests of clients wait at this node as may (in_flight_requests_max): one was refused"
            );
        });
        format!(
            "{max} requests wait at this node already (in_flight_requests_max), and one of this connection is among them; nothing \
             was done, ask again later"
        )
    }

    pub(crate) fn add(&self, count: usize) {
        self.waiting.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, count: usize) {
        self.waiting.fetch_sub(count, Ordering::Relaxed);
    }
}

/// The requests of one connection among them.
#[derive(Debug)]
pub struct WaitingPart {
    of: Arc<InFlight>,
    counted: usize,
}

impl WaitingPart {
    /// None yet.
    pub fn new(of: Arc<InFlight>) -> WaitingPart {
        WaitingPart { of, counted: 0 }
    }

    /// So many of them wait now.
    #[inline]
    pub fn set(&mut self, count: usize) {
        let requests = &self.of.requests;
        match count.checked_sub(self.counted) {
            Some(0) => {}
            Some(more) => requests.add(more),
            None => requests.remove(self.counted - count),
        }
        self.counted = count;
    }

    /// True if another has no place behind so many of this connection.
    #[inline]
    pub fn is_full(&self, count: usize) -> bool {
        let uncounted = count.saturating_sub(self.counted);
        count > 0 && self.of.requests.is_full(uncounted)
    }
}

impl Drop for WaitingPart {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_each_connection_is_taken_and_others_up_to_the_bound() {
        let in_flight = InFlight::bounded(1, 3);
        let mut one = WaitingPart::new(in_flight.clone());
        assert!(!one.is_full(2), "a third has a place");
        assert!(one.is_full(3), "and no fourth");
        one.set(3);
        let mut other = WaitingPart::new(in_flight.clone());
        assert!(!other.is_full(0), "it has none yet");
        other.set(1);
        assert!(other.is_full(1) && one.is_full(3));
        assert_eq!(in_flight.requests.waiting(), 4);
        one.set(1);
        assert!(!other.is_full(1));
        drop((one, other));
        assert_eq!(in_flight.requests.waiting(), 0);
        assert!(in_flight.requests.refuse().contains("3 requests wait"));
        assert_eq!(in_flight.requests.refused_total(), 1);
    }
}
