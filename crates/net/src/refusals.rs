//! Refused connections: each is counted, and one line a minute is logged, for who is refused comes again at once.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The time between two lines, and for which a refusal is recent.
const EACH: Duration = Duration::from_secs(60);

/// The refusals of one kind.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<RefusalCounts>);

#[derive(Debug, Default)]
struct RefusalCounts {
    total: u64,
    last: Option<Instant>,
    logged: Option<Instant>,
    /// Those since the line before.
    unsaid: u64,
}

impl Refusals {
    /// RefusalCounts one. `log` is called once a minute at most, with the number of refusals that no line was logged for.
    pub fn add(&self, log: impl FnOnce(u64)) {
        if let Some(unsaid) = self.take(Instant::now()) {
            log(unsaid);
        }
    }

    /// All since the start.
    pub fn total(&self) -> u64 {
        self.0.lock().total
    }

    /// All since the start if there was one in the last minute, else 0.
    pub fn recent(&self) -> u64 {
        let counts = self.0.lock();
        let recent = counts.last.is_some_and(|last| last.elapsed() < EACH);
        if recent { counts.total } else { 0 }
    }

    fn take(&self, now: Instant) -> Option<u64> {
        let mut counts = self.0.lock();
        counts.total += 1;
        counts.last = Some(now);
        if counts.logged.is_some_and(|logged| now < logged + EACH) {
            counts.unsaid += 1;
            return None;
        }
        counts.logged = Some(now);
        Some(std::mem::take(&mut counts.unsaid))
    }
}

/// The connections that a server refused, by the reason.
#[derive(Debug, Default)]
pub struct RefusedConnections {
    /// Too many connections of the kind.
    pub too_many: Refusals,
    /// Those that had not said hello when their time was over, or when another needed the place: nobody that asked for anything.
    pub silent: Refusals,
    /// Clients that would have had a descriptor of the reserve.
    pub descriptors: Refusals,
    /// Those that did not prove the secret.
    pub secret: Refusals,
    /// Those of clients of Redis's protocol, which is spoken at another port.
    pub protocol: Refusals,
    /// The system gave no socket.
    pub not_accepted: Refusals,
}

impl RefusedConnections {
    /// Those for want of room of such as said hello, if there was one in the last minute; else 0.
    pub fn recent(&self) -> u64 {
        self.too_many.recent() + self.descriptors.recent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_one_line_a_minute_is_logged() {
        let refusals = Refusals::default();
        assert_eq!(refusals.recent(), 0);
        let now = Instant::now();
        assert_eq!(refusals.take(now), Some(0));
        for i in 0..5 {
            assert_eq!(refusals.take(now + EACH * i / 6), None);
        }
        assert_eq!(refusals.take(now + EACH), Some(5));
        assert_eq!(refusals.take(now + EACH * 3), Some(0));
        assert_eq!((refusals.total(), refusals.recent()), (8, 8));
    }
}
