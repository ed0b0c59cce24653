//! Logs for programs of any language: the requests of the gRPC and HTTP doors, made by the client library.
//!
//! **Path.** A door takes a request apart and calls the [`LogGateway`], which has one client of the cluster and one handle of each log
//! that is in use ([`handles`]): all requests of all connections share it, since each handle that appends takes a session of the log. Records
//! that are read wait in [`reads`] until they are counted; [`streams`] finds the positions of one tag; [`follow`] sends what comes to those who wait
//! at the tail. [`appends`] and [`changes`] do what changes a log.
//!
//! **Bounds.** Memory for messages is counted apart from that of other requests, which the client's own requests need: a part of
//! `in_flight_bytes_max`, and what does not move makes way for others. Handles, reads at a time, lists at a time and followers have numbers;
//! beyond them a request is refused as busy, and nothing was done.
//!
//! **Invariants.** An append that its client gave up keeps its memory until its outcome is known. Nobody waits for memory or for a place among
//! the reads while it holds what others wait for.

pub(crate) mod appends;
mod changes;
pub(crate) mod error;
pub(crate) mod follow;
mod handles;
mod reads;
mod streams;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use staves_client::{Client, ClientOptions, ErrorCode, LogStat};
use staves_model::{ClusterMap, Pool, ServiceId};
use staves_net::Secret;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use self::error::LogError;
use self::handles::{LogName, OpenLog, OpenLogs};
use crate::client_doors::LogDoorFigures;
use crate::entry::Entry;

pub(crate) use self::reads::{LogBatch, ReadFrom, room};
pub(crate) use staves_client::LOG_BATCH_BYTES_MAX;

/// The longest time of a request, and what it has if it does not say.
pub(crate) const REQUEST_MAX: Duration = Duration::from_secs(30);
/// Most records of one append, of a log that takes several.
pub(crate) const APPEND_RECORDS_MAX: usize = 1024;
/// Most records of one answer, and what it has if the request does not say.
pub(crate) const READ_RECORDS_MAX: usize = 1000;
/// Bytes of the records of one answer; one that is longer comes alone.
pub(crate) const READ_BYTES_MAX: usize = 1 << 20;
/// Most logs of one page of a list.
pub(crate) const LIST_MAX: usize = 1000;
/// Most followers of a node at a time, by all its doors.
pub(crate) const FOLLOWERS_MAX: usize = 256;
/// Most bytes of a log's name.
const NAME_BYTES_MAX: usize = 255;
/// Most lists at a time: each asks for every log.
const LISTS_MAX: usize = 2;
/// Handles that nobody uses are looked for so often.
const SWEEP: Duration = Duration::from_secs(30);

/// A log that a request names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LogTarget {
    /// Its name.
    pub(crate) name: String,
    /// Its pool; without one, the only pool of logs.
    pub(crate) pool: Option<String>,
}

/// A page of the list of logs.
pub(crate) struct LogPage {
    /// By pool and name.
    pub(crate) logs: Vec<LogStat>,
    /// There are more behind the last of these.
    pub(crate) more: bool,
}

/// The requests on logs that this node makes for programs.
pub(crate) struct LogGateway {
    entry: Arc<Entry>,
    /// This node's own native address, where its client begins.
    native: String,
    secret: Option<Secret>,
    client: OnceLock<Client>,
    logs: OpenLogs,
    reads: Arc<Semaphore>,
    lists: Semaphore,
    followers: Arc<Semaphore>,
    pub(crate) figures: Arc<LogDoorFigures>,
}

impl LogGateway {
    /// Of a node with this native address and secret.
    pub(crate) fn new(
        entry: Arc<Entry>,
        native: String,
        secret: Option<Secret>,
        figures: Arc<LogDoorFigures>,
    ) -> Arc<LogGateway> {
        Arc::new(LogGateway {
            entry,
            native,
            secret,
            client: OnceLock::new(),
            logs: OpenLogs::new(figures.clone()),
            reads: Arc::new(Semaphore::new(reads::READS_MAX)),
            lists: Semaphore::new(LISTS_MAX),
            followers: Arc::new(Semaphore::new(FOLLOWERS_MAX)),
            figures,
        })
    }

    /// Closes handles that nobody uses, for as long as the node runs.
    pub(crate) async fn close_idle(self: Arc<LogGateway>) {
        loop {
            tokio::time::sleep(SWEEP).await;
            self.logs.close_idle();
        }
    }

    fn client(&self) -> Result<&Client, LogError> {
        let not_yet = || LogError::of(ErrorCode::NotServing, self.entry.not_yet());
        let running = self.entry.get().ok_or_else(not_yet)?;
        Ok(self.client.get_or_init(|| {
            let options = ClientOptions {
                deadline: REQUEST_MAX,
                cluster: running.host.life.cluster,
                secret: self.secret.clone(),
                ..ClientOptions::default()
            };
            Client::unconnected(std::slice::from_ref(&self.native), options)
        }))
    }

    /// Logs of one pool or of all, by pool and name, behind one of these.
    pub(crate) async fn list(
        &self,
        pool: Option<&str>,
        after: Option<(String, String)>,
        most: usize,
        until: Instant,
    ) -> Result<LogPage, LogError> {
        let Ok(_place) = self.lists.try_acquire() else {
            let text = format!(
                "{LISTS_MAX} lists of logs are made at this node already: ask again a little later"
            );
            return Err(LogError::of(ErrorCode::Busy, text));
        };
        let listed = self.client()?.logs(pool);
        let mut logs = by(until, "", listed).await?;
        logs.sort_by(|a, b| (&a.pool, &a.name).cmp(&(&b.pool, &b.name)));
        if let Some(after) = after {
            logs.retain(|log| (&log.pool, &log.name) > (&after.0, &after.1));
        }
        let more = logs.len() > most;
        logs.truncate(most);
        Ok(LogPage { logs, more })
    }

    /// A log as it is.
    pub(crate) async fn show(
        &self,
        target: &LogTarget,
        until: Instant,
    ) -> Result<LogStat, LogError> {
        check_name(&target.name)?;
        let stat = self
            .client()?
            .log_stat(target.pool.as_deref(), &target.name);
        by(until, "", stat).await
    }

    /// The first position that was not given out.
    pub(crate) async fn tail(&self, target: &LogTarget, until: Instant) -> Result<u64, LogError> {
        let tail = |log: Arc<OpenLog>| async move { by(until, "", log.handle.tail()).await };
        self.with_log(target, until, tail).await
    }

    /// Does something with an open log. Once more if the log is gone: it may have been made anew since it was opened, and nothing was done.
    async fn with_log<T, F>(
        &self,
        target: &LogTarget,
        until: Instant,
        work: impl Fn(Arc<OpenLog>) -> F,
    ) -> Result<T, LogError>
    where
        F: Future<Output = Result<T, LogError>>,
    {
        let log = self.open(target, until).await?;
        match work(log.clone()).await {
            Err(error) if error.is_gone() => {
                self.logs.forget(&self.key(target).await?, Some(&log));
                work(self.open(target, until).await?).await
            }
            done => done,
        }
    }

    /// The log's handle, which all its requests share.
    async fn open(&self, target: &LogTarget, until: Instant) -> Result<Arc<OpenLog>, LogError> {
        check_name(&target.name)?;
        let key = timeout_at(until, self.key(target)).await;
        let key = key.map_err(|_| late(""))??;
        if let Some(log) = self.logs.get(&key) {
            return Ok(log);
        }
        let pool = Some(key.pool.as_str()).filter(|pool| !pool.is_empty());
        let handle = by(until, "", self.client()?.open_log(pool, &target.name)).await?;
        self.logs.keep(key, handle)
    }

    /// A log by its pool's name, also where a request does not say it.
    async fn key(&self, target: &LogTarget) -> Result<LogName, LogError> {
        let client = self.client()?;
        let named = |pool: Option<String>| LogName {
            pool: pool.unwrap_or_default(),
            name: target.name.clone(),
        };
        if target.pool.is_some() {
            return Ok(named(target.pool.clone()));
        }
        let pool = match only_pool(&client.map()) {
            Some(pool) => Some(pool),
            None => only_pool(client.refresh().await?.as_ref()),
        };
        // Without one the client says which there are.
        Ok(named(pool))
    }
}

/// The name of the only pool of logs.
fn only_pool(map: &ClusterMap) -> Option<String> {
    let of_logs = |pool: &&Pool| pool.kind.service() == Some(ServiceId::LOG);
    let mut pools = map.pools.values().filter(of_logs);
    match (pools.next(), pools.next()) {
        (Some(only), None) => Some(only.name.clone()),
        _ => None,
    }
}

fn check_name(name: &str) -> Result<(), LogError> {
    if (1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    let text = format!(
        "a log's name has 1 to {NAME_BYTES_MAX} bytes, and this one {}: choose another",
        name.len()
    );
    Err(LogError::of(ErrorCode::Malformed, text))
}

/// The result of a request, if it comes in time.
async fn by<T>(
    until: Instant,
    uncertain: &str,
    request: impl Future<Output = Result<T, staves_client::ClientError>>,
) -> Result<T, LogError> {
    match timeout_at(until, request).await {
        Ok(Ok(done)) => Ok(done),
        // It changes nothing.
        Ok(Err(error)) if uncertain.is_empty() => Err(LogError::from(error).settled()),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(late(uncertain)),
    }
}

/// A request that was not answered in time, and what may have been done all the same.
fn late(uncertain: &str) -> LogError {
    let text = "there was no answer in time: ask again, with more time ('staves status' says whether the log's nodes are up)";
    match uncertain {
        "" => LogError::of(ErrorCode::Deadline, text),
        what => LogError::uncertain(ErrorCode::Deadline, format!("{text}; {what}")),
    }
}
