//! Changes of logs, but for appends: they are made, trimmed and deleted, and their cursors moved.

use std::sync::Arc;

use staves_client::{AppendMode, CursorChange, ErrorCode, LogCursors, LogStat};
use staves_log::CURSOR_NAME_BYTES_MAX;
use tokio::time::Instant;

use super::error::LogError;
use super::handles::{LogName, OpenLog};
use super::{LogGateway, LogTarget, by, check_name};

const MAY_BE_TRIMMED: &str = "the log may have been trimmed";
const MAY_BE_MOVED: &str = "the cursor may have been changed";

/// A log that was deleted.
pub(crate) struct DeletedStat {
    /// The log as it was.
    pub(crate) stat: LogStat,
    /// A part of it keeps its records, for this reason.
    pub(crate) warning: Option<String>,
}

impl LogGateway {
    /// Makes a log.
    pub(crate) async fn create(
        &self,
        target: &LogTarget,
        mode: AppendMode,
        until: Instant,
    ) -> Result<LogStat, LogError> {
        check_name(&target.name)?;
        let client = self.client()?;
        let made = client.create_log(target.pool.as_deref(), &target.name, mode);
        by(until, "the log may have been made", made).await
    }

    /// Deletes a log.
    pub(crate) async fn delete(
        &self,
        target: &LogTarget,
        until: Instant,
    ) -> Result<DeletedStat, LogError> {
        let stat = self.show(target, until).await?;
        let removed = self
            .client()?
            .remove_log(target.pool.as_deref(), &target.name);
        let removed = by(until, "the log may have been deleted", removed).await?;
        let key = LogName {
            pool: stat.pool.clone(),
            name: stat.name.clone(),
        };
        self.logs.forget(&key, None);
        let warning = removed.left.map(|why| {
            format!("a unit of the log was not told, and keeps its records without a name: {why}")
        });
        Ok(DeletedStat { stat, warning })
    }

    /// Gives up all positions below one. Returns the log as it is then.
    pub(crate) async fn trim(
        &self,
        target: &LogTarget,
        to: u64,
        until: Instant,
    ) -> Result<LogStat, LogError> {
        let before = self.show(target, until).await?;
        let trim =
            |log: Arc<OpenLog>| async move { by(until, MAY_BE_TRIMMED, log.handle.trim(to)).await };
        self.with_log(target, until, trim).await?;
        // It is trimmed, whoever answers now.
        Ok(match self.show(target, until).await {
            Ok(stat) => stat,
            Err(_) => LogStat {
                trim: before.trim.max(to),
                ..before
            },
        })
    }

    /// Gives up the record of one position.
    pub(crate) async fn punch(
        &self,
        target: &LogTarget,
        at: u64,
        until: Instant,
    ) -> Result<(), LogError> {
        let punch = |log: Arc<OpenLog>| async move {
            let name = log.handle.name().to_owned();
            let tail = by(until, "", log.handle.tail()).await?;
            if at >= tail {
                return Err(LogError::past_tail(&name, at, tail));
            }
            let punched = log.handle.punch(at);
            by(until, "the record may have been given up", punched).await
        };
        self.with_log(target, until, punch).await
    }

    /// The cursors of a log.
    pub(crate) async fn cursors(
        &self,
        target: &LogTarget,
        until: Instant,
    ) -> Result<LogCursors, LogError> {
        Ok(self.show(target, until).await?.cursors)
    }

    /// The position of a cursor.
    pub(crate) async fn cursor(
        &self,
        target: &LogTarget,
        cursor: &str,
        until: Instant,
    ) -> Result<u64, LogError> {
        check_cursor(cursor)?;
        let cursors = self.cursors(target, until).await?;
        let position = cursors.get(cursor).copied();
        position.ok_or_else(|| LogError::no_cursor(&target.name, cursor))
    }

    /// Makes a cursor or moves it; with `from` only from there, where `Some(None)` asks for no such cursor.
    pub(crate) async fn set_cursor(
        &self,
        target: &LogTarget,
        cursor: &str,
        (from, to): (Option<Option<u64>>, u64),
        until: Instant,
    ) -> Result<(), LogError> {
        check_cursor(cursor)?;
        self.change_cursor(target, cursor, (from, Some(to)), until)
            .await
    }

    /// Removes a cursor; with `from` only from there.
    pub(crate) async fn delete_cursor(
        &self,
        target: &LogTarget,
        cursor: &str,
        from: Option<u64>,
        until: Instant,
    ) -> Result<(), LogError> {
        // Removing what is not there is a slip more likely than a retry.
        self.cursor(target, cursor, until).await?;
        self.change_cursor(target, cursor, (from.map(Some), None), until)
            .await
    }

    async fn change_cursor(
        &self,
        target: &LogTarget,
        cursor: &str,
        (from, to): (Option<Option<u64>>, Option<u64>),
        until: Instant,
    ) -> Result<(), LogError> {
        check_name(&target.name)?;
        let (client, pool) = (self.client()?, target.pool.as_deref());
        let moved = client.move_log_cursor(pool, &target.name, cursor, from, to);
        match by(until, MAY_BE_MOVED, moved).await? {
            CursorChange::Done => Ok(()),
            CursorChange::Moved(now) => Err(LogError::cursor_elsewhere(&target.name, cursor, now)),
        }
    }
}

fn check_cursor(name: &str) -> Result<(), LogError> {
    let has_length = (1..=CURSOR_NAME_BYTES_MAX).contains(&name.len());
    if has_length && !name.contains(char::is_control) {
        return Ok(());
    }
    let text = format!(
        "a cursor's name has 1 to {CURSOR_NAME_BYTES_MAX} bytes and no control characters: choose another"
    );
    Err(LogError::of(ErrorCode::Malformed, text))
}
