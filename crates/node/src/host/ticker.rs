//! The clock that the machines see, and the steps that need not wait for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use staves_group::Event;
use staves_model::Silences;
use tokio::time::MissedTickBehavior;

use super::Host;
use crate::cpu::CpuTime;

/// The interval at which the speed of filling is taken.
const SAMPLE: Duration = Duration::from_millis(500);

/// Groups that are looked after before others have their turn on the thread.
const CELLS_AT_ONCE: usize = 64;

/// A node that uses less than this share of a processor has time to give memory back.
const BUSY_SHARE: u32 = 8;
/// Processor time in which a heap may have grown.
const WORTH_TRIMMING: Duration = Duration::from_millis(300);

/// Ticks.
pub(crate) async fn run(host: Arc<Host>) {
    let mut tick = tokio::time::interval(host.options.tick);
    // A node that stood still has nothing to catch up on.
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut silences = Silences::new(host.options.group.stuck_after / 2, host.options.tick * 2);
    let mut sampled = (Instant::now(), 0);
    let mut rest = Rest::default();
    loop {
        tick.tick().await;
        let routes = host.routes();
        let now = host.clock.now();
        let heard = host.peers.silences().into_iter();
        let silent = silences.tick(now, heard.map(|(node, silent)| (node, now - silent)));
        host.tell_silent(&routes, &silent);
        for (i, cell) in host.take_active().iter().enumerate() {
            host.tick_cell(&routes, cell);
            if i % CELLS_AT_ONCE == CELLS_AT_ONCE - 1 {
                // With thousands of groups, what others have sent must not wait until all have been looked after.
                host.peers.flush();
                tokio::task::yield_now().await;
            }
        }
        host.end_turn();
        if sampled.0.elapsed() >= SAMPLE {
            let missing = host.figures().missing_pages;
            let came = u64::saturating_sub(sampled.1, missing);
            let rate = came as f64 / sampled.0.elapsed().as_secs_f64();
            host.fill_rate.store(rate as u64, Ordering::Relaxed);
            sampled = (Instant::now(), missing);
            for disk in host.disks().open_ones() {
                disk.look_at_progress(sampled.0);
            }
            if rest.begins(CpuTime::of_this_process().total()) {
                staves_store::trim_heap();
            }
        }
    }
}

/// Finds the times at which the node has little to do, by the processor time that it uses, after it had much to do.
#[derive(Default)]
struct Rest {
    /// The processor time used by the last look, and by the last trimming of the heap.
    seen: Duration,
    trimmed: Duration,
}

impl Rest {
    /// It has used so much by now, one sample after the last look: true once in each rest.
    fn begins(&mut self, used: Duration) -> bool {
        let before = std::mem::replace(&mut self.seen, used);
        let idle = used.saturating_sub(before) < SAMPLE / BUSY_SHARE;
        let begins = idle && used.saturating_sub(self.trimmed) >= WORTH_TRIMMING;
        if begins {
            self.trimmed = used;
        }
        begins
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing;
    use staves_model::ClusterMap;

    /// Regression: a pool was made between a tick's look at the routes and its look at who wants a tick. Its cells got no
    /// tick ever after, so that a joiner whose request was lost did not ask again, and its bucket was never whole.
    #[tokio::test]
    async fn a_cell_that_the_routes_of_a_tick_do_not_know_is_looked_after() {
        let host = testing::host(Duration::from_secs(2));
        let before = host.routes();
        let mut map = ClusterMap::clone(&before.map);
        let made = map.apply(
            None,
            &staves_model::testing::create_pool("new", "1+0", 4, false),
        );
        made.expect("by the rules");
        host.follow(Arc::new(map));
        let tick = || host.take_active();
        tick().iter().for_each(|cell| host.tick_cell(&before, cell));
        let after = host.routes();
        let new: Vec<_> = after.cells().filter(|c| c.group.0 > 1).collect();
        new.iter()
            .for_each(|cell| cell.step(&host, host.clock.now(), Event::Tick));
        let ticked = tick();
        let forgotten = |cell: &&&Arc<_>| !ticked.iter().any(|c| Arc::ptr_eq(c, cell));
        assert_eq!((new.len(), new.iter().filter(forgotten).count()), (4, 0));
    }

    #[test]
    fn the_heap_is_trimmed_once_after_each_time_of_much_work() {
        let mut rest = Rest::default();
        let begins = [100, 500, 900, 930, 940, 950, 1300, 1310, 1320, 1330]
            .map(|ms| rest.begins(Duration::from_millis(ms)));
        let trimmed = |at: &usize| begins[*at];
        assert_eq!((0..10).filter(trimmed).collect::<Vec<_>>(), [3, 7]);
    }
}
