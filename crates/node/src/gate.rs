//! The narrow gates of costly requests, for all doors: INFO, CLUSTER NODES, DBSIZE and the like at the RESP door, `status`, sums
//! of pages and the like at the others. They are asked for now and then, and cost hundreds of times what a GET does.
//!
//! Clients have a gate of their own: a crowd of them keeps no tool and no other node waiting. At each gate one request is worked on at
//! a time. After a turn the gate stays shut for as long as the turn took, and for three times as long
//! where others wait: a flood takes a part of one thread, and its senders' time. Waits are bounded in count and in time, and end with
//! the connection of the asker, which drops them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use staves_wire::hello::Role;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most requests that wait for their turn at a time.
const WAITING_MAX: usize = 1024;
/// The rest after a piece of work while others wait, by the time that it took.
const REST: u32 = 3;
/// The gate is not shut for less: a timer is no finer.
const SHUT_MIN: Duration = Duration::from_millis(2);

/// A bounded number of places for those who wait.
#[derive(Debug)]
pub(crate) struct WaitingPlaces {
    taken: Arc<AtomicUsize>,
    max: usize,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct WaitingPlace(Arc<AtomicUsize>);

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WaitingPlaces {
    pub(crate) fn new(max: usize) -> WaitingPlaces {
        WaitingPlaces {
            taken: Arc::default(),
            max,
        }
    }

    /// A place, if one is free.
    pub(crate) fn take(&self) -> Option<WaitingPlace> {
        let before = self.taken.fetch_add(1, Ordering::Relaxed);
        let place = WaitingPlace(self.taken.clone());
        (before < self.max).then_some(place)
    }
}

/// The reason why a request does not get its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum GateRefusal {
    #[error(
        "{WAITING_MAX} such requests wait for their turn at this node already; nothing was done"
    )]
    Crowded,
    #[error(
        "its turn did not come within {} ms: others ask this node for much; nothing was done",
        .0.as_millis()
    )]
    Late(Duration),
}

/// The gates of a node: however many clients wait at theirs, nobody else waits for them.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    clients: Arc<Gate>,
    /// Of other nodes, of tools and of the admin door.
    cluster: Arc<Gate>,
}

impl Gates {
    /// The one for those who said so in their hello.
    pub(crate) fn of(&self, role: Role) -> Arc<Gate> {
        match role {
            Role::Client => self.clients.clone(),
            Role::Node | Role::Admin => self.cluster.clone(),
        }
    }
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Gate {
    turns: Arc<Semaphore>,
    places: WaitingPlaces,
    /// Nanoseconds of work after which the gate has not been shut yet.
    owed: AtomicU64,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            turns: Arc::new(Semaphore::new(1)),
            places: WaitingPlaces::new(WAITING_MAX),
            owed: AtomicU64::new(0),
        }
    }
}

impl Gate {
    /// Waits for the next turn, after those who came before, for so long at most.
    pub(crate) async fn enter(
        self: Arc<Gate>,
        wait_max: Duration,
    ) -> Result<CostlyTurn, GateRefusal> {
        let place = self.places.take().ok_or(GateRefusal::Crowded)?;
        let turn = tokio::time::timeout(wait_max, self.turns.clone().acquire_owned()).await;
        drop(place);
        let Ok(Ok(permit)) = turn else {
            return Err(GateRefusal::Late(wait_max));
        };
        Ok(CostlyTurn {
            gate: self,
            permit: Some(permit),
            since: Instant::now(),
        })
    }

    /// The time for which the gate is to be shut after so much work. Short turns follow each other at once until they add up.
    fn shut_for(&self, worked: Duration) -> Duration {
        let rest = match self.is_waited_for() {
            true => worked * REST,
            false => worked,
        };
        let owed = rest.as_nanos() as u64 + self.owed.load(Ordering::Relaxed);
        let pays = owed >= SHUT_MIN.as_nanos() as u64;
        self.owed
            .store(if pays { 0 } else { owed }, Ordering::Relaxed);
        Duration::from_nanos(if pays { owed } else { 0 })
    }

    fn is_waited_for(&self) -> bool {
        self.places.taken.load(Ordering::Relaxed) > 0
    }
}

/// A turn, until it is dropped. The gate stays shut for a while then.
#[derive(Debug)]
pub(crate) struct CostlyTurn {
    gate: Arc<Gate>,
    permit: Option<OwnedSemaphorePermit>,
    since: Instant,
}

impl CostlyTurn {
    /// Lets others do their work between two pieces of this one.
    pub(crate) async fn rest(&mut self) {
        match self.gate.is_waited_for() {
            false => tokio::task::yield_now().await,
            true => tokio::time::sleep(self.since.elapsed() * REST).await,
        }
        self.since = Instant::now();
    }
}

impl Drop for CostlyTurn {
    fn drop(&mut self) {
        let shut = self.gate.shut_for(self.since.elapsed());
        if let (false, Ok(runtime)) = (shut.is_zero(), tokio::runtime::Handle::try_current()) {
            let permit = self.permit.take();
            runtime.spawn(async move {
                tokio::time::sleep(shut).await;
                drop(permit);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn the_gate_stays_shut_for_as_long_as_a_turn_took() {
        let gate = Arc::new(Gate::default());
        let turn = gate.clone().enter(LONG).await.expect("nobody waits");
        let other = gate.clone().enter(SHORT).await;
        assert_eq!(other.err(), Some(GateRefusal::Late(SHORT)), "one at a time");
        drop(turn);
        let dropped = Instant::now();
        let turn = gate.clone().enter(LONG).await.expect("it ends");
        assert!(dropped.elapsed() >= SHORT);
        drop(turn);
        // Short ones follow each other at once until they add up.
        let begun = Instant::now();
        for _ in 0..10 {
            drop(gate.clone().enter(LONG).await);
        }
        assert!(begun.elapsed() < LONG);
    }

    #[tokio::test]
    async fn who_works_rests_for_longer_while_others_wait() {
        let gate = Arc::new(Gate::default());
        let mut turn = gate.clone().enter(LONG).await.expect("nobody waits");
        std::thread::sleep(SHORT);
        turn.rest().await;
        assert_eq!(gate.turns.available_permits(), 0, "it works on");
        let _waits = gate.places.take().expect("a place");
        let began = Instant::now();
        std::thread::sleep(SHORT);
        turn.rest().await;
        assert!(began.elapsed() >= SHORT + SHORT * REST);
        assert_eq!(gate.shut_for(SHORT), SHORT * REST);
    }

    #[tokio::test]
    async fn nobody_waits_for_a_crowd_of_clients() {
        let gates = Gates::default();
        let turn = gates.of(Role::Client).enter(LONG).await;
        let _turn = turn.expect("nobody waits");
        let late = gates.of(Role::Client).enter(SHORT).await;
        assert_eq!(late.err(), Some(GateRefusal::Late(SHORT)));
        let tool = gates.of(Role::Admin).enter(SHORT).await;
        drop(tool.expect("a tool has its turn"));
        let node = gates.of(Role::Node).enter(SHORT).await;
        assert!(node.is_ok(), "and so has a node");
    }

    #[tokio::test]
    async fn so_many_wait_and_who_goes_gives_its_place_up() {
        let gate = Arc::new(Gate::default());
        let turn = gate.clone().enter(LONG).await.expect("nobody waits");
        let mut waiting: Vec<_> = (0..WAITING_MAX)
            .map(|_| tokio::spawn(gate.clone().enter(LONG)))
            .collect();
        while gate.places.taken.load(Ordering::Relaxed) < WAITING_MAX {
            tokio::task::yield_now().await;
        }
        let refused = gate.clone().enter(LONG).await;
        assert_eq!(refused.err(), Some(GateRefusal::Crowded));
        let gone = waiting.pop().expect("one of them");
        gone.abort();
        assert!(gone.await.is_err());
        assert_eq!(gate.places.taken.load(Ordering::Relaxed), WAITING_MAX - 1);
        let late = gate.clone().enter(SHORT).await;
        assert_eq!(late.err(), Some(GateRefusal::Late(SHORT)));
        waiting.iter().for_each(|task| task.abort());
        drop(turn);
    }
}
