//! A map that clients share through a log, in the manner of Tango: its state is the replay of one stream.
//!
//! **Transactions.** Each runs on the map as this client has replayed it, and what it writes is one record, appended under the condition that
//! the stream has grown no further. So a transaction that is in the log saw the state of its position: the order of the log is the order of
//! transactions. One that lost to another is run again, on the newer state.
//!
//! **Not here.** Snapshots: a client reads the stream from its beginning, so that the log must keep it.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use staves_log::{AppendCondition, Position};
use staves_wire::ErrorCode;

use super::fields::{put, take, take_byte, take_u32};
use super::handle::{ConditionalAppend, LogHandle};
use crate::error::ClientError;

/// Most times that a transaction is run. Each time another one of the map came first.
const TRIES_MAX: usize = 256;

/// The keys and values of the map.
type MapEntries = BTreeMap<Bytes, Bytes>;
/// New values by key; none removes the key.
type MapWrites = BTreeMap<Bytes, Option<Bytes>>;

/// A client's copy of a map that a stream of a log holds.
#[derive(Debug)]
pub struct LogMap {
    log: LogHandle,
    tag: u64,
    entries: MapEntries,
    /// Records of the stream below are in `entries`.
    next: Position,
}

/// A transaction while it runs: it sees the map, and its own writes.
#[derive(Debug)]
pub struct MapTransaction<'a> {
    entries: &'a MapEntries,
    writes: MapWrites,
}

impl MapTransaction<'_> {
    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&Bytes> {
        match self.writes.get(key) {
            Some(written) => written.as_ref(),
            None => self.entries.get(key),
        }
    }

    /// Gives a key a value.
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.writes.insert(key.into(), Some(value.into()));
    }

    /// Removes a key.
    pub fn remove(&mut self, key: impl Into<Bytes>) {
        self.writes.insert(key.into(), None);
    }
}

impl LogMap {
    /// The map of one tag of a log. It is empty here until [`LogMap::catch_up`], or the first transaction.
    pub fn new(log: LogHandle, tag: u64) -> LogMap {
        LogMap {
            log,
            tag,
            entries: MapEntries::new(),
            next: 0,
        }
    }

    /// The map as it was replayed last. Others may have changed it since.
    pub fn entries(&self) -> &BTreeMap<Bytes, Bytes> {
        &self.entries
    }

    /// Replays what came since: all that was acknowledged before this was called.
    ///
    /// # Errors
    /// The log was trimmed past what this client has replayed, or a record of the stream is none of a map's.
    pub async fn catch_up(&mut self) -> Result<(), ClientError> {
        let mut replay = self.log.replay(self.tag, self.next).await?;
        if replay.trim() > self.next {
            let text = format!(
                "log '{}' is trimmed below {}, and the map of tag {} is replayed up to {}: what lies between is missing",
                self.log.name(),
                replay.trim(),
                self.tag,
                self.next
            );
            return Err(ClientError::of(ErrorCode::NotFound, text));
        }
        while let Some((position, record)) = replay.next().await? {
            let Some(writes) = decoded(record) else {
                let text = format!(
                    "position {position} of log '{}' bears tag {}, and is no record of a map: use a tag of its own for each",
                    self.log.name(),
                    self.tag
                );
                return Err(ClientError::of(ErrorCode::Refused, text));
            };
            self.apply(writes);
            self.next = position + 1;
        }
        self.next = self.next.max(replay.tail());
        Ok(())
    }

    /// Runs a transaction: `body` sees the map and says what to write, and is run again where another transaction came first. Returns what
    /// its last run returned, once its writes are on all copies; one without writes saw all that was acknowledged before it began.
    ///
    /// # Errors
    /// After one whose [`ClientError::is_uncertain`] holds, the writes may be in the map. `busy`: others came first too often.
    pub async fn transact<T>(
        &mut self,
        mut body: impl FnMut(&mut MapTransaction<'_>) -> T,
    ) -> Result<T, ClientError> {
        self.catch_up().await?;
        for _ in 0..TRIES_MAX {
            let mut transaction = MapTransaction {
                entries: &self.entries,
                writes: MapWrites::new(),
            };
            let result = body(&mut transaction);
            let writes = transaction.writes;
            if writes.is_empty() {
                return Ok(result);
            }
            let condition = AppendCondition {
                tag: Some(self.tag),
                tail: self.next,
            };
            let record = [encoded(&writes)];
            match self.log.append_if(condition, &record, &[self.tag]).await? {
                ConditionalAppend::At(position) => {
                    self.apply(writes);
                    self.next = position + 1;
                    return Ok(result);
                }
                ConditionalAppend::Failed(_) => self.catch_up().await?,
            }
        }
        let text = format!(
            "{TRIES_MAX} times in a row another transaction of the map in log '{}' came first: nothing was written; try again later",
            self.log.name()
        );
        Err(ClientError::of(ErrorCode::Busy, text))
    }

    fn apply(&mut self, writes: MapWrites) {
        for (key, value) in writes {
            match value {
                Some(value) => self.entries.insert(key, value),
                None => self.entries.remove(&key),
            };
        }
    }
}

/// The record of a transaction: its keys, each with a value or none. Lengths are 32 bits, little-endian.
fn encoded(writes: &MapWrites) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u32_le(writes.len() as u32);
    for (key, value) in writes {
        put(&mut out, key);
        out.put_u8(u8::from(value.is_some()));
        value.iter().for_each(|value| put(&mut out, value));
    }
    out.freeze()
}

/// The writes of a record; none if it is no transaction's.
fn decoded(mut record: Bytes) -> Option<MapWrites> {
    let count = take_u32(&mut record)?;
    let mut writes = MapWrites::new();
    for _ in 0..count {
        let key = take(&mut record)?;
        let value = match take_byte(&mut record)? {
            0 => None,
            1 => Some(take(&mut record)?),
            _ => return None,
        };
        writes.insert(key, value);
    }
    record.is_empty().then_some(writes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_read_as_it_was_written_and_nothing_else_is_one() {
        let writes: MapWrites = [
            (Bytes::from_static(b"a"), Some(Bytes::from_static(b"1"))),
            (Bytes::from_static(b"b"), None),
        ]
        .into();
        let record = encoded(&writes);
        assert_eq!(decoded(record.clone()), Some(writes));
        for end in 0..record.len() {
            assert_eq!(decoded(record.slice(..end)), None, "{end} bytes");
        }
        assert_eq!(decoded(Bytes::from_static(b"not of a map")), None);
    }
}
