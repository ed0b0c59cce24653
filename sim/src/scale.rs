//! The scale of simulated clusters: times and sizes.

use std::time::Duration;

/// A lease in the simulator; messages take 1 to 12 ms, and some up to 500 ms.
pub const LEASE: Duration = Duration::from_millis(200);
/// Nanoseconds of a millisecond.
pub const MS: u64 = 1_000_000;
/// Extents that a node has in all.
pub const NODE_EXTENTS: u64 = 8;
/// Bytes that a stream's log may hold in the simulator: some twenty small deltas.
pub const LOG_BYTES_MAX: usize = 3000;

/// T of rule 13.
pub const QUIET: Duration = Duration::from_millis(600);
