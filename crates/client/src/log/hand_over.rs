//! The hand-over of a log's sequencer while it serves: to another node, or to a new term where it is.
//!
//! **Why nothing is lost.** The next term's sequencer seals every unit before it acts. What the last one has bound is either durable by then, and
//! the new one knows it, or never will be; appends that wait are sent again by their clients, under the same ids.

use std::time::{Duration, Instant};

use staves_log::{LogRecord, Term};
use staves_model::{ClusterMap, NodeId, PoolId};
use staves_wire::ErrorCode;
use staves_wire::log::LogAppoint;

use super::{LogStat, appoint, stat};
use crate::client::Client;
use crate::error::ClientError;

/// The pause before a node that was busy with it is asked again.
const AGAIN: Duration = Duration::from_millis(100);

impl Client {
    /// Moves a log's sequencer to a node. Appends wait meanwhile, and go on there.
    ///
    /// # Errors
    /// The node is not up or is drained, there is no such log, or the new term did not open in time.
    pub async fn move_log(
        &self,
        pool: Option<&str>,
        name: &str,
        to: NodeId,
    ) -> Result<LogStat, ClientError> {
        let (map, pool, _) = self.find_log(pool, name).await?;
        check_home(&map, name, to)?;
        self.hand_over((pool, name), to, Term::default()).await
    }

    /// Ends a log's term, and begins the next where its sequencer is: what was under way is decided by that. A log that has none gets none.
    ///
    /// # Errors
    /// There is no such log, its sequencer is gone, or the new term did not open in time.
    pub async fn seal_log(&self, pool: Option<&str>, name: &str) -> Result<LogStat, ClientError> {
        let (map, pool, record) = self.find_log(pool, name).await?;
        let sequencer = record.view.sequencer;
        let living = sequencer.filter(|id| map.is_up(id.node, id.incarnation));
        let Some(to) = living else {
            let text = format!(
                "log '{name}' has no sequencer now, and so no term to end: its next append makes one, and 'staves log move {name} --to NODE' does"
            );
            return Err(ClientError::of(ErrorCode::Refused, text));
        };
        self.hand_over((pool, name), to.node, record.term()).await
    }

    async fn hand_over(
        &self,
        (pool, name): (PoolId, &str),
        to: NodeId,
        above: Term,
    ) -> Result<LogStat, ClientError> {
        let deadline = self.deadline();
        loop {
            let request = LogAppoint {
                pool,
                name: name.to_owned(),
                take: true,
                above: above.0,
            };
            let asked = appoint::ask(self, to, request, deadline).await;
            let again = match asked {
                Ok(record) if is_done(&record, to, above) => {
                    return Ok(stat(&self.map(), pool, &record));
                }
                Ok(record) => not_open(name, to, &record),
                Err(error) if error.code().worth_retrying() => error,
                Err(error) => return Err(error),
            };
            if Instant::now() + AGAIN >= deadline {
                return Err(again);
            }
            tokio::time::sleep(AGAIN).await;
            self.refresh().await?;
        }
    }
}

fn is_done(record: &LogRecord, to: NodeId, above: Term) -> bool {
    let view = &record.view;
    let is_there = view.sequencer.is_some_and(|id| id.node == to);
    record.lead.is_none() && is_there && view.term > above
}

fn not_open(name: &str, to: NodeId, record: &LogRecord) -> ClientError {
    let text = format!(
        "the sequencer of log '{name}' is on its way to node {to}, and its term {} is not open yet: one of its units did not answer in time; 'staves status' says which nodes do not, and 'staves log show {name}' where the sequencer is",
        record.term().0
    );
    ClientError::of(ErrorCode::Deadline, text)
}

/// Only a node that stays takes sequencers.
fn check_home(map: &ClusterMap, name: &str, to: NodeId) -> Result<(), ClientError> {
    let Some(node) = map.nodes.get(&to) else {
        let text = format!("there is no node {to}: 'staves node list' shows those there are");
        return Err(ClientError::of(ErrorCode::NotFound, text));
    };
    if node.is_home() {
        return Ok(());
    }
    let reason = match node.draining {
        true => "is drained, and its sequencers go to others",
        false => "is not up",
    };
    let text = format!(
        "the sequencer of log '{name}' cannot go to node {to} ({}), which {reason}: choose another node of 'staves node list'",
        node.name
    );
    Err(ClientError::of(ErrorCode::Refused, text))
}
