//! Turns of costly requests: those that tell of the whole node or cluster (INFO, CLUSTER NODES, DBSIZE and the like), which are asked
//! for now and then, and cost hundreds of times what a GET does.
//!
//! One is answered at a time, and after it the gate stays shut for as long as it took: whoever asks for thousands takes half of one
//! thread at the most, from others who ask for such, and from nobody else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The gate is not shut for less: a timer is no finer.
const SHUT_MIN: Duration = Duration::from_millis(2);

/// The gate of a node.
#[derive(Debug)]
pub(crate) struct Turns {
    gate: Arc<Semaphore>,
    /// Nanoseconds that costly requests took and for which the gate has not been shut yet.
    owed: Arc<AtomicU64>,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns {
            gate: Arc::new(Semaphore::new(1)),
            owed: Arc::default(),
        }
    }
}

impl Turns {
    /// Waits for the next turn, after those who came before.
    pub(crate) async fn next(&self) -> CostlyTurn {
        CostlyTurn {
            // The gate is never taken away.
            permit: self.gate.clone().acquire_owned().await.ok(),
            owed: self.owed.clone(),
            begun: Instant::now(),
        }
    }
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct CostlyTurn {
    permit: Option<OwnedSemaphorePermit>,
    owed: Arc<AtomicU64>,
    begun: Instant,
}

impl Drop for CostlyTurn {
    fn drop(&mut self) {
        let spent = self.begun.elapsed().as_nanos() as u64;
        let owed = self.owed.load(Ordering::Relaxed) + spent;
        let pays = owed >= SHUT_MIN.as_nanos() as u64;
        self.owed
            .store(if pays { 0 } else { owed }, Ordering::Relaxed);
        if let (true, Ok(runtime)) = (pays, tokio::runtime::Handle::try_current()) {
            let permit = self.permit.take();
            runtime.spawn(async move {
                tokio::time::sleep(Duration::from_nanos(owed)).await;
                drop(permit);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_gate_stays_shut_for_as_long_as_a_turn_took() {
        let turns = Turns::default();
        let turn = turns.next().await;
        let other = tokio::time::timeout(Duration::from_millis(50), turns.next()).await;
        assert!(other.is_err(), "one at a time");
        drop(turn);
        let dropped = Instant::now();
        let turn = turns.next().await;
        assert!(dropped.elapsed() >= Duration::from_millis(50));
        drop(turn);
        // Short ones follow each other at once until they add up.
        let begun = Instant::now();
        for _ in 0..10 {
            drop(turns.next().await);
        }
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
