//! The leader's driver: hands its machines the time, the map and what was reported, and proposes what
//! they want. All that is hard lies in `staves-model` (`planner`, `detector`, `lease`).

use std::sync::Arc;
use std::time::Duration;

use staves_model::detector::{Findings, Probe, Report, Verdict};
use staves_model::{Change, Evidence, Revision};

use crate::ask::PROBED;
use crate::directory::{Core, Inner};
use crate::leader_state::LeaderState;
use crate::lease_batcher::confirm;
use crate::message::{LeaderResponse, PeerRequest, PeerResponse};
use crate::types::{Applied, Proposal};

/// The time that the driver waits for one of its proposals before it looks at the map anew.
const PROPOSE: Duration = Duration::from_millis(1000);
/// The time that a second node has to probe a suspect and answer.
const PROBE: Duration = Duration::from_millis(300);

/// Looks after the cluster whenever this node leads, until the directory stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let Some(core) = inner.core.get() else { return };
    let mut elections = core.raft.server_metrics();
    let mut map_watch = inner.map_watch.clone();
    let mut tick = tokio::time::interval(inner.options.times.tick);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let open = tokio::select! {
            _ = tick.tick() => true,
            changed = map_watch.changed() => changed.is_ok(),
            changed = elections.changed() => changed.is_ok(),
        };
        if !open {
            return;
        }
        map_watch.mark_unchanged();
        elections.mark_unchanged();
        lead_once(&inner).await;
    }
}

async fn lead_once(inner: &Arc<Inner>) {
    let Some(term) = inner.leads() else {
        inner.leader_state.lock().take();
        return;
    };
    let known = inner
        .leader_state
        .lock()
        .as_ref()
        .is_some_and(|leader_state| leader_state.term == term);
    if !known && !begin_term(inner, term).await {
        return;
    }
    let Some(findings) = detect(inner) else {
        return;
    };
    for probe in findings.probes {
        ask_for_probes(inner, &probe);
    }
    for Verdict {
        node, incarnation, ..
    } in findings.verdicts
    {
        propose(inner, term, None, Change::NodeDown { node, incarnation }).await;
    }
    for (revision, change) in plan(inner) {
        if !propose(inner, term, Some(revision), change).await {
            // The map moved on, or nothing can be ordered now: the next look decides anew.
            if let Some(leader_state) = inner.leader_state.lock().as_mut() {
                leader_state.planner.refused();
            }
            return;
        }
    }
}

/// Begins a term as leader: only once a majority follows, and all that was committed before is in the map.
async fn begin_term(inner: &Inner, term: u64) -> bool {
    inner.leader_state.lock().take();
    if let Err(reason) = confirm(inner).await {
        tracing::debug!(term, reason, "elected, but not yet followed");
        return false;
    }
    if inner.leads() != Some(term) {
        return false;
    }
    tracing::info!(term, "this node leads the directory");
    let leader_state = LeaderState::new(term, inner.now(), &inner.map(), &inner.options.times);
    *inner.leader_state.lock() = Some(leader_state);
    true
}

fn detect(inner: &Inner) -> Option<Findings> {
    let mut leader_state = inner.leader_state.lock();
    let leader_state = leader_state.as_mut()?;
    let (now, map) = (inner.now(), inner.map());
    leader_state.watch_down(now, &map);
    let mut reports = leader_state.take_reports();
    // A leader that a majority follows is alive, whatever a pinger reported meanwhile.
    let me = inner.core.get().map(|core| core.me);
    reports.retain(|report| Some(report.seen.node) != me);
    let voters = inner.core.get().map(Core::voters).unwrap_or_default();
    let rejoining = leader_state.rejoining(now, &map, &voters);
    leader_state.detector.see_rejoining(rejoining);
    let mut findings = Findings::default();
    leader_state
        .detector
        .step(now, &map, &reports, &mut findings);
    for verdict in leader_state.news(&findings.verdicts) {
        let (node, incarnation) = (verdict.node, verdict.incarnation);
        tracing::warn!(%node, %incarnation, words = ?verdict.words, "a node is dead");
    }
    Some(findings)
}

fn plan(inner: &Inner) -> Vec<(Revision, Change)> {
    let mut leader_state = inner.leader_state.lock();
    let Some(leader_state) = leader_state.as_mut() else {
        return Vec::new();
    };
    let stuck = leader_state.take_stuck();
    let detector = &leader_state.detector;
    let (cuts, late) = (detector.cuts(), detector.late());
    leader_state.planner.see_cuts(cuts);
    leader_state.planner.see_late(&late);
    let changes = leader_state.planner.step(inner.now(), &inner.map(), &stuck);
    if !changes.is_empty() {
        tracing::debug!(?changes, ?stuck, "planned");
    }
    changes
}

/// Proposes what was decided in this term. False if it was refused, or nothing can be ordered now.
async fn propose(inner: &Inner, term: u64, expected: Option<Revision>, change: Change) -> bool {
    let proposal = Proposal {
        expected,
        term: Some(term),
        change,
    };
    match tokio::time::timeout(PROPOSE, inner.write(proposal)).await {
        Ok(Ok(LeaderResponse::Applied(Applied::Refused { refusal, .. }))) => {
            tracing::debug!(%refusal, "a proposal of the leader's was refused");
            false
        }
        Ok(Ok(LeaderResponse::Applied(_))) => true,
        Ok(Ok(_) | Err(_)) | Err(_) => false,
    }
}

/// Has others probe a suspect; their findings count at the next tick.
fn ask_for_probes(inner: &Arc<Inner>, probe: &Probe) {
    let (node, incarnation) = (probe.suspect, probe.incarnation);
    let map = inner.map();
    let Some(suspect) = map.nodes.get(&node) else {
        return;
    };
    for by in probe.by.iter().filter_map(|by| map.nodes.get(by)) {
        let (inner, addr) = (inner.clone(), suspect.native.clone());
        let by = by.id;
        tokio::spawn(async move {
            let Ok(core) = inner.core() else { return };
            let sign = if by == core.me {
                inner.probe(node, incarnation, &addr, PROBED).await
            } else {
                let body = PeerRequest::Probe {
                    node,
                    incarnation,
                    addr,
                };
                match core.network.call_or_relay(by, body, PROBE).await {
                    Ok(PeerResponse::Probed { sign }) => sign,
                    // Says nothing about the suspect.
                    _ => return,
                }
            };
            let seen = Evidence {
                node,
                incarnation,
                sign,
            };
            let report = Report { reporter: by, seen };
            if let Some(leader_state) = inner.leader_state.lock().as_mut() {
                leader_state.add_report(report);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use staves_model::Epoch;
    use staves_model::testing::create_pool;

    use super::*;
    use crate::fatal::tests::alone_with;

    /// A join or a leave changes the map, and the driver waits for that: the tick is for deadlines alone.
    #[tokio::test]
    async fn what_the_map_brings_is_looked_after_without_a_tick() {
        let pool = create_pool("cache", "1+0", 1, true);
        let directory = alone_with(|options| {
            options.first_changes = vec![pool];
            options.times.tick = Duration::from_secs(3600);
            options.node.memory_bytes = 1 << 21;
        });
        let directory = directory.await;
        let mut map = directory.map();
        let placed = map.wait_for(|map| map.groups.values().any(|group| group.epoch > Epoch(0)));
        let placed = tokio::time::timeout(Duration::from_secs(20), placed).await;
        assert!(placed.is_ok(), "its bucket waits for a tick");
        directory.stop().await;
    }
}
