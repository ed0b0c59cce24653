//! The end of a log.

use std::time::Instant;

use staves_log::{LogId, RecordRequest, UnitId, UnitOp, UnitRequest};
use staves_model::PoolId;
use staves_wire::ErrorCode;

use super::calls;
use crate::client::{Client, senseless};
use crate::error::ClientError;

/// Units that are told at once.
const UNITS_AT_ONCE: usize = 16;

/// The result of deleting a log: its name is free.
#[derive(Clone, Debug)]
pub struct DeletedLog {
    /// A unit that was not told keeps its records; the reason of the first one.
    pub left: Option<ClientError>,
}

impl Client {
    /// Deletes a log with all its records.
    ///
    /// # Errors
    /// `unreachable`, also if the log is deleted, and a unit of it was not told: [`Client::remove_log`] tells these apart.
    pub async fn delete_log(&self, pool: Option<&str>, name: &str) -> Result<(), ClientError> {
        let Some(why) = self.remove_log(pool, name).await?.left else {
            return Ok(());
        };
        let text = format!(
            "log '{name}' is deleted, and its name free; a unit of it was not told, and keeps its records: {why}"
        );
        Err(ClientError::of(ErrorCode::Unreachable, text))
    }

    /// The same. A log that is deleted is no error, whoever was not told of it.
    pub async fn remove_log(
        &self,
        pool: Option<&str>,
        name: &str,
    ) -> Result<DeletedLog, ClientError> {
        let (_, pool, _) = self.find_log(pool, name).await?;
        let delete = RecordRequest::Delete {
            name: name.to_owned(),
        };
        let record = self.record(pool, name, delete).await?;
        let units: Vec<UnitId> = record.to_seal().into_iter().collect();
        // The caller is still to be answered that the log is deleted.
        let deadline = Instant::now() + self.patience() / 2;
        let mut left = None;
        for units in units.chunks(UNITS_AT_ONCE) {
            let tell = |unit: &UnitId| {
                tokio::spawn(forget(
                    self.clone(),
                    pool,
                    (*unit, record.view.log),
                    deadline,
                ))
            };
            let told: Vec<_> = units.iter().map(tell).collect();
            for told in told {
                let ended = |error: tokio::task::JoinError| {
                    senseless("a request to forget a log", &error.to_string())
                };
                left = left.or(told.await.map_err(ended).flatten().err());
            }
        }
        Ok(DeletedLog { left })
    }
}

async fn forget(
    client: Client,
    pool: PoolId,
    (unit, log): (UnitId, LogId),
    deadline: Instant,
) -> Result<(), ClientError> {
    let op = UnitOp::Forget;
    let request = UnitRequest { log, op };
    let told = calls::ask_unit(client.router(), pool, unit, request, deadline).await;
    told.map(|_| ())
}
