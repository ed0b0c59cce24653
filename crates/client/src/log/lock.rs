//! A lock that programs share through a stream of a log, with a fencing token.
//!
//! **State.** The last record of the stream is the lock's state: who holds it, by which grant, for how long; or that nobody does. Each record is
//! appended under the condition that the stream has grown no further, so that it changes the state that its writer saw, or nothing.
//!
//! **Time.** No wall clock counts. A holder counts its lease from before it asked for it; one who waits takes the lock over when it has itself
//! watched the same record for the whole lease and a sixteenth more. So leases hold as long as no clock runs slower than others by that
//! part. Who comes new must watch a lease once before it can take it over.
//!
//! **Fencing.** A process can stand still, and find its lease over when it goes on; no lease helps against that. The token rises with each grant:
//! give it to whatever the lock guards, and have that refuse a token below the highest that it has seen.

use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use staves_log::{AppendCondition, Position};
use staves_wire::ErrorCode;

use super::calls::after;
use super::fields::{take_array, take_byte, take_u32, take_u64};
use super::handle::{ConditionalAppend, LogHandle};
use super::stream_cursor::StreamCursor;
use crate::client::Client;
use crate::error::ClientError;

/// The first bytes of each record: a lock's, of the first version.
const MAGIC: [u8; 2] = *b"L\x01";
/// The longest lease.
const LEASE_MAX: Duration = Duration::from_secs(3600);
/// A lease is watched for a part of it more: one of so many.
const MARGIN_PARTS: u32 = 16;
/// The cursor follows after so many renewals.
const CURSOR_EVERY: u32 = 64;

/// The number of a client of a lock, drawn at random.
type OwnerId = [u8; 16];

/// The state of a lock: the content of one record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LockState {
    Free,
    Held {
        owner: OwnerId,
        /// The position of the grant; none if it is this record's.
        grant: Option<Position>,
        lease_ms: u32,
    },
}

/// The last record of a lock's stream, as this client saw it.
#[derive(Clone, Copy, Debug)]
struct LockSight {
    /// Its position; none if there is no record, or none any more.
    position: Option<Position>,
    /// The highest position of the stream that the log knows, also of a record that was given up.
    last: Option<Position>,
    state: LockState,
    /// The log's tail: the stream has nothing between the record and this.
    tail: Position,
    /// The time since when this record is known here.
    since: Instant,
}

/// A client of a lock.
#[derive(Debug)]
pub struct LogLock {
    log: LogHandle,
    tag: u64,
    lease: Duration,
    owner: OwnerId,
    sight: Option<LockSight>,
    held: Option<LockGrant>,
    cursor: StreamCursor,
    /// Renewals since the cursor was moved.
    renewed: u32,
}

/// A grant of a lock to this client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockGrant {
    /// The fencing token: the position of the grant. Those of later grants are higher, whoever has them.
    pub token: Position,
    /// The end of the lease. Nobody else has the lock before.
    pub lease_end: Instant,
}

impl LogLock {
    /// Opens the lock of a log's tag. All clients of a lock give the same lease: a second to an hour. Its cursor, `lock-` and the tag, is made if
    /// there is none, so that the log's rules for what is kept leave the lock's state.
    ///
    /// # Errors
    /// The lease is out of bounds, there is no such log, it has 64 cursors already, or it discards or refuses what is more than it keeps.
    pub async fn open(
        client: &Client,
        pool: Option<&str>,
        log: &str,
        tag: u64,
        lease: Duration,
    ) -> Result<LogLock, ClientError> {
        if !(Duration::from_secs(1)..=LEASE_MAX).contains(&lease) {
            let text = format!(
                "a lease of {lease:?}: a lock's has a second to {} s",
                LEASE_MAX.as_secs()
            );
            return Err(ClientError::of(ErrorCode::Refused, text));
        }
        let handle = client.open_log(pool, log).await?;
        let name = format!("lock-{tag}");
        let cursor = StreamCursor::open(client, pool, &handle, name).await?;
        Ok(LogLock {
            log: handle,
            tag,
            lease,
            owner: rand::random(),
            sight: None,
            held: None,
            cursor,
            renewed: 0,
        })
    }

    /// The grant that this client holds, while its lease lasts.
    pub fn held(&self) -> Option<LockGrant> {
        self.held.filter(|grant| Instant::now() < grant.lease_end)
    }

    /// Takes the lock; waits up to `up_to` while another holds it. None if that did not suffice. One that is held here is renewed.
    ///
    /// # Errors
    /// After one whose [`ClientError::is_uncertain`] holds, this client may have the lock: its next call finds out.
    pub async fn lock(&mut self, up_to: Duration) -> Result<Option<LockGrant>, ClientError> {
        let end = after(up_to);
        loop {
            let asked = Instant::now();
            let sight = self.look().await?;
            if let Some(grant) = self.try_grant(asked, &sight).await? {
                self.keep_state(grant.token).await;
                // One that took too long is renewed, or another's by now.
                if Instant::now() < grant.lease_end {
                    return Ok(Some(grant));
                }
            }
            let now = Instant::now();
            if now >= end {
                return Ok(None);
            }
            let over = self.over_at(&sight);
            let wait = over.saturating_duration_since(now).min(end - now);
            self.log.wait(sight.tail, Some(self.tag), wait).await?;
        }
    }

    /// Begins the lease anew. None if this client does not hold the lock any more.
    pub async fn renew(&mut self) -> Result<Option<LockGrant>, ClientError> {
        loop {
            let asked = Instant::now();
            let sight = self.look().await?;
            let Some(token) = self.token_of(&sight) else {
                self.held = None;
                return Ok(None);
            };
            let written = self.write(&sight, self.held_state(Some(token))).await?;
            if let Some(position) = written {
                let grant = self.granted(token, asked);
                self.renewed += 1;
                if self.renewed >= CURSOR_EVERY {
                    self.keep_state(position).await;
                }
                return Ok(Some(grant));
            }
        }
    }

    /// Gives the lock back. False if this client did not hold it any more.
    pub async fn unlock(&mut self) -> Result<bool, ClientError> {
        self.held = None;
        loop {
            let sight = self.look().await?;
            if self.token_of(&sight).is_none() {
                return Ok(false);
            }
            if self.write(&sight, LockState::Free).await?.is_some() {
                return Ok(true);
            }
        }
    }

    /// Takes a lock that is free, that this client has, or whose lease it has seen run out.
    async fn try_grant(
        &mut self,
        asked: Instant,
        sight: &LockSight,
    ) -> Result<Option<LockGrant>, ClientError> {
        let own = self.token_of(sight);
        let is_over = Instant::now() >= self.over_at(sight);
        if own.is_none() && !is_over {
            return Ok(None);
        }
        let written = self.write(sight, self.held_state(own)).await?;
        Ok(written.map(|position| self.granted(own.unwrap_or(position), asked)))
    }

    fn granted(&mut self, token: Position, asked: Instant) -> LockGrant {
        let lease_end = asked + self.lease;
        let grant = LockGrant { token, lease_end };
        self.held = Some(grant);
        grant
    }

    /// The token of this client, if it is the holder.
    fn token_of(&self, sight: &LockSight) -> Option<Position> {
        match sight.state {
            LockState::Held { owner, grant, .. } if owner == self.owner => grant.or(sight.position),
            _ => None,
        }
    }

    fn held_state(&self, grant: Option<Position>) -> LockState {
        LockState::Held {
            owner: self.owner,
            grant,
            lease_ms: self.lease.as_millis() as u32,
        }
    }

    /// The time from which on this client may take the lock.
    fn over_at(&self, sight: &LockSight) -> Instant {
        let lease = match sight.state {
            LockState::Free => return sight.since,
            LockState::Held { lease_ms, .. } => Duration::from_millis(u64::from(lease_ms)),
        };
        sight.since + lease + lease / MARGIN_PARTS
    }

    /// The last record of the stream. The time of one that is known stays.
    async fn look(&mut self) -> Result<LockSight, ClientError> {
        // The last record lies no lower than the one that is known, nor than the cursor.
        let known = self.sight.and_then(|sight| sight.position);
        let from = known.unwrap_or_else(|| self.cursor.at());
        let mut last = self.log.replay_last(self.tag, from, 1).await?;
        let (tail, trim) = (last.tail(), last.trim());
        let found = last.next().await?;
        let (position, last, state) = match found {
            Some((position, record)) => {
                let state = self.decoded(position, record)?;
                (Some(position), Some(position), state)
            }
            None => {
                let end = self.log.end_of(Some(self.tag)).await?;
                let last = end.last.iter().copied().max();
                let state = match trim == 0 && last.is_none() {
                    true => LockState::Free,
                    // The last record was given up: somebody may hold the lock, with the lease that all give.
                    false => LockState::Held {
                        owner: OwnerId::default(),
                        grant: Some(0),
                        lease_ms: self.lease.as_millis() as u32,
                    },
                };
                (None, last, state)
            }
        };
        let same = |sight: &LockSight| {
            (sight.position, sight.last, sight.state) == (position, last, state)
        };
        let known = self.sight.filter(same);
        let sight = LockSight {
            position,
            last,
            state,
            tail,
            since: known.map_or_else(Instant::now, |sight| sight.since),
        };
        self.sight = Some(sight);
        Ok(sight)
    }

    /// Appends the next state. None if another one came first.
    async fn write(
        &self,
        sight: &LockSight,
        state: LockState,
    ) -> Result<Option<Position>, ClientError> {
        let condition = AppendCondition {
            tag: Some(self.tag),
            tail: sight.tail,
        };
        let record = [encoded(&state)];
        let appended = self.log.append_if(condition, &record, &[self.tag]).await?;
        Ok(match appended {
            ConditionalAppend::At(position) => Some(position),
            ConditionalAppend::Failed(_) => None,
        })
    }

    /// Moves the lock's cursor to a record of this client. It is no error if it stays, for then the log keeps more.
    async fn keep_state(&mut self, position: Position) {
        self.renewed = 0;
        // The lease is for whatever the lock guards.
        let moved = tokio::time::timeout(self.lease / 4, self.cursor.advance(position)).await;
        match moved {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(log = %self.log.name(), %error, "a lock's cursor was not moved");
            }
            Err(_) => {
                tracing::debug!(log = %self.log.name(), "a lock's cursor was not moved in time")
            }
        }
    }

    fn decoded(&self, position: Position, record: Bytes) -> Result<LockState, ClientError> {
        decoded(record).ok_or_else(|| {
            let text = format!(
                "position {position} of log '{}' bears tag {}, and is no record of a lock: give it up ('staves log punch {} --at {position}'), and use a tag of its own for each lock",
                self.log.name(),
                self.tag,
                self.log.name(),
            );
            ClientError::of(ErrorCode::Refused, text)
        })
    }
}

fn encoded(state: &LockState) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(&MAGIC);
    match state {
        LockState::Free => out.put_u8(0),
        LockState::Held {
            owner,
            grant,
            lease_ms,
        } => {
            out.put_u8(1 + u8::from(grant.is_some()));
            out.put_slice(owner);
            out.put_u32_le(*lease_ms);
            out.put_u64_le(grant.unwrap_or(0));
        }
    }
    out.freeze()
}

/// None if it is no record of a lock.
fn decoded(mut record: Bytes) -> Option<LockState> {
    if take_array(&mut record)? != MAGIC {
        return None;
    }
    let state = match take_byte(&mut record)? {
        0 => LockState::Free,
        kind @ (1 | 2) => {
            let owner = take_array(&mut record)?;
            let lease_ms = take_u32(&mut record)?;
            let grant = take_u64(&mut record)?;
            LockState::Held {
                owner,
                grant: (kind == 2).then_some(grant),
                lease_ms,
            }
        }
        _ => return None,
    };
    record.is_empty().then_some(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written_and_nothing_else_is_one() {
        let held = |grant| LockState::Held {
            owner: [7; 16],
            grant,
            lease_ms: 9,
        };
        for state in [LockState::Free, held(None), held(Some(5))] {
            let record = encoded(&state);
            assert_eq!(decoded(record.clone()), Some(state));
            for end in 0..record.len() {
                assert_eq!(decoded(record.slice(..end)), None, "{end} bytes");
            }
        }
        assert_eq!(decoded(Bytes::from_static(b"L\x01\x03")), None);
        assert_eq!(decoded(Bytes::from_static(b"not of a lock")), None);
    }
}
