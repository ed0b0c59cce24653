//! The transfer of leadership: a leader that leaves, or that reaches few nodes, hands over to another voter, so that no
//! election is waited for. One that hears nobody could not: it falls silent, and the others elect one.
//!
//! openraft has no transfer of leadership: a follower grants no vote until the leader has been silent for
//! one election time-out, which is what makes the loss of a leader cost 450 to 600 ms. But a voter whose
//! stored vote names a candidate that has not won (in openraft, one that is not committed) is not held by that. So:
//!
//! ```text
//! leader     orders nothing more, and waits until a voter has all of its log: the heir
//! leader     Stand -> so many others as a majority needs beside itself and the heir (none of three)
//! leader     Stand -> the heir, which stands for election again and again, soon
//! leader     a heartbeat: the heir's answer names a higher term, and the leader steps down, its vote
//!            now for the heir's first candidacy
//! heir       its next candidacy has the leader's vote, and a majority
//! ```
//!
//! It is Raft's own election all the time: whatever is lost on the way, and whoever else stands, there
//! is at most one leader a term, with all that was committed. If nobody takes over within [`PATIENCE`], the
//! leader, if it still is, goes on, and its membership changes as before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::Rng;
use staves_model::reach::{apart, heirs_of_narrow};
use staves_model::{NodeId, NodeState};
use tokio::time::timeout;

use crate::directory::{Core, Inner};
use crate::message::{PeerRequest, PeerResponse};
use crate::types::Metrics;

/// The time that a transfer may take. Writes wait meanwhile.
const PATIENCE: Duration = Duration::from_millis(400);
/// The time for which a leader that hears nobody is silent: what it said before is on its way for a while yet, on a link on which
/// nobody hears it in time, and then others need an election's time.
const SILENCE: Duration = Duration::from_millis(2500);
/// Pauses between candidacies of the heir; chance makes them up to twice as long. They grow, for a vote has
/// to be written down: the next must not overtake it on a slow disk, nor depose a leader that was just
/// elected and is not known yet.
const RESTS_MS: [u64; 9] = [5, 10, 20, 40, 80, 160, 320, 640, 1280];
/// The index of the first pause of a voter that is not the heir.
const OTHERS_BEGIN: usize = 4;
/// The pause between the heartbeats whose answers tell the leader of the heir's candidacy.
const NUDGE: Duration = Duration::from_millis(5);

/// A sign that stands as long as this lives.
struct Raised<'a>(&'a AtomicBool);

impl<'a> Raised<'a> {
    fn new(sign: &'a AtomicBool) -> Raised<'a> {
        sign.store(true, Ordering::Release);
        Raised(sign)
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Inner {
    /// The voters to whom the lead may go, if this node leads and leaves, or has reached few nodes for a while and one of them reaches more; none means that there is nothing to hand over, or nobody.
    pub fn heirs(&self) -> Vec<NodeId> {
        let Some(core) = self.core.get().filter(|_| self.leads().is_some()) else {
            return Vec::new();
        };
        let (map, leader_state) = (self.map(), self.leader_state.lock());
        let Some(leader_state) = leader_state.as_ref() else {
            return Vec::new();
        };
        let leaving = leader_state.stops.leaving(&map);
        let up = |id: &NodeId| map.nodes.get(id).is_some_and(|n| n.state == NodeState::Up);
        let stay = core.voters().into_iter().filter(|id| !leaving.contains(id));
        if leaving.contains(&core.me) {
            stay.filter(|id| *id != core.me && up(id)).collect()
        } else if leader_state.planner.is_narrow(core.me) {
            let cuts = leader_state.detector.cuts();
            heirs_of_narrow(&map, &cuts, core.me, &stay.collect())
        } else {
            Vec::new()
        }
    }

    /// So many other voters as a majority needs beside this leader and its heir, those that the heir reaches first.
    fn others_of_majority(&self, core: &Core, heir: NodeId) -> Vec<NodeId> {
        let (map, leader_state) = (self.map(), self.leader_state.lock());
        let leaving = leader_state.as_ref().map(|state| state.stops.leaving(&map));
        let cuts = leader_state.as_ref().map(|state| state.detector.cuts());
        let (leaving, cuts) = (leaving.unwrap_or_default(), cuts.unwrap_or_default());
        let voters = core.voters();
        let majority = voters.len() / 2 + 1;
        let able = |id: &NodeId| {
            let up = map.nodes.get(id).is_some_and(|n| n.state == NodeState::Up);
            up && *id != core.me && *id != heir && !leaving.contains(id)
        };
        let mut others: Vec<_> = voters.into_iter().filter(able).collect();
        others.sort_by_key(|id| apart(&cuts, heir, *id));
        others.truncate(majority.saturating_sub(2));
        others
    }

    /// Hands the lead to one of these voters. True if somebody else leads then.
    pub async fn hand_over(&self, heirs: &[NodeId]) -> bool {
        let Ok(core) = self.core() else { return false };
        let _pause = Raised::new(&self.handing_over);
        let handed = timeout(PATIENCE, async {
            let heir = heir(core, heirs).await;
            // They must let go of this leader too, and first.
            for other in self.others_of_majority(core, heir) {
                ask_to_stand(core, other, false);
            }
            tokio::time::sleep(NUDGE).await;
            ask_to_stand(core, heir, true);
            self.step_down(core).await;
            wait_for(core, |m| m.current_leader.is_some_and(|l| l != core.me)).await;
            heir
        });
        let handed = handed.await;
        match handed {
            Ok(heir) => tracing::info!(%heir, "the lead was handed over"),
            Err(_) => tracing::info!("nobody took the lead over in time"),
        }
        handed.is_ok()
    }

    /// True if this node leads and has missed all others for a while, of which there are several: its own link is slow, or it lacks
    /// processor time.
    pub fn leads_alone(&self) -> bool {
        let (Some(core), Some(_)) = (self.core.get(), self.leads()) else {
            return false;
        };
        let leader_state = self.leader_state.lock();
        leader_state
            .as_ref()
            .is_some_and(|state| state.detector.hears_nobody(core.me))
    }

    /// Says and orders nothing as the leader for [`SILENCE`], or until another leads: what it says comes so late that the others follow it
    /// and nothing is ordered, and a transfer takes several round trips.
    pub async fn fall_silent(&self) {
        let Ok(core) = self.core() else { return };
        tracing::warn!("this leader hears no other node: it is silent, so that others elect one");
        let _pause = Raised::new(&self.handing_over);
        let _silence = Raised::new(&self.mute);
        let others = wait_for(core, |m| m.current_leader != Some(core.me));
        if timeout(SILENCE, others).await.is_err() {
            tracing::info!("nobody else leads: this node goes on");
        }
    }

    /// Beats until an answer names a higher term.
    async fn step_down(&self, core: &Core) {
        while self.leads().is_some() {
            let _ = core.raft.trigger().heartbeat().await;
            tokio::time::sleep(NUDGE).await;
        }
    }

    /// Stands for election against the leader of that term, who asked for it, and for a while again whenever nobody
    /// leads: nobody else would for as long as an election time-out. The heir does so sooner.
    pub async fn stand(&self, term: u64, heir: bool) -> PeerResponse {
        let Ok(core) = self.core() else {
            return PeerResponse::Failed("this node has not joined its cluster yet".into());
        };
        if !self.may_vote(core, self.store.last_log()) {
            return PeerResponse::Failed("its data folder was copied or restored".into());
        }
        let led = |m: &Metrics| m.current_term > term && m.current_leader.is_some();
        let begin = if heir { 0 } else { OTHERS_BEGIN };
        for rest in &RESTS_MS[begin..] {
            // Not in step with another candidate.
            let rest = rest * rand::rng().random_range(1000..2000);
            let rest = Duration::from_micros(rest);
            if led(&core.raft.metrics().borrow()) {
                // A candidacy that was on its way may yet depose the new leader, and cannot win, for its log is
                // shorter: so no voter that was asked is done at the first sight of a leader.
                tokio::time::sleep(rest).await;
                continue;
            }
            if core.raft.trigger().elect().await.is_err() {
                return PeerResponse::Failed("Raft has stopped on this node".into());
            }
            let _ = timeout(rest, wait_for(core, led)).await;
        }
        PeerResponse::Stood
    }
}

/// Asks a voter to stand for election, now that this leader goes.
pub(crate) fn ask_to_stand(core: &Core, node: NodeId, heir: bool) {
    let term = core.raft.metrics().borrow().current_term;
    let (network, body) = (core.network.clone(), PeerRequest::Stand { term, heir });
    tokio::spawn(async move {
        if let Err(reason) = network.call_or_relay(node, body, PATIENCE).await {
            tracing::debug!(%node, %reason, "was not asked to stand for election");
        }
    });
}

/// The first of these that has all of the leader's log.
async fn heir(core: &Core, heirs: &[NodeId]) -> NodeId {
    let has_all = |m: &Metrics, id: &NodeId| {
        let matched = m.replication.as_ref().and_then(|r| r.get(id).copied());
        matched.flatten().map(|log| log.index) >= m.last_log_index
    };
    let mut metrics = core.raft.metrics();
    loop {
        let found = {
            let m = metrics.borrow_and_update();
            heirs.iter().copied().find(|id| has_all(&m, id))
        };
        match found {
            Some(heir) => return heir,
            // An error means that Raft stopped; the caller's patience ends this.
            None if metrics.changed().await.is_err() => std::future::pending::<()>().await,
            None => {}
        }
    }
}

/// Waits until Raft's metrics say so. The caller bounds it.
async fn wait_for(core: &Core, holds: impl Fn(&Metrics) -> bool) {
    let mut metrics = core.raft.metrics();
    if metrics.wait_for(|m| holds(m)).await.is_err() {
        std::future::pending::<()>().await; // Raft stopped: there is nothing more to see
    }
}
