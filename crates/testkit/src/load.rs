//! The load of a [`Workload`] on real nodes: clients in tasks or threads, each through a [`Door`] of its own, with the
//! history that they share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use staves_client::Client;
use staves_client::turn::ServiceOp;
use staves_conformance::{Begun, Clients, Workload};
use staves_history::Operation;
use staves_service::Service;
use staves_wire::ErrorCode;
use staves_wire::service::{Answer, PoolRef};

/// Rest between two operations of a client, and after one that had no answer.
pub const REST: Duration = Duration::from_millis(4);
/// See [`REST`].
pub const PAUSE: Duration = Duration::from_millis(60);

/// One client's way to the service: a protocol, and connections.
pub trait Door<W: Workload> {
    /// Executes an operation. If there is no answer it is an error, with a code that says whether the operation may have
    /// taken effect.
    fn execute(&mut self, begun: &Begun<W::Operation>) -> impl Future<Output = Answer>;
}

/// The load on one pool, with the history of its clients.
pub struct Load<W: Workload> {
    start: Instant,
    clients: Mutex<Clients<W>>,
    stop: AtomicBool,
    refused: AtomicU64,
}

impl<W: Workload> Default for Load<W> {
    fn default() -> Load<W> {
        Load::new(Instant::now())
    }
}

impl<W: Workload> Load<W> {
    /// Load with the clock that starts there.
    pub fn new(start: Instant) -> Load<W> {
        Load {
            start,
            clients: Mutex::default(),
            stop: AtomicBool::new(false),
            refused: AtomicU64::new(0),
        }
    }

    /// Nanoseconds of its clock.
    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// The clients, with the history.
    pub fn clients(&self) -> MutexGuard<'_, Clients<W>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Operations in the history.
    pub fn answered(&self) -> usize {
        self.clients().history().len()
    }

    /// Operations that certainly were not done.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Ends all clients.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// True once the clients are to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Executes one operation of a client. True if it was answered with something that its history can hold.
    ///
    /// # Errors
    /// No such operation is ever answered so.
    pub async fn execute(
        &self,
        door: &mut impl Door<W>,
        begin: impl FnOnce(&mut Clients<W>, u64) -> Begun<W::Operation>,
    ) -> Result<bool, String> {
        let now = self.now();
        let begun = begin(&mut self.clients(), now);
        let answer = door.execute(&begun).await;
        let now = self.now();
        let error = match &answer {
            Answer::Error(code, _) => Some(*code),
            _ => None,
        };
        if error.is_some_and(ErrorCode::nothing_done) {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        self.clients().ended(begun, now, answer)?;
        Ok(error.is_none())
    }

    /// Executes one operation of a client after the other until [`Load::stop`].
    ///
    /// # Errors
    /// One is answered as no such operation ever is.
    pub async fn run(
        &self,
        door: &mut impl Door<W>,
        mut next: impl FnMut(&mut Clients<W>, u64) -> Begun<W::Operation>,
    ) -> Result<(), String> {
        while !self.is_stopped() {
            let done = self.execute(door, &mut next).await?;
            tokio::time::sleep(if done { REST } else { PAUSE }).await;
        }
        Ok(())
    }

    /// Reads every object of the workload, and judges the whole history.
    ///
    /// # Errors
    /// No order explains the answers, or an object cannot be read.
    pub async fn judge(&self, door: &mut impl Door<W>) -> Result<(), String> {
        for object in 0..W::OBJECTS {
            let read = self.execute(door, |clients, now| clients.read((0, object), now));
            if !read.await? {
                return Err(format!("object {object} cannot be read"));
            }
            self.clients().judge(object)?;
        }
        Ok(())
    }
}

/// The client library's router, as the door to a pool.
#[derive(Clone)]
pub struct Native {
    /// The client.
    pub client: Client,
    /// The pool's name.
    pub pool: &'static str,
    /// The time that an operation may take, retries included.
    pub patience: Duration,
}

impl<W: Workload> Door<W> for Native {
    async fn execute(&mut self, begun: &Begun<W::Operation>) -> Answer {
        let map = self.client.map();
        let Some(pool) = map.pool_named(self.pool) else {
            return Answer::error(ErrorCode::NotFound, format!("no pool '{}'", self.pool));
        };
        let op = ServiceOp {
            to: W::address(pool, begun.object),
            body: W::body(begun.object, &begun.operation),
            is_write: !begun.operation.is_read(),
            answer_bytes: 0,
        };
        let (pool, deadline) = (PoolRef::Id(pool.id), Instant::now() + self.patience);
        let service = W::Service::ID;
        let answers = self.client.execute_for(service, &pool, vec![op], deadline);
        match answers.await.map(|answers| answers.into_iter().next()) {
            Ok(Some(answer)) => answer,
            Ok(None) => panic!("one operation has no answer at all"),
            Err(error) => Answer::error(error.code(), error.to_string()),
        }
    }
}

/// Random numbers from a seed: SplitMix64.
pub struct Random(pub u64);

impl Random {
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }
}
