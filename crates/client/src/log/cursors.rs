//! The cursors of a log's readers, and how much of a log is kept.

use staves_log::{
    LogId, LogRecord, LogRetention, Position, RecordRefusal, RecordReply, RecordRequest,
    SequencerOp, SequencerRequest,
};
use staves_model::PoolId;
use staves_wire::Message;
use staves_wire::log::LogAsk;

use super::calls::{self, record_of, soon};
use super::handle::CursorChange;
use super::{LogStat, stat};
use crate::client::Client;
use crate::error::ClientError;

impl Client {
    /// The position of a log's cursor; none if there is no such cursor. All of them are in [`Client::log_stat`].
    pub async fn log_cursor(
        &self,
        pool: Option<&str>,
        log: &str,
        cursor: &str,
    ) -> Result<Option<Position>, ClientError> {
        let stat = self.log_stat(pool, log).await?;
        Ok(stat.cursors.get(cursor).copied())
    }

    /// Moves a log's cursor, makes it, or with no position removes it. With `from`, only if it is there: `Some(None)` asks for no such
    /// cursor. It is durable once this returns. A log has at most 64, with names of 1 to 64 bytes.
    pub async fn move_log_cursor(
        &self,
        pool: Option<&str>,
        log: &str,
        cursor: &str,
        from: Option<Option<Position>>,
        to: Option<Position>,
    ) -> Result<CursorChange, ClientError> {
        let (_, _, record) = self.find_log(pool, log).await?;
        let id = record.view.log;
        self.move_cursor_of(pool, (log, id), cursor, from, to).await
    }

    /// The same for one log, and none that has its name later.
    pub(super) async fn move_cursor_of(
        &self,
        pool: Option<&str>,
        (log, id): (&str, LogId),
        cursor: &str,
        from: Option<Option<Position>>,
        to: Option<Position>,
    ) -> Result<CursorChange, ClientError> {
        let (map, pool) = self.log_pool(pool).await?;
        let request = RecordRequest::SetCursor {
            name: log.to_owned(),
            log: id,
            cursor: cursor.to_owned(),
            from,
            to,
        };
        let home = calls::home_of(&map, pool, log)?;
        let reply = calls::ask_home(self.router(), pool, home, request, self.deadline()).await?;
        if let RecordReply::Refused(RecordRefusal::CursorMoved(now)) = reply {
            return Ok(CursorChange::Moved(now));
        }
        let record = record_of(log, reply)?;
        if !record.retention.keeps_all() {
            self.record_changed(pool, &record).await;
        }
        Ok(CursorChange::Done)
    }

    /// Changes how much of a log is kept. What is older is trimmed in the background, within seconds.
    pub async fn set_log_retention(
        &self,
        pool: Option<&str>,
        log: &str,
        retention: LogRetention,
    ) -> Result<LogStat, ClientError> {
        let (map, pool, record) = self.find_log(pool, log).await?;
        let request = RecordRequest::SetRetention {
            name: log.to_owned(),
            log: record.view.log,
            retention,
        };
        let record = self.record(pool, log, request).await?;
        self.record_changed(pool, &record).await;
        Ok(stat(&map, pool, &record))
    }

    /// Has the log's sequencer read its record. One that cannot be asked reads it by itself some seconds later, or when it begins.
    async fn record_changed(&self, pool: PoolId, record: &LogRecord) {
        let map = self.map();
        let Some(to) = record.view.sequencer else {
            return;
        };
        if !map.is_up(to.node, to.incarnation) {
            return;
        }
        let request = SequencerRequest {
            log: record.view.log,
            op: SequencerOp::ReadRecord,
        };
        let ask = LogAsk {
            pool,
            node: to.node,
            incarnation: to.incarnation,
            body: calls::encoded(|out| request.encode(out)),
        };
        let asked = self.ask(to.node, Message::LogAsk(ask), soon()).await;
        if let Err(error) = asked {
            tracing::debug!(log = %record.name, %error, "a sequencer was not told of its log's new record");
        }
    }
}
