//! The narrow gate of requests whose answers cost more than some microseconds.
//!
//! One of them is worked on at a time, and while others wait the node rests after each piece of work for longer than that took: a
//! flood of them takes a part of one core, and its senders' time. A client's connection has only a few under way and is not read
//! until they are answered (`staves_net::Reply::mark_costly`), so those of many connections take turns. What nobody will hear is not
//! worked on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use staves_net::Reply;
use staves_wire::{ErrorCode, Opcode};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Most that wait at a time. Those of a client's connection are bounded by themselves.
const WAITING_MAX: usize = 1024;
/// The rest after a piece of work while others wait, by the time that it took.
const REST: u32 = 3;

/// The cost of a request to the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestCost {
    /// As much as its own bytes, or it has a bound of its own: it is worked on at once.
    Own,
    /// Little, and then it waits for others: a client's connection has only a few.
    Waits,
    /// Much: it goes through the gate.
    Much,
}

/// The cost of each request.
pub(super) fn cost(of: Opcode) -> RequestCost {
    match of {
        // What is read and written is bounded by the memory for it; maps are encoded once; signs are only noted.
        Opcode::Service
        | Opcode::FileRead
        | Opcode::FileFetch
        | Opcode::FilePut
        | Opcode::GetMap
        | Opcode::Report => RequestCost::Own,
        Opcode::FileLost
        | Opcode::NodeStop
        | Opcode::NodeStopForced
        | Opcode::NodeDrain
        | Opcode::NodeResume => RequestCost::Waits,
        Opcode::CacheStats
        | Opcode::Status
        | Opcode::GroupState
        | Opcode::GroupSums
        | Opcode::GroupMend
        | Opcode::KeyRange
        | Opcode::Propose
        | Opcode::FileKeys
        | Opcode::FileChanges
        | Opcode::FileCheck
        | Opcode::FileUse
        | Opcode::FileAway => RequestCost::Much,
        // Not asked of a running node: refused, or answered before.
        Opcode::Hello | Opcode::Ping | Opcode::Prove | Opcode::Group | Opcode::Raft => {
            RequestCost::Own
        }
        // Answers are none of a handler's.
        Opcode::Welcome
        | Opcode::Pong
        | Opcode::Error
        | Opcode::Done
        | Opcode::Challenge
        | Opcode::Proven
        | Opcode::CacheStatsAnswer
        | Opcode::ServiceAnswers
        | Opcode::RaftAnswer
        | Opcode::Proposed
        | Opcode::MapAnswer
        | Opcode::FileBytes
        | Opcode::FileKeysAnswer
        | Opcode::FileChecked
        | Opcode::FileChangesAnswer
        | Opcode::FileLostAnswer
        | Opcode::StatusAnswer
        | Opcode::KeyRangeAnswer
        | Opcode::GroupStateAnswer
        | Opcode::GroupSumsAnswer => RequestCost::Own,
    }
}

/// The gate of a node.
#[derive(Debug)]
pub(crate) struct Gate {
    turns: Semaphore,
    waiting: AtomicUsize,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            turns: Semaphore::new(1),
            waiting: AtomicUsize::new(0),
        }
    }
}

/// A place among those that wait for their turn.
pub(super) struct GateWaiter<'a>(&'a Gate);

impl Drop for GateWaiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The right to work.
pub(super) struct Passage<'a> {
    gate: &'a Gate,
    since: Instant,
    _permit: SemaphorePermit<'a>,
}

impl Passage<'_> {
    /// Lets others do their work: to be called after each piece of work, and after the last.
    pub(super) async fn rest(&mut self) {
        match self.gate.waiting.load(Ordering::Relaxed) {
            0 => tokio::task::yield_now().await,
            _ => tokio::time::sleep(self.since.elapsed() * REST).await,
        }
        self.since = Instant::now();
    }
}

impl Gate {
    /// Waits for the turn of a request, which is answered if that does not come in time. Nobody waits for more than `patience`.
    pub(super) async fn turn(
        &self,
        reply: Reply,
        patience: Duration,
    ) -> Option<(Passage<'_>, Reply)> {
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let place = GateWaiter(self);
        if before >= WAITING_MAX {
            let text = format!(
                "{WAITING_MAX} such requests wait for their turn at this node already; nothing was done"
            );
            reply.error(ErrorCode::Busy, text);
            return None;
        }
        let turn = tokio::time::timeout(patience, self.turns.acquire()).await;
        drop(place);
        let Ok(Ok(permit)) = turn else {
            let text = format!(
                "its turn did not come within {} ms: others ask this node for much; nothing was done",
                patience.as_millis()
            );
            reply.error(ErrorCode::Busy, text);
            return None;
        };
        // Whoever closes its connection has nothing worked off behind it.
        if reply.is_gone() {
            return None;
        }
        let turn = Passage {
            gate: self,
            since: Instant::now(),
            _permit: permit,
        };
        Some((turn, reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one that works rests while others wait, and gives its turn on.
    #[tokio::test]
    async fn one_works_at_a_time_and_rests_while_others_wait() {
        let gate = Gate::default();
        let mut first = Passage {
            gate: &gate,
            since: Instant::now(),
            _permit: gate.turns.acquire().await.expect("open"),
        };
        let began = Instant::now();
        std::thread::sleep(Duration::from_millis(20));
        first.rest().await;
        assert!(gate.turns.try_acquire().is_err(), "it works on");
        let _waits = GateWaiter(&gate);
        gate.waiting.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
        first.rest().await;
        assert!(began.elapsed() >= Duration::from_millis(20 + 20 + 20 * 3));
        drop(first);
        assert!(gate.turns.try_acquire().is_ok());
    }
}
