//! The lease desk: requests come in, one confirmation by a quorum serves all that wait.
//!
//! GROUP: a lease is granted only by a leader that a quorum lately confirmed. Here the confirmation
//! begins after every request of its batch has come, so a lease that is counted from the asking is safe
//! against any leader elected later: that one came after the confirmation, and waits one whole lease.

use std::sync::Arc;
use std::time::Duration;

use staves_model::lease::heard_from;
use staves_model::{Epoch, GroupId, Incarnation, NodeId};
use tokio::sync::{mpsc, oneshot};

use crate::directory::Inner;
use crate::message::Answer;

/// Most requests that one confirmation serves.
const BATCH_MAX: usize = 512;
/// How long a quorum is given to confirm.
const CONFIRM: Duration = Duration::from_millis(250);

/// One node's request.
pub(crate) struct LeaseAsk {
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub wanted: Vec<(GroupId, Epoch)>,
    pub reply: oneshot::Sender<Answer>,
}

/// Serves batches until the directory stops.
pub(crate) async fn run(inner: Arc<Inner>, mut queue: mpsc::Receiver<LeaseAsk>) {
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let confirmed = confirm(&inner).await;
        for ask in batch.drain(..) {
            let answer = match &confirmed {
                Ok(()) => grant(&inner, &ask),
                Err(reason) => Answer::Later {
                    wait_ms: 20,
                    reason: reason.clone(),
                },
            };
            // Who asked may have stopped waiting; the book is then merely too careful.
            let _ = ask.reply.send(answer);
        }
    }
}

/// That a quorum follows this leader, and that its map holds everything committed before now.
pub(crate) async fn confirm(inner: &Inner) -> Result<(), String> {
    let core = inner.core().map_err(|e| e.to_string())?;
    match tokio::time::timeout(CONFIRM, core.raft.ensure_linearizable()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(e)) => Err(format!("no majority confirms that this node leads: {e}")),
        Err(_) => Err(format!(
            "no majority confirmed within {} ms that this node leads",
            CONFIRM.as_millis()
        )),
    }
}

fn grant(inner: &Inner, ask: &LeaseAsk) -> Answer {
    let mut duties = inner.duties.lock();
    let Some(duties) = duties.as_mut() else {
        return Answer::Later {
            wait_ms: 20,
            reason: "the leader has only just been elected".into(),
        };
    };
    // Under the lock: who opens an epoch after this sees the grant, who opened one before is in the map.
    let map = inner.map();
    // A quorum has confirmed this map since the asker asked: lives only follow each other.
    match map.nodes.get(&ask.node) {
        Some(node) if node.incarnation > ask.incarnation => {
            let address = Some(node.native.clone());
            return Answer::Over { address };
        }
        None => return Answer::Over { address: None },
        Some(_) => {}
    }
    let now = inner.now();
    let granted = duties
        .leases
        .grant(now, &map, ask.node, ask.incarnation, &ask.wanted);
    let names = map.groups.values().filter(|g| g.names(ask.node));
    let heard = names
        .filter_map(|g| Some((g.id, heard_from(&map, g, ask.node, ask.incarnation)?)))
        .collect();
    Answer::Leased {
        granted,
        heard,
        revision: map.revision,
    }
}
