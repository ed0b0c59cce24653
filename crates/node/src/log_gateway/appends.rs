//! Appends of records, with tags and under conditions.

use std::sync::Arc;

use bytes::Bytes;
use staves_client::{AppendCondition, ConditionalAppend, ErrorCode, LogHandle};
use staves_log::TAGS_MAX;
use staves_net::InFlightPart;
use tokio::time::{Instant, timeout_at};

use super::error::LogError;
use super::handles::OpenLog;
use super::{LOG_BATCH_BYTES_MAX, LogGateway, LogTarget};

/// Records for one append, all of them at positions in a row or none.
#[derive(Clone, Debug)]
pub(crate) struct GatewayAppend {
    pub(crate) records: Vec<Bytes>,
    /// The streams that they belong to.
    pub(crate) tags: Vec<u64>,
    /// They are appended only if this holds.
    pub(crate) condition: Option<AppendCondition>,
}

impl GatewayAppend {
    /// An append under these conditions, as a request has them: no record at `tail` or above, or none of the tag there.
    pub(crate) fn new(
        records: Vec<Bytes>,
        tags: Vec<u64>,
        (tail, tag): (Option<u64>, Option<u64>),
    ) -> Result<GatewayAppend, LogError> {
        if tail.is_none() && tag.is_some() {
            let text = "if_tag needs if_tail: give the position at which, and above, no record of the tag may lie; nothing was done";
            return Err(LogError::of(ErrorCode::Malformed, text));
        }
        let append = GatewayAppend {
            records,
            tags,
            condition: tail.map(|tail| AppendCondition { tag, tail }),
        };
        append.check()?;
        Ok(append)
    }

    fn bytes(&self) -> usize {
        self.records.iter().map(Bytes::len).sum()
    }

    fn check(&self) -> Result<(), LogError> {
        let bytes = self.bytes();
        if bytes > LOG_BATCH_BYTES_MAX {
            let text = format!(
                "an append of {bytes} bytes: one has {LOG_BATCH_BYTES_MAX} at most; make records smaller, or append fewer at a time"
            );
            return Err(LogError::of(ErrorCode::TooLarge, text));
        }
        let tags = &self.tags;
        let twice = (1..tags.len().min(TAGS_MAX)).find(|i| tags[..*i].contains(&tags[*i]));
        let text = match twice {
            _ if tags.len() > TAGS_MAX => format!(
                "an append with {} tags: it has {TAGS_MAX} at most; leave some out",
                tags.len()
            ),
            Some(i) => format!("an append with tag {} twice: give each tag once", tags[i]),
            None => return Ok(()),
        };
        Err(LogError::of(ErrorCode::Malformed, text))
    }
}

impl LogGateway {
    /// Appends records. Returns the first position.
    pub(crate) async fn append(
        &self,
        target: &LogTarget,
        append: GatewayAppend,
        until: Instant,
    ) -> Result<u64, LogError> {
        let (count, bytes) = (append.records.len(), append.bytes());
        let append = |log: Arc<OpenLog>| {
            let append = append.clone();
            async move { self.append_to(&log, append, until).await }
        };
        let first = self.with_log(target, until, append).await?;
        self.figures.appended(count, bytes);
        Ok(first)
    }

    async fn append_to(
        &self,
        log: &OpenLog,
        append: GatewayAppend,
        until: Instant,
    ) -> Result<u64, LogError> {
        let handle = log.handle.clone();
        let most = handle.batch_records_max();
        if !(1..=most).contains(&append.records.len()) {
            let text = format!(
                "an append of {} records: log '{}' takes 1 to {most} at a time",
                append.records.len(),
                handle.name()
            );
            return Err(LogError::of(ErrorCode::Malformed, text));
        }
        let mut part = InFlightPart::of_request(self.figures.memory.clone());
        part.set(append.bytes());
        // It is in memory until its outcome is known, whether its client waits or not.
        let task = tokio::spawn(async move {
            let done = done(&handle, &append).await;
            drop(part);
            done
        });
        match timeout_at(until, task).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(LogError::uncertain(
                ErrorCode::Internal,
                "the append ended early: it may be in the log; read its end before you append again",
            )),
            Err(_) if log.handle.is_full() => Err(LogError::uncertain(
                ErrorCode::LogFull,
                format!(
                    "log '{}' is full: it keeps what its oldest cursor has not passed; move or delete that cursor, trim the log, or let it discard old records. The append may be in the log: read its end before you append again",
                    log.handle.name()
                ),
            )),
            Err(_) => Err(LogError::uncertain(
                ErrorCode::Deadline,
                "the append was not acknowledged in time: it may be in the log; read its end before you append again, or give it longer",
            )),
        }
    }
}

async fn done(handle: &LogHandle, append: &GatewayAppend) -> Result<u64, LogError> {
    let GatewayAppend {
        records,
        tags,
        condition,
    } = append;
    let Some(condition) = *condition else {
        return Ok(handle.append_tagged(records, tags).await?);
    };
    match handle.append_if(condition, records, tags).await? {
        ConditionalAppend::At(first) => Ok(first),
        ConditionalAppend::Failed(tail) => {
            Err(LogError::past_condition(handle.name(), condition, tail))
        }
    }
}
