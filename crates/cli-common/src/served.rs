//! The last report of a mount: bytes that it served, by their origin.

use std::fmt::{Display, Formatter};
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};
use staves_client::Figures;

use crate::output::bytes;

/// The line that a mount's process prints once it serves.
pub const SERVING: &str = "serving";

/// The line before it, where no node answers.
pub const WITHOUT_NODES: &str = "without nodes";

/// Bytes by where they came from. What is fetched ahead of a reader counts as it comes, read or not, and again where
/// it is then read from memory on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// From the memory of nodes on this machine.
    pub local_bytes: u64,
    /// From the memory of nodes elsewhere, or on this machine by asking them.
    pub pool_bytes: u64,
    /// From the source, fetched by nodes.
    pub fetched_bytes: u64,
    /// From the source, read here.
    pub source_bytes: u64,
}

impl Served {
    /// As it is now.
    pub fn of(figures: &Figures) -> Served {
        Served {
            local_bytes: figures.local_bytes.load(Relaxed),
            pool_bytes: figures.pool_bytes.load(Relaxed),
            fetched_bytes: figures.fetched_bytes.load(Relaxed),
            source_bytes: figures.source_bytes.load(Relaxed),
        }
    }

    /// The bytes that came from memory.
    pub fn memory_bytes(&self) -> u64 {
        self.local_bytes + self.pool_bytes
    }

    /// The bytes that came from the source.
    pub fn all_source_bytes(&self) -> u64 {
        self.fetched_bytes + self.source_bytes
    }

    /// All of it.
    pub fn all(&self) -> u64 {
        self.memory_bytes() + self.all_source_bytes()
    }
}

impl Display for Served {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "from the source came {} ({} of it read by nodes), from memory {} ({} of it on this machine)",
            bytes(self.all_source_bytes()),
            bytes(self.fetched_bytes),
            bytes(self.memory_bytes()),
            bytes(self.local_bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_served_is_told_by_where_it_came_from() {
        let served = Served {
            local_bytes: 3 << 20,
            pool_bytes: 1 << 20,
            fetched_bytes: 5 << 20,
            source_bytes: 1 << 20,
        };
        let told = served.to_string();
        for part in ["source came 6.0 MiB (5.0", "memory 4.0 MiB (3.0"] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
}
