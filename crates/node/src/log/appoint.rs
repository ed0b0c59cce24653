//! The choice of a log's sequencer.

use std::time::{Duration, Instant};

use staves_client::{ClientError, Router, Transport, log_calls as calls};
use staves_log::{LogRecord, RecordRefusal, RecordReply, RecordRequest, SequencerId, Term, UnitId};
use staves_model::{ClusterMap, PoolId};

use super::Sequencers;
use super::seats::{Appointment, SeatFront};

/// Tries to commit a term, where others commit theirs at the same time.
const TRIES: usize = 4;
/// The longest wait for a term to open.
const OPENS: Duration = Duration::from_secs(10);

/// The sequencer that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AppointDemand {
    /// It is to be here, also where another lives.
    pub(crate) take: bool,
    /// Its term is to be above this one.
    pub(crate) above: Term,
}

impl Sequencers {
    /// Sees that a log has a sequencer: the one of its record, if it lives on another node and nothing else is asked for; else one here, in a new
    /// term if it needs one. The record as it then is. The home's refusal, if there is no such log.
    pub(crate) async fn appoint<T: Transport>(
        &self,
        router: &Router<T>,
        pool: PoolId,
        name: &str,
        demand: AppointDemand,
        deadline: Instant,
    ) -> Result<RecordReply, ClientError> {
        let appointment = Appointment::new(&self.seats);
        let _appointment = appointment.ok_or_else(|| {
            busy("this node makes as many sequencers of logs at once as it can: append again")
        })?;
        let view = || RecordRequest::View {
            name: name.to_owned(),
        };
        let mut committed = None;
        let mut reply = ask_home(router, pool, name, view(), deadline).await?;
        for _ in 0..TRIES {
            let record = match reply {
                RecordReply::Record(record)
                | RecordReply::Refused(RecordRefusal::Moved(record)) => *record,
                other => return Ok(other),
            };
            let map = router.map();
            match self.choice(&map, pool, &record, (demand, committed)) {
                AppointStep::Stays => return Ok(RecordReply::Record(Box::new(record))),
                AppointStep::Begins => {
                    let term = record.term();
                    let Some(front) = self.begin(router, pool, record).await else {
                        return Err(busy(
                            "this node has as many sequencers of logs as it takes: append again, or to fewer logs",
                        ));
                    };
                    wait_open(front, term, deadline).await;
                    return ask_home(router, pool, name, view(), deadline).await;
                }
                AppointStep::Leads => {
                    let lead = self.lead(&map, pool, &record);
                    reply = ask_home(router, pool, name, lead, deadline).await?;
                    committed = Some(record.term().next());
                }
            }
        }
        Ok(reply)
    }

    /// The next step. `committed` is the term that this appointment has asked for.
    fn choice(
        &self,
        map: &ClusterMap,
        pool: PoolId,
        record: &LogRecord,
        (demand, committed): (AppointDemand, Option<Term>),
    ) -> AppointStep {
        let lead = record.lead.as_ref().map(|lead| lead.sequencer);
        let newest: Option<SequencerId> = lead.or(record.view.sequencer);
        if newest != Some(self.id) {
            let lives = newest.is_some_and(|id| map.is_up(id.node, id.incarnation));
            return match lives && !demand.take {
                true => AppointStep::Stays,
                false => AppointStep::Leads,
            };
        }
        let seats = self.seats.lock();
        let front = seats.front(&(pool, record.view.log));
        let runs = front.is_some_and(|front| front.runs(record.term()));
        let is_new = record.term() > demand.above;
        match lead {
            _ if !is_new => AppointStep::Leads,
            None if runs => AppointStep::Stays,
            // A term that others have committed and that does not run may have been begun in a seat that ended: it is passed over.
            Some(_) if runs || committed == Some(record.term()) => AppointStep::Begins,
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

fn busy(text: &str) -> ClientError {
    ClientError::Operation {
        code: staves_wire::ErrorCode::Busy,
        text: text.to_owned(),
    }
}

async fn wait_open(front: SeatFront, term: Term, deadline: Instant) {
    let until = deadline.min(Instant::now() + OPENS);
    let mut state = front.state;
    let over = state.wait_for(|state| state.taken >= term && (state.term != term || state.active));
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
