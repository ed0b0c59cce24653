//! The progress of a phase, shown while it runs.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use super::work::PhaseJob;
use staves_cli_common::output::{self, number};

/// A line on the terminal that is written over; nothing where stderr is no terminal.
pub struct PhaseProgress {
    terminal: bool,
    /// Of how many operations, where that is known.
    of: Option<u64>,
    began: Instant,
    last: (Instant, u64),
}

impl PhaseProgress {
    pub fn new(job: &PhaseJob) -> PhaseProgress {
        let began = Instant::now();
        PhaseProgress {
            terminal: std::io::stderr().is_terminal(),
            of: job.sweep.map(|_| job.plan.keys),
            began,
            last: (began, 0),
        }
    }

    /// Writes the line anew, once a second.
    pub fn show(&mut self, answered: u64) {
        let (at, before) = self.last;
        let since = at.elapsed();
        if !self.terminal || since < Duration::from_secs(1) {
            return;
        }
        let rate = number(((answered - before) as f64 / since.as_secs_f64()) as u64);
        let seconds = self.began.elapsed().as_secs();
        let of = self.of.map_or(String::new(), |of| {
            format!(", {} %", answered * 100 / of.max(1))
        });
        output::show(format_args!("\r  {seconds} s: {rate}/s{of}        "));
        self.last = (Instant::now(), answered);
    }

    /// Wipes the line out.
    pub fn end(&self) {
        if self.terminal {
            output::show("\r                                        \r");
        }
    }
}
