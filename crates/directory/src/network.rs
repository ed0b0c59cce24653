//! Raft's requests over the node's transport.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

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

use crate::message::{Body, Letter, Reply, VERSION, decode, encode};
use crate::transport::{Transport, TransportError};
use crate::types::Types;

/// How long an unreachable node is left alone. Less than the leader's lease, or its return costs an election.
const BACKOFF: Duration = Duration::from_millis(100);

/// Where starting nodes said that they are, until the map has it: (address, life in the map then).
pub(crate) type SeenAt = Arc<Mutex<BTreeMap<NodeId, (String, Incarnation)>>>;

/// Makes links; also carries the directory's other requests.
#[derive(Clone)]
pub(crate) struct Network {
    pub transport: Arc<dyn Transport>,
    pub map: watch::Receiver<Arc<ClusterMap>>,
    pub seen_at: SeenAt,
    pub cluster: ClusterId,
    pub me: NodeId,
}

impl Network {
    /// Where a node is reached: where it said itself if that is news, else as the map has it, else as given.
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

    /// One request to `to` (0: whoever is at `addr`), and its answer.
    pub fn call(
        &self,
        to: NodeId,
        addr: &str,
        body: Body,
        deadline: Duration,
    ) -> impl Future<Output = Result<Reply, TransportError>> + Send + use<> {
        let letter = Letter {
            version: VERSION,
            cluster: self.cluster,
            from: self.me,
            to,
            body,
        };
        let target = (to != NodeId(0)).then_some(to);
        let addr = addr.to_owned();
        let call = self
            .transport
            .call(target, &addr, encode(&letter), deadline);
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
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Link;

    async fn new_client(&mut self, target: NodeId, node: &BasicNode) -> Link {
        Link {
            network: self.clone(),
            target,
            addr: node.addr.clone(),
        }
    }
}

/// The way to one node.
pub(crate) struct Link {
    network: Network,
    target: NodeId,
    addr: String,
}

type Failed<E> = RPCError<NodeId, BasicNode, E>;

impl Link {
    async fn call<E: std::error::Error>(
        &self,
        body: Body,
        option: RPCOption,
    ) -> Result<Reply, Failed<E>> {
        let addr = self.network.address(self.target, &self.addr);
        let result = self
            .network
            .call(self.target, &addr, body, option.hard_ttl())
            .await;
        match result {
            Ok(Reply::Misdirected { cluster, node }) => {
                let reason = format!(
                    "{addr} is node {node} of cluster {cluster} now, not node {}",
                    self.target
                );
                Err(Unreachable::new(&AnyError::error(reason)).into())
            }
            Ok(Reply::Failed(reason)) => Err(NetworkError::new(&AnyError::error(reason)).into()),
            Ok(reply) => Ok(reply),
            Err(e @ TransportError::Refused { .. }) => Err(Unreachable::new(&e).into()),
            Err(e) => Err(NetworkError::new(&e).into()),
        }
    }

    fn unexpected<E: std::error::Error>(&self) -> Failed<E> {
        let reason = format!(
            "node {} answered something else than was asked",
            self.target
        );
        NetworkError::new(&AnyError::error(reason)).into()
    }
}

impl RaftNetwork<Types> for Link {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, Failed<RaftError<NodeId>>> {
        match self.call(Body::Append(rpc), option).await? {
            Reply::Append(answer) => Ok(answer),
            _ => Err(self.unexpected()),
        }
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<NodeId>, Failed<RaftError<NodeId, InstallSnapshotError>>>
    {
        match self.call(Body::Snapshot(rpc), option).await? {
            Reply::Snapshot(answer) => Ok(answer),
            Reply::SnapshotMismatch(e) => {
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
        match self.call(Body::Vote(rpc), option).await? {
            Reply::Vote(answer) => Ok(answer),
            _ => Err(self.unexpected()),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(BACKOFF))
    }
}
