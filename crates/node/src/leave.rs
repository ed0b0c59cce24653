//! Leaving in good order: what this node serves goes to others before it goes.

use std::time::{Duration, Instant};

use staves_directory::{DirectoryError, Left, Proposal};
use staves_model::{Change, ClusterMap, MemberSlot, NodeId, NodeState};

use crate::node::Running;

/// How long a single step at the directory may take.
const STEP: Duration = Duration::from_secs(2);
/// Least time left for giving the vote up, whatever the hand-over takes.
const FAREWELL: Duration = Duration::from_secs(2);

/// Hands over and says goodbye, within `stop_ms`. Whatever fails, the node stops all the same: the
/// cluster takes it for dead then, and loses nothing that has copies.
pub(crate) async fn leave(running: &Running) {
    let until = Instant::now() + running.stop_ms;
    let map = running.directory.map().borrow().clone();
    let me = running.host.life.node;
    let drained_before = map.nodes.get(&me).is_some_and(|n| n.draining);
    let others = others_up(&map, me);
    if others
        && serves(&map, running)
        && let Err(error) = hand_over(running, until).await
    {
        tracing::warn!(%error, "leaving without having handed over");
    }
    let left = until
        .saturating_duration_since(Instant::now())
        .max(FAREWELL);
    match running.directory.leave(left).await {
        Ok(Left::HandedOver) => {
            tracing::info!("left the cluster");
            if others && !drained_before {
                resume(running, me).await;
            }
        }
        Ok(Left::LastVoter) => {
            tracing::info!("the only node that can vote stops: the directory waits for its return");
            if others && !drained_before {
                resume(running, me).await;
            }
        }
        Err(error) => tracing::warn!(%error, "left without a goodbye"),
    }
}

fn others_up(map: &ClusterMap, me: NodeId) -> bool {
    let other = |n: &staves_model::Node| n.state == NodeState::Up && n.id != me && !n.draining;
    map.nodes.values().any(other)
}

/// Whether the map names this life of this node the data bucket of any group.
fn serves(map: &ClusterMap, running: &Running) -> bool {
    let life = running.host.life;
    let mine = |g: &staves_model::Group| {
        g.member(MemberSlot(0))
            .is_some_and(|x| x.is(life.node, life.incarnation))
    };
    map.groups.values().any(mine)
}

/// Asks the directory to move this node's data buckets, and waits until none is left here.
async fn hand_over(running: &Running, until: Instant) -> Result<(), DirectoryError> {
    let node = running.host.life.node;
    let drain = Proposal::unconditional(Change::Drain { node, on: true });
    running.directory.propose(drain, STEP).await?;
    let mut map = running.directory.map();
    // If all nodes stop at once, nobody is left to take anything.
    let gone = map.wait_for(|map| !serves(map, running) || !others_up(map, node));
    let until = until.checked_sub(FAREWELL).unwrap_or(until);
    if tokio::time::timeout_at(until.into(), gone).await.is_err() {
        tracing::warn!("some data buckets are still here: their copies take over without them");
    }
    Ok(())
}

/// The wish to be drained was for this stop only: the node gets buckets again when it comes back.
async fn resume(running: &Running, node: NodeId) {
    let resume = Proposal::unconditional(Change::Drain { node, on: false });
    if let Err(error) = running.directory.propose(resume, STEP).await {
        tracing::warn!(%error, "the node is still marked as draining: 'staves node resume' ends that");
    }
}
