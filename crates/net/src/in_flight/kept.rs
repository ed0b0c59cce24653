//! Buffers that connections keep while nothing lies in them, so that busy ones need not make them anew at each turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::budget::InFlight;

/// A larger buffer is not kept.
const BUFFER_BYTES_MAX: usize = 16 << 10;
/// The connections of a node that may keep theirs, one for each way.
const KEEPERS_MAX: usize = 512;

/// The number of connections that keep buffers.
#[derive(Debug, Default)]
pub(super) struct Keepers(AtomicUsize);

/// The buffers of one connection.
#[derive(Debug)]
pub struct KeptBuffers {
    of: Arc<InFlight>,
    keeps: bool,
    /// The most that the buffer could take since it was made. Of one whose beginning was read the capacity says little.
    grown: usize,
}

impl KeptBuffers {
    /// Nothing yet.
    pub fn new(of: Arc<InFlight>) -> KeptBuffers {
        KeptBuffers {
            of,
            keeps: false,
            grown: 0,
        }
    }

    /// The buffer of what comes can take so many bytes.
    #[inline]
    pub fn has_grown_to(&mut self, capacity: usize) {
        self.grown = self.grown.max(capacity);
    }

    /// Nothing lies in the buffer of what comes: true if it is to be let go.
    #[inline]
    pub fn lets_go(&mut self) -> bool {
        if self.grown == 0 || (self.grown <= BUFFER_BYTES_MAX && self.may_keep()) {
            return false;
        }
        self.grown = 0;
        true
    }

    /// True if this connection is one of those that keep buffers.
    #[inline]
    pub fn may_keep(&mut self) -> bool {
        let keepers = &self.of.keepers.0;
        let one_more = |keepers: usize| (keepers < KEEPERS_MAX).then_some(keepers + 1);
        let (order, relaxed) = (Ordering::Relaxed, Ordering::Relaxed);
        self.keeps = self.keeps || keepers.fetch_update(order, relaxed, one_more).is_ok();
        self.keeps
    }
}

impl Drop for KeptBuffers {
    fn drop(&mut self) {
        if self.keeps {
            self.of.keepers.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: ten thousand idle connections each kept the buffer of the largest thing that had ever come or gone.
    #[test]
    fn few_connections_keep_small_buffers_and_none_a_large_one() {
        let all = InFlight::new(1 << 20);
        let mut keepers: Vec<KeptBuffers> = (0..KEEPERS_MAX + 1)
            .map(|_| KeptBuffers::new(all.clone()))
            .collect();
        for keeper in &mut keepers {
            assert!(!keeper.lets_go(), "it has none");
            keeper.has_grown_to(BUFFER_BYTES_MAX);
        }
        let gone = keepers.iter_mut().filter_map(|k| k.lets_go().then_some(()));
        assert_eq!(gone.count(), 1);
        keepers[0].has_grown_to(BUFFER_BYTES_MAX + 1);
        assert!(keepers[0].lets_go() && !keepers[0].lets_go());
        keepers.truncate(1);
        let mut next = KeptBuffers::new(all);
        next.has_grown_to(1);
        assert!(!next.lets_go(), "there is a place again");
    }
}
