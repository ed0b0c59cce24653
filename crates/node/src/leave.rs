//! Leaving in good order: what this node serves goes to others before it goes.
//!
//! It is drained for that, and the wish to be drained must not outlive the stop: it is taken back after the
//! goodbye, or, if that fails (all nodes stop at once, or the process is killed on its way out), when the
//! node comes back, which a mark in the data folder tells it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_directory::{DirectoryError, Left, Proposal};
use staves_model::{Change, ClusterMap, MemberSlot, NodeId, NodeState};

use crate::node::Running;

/// How long a single step at the directory may take.
const STEP: Duration = Duration::from_secs(2);
/// How long giving the vote up and the goodbye may take.
const FAREWELL: Duration = Duration::from_secs(3);
/// How long a node that came back tries to be given buckets again.
const RESUME: Duration = Duration::from_secs(30);
/// The mark in the data folder: this node is drained because it stops.
const MARK: &str = "leaving";

/// Hands over and says goodbye, within `stop_ms`. Whatever fails, the node stops all the same: the
/// cluster takes it for dead then, and loses nothing that has copies.
pub(crate) async fn leave(running: &Running) {
    let until = Instant::now() + running.stop_ms;
    let map = running.directory.map().borrow().clone();
    let me = running.host.life.node;
    // Who is drained already stays so, and has handed over what could be.
    let drained_before = map.nodes.get(&me).is_some_and(|n| n.draining);
    let drains = !drained_before && others_up(&map, me) && serves(&map, running);
    if drains && let Err(error) = hand_over(running, until).await {
        tracing::warn!(%error, "leaving without having handed over");
    }
    match running.directory.leave(FAREWELL).await {
        Ok(Left::HandedOver) => tracing::info!("left the cluster"),
        Ok(Left::LastVoter) => {
            tracing::info!("no other node can vote: the directory waits for this one's return");
        }
        Err(error) => tracing::warn!(%error, "left without a goodbye"),
    }
    if drains {
        resume(running, STEP).await;
    }
}

/// A node that came back: ends the drain of its last stop, if that was not done then.
pub(crate) async fn came_back(running: Arc<Running>) {
    if mark(&running).is_some_and(|mark| mark.exists()) {
        resume(&running, RESUME).await;
    }
}

fn others_up(map: &ClusterMap, me: NodeId) -> bool {
    let other = |n: &staves_model::Node| n.state == NodeState::Up && n.id != me && !n.draining;
    map.nodes.values().any(other)
}

/// Whether the map names this life of this node the data bucket of any group that another can serve as well.
/// With m > 1 there is nothing to hand over but by making the whole bucket elsewhere, which a drain is for.
fn serves(map: &ClusterMap, running: &Running) -> bool {
    let life = running.host.life;
    let mine = |g: &staves_model::Group| {
        let serves = g.member(MemberSlot(0)).filter(|_| g.m == 1);
        serves.is_some_and(|x| x.is(life.node, life.incarnation))
    };
    map.groups.values().any(mine)
}

/// Asks the directory to move this node's data buckets, and waits until none is left here.
async fn hand_over(running: &Running, until: Instant) -> Result<(), DirectoryError> {
    let node = running.host.life.node;
    if let Some(mark) = mark(running)
        && let Err(error) = std::fs::write(&mark, b"")
    {
        tracing::warn!(%error, mark = %mark.display(), "cannot be written");
    }
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

/// The wish to be drained was for one stop only: the node gets buckets again when it comes back.
async fn resume(running: &Running, patience: Duration) {
    let node = running.host.life.node;
    let resume = Proposal::unconditional(Change::Drain { node, on: false });
    match running.directory.propose(resume, patience).await {
        Ok(_) => {
            if let Some(mark) = mark(running) {
                let _ = std::fs::remove_file(mark);
            }
        }
        Err(error) => {
            tracing::info!(%error, "the node stays marked as draining until it comes back");
        }
    }
}

/// Where the mark is, if the node has a folder.
fn mark(running: &Running) -> Option<PathBuf> {
    running.data.as_ref().map(|data| data.join(MARK))
}
