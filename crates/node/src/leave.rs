//! Leaving in good order: what this node serves goes to others before it goes.
//!
//! Blocks of files that it alone has could be read again from their source. Others copy them as far as they can in a short while: memory is
//! faster.
//!
//! It is drained for that, and the drain must not outlive the stop: it is taken back after the
//! leave, or, if that fails (all nodes stop at once, or the process is killed on its way out), when the
//! node comes back, as a mark in the data folder shows. It is asked for on a revision of the map, so that it cannot be ordered once the node has
//! left: what a dead process has sent may arrive late.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_directory::{DirectoryError, Left, Proposal};
use staves_model::{
    Change, ClusterMap, Holder, Holdings, Incarnation, MemberId, MemberSlot, NodeId, Refusal,
};

use crate::running::Running;

/// The deadline of a single step at the directory.
const STEP: Duration = Duration::from_secs(2);
/// The least of such a step, when the time of the stop is over: the mark does it at the next start otherwise.
const LAST_STEP: Duration = Duration::from_millis(200);
/// Of the time that a stop may take, this part others have to copy what only this node has of files.
const FILES_PART: u32 = 5;
/// The deadline for giving up the vote and leaving.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(3);
/// At most this part of the time that a stop may take goes into that.
const LEAVE_PART: u32 = 3;
/// The time that other nodes, of which none is up, have to come back before what this one serves goes with it.
const OTHERS_COME: Duration = Duration::from_secs(5);
/// A newer map that is known to be there is waited for as long as this before the directory is asked again.
const MAP_COMES: Duration = Duration::from_millis(50);
/// The pause before a returned node asks again to be given buckets.
const REST: Duration = Duration::from_secs(1);
/// The mark in the data folder: this node is drained because it stops.
const MARK: &str = "leaving";

/// Hands over and leaves, within `stop_ms`. Whatever fails, the node stops all the same: the
/// cluster takes it for dead then, and loses nothing that has copies.
pub(crate) async fn leave(running: &Running) {
    let until = Instant::now() + running.stop_ms;
    let leave_timeout = leave_timeout(running.stop_ms);
    let me = running.host.life.node;
    let map = once_others_are_up(running, me).await;
    // Who is drained already stays so, and has handed over what could be.
    let drained_before = map.nodes.get(&me).is_some_and(|n| n.draining);
    let has = serves(&map, running) || has_files(&map, running);
    let drains = !drained_before && others_up(&map, me) && has;
    if drains && let Err(error) = hand_over(running, until - leave_timeout).await {
        tracing::warn!(%error, "leaving without having handed over");
    }
    match running.directory.leave(leave_timeout).await {
        Ok(Left::HandedOver) => tracing::info!("left the cluster"),
        Ok(Left::LastVoter) => {
            tracing::info!("no other node can vote: the directory waits for this one's return");
        }
        Err(error) => tracing::warn!(%error, "left without a goodbye"),
    }
    if drains {
        resume(running, step_until(until)).await;
    }
}

/// The part of a stop that takes `stop_ms` in which the node leaves, having handed over in the rest.
fn leave_timeout(stop_ms: Duration) -> Duration {
    LEAVE_TIMEOUT.min(stop_ms / LEAVE_PART)
}

/// The deadline of a step at the directory that should be done by then.
fn step_until(until: Instant) -> Duration {
    until
        .saturating_duration_since(Instant::now())
        .clamp(LAST_STEP, STEP)
}

/// A node that came back: ends the drain of its last stop, if that was not done then. It tries until it has: a mark that
/// stayed would end another drain in a later life, which somebody has asked for by then.
pub(crate) async fn came_back(running: Arc<Running>) {
    if mark(&running).is_some_and(|mark| mark.exists()) {
        let asks = || resume(&running, STEP);
        until_done(asks, || running.is_stopping()).await;
    }
}

/// Tries until it is done, or nobody wants it any more.
async fn until_done<F>(mut attempt: impl FnMut() -> F, given_up: impl Fn() -> bool)
where
    F: Future<Output = bool>,
{
    while !given_up() && !attempt().await {
        tokio::time::sleep(REST).await;
    }
}

/// The map, once other nodes are up: where they are restarted one after another without a wait, all of them can be on their way for a
/// moment, and what this one serves would be lost with it. If they stay away, all of the cluster stops.
async fn once_others_are_up(running: &Running, me: NodeId) -> Arc<ClusterMap> {
    let mut maps = running.directory.map();
    let map = maps.borrow_and_update().clone();
    if others_up(&map, me) || map.nodes.len() < 2 || !serves(&map, running) {
        return map;
    }
    let patience = OTHERS_COME.min(running.stop_ms / LEAVE_PART);
    let others = maps.wait_for(|map| others_up(map, me));
    match tokio::time::timeout(patience, others).await {
        Ok(Ok(map)) => map.clone(),
        _ => map,
    }
}

fn others_up(map: &ClusterMap, me: NodeId) -> bool {
    map.homes().any(|home| home.id != me)
}

/// True if the map names this life of this node the data bucket of any group that another can serve as well.
/// With m > 1 there is nothing to hand over but by making the whole bucket elsewhere, which a drain is for.
fn serves(map: &ClusterMap, running: &Running) -> bool {
    let life = running.host.life;
    let mine = |g: &staves_model::Group| {
        let serves = g.member(MemberSlot(0)).filter(|_| g.m == 1);
        serves.is_some_and(|x| x.id == MemberId::new(life.node, life.incarnation))
    };
    map.groups.values().any(mine)
}

/// True if there are blocks of files here, in buckets that no node holds that stays.
fn has_files(map: &ClusterMap, running: &Running) -> bool {
    let life = running.host.life;
    running.files.pools().iter().any(|pool| {
        let holdings = map.pools.get(&pool.id).and_then(|p| p.holdings());
        let bytes = pool.blocks.bucket_bytes();
        holdings.is_some_and(|h| is_alone_with_some(h, life.node, life.incarnation, &bytes))
    })
}

/// True if this life of a node has anything of a bucket that no other node means to keep.
fn is_alone_with_some(
    holdings: &Holdings,
    node: NodeId,
    incarnation: Incarnation,
    bucket_bytes: &[u64],
) -> bool {
    (0..).zip(bucket_bytes).any(|(bucket, bytes)| {
        let stays = |h: &Holder| !h.leaving && !h.is(node, incarnation);
        let holds = holdings.place(bucket, node, incarnation).is_some();
        *bytes > 0 && holds && !holdings.holders(bucket).iter().any(stays)
    })
}

/// Asks the directory to move this node's data buckets, and waits until none is left here; for files, not long.
async fn hand_over(running: &Running, until: Instant) -> Result<(), DirectoryError> {
    let node = running.host.life.node;
    if let Some(mark) = mark(running)
        && let Err(error) = std::fs::write(&mark, b"")
    {
        tracing::warn!(%error, mark = %mark.display(), "cannot be written");
    }
    ask_for_drain(running, until).await?;
    let files_until = until.min(Instant::now() + running.stop_ms / FILES_PART);
    let mut map = running.directory.map();
    // If all nodes stop at once, nobody is left to take anything.
    let gone = map.wait_for(|map| !serves(map, running) || !others_up(map, node));
    if tokio::time::timeout_at(until.into(), gone).await.is_err() {
        tracing::warn!("some data buckets are still here: their copies take over without them");
    }
    let gone = map.wait_for(|map| !has_files(map, running) || !others_up(map, node));
    if tokio::time::timeout_at(files_until.into(), gone)
        .await
        .is_err()
    {
        tracing::info!(
            "some of the files that only this node has must be read from their source again"
        );
    }
    Ok(())
}

/// Asks until the map has not moved on meanwhile.
async fn ask_for_drain(running: &Running, until: Instant) -> Result<(), DirectoryError> {
    let (node, mut map) = (running.host.life.node, running.directory.map());
    loop {
        let revision = map.borrow_and_update().revision;
        let drain = Proposal::at(revision, Change::Drain { node, on: true });
        match running.directory.propose(drain, step_until(until)).await {
            Err(DirectoryError::Refused(Refusal::MapMovedOn { .. })) if Instant::now() < until => {
                // Its newest state is on its way here.
                let _ = tokio::time::timeout(MAP_COMES, map.changed()).await;
            }
            outcome => return outcome.map(drop),
        }
    }
}

/// The wish to be drained was for one stop only: the node gets buckets again when it comes back. Whether the wish is gone.
async fn resume(running: &Running, patience: Duration) -> bool {
    let node = running.host.life.node;
    let resume = Proposal::unconditional(Change::Drain { node, on: false });
    match running.directory.propose(resume, patience).await {
        Ok(_) => {
            if let Some(mark) = mark(running)
                && let Err(error) = std::fs::remove_file(&mark)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(%error, mark = %mark.display(), "remove it, or the next start of this node ends its drain");
            }
            true
        }
        Err(error) => {
            tracing::info!(%error, "the node stays marked as draining until the directory has heard otherwise");
            false
        }
    }
}

/// The path of the mark, if the node has a folder.
fn mark(running: &Running) -> Option<PathBuf> {
    running.data.as_ref().map(|data| data.join(MARK))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However short a stop is made, most of it is for handing over.
    #[test]
    fn a_short_stop_hands_over_too() {
        let of = |ms| leave_timeout(Duration::from_millis(ms)).as_millis();
        assert_eq!(
            [300, 3_000, 9_000, 60_000].map(of),
            [100, 1_000, 3_000, 3_000]
        );
        let over = Instant::now();
        assert_eq!(step_until(over), LAST_STEP);
        assert_eq!(step_until(over + Duration::from_secs(60)), STEP);
    }

    /// A stop waits for nothing where nothing can be won: no bytes, or another node goes on with them.
    #[test]
    fn only_what_nobody_else_goes_on_with_is_waited_for() {
        let holder = |node: u64, leaving| Holder {
            node: NodeId(node),
            incarnation: Incarnation(node),
            leaving,
        };
        let buckets = vec![
            vec![holder(1, false)],
            vec![holder(1, true), holder(2, false)],
            vec![holder(2, false)],
            vec![holder(1, true), holder(2, true)],
            vec![],
        ];
        let holdings = Holdings {
            buckets,
            ..Holdings::default()
        };
        let waits = |bucket: usize, bytes: u64| {
            let mut all = [0; 5];
            all[bucket] = bytes;
            is_alone_with_some(&holdings, NodeId(1), Incarnation(1), &all)
        };
        assert_eq!(
            [0, 1, 2, 3, 4].map(|b| waits(b, 7)),
            [true, false, false, true, false]
        );
        assert_eq!([0, 1, 2, 3, 4].map(|b| waits(b, 0)), [false; 5]);
        assert!(!is_alone_with_some(
            &holdings,
            NodeId(1),
            Incarnation(2),
            &[7; 5]
        ));
    }

    /// Regression: the one attempt of a node that came back could fail, and it stayed drained for all of its life.
    #[tokio::test]
    async fn the_drain_of_a_stop_is_taken_back_until_that_is_done() {
        let mut tries = 0;
        let second = || {
            tries += 1;
            std::future::ready(tries == 2)
        };
        until_done(second, || false).await;
        assert_eq!(tries, 2);
        // A node that stops again wants to be drained.
        let never = || -> std::future::Ready<bool> { panic!("it stops") };
        until_done(never, || true).await;
    }
}
