//! The load of a [`Workload`] on real nodes, through a client's router.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use staves_client::Client;
use staves_client::turn::ServiceOp;
use staves_conformance::{Begun, Clients, Workload};
use staves_history::Operation;
use staves_model::PoolId;
use staves_service::Service;
use staves_wire::service::{Answer, PoolRef};

/// Rest between two operations of a client.
const REST: Duration = Duration::from_millis(2);
/// The time that an operation may take, retries included.
const PATIENCE: Duration = Duration::from_secs(10);

/// Clients of a pool, with the history that they share.
pub struct Load<W: Workload> {
    client: Client,
    pool: PoolId,
    clients: Mutex<Clients<W>>,
    random: AtomicU64,
    stop: AtomicBool,
}

impl<W: Workload> Load<W> {
    /// Load on a pool, drawn from a seed.
    pub fn new(client: Client, pool: PoolId, seed: u64) -> Load<W> {
        Load {
            client,
            pool,
            clients: Mutex::default(),
            random: AtomicU64::new(seed),
            stop: AtomicBool::new(false),
        }
    }

    fn clients(&self) -> std::sync::MutexGuard<'_, Clients<W>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Operations whose effect is known.
    pub fn answered(&self) -> u64 {
        self.clients().answered()
    }

    /// Ends all clients.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// One client: an operation after the other until [`Load::stop`].
    pub async fn run(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let begun = self.clients().draw(&mut |below| self.random() % below);
            let answer = self.ask(&begun).await;
            self.clients().ended(&begun, &answer);
            tokio::time::sleep(REST).await;
        }
    }

    /// Reads every object, and judges the whole history.
    ///
    /// # Errors
    /// No order explains the answers, or an object cannot be read.
    pub async fn judge(&self) -> Result<(), String> {
        for object in 0..W::OBJECTS {
            let read = self.clients().read(object);
            let answer = self.ask(&read).await;
            if W::seen(&read.operation, &answer).is_none() {
                return Err(format!("object {object} is answered {answer:?}"));
            }
            self.clients().ended(&read, &answer);
            self.clients().judge(object)?;
        }
        Ok(())
    }

    async fn ask(&self, begun: &Begun<W::Operation>) -> Answer {
        let map = self.client.map();
        let Some(pool) = map.pools.get(&self.pool) else {
            panic!("the client's map has no pool {}", self.pool)
        };
        let op = ServiceOp {
            to: W::address(pool, begun.object),
            body: W::body(begun.object, &begun.operation),
            is_write: !begun.operation.is_read(),
            answer_bytes: 0,
        };
        let (pool, deadline) = (PoolRef::Id(self.pool), Instant::now() + PATIENCE);
        let service = W::Service::ID;
        let answers = self.client.execute_for(service, &pool, vec![op], deadline);
        match answers.await.map(|answers| answers.into_iter().next()) {
            Ok(Some(answer)) => answer,
            Ok(None) => panic!("one operation has no answer at all"),
            Err(error) => Answer::error(error.code(), error.to_string()),
        }
    }

    /// SplitMix64.
    fn random(&self) -> u64 {
        let step = 0x9E37_79B9_7F4A_7C15u64;
        let mut z = self
            .random
            .fetch_add(step, Ordering::Relaxed)
            .wrapping_add(step);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
