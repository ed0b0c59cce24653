//! The changes that a consumer makes, and the replay that shows it what they did.

use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_log::Position;
use staves_wire::ErrorCode;

use super::items::{ItemState, QueueItems};
use super::record::{CLAIMS_MAX, ItemClaim, QueueChange, QueueRecord, QueueStep};
use super::{CURSOR_EVERY, HANDED_MAX, LOOK_MAX, LogQueue, QueueItem, claims_of, wall_ms};
use crate::client::senseless;
use crate::error::ClientError;
use crate::log::handle::LogSlot;

impl LogQueue {
    /// Appends a change, and replays the stream up to it. Returns the claims that it took effect on; of a take, by its own position.
    pub(super) async fn change(
        &mut self,
        step: QueueStep,
        span: Duration,
        claims: Vec<ItemClaim>,
    ) -> Result<Vec<ItemClaim>, ClientError> {
        self.change_at(step, wall_ms(), span, claims).await
    }

    pub(super) async fn change_at(
        &mut self,
        step: QueueStep,
        at_ms: u64,
        span: Duration,
        claims: Vec<ItemClaim>,
    ) -> Result<Vec<ItemClaim>, ClientError> {
        let mut done = Vec::new();
        for part in claims.chunks(CLAIMS_MAX) {
            let record = QueueRecord::Change(QueueChange {
                step,
                at_ms,
                for_ms: span.as_millis() as u32,
                consumer: self.consumer,
                claims: part.to_vec(),
            });
            let record = [record.encoded()];
            let appended = self.log.append_tagged(&record, &[self.tag]).await;
            let position = appended.map_err(|error| match done.is_empty() {
                true => error,
                false => in_part(&error),
            })?;
            let ends = matches!(step, QueueStep::Acknowledge | QueueStep::Discard);
            let effects = self.catch_up(Some(position)).await;
            let effects = effects.map_err(|error| in_part(&error))?;
            // The cursor passed it already: the items are no more.
            let effects = effects.unwrap_or_else(|| vec![ends; part.len()]);
            let took_effect = part.iter().zip(effects).filter(|(_, effect)| *effect);
            done.extend(took_effect.map(|(claim, _)| ItemClaim {
                item: claim.item,
                token: match step {
                    QueueStep::Take => position,
                    _ => claim.token,
                },
            }));
        }
        Ok(done)
    }

    /// Replays what came since: all that was acknowledged before this was called. Returns what the record at `watched` took effect on; none if it
    /// was trimmed meanwhile.
    pub(super) async fn catch_up(
        &mut self,
        watched: Option<Position>,
    ) -> Result<Option<Vec<bool>>, ClientError> {
        let effects = self.replay_on(watched).await?;
        let mut fetched = None;
        while let Some((from, later)) = self.items.to_fetch() {
            if fetched.is_some_and(|last| from <= last) {
                break;
            }
            if let Err(error) = self.fetch(from, later).await {
                // Those that are known go on.
                if self.items.iter().next().is_none() {
                    return Err(error);
                }
                tracing::debug!(log = %self.log.name(), %error, "later items of a queue were not read");
                break;
            }
            fetched = Some(from);
        }
        Ok(effects)
    }

    async fn replay_on(
        &mut self,
        watched: Option<Position>,
    ) -> Result<Option<Vec<bool>>, ClientError> {
        let mut replay = self.log.replay(self.tag, self.next).await?;
        // All that is trimmed is acknowledged, or was given up by hand.
        self.items.forget_below(replay.trim());
        let mut effects = None;
        while let Some((position, bytes)) = replay.next().await? {
            let record = self.decoded(position, bytes)?;
            let applied = self.items.apply(position, &record);
            if Some(position) == watched {
                effects = Some(applied);
            }
            self.next = position + 1;
        }
        self.next = self.next.max(replay.tail());
        Ok(effects)
    }

    /// Replays the stream from the first item that was left out. Nothing changes here before the last record of it.
    async fn fetch(&mut self, from: Position, mut later: QueueItems) -> Result<(), ClientError> {
        let mut replay = self.log.replay(self.tag, from).await?;
        while let Some((position, bytes)) = replay.next().await? {
            let record = self.decoded(position, bytes)?;
            later.apply(position, &record);
            if position >= self.next {
                self.items.apply(position, &record);
                self.next = position + 1;
            }
        }
        self.next = self.next.max(replay.tail());
        self.items.fetched(later);
        Ok(())
    }

    fn decoded(&self, position: Position, bytes: Bytes) -> Result<QueueRecord, ClientError> {
        QueueRecord::decoded(bytes).ok_or_else(|| self.foreign(position))
    }

    fn foreign(&self, position: Position) -> ClientError {
        let text = format!(
            "position {position} of log '{}' bears tag {}, and is no record of a queue: give it up ('staves log punch {} --at {position}'), and use a tag of its own for each queue",
            self.log.name(),
            self.tag,
            self.log.name(),
        );
        ClientError::of(ErrorCode::Refused, text)
    }

    /// Items that can be taken now, the oldest, or some of the oldest where others came first.
    pub(super) fn ready_claims(&self, at_ms: u64, most: usize) -> Vec<ItemClaim> {
        let ready = self.items.iter().filter(|(_, item)| item.is_ready(at_ms));
        let ready: Vec<Position> = ready
            .map(|(position, _)| position)
            .take(self.spread - 1 + most)
            .collect();
        let others = ready.len().saturating_sub(most).min(self.spread - 1);
        let first = match others {
            0 => 0,
            others => rand::random_range(0..=others),
        };
        let chosen = ready.get(first..).unwrap_or_default();
        claims_of(chosen.get(..most).unwrap_or(chosen))
    }

    /// Items that a take of this consumer holds whose answer never came.
    pub(super) fn unsure_claims(&mut self, at_ms: u64, most: usize) -> Vec<ItemClaim> {
        let forget = self.options.lease + Duration::from_secs(60);
        self.unsure = self.unsure.filter(|since| since.elapsed() < forget);
        if self.unsure.is_none() {
            return Vec::new();
        }
        let mut claims = Vec::new();
        for (item, state) in self.items.iter() {
            let Some(holder) = state.holder else { continue };
            let handed = self.handed.contains(&(holder.token, item));
            let is_own = holder.consumer == self.consumer && !handed;
            if is_own && at_ms < state.free_ms && claims.len() < most {
                let token = holder.token;
                claims.push(ItemClaim { item, token });
            }
        }
        claims
    }

    /// The time until a lease ends or a pause is over.
    pub(super) fn until_free(&self, at_ms: u64) -> Duration {
        let waiting = |item: &ItemState| !item.is_spent() && item.free_ms > at_ms;
        let items = self.items.iter().filter(|(_, item)| waiting(item));
        let first = items.map(|(_, item)| item.free_ms - at_ms).min();
        first.map_or(LOOK_MAX, |ms| Duration::from_millis(ms).min(LOOK_MAX))
    }

    /// The items of claims, with their bytes. Those whose records were given up are gone.
    pub(super) async fn handed_out(
        &mut self,
        claims: Vec<ItemClaim>,
        lease_end: Instant,
    ) -> Result<Vec<QueueItem>, ClientError> {
        let read = |claim: ItemClaim| {
            let log = self.log.clone();
            let read = tokio::spawn(async move { log.read(claim.item).await });
            (claim, read)
        };
        let reads: Vec<_> = claims.into_iter().map(read).collect();
        let mut taken = Vec::new();
        for (claim, read) in reads {
            let slot = read.await;
            let slot = slot.map_err(|error| senseless("a read", &error.to_string()))??;
            let deliveries = self.items.get(claim.item).map(|item| item.deliveries);
            match (item_of(slot), deliveries) {
                (Some(item), Some(deliveries)) => taken.push(QueueItem {
                    position: claim.item,
                    token: claim.token,
                    deliveries,
                    lease_end,
                    item,
                }),
                _ => self.items.remove(claim.item),
            }
        }
        if self.handed.len() >= HANDED_MAX {
            let held = |item: Position| Some(self.items.get(item)?.holder?.token);
            self.handed
                .retain(|(token, item)| held(*item) == Some(*token));
        }
        let handed = taken.iter().map(|item| (item.token, item.position));
        self.handed.extend(handed);
        Ok(taken)
    }

    pub(super) async fn item(&self, position: Position) -> Result<Option<Bytes>, ClientError> {
        Ok(item_of(self.log.read(position).await?))
    }

    /// Items have ended: the cursor follows now and then. It is no error if it does not, for the next one goes further.
    pub(super) async fn note_ended(&mut self, count: usize) {
        self.ended += count;
        if self.ended >= CURSOR_EVERY
            && let Err(error) = self.move_cursor().await
        {
            tracing::debug!(log = %self.log.name(), %error, "a queue's cursor was not moved");
        }
    }
}

/// The error of a change that is in the log, in part or whole: nobody may take it for one that is not.
fn in_part(error: &ClientError) -> ClientError {
    let text = format!("a change of a queue may have been done, and was not seen: {error}");
    ClientError::of(ErrorCode::Deadline, text)
}

fn item_of(slot: LogSlot) -> Option<Bytes> {
    let LogSlot::Record(record) = slot else {
        return None;
    };
    match QueueRecord::decoded(record)? {
        QueueRecord::Push { item, .. } => Some(item),
        QueueRecord::Change(_) => None,
    }
}
