//! A log in use: appends, reads, the tail, trims.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use staves_log::service::APPEND_BYTES_MAX as LOG_BATCH_BYTES_MAX;
use staves_log::{
    AppendCondition, AppendMode, LogId, Position, ReadOp, ReadResult, Records, SlotAnswer,
};
use staves_wire::ErrorCode;
use tokio::sync::{mpsc, oneshot};

use super::actor::{AppendAsk, AppendOutcome, Ask};
use super::calls;
use super::presence::LogPresence;
use crate::client::senseless;
use crate::error::ClientError;

/// The content of a position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogSlot {
    /// A record.
    Record(Bytes),
    /// Nothing, for ever: an append that did not come in time, or a record that was given up by itself.
    Junk,
    /// It was trimmed.
    Trimmed,
    /// It was not given out yet.
    PastTail,
}

/// The result of an append with a condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConditionalAppend {
    /// It is on all copies, and this is its first position.
    At(Position),
    /// The condition does not hold, and the append is not in the log. The tail of the condition's stream, or of the log: it lies above the
    /// condition's.
    Failed(Position),
}

/// The result of moving a cursor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CursorChange {
    /// It is where it was to go, durably.
    Done,
    /// It was elsewhere, and was left there: its position, none if there is no such cursor.
    Moved(Option<Position>),
}

/// A log in use by one client. Clones are the same client of it.
#[derive(Clone, Debug)]
pub struct LogHandle {
    name: String,
    mode: AppendMode,
    asks: mpsc::Sender<Ask>,
    presence: Arc<LogPresence>,
}

/// The end of a log, or of one of its streams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamEnd {
    /// The first position that was not given out.
    pub tail: Position,
    /// The stream's last positions, ascending.
    pub last: Vec<Position>,
    /// Positions below are trimmed.
    pub trim: Position,
}

impl LogHandle {
    pub(super) fn new(
        name: &str,
        mode: AppendMode,
        asks: mpsc::Sender<Ask>,
        presence: Arc<LogPresence>,
    ) -> LogHandle {
        LogHandle {
            name: name.to_owned(),
            mode,
            asks,
            presence,
        }
    }

    /// The log's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if, at the last look, the log refused an append that was in flight: it keeps what its oldest cursor has not passed.
    pub fn is_full(&self) -> bool {
        self.presence.full.load(Ordering::Relaxed)
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
        self.append_tagged(records, &[]).await
    }

    /// The same of records that belong to the streams of some tags: at most 8, each once.
    pub async fn append_tagged(
        &self,
        records: &[Bytes],
        tags: &[u64],
    ) -> Result<Position, ClientError> {
        match self.append_with(records, tags, None).await? {
            ConditionalAppend::At(position) => Ok(position),
            ConditionalAppend::Failed(_) => Err(senseless("an append", "a failed condition")),
        }
    }

    /// The same, only if a condition holds when the positions are given out. Once it fails it fails for ever, so that nothing of a failed
    /// append comes later.
    pub async fn append_if(
        &self,
        condition: AppendCondition,
        records: &[Bytes],
        tags: &[u64],
    ) -> Result<ConditionalAppend, ClientError> {
        self.append_with(records, tags, Some(condition)).await
    }

    async fn append_with(
        &self,
        records: &[Bytes],
        tags: &[u64],
        condition: Option<AppendCondition>,
    ) -> Result<ConditionalAppend, ClientError> {
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
        let append = AppendAsk {
            records: Records { lens, bytes },
            tags: tags.to_vec(),
            condition,
        };
        Ok(match self.ask(|done| Ask::Append(append, done)).await? {
            AppendOutcome::Done(appended) => ConditionalAppend::At(appended.position),
            AppendOutcome::ConditionFailed(tail) => ConditionalAppend::Failed(tail),
        })
    }

    /// Ends this client of the log: what it has in flight is given up. A log need not remember a client that ended; one that goes without is
    /// forgotten when there are too many of newer ones.
    pub async fn close(self) -> Result<(), ClientError> {
        self.ask(Ask::Close).await
    }

    /// The content of a position.
    pub async fn read(&self, position: Position) -> Result<LogSlot, ClientError> {
        let (content, _) = self.slot(position).await?;
        Ok(content)
    }

    /// The content of a position, and what its unit says of it, which a walk along a stream needs; none past the tail.
    pub async fn slot(
        &self,
        position: Position,
    ) -> Result<(LogSlot, Option<SlotAnswer<Bytes>>), ClientError> {
        let slot = match self.op(ReadOp::Read(position)).await? {
            ReadResult::Slot(_, slot) => slot,
            ReadResult::PastTail(_) => return Ok((LogSlot::PastTail, None)),
            other => return Err(senseless("a read", &format!("{other:?}"))),
        };
        let content = match &slot {
            SlotAnswer::Data { data, .. } => LogSlot::Record(data.clone()),
            SlotAnswer::Trimmed => match position < self.end_of(None).await?.trim {
                true => LogSlot::Trimmed,
                false => LogSlot::Junk,
            },
            SlotAnswer::Lost => return Err(calls::lost(&self.name, position)),
            SlotAnswer::Junk | SlotAnswer::Unwritten => LogSlot::Junk,
        };
        Ok((content, Some(slot)))
    }

    /// The first position that was not given out: above all that was acknowledged before this was called.
    pub async fn tail(&self) -> Result<Position, ClientError> {
        Ok(self.end_of(None).await?.tail)
    }

    /// The log itself: another one may have its name later.
    pub(super) fn id(&self) -> LogId {
        self.presence.log
    }

    /// The tail, and with a tag the last positions of its stream.
    pub async fn end_of(&self, tag: Option<u64>) -> Result<StreamEnd, ClientError> {
        match self.op(ReadOp::Tail(tag)).await? {
            ReadResult::Tail { tail, stream, trim } => Ok(StreamEnd {
                tail,
                last: stream,
                trim,
            }),
            other => Err(senseless("a question for the tail", &format!("{other:?}"))),
        }
    }

    /// Waits until a position has its content; with a tag, until a record of its stream lies there or above. False if that takes longer than
    /// `up_to`. The sequencer answers when it comes: nothing is asked for again and again.
    ///
    /// # Errors
    /// `not-found`, within some seconds, if the log is deleted.
    pub async fn wait(
        &self,
        position: Position,
        tag: Option<u64>,
        up_to: Duration,
    ) -> Result<bool, ClientError> {
        let until = calls::after(up_to);
        loop {
            match self.op(ReadOp::Wait { position, tag }).await? {
                ReadResult::Grown(end) if end > position => return Ok(true),
                // The sequencer of a deleted log answers on for a while.
                ReadResult::Grown(_) => self.presence.check(&self.name).await?,
                other => return Err(senseless("a wait", &format!("{other:?}"))),
            }
            if Instant::now() >= until {
                return Ok(false);
            }
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

    /// Gives up the record of one position, and leaves all others. A position that was not given out yet is an error.
    pub async fn punch(&self, position: Position) -> Result<(), ClientError> {
        match self.op(ReadOp::Punch(position)).await? {
            ReadResult::Trimmed | ReadResult::Slot(..) => Ok(()),
            ReadResult::PastTail(_) => {
                let text = format!(
                    "position {position} of log '{}' was not given out yet: there is nothing to give up",
                    self.name
                );
                Err(ClientError::of(ErrorCode::NotFound, text))
            }
            other => Err(senseless("a trim of one record", &format!("{other:?}"))),
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
