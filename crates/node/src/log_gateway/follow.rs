//! Followers: clients that are sent what a log has from a position on, and then what comes.
//!
//! One task waits at the sequencer for all followers of a log ([`watch_tail`]). Each follower has a task of its own, which reads some
//! records, hands them to its door, and reads on once they have left: a slow one holds no more than that, and nobody waits for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use staves_client::ErrorCode;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{Instant, sleep};

use super::error::LogError;
use super::handles::OpenLog;
use super::reads::{LogBatch, ReadBounds};
use super::streams::StreamPart;
use super::{FOLLOWERS_MAX, LogGateway, LogTarget, REQUEST_MAX};
use crate::client_doors::LogDoorFigures;
use crate::pieces::is_taken;

/// The longest wait for a log to grow, after which it is looked whether anybody follows it still.
const WAIT: Duration = Duration::from_secs(1);
/// A log that grows is looked at again after this time, and after an error.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(200);
/// A client that gets nothing else gets a sign of life so often.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(15);
/// Most records, and bytes of them, that are on their way to a follower; one that is longer goes alone.
const BATCH_RECORDS: usize = 256;
const BATCH_BYTES: usize = 128 << 10;
/// The longest walk through a stream for a follower.
const WALK_MAX: Duration = Duration::from_secs(3600);
/// Most positions of a stream that a follower keeps: 32 KiB.
const WALKED_MAX: usize = 4096;

/// The tail of a log, as the last answer had it.
#[derive(Clone, Debug)]
pub(super) enum TailState {
    Unknown,
    At(u64),
    /// There is no such log any more.
    Gone(LogError),
}

impl OpenLog {
    /// The tail, from now on.
    fn follow_tail(self: &Arc<OpenLog>) -> watch::Receiver<TailState> {
        if !self.is_watched.swap(true, Ordering::AcqRel) {
            self.tail.send_replace(TailState::Unknown);
            let tail = self.tail.subscribe();
            tokio::spawn(watch_tail(self.clone()));
            return tail;
        }
        self.tail.subscribe()
    }
}

/// Keeps the tail of a log for as long as anybody follows it.
async fn watch_tail(log: Arc<OpenLog>) {
    loop {
        let pause = match log.handle.tail().await.map_err(LogError::from) {
            Ok(tail) => {
                log.tail.send_if_modified(|state| {
                    let is_new = !matches!(state, TailState::At(old) if *old == tail);
                    *state = TailState::At(tail);
                    is_new
                });
                match log
                    .handle
                    .wait(tail, None, WAIT)
                    .await
                    .map_err(LogError::from)
                {
                    Ok(_) => PAUSE,
                    // Its sequencer may answer on for a while.
                    Err(gone) if gone.is_gone() => return end_watch(&log, gone),
                    Err(_) => PAUSE_AFTER_ERROR,
                }
            }
            Err(gone) if gone.is_gone() => return end_watch(&log, gone),
            // A sequencer that is gone, most often: there will be another.
            Err(_) => PAUSE_AFTER_ERROR,
        };
        sleep(pause).await;
        if log.tail.receiver_count() == 0 {
            log.is_watched.store(false, Ordering::Release);
            // Somebody may have come meanwhile, and have seen that it is watched.
            let comes_anew =
                || log.tail.receiver_count() > 0 && !log.is_watched.swap(true, Ordering::AcqRel);
            if !comes_anew() {
                return;
            }
        }
    }
}

fn end_watch(log: &OpenLog, gone: LogError) {
    log.tail.send_replace(TailState::Gone(gone));
    log.is_watched.store(false, Ordering::Release);
}

/// The first position of a follower.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FollowFrom {
    /// The first position that is not trimmed.
    Begin,
    /// The tail: only what comes.
    Tail,
    /// A position, of the log or its tail.
    Position(u64),
}

/// Something that a follower is sent.
pub(crate) enum FollowEvent {
    /// Records, each with its position.
    Records(Vec<(u64, Bytes)>),
    /// Nothing for a while.
    Quiet,
    /// It ends.
    Ended(LogError),
}

/// The form in which a door sends events.
pub(crate) trait FollowForm: Send + 'static {
    /// A message.
    type Item: Send + 'static;

    /// The message of an event, and its bytes on the way; none if the door does not send it.
    fn item(event: FollowEvent) -> Option<(Self::Item, usize)>;
}

/// A client that follows a log.
pub(crate) struct Follower {
    gateway: Arc<LogGateway>,
    target: LogTarget,
    log: Arc<OpenLog>,
    /// Only records of this tag, and those positions of them that were found.
    stream: Option<(u64, StreamPart)>,
    position: u64,
    tail: watch::Receiver<TailState>,
    _place: FollowerPlace,
}

/// A place among the followers, and in their count.
struct FollowerPlace {
    figures: Arc<LogDoorFigures>,
    _permit: OwnedSemaphorePermit,
}

impl FollowerPlace {
    fn take(gateway: &LogGateway) -> Result<FollowerPlace, LogError> {
        let Ok(permit) = gateway.followers.clone().try_acquire_owned() else {
            let text = format!(
                "{FOLLOWERS_MAX} clients follow logs through this node, which is the most: follow through another node"
            );
            return Err(LogError::of(ErrorCode::Busy, text));
        };
        let figures = gateway.figures.clone();
        figures.followers.fetch_add(1, Ordering::Relaxed);
        Ok(FollowerPlace {
            figures,
            _permit: permit,
        })
    }
}

impl Drop for FollowerPlace {
    fn drop(&mut self) {
        self.figures.followers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Follower {
    /// Finds the log, the position in it, and a place among the followers.
    pub(crate) async fn begin(
        gateway: &Arc<LogGateway>,
        target: LogTarget,
        (from, tag): (FollowFrom, Option<u64>),
        until: Instant,
    ) -> Result<Follower, LogError> {
        let place = FollowerPlace::take(gateway)?;
        let stat = gateway.show(&target, until).await?;
        // It is the log of that name as it is now, not one that was deleted.
        let tail = gateway.tail(&target, until).await?;
        let position = match from {
            FollowFrom::Begin => stat.trim,
            FollowFrom::Tail => tail,
            FollowFrom::Position(position) if position > tail => {
                return Err(LogError::past_tail(&target.name, position, tail));
            }
            FollowFrom::Position(position) if position < stat.trim => {
                return Err(LogError::trimmed(&target.name, position, stat.trim));
            }
            FollowFrom::Position(position) => position,
        };
        let log = gateway.open(&target, until).await?;
        Ok(Follower {
            gateway: gateway.clone(),
            tail: log.follow_tail(),
            target,
            log,
            stream: tag.map(|tag| (tag, StreamPart::nothing_below(position))),
            position,
            _place: place,
        })
    }

    /// Sends events until the client has gone or the log is gone. False if the client does not take what it is sent.
    pub(crate) async fn run<F: FollowForm>(
        mut self,
        items: mpsc::Sender<F::Item>,
        mut progress: mpsc::UnboundedReceiver<usize>,
    ) -> bool {
        loop {
            let next = {
                let mut next = std::pin::pin!(self.next());
                loop {
                    tokio::select! {
                        next = &mut next => break next,
                        () = items.closed() => return true,
                        () = sleep(HEARTBEAT) => {}
                    }
                    // It is small, and one at a time waits.
                    if let Some((item, _)) = F::item(FollowEvent::Quiet)
                        && let Err(mpsc::error::TrySendError::Closed(_)) = items.try_send(item)
                    {
                        return true;
                    }
                }
            };
            let (event, next, mut part) = match next {
                Ok(batch) => {
                    let LogBatch {
                        records,
                        next,
                        part,
                        ..
                    } = batch;
                    (FollowEvent::Records(records), next, part)
                }
                Err(error) => {
                    if let Some((item, _)) = F::item(FollowEvent::Ended(error)) {
                        let _gone = items.send(item).await;
                    }
                    return true;
                }
            };
            self.position = next;
            let Some((item, bytes)) = F::item(event) else {
                continue;
            };
            part.grow_to(bytes);
            // Signs of life that have left are not of these bytes.
            while progress.try_recv().is_ok() {}
            if items.send(item).await.is_err() {
                return true;
            }
            if !is_taken(&mut part, &mut progress, bytes).await {
                return false;
            }
        }
    }

    /// The next records, waited for. An error ends it.
    async fn next(&mut self) -> Result<LogBatch, LogError> {
        match self.stream.is_some() {
            false => self.next_of_all().await,
            true => self.next_of_stream().await,
        }
    }

    /// The next records of the stream. Each follower of one waits at the sequencer by itself.
    async fn next_of_stream(&mut self) -> Result<LogBatch, LogError> {
        let Some((tag, part)) = &mut self.stream else {
            return Err(LogError::of(ErrorCode::Internal, "no stream is followed"));
        };
        let mut position = self.position;
        loop {
            let until = Instant::now() + REQUEST_MAX;
            if part.positions.is_empty() {
                // From its end, however long it is: begun anew it would not come further. The client's end ends it.
                let until = Instant::now() + WALK_MAX;
                let walk = self
                    .gateway
                    .walk(&self.log, (*tag, position), WALKED_MAX, until);
                match walk.await {
                    Ok(found) => *part = found,
                    Err(error) if is_over(&error) => return Err(error),
                    Err(_) => {
                        sleep(PAUSE_AFTER_ERROR).await;
                        continue;
                    }
                }
            }
            if part.positions.is_empty() {
                position = part.next;
                wait_for(&self.log, position, *tag).await?;
                continue;
            }
            let bounds = batch_bounds(until);
            let read = self
                .gateway
                .read_part(&self.log, part, position, bounds)
                .await;
            match self.gateway.say_begin(&self.target, read, until).await {
                Ok(batch) if batch.records.is_empty() => position = batch.next,
                Ok(batch) => return Ok(batch),
                Err(error) if is_over(&error) => return Err(error),
                Err(_) => sleep(PAUSE_AFTER_ERROR).await,
            }
        }
    }

    async fn next_of_all(&mut self) -> Result<LogBatch, LogError> {
        let mut position = self.position;
        loop {
            let tail = match &*self.tail.borrow_and_update() {
                TailState::At(tail) => *tail,
                TailState::Unknown => position,
                TailState::Gone(error) => return Err(error.clone()),
            };
            if tail <= position {
                if self.tail.changed().await.is_err() {
                    return Err(LogError::of(ErrorCode::Stopping, "the node is stopping"));
                }
                continue;
            }
            let until = Instant::now() + REQUEST_MAX;
            let bounds = batch_bounds(until);
            let read = self.gateway.read_below(&self.log, (position, tail), bounds);
            match self
                .gateway
                .say_begin(&self.target, read.await, until)
                .await
            {
                Ok(batch) if batch.records.is_empty() => position = batch.next,
                Ok(batch) => return Ok(batch),
                Err(error) if is_over(&error) => return Err(error),
                // Nobody answers at present, or others have the memory: the next try may find them.
                Err(_) => sleep(PAUSE_AFTER_ERROR).await,
            }
        }
    }
}

/// Waits for a record of a tag at a position or above.
async fn wait_for(log: &OpenLog, position: u64, tag: u64) -> Result<(), LogError> {
    loop {
        match log.handle.wait(position, Some(tag), WAIT).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => {
                let error = LogError::from(error);
                if is_over(&error) {
                    return Err(error);
                }
                sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

fn batch_bounds(until: Instant) -> ReadBounds {
    ReadBounds {
        records: BATCH_RECORDS,
        bytes: BATCH_BYTES,
        until,
    }
}

/// Trying again is of no use.
fn is_over(error: &LogError) -> bool {
    matches!(error.code, ErrorCode::NotFound | ErrorCode::Lost)
}
