//! Requests to the leader: the node that each try goes to, retries, and the other nodes' side of them.
//!
//! A request goes to the leader directly if this node knows one, or else through another node, which
//! passes it on once. So a node that is cut from the leader but not from everybody still gets through.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use openraft::error::RaftError;
use staves_model::{ClusterId, Incarnation, NodeId, NodeState, Sign, StopReply};
use tokio::runtime::Handle;

use crate::directory::{Core, Inner};
use crate::elections;
use crate::error::DirectoryError;
use crate::message::{
    Envelope, LeaderRequest, LeaderResponse, PeerRequest, PeerResponse, encode, open_envelope,
};
use crate::transport::TransportError;
use crate::types::LogId;
use crate::waiting::WaitNotice;

/// The number of times that nodes which do not lead may forward a request.
const HOPS: u8 = 1;
/// The time that one node has to answer a repeatable request before another one is asked.
const TRY: Duration = Duration::from_millis(500);
/// A proposal is not made in so short a rest of its time: its outcome would most likely be unknown.
const LEAST: Duration = Duration::from_millis(50);
/// The pause between two tries: an election is under way, most often.
const REST: Duration = Duration::from_millis(20);
/// Time that a node has to answer a ping on another's behalf.
pub(crate) const PROBED: Duration = Duration::from_millis(200);

/// The reason for which the presumed leader gave no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeadError {
    /// It does not lead (any more), and has done nothing.
    NotLeader,
    /// Its Raft ended before the answer: the proposal may be in the log of others, and may still be committed.
    CutOff,
}

/// The error text of a request whose outcome is unknown.
const CUT_OFF: &str = "its Raft ended before it said what became of the question";

/// The failure of one try.
enum TryError {
    /// Another node may lead.
    Elsewhere {
        leader: Option<(NodeId, String)>,
        why: String,
    },
    /// The request may have been received.
    Lost(String),
}

/// The reason for which a request has no answer.
struct LastReason {
    text: String,
    is_of_try: bool,
}

impl LastReason {
    fn new() -> LastReason {
        LastReason {
            text: "no node of the cluster is known".to_owned(),
            is_of_try: false,
        }
    }

    /// Notes the failure of a try that had so much time. One that had only the rest of the deadline explains nothing: "it did not answer
    /// within 8 ms" is no reason for seconds without a leader.
    fn note(&mut self, why: String, time: Duration) {
        if time >= TRY || !self.is_of_try {
            self.text = why;
            self.is_of_try = true;
        }
    }

    /// The reason for which the answer to the last try is lost.
    fn lost(self, why: String, time: Duration, all: Duration) -> String {
        match self.is_of_try && time < TRY {
            true => format!(
                "{why}, which was all that was left of {} ms; before: {}",
                all.as_millis(),
                self.text
            ),
            false => why,
        }
    }
}

impl Inner {
    /// Sends a request to the leader until it answers or the deadline passes.
    pub async fn ask(
        self: &Arc<Self>,
        request: LeaderRequest,
        deadline: Duration,
    ) -> Result<LeaderResponse, DirectoryError> {
        let begun = Instant::now();
        let waiting_for = request.name();
        let mut hint = None;
        let mut last = LastReason::new();
        // Other requests are asked by a node that is up, and is seen to be without a leader.
        let mut waiting =
            matches!(request, LeaderRequest::Join(_)).then(|| WaitNotice::since(begun));
        for attempt in 0.. {
            let left = deadline.saturating_sub(begun.elapsed());
            if left.is_zero() || attempt > 0 && left < LEAST && !request.repeatable() {
                break;
            }
            let mut rest = REST;
            match self.try_once(&request, attempt, hint.take(), left).await {
                Ok(LeaderResponse::Later { wait_ms, reason }) => {
                    last.note(reason, TRY);
                    rest = Duration::from_millis(wait_ms.into()).max(REST);
                }
                Ok(answer) => return Ok(answer),
                Err(TryError::Elsewhere { leader, why }) => {
                    hint = leader;
                    last.note(why, left);
                }
                Err(TryError::Lost(why)) if request.repeatable() => last.note(why, left),
                Err(TryError::Lost(why)) => {
                    return Err(DirectoryError::Unknown {
                        waiting_for,
                        waited: begun.elapsed(),
                        last: last.lost(why, left, deadline),
                    });
                }
            }
            if let Some(waiting) = &mut waiting {
                waiting.warn(
                    "a majority of its directory",
                    &last.text,
                    "start its voters again",
                );
            }
            // A hint is followed at once, but once: two nodes that name each other must not keep us busy.
            if hint.is_none() || attempt > 0 {
                let left = deadline.saturating_sub(begun.elapsed());
                tokio::time::sleep(rest.min(left)).await;
            }
        }
        Err(DirectoryError::NoLeader {
            waiting_for,
            waited: begun.elapsed(),
            last: last.text,
        })
    }

    async fn try_once(
        self: &Arc<Self>,
        request: &LeaderRequest,
        attempt: usize,
        hint: Option<(NodeId, String)>,
        left: Duration,
    ) -> Result<LeaderResponse, TryError> {
        let patience = if request.repeatable() {
            left.min(TRY)
        } else {
            left
        };
        if self.leads().is_some() {
            // On the directory's own threads: they would wait for whoever holds the leader's state and is not given a processor.
            let (inner, request) = (self.clone(), request.clone());
            let lead = async move { tokio::time::timeout(patience, inner.lead(request)).await };
            let runtime = self.runtime.get().cloned().unwrap_or_else(Handle::current);
            let Ok(lead) = runtime.spawn(lead).await else {
                return Err(TryError::Lost("this node stops".into()));
            };
            return match lead {
                Ok(Ok(answer)) => Ok(answer),
                Ok(Err(LeadError::NotLeader)) => Err(TryError::Elsewhere {
                    leader: None,
                    why: "this node leads no longer".into(),
                }),
                Ok(Err(LeadError::CutOff)) => {
                    Err(TryError::Lost(format!("this node led, but {CUT_OFF}")))
                }
                Err(_) => Err(TryError::Lost(
                    "this node leads, but no majority answers it".into(),
                )),
            };
        }
        let core = self.core().map_err(|e| TryError::Elsewhere {
            leader: None,
            why: e.to_string(),
        })?;
        let turn = self.misses.load(Ordering::Relaxed);
        let Some((node, addr)) = self.next_target(core, attempt, turn, hint) else {
            return Err(TryError::Elsewhere {
                leader: None,
                why: "no other node is known".into(),
            });
        };
        let budget_ms = patience.as_millis() as u32;
        let body = PeerRequest::ForLeader {
            request: request.clone(),
            known: self.known_entry(core),
            hops: HOPS,
            budget_ms,
        };
        let reply = core.network.call(node, &addr, body, patience).await;
        let result = judge(reply, &addr);
        if result.is_err() {
            // Once for all that failed by the same way, so that all find the one that works.
            let next = turn.wrapping_add(1);
            let misses = &self.misses;
            let _ = misses.compare_exchange(turn, next, Ordering::Relaxed, Ordering::Relaxed);
        }
        result
    }

    /// The leader, as far as known; every other time, and if none is known, somebody else.
    fn next_target(
        &self,
        core: &Core,
        attempt: usize,
        turn: usize,
        hint: Option<(NodeId, String)>,
    ) -> Option<(NodeId, String)> {
        if hint.is_some() {
            return hint;
        }
        let unreachable = self.unreachable.lock().clone();
        let leader = self.leader_contact(core);
        let heard = leader
            .as_ref()
            .is_some_and(|(node, _)| !unreachable.contains(node));
        if heard && attempt.is_multiple_of(2) {
            return leader;
        }
        let map = self.map();
        let up = map
            .nodes
            .values()
            .filter(|n| n.state == NodeState::Up && n.id != core.me);
        let (far, mut others): (Vec<_>, Vec<_>) = up
            .map(|n| (n.id, n.native.clone()))
            .partition(|(node, _)| unreachable.contains(node));
        if others.is_empty() {
            others = far;
        }
        // What the map says may be long out of date: this node may have slept through everybody's move.
        let seeds = self
            .options
            .join
            .iter()
            .filter(|a| **a != self.options.node.native);
        let new: Vec<_> = seeds
            .filter(|a| !others.iter().any(|(_, known)| known == *a))
            .collect();
        others.extend(new.into_iter().map(|addr| (NodeId(0), addr.clone())));
        if others.is_empty() {
            return leader;
        }
        Some(others.swap_remove(turn % others.len()))
    }

    /// The leader's id and address, if it is another node than this.
    pub fn leader_contact(&self, core: &Core) -> Option<(NodeId, String)> {
        let metrics = core.raft.metrics();
        let (leader, given) = {
            let m = metrics.borrow();
            let leader = m.current_leader.filter(|l| *l != core.me)?;
            let given = m
                .membership_config
                .membership()
                .get_node(&leader)
                .map(|n| n.addr.clone());
            (leader, given.unwrap_or_default())
        };
        let addr = core.network.address(leader, &given);
        (!addr.is_empty()).then_some((leader, addr))
    }

    /// Another node's request, and the answer to it.
    pub async fn handle(self: Arc<Self>, request: &[u8]) -> Bytes {
        let reply = match open_envelope(request) {
            Err(reason) => PeerResponse::Failed(reason),
            Ok(envelope) => self.receive(envelope).await,
        };
        encode(&reply)
    }

    async fn receive(self: Arc<Self>, envelope: Envelope) -> PeerResponse {
        let Ok(core) = self.core() else {
            return PeerResponse::Failed("this node has not joined its cluster yet".into());
        };
        let joins = matches!(
            envelope.body,
            PeerRequest::ForLeader {
                request: LeaderRequest::Join(_),
                ..
            }
        );
        let ours = envelope.cluster == core.cluster || (joins && envelope.to == NodeId(0));
        if !ours || (envelope.to != core.me && envelope.to != NodeId(0)) {
            return PeerResponse::Misdirected {
                cluster: core.cluster,
                node: core.me,
            };
        }
        match envelope.body {
            PeerRequest::Append(rpc) => {
                // When it came, however long the disk takes.
                if rpc.vote >= core.raft.metrics().borrow().vote {
                    self.leader_heard.store(self.now().0, Ordering::Relaxed);
                }
                if let Some(forgotten) = self.contradicted(core, &rpc) {
                    let reason = forgotten.to_string();
                    self.end_life(forgotten);
                    return PeerResponse::Failed(reason);
                }
                match core.raft.append_entries(rpc).await {
                    Ok(answer) => PeerResponse::Append(answer),
                    Err(e) => PeerResponse::Failed(e.to_string()),
                }
            }
            PeerRequest::Vote(rpc) if !self.may_vote(core, rpc.last_log_id) => {
                PeerResponse::Failed(
                    "its data folder was copied or restored: it votes later".into(),
                )
            }
            PeerRequest::Vote(rpc) => match core.raft.vote(rpc).await {
                Ok(answer) => {
                    if answer.vote_granted {
                        self.vote_granted.store(self.now().0, Ordering::Relaxed);
                    }
                    PeerResponse::Vote(answer)
                }
                Err(e) => PeerResponse::Failed(e.to_string()),
            },
            PeerRequest::PreVote { log } => {
                let last_log = log.last_log;
                self.learn_voters(log);
                let granted = elections::would_vote(&self, core, last_log);
                PeerResponse::PreVote { granted }
            }
            PeerRequest::LogEnd => PeerResponse::LogEnd(self.log_end(core)),
            PeerRequest::Snapshot(rpc) => match core.raft.install_snapshot(rpc).await {
                Ok(answer) => PeerResponse::Snapshot(answer),
                Err(RaftError::APIError(e)) => PeerResponse::SnapshotMismatch(e),
                Err(e) => PeerResponse::Failed(e.to_string()),
            },
            PeerRequest::ForLeader {
                request,
                known,
                hops,
                budget_ms,
            } => {
                let budget = Duration::from_millis(budget_ms.into());
                let asker = (envelope.from, known);
                self.answer(core, asker, request, hops, budget).await
            }
            PeerRequest::Stand { term, heir } => self.stand(term, heir).await,
            // Life 0 is asked for by who would take this node's place: this process has it, hanging or not.
            PeerRequest::Ping { incarnation } if incarnation.0 != 0 && self.hangs() => {
                PeerResponse::Failed("the node that it belongs to does nothing any more".into())
            }
            PeerRequest::Ping { .. } => match self.life() {
                Ok((_, incarnation)) => PeerResponse::Pong {
                    incarnation,
                    stops: self.stop_state(),
                },
                Err(e) => PeerResponse::Failed(e.to_string()),
            },
            PeerRequest::Probe {
                node,
                incarnation,
                addr,
            } => {
                let sign = self.probe(node, incarnation, &addr, PROBED).await;
                PeerResponse::Probed { sign }
            }
            PeerRequest::Relay {
                addr,
                envelope,
                budget_ms,
            } => {
                if !core.network.is_known(&addr) {
                    return PeerResponse::Failed(format!("no node is known to be at {addr}"));
                }
                let budget = Duration::from_millis(budget_ms.into());
                let passed = self.transport.call(None, &addr, envelope.into(), budget);
                match passed.await {
                    Ok(answer) => PeerResponse::Relayed(answer.into()),
                    Err(e) => PeerResponse::Failed(e.to_string()),
                }
            }
        }
    }

    async fn answer(
        self: &Arc<Self>,
        core: &Core,
        (from, known): (NodeId, Option<LogId>),
        request: LeaderRequest,
        hops: u8,
        budget: Duration,
    ) -> PeerResponse {
        if let LeaderRequest::Join(join) = &request {
            self.note_address(join);
        }
        if self.leads().is_some() {
            return match tokio::time::timeout(budget, self.lead(request)).await {
                Ok(Ok(answer)) => {
                    PeerResponse::Answered(self.unless_forgotten(core, known, answer))
                }
                Ok(Err(LeadError::NotLeader)) => PeerResponse::NotLeader { leader: None },
                Ok(Err(LeadError::CutOff)) => {
                    PeerResponse::Failed(format!("it led, but {CUT_OFF}"))
                }
                Err(_) => {
                    PeerResponse::Failed("it leads, but no majority answered it in time".into())
                }
            };
        }
        let leader = self.leader_contact(core).filter(|(node, _)| *node != from);
        let Some((node, addr)) = leader else {
            return PeerResponse::NotLeader { leader: None };
        };
        if self.unreachable.lock().contains(&node) {
            return PeerResponse::NotLeader { leader: None };
        }
        if hops == 0 {
            return PeerResponse::NotLeader {
                leader: Some((node, addr)),
            };
        }
        let budget_ms = budget.as_millis() as u32;
        let repeatable = request.repeatable();
        let body = PeerRequest::ForLeader {
            request,
            known,
            hops: hops - 1,
            budget_ms,
        };
        match core.network.call(node, &addr, body, budget).await {
            Ok(reply) => reply,
            Err(e) if e.undelivered() || repeatable => PeerResponse::NotLeader { leader: None },
            Err(e) => PeerResponse::Failed(e.to_string()),
        }
    }

    /// Pings a life of a node; a node that answers gives its stop state.
    pub async fn ping(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        addr: &str,
        patience: Duration,
    ) -> StopReply {
        let Ok(core) = self.core() else {
            return StopReply::Silent;
        };
        let body = PeerRequest::Ping { incarnation };
        match core.network.call(node, addr, body, patience).await {
            Ok(PeerResponse::Pong {
                incarnation: found,
                stops,
            }) if found == incarnation => StopReply::State(stops),
            // Another life, or another node, has the address: the one that is asked for is over.
            Ok(PeerResponse::Pong { .. } | PeerResponse::Misdirected { .. }) => StopReply::Over,
            Err(TransportError::Refused { .. }) => StopReply::Over,
            _ => StopReply::Silent,
        }
    }

    /// Pings a life of a node; the result is evidence of it.
    pub async fn probe(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        addr: &str,
        patience: Duration,
    ) -> Sign {
        match self.ping(node, incarnation, addr, patience).await {
            StopReply::State(_) => Sign::Alive,
            StopReply::Silent => Sign::Silent,
            StopReply::Over => Sign::Refused,
        }
    }

    /// Remembers where a node that comes back is reached, so that Raft finds it before the map says so:
    /// a cluster all of whose nodes moved could not elect a leader otherwise.
    fn note_address(&self, join: &crate::message::Join) {
        let Some(node) = join.node else { return };
        let map = self.map();
        if let Some(known) = map.nodes.get(&node).filter(|_| join.cluster == map.cluster) {
            let entry = (join.facts.native.clone(), known.incarnation);
            self.seen_at.lock().insert(node, entry);
        }
    }
}

fn judge(
    reply: Result<PeerResponse, TransportError>,
    addr: &str,
) -> Result<LeaderResponse, TryError> {
    match reply {
        Ok(PeerResponse::Answered(answer)) => Ok(answer),
        Ok(PeerResponse::NotLeader { leader }) => {
            let why = format!("{addr} does not lead and knows of no other leader");
            Err(TryError::Elsewhere { leader, why })
        }
        Ok(PeerResponse::Misdirected { cluster, node }) => {
            let why = format!("{addr} is node {node} of cluster {cluster}");
            Err(TryError::Elsewhere { leader: None, why })
        }
        Ok(PeerResponse::Failed(reason)) => Err(TryError::Lost(format!("{addr}: {reason}"))),
        Ok(_) => Err(TryError::Lost(format!(
            "{addr} answered something else than was asked"
        ))),
        Err(e) if e.undelivered() => Err(TryError::Elsewhere {
            leader: None,
            why: e.to_string(),
        }),
        Err(e) => Err(TryError::Lost(e.to_string())),
    }
}

/// For a node without an id: asks one address to join, on nobody's behalf.
pub(crate) async fn ask_to_join(
    network: &crate::network::Network,
    addr: &str,
    request: &LeaderRequest,
    patience: Duration,
) -> Result<LeaderResponse, String> {
    let budget_ms = patience.as_millis() as u32;
    let body = PeerRequest::ForLeader {
        request: request.clone(),
        known: None,
        hops: HOPS,
        budget_ms,
    };
    let reply = network.call(NodeId(0), addr, body, patience).await;
    match judge(reply, addr) {
        Ok(answer) => Ok(answer),
        Err(TryError::Elsewhere { why, .. } | TryError::Lost(why)) => Err(why),
    }
}

/// No cluster yet.
pub(crate) const NO_CLUSTER: ClusterId = ClusterId(0);

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: an operator read "it did not answer within 8 ms" of a proposal for which a leader had been looked for for five seconds,
    /// and "did not come within 8 ms" of one whose connection had broken after as much.
    #[test]
    fn times_in_errors_are_those_that_were_waited() {
        let all = Duration::from_secs(5);
        let mut last = LastReason::new();
        last.note("n1 does not lead".into(), all);
        last.note(
            "n2 did not answer within 8 ms".into(),
            Duration::from_millis(8),
        );
        assert_eq!(last.text, "n1 does not lead");
        let lost = last.lost(
            "n2 did not answer within 60 ms".into(),
            Duration::from_millis(60),
            all,
        );
        assert_eq!(
            lost,
            "n2 did not answer within 60 ms, which was all that was left of 5000 ms; before: n1 does not lead"
        );
        // A deadline that was short from the start is the caller's own.
        let mut short = LastReason::new();
        short.note(
            "n1 did not answer within 8 ms".into(),
            Duration::from_millis(8),
        );
        assert_eq!(short.text, "n1 did not answer within 8 ms");
        assert_eq!(LastReason::new().lost("cut".into(), all, all), "cut");
        let unknown = DirectoryError::Unknown {
            waiting_for: "a proposal",
            waited: Duration::from_millis(8),
            last: "the connection broke".into(),
        };
        let text = unknown.to_string();
        assert!(
            text.contains("lost, 8 ms after it was first asked for"),
            "{text}"
        );
    }
}
