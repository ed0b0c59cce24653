//! The presence of an open log: that its record is still there, and that it takes appends.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_log::{LogId, RecordRequest};
use staves_model::PoolId;
use staves_wire::ErrorCode;

use super::calls::{self, record_of, soon};
use crate::client::Client;
use crate::error::ClientError;

/// The record of a log that others wait at is looked at so often.
const LOOK: Duration = Duration::from_secs(2);

/// The state of a log that all clones of its handle share.
pub(super) struct LogPresence {
    client: Client,
    pool: PoolId,
    pub log: LogId,
    looked: Mutex<Instant>,
    /// The log refuses an append that is in flight.
    pub full: AtomicBool,
}

impl std::fmt::Debug for LogPresence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogPresence")
            .field("pool", &self.pool)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

impl LogPresence {
    pub fn new(client: Client, pool: PoolId, log: LogId) -> LogPresence {
        LogPresence {
            client,
            pool,
            log,
            looked: Mutex::new(Instant::now()),
            full: AtomicBool::new(false),
        }
    }

    /// Asks the log's home for its record, if nobody has for some seconds.
    ///
    /// # Errors
    /// `not-found`: the log is deleted. A home that does not answer is none.
    pub async fn check(&self, name: &str) -> Result<(), ClientError> {
        {
            let mut looked = self.looked.lock();
            if looked.elapsed() < LOOK {
                return Ok(());
            }
            *looked = Instant::now();
        }
        let view = RecordRequest::View {
            name: name.to_owned(),
        };
        let home = calls::home_of(&self.client.map(), self.pool, name)?;
        let reply = calls::ask_home(self.client.router(), self.pool, home, view, soon()).await;
        match reply.and_then(|reply| record_of(name, reply)) {
            Ok(record) if record.view.log != self.log => Err(calls::made_anew(name)),
            Err(error) if error.code() == ErrorCode::NotFound => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}
