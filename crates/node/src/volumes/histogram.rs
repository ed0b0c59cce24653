//! A histogram of durations, in fixed buckets: nothing is allocated, and two looks at it can be subtracted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the buckets, in microseconds. One more bucket has all that took longer.
pub const BOUNDS_US: [u64; 11] = [
    100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000,
];
/// The number of buckets.
pub const BUCKETS: usize = BOUNDS_US.len() + 1;

/// Counts of durations.
#[derive(Debug, Default)]
pub(crate) struct LatencyHistogram {
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
}

impl LatencyHistogram {
    /// Counts a duration.
    pub(crate) fn observe(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let at = BOUNDS_US.partition_point(|bound| *bound < us);
        if let Some(bucket) = self.buckets.get(at) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// The count of each bucket.
    pub(crate) fn counts(&self) -> [u64; BUCKETS] {
        let mut counts = [0; BUCKETS];
        let buckets = counts.iter_mut().zip(&self.buckets);
        buckets.for_each(|(count, bucket)| *count = bucket.load(Ordering::Relaxed));
        counts
    }

    /// All durations together, in microseconds.
    pub(crate) fn sum_us(&self) -> u64 {
        self.sum_us.load(Ordering::Relaxed)
    }
}

/// The duration in seconds that this part (0 to 1) of the counted ones did not exceed, as if those of a bucket were spread evenly
/// over it; `None` if none was counted. What lies beyond the last bound counts as that bound.
pub fn quantile(counts: &[u64], part: f64) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    let wanted = part.clamp(0.0, 1.0) * total as f64;
    let (mut before, mut lower) = (0.0, 0.0);
    for (at, count) in counts.iter().enumerate() {
        let upper = BOUNDS_US.get(at).map_or(lower, |us| *us as f64 / 1e6);
        let count = *count as f64;
        if count > 0.0 && before + count >= wanted {
            return Some(lower + (upper - lower) * (wanted - before) / count);
        }
        before += count;
        lower = upper;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_in_the_bucket_that_ends_above_them() {
        let histogram = LatencyHistogram::default();
        for us in [
            0,
            100,
            101,
            999,
            1_000,
            10_000_000,
            10_000_001,
            u64::MAX / 4,
        ] {
            histogram.observe(Duration::from_micros(us));
        }
        let mut expected = [0; BUCKETS];
        (expected[0], expected[1], expected[2]) = (2, 1, 2);
        (expected[10], expected[11]) = (1, 2);
        assert_eq!(histogram.counts(), expected);
        let one = LatencyHistogram::default();
        one.observe(Duration::from_millis(7));
        assert_eq!(one.sum_us(), 7_000);
    }

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        let counts = |pairs: &[(usize, u64)]| {
            let mut counts = [0; BUCKETS];
            pairs.iter().for_each(|(at, count)| counts[*at] = *count);
            counts
        };
        assert_eq!(quantile(&counts(&[]), 0.5), None);
        assert_eq!(quantile(&[], 0.5), None);
        let even = counts(&[(2, 100)]);
        let middle = quantile(&even, 0.5).expect("counted");
        assert!((middle - 0.000_65).abs() < 1e-9, "{middle}");
        let mixed = counts(&[(0, 98), (6, 1), (11, 1)]);
        assert!(quantile(&mixed, 0.5).is_some_and(|p50| p50 < 0.000_1));
        let p99 = quantile(&mixed, 0.99).expect("counted");
        assert!((0.03..=0.1).contains(&p99), "{p99}");
        assert_eq!(quantile(&mixed, 1.0), Some(10.0), "beyond the last bound");
    }
}
