//! The driver of [`LeaseBatcher`]: has a quorum confirm this leader, and answers the requests of the batch.

use std::sync::Arc;
use std::time::Duration;

use staves_model::mutant::{Mutant, planted};
use staves_model::{LeaseAnswer, LeaseBatcher, LeaseEffects, LeaseEvent, LeaseRequest};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::directory::Inner;
use crate::lead::{newly_elected, too_many_requests};
use crate::message::{LeaderResponse, PendingLease};

/// Time that a quorum has to confirm.
const CONFIRM: Duration = Duration::from_millis(250);

/// Serves batches until the directory stops.
pub(crate) async fn run(inner: Arc<Inner>, mut queue: mpsc::Receiver<PendingLease>) {
    let mut batcher = LeaseBatcher::default();
    let mut confirmation = JoinSet::new();
    let mut reason = String::new();
    loop {
        let event = tokio::select! {
            Some(result) = confirmation.join_next() => {
                reason = match result {
                    Ok(_) if planted(Mutant::LeaseConfirmedByNobody) => String::new(),
                    Ok(Ok(())) => String::new(),
                    Ok(Err(why)) => why,
                    Err(broken) => broken.to_string(),
                };
                LeaseEvent::Confirmed(reason.is_empty())
            }
            asked = queue.recv() => match asked {
                Some((request, reply)) => LeaseEvent::Request(request, reply),
                None => return,
            },
        };
        let mut out = LeaseEffects::default();
        batcher.step(event, &mut out);
        if out.confirm {
            let inner = inner.clone();
            confirmation.spawn(async move { confirm(&inner).await });
        }
        // The receiver of an answer may have stopped waiting; the book is then merely too careful.
        for (request, reply) in out.serve {
            let _ = reply.send(grant(&inner, &request));
        }
        for reply in out.later {
            let _ = reply.send(match reason.is_empty() {
                true => too_many_requests(),
                false => LeaderResponse::later(20, &*reason),
            });
        }
    }
}

/// True if a quorum follows this leader, and its map holds everything committed before now.
pub(crate) async fn confirm(inner: &Inner) -> Result<(), String> {
    let core = inner.core().map_err(|e| e.to_string())?;
    match tokio::time::timeout(CONFIRM, core.raft.ensure_linearizable()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(e)) => Err(format!("no majority confirms that this node leads: {e}")),
        Err(_) => Err(format!(
            "no majority confirmed within {} ms that this node leads",
            CONFIRM.as_millis()
        )),
    }
}

fn grant(inner: &Inner, request: &LeaseRequest) -> LeaderResponse {
    let mut leader_state = inner.leader_state.lock();
    let Some(leader_state) = leader_state.as_mut() else {
        return newly_elected();
    };
    // Under the lock: an epoch opened after this sees the grant, one opened before is in the map.
    let map = inner.map();
    match leader_state.leases.answer(inner.now(), &map, request) {
        LeaseAnswer::Over { address } => LeaderResponse::Over { address },
        LeaseAnswer::Granted { granted, heard } => LeaderResponse::Leased {
            granted,
            heard,
            revision: map.revision,
        },
    }
}
