//! One thread of a process talks to all servers: a caller needs no runtime, and what a server's bytes cost in
//! deciphering is not taken from those that answer readers.

use std::future::Future;
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// Threads that look up names of hosts, at most.
const LOOKUPS_MAX: usize = 8;

fn runtime() -> Result<&'static Runtime, String> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        // Another part of the program may have set one: then that is used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).max_blocking_threads(LOOKUPS_MAX);
        builder.thread_name("staves-source").enable_all();
        let made = builder.build();
        made.map_err(|error| format!("no thread can be started to ask servers: {error}"))
    });
    made.as_ref().map_err(Clone::clone)
}

/// Enters it: some clients look for a runtime when they are made.
pub fn within<T>(make: impl FnOnce() -> T) -> Result<T, String> {
    let _here = runtime()?.enter();
    Ok(make())
}

/// Runs a task there that nobody waits for.
pub fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Result<(), String> {
    runtime()?.spawn(work);
    Ok(())
}

/// Runs a task there. It ends when its caller is gone.
pub async fn run<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, String> {
    let mut task = Aborted(runtime()?.spawn(work));
    (&mut task.0).await.map_err(|error| error.to_string())
}

/// The same, and blocks this thread meanwhile.
pub fn block<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
    wait_max: Duration,
) -> Result<T, String> {
    let (done, come) = sync_channel(1);
    let task = runtime()?.spawn(async move {
        let _ = done.send(work.await);
    });
    let _task = Aborted(task);
    come.recv_timeout(wait_max)
        .map_err(|_| format!("there was no answer within {} s", wait_max.as_secs()))
}

struct Aborted<T>(JoinHandle<T>);

impl<T> Drop for Aborted<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn whoever_blocks_needs_no_runtime_and_waits_no_longer_than_said() {
        assert_eq!(block(async { 7 }, Duration::from_secs(60)), Ok(7));
        let began = Instant::now();
        let never = block(std::future::pending::<()>(), Duration::from_millis(50));
        assert!(never.is_err() && began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn one_may_block_within_a_runtime() {
        let here = Builder::new_current_thread().build().unwrap();
        let seven = here.block_on(async { block(async { 7 }, Duration::from_secs(60)) });
        assert_eq!(seven, Ok(7));
        assert_eq!(here.block_on(run(async { 8 })), Ok(8));
    }
}
