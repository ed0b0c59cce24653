//! The clock that the machines see, and the steps that need not wait for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use staves_group::Event;
use tokio::time::MissedTickBehavior;

use super::Host;

/// How often the speed of filling is taken.
const SAMPLE: Duration = Duration::from_millis(500);

/// Ticks.
pub(crate) async fn run(host: Arc<Host>) {
    let mut tick = tokio::time::interval(host.options.tick);
    // A node that stood still has nothing to catch up on.
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sampled = (Instant::now(), 0);
    loop {
        tick.tick().await;
        host.tick();
        if sampled.0.elapsed() >= SAMPLE {
            let missing = host.figures().missing_pages;
            let came = u64::saturating_sub(sampled.1, missing);
            let rate = came as f64 / sampled.0.elapsed().as_secs_f64();
            host.fill_rate.store(rate as u64, Ordering::Relaxed);
            sampled = (Instant::now(), missing);
        }
    }
}

/// Steps buckets that have work left, each in turn, so that none holds the others up.
pub(crate) async fn run_busy(host: Arc<Host>) {
    loop {
        let groups = std::mem::take(&mut *host.busy.lock());
        if groups.is_empty() {
            host.busy_wake.notified().await;
            continue;
        }
        let routes = host.routes();
        for cell in groups.iter().flat_map(|g| routes.cells_of(*g)) {
            cell.step(&host, host.clock.now(), Event::Tick);
            host.peers.flush();
            tokio::task::yield_now().await;
        }
    }
}
