//! The threads of the directory: what shows that this node lives, and that its leader does.
//!
//! Pings, heartbeats, elections and what the leader grants must not wait behind requests, or nodes that are only busy take each
//! other for dead. So they have threads and connections of their own, ahead of all others of the machine where the system grants it
//! (root, or `CAP_SYS_NICE`).

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_directory::{Directory, DirectoryError, Options};
use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::host::Host;
use crate::links::DirectoryWay;
use crate::start::StartError;

/// One plans while the other answers.
const THREADS: usize = 2;

/// Most threads beside these for calls that block.
const BLOCKING_MAX: usize = 8;

/// The period in which the directory is told that the node works.
const WORKS: Duration = Duration::from_millis(100);

/// A wait of the threads here that is told: they are ahead of all others where the system grants it.
const LATE: Duration = Duration::from_millis(300);

/// A runtime that ends with this.
pub(crate) struct Liveness {
    handle: Handle,
    /// There until this is dropped.
    runtime: Option<Runtime>,
}

impl Liveness {
    pub(crate) fn start() -> Result<Liveness, StartError> {
        let mut threads = Builder::new_multi_thread();
        threads.worker_threads(THREADS).thread_name("liveness");
        threads.on_thread_start(go_first);
        // Names of nodes are resolved on these, and no request is ever served there.
        threads.max_blocking_threads(BLOCKING_MAX);
        let runtime = threads.enable_all().build();
        let runtime = runtime.map_err(StartError::Runtime)?;
        Ok(Liveness {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Serves a listener there: who connects for the first time must not wait behind requests either.
    pub(crate) fn serve<S>(
        &self,
        listener: TcpListener,
        serve: impl FnOnce(TcpListener) -> io::Result<S>,
    ) -> Result<S, StartError> {
        let listener = listener.into_std().map_err(StartError::Runtime)?;
        let _there = self.handle.enter();
        let served = TcpListener::from_std(listener).and_then(serve);
        served.map_err(StartError::Runtime)
    }

    /// Opens the directory there, so that the thread that writes its log to disk has that priority too.
    pub(crate) async fn open(
        &self,
        options: Options,
        way: DirectoryWay,
    ) -> Result<Result<Directory, DirectoryError>, StartError> {
        let open = async { Directory::open(options, Arc::new(way)) };
        let opened = self.handle.spawn(open).await;
        opened.map_err(|error| StartError::Runtime(error.into()))
    }
}

impl Drop for Liveness {
    fn drop(&mut self) {
        // Also on a thread of another runtime, which must not wait.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Shows the directory, as long as it is polled, that the node's other threads work.
pub(crate) async fn works(directory: Directory) {
    loop {
        directory.works();
        tokio::time::sleep(WORKS).await;
    }
}

/// Shows it also while those threads get on with what is before that in their queues: where a machine lacks processor time, a turn
/// may take them seconds. To be spawned on the directory's threads.
pub(crate) async fn gets_on(directory: Directory, host: Arc<Host>) {
    let (mut seen, mut hung) = (host.steps(), false);
    loop {
        let slept = Instant::now();
        tokio::time::sleep(WORKS).await;
        let late = slept.elapsed().saturating_sub(WORKS);
        if late > LATE {
            tracing::warn!(
                ?late,
                "the machine gave the threads that show that this node lives no processor time"
            );
        }
        let hangs = directory.hangs();
        if std::mem::replace(&mut hung, hangs) != hangs && hangs {
            let text = "its other threads have done nothing for so long that this node lets the cluster take it for dead";
            tracing::warn!(after = ?staves_directory::HANG, "{text}");
        }
        let steps = host.steps();
        if std::mem::replace(&mut seen, steps) != steps {
            directory.works();
        }
    }
}

/// The lowest of the real-time priorities is ahead of all ordinary threads.
fn go_first() {
    let round_robin = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::RoundRobin);
    let first = ThreadPriority::Min;
    if let Err(error) = set_thread_priority_and_policy(thread_native_id(), first, round_robin) {
        tracing::debug!(?error, "the directory's threads have no priority");
    }
}

#[cfg(test)]
mod tests {
    use staves_directory::HANG;

    use super::*;
    use crate::host;

    /// Its ordinary threads may take longer than a hang for one turn of a queue: as long as they get on, it answers for itself.
    #[tokio::test]
    async fn a_node_whose_queues_get_on_does_not_hang() {
        let (host, directory) = host::testing::host_and_directory(Duration::from_secs(1));
        let liveness = Liveness::start().expect("threads");
        let watch = liveness
            .handle()
            .spawn(gets_on(directory.clone(), host.clone()));
        directory.works();
        let begun = std::time::Instant::now();
        while begun.elapsed() < HANG + Duration::from_secs(1) {
            host.receive(Vec::new());
            assert!(!directory.hangs(), "after {:?}", begun.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let stood = std::time::Instant::now();
        while !directory.hangs() {
            assert!(
                stood.elapsed() < HANG * 5,
                "it stands still, and is said to work"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        watch.abort();
    }
}
