//! Raft's requests over the node's transport.

mod relayed;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use openraft::error::{
    InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable,
};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{AnyError, BasicNode};
use parking_lot::Mutex;
use staves_model::{ClusterId, ClusterMap, Incarnation, NodeId};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::message::{Envelope, LogEnd, PeerRequest, PeerResponse, VERSION, decode, encode};
use crate::transport::{Transport, TransportError};
use crate::types::Types;

/// The time for which an unreachable node is left alone. Less than the leader's lease, or its return costs an election.
const BACKOFF: Duration = Duration::from_millis(100);

/// A message whose answer takes longer goes another way as well: half the time between a heartbeat and an election is left.
const HEDGE: Duration = Duration::from_millis(75);

/// Most ways that one message goes: straight, and through other nodes.
const WAYS_MAX: usize = 3;

/// A longer message goes one way only.
const HEDGED_BYTES_MAX: usize = 64 << 10;

/// The time for which other nodes pass on what is meant for a node that did not answer. Then it is tried straight again.
const DETOUR: Duration = Duration::from_secs(1);

/// The addresses that starting nodes gave, until the map has them: (address, life in the map then). An address is no proof
/// of life: a message names its receiver, and a ping's answer the life that gave it.
pub(crate) type SeenAt = Arc<Mutex<BTreeMap<NodeId, (String, Incarnation)>>>;

/// Makes links; also carries the directory's other requests.
#[derive(Clone)]
pub(crate) struct Network {
    pub transport: Arc<dyn Transport>,
    pub map: watch::Receiver<Arc<ClusterMap>>,
    pub seen_at: SeenAt,
    pub cluster: ClusterId,
    pub me: NodeId,
    /// Nodes that did not answer this one's last pings.
    pub unreachable: Arc<Mutex<BTreeSet<NodeId>>>,
    /// Set while this leader is to be heard no more as one ([`Inner::fall_silent`](crate::directory::Inner::fall_silent)).
    pub mute: Arc<AtomicBool>,
}

impl Network {
    /// A node's address: the one that it gave itself if that is news, else the map's, else the given one.
    pub fn address(&self, node: NodeId, otherwise: &str) -> String {
        let map = self.map.borrow();
        let Some(known) = map.nodes.get(&node) else {
            return otherwise.to_owned();
        };
        match self.seen_at.lock().get(&node) {
            Some((addr, life)) if *life == known.incarnation => addr.clone(),
            _ => known.native.clone(),
        }
    }

    /// True if a node is, or says that it is, at this address.
    pub fn is_known(&self, addr: &str) -> bool {
        let map = self.map.borrow();
        let said = |seen: &BTreeMap<_, (String, _)>| seen.values().any(|(seen, _)| seen == addr);
        map.nodes.values().any(|n| n.native == addr) || said(&self.seen_at.lock())
    }

    /// Drops the address that a starting node gave: it has not come up there, or a process on a copy of its folder gave
    /// it. The map's address holds again; if the node does start there it gives the address again.
    fn is_not_at(&self, node: NodeId, addr: &str) {
        let mut seen_at = self.seen_at.lock();
        if seen_at.get(&node).is_some_and(|(seen, _)| seen == addr) {
            seen_at.remove(&node);
        }
    }

    /// One request to `to` (0: whoever is at `addr`), and its answer.
    pub fn call(
        &self,
        to: NodeId,
        addr: &str,
        body: PeerRequest,
        deadline: Duration,
    ) -> impl Future<Output = Result<PeerResponse, TransportError>> + Send + use<> {
        self.send(to, addr.to_owned(), self.envelope(to, body), deadline)
    }

    fn send(
        &self,
        to: NodeId,
        addr: String,
        envelope: Bytes,
        deadline: Duration,
    ) -> impl Future<Output = Result<PeerResponse, TransportError>> + Send + use<> {
        let target = (to != NodeId(0)).then_some(to);
        let call = self.transport.call(target, &addr, envelope, deadline);
        async move {
            // The transport must keep the deadline; that nothing waits for ever must not rest on it.
            let bytes = tokio::time::timeout(deadline, call)
                .await
                .unwrap_or_else(|_| {
                    Err(TransportError::TimedOut {
                        addr: addr.clone(),
                        waited: deadline,
                    })
                })?;
            decode(&bytes).map_err(|e| TransportError::Broken {
                addr,
                reason: format!("its answer cannot be read: {e}"),
            })
        }
    }

    fn envelope(&self, to: NodeId, body: PeerRequest) -> Bytes {
        encode(&Envelope {
            version: VERSION,
            cluster: self.cluster,
            from: self.me,
            to,
            body,
        })
    }

    /// A new connection to one node.
    pub fn link(&self, target: NodeId, node: &BasicNode) -> RaftLink {
        RaftLink {
            network: self.clone(),
            target,
            addr: node.addr.clone(),
            asked: false,
            detour: None,
            turn: 0,
        }
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = RaftLink;

    async fn new_client(&mut self, target: NodeId, node: &BasicNode) -> RaftLink {
        self.link(target, node)
    }
}

/// The connection to one node.
pub(crate) struct RaftLink {
    network: Network,
    target: NodeId,
    addr: String,
    /// A request is under way, or was given up by whoever waited for it.
    asked: bool,
    /// The time until which other nodes pass on what is said here.
    detour: Option<Instant>,
    /// Counts the other nodes that could not.
    turn: usize,
}

type Failed<E> = RPCError<NodeId, BasicNode, E>;

impl RaftLink {
    async fn call<E: std::error::Error>(
        &mut self,
        body: PeerRequest,
        option: RPCOption,
    ) -> Result<PeerResponse, Failed<E>> {
        if std::mem::replace(&mut self.asked, true) {
            self.nobody_answered();
        }
        let addr = self.network.address(self.target, &self.addr);
        let result = self.any_way(&addr, body, option.hard_ttl()).await;
        self.asked = false;
        if let Ok(PeerResponse::Misdirected { .. }) | Err(TransportError::Refused { .. }) = &result
        {
            self.network.is_not_at(self.target, &addr);
        }
        match result {
            Ok(PeerResponse::Misdirected { cluster, node }) => {
                let reason = format!(
                    "{addr} is node {node} of cluster {cluster} now, not node {}",
                    self.target
                );
                Err(Unreachable::new(&AnyError::error(reason)).into())
            }
            Ok(PeerResponse::Failed(reason)) => {
                Err(NetworkError::new(&AnyError::error(reason)).into())
            }
            Ok(reply) => Ok(reply),
            Err(e @ TransportError::TimedOut { .. }) => Err(NetworkError::new(&e).into()),
            // It did not take long: a rest before the next.
            Err(e) => Err(Unreachable::new(&e).into()),
        }
    }

    /// Asks for the node's pre-vote; this is this node's log. False if it does not answer.
    pub async fn pre_vote(mut self, log: LogEnd, deadline: Duration) -> bool {
        let ask = PeerRequest::PreVote { log };
        let answer = self.ask(ask, deadline).await;
        matches!(answer, Some(PeerResponse::PreVote { granted: true }))
    }

    /// Asks where the node's log ends. `None` if it does not answer.
    pub async fn log_end(mut self, deadline: Duration) -> Option<LogEnd> {
        match self.ask(PeerRequest::LogEnd, deadline).await {
            Some(PeerResponse::LogEnd(end)) => Some(end),
            _ => None,
        }
    }

    async fn ask(&mut self, ask: PeerRequest, deadline: Duration) -> Option<PeerResponse> {
        let addr = self.network.address(self.target, &self.addr);
        self.any_way(&addr, ask, deadline).await.ok()
    }

    /// Sends straight, or through the node that last passed something on; and, while no answer comes, other ways as well:
    /// all that Raft says may arrive twice.
    async fn any_way(
        &mut self,
        addr: &str,
        body: PeerRequest,
        deadline: Duration,
    ) -> Result<PeerResponse, TransportError> {
        let begun = Instant::now();
        let envelope = self.network.envelope(self.target, body);
        let ways = match envelope.len() <= HEDGED_BYTES_MAX {
            true => WAYS_MAX,
            false => 1,
        };
        let straight = self.goes_straight();
        let mut under_way = JoinSet::new();
        let mut last = Err(TransportError::TimedOut {
            addr: addr.to_owned(),
            waited: deadline,
        });
        for way in 0.. {
            let left = deadline.saturating_sub(begun.elapsed());
            let (to, turn) = ((self.target, addr.to_owned()), self.turn + way);
            let relayed = match way {
                0 if straight => None,
                way if way >= ways => None,
                _ => self.network.send_through(turn, to.clone(), &envelope, left),
            };
            if let Some(call) = relayed {
                under_way.spawn(async move { (Some(turn), call.await) });
            } else if way == 0 {
                let call = self.network.send(to.0, to.1, envelope.clone(), left);
                under_way.spawn(async move { (None, call.await) });
            }
            let patience = if way + 1 < ways { HEDGE } else { left };
            match tokio::time::timeout(patience, under_way.join_next()).await {
                Ok(Some(Ok((through, Ok(answer))))) => {
                    self.answered(through);
                    return Ok(answer);
                }
                // Nobody is there: others would not find anybody either.
                Ok(Some(Ok((None, refused @ Err(TransportError::Refused { .. }))))) => {
                    return refused;
                }
                Ok(Some(Ok((_, failed)))) => last = failed,
                Ok(Some(Err(_))) | Err(_) => {}
                Ok(None) => break,
            }
            if begun.elapsed() >= deadline {
                break;
            }
        }
        self.nobody_answered();
        last
    }

    fn answered(&mut self, through: Option<usize>) {
        if let Some(turn) = through {
            self.turn = turn;
            self.detour.get_or_insert_with(|| Instant::now() + DETOUR);
        }
    }

    /// The next message begins with another way.
    fn nobody_answered(&mut self) {
        match self.detour {
            None => self.detour = Some(Instant::now() + DETOUR),
            Some(_) => self.turn += 1,
        }
    }

    /// A detour ends when its time is over and the node answers pings.
    fn goes_straight(&mut self) -> bool {
        let now = Instant::now();
        if self.network.unreachable.lock().contains(&self.target) {
            self.detour = Some(now + DETOUR);
        } else if self.detour.is_some_and(|until| until <= now) {
            self.detour = None;
        }
        self.detour.is_none()
    }

    fn unexpected<E: std::error::Error>(&self) -> Failed<E> {
        let reason = format!(
            "node {} answered something else than was asked",
            self.target
        );
        NetworkError::new(&AnyError::error(reason)).into()
    }
}

impl RaftNetwork<Types> for RaftLink {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, Failed<RaftError<NodeId>>> {
        if self.network.mute.load(Ordering::Acquire) {
            let reason = AnyError::error("this leader falls silent, so that others elect one");
            return Err(Unreachable::new(&reason).into());
        }
        match self.call(PeerRequest::Append(rpc), option).await? {
            PeerResponse::Append(answer) => Ok(answer),
            _ => Err(self.unexpected()),
        }
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<NodeId>, Failed<RaftError<NodeId, InstallSnapshotError>>>
    {
        match self.call(PeerRequest::Snapshot(rpc), option).await? {
            PeerResponse::Snapshot(answer) => Ok(answer),
            PeerResponse::SnapshotMismatch(e) => {
                Err(RemoteError::new(self.target, RaftError::APIError(e)).into())
            }
            _ => Err(self.unexpected()),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<NodeId>,
        option: RPCOption,
    ) -> Result<VoteResponse<NodeId>, Failed<RaftError<NodeId>>> {
        match self.call(PeerRequest::Vote(rpc), option).await? {
            PeerResponse::Vote(answer) => Ok(answer),
            _ => Err(self.unexpected()),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(BACKOFF))
    }
}

#[cfg(test)]
mod tests;
