//! The records of one stream of a log, in order.
//!
//! A stream is found from its end: each record names the last positions of its stream before it. So a replay walks back first, several
//! reads at once, and then hands the records on from the oldest. Those that fit into its memory are kept on the way; older ones are read
//! a second time.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use staves_log::{Position, SlotAnswer, StreamWalk};
use staves_wire::ErrorCode;
use tokio::task::JoinHandle;

use super::handle::{LogHandle, LogSlot};
use crate::client::senseless;
use crate::error::ClientError;

/// Reads under way at once.
const AHEAD: usize = 16;
/// Most bytes of records that are kept between the walk and the hand-on.
const KEPT_BYTES_MAX: usize = 32 << 20;
/// Most records of one replay.
const RECORDS_MAX: usize = 4 << 20;

type SlotRead = JoinHandle<Result<(LogSlot, Option<SlotAnswer<Bytes>>), ClientError>>;

/// The records of a stream between two positions, from the oldest.
#[derive(Debug)]
pub struct LogReplay {
    log: LogHandle,
    /// The newest first; those with no bytes are read again.
    records: Vec<(Position, Option<Bytes>)>,
    again: VecDeque<(Position, SlotRead)>,
    tail: Position,
    trim: Position,
}

impl LogHandle {
    /// The records of a tag's stream from a position on, up to the tail that the log has when this is called. The walk is done when it
    /// returns; records are read by [`LogReplay::next`].
    ///
    /// # Errors
    /// The stream has more than 4,194,304 records there.
    pub async fn replay(&self, tag: u64, from: Position) -> Result<LogReplay, ClientError> {
        self.walk_back(tag, from, usize::MAX).await
    }

    /// The last records of a tag's stream from a position on, at most so many.
    ///
    /// # Errors
    /// As of [`LogHandle::replay`].
    pub async fn replay_last(
        &self,
        tag: u64,
        from: Position,
        most: usize,
    ) -> Result<LogReplay, ClientError> {
        self.walk_back(tag, from, most).await
    }

    async fn walk_back(
        &self,
        tag: u64,
        from: Position,
        most: usize,
    ) -> Result<LogReplay, ClientError> {
        let end = self.end_of(Some(tag)).await?;
        let mut walk = StreamWalk::new(tag, end.last, end.tail, end.trim.max(from));
        let mut reads = BTreeMap::<Position, SlotRead>::new();
        let mut replay = LogReplay {
            log: self.clone(),
            records: Vec::new(),
            again: VecDeque::new(),
            tail: end.tail,
            trim: end.trim,
        };
        let mut kept = 0;
        while replay.records.len() < most {
            for position in walk.ahead(AHEAD.min(most)) {
                reads
                    .entry(position)
                    .or_insert_with(|| self.begin(position));
            }
            let Some(position) = walk.next_read() else {
                return Ok(replay);
            };
            let read = reads.remove(&position);
            // The walk goes down alone: what lies above is not read any more.
            reads.retain(|at, _| *at < position);
            let read = read.unwrap_or_else(|| self.begin(position));
            let (_, Some(slot)) = finish(read).await? else {
                return Err(senseless("a read below the tail", "that it lies past it"));
            };
            if !walk.take(position, &slot) {
                continue;
            }
            let SlotAnswer::Data { data, .. } = slot else {
                continue;
            };
            if replay.records.len() >= RECORDS_MAX {
                return Err(too_many(self.name(), tag));
            }
            kept += data.len();
            let data = Some(data).filter(|_| kept <= KEPT_BYTES_MAX);
            replay.records.push((position, data));
        }
        Ok(replay)
    }

    fn begin(&self, position: Position) -> SlotRead {
        let log = self.clone();
        tokio::spawn(async move { log.slot(position).await })
    }
}

impl LogReplay {
    /// The log's tail when the replay began: all records of the stream below are in it.
    pub fn tail(&self) -> Position {
        self.tail
    }

    /// Positions below were trimmed when the replay began: their records are not in it.
    pub fn trim(&self) -> Position {
        self.trim
    }

    /// The next record and its position; none at the end.
    ///
    /// # Errors
    /// It was trimmed meanwhile, or cannot be read.
    pub async fn next(&mut self) -> Result<Option<(Position, Bytes)>, ClientError> {
        while self.again.len() < AHEAD
            && let Some((position, None)) = self.records.last()
        {
            self.again.push_back((*position, self.log.begin(*position)));
            self.records.pop();
        }
        if let Some((position, read)) = self.again.pop_front() {
            return match finish(read).await? {
                (LogSlot::Record(record), _) => Ok(Some((position, record))),
                _ => Err(trimmed(self.log.name(), position)),
            };
        }
        let next = self.records.pop();
        Ok(next.and_then(|(position, record)| Some((position, record?))))
    }
}

async fn finish(read: SlotRead) -> Result<(LogSlot, Option<SlotAnswer<Bytes>>), ClientError> {
    let ended = |_| ClientError::of(ErrorCode::Internal, "a read of the log ended early");
    read.await.map_err(ended)?
}

fn too_many(log: &str, tag: u64) -> ClientError {
    let text = format!(
        "the stream of tag {tag} in log '{log}' has more than {RECORDS_MAX} records from there on: read it from a higher position, or trim the log"
    );
    ClientError::of(ErrorCode::TooLarge, text)
}

fn trimmed(log: &str, position: Position) -> ClientError {
    let text = format!(
        "position {position} of log '{log}' was trimmed while its stream was read: read it again"
    );
    ClientError::of(ErrorCode::NotFound, text)
}
