//! How long the disk lately took for a write.
//!
//! Raft waits for each write and does nothing else meanwhile: it sends no heartbeat and hears none. Who stands for election
//! has to know that (`calm`).

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// How long a slow write is remembered.
const REMEMBERED: Duration = Duration::from_secs(30);

/// Times of writes; shared by the writer and whoever asks.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    writes: Mutex<Writes>,
    begun: Notify,
}

#[derive(Debug, Default)]
struct Writes {
    /// Since when one is under way.
    under_way: Option<Instant>,
    /// The longest lately, and when it ended.
    longest: Option<(Duration, Instant)>,
}

impl Writes {
    fn end(&mut self, now: Instant) {
        let Some(began) = self.under_way.take() else {
            return;
        };
        let took = now - began;
        if took >= self.longest(now) {
            self.longest = Some((took, now));
        }
    }

    /// The longest that ended lately or is under way.
    fn longest(&self, now: Instant) -> Duration {
        let lately = self.longest.filter(|(_, at)| now - *at < REMEMBERED);
        let ended = lately.map_or(Duration::ZERO, |(took, _)| took);
        let now_at = self.under_way.map_or(Duration::ZERO, |began| now - began);
        ended.max(now_at)
    }
}

impl Pace {
    /// A write begins.
    pub fn begin(&self) {
        self.writes.lock().under_way = Some(Instant::now());
        self.begun.notify_one();
    }

    /// It ended.
    pub fn end(&self) {
        self.writes.lock().end(Instant::now());
    }

    /// The longest that a write took lately, one under way included.
    pub fn longest(&self) -> Duration {
        self.writes.lock().longest(Instant::now())
    }

    /// Whether a write is under way.
    pub fn is_writing(&self) -> bool {
        self.writes.lock().under_way.is_some()
    }

    /// Waits until a write begins, or has begun since this was last waited for.
    pub async fn begun(&self) {
        self.begun.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_write_is_remembered_for_a_while_and_one_under_way_counts() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut writes = Writes::default();
        assert_eq!(writes.longest(at(0)), Duration::ZERO);
        for (began, ended) in [(0, 400), (500, 510)] {
            writes.under_way = Some(at(began));
            writes.end(at(ended));
        }
        assert_eq!(writes.longest(at(600)), Duration::from_millis(400));
        writes.under_way = Some(at(1000));
        assert_eq!(writes.longest(at(1700)), Duration::from_millis(700));
        writes.end(at(1005));
        assert_eq!(writes.longest(at(2000)), Duration::from_millis(400));
        assert_eq!(writes.longest(at(31_000)), Duration::ZERO, "forgotten");
    }
}
