//! The cursor of a structure that lies in a stream: what it needs of the log is kept, whatever the log's rules for old records say.

use std::fmt;

use staves_log::Position;

use super::handle::CursorChange;
use crate::client::Client;
use crate::error::ClientError;

/// A cursor that only goes forward.
pub(super) struct StreamCursor {
    client: Client,
    pool: Option<String>,
    log: String,
    name: String,
    /// Its position; none if somebody removed it.
    at: Option<Position>,
}

impl StreamCursor {
    /// The cursor of a name, made where the log begins if there is none.
    pub(super) async fn open(
        client: &Client,
        pool: Option<&str>,
        log: &str,
        name: String,
    ) -> Result<StreamCursor, ClientError> {
        let trim = client.log_stat(pool, log).await?.trim;
        let made = client
            .move_log_cursor(pool, log, &name, Some(None), Some(trim))
            .await?;
        let at = match made {
            CursorChange::Done => Some(trim),
            CursorChange::Moved(at) => at.map(|at| at.max(trim)),
        };
        Ok(StreamCursor {
            client: client.clone(),
            pool: pool.map(str::to_owned),
            log: log.to_owned(),
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
                .move_log_cursor(pool, &self.log, &self.name, from, Some(to))
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
