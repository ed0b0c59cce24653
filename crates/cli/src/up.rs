//! `staves up`: puts the configuration together, turns the log on, and runs the node.

use std::io::IsTerminal;
use std::time::Duration;

use crate::config;
use crate::config::ConfigFlags;
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
pub struct Up {
    /// A configuration file (see 'staves config example')
    #[arg(long, value_name = "FILE", env = "STAVES_CONFIG")]
    pub config: Option<PathBuf>,

    #[command(flatten)]
    pub keys: ConfigFlags,

    /// Stop when the process of this id is no longer the parent
    #[arg(long, value_name = "PID", hide = true)]
    pub parent_pid: Option<u32>,
}

pub fn run(up: &Up) -> anyhow::Result<()> {
    let loaded = config::load(up.config.as_deref(), &up.keys)?;
    tracing_subscriber::fmt()
        .with_env_filter(config::log_filter(&loaded.config.log).map_err(anyhow::Error::msg)?)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        // It would say so with a print that panics, and a node whose log nobody reads goes on.
        .log_internal_errors(false)
        .init();
    // Only in test builds; see `staves_model::mutant`.
    let mutant = staves_model::mutant::plant_from_environment().map_err(anyhow::Error::msg)?;
    if let Some(mutant) = mutant {
        tracing::warn!(?mutant, "a bug is planted in this process");
    }
    if let Some(parent) = up.parent_pid {
        die_with(parent);
    }
    end_on_panic();
    serve(loaded)
}

/// A panic of any task or thread ends the process, after it was reported. A node that goes on without a part of
/// itself holds leases and answers pings, and nobody takes over from it.
fn end_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if staves_directory::panic_becomes_an_error() {
            return;
        }
        tell(panic);
        std::process::abort();
    }));
}

/// Ends this process when `parent` is no longer its parent: the children of `staves demo` must not
/// outlive it, however it ends.
fn die_with(parent: u32) {
    const LOOK: Duration = Duration::from_millis(200);
    std::thread::spawn(move || {
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(LOOK);
        }
        tracing::warn!(parent, "the parent process is gone: ending");
        std::process::exit(1);
    });
}

fn serve(loaded: staves_node::config::Loaded) -> anyhow::Result<()> {
    Ok(staves_node::serve(loaded.config)?)
}

#[cfg(test)]
mod tests {
    /// Runs itself as a child in which one thread of two panics.
    #[test]
    fn a_panic_of_one_thread_ends_the_process() {
        const CHILD: &str = "STAVES_TEST_PANICS";
        if std::env::var_os(CHILD).is_some() {
            super::end_on_panic();
            let _ = std::thread::spawn(|| panic!("a broken assertion")).join();
            std::process::exit(0);
        }
        let mut child = std::process::Command::new(std::env::current_exe().expect("its file"));
        child.args([
            "--exact",
            "up::tests::a_panic_of_one_thread_ends_the_process",
        ]);
        child.arg("--nocapture").env(CHILD, "1");
        let out = child.output().expect("it runs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success(), "it went on: {said}");
        assert!(said.contains("a broken assertion"), "{said}");
    }
}
