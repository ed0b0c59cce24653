//! Positions of a log by time, through marks in a second log. Records bear no time of their own.
//!
//! **Marks.** A mark is a wall clock's time, and the log's tail just before that time was read. So a record whose append began at the
//! time or later lies at the tail or above. Times of marks never fall: a mark of a clock that is behind the last one has its time.
//!
//! **Not exact.** A search ends at the last mark up to a time: it leaves nothing out, and begins early by as much as marks are apart. Which clock
//! counts is that of whoever marks.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{BufMut, Bytes, BytesMut};
use staves_log::{AppendCondition, Position};
use staves_wire::ErrorCode;

use super::fields::{take_array, take_u64};
use super::handle::{LogHandle, LogSlot};
use crate::error::ClientError;

/// The first bytes of each record: a mark, of the first version.
const MAGIC: [u8; 2] = *b"T\x01";
/// The tag of marks in their log.
const TAG: u64 = 1;

/// A log, and the log of its marks.
#[derive(Clone, Debug)]
pub struct LogTimes {
    log: LogHandle,
    marks: LogHandle,
}

/// A time of which it is known what came before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TimeMark {
    at_ms: u64,
    tail: Position,
}

impl LogTimes {
    /// A log, and another one that has its marks and nothing else.
    pub fn new(log: LogHandle, marks: LogHandle) -> LogTimes {
        LogTimes { log, marks }
    }

    /// Marks the present time. Call it from one program, once a minute for example: times are found to within that.
    ///
    /// # Errors
    /// A record of the log of marks may be none: the error names it.
    pub async fn mark(&self) -> Result<(), ClientError> {
        let mut last = self.marks.replay_last(TAG, 0, 1).await?;
        let end = last.tail();
        let before = match last.next().await? {
            Some((position, record)) => self.decoded(position, record)?.at_ms,
            None => 0,
        };
        // The tail first: what has a position below began before the clock is read.
        let tail = self.log.tail().await?;
        // Up, for the same millisecond may have begun before.
        let at_ms = (millis(SystemTime::now()) + 1).max(before);
        let record = [TimeMark { at_ms, tail }.encoded()];
        let condition = AppendCondition {
            tag: Some(TAG),
            tail: end,
        };
        // If it fails, another one has just marked.
        self.marks.append_if(condition, &record, &[TAG]).await?;
        Ok(())
    }

    /// A position with nothing below it that was appended at a time or later, by the clock that marked; 0 if no mark is as old.
    ///
    /// # Errors
    /// As of [`LogTimes::mark`].
    pub async fn seek(&self, time: SystemTime) -> Result<Position, ClientError> {
        let time_ms = millis(time);
        let end = self.marks.end_of(None).await?;
        let (mut low, mut high) = (end.trim, end.tail);
        let mut found = 0;
        while low < high {
            let middle = low + (high - low) / 2;
            match self.first_from(middle, high).await? {
                Some((position, mark)) if mark.at_ms <= time_ms => {
                    (found, low) = (mark.tail, position + 1);
                }
                Some(_) | None => high = middle,
            }
        }
        Ok(found)
    }

    /// The first mark of a range.
    async fn first_from(
        &self,
        from: Position,
        end: Position,
    ) -> Result<Option<(Position, TimeMark)>, ClientError> {
        for position in from..end {
            match self.marks.read(position).await? {
                LogSlot::Record(record) => {
                    return Ok(Some((position, self.decoded(position, record)?)));
                }
                LogSlot::Junk | LogSlot::Trimmed | LogSlot::PastTail => {}
            }
        }
        Ok(None)
    }

    fn decoded(&self, position: Position, record: Bytes) -> Result<TimeMark, ClientError> {
        TimeMark::decoded(record).ok_or_else(|| {
            let text = format!(
                "position {position} of log '{}' is no mark: use a log of its own for the marks of '{}'",
                self.marks.name(),
                self.log.name()
            );
            ClientError::of(ErrorCode::Refused, text)
        })
    }
}

impl TimeMark {
    fn encoded(self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_slice(&MAGIC);
        out.put_u64_le(self.at_ms);
        out.put_u64_le(self.tail);
        out.freeze()
    }

    fn decoded(mut record: Bytes) -> Option<TimeMark> {
        if take_array(&mut record)? != MAGIC {
            return None;
        }
        let (at_ms, tail) = (take_u64(&mut record)?, take_u64(&mut record)?);
        record.is_empty().then_some(TimeMark { at_ms, tail })
    }
}

fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written_and_nothing_else_is_one() {
        let mark = TimeMark { at_ms: 5, tail: 9 };
        let record = mark.encoded();
        assert_eq!(TimeMark::decoded(record.clone()), Some(mark));
        for end in 0..record.len() {
            assert_eq!(TimeMark::decoded(record.slice(..end)), None, "{end} bytes");
        }
        assert_eq!(TimeMark::decoded(Bytes::from_static(b"no mark")), None);
    }
}
