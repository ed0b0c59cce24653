//! Logs, as applications hold them: made, appended to, read in order, trimmed, deleted.
//!
//! **Path.** A [`LogHandle`] is the front of a task ([`actor`]) that drives the machines of `staves-log` for one client of one log: its requests
//! go to units through the router and to the log's sequencer by themselves, and their answers come back as events. Where the sequencer is
//! gone, [`appoint`] sees that there is another.

mod actor;
mod appoint;
pub mod calls;
mod hand_over;
mod list;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use staves_log::{
    Appended, LogOptions, LogRecord, LogView, NAME_BYTES_MAX, Position, ReadOp, ReadResult,
    RecordRefusal, RecordReply, RecordRequest, Records, SlotAnswer, UnitOp, UnitRequest, is_name,
};
use staves_model::{ClusterMap, Pool, PoolId, ServiceId};
use staves_wire::ErrorCode;
use staves_wire::service::PoolRef;
use tokio::sync::{mpsc, oneshot};

use self::actor::{Actor, Ask};
use crate::client::{Client, senseless};
use crate::error::ClientError;
use crate::route::pool_of;

pub use self::list::PoolLogs;
pub use staves_log::AppendMode;
/// Most bytes of the records of one append.
pub use staves_log::service::APPEND_BYTES_MAX as LOG_BATCH_BYTES_MAX;

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
}

/// The content of a position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogSlot {
    /// A record.
    Record(Bytes),
    /// Nothing, for ever: an append that did not come in time.
    Junk,
    /// It was trimmed.
    Trimmed,
    /// It was not given out yet.
    PastTail,
}

/// A log in use by one client. Clones are the same client of it.
#[derive(Clone)]
pub struct LogHandle {
    name: String,
    mode: AppendMode,
    asks: mpsc::Sender<Ask>,
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

    /// Deletes a log with all its records.
    pub async fn delete_log(&self, pool: Option<&str>, name: &str) -> Result<(), ClientError> {
        let (_, pool, _) = self.find_log(pool, name).await?;
        let delete = RecordRequest::Delete {
            name: name.to_owned(),
        };
        let record = self.record(pool, name, delete).await?;
        let log = record.view.log;
        let mut failure = None;
        for unit in record.to_seal() {
            let op = UnitOp::Forget;
            let request = UnitRequest { log, op };
            let deadline = self.deadline();
            let told = calls::ask_unit(self.router(), pool, unit, request, deadline).await;
            failure = failure.or(told.err());
        }
        match failure {
            None => Ok(()),
            Some(why) => {
                let text = format!(
                    "log '{name}' is deleted, and its name free; a unit of it was not told, and keeps its records: {why}"
                );
                Err(ClientError::of(ErrorCode::Unreachable, text))
            }
        }
    }

    /// Opens a log, to append to it and to read it.
    pub async fn open_log(&self, pool: Option<&str>, name: &str) -> Result<LogHandle, ClientError> {
        let (_, pool, record) = self.find_log(pool, name).await?;
        let mode = record.view.options.mode;
        let (asks, taken) = mpsc::channel(ASKS_MAX);
        let patience = self.patience().mul_f32(SHARE);
        let actor = Actor::new(self.clone(), pool, record, patience);
        tokio::spawn(actor.run(taken));
        Ok(LogHandle {
            name: name.to_owned(),
            mode,
            asks,
        })
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

impl LogHandle {
    /// The log's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Most records of one append.
    pub fn batch_records_max(&self) -> usize {
        match self.mode {
            AppendMode::Bind => staves_log::BATCH_RECORDS_MAX as usize,
            AppendMode::Predict | AppendMode::Corfu => 1,
        }
    }

    /// Appends records, all of them at positions in a row or none. They are on all copies once this returns the first position. After an error
    /// whose [`ClientError::is_uncertain`] holds, they may be in the log.
    pub async fn append(&self, records: &[Bytes]) -> Result<Position, ClientError> {
        let bytes: usize = records.iter().map(Bytes::len).sum();
        if bytes > LOG_BATCH_BYTES_MAX {
            let text = format!(
                "an append of {bytes} bytes: one has {LOG_BATCH_BYTES_MAX} at most; make records smaller, or append fewer at a time"
            );
            return Err(ClientError::of(ErrorCode::TooLarge, text));
        }
        let lens = records.iter().map(|record| record.len() as u32).collect();
        let bytes = match records {
            [one] => one.clone(),
            many => many.iter().fold(BytesMut::new(), joined).freeze(),
        };
        let records = Records { lens, bytes };
        let appended = self.ask(|done| Ask::Append(records, done)).await?;
        let Appended { position, .. } = appended;
        Ok(position)
    }

    /// The content of a position.
    pub async fn read(&self, position: Position) -> Result<LogSlot, ClientError> {
        match self.op(ReadOp::Read(position)).await? {
            ReadResult::Slot(_, SlotAnswer::Data { data, .. }) => Ok(LogSlot::Record(data)),
            ReadResult::Slot(_, SlotAnswer::Trimmed) => Ok(LogSlot::Trimmed),
            ReadResult::Slot(_, SlotAnswer::Lost) => Err(calls::lost(&self.name, position)),
            ReadResult::Slot(..) => Ok(LogSlot::Junk),
            ReadResult::PastTail(_) => Ok(LogSlot::PastTail),
            other => Err(senseless("a read", &format!("{other:?}"))),
        }
    }

    /// The first position that was not given out: above all that was acknowledged before this was called.
    pub async fn tail(&self) -> Result<Position, ClientError> {
        match self.op(ReadOp::Tail(None)).await? {
            ReadResult::Tail { tail, .. } => Ok(tail),
            other => Err(senseless("a question for the tail", &format!("{other:?}"))),
        }
    }

    /// Gives up all positions below one.
    pub async fn trim(&self, position: Position) -> Result<(), ClientError> {
        match self.op(ReadOp::Trim(position)).await? {
            ReadResult::Trimmed => Ok(()),
            ReadResult::TrimPastDecided => {
                let text = format!(
                    "log '{}' cannot be trimmed up to {position}: that is past its tail, or not everything below is decided; 'staves log tail {}' says where it ends",
                    self.name, self.name
                );
                Err(ClientError::of(ErrorCode::Refused, text))
            }
            other => Err(senseless("a trim", &format!("{other:?}"))),
        }
    }

    async fn op(&self, op: ReadOp) -> Result<ReadResult, ClientError> {
        self.ask(|done| Ask::Read(op, done)).await
    }

    async fn ask<T>(
        &self,
        of: impl FnOnce(oneshot::Sender<Result<T, ClientError>>) -> Ask,
    ) -> Result<T, ClientError> {
        let (done, answer) = oneshot::channel();
        let ended = || ClientError::of(ErrorCode::Internal, "the log's task ended early");
        self.asks.send(of(done)).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}

fn joined(mut all: BytesMut, record: &Bytes) -> BytesMut {
    all.extend_from_slice(record);
    all
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

/// The record of a home's reply, or the reason why there is none.
fn record_of(name: &str, reply: RecordReply) -> Result<LogRecord, ClientError> {
    match reply {
        RecordReply::Record(record) | RecordReply::Deleted(record) => Ok(*record),
        RecordReply::Refused(RecordRefusal::NotFound) => Err(no_log(name)),
        RecordReply::Refused(RecordRefusal::Exists) => {
            let text = format!("there is a log '{name}' already: choose another name");
            Err(ClientError::of(ErrorCode::Refused, text))
        }
        RecordReply::Refused(refusal) => {
            let text = format!("log '{name}': {refusal}");
            Err(ClientError::of(ErrorCode::Refused, text))
        }
        RecordReply::Names(_) => Err(senseless("a log's record", "names")),
    }
}

fn no_log(name: &str) -> ClientError {
    let text = format!("there is no log '{name}': 'staves log list' shows those that there are");
    ClientError::of(ErrorCode::NotFound, text)
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
    }
}

/// The end of a request that a machine makes: it is made again, so that it need not be long.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(2)
}
