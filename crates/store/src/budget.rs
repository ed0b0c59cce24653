//! The number of extents that a pool may have on this node.

use std::sync::atomic::{AtomicU32, Ordering};

/// A pool's share of the arena, in extents. Shared by the pool's buckets on a node.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU32,
    taken: AtomicU32,
}

impl Budget {
    /// A budget of so many extents.
    pub fn new(extents: u32) -> Budget {
        Budget {
            limit: AtomicU32::new(extents),
            taken: AtomicU32::new(0),
        }
    }

    /// The number that may be taken.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. Lowering it takes nothing away: it refuses until enough came back.
    pub fn set_limit(&self, extents: u32) {
        self.limit.store(extents, Ordering::Relaxed);
    }

    /// The number that is taken.
    pub fn taken(&self) -> u32 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes all of `extents`, or none and returns false.
    ///
    /// Relaxed ordering is enough: the count alone is shared, and no memory is published by it.
    pub fn take(&self, extents: u32) -> bool {
        let limit = self.limit();
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                taken.checked_add(extents).filter(|sum| *sum <= limit)
            })
            .is_ok()
    }

    /// Takes `extents` of what a disk has already, within the limit or not: nobody else gets any until enough came back.
    pub fn take_kept(&self, extents: u32) {
        self.taken.fetch_add(extents, Ordering::Relaxed);
    }

    /// Gives back what was taken.
    pub fn give(&self, extents: u32) {
        let before = self.taken.fetch_sub(extents, Ordering::Relaxed);
        assert!(
            before >= extents,
            "{extents} extents given back to a budget that lent {before}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_already_is_taken_beyond_the_limit() {
        let budget = Budget::new(2);
        budget.take_kept(3);
        assert!(!budget.take(1), "nothing is left");
        budget.give(2);
        assert!(budget.take(1) && !budget.take(1));
    }

    #[test]
    fn takes_all_or_nothing() {
        let budget = Budget::new(4);
        assert!(budget.take(3) && !budget.take(2) && budget.take(1) && !budget.take(u32::MAX));
        budget.set_limit(2);
        budget.give(2);
        assert!(!budget.take(1), "the lowered limit holds");
        assert_eq!((budget.taken(), budget.limit()), (2, 2));
    }

    #[test]
    fn threads_never_pass_the_limit() {
        let budget = Budget::new(10);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        if budget.take(3) {
                            assert!(budget.taken() <= 10);
                            budget.give(3);
                        }
                    }
                });
            }
        });
        assert_eq!(budget.taken(), 0);
    }
}
