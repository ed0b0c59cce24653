//! The driver of [`ElectionTimer`]: shows that this node leads while it does, and stands for election when nobody does.
//!
//! openraft has timers of its own, but one time bounds both their period and its wait for the answer to an append. With them
//! a leader would order nothing where a round trip takes longer than a heartbeat's period, as on a machine that is starved of
//! processor time; so they are off, and answers are waited for as long as openraft allows ([`ElectionTimes::vote_lease`]).
//!
//! openraft has no pre-vote either, and needs one: its voters do not take up the term of a candidate whose log is shorter, so that
//! a candidacy of one that could win fails against that term. The others are asked here before a candidacy, the same way as for votes.
//!
//! A leader that leaves asks its heir to stand at once (`leadership_transfer`), whatever the heir's timer says.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use openraft::BasicNode;
use parking_lot::Mutex;
use rand::Rng;
use staves_model::{ElectionTimer, ElectionTimes, ElectionView, Time, may_win};
use tokio::task::JoinSet;

use crate::directory::{Core, Inner};
use crate::restored::{IF_BEHIND, IS_BEHIND};
use crate::types::LogId;
use crate::waiting::WaitNotice;

/// The time that those have to answer whom a node asks that votes alone.
const OTHERS_ANSWER: Duration = Duration::from_millis(200);
/// Time between two looks at the timers.
const LOOK: Duration = Duration::from_millis(25);

/// Runs until Raft ends.
pub(crate) async fn run(inner: Arc<Inner>, times: ElectionTimes, heartbeat: Duration) {
    let Some(core) = inner.core.get() else { return };
    let draw = || rand::rng().random_range(0..1000);
    let mut timer = ElectionTimer::new(times, inner.now(), draw());
    let mut beat = Time::ZERO;
    let waiting = Arc::new(Mutex::new(WaitNotice::since(Instant::now())));
    // They end with this.
    let mut candidacies = JoinSet::new();
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = inner.now();
        let state = core.raft.metrics().borrow().state;
        // A node that does nothing any more must not lead.
        if inner.hangs() {
            continue;
        }
        if state.is_leader() {
            if now < beat + heartbeat || inner.mute.load(Ordering::Acquire) {
                continue;
            }
            beat = now;
            if core.raft.trigger().heartbeat().await.is_err() {
                return;
            }
        } else {
            let seen = view(&inner, core);
            if timer.stands(now, &seen, draw()) {
                while candidacies.try_join_next().is_some() {}
                candidacies.spawn(stand(inner.clone(), seen, waiting.clone()));
            }
        }
        if core.raft.metrics().has_changed().is_err() {
            return;
        }
    }
}

/// Stands for election if a majority would vote for this node, and no leader and no other candidate came up while it was asked.
async fn stand(inner: Arc<Inner>, seen: ElectionView, waiting: Arc<Mutex<WaitNotice>>) {
    let Some(core) = inner.core.get() else { return };
    if may_be_elected(&inner, core, &waiting).await && view(&inner, core) == seen {
        // Raft may have ended: the driver sees it too.
        let _ = core.raft.trigger().elect().await;
    }
}

/// Asks the voters for their pre-votes, until they are a majority. False if they are not, or this node is no voter.
async fn may_be_elected(inner: &Inner, core: &Core, waiting: &Mutex<WaitNotice>) -> bool {
    let membership = core.raft.metrics().borrow().membership_config.clone();
    let membership = membership.membership();
    let sets = membership.get_joint_config();
    if !sets.iter().any(|set| set.contains(&core.me)) {
        return false;
    }
    let log = inner.log_end(core);
    let last_log = log.last_log;
    if !inner.may_vote(core, last_log) {
        return false;
    }
    let alone = sets.iter().all(|set| set.len() == 1) && !inner.options.data_is_newest;
    if alone && is_left_behind(inner, core, last_log).await {
        waiting.lock().warn("a leader", IS_BEHIND, IF_BEHIND);
        return false;
    }
    let patience = inner.options.times.election.vote_lease();
    let mut answers = JoinSet::new();
    for (voter, node) in membership.nodes() {
        if *voter != core.me && sets.iter().any(|set| set.contains(voter)) {
            let (voter, link, log) = (*voter, core.network.link(*voter, node), log.clone());
            answers.spawn(async move {
                let granted = link.pre_vote(log, patience).await;
                granted.then_some(voter)
            });
        }
    }
    let mut votes = BTreeSet::from([core.me]);
    while !may_win(sets, &votes) {
        match answers.join_next().await {
            Some(answer) => votes.extend(answer.ok().flatten()),
            None => return false,
        }
    }
    true
}

/// True if a node that this one's map knows has more of the log, though this one votes alone by what it has: its folder is an older copy,
/// and others vote now. It waits until their leader sends it what it lacks.
async fn is_left_behind(inner: &Inner, core: &Core, last_log: Option<LogId>) -> bool {
    let map = inner.map();
    let mut answers = JoinSet::new();
    for node in map.nodes.values().filter(|node| node.id != core.me) {
        let link = core
            .network
            .link(node.id, &BasicNode::new(node.native.clone()));
        answers.spawn(link.log_end(OTHERS_ANSWER));
    }
    let mut behind = false;
    while let Some(answer) = answers.join_next().await {
        behind |= matches!(answer, Ok(Some(end)) if end.last_log > last_log);
    }
    behind
}

/// The pre-vote of this node for a candidate whose log ends there. A leader gives none.
pub(crate) fn would_vote(inner: &Inner, core: &Core, last_log: Option<LogId>) -> bool {
    let leads = core.raft.metrics().borrow().state.is_leader() && !inner.hangs();
    let has_all = last_log >= inner.store.last_log();
    let times = &inner.options.times.election;
    !leads
        && inner.may_vote(core, last_log)
        && view(inner, core).would_vote(inner.now(), times, has_all)
}

fn view(inner: &Inner, core: &Core) -> ElectionView {
    let metrics = core.raft.metrics();
    let metrics = metrics.borrow();
    let voters: Vec<_> = metrics.membership_config.voter_ids().collect();
    ElectionView {
        term: metrics.current_term,
        leader_heard: Time(inner.leader_heard.load(Ordering::Relaxed)),
        vote_granted: Time(inner.vote_granted.load(Ordering::Relaxed)),
        alone: voters == [core.me],
    }
}
