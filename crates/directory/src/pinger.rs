//! The pinger's driver: sends the pings of [`Pinger`], and reports to the leader what they show.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use staves_model::detector::PINGED_MAX;
use staves_model::pinger::{
    ECHO_COUNTS, Pinger, PingerConfig, PingerEffects, PingerEvent, UNANSWERED_MAX,
};
use staves_model::{Change, Evidence, Incarnation, NodeId, Sign};
use tokio::sync::{Semaphore, mpsc};

use crate::directory::Inner;
use crate::message::LeaderRequest;
use crate::types::Proposal;

/// Least time between two reports against one node.
const REPORT_AGAIN: Duration = Duration::from_millis(100);
/// Time for which a report may look for the leader; it is old then.
const REPORT: Duration = Duration::from_millis(700);
/// Most reports under way: an election must not pile them up.
const REPORTS_MAX: usize = 4;
/// First and longest pause between two assurances that this node lives.
const ASSURE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Pings until the directory stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let times = &inner.options.times;
    let mut pinger = Pinger::new(PingerConfig {
        period: times.ping,
        suspicion: times.suspicion,
        report_again: REPORT_AGAIN,
        assure: ASSURE,
    });
    // As many as pings can be under way, so that no echo is lost or waits.
    let (echoes, mut echoed) = mpsc::channel(UNANSWERED_MAX as usize * PINGED_MAX);
    let reports = Arc::new(Semaphore::new(REPORTS_MAX));
    let mut tick = tokio::time::interval(times.ping);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let mut out = PingerEffects::default();
        tokio::select! {
            _ = tick.tick() => {
                let Ok((me, incarnation)) = inner.life() else { continue };
                let (now, map) = (inner.now(), inner.map());
                let event = PingerEvent::Tick { map: &map, me, incarnation };
                pinger.step(now, event, &mut out);
                *inner.unreachable.lock() = pinger.doubted().collect();
                *inner.silent.lock() = pinger.silent(now).collect();
            }
            // This task holds a sender, so that the channel never closes.
            Some(echo) = echoed.recv() => {
                pinger.step(inner.now(), PingerEvent::Echo(echo), &mut out);
            }
        }
        inner.send_pings(out.pings, &echoes);
        inner.report_seen(out.reports, &reports);
        if out.assure {
            inner.assure();
        }
    }
}

impl Inner {
    fn send_pings(
        self: &Arc<Self>,
        pings: Vec<(NodeId, Incarnation)>,
        echoes: &mpsc::Sender<Evidence>,
    ) {
        if pings.is_empty() {
            return;
        }
        let map = self.map();
        for (node, incarnation) in pings {
            // A newer map may be without it; then no address is tried, and the ping counts as unanswered.
            let addr = map.nodes.get(&node).map(|n| n.native.clone());
            let (inner, echoes) = (self.clone(), echoes.clone());
            tokio::spawn(async move {
                let suspicion = inner.options.times.suspicion;
                let patience = suspicion.max(ECHO_COUNTS);
                let addr = addr.unwrap_or_default();
                let sent = inner.now();
                let sign = match inner.probe(node, incarnation, &addr, patience).await {
                    Sign::Alive if inner.now().since(sent) > suspicion => Sign::Slow,
                    sign => sign,
                };
                let echo = Evidence {
                    node,
                    incarnation,
                    sign,
                };
                // The pinger has stopped if it takes no echo.
                let _ = echoes.send(echo).await;
            });
        }
    }

    /// Reports to the leader, unless too many reports look for it already: then the next one will do.
    fn report_seen(self: &Arc<Self>, seen: Vec<Evidence>, reports: &Arc<Semaphore>) {
        let (false, Ok((from, _))) = (seen.is_empty(), self.life()) else {
            return;
        };
        let Ok(permit) = reports.clone().try_acquire_owned() else {
            return;
        };
        let inner = self.clone();
        tokio::spawn(async move {
            if let Err(reason) = inner
                .ask(LeaderRequest::Report { from, seen }, REPORT)
                .await
            {
                tracing::debug!(%reason, "a report of silent nodes was lost");
            }
            drop(permit);
        });
    }

    /// Proposes this life as back: the map holds it for dead, since it was cut off or paused.
    fn assure(self: &Arc<Self>) {
        let Ok((node, incarnation)) = self.life() else {
            return;
        };
        if self.leaving.load(Ordering::Acquire) || self.hangs() {
            return;
        }
        tracing::warn!("the cluster took this node for dead; it says that it lives");
        let inner = self.clone();
        let change = Change::NodeBack { node, incarnation };
        tokio::spawn(async move {
            let request = LeaderRequest::Propose(Proposal::unconditional(change));
            if let Err(reason) = inner.ask(request, REPORT).await {
                tracing::debug!(%reason, "nobody heard that this node lives");
            }
        });
    }
}
