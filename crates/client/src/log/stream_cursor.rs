//! The cursor of a structure that lies in a stream: what it needs of the log is kept, whatever the log's rules for old records say.

use std::fmt;

use staves_log::{LogId, Position, WhenFull};
use staves_wire::ErrorCode;

use super::handle::{CursorChange, LogHandle};
use crate::client::Client;
use crate::error::ClientError;

/// A cursor that only goes forward.
pub(super) struct StreamCursor {
    client: Client,
    pool: Option<String>,
    log: String,
    /// Another log that has the name by now has cursors of its own.
    id: LogId,
    name: String,
    /// Its position; none if somebody removed it.
    at: Option<Position>,
}

impl StreamCursor {
    /// The cursor of a name, made where the log begins if there is none.
    ///
    /// # Errors
    /// The log trims what its cursors have not passed, or refuses appends then: what it keeps has to be done with first, and that takes appends.
    pub(super) async fn open(
        client: &Client,
        pool: Option<&str>,
        handle: &LogHandle,
        name: String,
    ) -> Result<StreamCursor, ClientError> {
        let (log, id) = (handle.name(), handle.id());
        let stat = client.log_stat(pool, log).await?;
        let retention = stat.retention;
        if !retention.keeps_all() && retention.when_full != WhenFull::Keep {
            let text = format!(
                "log '{log}' discards or refuses records when it has as many as it keeps, and this needs what its cursor has not passed: 'staves log set {log} --when-full keep', or another log"
            );
            return Err(ClientError::of(ErrorCode::Refused, text));
        }
        let trim = stat.trim;
        let made = client
            .move_cursor_of(pool, (log, id), &name, Some(None), Some(trim))
            .await?;
        let at = match made {
            CursorChange::Done => Some(trim),
            CursorChange::Moved(at) => at.map(|at| at.max(trim)),
        };
        Ok(StreamCursor {
            client: client.clone(),
            pool: pool.map(str::to_owned),
            log: log.to_owned(),
            id,
            name,
            at,
        })
    }

    /// The position below which the structure needs nothing.
    pub(super) fn at(&self) -> Position {
        self.at.unwrap_or(0)
    }

    /// Moves it on. One that lies further, or that somebody removed, is left alone.
    pub(super) async fn advance(&mut self, to: Position) -> Result<(), ClientError> {
        while let Some(at) = self.at.filter(|at| *at < to) {
            let (pool, from) = (self.pool.as_deref(), Some(Some(at)));
            let moved = self
                .client
                .move_cursor_of(pool, (&self.log, self.id), &self.name, from, Some(to))
                .await?;
            self.at = match moved {
                CursorChange::Done => Some(to),
                CursorChange::Moved(now) => now,
            };
        }
        Ok(())
    }
}

impl fmt::Debug for StreamCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("StreamCursor");
        f.field("log", &self.log).field("name", &self.name);
        f.field("at", &self.at).finish_non_exhaustive()
    }
}
