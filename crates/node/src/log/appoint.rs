//! The choice of a log's sequencer.

use std::time::{Duration, Instant};

use staves_client::{ClientError, Router, Transport, log_calls as calls};
use staves_log::{LogRecord, RecordRefusal, RecordReply, RecordRequest, SequencerId, UnitId};
use staves_model::{ClusterMap, PoolId};

use super::{SeatFront, Sequencers};

/// Tries to commit a term, where others commit theirs at the same time.
const TRIES: usize = 4;
/// The longest wait for a term to open.
const OPENS: Duration = Duration::from_secs(10);

impl Sequencers {
    /// Sees that a log has a sequencer: the one of its record, if it lives on another node; else one here, in a new term if it needs one. The record
    /// as it then is. The home's refusal, if there is no such log.
    pub(crate) async fn appoint<T: Transport>(
        &self,
        router: &Router<T>,
        pool: PoolId,
        name: &str,
        deadline: Instant,
    ) -> Result<RecordReply, ClientError> {
        let view = || RecordRequest::View {
            name: name.to_owned(),
        };
        let mut reply = ask_home(router, pool, name, view(), deadline).await?;
        for _ in 0..TRIES {
            let record = match reply {
                RecordReply::Record(record)
                | RecordReply::Refused(RecordRefusal::Moved(record)) => *record,
                other => return Ok(other),
            };
            let map = router.map();
            match self.choice(&map, pool, &record) {
                AppointStep::Stays => return Ok(RecordReply::Record(Box::new(record))),
                AppointStep::Begins => {
                    let term = record.term();
                    let Some(front) = self.begin(router, pool, record).await else {
                        return Err(no_room());
                    };
                    wait_open(front, term, deadline).await;
                    return ask_home(router, pool, name, view(), deadline).await;
                }
                AppointStep::Leads => {
                    let lead = self.lead(&map, pool, &record);
                    reply = ask_home(router, pool, name, lead, deadline).await?;
                }
            }
        }
        Ok(reply)
    }

    fn choice(&self, map: &ClusterMap, pool: PoolId, record: &LogRecord) -> AppointStep {
        let lead = record.lead.as_ref().map(|lead| lead.sequencer);
        let newest: Option<SequencerId> = lead.or(record.view.sequencer);
        if newest != Some(self.id) {
            let lives = newest.is_some_and(|id| map.is_up(id.node, id.incarnation));
            return match lives {
                true => AppointStep::Stays,
                false => AppointStep::Leads,
            };
        }
        let front = self.front(pool, record.view.log);
        let state = front.map(|front| *front.state.borrow());
        let runs = state.is_some_and(|state| state.term == record.term());
        let is_new = self.begun(pool, record.view.log) < record.term();
        match (lead.is_some(), runs || is_new) {
            (false, true) if runs => AppointStep::Stays,
            // It was never begun, or it runs and is not open yet.
            (true, true) => AppointStep::Begins,
            _ => AppointStep::Leads,
        }
    }

    fn lead(&self, map: &ClusterMap, pool: PoolId, record: &LogRecord) -> RecordRequest {
        let added: Vec<UnitId> = match &record.lead {
            Some(lead) => lead.added.clone(),
            None if record.view.projection.last().is_empty() => {
                let groups = map.pools.get(&pool).map(|pool| pool.groups.clone());
                let groups = groups.unwrap_or_default().into_iter();
                groups.take(staves_log::SEGMENT_UNITS_MAX).collect()
            }
            None => Vec::new(),
        };
        RecordRequest::Lead {
            name: record.name.clone(),
            log: record.view.log,
            from_term: record.term(),
            sequencer: self.id,
            added,
        }
    }
}

/// The next step of an appointment.
enum AppointStep {
    /// The sequencer of the record goes on.
    Stays,
    /// The committed term is this node's to begin.
    Begins,
    /// This node takes the next term.
    Leads,
}

fn no_room() -> ClientError {
    ClientError::Operation {
        code: staves_wire::ErrorCode::Busy,
        text:
            "this node has as many sequencers of logs as it takes: append again, or to fewer logs"
                .into(),
    }
}

async fn wait_open(front: SeatFront, term: staves_log::Term, deadline: Instant) {
    let until = deadline.min(Instant::now() + OPENS);
    let mut state = front.state;
    let over = state.wait_for(|state| state.term > term || state.term == term && state.active);
    let _late = tokio::time::timeout_at(until.into(), over).await;
}

async fn ask_home<T: Transport>(
    router: &Router<T>,
    pool: PoolId,
    name: &str,
    request: RecordRequest,
    deadline: Instant,
) -> Result<RecordReply, ClientError> {
    let home = calls::home_of(&router.map(), pool, name)?;
    calls::ask_home(router, pool, home, request, deadline).await
}
