//! The driver of [`StopBook`]: asks all nodes for their permits, and has a quorum confirm this leader.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use staves_model::{Incarnation, NodeId, StopBook, StopReply};
use tokio::task::JoinSet;

use crate::directory::Inner;
use crate::lead::{lost_majority, newly_elected};
use crate::lease_batcher::confirm;
use crate::message::LeaderResponse;

/// Time that a node has to give its state.
const PATIENCE: Duration = Duration::from_millis(300);

impl Inner {
    /// Answers whether a node may stop.
    pub async fn lead_stop(
        self: &Arc<Self>,
        node: NodeId,
        incarnation: Incarnation,
    ) -> LeaderResponse {
        // Cut off, it would judge by a map that others have gone on from.
        if let Some(later) = self.core().ok().and_then(lost_majority) {
            return later;
        }
        let young = match self.leader_state.lock().as_ref() {
            Some(leader_state) => leader_state.stops.is_young(self.now()),
            None => return newly_elected(),
        };
        let others = self.others_gone(node, young).await;
        // A leader that was deposed meanwhile does not know whom the new one permits to stop.
        if let Err(reason) = confirm(self).await {
            return LeaderResponse::later(50, reason);
        }
        // The map under the lock: of two that ask at once, the second sees the permit of the first.
        self.with_leader_state(|leader_state| {
            let (now, map) = (self.now(), self.map());
            let stops = &mut leader_state.stops;
            match stops.permit(now, &map, node, incarnation, &others) {
                Ok(()) => LeaderResponse::Noted,
                Err(reason) => LeaderResponse::Refused(reason),
            }
        })
    }

    /// Nodes but `asking` that count as gone by their replies.
    async fn others_gone(self: &Arc<Self>, asking: NodeId, young: bool) -> BTreeSet<NodeId> {
        let me = self.life().map(|(node, _)| node).ok();
        let map = self.map();
        let mut replies = JoinSet::new();
        for node in StopBook::to_ask(&map, asking) {
            let (id, life, addr) = (node.id, node.incarnation, node.native.clone());
            let inner = self.clone();
            replies.spawn(async move {
                let reply = match Some(id) == me {
                    true => StopReply::State(inner.stop_state()),
                    false => inner.ping(id, life, &addr, PATIENCE).await,
                };
                StopBook::counts_as_gone(reply, young).then_some(id)
            });
        }
        let mut gone = BTreeSet::new();
        while let Some(one) = replies.join_next().await {
            gone.extend(one.ok().flatten());
        }
        gone
    }
}
