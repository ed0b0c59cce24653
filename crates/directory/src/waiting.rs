//! The warning of a node that waits for its cluster: its operator would see nothing else until it gives up.

use std::time::{Duration, Instant};

/// The time before the first warning; each pause after that is twice as long.
const FIRST: Duration = Duration::from_secs(2);

/// The time of the next warning.
pub(crate) struct WaitNotice {
    since: Instant,
    next: Duration,
}

impl WaitNotice {
    pub(crate) fn since(since: Instant) -> WaitNotice {
        WaitNotice { since, next: FIRST }
    }

    /// True if a warning is due, after so long.
    fn is_due(&mut self, waited: Duration) -> bool {
        let is_due = waited >= self.next;
        if is_due {
            self.next = waited * 2;
        }
        is_due
    }

    /// Logs the warning if it is due: the thing waited for, the last failure, and the remedy.
    pub(crate) fn warn(&mut self, waits_for: &str, last: &str, remedy: &str) {
        let waited = self.since.elapsed();
        if self.is_due(waited) {
            let waited_s = waited.as_secs();
            tracing::warn!(waited_s, last, "this node waits for {waits_for}: {remedy}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_after_two_seconds_and_then_ever_more_rarely() {
        let mut waiting = WaitNotice::since(Instant::now());
        let said: Vec<u64> = (0..=600)
            .filter(|tenths| waiting.is_due(Duration::from_millis(tenths * 100)))
            .collect();
        assert_eq!(said, [20, 40, 80, 160, 320]);
    }
}
