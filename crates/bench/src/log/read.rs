//! The readers beside the appends: at the tail, or of old records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_client::{ClientError, LogHandle, LogSlot};
use tokio::task::JoinSet;

use super::super::pace::Window;

/// Reads of one reader under way at once.
const UNDER_WAY: u64 = 32;
/// The rest of a reader that has read all.
const REST: Duration = Duration::from_millis(2);

/// The results of some readers.
#[derive(Clone, Debug, Default)]
pub struct ReadResults {
    /// Records that were read in the window.
    pub records: u64,
    pub bytes: u64,
    pub errors: u64,
    pub error: Option<String>,
}

impl ReadResults {
    pub fn merge(&mut self, other: ReadResults) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.error = self.error.take().or(other.error);
    }

    fn failed(&mut self, error: &impl ToString) {
        self.errors += 1;
        self.error.get_or_insert_with(|| error.to_string());
    }
}

/// Follows the tail from a position on, until the window has ended.
pub async fn follow(log: LogHandle, mut next: u64, window: Arc<Window>) -> ReadResults {
    let mut seen = ReadResults::default();
    let mut tail = next;
    while Instant::now() < window.end() {
        if next == tail {
            match log.tail().await {
                Ok(now) => tail = now.max(tail),
                Err(error) => seen.failed(&error),
            }
        }
        if next == tail {
            tokio::time::sleep(REST).await;
            continue;
        }
        let to = tail.min(next + UNDER_WAY);
        read_all(&log, next..to, &window, &mut seen).await;
        next = to;
    }
    seen
}

/// Reads the positions below `end` again and again, until the window has ended.
pub async fn read_old(log: LogHandle, end: u64, window: Arc<Window>) -> ReadResults {
    let mut seen = ReadResults::default();
    let mut next = 0;
    while Instant::now() < window.end() && end > 0 {
        let to = end.min(next + UNDER_WAY);
        read_all(&log, next..to, &window, &mut seen).await;
        next = if to == end { 0 } else { to };
    }
    seen
}

async fn read_all(
    log: &LogHandle,
    positions: std::ops::Range<u64>,
    window: &Window,
    seen: &mut ReadResults,
) {
    let mut under_way = JoinSet::new();
    for position in positions {
        let log = log.clone();
        under_way.spawn(async move { log.read(position).await });
    }
    while let Some(done) = under_way.join_next().await {
        let slot: Result<LogSlot, ClientError> = match done {
            Ok(slot) => slot,
            Err(error) => {
                seen.failed(&error);
                continue;
            }
        };
        match slot {
            Ok(LogSlot::Record(bytes)) if window.counts(Instant::now()) => {
                seen.records += 1;
                seen.bytes += bytes.len() as u64;
            }
            Ok(_) => {}
            Err(error) => seen.failed(&error),
        }
    }
}
