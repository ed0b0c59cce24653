//! Token buckets: a volume's limit as a machine without a clock. The time is handed in.

use std::time::{Duration, Instant};

use staves_model::VolumeLimit;

/// So many units a second, and what was saved up in `burst`.
///
/// Units that were taken are paid for as time goes by: a unit may be taken while all those before it are paid. So one that is larger than
/// the burst is let through as well, and the next waits for it.
#[derive(Debug)]
struct TokenBucket {
    per_second: u64,
    burst: Duration,
    /// All that was taken is paid for then.
    paid_at: Option<Instant>,
}

impl TokenBucket {
    fn new(per_second: u64, burst: Duration) -> TokenBucket {
        TokenBucket {
            per_second: per_second.max(1),
            burst,
            paid_at: None,
        }
    }

    /// The time from which on units may be taken. It lies in the past by as much as is saved up.
    fn ready_at(&self, now: Instant) -> Instant {
        let full = now.checked_sub(self.burst).unwrap_or(now);
        self.paid_at.map_or(full, |paid| paid.max(full))
    }

    fn take(&mut self, now: Instant, units: u64) {
        let nanos = u128::from(units) * 1_000_000_000 / u128::from(self.per_second);
        let price = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let ready = self.ready_at(now);
        self.paid_at = Some(ready.checked_add(price).unwrap_or(ready));
    }
}

/// A volume's limit at one node: requests and bytes.
#[derive(Debug, Default)]
pub(super) struct VolumePacer {
    limit: Option<VolumeLimit>,
    requests: Option<TokenBucket>,
    bytes: Option<TokenBucket>,
}

impl VolumePacer {
    /// The limit of now.
    pub(super) fn limit(&self) -> Option<VolumeLimit> {
        self.limit
    }

    /// Goes by another limit. What was taken under the former one is forgiven, what was saved up stays.
    pub(super) fn set(&mut self, limit: Option<VolumeLimit>, now: Instant) {
        let burst = Duration::from_millis(limit.map_or(0, |limit| limit.burst_ms));
        let bucket = |before: &Option<TokenBucket>, per_second: Option<u64>| {
            let paid_at = before.as_ref().map(|before| before.ready_at(now).min(now));
            per_second.map(|per_second| TokenBucket {
                paid_at,
                ..TokenBucket::new(per_second, burst)
            })
        };
        self.requests = bucket(&self.requests, limit.and_then(|limit| limit.iops));
        self.bytes = bucket(&self.bytes, limit.and_then(|limit| limit.bytes_per_second));
        self.limit = limit;
    }

    /// Takes a request with so many bytes, if it may go now; else the time to ask again.
    pub(super) fn take(&mut self, now: Instant, bytes: u64) -> Result<(), Instant> {
        let buckets = [(&mut self.requests, 1), (&mut self.bytes, bytes)];
        let buckets = buckets.map(|(bucket, units)| bucket.as_mut().map(|bucket| (bucket, units)));
        let ready = buckets.iter().flatten().map(|(b, _)| b.ready_at(now)).max();
        if let Some(ready) = ready.filter(|ready| *ready > now) {
            return Err(ready);
        }
        let buckets = buckets.into_iter().flatten();
        buckets.for_each(|(bucket, units)| bucket.take(now, units));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(iops: Option<u64>, bytes_per_second: Option<u64>, burst_ms: u64) -> VolumeLimit {
        VolumeLimit {
            iops,
            bytes_per_second,
            burst_ms,
        }
    }

    fn pacer(limit: VolumeLimit, now: Instant) -> VolumePacer {
        let mut pacer = VolumePacer::default();
        pacer.set(Some(limit), now);
        pacer
    }

    /// The number of requests that pass in so much time, if there are always more.
    fn passed(pacer: &mut VolumePacer, bytes: u64, from: Instant, time: Duration) -> u64 {
        let (mut now, mut count) = (from, 0);
        while now <= from + time {
            match pacer.take(now, bytes) {
                Ok(()) => count += 1,
                Err(ready) => now = ready,
            }
        }
        count
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn no_more_pass_than_the_rate_and_a_burst() {
        let now = Instant::now();
        let mut of = pacer(limit(Some(100), None, 500), now);
        // 50 that were saved up, 300 in the time, and the one that begins each.
        assert_eq!(passed(&mut of, 1 << 20, now, 3 * SECOND), 351);
        let later = now + 3 * SECOND;
        assert_eq!(passed(&mut of, 0, later + SECOND / 10, SECOND), 110);
        // No longer rest saves up more than the burst.
        assert_eq!(passed(&mut of, 0, later + 100 * SECOND, SECOND), 151);
        let mut of = pacer(limit(None, Some(1 << 20), 1000), now);
        assert_eq!(passed(&mut of, 64 << 10, now, 2 * SECOND), 49);
    }

    #[test]
    fn the_narrower_of_two_limits_counts() {
        let now = Instant::now();
        let both = limit(Some(10), Some(1 << 20), 1000);
        assert_eq!(passed(&mut pacer(both, now), 512, now, 9 * SECOND), 101);
        assert_eq!(passed(&mut pacer(both, now), 1 << 20, now, 9 * SECOND), 11);
        // Without bytes only the requests count.
        assert_eq!(passed(&mut pacer(both, now), 0, now, 9 * SECOND), 101);
    }

    #[test]
    fn a_request_beyond_the_burst_passes_and_the_next_waits_for_it() {
        let now = Instant::now();
        let mut of = pacer(limit(None, Some(1 << 20), 10), now);
        assert_eq!(of.take(now, 32 << 20), Ok(()));
        let ready = of.take(now, 1).expect_err("not paid for");
        let wait = ready - now;
        assert!((31 * SECOND..=32 * SECOND).contains(&wait), "{wait:?}");
        assert_eq!(of.take(ready, 1), Ok(()));
    }

    #[test]
    fn another_limit_counts_at_once_and_forgives_debts() {
        let now = Instant::now();
        let mut of = pacer(limit(Some(1), None, 10), now);
        assert_eq!(of.take(now, 1), Ok(()));
        assert!(of.take(now, 1).is_err());
        of.set(Some(limit(Some(1000), None, 10)), now);
        assert_eq!(passed(&mut of, 1, now, SECOND), 1001);
        of.set(Some(limit(Some(1), None, 10)), now + SECOND);
        assert_eq!(passed(&mut of, 1, now + SECOND, 3 * SECOND), 4);
        of.set(None, now);
        assert!((0..1000).all(|_| of.take(now, 1 << 40).is_ok()));
    }

    #[test]
    fn numbers_at_their_ends_stop_nothing_for_good() {
        let now = Instant::now();
        let mut of = pacer(limit(Some(0), Some(0), 0), now);
        assert_eq!(of.take(now, u64::MAX), Ok(()));
        let mut of = pacer(limit(Some(u64::MAX), Some(u64::MAX), u64::MAX), now);
        assert!((0..1000).all(|_| of.take(now, u64::from(u32::MAX)).is_ok()));
    }
}
