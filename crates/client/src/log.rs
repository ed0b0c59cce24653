//! Logs, as applications hold them: made, appended to, read in order, trimmed, deleted.
//!
//! **Path.** A [`LogHandle`] is the front of a task ([`actor`]) that drives the machines of `staves-log` for one client of one log: its requests
//! go to units through the router and to the log's sequencer by themselves, and their answers come back as events. Where the sequencer is
//! gone, [`appoint`] sees that there is another.

mod actor;
mod appoint;
pub mod calls;
mod cursors;
mod delete;
mod fields;
mod hand_over;
mod handle;
pub mod list;
mod lock;
mod map;
mod presence;
mod producer;
mod queue;
mod replay;
mod stream_cursor;
mod times;

use std::sync::Arc;

use staves_log::{
    LogOptions, LogRecord, LogView, NAME_BYTES_MAX, Position, RecordRequest, is_name,
};
use staves_model::{ClusterMap, Pool, PoolId, ServiceId};
use staves_wire::ErrorCode;
use staves_wire::service::PoolRef;
use tokio::sync::mpsc;

use self::actor::Actor;
use self::calls::record_of;
use self::presence::LogPresence;
use crate::client::Client;
use crate::error::ClientError;
use crate::route::pool_of;

pub use self::delete::DeletedLog;
pub use self::handle::{ConditionalAppend, CursorChange, LogHandle, LogSlot, StreamEnd};
pub use self::lock::{LockGrant, LogLock};
pub use self::map::{LogMap, MapTransaction};
pub use self::producer::{LogProducer, ProducedRecord, RECORD_ID_BYTES_MAX};
pub use self::queue::{LogQueue, QUEUE_TAKE_MAX, QueueItem, QueueOptions, QueueStat};
pub use self::replay::LogReplay;
pub use self::times::LogTimes;
/// Most bytes of the records of one append.
pub use staves_log::service::APPEND_BYTES_MAX as LOG_BATCH_BYTES_MAX;
pub use staves_log::{AppendCondition, AppendMode, LogCursors, LogRetention, WhenFull};

/// Most requests to a log that wait for its task.
const ASKS_MAX: usize = 1024;
/// The part of a deadline that an append or a read has; the rest is for finding the log.
const SHARE: f32 = 0.9;

/// A log, as people look at it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogStat {
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// The way of its appends.
    pub mode: AppendMode,
    /// Its term; 0 before the first append.
    pub term: u64,
    /// The name of the node with its sequencer, if that node lives.
    pub sequencer: Option<String>,
    /// The units of its last segment.
    pub units: usize,
    /// Positions below are trimmed.
    pub trim: Position,
    /// The cursors of readers.
    pub cursors: LogCursors,
    /// The records that are kept.
    pub retention: LogRetention,
}

impl Client {
    /// Makes a log in a pool; without a name, in the only pool of logs.
    pub async fn create_log(
        &self,
        pool: Option<&str>,
        name: &str,
        mode: AppendMode,
    ) -> Result<LogStat, ClientError> {
        check_name(name)?;
        let (map, pool) = self.log_pool(pool).await?;
        let request = RecordRequest::Create {
            name: name.to_owned(),
            options: LogOptions::of(mode),
        };
        let record = self.record(pool, name, request).await?;
        Ok(stat(&map, pool, &record))
    }

    /// A log by name.
    pub async fn log_stat(&self, pool: Option<&str>, name: &str) -> Result<LogStat, ClientError> {
        let (map, pool, record) = self.find_log(pool, name).await?;
        Ok(stat(&map, pool, &record))
    }

    /// Opens a log, to append to it and to read it.
    pub async fn open_log(&self, pool: Option<&str>, name: &str) -> Result<LogHandle, ClientError> {
        let (_, pool, record) = self.find_log(pool, name).await?;
        let mode = record.view.options.mode;
        let (asks, taken) = mpsc::channel(ASKS_MAX);
        let patience = self.patience().mul_f32(SHARE);
        let presence = LogPresence::new(self.clone(), pool, record.view.log);
        let presence = Arc::new(presence);
        let actor = Actor::new(self.clone(), pool, record, (patience, presence.clone()));
        tokio::spawn(actor.run(taken));
        Ok(LogHandle::new(name, mode, asks, presence))
    }

    async fn find_log(
        &self,
        pool: Option<&str>,
        name: &str,
    ) -> Result<(Arc<ClusterMap>, PoolId, LogRecord), ClientError> {
        check_name(name)?;
        let (map, pool) = self.log_pool(pool).await?;
        let view = RecordRequest::View {
            name: name.to_owned(),
        };
        let record = self.record(pool, name, view).await?;
        Ok((map, pool, record))
    }

    async fn log_pool(&self, name: Option<&str>) -> Result<(Arc<ClusterMap>, PoolId), ClientError> {
        let map = self.refresh().await?;
        if let Some(name) = name {
            let pool = find_pool(&map, name)?;
            return Ok((map, pool));
        }
        let pools = map.pools.values();
        let pools: Vec<&Pool> = pools
            .filter(|pool| pool.kind.service() == Some(ServiceId::LOG))
            .collect();
        let pool = match &pools[..] {
            [one] => one.id,
            [] => {
                let text = "there is no pool of logs: make one, 'staves pool create logs --kind log --memory 1GiB'";
                return Err(ClientError::of(ErrorCode::NotFound, text));
            }
            several => {
                let names: Vec<&str> = several.iter().map(|pool| pool.name.as_str()).collect();
                let text = format!(
                    "there are several pools of logs: name one of {}",
                    names.join(", ")
                );
                return Err(ClientError::of(ErrorCode::Refused, text));
            }
        };
        Ok((map, pool))
    }

    /// The record that a home answers with.
    async fn record(
        &self,
        pool: PoolId,
        name: &str,
        request: RecordRequest,
    ) -> Result<LogRecord, ClientError> {
        let home = calls::home_of(&self.map(), pool, name)?;
        let reply = calls::ask_home(self.router(), pool, home, request, self.deadline()).await?;
        record_of(name, reply)
    }
}

fn check_name(name: &str) -> Result<(), ClientError> {
    if is_name(name) {
        return Ok(());
    }
    let text = match (1..=NAME_BYTES_MAX).contains(&name.len()) {
        true => format!(
            "a log's name has no line ends and no other control characters, and \"{}\" does: choose another",
            name.escape_debug()
        ),
        false => format!(
            "a log's name has 1 to {NAME_BYTES_MAX} bytes, and this one {}: choose another",
            name.len()
        ),
    };
    Err(ClientError::of(ErrorCode::Refused, text))
}

fn find_pool(map: &ClusterMap, name: &str) -> Result<PoolId, ClientError> {
    pool_of(map, ServiceId::LOG, &PoolRef::Name(name.to_owned()))
}

fn stat(map: &ClusterMap, pool: PoolId, record: &LogRecord) -> LogStat {
    let view: &LogView = &record.view;
    let lives = |id: &staves_log::SequencerId| map.is_up(id.node, id.incarnation);
    let node = view.sequencer.filter(lives).map(|id| id.node);
    let name = |node| map.nodes.get(&node).map(|node| node.name.clone());
    LogStat {
        name: record.name.clone(),
        pool: map
            .pools
            .get(&pool)
            .map_or_else(String::new, |p| p.name.clone()),
        mode: view.options.mode,
        term: view.term.0,
        sequencer: node.and_then(name),
        units: view.projection.last().len(),
        trim: view.trim,
        cursors: record.cursors.clone(),
        retention: record.retention,
    }
}
