//! Latencies in buckets that grow with what they hold: exact below 256 ns, within 1/128 above.
//!
//! The log-linear form of HdrHistogram: each power of two is cut into 128 equal buckets. Adding is an
//! index and an increment, so that measuring does not disturb what is measured; two histograms add up
//! bucket by bucket.

/// Buckets of each power of two.
const HALF: u64 = 128;
/// Below this a value has a bucket of its own.
const EXACT: u64 = 2 * HALF;

/// Counts of values, in nanoseconds.
#[derive(Clone, Default, Debug)]
pub struct Histogram {
    /// As long as the largest value needs; 7,424 for any u64.
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    max: u64,
}

impl Histogram {
    pub fn add(&mut self, value: u64) {
        let index = index(value);
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    pub fn merge(&mut self, other: &Histogram) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Exact.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Exact, but for the fraction; 0 of nothing.
    pub fn mean(&self) -> u64 {
        match self.count {
            0 => 0,
            count => (self.sum / u128::from(count)) as u64,
        }
    }

    /// The lowest value that this share of all does not exceed, rounded up to its bucket's end and
    /// never beyond the maximum; 0 of nothing.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = ((share * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return end(index).min(self.max);
            }
        }
        self.max
    }
}

fn index(value: u64) -> usize {
    if value < EXACT {
        return value as usize;
    }
    // The top bit says which power of two, the seven below it which part of that.
    let power = u64::from(value.ilog2());
    let part = (value >> (power - 7)) - HALF;
    (EXACT + (power - 8) * HALF + part) as usize
}

/// The largest value of a bucket.
fn end(index: usize) -> u64 {
    let index = index as u64;
    if index < EXACT {
        return index;
    }
    let (power, part) = ((index - EXACT) / HALF + 8, (index - EXACT) % HALF);
    let first = (HALF + part) << (power - 7);
    first + ((1 << (power - 7)) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket_and_buckets_follow_on_each_other() {
        for value in (0..100_000).chain([u64::MAX >> 1, u64::MAX - 1, u64::MAX]) {
            let index = index(value);
            assert!(value <= end(index), "{value}");
            assert!(index == 0 || value > end(index - 1), "{value}");
            assert!(end(index) - value <= value / HALF, "{value}: within 1/128");
        }
    }

    #[test]
    fn quantiles_of_known_values() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.quantile(0.5), histogram.mean()), (0, 0));
        (1..=1000).for_each(|value| histogram.add(value * 1000));
        assert_eq!(histogram.count(), 1000);
        assert_eq!((histogram.max(), histogram.mean()), (1_000_000, 500_500));
        for (share, exact) in [(0.5, 500_000), (0.99, 990_000), (0.999, 999_000)] {
            let got = histogram.quantile(share);
            assert!(
                (exact..=exact + exact / HALF).contains(&got),
                "{share}: {got}"
            );
        }
        assert_eq!(histogram.quantile(1.0), 1_000_000);
        // Small ones are exact.
        let mut small = Histogram::default();
        (1..=100).for_each(|value| small.add(value));
        assert_eq!([0.0, 0.5, 0.99].map(|s| small.quantile(s)), [1, 50, 99]);
    }

    #[test]
    fn one_slow_answer_in_a_thousand_shows_in_the_maximum_alone() {
        let mut histogram = Histogram::default();
        (0..9_999).for_each(|_| histogram.add(50));
        histogram.add(7_000_001);
        assert_eq!([0.5, 0.999].map(|s| histogram.quantile(s)), [50, 50]);
        assert_eq!(histogram.max(), 7_000_001);
    }

    #[test]
    fn merging_is_adding() {
        let (mut all, mut odd, mut even) = <(Histogram, Histogram, Histogram)>::default();
        for value in (0..5_000u64).map(|i| i * i) {
            all.add(value);
            if value % 2 == 1 { &mut odd } else { &mut even }.add(value);
        }
        odd.merge(&even);
        let facts = |h: &Histogram| (h.counts.clone(), h.count(), h.mean(), h.max());
        assert_eq!(facts(&odd), facts(&all));
    }
}
