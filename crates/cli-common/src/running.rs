//! The runtimes of commands, and the signals that end them.

use std::time::Duration;

use anyhow::Context;
use staves_client::{Client, ClientOptions};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

/// A runtime that lives on the thread that waits for it.
pub fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the program's runtime")
}

/// A client of the cluster behind these native doors, and its runtime.
pub fn connect(doors: &[String], deadline: Duration) -> anyhow::Result<(Runtime, Client)> {
    let runtime = runtime()?;
    let options = ClientOptions {
        deadline,
        ..ClientOptions::default()
    };
    let client = runtime.block_on(Client::connect(doors, options));
    Ok((runtime, client.context("cannot reach the cluster")?))
}

/// From now on Ctrl-C (and SIGTERM) runs this on a thread of its own, and then ends the program.
pub fn at_signal(last: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let mut signals = runtime.block_on(async {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok::<_, std::io::Error>((interrupt, signal(SignalKind::terminate())?))
    })?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = signals.0.recv() => {}
                _ = signals.1.recv() => {}
            }
        });
        last();
        // As a shell reports a program that an interrupt ended.
        std::process::exit(130);
    });
    Ok(())
}
