//! The driver of [`ElectionTimer`]: shows that this node leads while it does, and stands for election when nobody does.
//!
//! openraft has timers of its own, but one time bounds both their period and its wait for the answer to an append. With them
//! a leader would order nothing where a round trip takes longer than a heartbeat's period, as on a machine that is starved of
//! processor time; so they are off, and answers are waited for as long as openraft allows ([`ElectionTimes::vote_lease`]).
//!
//! A leader that leaves asks its heir to stand at once (`leadership_transfer`), whatever the heir's timer says.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::Rng;
use staves_model::{ElectionTimer, ElectionTimes, ElectionView, Time};

use crate::directory::{Core, Inner};

/// Time between two looks at the timers.
const LOOK: Duration = Duration::from_millis(25);

/// Runs until Raft ends.
pub(crate) async fn run(inner: Arc<Inner>, times: ElectionTimes, heartbeat: Duration) {
    let Some(core) = inner.core.get() else { return };
    let draw = || rand::rng().random_range(0..1000);
    let mut timer = ElectionTimer::new(times, inner.now(), view(&inner, core).term, draw());
    let mut beat = Time::ZERO;
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = inner.now();
        let state = core.raft.metrics().borrow().state;
        // A node that does nothing any more must not lead.
        let told = if inner.hangs() {
            continue;
        } else if state.is_leader() {
            if now < beat + heartbeat {
                continue;
            }
            beat = now;
            core.raft.trigger().heartbeat().await
        } else if timer.stands(now, &view(&inner, core), draw()) {
            core.network.log_is_behind.store(false, Ordering::Relaxed);
            core.raft.trigger().elect().await // without effect if this node does not vote
        } else {
            Ok(())
        };
        if told.is_err() || core.raft.metrics().has_changed().is_err() {
            return;
        }
    }
}

fn view(inner: &Inner, core: &Core) -> ElectionView {
    let metrics = core.raft.metrics();
    let metrics = metrics.borrow();
    let voters: Vec<_> = metrics.membership_config.voter_ids().collect();
    ElectionView {
        term: metrics.current_term,
        leader_heard: Time(inner.leader_heard.load(Ordering::Relaxed)),
        vote_granted: Time(inner.vote_granted.load(Ordering::Relaxed)),
        log_is_behind: core.network.log_is_behind.load(Ordering::Relaxed),
        alone: voters == [core.me],
    }
}
