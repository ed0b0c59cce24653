//! Requests by way of other nodes, which may reach a node that this one does not.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use staves_model::{Node, NodeId, NodeState};

use super::Network;
use crate::message::{PeerRequest, PeerResponse, decode};
use crate::transport::TransportError;

impl Network {
    /// One request to a node, through another one if the node does not answer pings.
    pub async fn call_or_relay(
        &self,
        to: NodeId,
        body: PeerRequest,
        deadline: Duration,
    ) -> Result<PeerResponse, TransportError> {
        let (addr, envelope) = (self.address(to, ""), self.envelope(to, body));
        let away = self.unreachable.lock().contains(&to);
        // Not every one may reach it: another at each try.
        let turn = usize::from(rand::random::<u8>());
        let relayed =
            away.then(|| self.send_through(turn, (to, addr.clone()), &envelope, deadline));
        match relayed.flatten() {
            Some(relayed) => relayed.await,
            None => self.send(to, addr, envelope, deadline).await,
        }
    }

    /// Sends an envelope by way of another node, which may reach its receiver where this one does not. Each `turn` asks
    /// another. `None` if there is no other.
    pub(super) fn send_through(
        &self,
        turn: usize,
        (to, addr): (NodeId, String),
        envelope: &Bytes,
        deadline: Duration,
    ) -> Option<impl Future<Output = Result<PeerResponse, TransportError>> + Send + use<>> {
        let (via, via_addr) = self.relay(turn, to)?;
        let relay = PeerRequest::Relay {
            addr: addr.clone(),
            envelope: envelope.to_vec(),
            budget_ms: deadline.as_millis() as u32,
        };
        let relayed = self.call(via, &via_addr, relay, deadline);
        let broken = move |reason: String| TransportError::Broken {
            addr,
            reason: format!("asked through {via_addr}: {reason}"),
        };
        Some(async move {
            match relayed.await? {
                PeerResponse::Relayed(answer) => {
                    decode(&answer).map_err(|e| broken(format!("its answer cannot be read: {e}")))
                }
                PeerResponse::Failed(reason) => Err(broken(reason)),
                _ => Err(broken("it answered something else than was asked".into())),
            }
        })
    }

    fn relay(&self, turn: usize, to: NodeId) -> Option<(NodeId, String)> {
        let (map, unreachable) = (self.map.borrow().clone(), self.unreachable.lock().clone());
        let reached = |n: &&Node| {
            n.state == NodeState::Up
                && n.id != self.me
                && n.id != to
                && !unreachable.contains(&n.id)
        };
        let nodes: Vec<_> = map.nodes.values().filter(reached).collect();
        let via = nodes.get(turn.checked_rem(nodes.len())?)?;
        Some((via.id, self.address(via.id, &via.native)))
    }
}
