//! What this node, its links and its clients see of other nodes, on its way to the directory's leader
//! (row D5). Said at most so often about each node: who is silent is seen again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_directory::{Directory, Evidence, Sign};
use staves_model::{ClusterMap, Incarnation, NodeId};
use staves_wire::directory::{self, Sign as Seen};
use tokio::sync::{mpsc, watch};

/// Least time between two reports of one node.
const PAUSE: Duration = Duration::from_millis(100);
/// Reports that wait to be sent; more are dropped.
const QUEUE: usize = 256;
/// How long a report may look for the leader; what it says is old then.
const PATIENCE: Duration = Duration::from_millis(700);

/// Takes note of what is seen. Clones share it.
#[derive(Clone)]
pub(crate) struct Witness {
    queue: mpsc::Sender<Evidence>,
    map: watch::Receiver<Arc<ClusterMap>>,
    last: Arc<Mutex<BTreeMap<NodeId, (Instant, Sign)>>>,
}

impl Witness {
    /// A witness, and the other end of what it says.
    pub(crate) fn new(
        map: watch::Receiver<Arc<ClusterMap>>,
    ) -> (Witness, mpsc::Receiver<Evidence>) {
        let (queue, said) = mpsc::channel(QUEUE);
        let last = Arc::default();
        (Witness { queue, map, last }, said)
    }

    /// One of this node's links found this of a node, in the life that it has now. Never blocks.
    pub(crate) fn saw(&self, node: NodeId, sign: Seen) {
        let sign = match sign {
            Seen::Silent(_) => Sign::Silent,
            Seen::Refused => Sign::Refused,
            Seen::Reset => Sign::Failed,
            // The pinger takes its own words back; nobody else's are ours to take back.
            Seen::Alive => return,
        };
        let known = self.map.borrow().nodes.get(&node).map(|n| n.incarnation);
        if let Some(incarnation) = known {
            self.say(node, incarnation, sign);
        }
    }

    /// A request to a node came to nothing, here or at a client. Whatever was seen, that is reason to look and
    /// not to believe: who only waited too long was perhaps kept waiting by another node.
    pub(crate) fn heard(&self, of: directory::Evidence) {
        if of.sign != Seen::Alive {
            self.say(of.node, of.incarnation, Sign::Failed);
        }
    }

    fn say(&self, node: NodeId, incarnation: Incarnation, sign: Sign) {
        if !self.map.borrow().is_up(node, incarnation) {
            return;
        }
        let now = Instant::now();
        {
            let mut last = self.last.lock();
            // What was found by looking is said also just after what was only reason to look.
            let said = |(at, before): &(Instant, Sign)| {
                now - *at < PAUSE && (*before != Sign::Failed || sign == Sign::Failed)
            };
            if last.get(&node).is_some_and(said) {
                return;
            }
            last.insert(node, (now, sign));
        }
        let _ = self.queue.try_send(Evidence {
            node,
            incarnation,
            sign,
        });
    }
}

/// Reports until the witness is gone.
pub(crate) async fn run(directory: Directory, mut said: mpsc::Receiver<Evidence>) {
    let map = directory.map();
    let mut batch = Vec::new();
    while said.recv_many(&mut batch, QUEUE).await > 0 {
        let mut seen = std::mem::take(&mut batch);
        seen.retain(|one| map.borrow().is_up(one.node, one.incarnation));
        if seen.is_empty() {
            continue;
        }
        if let Err(error) = directory.report(seen, PATIENCE).await {
            tracing::debug!(%error, "a report of failing nodes was lost");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> (ClusterMap, Incarnation) {
        let map = staves_model::testing::cluster(1);
        let incarnation = map.nodes[&NodeId(1)].incarnation;
        (map, incarnation)
    }

    /// Regression: a request that had waited too long, and whatever a client said, counted as if this node had
    /// pinged in vain: two such words were a death.
    #[test]
    fn what_befell_a_request_is_reason_to_look_and_no_more() {
        let (map, incarnation) = map();
        let (_keep, map) = watch::channel(Arc::new(map));
        let (witness, mut said) = Witness::new(map);
        let node = NodeId(1);
        let of = |sign, incarnation| directory::Evidence {
            node,
            incarnation,
            sign,
        };
        witness.heard(of(Seen::Silent(1000), incarnation));
        let word = said.try_recv().expect("said");
        assert_eq!((word.node, word.sign), (node, Sign::Failed));
        // A link that was refused has looked, and is not held back by what was said just now.
        witness.heard(of(Seen::Refused, incarnation));
        witness.saw(node, Seen::Refused);
        assert_eq!(said.try_recv().expect("said").sign, Sign::Refused);
        witness.saw(node, Seen::Refused);
        assert!(said.try_recv().is_err(), "it was said a moment ago");
    }

    /// Nobody is remembered who is not there, however many a stranger names; nor is a life that is over.
    #[test]
    fn only_lives_that_there_are_are_spoken_of() {
        let (map, incarnation) = map();
        let (_keep, map) = watch::channel(Arc::new(map));
        let (witness, mut said) = Witness::new(map);
        for (node, incarnation) in [(0, 1), (2, 1), (u64::MAX, 1), (1, incarnation.0 + 1)] {
            witness.heard(directory::Evidence {
                node: NodeId(node),
                incarnation: Incarnation(incarnation),
                sign: Seen::Refused,
            });
            witness.saw(NodeId(2), Seen::Refused);
        }
        assert!(said.try_recv().is_err() && witness.last.lock().is_empty());
    }
}
