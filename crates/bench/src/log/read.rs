//! The readers, beside appends or alone: those who follow, and those of old records.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_client::{ClientError, LogHandle, LogSlot};
use tokio::task::JoinHandle;

use super::super::pace::Window;

/// The rest after an error: whatever is wrong, asking at full speed does not mend it.
const REST: Duration = Duration::from_millis(10);

/// The longest wait of a follower at the tail, before it looks anew.
const WAIT: Duration = Duration::from_millis(500);

/// A read under way.
type LogReadTask = JoinHandle<Result<LogSlot, ClientError>>;

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

/// The work of one reader.
#[derive(Clone)]
pub struct ReadLoad {
    pub log: LogHandle,
    pub window: Arc<Window>,
    /// Positions that are read at once.
    pub ahead: u64,
}

impl ReadLoad {
    /// Follows the log from a position on, until the window has ended. With `again` it begins anew at the tail, where nobody appends.
    pub async fn follow(self, mut next: u64, again: bool) -> ReadResults {
        let mut seen = ReadResults::default();
        while Instant::now() < self.window.end() {
            match self.decided(next, again).await {
                Ok(Some(end)) => {
                    self.read_range(next..end, &mut seen).await;
                    next = end;
                }
                Ok(None) if again => next = 0,
                Ok(None) => {}
                Err(error) => {
                    seen.failed(&error);
                    tokio::time::sleep(REST).await;
                }
            }
        }
        seen
    }

    /// The end of what can be read from a position on, once all below it is decided: a read of what is still under way would make it empty. None where
    /// there is nothing yet, after a wait unless the reader begins again.
    async fn decided(&self, next: u64, again: bool) -> Result<Option<u64>, ClientError> {
        let left = || self.window.end().saturating_duration_since(Instant::now());
        let tail = self.log.tail().await?;
        if tail <= next {
            if !again {
                self.log.wait(next, None, left().min(WAIT)).await?;
            }
            return Ok(None);
        }
        let is_decided = self.log.wait(tail - 1, None, left()).await?;
        Ok(is_decided.then_some(tail))
    }

    /// Reads the positions below `end` again and again, from the log's beginning on, until the window has ended.
    pub async fn old(self, end: u64) -> ReadResults {
        let mut seen = ReadResults::default();
        while Instant::now() < self.window.end() && end > 0 {
            self.read_range(0..end, &mut seen).await;
        }
        seen
    }

    /// Reads positions in order, so many at once, until the window has ended.
    async fn read_range(&self, positions: std::ops::Range<u64>, seen: &mut ReadResults) {
        let mut under_way = VecDeque::new();
        for position in positions {
            if Instant::now() >= self.window.end() {
                break;
            }
            if under_way.len() as u64 >= self.ahead {
                self.take(under_way.pop_front(), seen).await;
            }
            let log = self.log.clone();
            under_way.push_back(tokio::spawn(async move { log.read(position).await }));
        }
        while let Some(first) = under_way.pop_front() {
            self.take(Some(first), seen).await;
        }
    }

    async fn take(&self, read: Option<LogReadTask>, seen: &mut ReadResults) {
        let Some(read) = read else { return };
        match read.await {
            Ok(Ok(LogSlot::Record(bytes))) if self.window.counts(Instant::now()) => {
                seen.records += 1;
                seen.bytes += bytes.len() as u64;
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                seen.failed(&error);
                tokio::time::sleep(REST).await;
            }
            Err(error) => seen.failed(&error),
        }
    }
}
