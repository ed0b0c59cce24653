//! Records with ids that their producer gives: each is in the log once, also when the producer starts again and appends it again.
//!
//! **Window.** A producer is a stream. Its last records are read back when it is opened, and with them their ids; an append of an id that is among
//! them answers with the position that it has. Older ids are forgotten, and would be appended anew.
//!
//! **Exactly once.** An append has the condition that the stream has grown no further than was read. What an earlier start of the
//! producer had under way comes in before that, and is then found by its id; or its condition fails, for good. So two producers of one
//! stream at the same time are right, too, and slower.

use std::collections::{HashMap, HashSet, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};
use staves_log::service::APPEND_BYTES_MAX as LOG_BATCH_BYTES_MAX;
use staves_log::{AppendCondition, Position};
use staves_wire::ErrorCode;

use super::fields::{take_array, take_byte};
use super::handle::{ConditionalAppend, LogHandle};
use crate::error::ClientError;

/// The first bytes of each record: a producer's, of the first version.
const MAGIC: [u8; 2] = *b"P\x01";
/// Most bytes of an id.
pub const RECORD_ID_BYTES_MAX: usize = 64;
/// Most ids of a window.
const WINDOW_MAX: usize = 1 << 20;
/// Most times in a row that another producer of the stream comes first.
const TRIES_MAX: usize = 256;

/// A record with the id that its producer gave it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProducedRecord {
    /// The id: 1 to 64 bytes.
    pub id: Bytes,
    /// The record's bytes.
    pub value: Bytes,
}

/// A producer whose records have ids of their own.
#[derive(Debug)]
pub struct LogProducer {
    log: LogHandle,
    tag: u64,
    ids: IdWindow,
    /// Records of the stream below are in `ids`, as far as the window goes.
    next: Position,
}

/// The last ids of a stream, with their positions.
#[derive(Debug)]
struct IdWindow {
    most: usize,
    positions: HashMap<Bytes, Position>,
    order: VecDeque<(Position, Bytes)>,
}

impl ProducedRecord {
    /// The record of a log's bytes. None if no producer has written it.
    pub fn decode(record: &Bytes) -> Option<ProducedRecord> {
        let mut rest = record.clone();
        if take_array(&mut rest)? != MAGIC {
            return None;
        }
        let len = usize::from(take_byte(&mut rest)?);
        let fits = (1..=RECORD_ID_BYTES_MAX).contains(&len) && rest.len() >= len;
        let id = fits.then(|| rest.split_to(len))?;
        Some(ProducedRecord { id, value: rest })
    }

    fn encoded(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.encoded_bytes());
        out.put_slice(&MAGIC);
        out.put_u8(self.id.len() as u8);
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.value);
        out.freeze()
    }

    fn encoded_bytes(&self) -> usize {
        MAGIC.len() + 1 + self.id.len() + self.value.len()
    }

    fn check(&self) -> Result<(), ClientError> {
        if !(1..=RECORD_ID_BYTES_MAX).contains(&self.id.len()) {
            let text = format!(
                "an id of {} bytes: it has 1 to {RECORD_ID_BYTES_MAX}; give the hash of a longer one",
                self.id.len()
            );
            return Err(ClientError::of(ErrorCode::Refused, text));
        }
        if self.encoded_bytes() > LOG_BATCH_BYTES_MAX {
            let text = format!(
                "a record of {} bytes with its id: one has {LOG_BATCH_BYTES_MAX} at most; make it smaller",
                self.encoded_bytes()
            );
            return Err(ClientError::of(ErrorCode::TooLarge, text));
        }
        Ok(())
    }
}

impl LogProducer {
    /// Opens the producer of a log's tag, and reads its last records back: as many as the window has ids, 1 to 1,048,576.
    ///
    /// # Errors
    /// The window is out of bounds, or a record of the stream is none of a producer's.
    pub async fn open(log: LogHandle, tag: u64, window: usize) -> Result<LogProducer, ClientError> {
        if !(1..=WINDOW_MAX).contains(&window) {
            let text = format!("a window of {window} ids: it has 1 to {WINDOW_MAX}");
            return Err(ClientError::of(ErrorCode::Refused, text));
        }
        let mut producer = LogProducer {
            log,
            tag,
            ids: IdWindow::new(window),
            next: 0,
        };
        producer.catch_up().await?;
        Ok(producer)
    }

    /// Appends the records whose ids are not in the window, in their order, and returns the position of each of all. The records of one append
    /// of the log are in it all or none; a longer list is several appends. It has no more ids than the window, so that those of its first part
    /// are still known when it is appended again.
    ///
    /// # Errors
    /// `refused`: more ids than the window has. After any other, some of the first records may be in the log: append the same list again. `busy`: other producers came first too often.
    pub async fn append(
        &mut self,
        records: &[ProducedRecord],
    ) -> Result<Vec<Position>, ClientError> {
        records.iter().try_for_each(ProducedRecord::check)?;
        self.check_ids(records)?;
        let mut known = HashMap::<&Bytes, Position>::new();
        let (mut vain, mut rest) = (0, records);
        loop {
            while let Some((_, later)) = rest
                .split_first()
                .filter(|(r, _)| known.contains_key(&r.id))
            {
                rest = later;
            }
            let batch = self.missing(rest, &mut known);
            if batch.is_empty() {
                let position = |record: &ProducedRecord| known.get(&record.id).copied();
                return Ok(records.iter().filter_map(position).collect());
            }
            let condition = AppendCondition {
                tag: Some(self.tag),
                tail: self.next,
            };
            let encoded: Vec<Bytes> = batch.iter().map(|record| record.encoded()).collect();
            match self.log.append_if(condition, &encoded, &[self.tag]).await? {
                ConditionalAppend::At(first) => {
                    for (position, record) in (first..).zip(batch) {
                        known.insert(&record.id, position);
                        self.ids.insert(position, &record.id);
                    }
                    self.next = first + encoded.len() as u64;
                    vain = 0;
                }
                ConditionalAppend::Failed(_) => {
                    vain += 1;
                    if vain > TRIES_MAX {
                        return Err(self.busy());
                    }
                    self.catch_up().await?;
                }
            }
        }
    }

    fn check_ids(&self, records: &[ProducedRecord]) -> Result<(), ClientError> {
        let ids: HashSet<&Bytes> = records.iter().map(|record| &record.id).collect();
        if ids.len() <= self.ids.most {
            return Ok(());
        }
        let text = format!(
            "a list with {} ids, and a window of {}: after an error its first ones would be forgotten, and appended twice; append shorter lists, or open the producer with a larger window",
            ids.len(),
            self.ids.most
        );
        Err(ClientError::of(ErrorCode::Refused, text))
    }

    /// The first records that are not in the log, as many as one append takes. Those that are become known.
    fn missing<'a>(
        &self,
        records: &'a [ProducedRecord],
        known: &mut HashMap<&'a Bytes, Position>,
    ) -> Vec<&'a ProducedRecord> {
        let mut batch: Vec<&ProducedRecord> = Vec::new();
        let mut ids = HashSet::new();
        let mut bytes = 0;
        for record in records {
            if known.contains_key(&record.id) || ids.contains(&record.id) {
                continue;
            }
            if let Some(position) = self.ids.positions.get(&record.id) {
                known.insert(&record.id, *position);
                continue;
            }
            bytes += record.encoded_bytes();
            let is_full = batch.len() >= self.log.batch_records_max();
            if is_full || bytes > LOG_BATCH_BYTES_MAX {
                break;
            }
            ids.insert(&record.id);
            batch.push(record);
        }
        batch
    }

    /// Reads what came since, but no more than the window has ids.
    async fn catch_up(&mut self) -> Result<(), ClientError> {
        let replay = self.log.replay_last(self.tag, self.next, self.ids.most);
        let mut replay = replay.await?;
        while let Some((position, record)) = replay.next().await? {
            let Some(record) = ProducedRecord::decode(&record) else {
                let text = format!(
                    "position {position} of log '{}' bears tag {}, and is no record of a producer: use a tag of its own for each",
                    self.log.name(),
                    self.tag
                );
                return Err(ClientError::of(ErrorCode::Refused, text));
            };
            self.ids.insert(position, &record.id);
            self.next = position + 1;
        }
        self.next = self.next.max(replay.tail());
        Ok(())
    }

    fn busy(&self) -> ClientError {
        let text = format!(
            "{TRIES_MAX} times in a row another producer of tag {} in log '{}' came first: end one of them",
            self.tag,
            self.log.name()
        );
        ClientError::of(ErrorCode::Busy, text)
    }
}

impl IdWindow {
    fn new(most: usize) -> IdWindow {
        IdWindow {
            most,
            positions: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    fn insert(&mut self, position: Position, id: &Bytes) {
        // A copy of its own: a slice would keep the whole record.
        let id = Bytes::copy_from_slice(id);
        self.positions.insert(id.clone(), position);
        self.order.push_back((position, id));
        while self.order.len() > self.most {
            let Some((position, id)) = self.order.pop_front() else {
                return;
            };
            if self.positions.get(&id) == Some(&position) {
                self.positions.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is_one() {
        let record = ProducedRecord {
            id: Bytes::from_static(b"id"),
            value: Bytes::from_static(b"value"),
        };
        let bytes = record.encoded();
        assert_eq!(bytes.len(), record.encoded_bytes());
        assert_eq!(ProducedRecord::decode(&bytes), Some(record));
        for end in 0..5 {
            assert_eq!(ProducedRecord::decode(&bytes.slice(..end)), None, "{end}");
        }
        let no_id = Bytes::from_static(b"P\x01\x00");
        assert_eq!(ProducedRecord::decode(&no_id), None);
    }

    #[test]
    fn a_window_has_the_last_ids_and_an_id_that_came_again_stays_as_long_as_it_should() {
        let mut ids = IdWindow::new(3);
        let id = |n: u8| Bytes::from(vec![n]);
        for (position, n) in [1, 2, 1, 3, 4].into_iter().enumerate() {
            ids.insert(position as u64, &id(n));
        }
        let known = |n| ids.positions.get(&id(n)).copied();
        assert_eq!([1, 2, 3, 4].map(known), [Some(2), None, Some(3), Some(4)]);
        assert_eq!(ids.order.len(), 3);
    }
}
