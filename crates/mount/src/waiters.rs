//! The threads that wait for bytes that are not at hand, so that the kernel's other requests are served.
//!
//! The threads that take the kernel's requests are few. Some of them may wait themselves: that is quickest, and enough while the source
//! is well. Where more would wait, a file server that is gone among them, threads of their own do.
//!
//! **Bounds.** [`THREADS_MAX`] threads, which end when they have nothing to do; [`WAITING_MAX`] reads that wait for one of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

const THREADS_MAX: usize = 64;
const WAITING_MAX: usize = 4096;
/// The time that an idle thread stays.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// The threads. Clones are the same ones.
#[derive(Clone)]
pub struct Waiters(Arc<WaitersInner>);

struct WaitersInner {
    /// The most threads that serve the kernel and wait.
    seats_max: usize,
    state: Mutex<WaitersState>,
    come: Condvar,
}

#[derive(Default)]
struct WaitersState {
    seats: usize,
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

/// The seat of a serving thread that waits, until this is dropped.
pub struct WaiterSeat<'a>(&'a WaitersInner);

impl Drop for WaiterSeat<'_> {
    fn drop(&mut self) {
        self.0.state.lock().seats -= 1;
    }
}

impl Waiters {
    /// Half of so many threads that serve the kernel may wait; a single one, too.
    pub fn new(serving: usize) -> Waiters {
        Waiters(Arc::new(WaitersInner {
            seats_max: serving.div_ceil(2),
            state: Mutex::default(),
            come: Condvar::new(),
        }))
    }

    /// Takes a seat for the caller, which serves the kernel and is about to wait; none if all are taken.
    pub fn seat(&self) -> Option<WaiterSeat<'_>> {
        let mut state = self.0.state.lock();
        (state.seats < self.0.seats_max).then(|| {
            state.seats += 1;
            WaiterSeat(&self.0)
        })
    }

    /// Has another thread do it; or the caller, if there is none.
    pub fn wait(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        if state.jobs.len() < WAITING_MAX && self.is_served(&mut state) {
            state.jobs.push_back(Box::new(job));
            self.0.come.notify_one();
            return;
        }
        drop(state);
        job();
    }

    /// True if a thread will take one more; starts one if need be.
    fn is_served(&self, state: &mut WaitersState) -> bool {
        if state.jobs.len() < state.idle || state.threads >= THREADS_MAX {
            return true;
        }
        let inner = self.0.clone();
        let thread = std::thread::Builder::new().name("mount-waits".into());
        match thread.spawn(move || inner.serve()) {
            Ok(_) => state.threads += 1,
            Err(error) => tracing::warn!(%error, "a thread cannot be started"),
        }
        state.threads > 0
    }
}

impl WaitersInner {
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                parking_lot::MutexGuard::unlocked(&mut state, || {
                    // The caller's reply is dropped, which answers it.
                    let job = std::panic::AssertUnwindSafe(job);
                    if std::panic::catch_unwind(job).is_err() {
                        tracing::error!("a read of a mount failed: this is a fault of Staves");
                    }
                });
                continue;
            }
            state.idle += 1;
            let waited = self.come.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const BOUND: Duration = Duration::from_secs(60);

    #[test]
    fn half_may_wait_themselves() {
        let waiters = Waiters::new(4);
        let seats = [waiters.seat(), waiters.seat()];
        assert!(seats.iter().all(Option::is_some) && waiters.seat().is_none());
        drop(seats);
        assert!(waiters.seat().is_some());
        let alone = Waiters::new(1);
        let seat = alone.seat();
        assert!(seat.is_some() && alone.seat().is_none());
    }

    #[test]
    fn jobs_run_beside_each_other_up_to_a_bound_and_a_failed_one_harms_nobody() {
        let waiters = Waiters::new(1);
        waiters.wait(|| panic!("for the test"));
        let (begun, come) = channel();
        let (go, wait) = channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        for _ in 0..THREADS_MAX + 3 {
            let (begun, wait) = (begun.clone(), wait.clone());
            waiters.wait(move || {
                begun.send(()).unwrap();
                // It comes when the test is over with it.
                let _ = wait.lock().recv();
            });
        }
        for _ in 0..THREADS_MAX {
            come.recv_timeout(BOUND).expect("all threads are at it");
        }
        assert!(come.try_recv().is_err(), "no more than the bound");
        drop(go);
        for _ in 0..3 {
            come.recv_timeout(BOUND).expect("the rest has its turn");
        }
    }
}
