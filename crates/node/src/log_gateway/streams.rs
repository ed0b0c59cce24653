//! The records of one tag. Their positions are found from the end of the stream, and then read like others, from the oldest.
//!
//! A walk back reads every record of the stream above the position that is asked for, and keeps the lowest positions: a reader of a long
//! stream walks again for each part of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use staves_client::{ClientError, ErrorCode, LogSlot};
use staves_log::{SlotAnswer, StreamWalk};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::error::LogError;
use super::handles::OpenLog;
use super::reads::{AHEAD, LogBatch, ReadBounds};
use super::{LogGateway, by, late};

/// A position that is being read, with what its unit says of its stream.
type StreamRead = JoinHandle<Result<(LogSlot, Option<SlotAnswer<Bytes>>), ClientError>>;

/// A part of a stream: its lowest positions.
#[derive(Debug)]
pub(super) struct StreamPart {
    /// Ascending.
    pub(super) positions: VecDeque<u64>,
    /// The position to go on at once these are read.
    pub(super) next: u64,
    /// The log's tail at the walk.
    pub(super) tail: u64,
}

impl StreamPart {
    /// Of a reader that begins at a position, before the first walk.
    pub(super) fn nothing_below(position: u64) -> StreamPart {
        StreamPart {
            positions: VecDeque::new(),
            next: position,
            tail: position,
        }
    }

    /// Forgets the positions that were read: those below one. Returns the position to go on at.
    pub(super) fn read_to(&mut self, position: u64) -> u64 {
        while self.positions.front().is_some_and(|at| *at < position) {
            self.positions.pop_front();
        }
        self.positions.front().copied().unwrap_or(self.next)
    }
}

impl LogGateway {
    /// Records of a tag from a position on.
    pub(super) async fn read_stream(
        &self,
        log: &Arc<OpenLog>,
        (tag, from): (u64, u64),
        bounds: ReadBounds,
    ) -> Result<LogBatch, LogError> {
        let most = bounds.records;
        let mut part = self.walk(log, (tag, from), most, bounds.until).await?;
        self.read_part(log, &mut part, from, bounds).await
    }

    /// The first records of a part, which then has the others.
    pub(super) async fn read_part(
        &self,
        log: &Arc<OpenLog>,
        part: &mut StreamPart,
        from: u64,
        bounds: ReadBounds,
    ) -> Result<LogBatch, LogError> {
        let positions: Vec<u64> = part
            .positions
            .iter()
            .copied()
            .take(bounds.records)
            .collect();
        let ends = (from, part.tail);
        let mut batch = self
            .read_at(log, positions.into_iter(), ends, bounds)
            .await?;
        batch.next = part.read_to(batch.next);
        Ok(batch)
    }

    /// The lowest positions of a stream from one on, up to so many.
    pub(super) async fn walk(
        &self,
        log: &Arc<OpenLog>,
        (tag, from): (u64, u64),
        most: usize,
        until: Instant,
    ) -> Result<StreamPart, LogError> {
        let end = by(until, "", log.handle.end_of(Some(tag))).await?;
        let name = log.handle.name();
        if from > end.tail {
            return Err(LogError::past_tail(name, from, end.tail));
        }
        if from < end.trim {
            return Err(LogError::trimmed(name, from, end.trim));
        }
        let mut walk = StreamWalk::new(tag, end.last, end.tail, from);
        let mut reads = BTreeMap::<u64, StreamRead>::new();
        let mut part = StreamPart {
            positions: VecDeque::new(),
            next: end.tail,
            tail: end.tail,
        };
        loop {
            self.read_ahead(log, &walk, &mut reads, until).await?;
            let Some(position) = walk.next_read() else {
                return Ok(part);
            };
            let read = match reads.remove(&position) {
                Some(read) => read,
                None => self.begin_walk(log, position, until).await?,
            };
            // The walk goes down alone: what lies above is not read any more.
            reads.retain(|at, _| *at < position);
            let slot = finish(read, until).await?;
            let is_record = matches!(slot, SlotAnswer::Data { .. });
            if !walk.take(position, &slot) || !is_record {
                continue;
            }
            part.positions.push_front(position);
            if part.positions.len() > most
                && let Some(above) = part.positions.pop_back()
            {
                part.next = above;
            }
        }
    }

    /// Begins the reads that come next, as there are places.
    async fn read_ahead(
        &self,
        log: &Arc<OpenLog>,
        walk: &StreamWalk,
        reads: &mut BTreeMap<u64, StreamRead>,
        until: Instant,
    ) -> Result<(), LogError> {
        for position in walk.ahead(AHEAD) {
            if reads.contains_key(&position) {
                continue;
            }
            let waits = reads.is_empty();
            let Some(places) = self.read_places(log, waits, until).await? else {
                break;
            };
            reads.insert(position, begin(log, position, places));
        }
        Ok(())
    }

    async fn begin_walk(
        &self,
        log: &Arc<OpenLog>,
        position: u64,
        until: Instant,
    ) -> Result<StreamRead, LogError> {
        match self.read_places(log, true, until).await? {
            Some(places) => Ok(begin(log, position, places)),
            None => Err(LogError::of(ErrorCode::Stopping, "the node is stopping")),
        }
    }
}

fn begin(log: &OpenLog, position: u64, places: [OwnedSemaphorePermit; 2]) -> StreamRead {
    let handle = log.handle.clone();
    tokio::spawn(async move {
        let slot = handle.slot(position).await;
        drop(places);
        slot
    })
}

async fn finish(read: StreamRead, until: Instant) -> Result<SlotAnswer<Bytes>, LogError> {
    let early = |text| LogError::of(ErrorCode::Internal, text);
    match timeout_at(until, read).await {
        Ok(Ok(Ok((_, Some(slot))))) => Ok(slot),
        Ok(Ok(Ok((_, None)))) => Err(early("a position below the tail lies past it")),
        Ok(Ok(Err(error))) => Err(LogError::from(error).settled()),
        Ok(Err(_)) => Err(early("the read ended early")),
        Err(_) => Err(late("")),
    }
}
