//! The leader's answers, request by request.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::error::ClientWriteError;
use staves_model::detector::Report;
use staves_model::{Change, Incarnation, LeaseRequest, NodeId};
use tokio::sync::oneshot;

use crate::ask::LeadError;
use crate::directory::{Core, Inner};
use crate::message::{LeaderRequest, LeaderResponse};
use crate::types::{Applied, Proposal};
use crate::voters;

/// A leader that no majority has answered for this long writes nothing more to its log: it could not
/// commit it, and the log is bounded.
const QUORUM_SILENCE_MAX: Duration = Duration::from_millis(1000);

impl Inner {
    /// Answers a request as the leader, which the caller believes this node to be.
    pub async fn lead(
        self: &Arc<Self>,
        request: LeaderRequest,
    ) -> Result<LeaderResponse, LeadError> {
        match request {
            LeaderRequest::Join(join) => self.lead_join(join).await,
            LeaderRequest::Propose(proposal) => self.write(proposal).await,
            LeaderRequest::Lease(request) => self.lead_lease(request).await,
            LeaderRequest::Report { from, seen } => Ok(self.with_leader_state(|leader_state| {
                seen.into_iter().for_each(|seen| {
                    leader_state.add_report(Report {
                        reporter: from,
                        seen,
                    });
                });
                LeaderResponse::Noted
            })),
            LeaderRequest::Calls { from, calls } => self.lead_calls(from, calls).await,
            LeaderRequest::Leave { node, incarnation } => self.lead_leave(node, incarnation).await,
            LeaderRequest::Stop { node, incarnation } => {
                Ok(self.lead_stop(node, incarnation).await)
            }
        }
    }

    pub fn with_leader_state(
        &self,
        f: impl FnOnce(&mut crate::leader_state::LeaderState) -> LeaderResponse,
    ) -> LeaderResponse {
        match self.leader_state.lock().as_mut() {
            Some(leader_state) => f(leader_state),
            None => newly_elected(),
        }
    }

    /// Orders a proposal and waits until it is applied here. The caller bounds the wait.
    pub async fn write(&self, proposal: Proposal) -> Result<LeaderResponse, LeadError> {
        let core = self.core().map_err(|_| LeadError::NotLeader)?;
        if let Some(later) = lost_majority(core) {
            return Ok(later);
        }
        if self.handing_over.load(Ordering::Acquire) {
            return Ok(LeaderResponse::later(
                20,
                "the leader leaves and hands over",
            ));
        }
        // The node may have been back for a moment, and in contact with the directory then: the time after which its
        // groups start empty must not be counted from its earlier death.
        if let Change::NodeDown { .. } | Change::NodeLeft { .. } = proposal.change
            && let Some(leader_state) = self.leader_state.lock().as_mut()
        {
            leader_state.planner.look(self.now(), &self.map());
        }
        // Stopped, or its store failed: it leads no more, and did not begin.
        let Ok(written) = core.raft.client_write_ff(proposal).await else {
            return Err(LeadError::NotLeader);
        };
        // The same, but it may have begun: proposed again, the change could be made twice.
        let Ok(written) = written.await else {
            return Err(LeadError::CutOff);
        };
        match written {
            Ok(written) if written.data == Applied::Deposed => Err(LeadError::NotLeader),
            Ok(written) => Ok(LeaderResponse::Applied(written.data)),
            // Not taken, or cut out of the log by another leader, whose own then holds all that was made.
            Err(ClientWriteError::ForwardToLeader(_)) => Err(LeadError::NotLeader),
            Err(e) => Ok(LeaderResponse::Refused(e.to_string())),
        }
    }

    async fn lead_lease(&self, request: LeaseRequest) -> Result<LeaderResponse, LeadError> {
        let (reply, answer) = oneshot::channel();
        if self.lease_queue.try_send((request, reply)).is_err() {
            return Ok(too_many_requests());
        }
        answer.await.map_err(|_| LeadError::NotLeader)
    }

    /// The node first leaves the voters, then the map; until then it has to ask again.
    async fn lead_leave(
        &self,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Result<LeaderResponse, LeadError> {
        let core = self.core().map_err(|_| LeadError::NotLeader)?;
        let votes = core.voters().contains(&node);
        {
            let mut leader_state = self.leader_state.lock();
            let Some(leader_state) = leader_state.as_mut() else {
                return Ok(newly_elected());
            };
            leader_state.stops.leave(node, incarnation);
            let map = self.map();
            if votes
                && !voters::others_can_vote(
                    &map,
                    node,
                    &leader_state.stops.leaving(&map),
                    &self.options,
                )
            {
                return Ok(LeaderResponse::LastVoter);
            }
        }
        if votes {
            return Ok(LeaderResponse::later(
                50,
                format!("node {node} still votes: the voters are being changed"),
            ));
        }
        if let Some(wait) = self.opens_in(node) {
            let reason = format!("epochs without node {node} could not be opened yet");
            return Ok(LeaderResponse::later(wait.as_millis() as u32 + 1, reason));
        }
        let left = Proposal::unconditional(Change::NodeLeft { node, incarnation });
        match self.write(left).await? {
            LeaderResponse::Applied(_) => Ok(LeaderResponse::Noted),
            other => Ok(other),
        }
    }

    /// The time for which the groups of this node would wait for their next epoch, were it committed now: a leader opens
    /// none in its first lease. A node that leaves and still runs waits in their place.
    fn opens_in(&self, node: NodeId) -> Option<Duration> {
        let leader_state = self.leader_state.lock();
        let (now, map) = (self.now(), self.map());
        let groups = map.groups.values().filter(|g| g.names(node));
        let leases = &leader_state.as_ref()?.leases;
        let opens_at = groups.filter_map(|g| leases.opens_at(g)).max()?;
        (opens_at > now).then(|| opens_at.since(now))
    }
}

/// A leader without contact to a majority of the voters for long may have been deposed without knowing it.
pub(crate) fn lost_majority(core: &Core) -> Option<LeaderResponse> {
    let silent = core.raft.metrics().borrow().millis_since_quorum_ack;
    let long = silent.is_some_and(|ms| u128::from(ms) > QUORUM_SILENCE_MAX.as_millis());
    long.then(|| LeaderResponse::later(50, "the leader hears no majority of the voters"))
}

pub(crate) fn too_many_requests() -> LeaderResponse {
    LeaderResponse::later(50, "too many lease requests wait at the leader")
}

pub(crate) fn newly_elected() -> LeaderResponse {
    LeaderResponse::later(20, "the leader has only just been elected")
}
