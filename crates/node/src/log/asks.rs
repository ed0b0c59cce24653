//! Questions of units of this node to sequencers: the node sends them, and brings the answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::time::Instant;

use parking_lot::Mutex;
use staves_client::{Router, Transport, log_calls as calls};
use staves_log::service::AskQueue;
use staves_log::{SequencerId, SequencerReply, SequencerRequest, UnitId};
use staves_model::PoolId;
use staves_net::Peers;
use staves_wire::Message;
use staves_wire::log::LogAsk;
use tokio::sync::{Notify, Semaphore};

use super::{CALL, Sequencers};

/// Most requests of units under way: units ask again for what is dropped.
const ASKS_MAX: usize = 1024;

/// Wakes the sender.
#[derive(Debug, Default)]
struct AskWake(Notify);

impl Wake for AskWake {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// The queues of all units on this node.
#[derive(Debug, Default)]
pub struct UnitAsks {
    queues: Mutex<Vec<(UnitId, Weak<AskQueue>)>>,
    wake: Arc<AskWake>,
}

impl UnitAsks {
    /// A unit was made. Its queue goes with it.
    pub fn add(&self, unit: UnitId, asks: &Arc<AskQueue>) {
        asks.wakes(Waker::from(self.wake.clone()));
        let mut queues = self.queues.lock();
        queues.retain(|(_, queue)| queue.strong_count() > 0);
        queues.push((unit, Arc::downgrade(asks)));
    }

    fn take(&self) -> BTreeMap<UnitId, Vec<(SequencerId, SequencerRequest)>> {
        let mut all = BTreeMap::<_, Vec<_>>::new();
        for (unit, queue) in self.queues.lock().iter() {
            let asks = queue.upgrade().map(|queue| queue.take());
            let asks = asks.filter(|asks| !asks.is_empty());
            if let Some(asks) = asks {
                all.entry(*unit).or_default().extend(asks);
            }
        }
        all
    }
}

/// Sends what units ask, for ever.
pub(crate) async fn send_asks<T: Transport>(
    router: Router<T>,
    peers: Peers,
    logs: Arc<Sequencers>,
) {
    let places = Arc::new(Semaphore::new(ASKS_MAX));
    loop {
        logs.asks.wake.0.notified().await;
        let map = router.map();
        for (unit, asks) in logs.asks.take() {
            let Some(pool) = map.groups.get(&unit).map(|group| group.pool) else {
                continue;
            };
            for (to, request) in asks {
                let Ok(place) = places.clone().try_acquire_owned() else {
                    continue;
                };
                let (router, peers, logs) = (router.clone(), peers.clone(), logs.clone());
                tokio::spawn(async move {
                    let _place = place;
                    send((&router, &peers), &logs, (pool, unit), to, request).await;
                });
            }
        }
    }
}

async fn send<T: Transport>(
    (router, peers): (&Router<T>, &Peers),
    logs: &Sequencers,
    (pool, unit): (PoolId, UnitId),
    to: SequencerId,
    request: SequencerRequest,
) {
    let deadline = Instant::now() + CALL;
    let reply = match to.node == logs.id().node {
        true => logs.ask(pool, to, request).await,
        false => ask_node(peers, pool, to, request, deadline).await,
    };
    if let Some(reply) = reply {
        let told = calls::tell_unit(router, pool, unit, reply, deadline).await;
        if let Err(error) = told {
            tracing::debug!(%unit, %error, "a unit was not brought a sequencer's answer");
        }
    }
}

async fn ask_node(
    peers: &Peers,
    pool: PoolId,
    to: SequencerId,
    request: SequencerRequest,
    deadline: Instant,
) -> Option<SequencerReply> {
    let ask = LogAsk {
        pool,
        node: to.node,
        incarnation: to.incarnation,
        body: calls::encoded(|out| request.encode(out)),
    };
    let ask = Message::LogAsk(ask);
    match peers.call(to.node, &ask, deadline).await {
        Ok(Message::LogSaid(said)) => SequencerReply::decode(said.body).ok(),
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(node = %to.node, %error, "a sequencer did not answer a unit");
            None
        }
    }
}
