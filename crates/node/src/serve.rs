//! A node on threads of its own, until a signal ends it.

use staves_net::Descriptors;

use crate::config::Config;
use crate::hangup::Hangup;
use crate::node::{GRACE, run};
use crate::start::StartError;

/// Most tasks that a busy thread polls before it looks what has come on its sockets and which times have
/// passed, and so most whose answers and messages leave together. Each of them may have a quarter of a megabyte to copy
/// ([`staves_net`] gives others their turn after that), and a heartbeat must not wait for very many.
const POLLS_MAX: u32 = 64;

/// Runs a node on threads of its own until SIGTERM or SIGINT, and then leaves in good order; at a second
/// signal the process exits at once, with 130.
pub fn serve(config: Config) -> Result<(), StartError> {
    match Descriptors::raise() {
        Ok(Descriptors { limit, reserve }) => tracing::info!(limit, reserve, "file descriptors"),
        Err(error) => tracing::warn!(%error, "the limit of file descriptors could not be raised"),
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = match config.threads {
        0 => processors,
        some => some as usize,
    };
    staves_store::share_heaps(workers);
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    threads.worker_threads(workers);
    threads.event_interval(POLLS_MAX);
    threads.on_thread_park(staves_net::thread_rests);
    let runtime = threads.enable_all().build().map_err(StartError::Runtime)?;
    let served = runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let mut interrupt = signal(SignalKind::interrupt()).map_err(StartError::Runtime)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(StartError::Runtime)?;
        let mut hangup = Hangup::new().map_err(StartError::Runtime)?;
        let shutdown = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                () = hangup.came() => {}
            }
            tokio::spawn(async move {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                tracing::warn!("a second signal came: exiting at once");
                std::process::exit(130);
            });
        };
        run(config, shutdown).await
    });
    runtime.shutdown_timeout(GRACE);
    served
}
