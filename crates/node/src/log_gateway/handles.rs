//! The logs that are open: one handle for all requests on a log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_client::{ErrorCode, LogHandle};
use tokio::sync::{Semaphore, watch};

use super::error::LogError;
use super::follow::TailState;
use super::reads::LOG_READS_MAX;
use crate::client_doors::LogDoorFigures;

/// Most logs that are open at a time. With more, the one that was idle for longest is closed.
const OPEN_MAX: usize = 256;
/// A log that nobody used for so long is closed. Long, since each opening that appends takes a session of the log.
const IDLE_MAX: Duration = Duration::from_secs(600);

/// A log by its pool and name; without a pool, in the only one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LogName {
    pub(super) pool: String,
    pub(super) name: String,
}

/// A log that is open.
pub(crate) struct OpenLog {
    pub(super) handle: LogHandle,
    /// Places for reads of this log: one that does not answer leaves places for others.
    pub(super) reads: Arc<Semaphore>,
    /// The tail, as it was seen last, for those who follow.
    pub(super) tail: watch::Sender<TailState>,
    /// A task keeps the tail.
    pub(super) is_watched: AtomicBool,
}

impl OpenLog {
    fn new(handle: LogHandle) -> OpenLog {
        OpenLog {
            handle,
            reads: Arc::new(Semaphore::new(LOG_READS_MAX)),
            tail: watch::Sender::new(TailState::Unknown),
            is_watched: AtomicBool::new(false),
        }
    }
}

struct KeptLog {
    log: Arc<OpenLog>,
    used: Instant,
}

impl KeptLog {
    fn is_idle(&self) -> bool {
        // Requests and followers have it, too.
        Arc::strong_count(&self.log) == 1
    }
}

/// The open logs of a node.
pub(super) struct OpenLogs {
    kept: Mutex<BTreeMap<LogName, KeptLog>>,
    figures: Arc<LogDoorFigures>,
}

impl OpenLogs {
    pub(super) fn new(figures: Arc<LogDoorFigures>) -> OpenLogs {
        OpenLogs {
            kept: Mutex::default(),
            figures,
        }
    }

    fn count(&self, logs: &BTreeMap<LogName, KeptLog>) {
        self.figures
            .open
            .store(logs.len() as u64, Ordering::Relaxed);
    }

    /// A log that is open already.
    pub(super) fn get(&self, name: &LogName) -> Option<Arc<OpenLog>> {
        let mut logs = self.kept.lock();
        let kept = logs.get_mut(name)?;
        kept.used = Instant::now();
        Some(kept.log.clone())
    }

    /// Keeps a handle that was just opened, or gives back the one that somebody else kept meanwhile.
    pub(super) fn keep(&self, name: LogName, handle: LogHandle) -> Result<Arc<OpenLog>, LogError> {
        let mut logs = self.kept.lock();
        let used = Instant::now();
        if let Some(kept) = logs.get_mut(&name) {
            kept.used = used;
            return Ok(kept.log.clone());
        }
        if logs.len() >= OPEN_MAX {
            let idle = logs.iter().filter(|(_, kept)| kept.is_idle());
            let oldest = idle.min_by_key(|(_, kept)| kept.used);
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else {
                let text = format!(
                    "{OPEN_MAX} logs are in use through this node, which is the most: ask another node, or again later"
                );
                return Err(LogError::of(ErrorCode::Busy, text));
            };
            logs.remove(&oldest);
        }
        let log = Arc::new(OpenLog::new(handle));
        let kept = KeptLog {
            log: log.clone(),
            used,
        };
        logs.insert(name, kept);
        self.count(&logs);
        Ok(log)
    }

    /// Closes a log, if it is this handle of it.
    pub(super) fn forget(&self, name: &LogName, log: Option<&Arc<OpenLog>>) {
        let mut logs = self.kept.lock();
        let is_it = |kept: &KeptLog| log.is_none_or(|log| Arc::ptr_eq(&kept.log, log));
        if logs.get(name).is_some_and(is_it) {
            logs.remove(name);
        }
        self.count(&logs);
    }

    /// Closes those that nobody has used for long.
    pub(super) fn close_idle(&self) {
        let mut logs = self.kept.lock();
        logs.retain(|_, kept| !kept.is_idle() || kept.used.elapsed() < IDLE_MAX);
        self.count(&logs);
    }
}
