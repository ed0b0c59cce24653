//! Makes Raft's membership follow the map, one step of `voters.rs` at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::{BasicNode, ChangeMembers};
use staves_model::NodeId;

use crate::directory::Inner;
use crate::leadership_transfer::ask_to_stand;
use crate::types::{Metrics, Raft};
use crate::voters::{MembershipStep, View};

/// The period of its rounds, beside every change of the map.
const LOOK: Duration = Duration::from_millis(100);
/// The time that one step is waited for. It may still end well later; until then openraft refuses another.
const STEP: Duration = Duration::from_millis(2000);
/// The tries in a row of a leader to transfer the leadership. One that leaves simply gives up its vote then; one that
/// reaches few nodes goes on for [`REST`].
const HAND_OVERS: u32 = 3;
/// The time without tries after so many in vain: writes wait while one lasts.
const REST: Duration = Duration::from_secs(3);
/// The same for a leader that hears nobody, after each time that it was silent in vain.
const REST_OF_SILENT: Duration = Duration::from_secs(6);
/// The number of entries that a log may lack and count as caught up.
const NEAR: u64 = 100;

/// Runs at every node, and works at the leader, until the directory stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let Some(core) = inner.core.get() else { return };
    let mut map_watch = inner.map_watch.clone();
    let mut look = tokio::time::interval(LOOK);
    let (mut in_vain, mut rests_until) = (0, Instant::now());
    let mut speaks_until = Instant::now();
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = look.tick() => {}
            changed = map_watch.changed() => if changed.is_err() { return },
        }
        map_watch.mark_unchanged();
        // Several steps may follow from one change; the bound only keeps a mistake from spinning.
        for _ in 0..4 {
            // Between any two of them this node may begin to leave.
            if Instant::now() >= speaks_until && inner.leads_alone() {
                inner.fall_silent().await;
                speaks_until = Instant::now() + REST_OF_SILENT;
                break;
            }
            let heirs = inner.heirs();
            if in_vain >= HAND_OVERS && Instant::now() >= rests_until {
                in_vain = 0;
            }
            if !heirs.is_empty() && in_vain < HAND_OVERS && !changing(&inner) {
                let handed = inner.hand_over(&heirs).await;
                in_vain = if handed { 0 } else { in_vain + 1 };
                rests_until = Instant::now() + REST;
                break;
            }
            let Some(step) = next_step(&inner) else { break };
            let voters = match &step {
                MembershipStep::Vote(voters) if !voters.contains(&core.me) => voters.clone(),
                _ => BTreeSet::new(),
            };
            if !take(&core.raft, step).await {
                break;
            }
            // A node that gave up its own vote leads no longer, and the voters need not wait to see that. Any
            // of them may lack the last of the log, so that all are heirs: one that has it wins.
            for voter in voters {
                ask_to_stand(core, voter, true);
            }
        }
    }
}

fn next_step(inner: &Inner) -> Option<MembershipStep> {
    inner.leads()?;
    let metrics = inner.metrics()?;
    let mut leader_state = inner.leader_state.lock();
    let leader_state = leader_state.as_mut()?;
    let map = inner.map();
    let membership = metrics.membership_config.membership();
    let known = membership
        .nodes()
        .map(|(id, n)| (*id, n.addr.clone()))
        .collect();
    let just_down =
        leader_state.just_down(inner.now(), &map, inner.options.times.replace_voter_after);
    let view = View {
        map: &map,
        leader: metrics.id,
        voters: membership.get_joint_config(),
        known: &known,
        caught_up: &caught_up(&metrics),
        just_down: &just_down,
        leaving: &leader_state.stops.leaving(&map),
        voters_max: inner.options.voters_max,
        volatile_votes: inner.options.volatile_votes,
    };
    view.next_step()
}

/// True if a change of the voters is unfinished: that comes first.
fn changing(inner: &Inner) -> bool {
    let joint = |m: Metrics| m.membership_config.membership().get_joint_config().len() > 1;
    inner.metrics().is_some_and(joint)
}

fn caught_up(metrics: &Metrics) -> BTreeSet<NodeId> {
    let last = metrics.last_log_index.unwrap_or(0);
    let near =
        |matched: &Option<crate::types::LogId>| matched.is_some_and(|id| id.index + NEAR >= last);
    let others = metrics.replication.iter().flatten();
    others
        .filter(|(_, matched)| near(matched))
        .map(|(id, _)| *id)
        .chain([metrics.id])
        .collect()
}

/// Takes one step; false if it has to be looked at again later.
async fn take(raft: &Raft, step: MembershipStep) -> bool {
    tracing::info!(?step, "the directory's membership changes");
    let nodes = |nodes: BTreeMap<NodeId, String>| {
        nodes
            .into_iter()
            .map(|(id, addr)| (id, BasicNode { addr }))
            .collect()
    };
    let change = match step {
        MembershipStep::Add(new) => ChangeMembers::AddNodes(nodes(new)),
        MembershipStep::Move(moved) => ChangeMembers::SetNodes(nodes(moved)),
        MembershipStep::Remove(gone) => ChangeMembers::RemoveNodes(gone),
        MembershipStep::Vote(voters) => ChangeMembers::ReplaceAllVoters(voters),
    };
    // `true`: a node that votes no longer goes on as a learner.
    match tokio::time::timeout(STEP, raft.change_membership(change, true)).await {
        Ok(Ok(_)) => true,
        Ok(Err(reason)) => {
            tracing::debug!(%reason, "the change of membership has to wait");
            false
        }
        Err(_) => false,
    }
}
