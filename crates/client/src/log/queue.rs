//! A work queue that programs share through a stream of a log: items are pushed, taken for a time, and acknowledged.
//!
//! **Order decides.** A push, a take and an acknowledgement are records. Each consumer replays the stream, so that all agree on the
//! holder of an item: of two takes the one that comes first in the log gets it. Nothing is appended under a condition, so that pushes and takes
//! fail nobody's append; one whose take came second takes other items.
//!
//! **Time.** A take bears the wall clock of its consumer and the end of its lease. Another consumer's take gets the item if *its* clock is a second
//! past that end. So leases hold as long as the clocks of consumers differ by less than a second. One whose clock is fast by more takes items
//! early, and others get what it holds late; one whose clock is slow loses its items early. Neither loses an item, and the acknowledgement of a
//! consumer that lost its item is refused. A consumer itself counts its lease by a clock that nobody sets ([`QueueItem::lease_end`]).
//!
//! **At least once.** An item is delivered again until a consumer acknowledges it, or it was delivered as often as its producer allows: then it is
//! dead, and stays so until it is discarded or revived.

mod items;
mod record;
mod replayed;

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use staves_log::Position;
use staves_log::service::APPEND_BYTES_MAX as LOG_BATCH_BYTES_MAX;
use staves_wire::ErrorCode;

use self::items::QueueItems;
use self::record::{ConsumerId, ItemClaim, PUSH_HEAD_BYTES, QueueRecord, QueueStep};
use super::calls::after;
use super::handle::LogHandle;
use super::stream_cursor::StreamCursor;
use crate::client::Client;
use crate::error::ClientError;

/// Most items that a consumer knows of, some 100 bytes each: the oldest. It comes to the others as it goes on.
const ITEMS_MAX: usize = 1 << 18;
/// Most items of one take.
pub const QUEUE_TAKE_MAX: usize = 256;
/// The longest lease.
const LEASE_MAX: Duration = Duration::from_secs(12 * 3600);
/// The cursor follows after so many ends of items.
const CURSOR_EVERY: usize = 256;
/// So many items that were handed out are remembered before those that ended are forgotten.
const HANDED_MAX: usize = 4096;
/// Items that a take is spread over when others come first.
const SPREAD_MAX: usize = 64;
/// The longest wait between two looks at leases.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// The rules of a producer and consumer of a queue.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// The time that a consumer has for an item, from a second to 12 hours. It can be renewed.
    pub lease: Duration,
    /// Most deliveries of an item that is pushed here: at least 1.
    pub deliveries_max: u32,
}

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        QueueOptions {
            lease: Duration::from_secs(30),
            deliveries_max: 16,
        }
    }
}

/// A producer and consumer of a queue.
#[derive(Debug)]
pub struct LogQueue {
    log: LogHandle,
    tag: u64,
    options: QueueOptions,
    consumer: ConsumerId,
    items: QueueItems,
    /// Records of the stream below are in `items`.
    next: Position,
    /// Items that the next take is spread over.
    spread: usize,
    /// The items that were handed out, by their takes.
    handed: BTreeSet<(Position, Position)>,
    /// A take may be in the log without anybody knowing, and hold items of this consumer until then.
    unsure: Option<Instant>,
    cursor: StreamCursor,
    /// Items that ended since the cursor was moved.
    ended: usize,
}

/// An item that a consumer holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueItem {
    /// Its position in the log, which is its number.
    pub position: Position,
    /// The position of the take that it is held by: it rises with each delivery.
    pub token: Position,
    /// The number of its deliveries, this one included. It counts takes, also those whose consumer never saw the item.
    pub deliveries: u32,
    /// The end of the lease.
    pub lease_end: Instant,
    /// Its bytes.
    pub item: Bytes,
}

/// The contents of a queue, as one consumer has replayed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueStat {
    /// Items that can be taken.
    pub ready: usize,
    /// Items that a consumer holds, or that were given back and wait.
    pub held: usize,
    /// Items that were delivered as often as they may be.
    pub dead: usize,
    /// The position of the oldest item; all below is acknowledged. None if all is.
    pub oldest: Option<Position>,
    /// There are more items than a consumer counts.
    pub is_more: bool,
}

impl LogQueue {
    /// Opens the queue of a log's tag. Its cursor, `queue-` and the tag, is made if there is none, so that the log's rules for what is kept
    /// leave what is not acknowledged.
    ///
    /// # Errors
    /// The options are out of bounds, there is no such log, it has 64 cursors already, or it discards or refuses what is more than it keeps.
    pub async fn open(
        client: &Client,
        pool: Option<&str>,
        log: &str,
        tag: u64,
        options: QueueOptions,
    ) -> Result<LogQueue, ClientError> {
        let fits = (Duration::from_secs(1)..=LEASE_MAX).contains(&options.lease);
        if !fits || options.deliveries_max == 0 {
            let text = format!(
                "a lease of {:?} and {} deliveries: a lease has a second to {} hours, and an item 1 delivery or more",
                options.lease,
                options.deliveries_max,
                LEASE_MAX.as_secs() / 3600
            );
            return Err(ClientError::of(ErrorCode::Refused, text));
        }
        let handle = client.open_log(pool, log).await?;
        let name = format!("queue-{tag}");
        let cursor = StreamCursor::open(client, pool, &handle, name).await?;
        Ok(LogQueue {
            log: handle,
            tag,
            options,
            consumer: rand::random(),
            items: QueueItems::new(ITEMS_MAX),
            next: cursor.at(),
            spread: 1,
            handed: BTreeSet::new(),
            unsure: None,
            cursor,
            ended: 0,
        })
    }

    /// Most items of one push.
    pub fn batch_items_max(&self) -> usize {
        self.log.batch_records_max()
    }

    /// Pushes items, all of them or none. They are on all copies once this returns the first one's position; the others follow it.
    ///
    /// # Errors
    /// After one whose [`ClientError::is_uncertain`] holds, they may be in the queue.
    pub async fn push(&self, items: &[Bytes]) -> Result<Position, ClientError> {
        let push = |item: &Bytes| {
            let record = QueueRecord::Push {
                deliveries_max: self.options.deliveries_max,
                item: item.clone(),
            };
            record.encoded()
        };
        let bytes: usize = items.iter().map(Bytes::len).sum();
        let bytes = bytes + PUSH_HEAD_BYTES * items.len();
        if bytes > LOG_BATCH_BYTES_MAX {
            let text = format!(
                "items of {bytes} bytes with their heads: one push has {LOG_BATCH_BYTES_MAX} at most; push fewer at a time, or smaller ones"
            );
            return Err(ClientError::of(ErrorCode::TooLarge, text));
        }
        let records: Vec<Bytes> = items.iter().map(push).collect();
        self.log.append_tagged(&records, &[self.tag]).await
    }

    /// Takes up to `most` items, the oldest ones if no other consumer takes at the same time; waits up to `up_to` for one. Returns none if none
    /// came.
    ///
    /// # Errors
    /// After one whose [`ClientError::is_uncertain`] holds, this consumer may hold items: its next take hands them out. A record of the stream may
    /// be none of a queue's: the error names it.
    pub async fn take(
        &mut self,
        most: usize,
        up_to: Duration,
    ) -> Result<Vec<QueueItem>, ClientError> {
        let most = most.clamp(1, QUEUE_TAKE_MAX);
        let end = after(up_to);
        loop {
            self.catch_up(None).await?;
            let (began, at_ms) = (Instant::now(), wall_ms());
            let lease = self.options.lease;
            let unsure = self.unsure_claims(at_ms, most);
            let was_unsure = self.unsure;
            let taken = if unsure.is_empty() {
                let ready = self.ready_claims(at_ms, most);
                if ready.is_empty() {
                    let now = Instant::now();
                    if now >= end {
                        return Ok(Vec::new());
                    }
                    let wait = self.until_free(at_ms).min(end - now);
                    self.log.wait(self.next, Some(self.tag), wait).await?;
                    continue;
                }
                self.take_ready(at_ms, ready).await?
            } else {
                // They are held since an unknown time: a new lease says how long.
                self.change_at(QueueStep::Renew, at_ms, lease, unsure)
                    .await?
            };
            // Items that took so long are held with a new lease, or have gone to another.
            if began.elapsed() < lease {
                let taken = self.handed_out(taken, began + lease).await?;
                self.unsure = was_unsure;
                if !taken.is_empty() {
                    return Ok(taken);
                }
            }
            if Instant::now() >= end {
                return Ok(Vec::new());
            }
        }
    }

    async fn take_ready(
        &mut self,
        at_ms: u64,
        ready: Vec<ItemClaim>,
    ) -> Result<Vec<ItemClaim>, ClientError> {
        // Until its items are handed out; it stays so if this is given up before.
        self.unsure = Some(Instant::now());
        let lease = self.options.lease;
        let taken = self.change_at(QueueStep::Take, at_ms, lease, ready).await?;
        self.spread = match taken.is_empty() {
            true => (self.spread * 2).min(SPREAD_MAX),
            false => (self.spread / 2).max(1),
        };
        Ok(taken)
    }

    /// Acknowledges items: they are done. Returns those that were acknowledged, durably. Another consumer has taken the others, whose lease had run
    /// out, or they are gone.
    ///
    /// # Errors
    /// After one whose [`ClientError::is_uncertain`] holds, they may be acknowledged; those that are not are delivered again.
    pub async fn acknowledge(&mut self, items: &[QueueItem]) -> Result<Vec<Position>, ClientError> {
        let claims = items.iter().map(QueueItem::claim).collect();
        let done = self.change(QueueStep::Acknowledge, Duration::ZERO, claims);
        let done = done.await?;
        self.note_ended(done.len()).await;
        Ok(done.iter().map(|claim| claim.item).collect())
    }

    /// Begins the lease of items anew. Those that another consumer has taken meanwhile are dropped from the list.
    pub async fn renew(&mut self, items: &mut Vec<QueueItem>) -> Result<(), ClientError> {
        let (began, lease) = (Instant::now(), self.options.lease);
        let claims = items.iter().map(QueueItem::claim).collect();
        let renewed = self.change(QueueStep::Renew, lease, claims).await?;
        items.retain(|item| renewed.contains(&item.claim()));
        for item in items {
            item.lease_end = began + lease;
        }
        Ok(())
    }

    /// Gives items back, to be taken again after a pause of up to 12 hours. Those that another consumer has taken meanwhile are left alone. Returns
    /// those that were given back.
    pub async fn give_back(
        &mut self,
        items: &[QueueItem],
        pause: Duration,
    ) -> Result<Vec<Position>, ClientError> {
        let claims = items.iter().map(QueueItem::claim).collect();
        let given = self.change(QueueStep::GiveBack, pause.min(LEASE_MAX), claims);
        Ok(given.await?.iter().map(|claim| claim.item).collect())
    }

    /// The oldest items that were delivered as often as they may be, at most so many: each with the number of its deliveries, and its bytes.
    pub async fn dead(&mut self, most: usize) -> Result<Vec<(Position, u32, Bytes)>, ClientError> {
        let at_ms = wall_ms();
        self.catch_up(None).await?;
        let dead = self.items.iter().filter(|(_, item)| item.is_dead(at_ms));
        let dead = dead.map(|(position, item)| (position, item.deliveries));
        let dead: Vec<(Position, u32)> = dead.take(most.min(QUEUE_TAKE_MAX)).collect();
        let mut found = Vec::new();
        for (position, deliveries) in dead {
            if let Some(item) = self.item(position).await? {
                found.push((position, deliveries, item));
            }
        }
        Ok(found)
    }

    /// Ends dead items. Returns those that were dead.
    pub async fn discard(&mut self, dead: &[Position]) -> Result<Vec<Position>, ClientError> {
        let done = self.change(QueueStep::Discard, Duration::ZERO, claims_of(dead));
        let done = done.await?;
        self.note_ended(done.len()).await;
        Ok(done.iter().map(|claim| claim.item).collect())
    }

    /// Makes dead items ready again, as if they had not been delivered. Returns those that were dead.
    pub async fn revive(&mut self, dead: &[Position]) -> Result<Vec<Position>, ClientError> {
        let revived = self.change(QueueStep::Revive, Duration::ZERO, claims_of(dead));
        Ok(revived.await?.iter().map(|claim| claim.item).collect())
    }

    /// The contents of the queue, with all that was acknowledged before this was called.
    pub async fn stat(&mut self) -> Result<QueueStat, ClientError> {
        self.catch_up(None).await?;
        let at_ms = wall_ms();
        let mut stat = QueueStat {
            oldest: self.items.oldest(),
            is_more: self.items.left_out.is_some(),
            ..QueueStat::default()
        };
        for (_, item) in self.items.iter() {
            let count = match (item.is_ready(at_ms), item.is_dead(at_ms)) {
                (true, _) => &mut stat.ready,
                (_, true) => &mut stat.dead,
                _ => &mut stat.held,
            };
            *count += 1;
        }
        Ok(stat)
    }

    /// Moves the queue's cursor to the oldest item: what lies below may be trimmed, if the log's rules for what is kept say so. It follows by
    /// itself after some acknowledgements.
    pub async fn move_cursor(&mut self) -> Result<(), ClientError> {
        let to = self.items.oldest().unwrap_or(self.next);
        self.cursor.advance(to).await?;
        self.ended = 0;
        Ok(())
    }
}

impl QueueItem {
    fn claim(&self) -> ItemClaim {
        ItemClaim {
            item: self.position,
            token: self.token,
        }
    }
}

fn claims_of(items: &[Position]) -> Vec<ItemClaim> {
    let claim = |item: &Position| ItemClaim {
        item: *item,
        token: 0,
    };
    items.iter().map(claim).collect()
}

/// The wall clock, in milliseconds since 1970.
fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
