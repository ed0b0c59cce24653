//! Waits for conditions, bounded.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The deadline of every wait: far more than a machine needs whose cores are shared with a compiler.
pub const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

/// Sets a flag when it is dropped, so that threads of a scope that run until then end when the test panics, too.
pub struct SetAtEnd<'a>(pub &'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Polls a condition until it holds; returns the time it took.
///
/// # Panics
/// After [`DEADLINE`], with the condition's name.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < DEADLINE,
            "not within {DEADLINE:?}: {what}"
        );
        std::thread::sleep(POLL);
    }
    begun.elapsed()
}

/// The same in a task of tokio.
///
/// # Panics
/// After [`DEADLINE`], with the condition's name.
pub async fn wait_until_async(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < DEADLINE,
            "not within {DEADLINE:?}: {what}"
        );
        tokio::time::sleep(POLL).await;
    }
    begun.elapsed()
}

/// Runs an async test on two threads.
///
/// # Panics
/// If the test is still running after twice [`DEADLINE`].
pub fn block_on<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let bounded = async { tokio::time::timeout(2 * DEADLINE, test).await };
    let Ok(output) = runtime.block_on(bounded) else {
        panic!("the test is still running after {:?}", 2 * DEADLINE)
    };
    output
}
