//! SIGHUP: the terminal of a node is closed, and it stops as it is told to; not where whoever started it has it ignored (nohup).

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// That signal, if it counts.
pub(crate) struct Hangup(Option<Signal>);

impl Hangup {
    pub(crate) fn new() -> io::Result<Hangup> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        let hangup = SignalKind::hangup();
        let bit = 1 << (hangup.as_raw_value() - 1);
        match ignored.is_some_and(|mask| mask & bit != 0) {
            true => Ok(Hangup(None)),
            false => Ok(Hangup(Some(signal(hangup)?))),
        }
    }

    pub(crate) async fn came(&mut self) {
        match &mut self.0 {
            Some(signal) => drop(signal.recv().await),
            None => std::future::pending().await,
        }
    }
}
