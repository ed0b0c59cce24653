//! Starvation of a process: it is stopped for most of the time, again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A starved process stands still for so long, and runs for so long: a fifth of the time is left to it. Both are shorter than
/// what others take for silence.
const STILL: Duration = Duration::from_millis(160);
const RUNS: Duration = Duration::from_millis(40);

/// A process that is starved until this is dropped; then it runs.
pub struct Starving {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Starving {
    /// Starves the process from now on. It must not be waited for before this is dropped.
    pub fn begin(pid: Pid) -> Starving {
        let stop = Arc::<AtomicBool>::default();
        let ended = stop.clone();
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) && kill_process(pid, Signal::STOP).is_ok() {
                std::thread::sleep(STILL);
                if kill_process(pid, Signal::CONT).is_err() {
                    return;
                }
                std::thread::sleep(RUNS);
            }
        });
        Starving {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Starving {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It ends after a round, and leaves the process running.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    fn state(pid: u32) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
        let rest = stat.rsplit(") ").next().expect("its state");
        rest.chars().next().expect("a letter")
    }

    #[test]
    fn a_starved_process_stands_still_and_runs_in_turn() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let pid = child.id();
        let seen = |wanted: char| {
            let until = Instant::now() + staves_testkit::DEADLINE;
            while state(pid) != wanted {
                assert!(Instant::now() < until, "never {wanted}");
                std::thread::sleep(Duration::from_millis(3));
            }
        };
        let starving = Starving::begin(Pid::from_raw(pid as i32).expect("an id"));
        for wanted in ['T', 'S', 'T', 'S'] {
            seen(wanted);
        }
        drop(starving);
        assert_eq!(state(pid), 'S');
        child.kill().expect("it lives");
        child.wait().expect("it ended");
    }
}
