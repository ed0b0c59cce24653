//! The wait of requests beyond their volume's limit: one after the other, in the order in which they came.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use staves_model::VolumeLimit;
use tokio::sync::Notify;

use super::limit::VolumePacer;

/// The gate that all connections to a volume at this node go through.
#[derive(Debug, Default)]
pub(crate) struct VolumeThrottle {
    /// True if there is a limit: all that is looked at where there is none.
    is_limited: AtomicBool,
    pacer: Mutex<VolumePacer>,
    /// Held by the request that waits for the pacer. The others wait for it, in order.
    turn: tokio::sync::Mutex<()>,
    changed: Notify,
    /// Requests that had to wait.
    pub(crate) waits_total: AtomicU64,
}

impl VolumeThrottle {
    /// Goes by this limit from now on, also for those that wait.
    pub(super) fn set(&self, limit: Option<VolumeLimit>) {
        let mut pacer = self.pacer.lock();
        if pacer.limit() == limit {
            return;
        }
        pacer.set(limit, Instant::now());
        self.is_limited.store(limit.is_some(), Ordering::Release);
        drop(pacer);
        self.changed.notify_waiters();
    }

    /// The limit.
    #[cfg(test)]
    pub(super) fn limit(&self) -> Option<VolumeLimit> {
        self.pacer.lock().limit()
    }

    /// Returns once a request with so many bytes may go. One that is given up while it waits has taken nothing.
    pub(crate) async fn pass(&self, bytes: u64) {
        if self.is_limited.load(Ordering::Acquire) {
            self.pass_in_turn(bytes).await;
        }
    }

    async fn pass_in_turn(&self, bytes: u64) {
        let mut has_waited = false;
        let turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(_) => {
                has_waited = true;
                self.turn.lock().await
            }
        };
        loop {
            // Before the look at the limit, so that no change goes by unseen.
            let changed = self.changed.notified();
            let taken = self.pacer.lock().take(Instant::now(), bytes);
            let Err(ready) = taken else {
                break;
            };
            has_waited = true;
            tokio::select! {
                () = tokio::time::sleep_until(ready.into()) => {}
                () = changed => {}
            }
        }
        drop(turn);
        self.waits_total
            .fetch_add(u64::from(has_waited), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn limit(iops: u64) -> Option<VolumeLimit> {
        Some(VolumeLimit {
            iops: Some(iops),
            bytes_per_second: None,
            burst_ms: 10,
        })
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn requests_wait_in_order_until_the_limit_is_taken_away() {
        let throttle = Arc::new(VolumeThrottle::default());
        throttle.pass(u64::MAX).await;
        throttle.set(limit(1));
        throttle.pass(1).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for i in 0..20 {
            let (throttle, order) = (throttle.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                throttle.pass(1).await;
                order.lock().push(i);
            }));
            tokio::task::yield_now().await;
        }
        // One that is given up lets the others on.
        tasks.remove(3).abort();
        assert!(order.lock().len() < 5, "one a second");
        throttle.set(None);
        let all = async {
            for task in tasks {
                task.await.expect("it passed");
            }
        };
        tokio::time::timeout(LONG, all).await.expect("no limit");
        let order = order.lock();
        assert!(order.len() == 19 && order.is_sorted(), "{order:?}");
        assert_eq!(throttle.waits_total.load(Ordering::Relaxed), 19);
    }

    #[tokio::test]
    async fn a_wider_limit_wakes_the_one_that_waits() {
        let throttle = Arc::new(VolumeThrottle::default());
        throttle.set(Some(VolumeLimit {
            iops: None,
            bytes_per_second: Some(1 << 20),
            burst_ms: 10,
        }));
        // An hour to pay for.
        throttle.pass(3600 << 20).await;
        let waiting = throttle.clone();
        let waiting = tokio::spawn(async move { waiting.pass(1).await });
        tokio::task::yield_now().await;
        throttle.set(limit(1000));
        let woken = tokio::time::timeout(LONG, waiting).await;
        woken.expect("in time").expect("it passed");
    }
}
