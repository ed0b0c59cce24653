//! The leader's answers to the calls of members.
//!
//! All that one request brings goes as one entry of the log: a death, a return or a new region moves hundreds of groups at a
//! time, and each entry is written, replicated and applied, and shown to every node as a new map.

use staves_model::mutant::{Mutant, planted};
use staves_model::{
    Change, ClusterMap, DirectoryCall, GroupStep, NodeId, Refusal, StuckReport, Time,
};

use crate::ask::LeadError;
use crate::directory::Inner;
use crate::lead::newly_elected;
use crate::leader_state::LeaderState;
use crate::message::{CALLS_MAX, CallAnswer, LeaderResponse};
use crate::types::{Applied, Proposal};

/// A call that is to be answered once the map has taken this step, or its answer.
type Judged = Result<GroupStep, CallAnswer>;

impl Inner {
    pub(crate) async fn lead_calls(
        &self,
        from: NodeId,
        calls: Vec<DirectoryCall>,
    ) -> Result<LeaderResponse, LeadError> {
        if calls.len() > CALLS_MAX {
            let reason = format!("{} calls in one request, {CALLS_MAX} at most", calls.len());
            return Ok(LeaderResponse::Refused(reason));
        }
        let (judged, proposal) = {
            let mut leader_state = self.leader_state.lock();
            let Some(leader_state) = leader_state.as_mut() else {
                return Ok(newly_elected());
            };
            let (now, map) = (self.now(), self.map());
            let judge = |call| leader_state.judge_call(now, &map, from, call);
            let judged: Vec<Judged> = calls.into_iter().map(judge).collect();
            let steps: Vec<GroupStep> = judged.iter().flatten().copied().collect();
            let any = !steps.is_empty();
            (judged, any.then(|| leader_state.proposal_of(steps)))
        };
        if let Some(proposal) = proposal {
            match self.write(proposal).await? {
                LeaderResponse::Applied(Applied::Done { .. } | Applied::Refused { .. }) => {}
                other => return Ok(other),
            }
        }
        let map = self.map();
        let answers = judged.into_iter().map(|judged| match judged {
            Ok(step) => answer_to(&map, &step),
            Err(answer) => answer,
        });
        Ok(LeaderResponse::Called(answers.collect()))
    }
}

/// The answer to a step that the map has been asked to take.
fn answer_to(map: &ClusterMap, step: &GroupStep) -> CallAnswer {
    match map.check_step(step) {
        Err(Refusal::AlreadyOpen { .. } | Refusal::AlreadyComplete { .. }) => CallAnswer::Done,
        Err(refusal) => CallAnswer::Refused(refusal),
        // Not applied here yet, after it was refused for another reason that has gone meanwhile.
        Ok(()) => CallAnswer::later(20, "the map was about to allow it"),
    }
}

impl LeaderState {
    /// The proposal of steps that this leader has judged. It holds only in this term: the next leader's book of leases does
    /// not know ours.
    pub(crate) fn proposal_of(&self, steps: Vec<GroupStep>) -> Proposal {
        Proposal {
            expected: None,
            term: Some(self.term).filter(|_| !planted(Mutant::OpenWithoutTerm)),
            change: Change::Steps(steps),
        }
    }

    /// The step that a call asks for, if there is one to take now; else its answer.
    pub(crate) fn judge_call(
        &mut self,
        now: Time,
        map: &ClusterMap,
        from: NodeId,
        call: DirectoryCall,
    ) -> Judged {
        let step = match call {
            DirectoryCall::Stuck {
                group,
                epoch,
                slots,
            } => {
                self.add_stuck_report(StuckReport {
                    group,
                    epoch,
                    slots,
                    reporter: from,
                });
                return Err(CallAnswer::Done);
            }
            DirectoryCall::Step(step) => step,
        };
        let (id, epoch) = step.of();
        let Some(group) = map.groups.get(&id) else {
            return Err(CallAnswer::Refused(Refusal::UnknownGroup { group: id }));
        };
        if group.epoch < epoch {
            // The sender's map is ahead of ours. The lease book must judge that epoch's members, not those before.
            let known = group.epoch;
            let reason = format!("the leader's map has epoch {known} of group {id} so far");
            return Err(CallAnswer::later(20, reason));
        }
        if map.check_step(&step).is_err() {
            return Err(answer_to(map, &step));
        }
        let opens = matches!(step, GroupStep::Open { .. });
        if opens && !self.leases.may_open(now, group) {
            let wait = self.leases.opens_at(group).map(|at| at.since(now));
            let wait_ms = wait.unwrap_or_default().as_millis() as u32 + 1;
            let reason = "another holder's lease has not run out";
            return Err(CallAnswer::later(wait_ms, reason));
        }
        Ok(step)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use staves_model::testing::create_pool;
    use staves_model::{Epoch, GroupId, Incarnation, MemberSlot};

    use super::*;
    use crate::fatal::tests::alone_with;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// One death brings hundreds of openings. What the map refuses holds none of the others up.
    #[tokio::test]
    async fn the_calls_of_one_request_are_one_entry() {
        let pool = create_pool("cache", "1+0", 16, true);
        let directory = alone_with(|options| {
            options.first_changes = vec![pool];
            options.node.memory_bytes = 1 << 26;
        })
        .await;
        let unknown = GroupId(999);
        let stray = |group| {
            DirectoryCall::from(GroupStep::Complete {
                group,
                epoch: Epoch(1),
                slot: MemberSlot(9),
                incarnation: Incarnation(1),
            })
        };
        let opened = async {
            loop {
                let placed = directory.map().borrow().clone();
                let placed = placed.groups.values().filter(|g| g.epoch > Epoch(0));
                let open = |group, epoch| GroupStep::Open { group, epoch }.into();
                let mut calls: Vec<_> = placed.map(|g| open(g.id, g.epoch)).collect();
                let placed = calls.len();
                calls.extend([open(unknown, Epoch(1)), stray(GroupId(1)), stray(unknown)]);
                let answers = directory.call(calls, PATIENCE).await.expect("it leads");
                let (opened, others) = answers.split_at(placed);
                let refused = |a: &CallAnswer| matches!(a, CallAnswer::Refused(_));
                assert!(refused(&others[0]) && refused(&others[2]), "{others:?}");
                // The planner gives an epoch another one that does not open for long, and a first lease is waited for.
                if placed == 16 && opened.iter().all(|a| *a == CallAnswer::Done) {
                    assert!(refused(&others[1]), "{others:?}");
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let opened = tokio::time::timeout(PATIENCE, opened).await;
        assert!(opened.is_ok(), "they do not open");
        let map = directory.map().borrow().clone();
        let at: std::collections::BTreeSet<_> = map.groups.values().map(|g| g.revision).collect();
        assert_eq!(at.len(), 1, "one revision for all: {at:?}");
        let many = vec![stray(unknown); CALLS_MAX + 1];
        let refused = directory.call(many, PATIENCE).await;
        assert!(refused.is_err(), "{refused:?}");
        directory.stop().await;
    }
}
