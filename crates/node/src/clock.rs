//! The node's clock, as its machines see it.

use std::time::{Duration, Instant};

use staves_model::Time;

/// Turns instants into [`Time`]. All machines of one node share one.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

/// The first reading: the machines take zero for "never".
const BEGINNING: Duration = Duration::from_secs(1);

impl Clock {
    /// A clock that begins now.
    pub fn start() -> Clock {
        Clock {
            origin: Instant::now(),
        }
    }

    /// Now.
    #[inline]
    pub fn now(&self) -> Time {
        self.at(Instant::now())
    }

    /// The reading at an instant; instants before the clock's start count as its start.
    pub fn at(&self, instant: Instant) -> Time {
        Time::ZERO + BEGINNING + instant.saturating_duration_since(self.origin)
    }

    /// The time that the clock has run.
    pub fn uptime(&self) -> Duration {
        self.origin.elapsed()
    }
}
