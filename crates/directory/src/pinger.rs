//! The detector's eyes at every node (rows D5, X4): pings, and reports of who does not answer.
//!
//! Whom to ping follows from the map, so a node's death gives its neighbours new ones with the map that
//! says so. A refused connection is reported at once, silence after `Times::suspicion`; who has been
//! reported and then answers is reported alive.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use staves_model::detector::whom_to_ping;
use staves_model::{Change, Incarnation, NodeId, NodeState};
use tokio::sync::{Semaphore, mpsc};

use crate::ask::PingFailed;
use crate::directory::Inner;
use crate::evidence::{Evidence, Sign};
use crate::message::Question;
use crate::types::Proposal;

/// A node that has not answered for so many periods is told of as silent. It is suspected only later.
const PINGS_MISSED: u32 = 2;
/// Most pings to one node that may be unanswered at a time.
const UNANSWERED_MAX: u32 = 4;
/// Least time between two reports against one node.
const REPEAT: Duration = Duration::from_millis(100);
/// How long a report may look for the leader; what it says is old then.
const REPORT: Duration = Duration::from_millis(700);
/// Most reports under way: an election must not pile them up.
const REPORTS_MAX: usize = 4;
/// First and last rest between two assurances that this node lives.
const ASSURE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// One node that is pinged.
struct Watched {
    incarnation: Incarnation,
    heard: Instant,
    reported: Option<Instant>,
    unanswered: u32,
}

/// What became of a ping.
struct Echo {
    node: NodeId,
    incarnation: Incarnation,
    result: Result<(), PingFailed>,
}

struct Pinger {
    inner: Arc<Inner>,
    watched: BTreeMap<NodeId, Watched>,
    echoes: mpsc::Sender<Echo>,
    reports: Arc<Semaphore>,
    assure_at: Instant,
    assure_rest: Duration,
}

/// Pings until the directory stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let period = inner.options.times.ping;
    // As many as pings can be under way, so that no echo is lost or waits.
    let room = UNANSWERED_MAX as usize * staves_model::detector::PINGED_MAX;
    let (tx, mut rx) = mpsc::channel(room);
    let mut pinger = Pinger {
        inner,
        watched: BTreeMap::new(),
        echoes: tx,
        reports: Arc::new(Semaphore::new(REPORTS_MAX)),
        assure_at: Instant::now(),
        assure_rest: ASSURE.0,
    };
    let mut tick = tokio::time::interval(period);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = Instant::now();
    loop {
        tokio::select! {
            _ = tick.tick() => {
                let paused = last.elapsed() > period * 2;
                last = Instant::now();
                pinger.tick(paused);
            }
            echo = rx.recv() => match echo {
                Some(echo) => pinger.hear(echo),
                None => return,
            },
        }
    }
}

impl Pinger {
    fn tick(&mut self, paused: bool) {
        let Ok((me, life)) = self.inner.life() else {
            return;
        };
        let map = self.inner.map();
        let now = Instant::now();
        let targets = whom_to_ping(&map, me);
        self.watched.retain(|node, w| {
            targets.contains(node)
                && map
                    .nodes
                    .get(node)
                    .is_some_and(|n| n.incarnation == w.incarnation)
        });
        let mut silent = Vec::new();
        for target in targets.iter().filter_map(|n| map.nodes.get(n)) {
            let new = Watched {
                incarnation: target.incarnation,
                heard: now,
                reported: None,
                unanswered: 0,
            };
            let watched = self.watched.entry(target.id).or_insert(new);
            if paused {
                // This node stood still itself: the others' silence says nothing.
                watched.heard = now;
            }
            if now - watched.heard > self.inner.options.times.suspicion {
                silent.extend(watched.accuse(now, target.id, Sign::Silent));
            }
            if watched.unanswered < UNANSWERED_MAX {
                watched.unanswered += 1;
                self.inner.clone().send_ping(
                    target.id,
                    target.incarnation,
                    target.native.clone(),
                    self.echoes.clone(),
                );
            }
        }
        self.report(silent);
        let doubted = self.watched.iter().filter(|(_, w)| w.reported.is_some());
        *self.inner.unheard.lock() = doubted.map(|(node, _)| *node).collect();
        let period = self.inner.options.times.ping;
        let silent = |w: &Watched| w.reported.is_some() || now - w.heard > period * PINGS_MISSED;
        let silent = self.watched.iter().filter(|(_, w)| silent(w));
        *self.inner.silent.lock() = silent.map(|(node, w)| (*node, w.heard)).collect();
        let declared_dead = map
            .nodes
            .get(&me)
            .is_some_and(|n| n.incarnation == life && n.state == NodeState::Down);
        if declared_dead {
            self.assure(me, life, now);
        } else if now - self.assure_at > ASSURE.1 {
            self.assure_rest = ASSURE.0;
        }
    }

    fn hear(&mut self, echo: Echo) {
        let Some(watched) = self.watched.get_mut(&echo.node) else {
            return;
        };
        if watched.incarnation != echo.incarnation {
            return;
        }
        watched.unanswered = watched.unanswered.saturating_sub(1);
        let now = Instant::now();
        let evidence = match echo.result {
            Ok(()) => {
                watched.heard = now;
                let doubted = watched.reported.take().is_some();
                doubted.then(|| watched.evidence(echo.node, Sign::Alive))
            }
            Err(PingFailed::Over) => watched.accuse(now, echo.node, Sign::Refused),
            Err(PingFailed::Silent) => None,
        };
        self.report(evidence.into_iter().collect());
    }

    /// Tells the leader, unless too many reports look for it already: then the next one will do.
    fn report(&self, seen: Vec<Evidence>) {
        if seen.is_empty() {
            return;
        }
        let Ok((from, _)) = self.inner.life() else {
            return;
        };
        let Ok(permit) = self.reports.clone().try_acquire_owned() else {
            return;
        };
        let inner = self.inner.clone();
        tokio::spawn(async move {
            if let Err(reason) = inner.ask(Question::Report { from, seen }, REPORT).await {
                tracing::debug!(%reason, "a report of silent nodes was lost");
            }
            drop(permit);
        });
    }

    /// The map says that this life is over. It is not: it was cut off or paused.
    fn assure(&mut self, node: NodeId, incarnation: Incarnation, now: Instant) {
        if self.inner.leaving.load(Ordering::Acquire) || now < self.assure_at {
            return;
        }
        self.assure_at = now + self.assure_rest;
        self.assure_rest = (self.assure_rest * 2).min(ASSURE.1);
        tracing::warn!("the cluster took this node for dead; it says that it lives");
        let inner = self.inner.clone();
        let change = Change::NodeBack { node, incarnation };
        tokio::spawn(async move {
            let question = Question::Propose(Proposal::unconditional(change));
            if let Err(reason) = inner.ask(question, REPORT).await {
                tracing::debug!(%reason, "nobody heard that this node lives");
            }
        });
    }
}

impl Watched {
    fn evidence(&self, node: NodeId, sign: Sign) -> Evidence {
        Evidence {
            node,
            incarnation: self.incarnation,
            sign,
        }
    }

    fn accuse(&mut self, now: Instant, node: NodeId, sign: Sign) -> Option<Evidence> {
        if self.reported.is_some_and(|at| now - at < REPEAT) {
            return None;
        }
        self.reported = Some(now);
        Some(self.evidence(node, sign))
    }
}

impl Inner {
    fn send_ping(
        self: Arc<Self>,
        node: NodeId,
        incarnation: Incarnation,
        addr: String,
        echoes: mpsc::Sender<Echo>,
    ) {
        tokio::spawn(async move {
            let patience = self.options.times.suspicion;
            let result = self.ping(node, incarnation, &addr, patience).await;
            // The pinger has stopped if nobody takes it.
            let _ = echoes
                .send(Echo {
                    node,
                    incarnation,
                    result,
                })
                .await;
        });
    }
}
