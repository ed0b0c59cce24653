//! The clients that append, in an open loop or a closed one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_client::{ClientError, LogHandle};
use tokio::task::JoinSet;

use super::super::histogram::Histogram;
use super::super::pace::{Alarm, Pace, Window};

/// Most appends of one client under way in an open loop: what is due beyond waits, and its latency counts.
const UNDER_WAY_MAX: usize = 512;
/// The rest after an error: whatever is wrong, asking at full speed does not mend it.
const REST: Duration = Duration::from_millis(10);

/// The results of some clients.
#[derive(Clone, Debug, Default)]
pub struct AppendResults {
    /// Of appends that were due in the window.
    pub latency: Histogram,
    /// Acknowledged appends, those outside of the window, too.
    pub acked: u64,
    pub errors: u64,
    pub error: Option<String>,
    /// Appends that were due and never sent.
    pub unsent: u64,
    /// The last acknowledgement of an append of the window.
    pub last: Option<Instant>,
}

impl AppendResults {
    pub fn merge(&mut self, other: AppendResults) {
        self.latency.merge(&other.latency);
        self.acked += other.acked;
        self.errors += other.errors;
        self.error = self.error.take().or(other.error);
        self.unsent += other.unsent;
        self.last = self.last.max(other.last);
    }

    fn ended(&mut self, appended: EndedAppend, load: &AppendLoad) {
        match appended.outcome {
            Ok(()) => {
                self.acked += 1;
                load.answered.fetch_add(1, Ordering::Relaxed);
                if load.window.counts(appended.since) {
                    let took = appended.at.saturating_duration_since(appended.since);
                    self.latency.add(took.as_nanos() as u64);
                    self.last = self.last.max(Some(appended.at));
                }
            }
            Err(error) => {
                self.errors += 1;
                self.error.get_or_insert_with(|| error.to_string());
            }
        }
    }
}

/// The work of one client.
#[derive(Clone)]
pub struct AppendLoad {
    pub log: LogHandle,
    /// The records of each append.
    pub records: Arc<[Bytes]>,
    pub window: Arc<Window>,
    /// Acknowledged appends of all clients.
    pub answered: Arc<AtomicU64>,
}

/// An append that is over.
struct EndedAppend {
    since: Instant,
    at: Instant,
    outcome: Result<(), ClientError>,
}

impl AppendLoad {
    async fn append(self, since: Instant) -> EndedAppend {
        let outcome = self.log.append(&self.records).await;
        EndedAppend {
            since,
            at: Instant::now(),
            outcome: outcome.map(drop),
        }
    }

    /// One of the callers that wait for their answers.
    pub async fn closed(self) -> AppendResults {
        let mut seen = AppendResults::default();
        loop {
            let since = Instant::now();
            if since >= self.window.end() {
                return seen;
            }
            let appended = self.clone().append(since).await;
            let failed = appended.outcome.is_err();
            seen.ended(appended, &self);
            if failed {
                tokio::time::sleep(REST).await;
            }
        }
    }

    /// A client that appends when it is time.
    pub async fn open(self, mut pace: Pace) -> AppendResults {
        let mut seen = AppendResults::default();
        let mut under_way = JoinSet::new();
        let mut alarm = Alarm::default();
        loop {
            let (now, end) = (Instant::now(), self.window.end());
            if pace.over(now, end) {
                break;
            }
            if under_way.len() < UNDER_WAY_MAX
                && let Some(due) = pace.take(now, end)
            {
                under_way.spawn(self.clone().append(due));
                continue;
            }
            let due = pace.due().unwrap_or(now);
            let has_room = under_way.len() < UNDER_WAY_MAX;
            tokio::select! {
                Some(done) = under_way.join_next() => take(&mut seen, done, &self),
                rung = alarm.wait_until(due), if has_room => {
                    if let Err(error) = rung {
                        seen.errors += 1;
                        seen.error = Some(format!("timer: {error}"));
                        break;
                    }
                }
            }
        }
        while let Some(done) = under_way.join_next().await {
            take(&mut seen, done, &self);
        }
        seen.unsent += pace.unsent(self.window.start, self.window.end());
        seen
    }
}

fn take(
    seen: &mut AppendResults,
    done: Result<EndedAppend, tokio::task::JoinError>,
    load: &AppendLoad,
) {
    match done {
        Ok(appended) => seen.ended(appended, load),
        Err(error) => {
            seen.errors += 1;
            seen.error
                .get_or_insert_with(|| format!("internal: {error}"));
        }
    }
}
