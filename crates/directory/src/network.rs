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

use crate::message::{Envelope, PeerRequest, PeerResponse, VERSION, decode, encode};
use crate::transport::{Transport, TransportError};
use crate::types::Types;

/// The time for which an unreachable node is left alone. Less than the leader's lease, or its return costs an election.
const BACKOFF: Duration = Duration::from_millis(100);

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
        let envelope = Envelope {
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
            .call(target, &addr, encode(&envelope), deadline);
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
    type Network = RaftLink;

    async fn new_client(&mut self, target: NodeId, node: &BasicNode) -> RaftLink {
        RaftLink {
            network: self.clone(),
            target,
            addr: node.addr.clone(),
        }
    }
}

/// The connection to one node.
pub(crate) struct RaftLink {
    network: Network,
    target: NodeId,
    addr: String,
}

type Failed<E> = RPCError<NodeId, BasicNode, E>;

impl RaftLink {
    async fn call<E: std::error::Error>(
        &self,
        body: PeerRequest,
        option: RPCOption,
    ) -> Result<PeerResponse, Failed<E>> {
        let addr = self.network.address(self.target, &self.addr);
        let result = self
            .network
            .call(self.target, &addr, body, option.hard_ttl())
            .await;
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

impl RaftNetwork<Types> for RaftLink {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, Failed<RaftError<NodeId>>> {
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
mod tests {
    use super::*;
    use crate::fatal::tests::Alone;

    fn two_nodes() -> ClusterMap {
        let mut map = staves_model::testing::cluster(0);
        for name in ["a", "b"] {
            let node = staves_model::testing::new_node(name, 1);
            map.apply(None, &node).expect("sound");
        }
        map
    }

    /// Regression: a process on a copy of a node's folder, refused and gone, left its address with all that it had asked,
    /// and they sought the node there for the rest of its life.
    #[tokio::test]
    async fn a_node_that_is_not_where_it_said_is_sought_where_the_map_has_it() {
        let node = NodeId(2);
        let map = two_nodes();
        let life = map.nodes[&node].incarnation;
        let (_window, map) = watch::channel(Arc::new(map));
        let mut network = Network {
            transport: Arc::new(Alone),
            map,
            seen_at: SeenAt::default(),
            cluster: ClusterId(7),
            me: NodeId(1),
        };
        let said = ("copy:1600".to_owned(), life);
        network.seen_at.lock().insert(node, said);
        assert_eq!(network.address(node, ""), "copy:1600");
        let link = network.new_client(node, &BasicNode::new("b:1600")).await;
        let option = RPCOption::new(Duration::from_secs(20));
        let asked = link
            .call::<RaftError<NodeId>>(PeerRequest::Ping { incarnation: life }, option)
            .await;
        assert!(asked.is_err(), "nobody listens there");
        assert_eq!(network.address(node, ""), "b:1600");
    }
}
