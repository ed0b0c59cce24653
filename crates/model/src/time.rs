//! Time as the machines see it: nanoseconds on the local monotonic clock, handed in by the driver.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point on one node's monotonic clock, in nanoseconds. Points of different nodes are never compared;
/// only their rates are assumed close (see `CLOCK_RATE_BOUND_PPM`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

/// The largest difference of a node's clock rate from true time, in parts per million. All promises
/// and leases rest on it: 3 % is a hundred times what quartz does, and leaves room for slewing.
pub const CLOCK_RATE_BOUND_PPM: u64 = 30_000;

impl Time {
    /// The clock's origin; every real reading is later.
    pub const ZERO: Time = Time(0);

    /// Milliseconds since the origin.
    pub fn from_millis(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    /// Time since `earlier`, or zero if it lies ahead.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(d.as_nanos() as u64))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, d: Duration) -> Time {
        Time(self.0.saturating_sub(d.as_nanos() as u64))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}ms", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// A promise of length `lease`, as its receiver must count it: shortened by twice the rate bound,
/// so that it ends before its giver's, whichever of the two clocks runs fast (GROUP, promises).
pub fn shortened(lease: Duration) -> Duration {
    let ppm = 1_000_000 - 2 * CLOCK_RATE_BOUND_PPM;
    Duration::from_nanos((lease.as_nanos() as u64 / 1_000_000) * ppm)
}
