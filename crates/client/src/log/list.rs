//! The logs of pools. A pool, or a part of one, that does not answer does not hide the others.

use std::sync::Arc;
use std::time::Instant;

use staves_log::{NAMES_MAX, RecordReply, RecordRequest, UnitId};
use staves_model::{ClusterMap, Pool, PoolId, ServiceId};
use staves_wire::ErrorCode;

use super::{LogStat, calls, find_pool, record_of, stat};
use crate::client::{Client, senseless};
use crate::error::ClientError;

/// Homes that are asked at once.
const HOMES_AT_ONCE: usize = 16;

/// The logs of a pool.
#[derive(Clone, Debug)]
pub struct PoolLogs {
    /// The pool.
    pub pool: String,
    /// Its logs that could be asked for, by name.
    pub logs: Vec<LogStat>,
    /// The homes that did not answer: the logs whose records they have are not listed.
    pub silent: usize,
    /// The reason of the first of them.
    pub failure: Option<ClientError>,
}

impl Client {
    /// All logs, of one pool or of all, by pool and name. An error if there may be others.
    pub async fn logs(&self, pool: Option<&str>) -> Result<Vec<LogStat>, ClientError> {
        let mut all = Vec::new();
        for of_pool in self.logs_by_pool(pool).await? {
            match of_pool.failure {
                Some(error) => return Err(error),
                None => all.extend(of_pool.logs),
            }
        }
        Ok(all)
    }

    /// The same by pool, with those that there are where some cannot be asked for.
    pub async fn logs_by_pool(&self, pool: Option<&str>) -> Result<Vec<PoolLogs>, ClientError> {
        let map = self.refresh().await?;
        let of = |pool: &&Pool| pool.kind.service() == Some(ServiceId::LOG);
        let pools: Vec<PoolId> = match pool {
            Some(name) => vec![find_pool(&map, name)?],
            None => map.pools.values().filter(of).map(|pool| pool.id).collect(),
        };
        let deadline = self.deadline();
        let tasks = pools.into_iter().map(|pool| {
            let (client, map) = (self.clone(), map.clone());
            tokio::spawn(async move { client.logs_of(map, pool, deadline).await })
        });
        let tasks: Vec<_> = tasks.collect();
        let mut all = Vec::new();
        for task in tasks {
            let logs = task.await;
            all.push(logs.map_err(|error| senseless("a list of logs", &error.to_string()))?);
        }
        Ok(all)
    }

    async fn logs_of(&self, map: Arc<ClusterMap>, pool: PoolId, deadline: Instant) -> PoolLogs {
        let entry = map.pools.get(&pool);
        let groups = entry.map(|entry| entry.groups.clone()).unwrap_or_default();
        let mut of_pool = PoolLogs {
            pool: entry.map_or_else(String::new, |entry| entry.name.clone()),
            logs: Vec::new(),
            silent: 0,
            failure: None,
        };
        for homes in groups.chunks(HOMES_AT_ONCE) {
            let tasks = homes.iter().map(|home| {
                let (client, map, home) = (self.clone(), map.clone(), *home);
                tokio::spawn(async move { client.logs_at(&map, (pool, home), deadline).await })
            });
            let tasks: Vec<_> = tasks.collect();
            for task in tasks {
                let found = task.await;
                let failed =
                    |error: tokio::task::JoinError| senseless("a list of logs", &error.to_string());
                match found.map_err(failed).and_then(|found| found) {
                    Ok(logs) => of_pool.logs.extend(logs),
                    Err(error) => {
                        of_pool.silent += 1;
                        of_pool.failure.get_or_insert(error);
                    }
                }
            }
        }
        of_pool.logs.sort_by(|a, b| a.name.cmp(&b.name));
        of_pool
    }

    /// The logs that have their home in a unit.
    async fn logs_at(
        &self,
        map: &ClusterMap,
        (pool, home): (PoolId, UnitId),
        deadline: Instant,
    ) -> Result<Vec<LogStat>, ClientError> {
        let ask = |request| calls::ask_home(self.router(), pool, home, request, deadline);
        let (mut logs, mut after) = (Vec::new(), String::new());
        loop {
            let limit = NAMES_MAX;
            let RecordReply::Names(part) = ask(RecordRequest::List { after, limit }).await? else {
                return Err(senseless("a list of logs", "no names"));
            };
            for name in &part {
                let reply = ask(RecordRequest::View { name: name.clone() }).await?;
                match record_of(name, reply) {
                    Ok(record) => logs.push(stat(map, pool, &record)),
                    // It was deleted meanwhile.
                    Err(error) if error.code() == ErrorCode::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
            match part.last() {
                Some(last) if part.len() >= limit as usize => after = last.clone(),
                _ => return Ok(logs),
            }
        }
    }
}
