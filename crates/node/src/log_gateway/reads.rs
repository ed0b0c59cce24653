//! Records that are read, several positions at a time, until they are counted.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use staves_client::{ClientError, ErrorCode, LogSlot};
use staves_net::InFlightPart;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::error::LogError;
use super::handles::OpenLog;
use super::{LogGateway, LogTarget, READ_BYTES_MAX, by, late};

/// Most positions that a node reads at a time for its doors: each may have a record of 1 MiB that is not counted yet.
pub(super) const READS_MAX: usize = 32;
/// Most of them of one log.
pub(super) const LOG_READS_MAX: usize = 16;
/// Most of them of one request.
pub(super) const AHEAD: usize = 8;
/// Most positions that one request looks at: many may be empty.
const SCAN_MAX: u64 = 8192;
/// A record is in memory twice for a moment: as it came, and as it is sent.
const COPIES: usize = 2;
/// Bytes that count for a record beside its own.
const RECORD_BYTES: usize = 64;

/// Records in order, and the memory that they take.
pub(crate) struct LogBatch {
    /// Each with its position.
    pub(crate) records: Vec<(u64, Bytes)>,
    /// The position to go on at.
    pub(crate) next: u64,
    /// The first position that was not given out when this was read.
    pub(crate) tail: u64,
    pub(crate) part: InFlightPart,
}

impl LogBatch {
    /// Adds a record, behind others of so many bytes. False if there is no room for it. The first waits for memory; others hold some that
    /// others may wait for.
    async fn add(
        &mut self,
        (position, record): (u64, Bytes),
        bytes: usize,
        bounds: ReadBounds,
    ) -> Result<bool, LogError> {
        let bytes = bytes + record.len();
        let counted = COPIES * (bytes + RECORD_BYTES * (1 + self.records.len()));
        if self.records.is_empty() {
            room(&mut self.part, counted, bounds.until).await?;
        } else if bytes > bounds.bytes || !self.part.try_set(counted) {
            return Ok(false);
        }
        self.records.push((position, record));
        Ok(true)
    }
}

/// A position that is being read. Dropped, it is read to its end all the same, and keeps its place until then.
struct AheadRead {
    position: u64,
    read: JoinHandle<Result<LogSlot, ClientError>>,
}

/// The bounds of a read.
#[derive(Clone, Copy)]
pub(super) struct ReadBounds {
    pub(super) records: usize,
    pub(super) bytes: usize,
    pub(super) until: Instant,
}

/// The records that a request reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadFrom {
    /// The first position; without one, where the log begins.
    pub(crate) position: Option<u64>,
    /// Only records of this tag.
    pub(crate) tag: Option<u64>,
}

impl LogGateway {
    /// Records from a position on, up to so many.
    pub(crate) async fn read(
        &self,
        target: &LogTarget,
        from: ReadFrom,
        records: usize,
        until: Instant,
    ) -> Result<LogBatch, LogError> {
        let (tag, from) = match from.position {
            Some(position) => (from.tag, position),
            None => (from.tag, self.show(target, until).await?.trim),
        };
        let bounds = ReadBounds {
            records,
            bytes: READ_BYTES_MAX,
            until,
        };
        let read = |log: Arc<OpenLog>| async move {
            match tag {
                None => self.read_open(&log, from, bounds).await,
                Some(tag) => self.read_stream(&log, (tag, from), bounds).await,
            }
        };
        let batch = self.with_log(target, until, read).await;
        self.say_begin(target, batch, until).await
    }

    async fn read_open(
        &self,
        log: &Arc<OpenLog>,
        from: u64,
        bounds: ReadBounds,
    ) -> Result<LogBatch, LogError> {
        let tail = by(bounds.until, "", log.handle.tail()).await?;
        if from > tail {
            return Err(LogError::past_tail(log.handle.name(), from, tail));
        }
        self.read_below(log, (from, tail), bounds).await
    }

    /// Adds to the error of a trimmed position where the log begins.
    pub(super) async fn say_begin(
        &self,
        target: &LogTarget,
        batch: Result<LogBatch, LogError>,
        until: Instant,
    ) -> Result<LogBatch, LogError> {
        match batch {
            Err(error) if error.outside.is_some() => match self.show(target, until).await {
                Ok(stat) => Err(error.with_begin(&target.name, stat.trim)),
                Err(_) => Err(error),
            },
            batch => batch,
        }
    }

    /// Records of these positions. At least one, if there is any and it comes in time.
    pub(super) async fn read_below(
        &self,
        log: &Arc<OpenLog>,
        (from, tail): (u64, u64),
        bounds: ReadBounds,
    ) -> Result<LogBatch, LogError> {
        let end = tail.min(from.saturating_add(SCAN_MAX));
        self.read_at(log, from..end, (from, tail), bounds).await
    }

    /// Records of these positions, which ascend and lie from `from` on and below the tail. Goes on behind the last one that it looked at.
    pub(super) async fn read_at(
        &self,
        log: &Arc<OpenLog>,
        mut positions: impl Iterator<Item = u64>,
        (from, tail): (u64, u64),
        bounds: ReadBounds,
    ) -> Result<LogBatch, LogError> {
        let mut ahead = VecDeque::new();
        let mut waiting = positions.next();
        let mut batch = LogBatch {
            records: Vec::new(),
            next: from,
            tail,
            part: InFlightPart::of_request(self.figures.memory.clone()),
        };
        let mut bytes = 0;
        while batch.records.len() < bounds.records {
            while let Some(position) = waiting.filter(|_| ahead.len() < AHEAD) {
                let waits = ahead.is_empty();
                let Some(places) = self.read_places(log, waits, bounds.until).await? else {
                    break;
                };
                ahead.push_back(begin_read(log, position, places));
                waiting = positions.next();
            }
            let Some(read) = ahead.pop_front() else {
                break;
            };
            let position = read.position;
            let slot = match timeout_at(bounds.until, read.read).await {
                Ok(Ok(slot)) => slot.map_err(|error| LogError::from(error).settled()),
                Ok(Err(_)) => Err(LogError::of(ErrorCode::Internal, "the read ended early")),
                Err(_) => Err(late("")),
            };
            match slot {
                Ok(LogSlot::Junk) => {}
                Ok(LogSlot::Record(record)) => {
                    let length = record.len();
                    if !batch.add((position, record), bytes, bounds).await? {
                        break;
                    }
                    bytes += length;
                }
                // What there is already is an answer.
                _ if !batch.records.is_empty() => break,
                Ok(LogSlot::PastTail) => break,
                Ok(LogSlot::Trimmed) => {
                    return Err(LogError::trimmed(log.handle.name(), position, position + 1));
                }
                Err(error) => return Err(error),
            }
            batch.next = position + 1;
        }
        self.figures.read(batch.records.len(), bytes);
        Ok(batch)
    }

    /// Places for one more read. Only who has none waits for one: of many that wait for each other each would have some.
    pub(super) async fn read_places(
        &self,
        log: &OpenLog,
        waits: bool,
        until: Instant,
    ) -> Result<Option<[OwnedSemaphorePermit; 2]>, LogError> {
        if !waits {
            let of_log = log.reads.clone().try_acquire_owned();
            let of_node = self.reads.clone().try_acquire_owned();
            return Ok(match (of_log, of_node) {
                (Ok(of_log), Ok(of_node)) => Some([of_log, of_node]),
                _ => None,
            });
        }
        let both = async {
            // The log's own first: who waits for those holds none that others wait for.
            let of_log = log.reads.clone().acquire_owned().await.ok()?;
            let of_node = self.reads.clone().acquire_owned().await.ok()?;
            Some([of_log, of_node])
        };
        match timeout_at(until, both).await {
            Ok(places) => Ok(places),
            Err(_) => {
                let text = "as many positions are read at this node as may: ask again a little later, or another node";
                Err(LogError::of(ErrorCode::Busy, text))
            }
        }
    }
}

fn begin_read(log: &OpenLog, position: u64, places: [OwnedSemaphorePermit; 2]) -> AheadRead {
    let handle = log.handle.clone();
    let read = tokio::spawn(async move {
        let slot = handle.read(position).await;
        drop(places);
        slot
    });
    AheadRead { position, read }
}

/// Waits for memory; refused after some seconds, or at the request's end.
pub(crate) async fn room(
    part: &mut InFlightPart,
    bytes: usize,
    until: Instant,
) -> Result<(), LogError> {
    while !part.try_set_in_turn(bytes) {
        if part.is_refused() || Instant::now() >= until {
            part.waits_no_more();
            let text = format!(
                "the memory for requests on logs ({} MiB, a quarter of in_flight_bytes_max) is taken by others; nothing was done: ask again",
                part.of().bytes_max() >> 20
            );
            return Err(LogError::of(ErrorCode::Busy, text));
        }
        part.of().room().await;
    }
    part.waits_no_more();
    Ok(())
}
