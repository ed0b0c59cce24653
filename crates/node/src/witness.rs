//! Evidence of other nodes' lives, from this node, its links and its clients, on its way to the directory's leader
//! (row D5). Said at most so often about each node: who is silent is seen again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_directory::Directory;
use staves_model::pinger::FailureReports;
use staves_model::{ClusterMap, Evidence, NodeId, Sign, Time};
use tokio::sync::{mpsc, watch};

/// Least time between two reports of one node.
const PAUSE: Duration = Duration::from_millis(100);
/// Reports that wait to be sent; more are dropped.
const QUEUE: usize = 256;
/// The time that a report may look for the leader; it is out of date then.
const PATIENCE: Duration = Duration::from_millis(700);

/// Takes note of what is seen. Clones share it.
#[derive(Clone)]
pub(crate) struct Witness {
    queue: mpsc::Sender<Evidence>,
    map: watch::Receiver<Arc<ClusterMap>>,
    reports: Arc<Mutex<FailureReports>>,
    origin: Instant,
}

impl Witness {
    /// A witness, and the other end of what it says.
    pub(crate) fn new(
        map: watch::Receiver<Arc<ClusterMap>>,
    ) -> (Witness, mpsc::Receiver<Evidence>) {
        let (queue, said) = mpsc::channel(QUEUE);
        let witness = Witness {
            queue,
            map,
            reports: Arc::new(Mutex::new(FailureReports::new(PAUSE))),
            origin: Instant::now(),
        };
        (witness, said)
    }

    /// One of this node's links found this of a node, in the life that it has now. Never blocks.
    pub(crate) fn saw(&self, node: NodeId, sign: Sign) {
        let known = self.map.borrow().nodes.get(&node).map(|n| n.incarnation);
        if let Some(incarnation) = known {
            self.say(Evidence {
                node,
                incarnation,
                sign,
            });
        }
    }

    /// A request to a node came to nothing, here or at a client. Whatever was seen, that is reason to look and
    /// not to believe: who only waited too long was perhaps kept waiting by another node.
    pub(crate) fn heard(&self, of: Evidence) {
        if of.sign != Sign::Alive {
            self.say(Evidence {
                sign: Sign::Failed,
                ..of
            });
        }
    }

    fn say(&self, seen: Evidence) {
        // The pinger takes its own words back; nobody else's are ours to take back.
        if seen.sign == Sign::Alive {
            return;
        }
        let now = Time(self.origin.elapsed().as_nanos() as u64);
        if self.reports.lock().admit(now, &self.map.borrow(), seen) {
            let _ = self.queue.try_send(seen);
        }
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
    use staves_model::Incarnation;

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
        let of = |sign, incarnation| Evidence {
            node,
            incarnation,
            sign,
        };
        witness.heard(of(Sign::Silent, incarnation));
        let word = said.try_recv().expect("said");
        assert_eq!((word.node, word.sign), (node, Sign::Failed));
        // A link that was refused has looked, and is not held back by what was said just now.
        witness.heard(of(Sign::Refused, incarnation));
        witness.saw(node, Sign::Refused);
        assert_eq!(said.try_recv().expect("said").sign, Sign::Refused);
        witness.saw(node, Sign::Refused);
        assert!(said.try_recv().is_err(), "it was said a moment ago");
    }

    /// Nobody is remembered who is not there, however many a stranger names; nor is a life that is over.
    #[test]
    fn only_lives_that_there_are_are_spoken_of() {
        let (map, incarnation) = map();
        let (_keep, map) = watch::channel(Arc::new(map));
        let (witness, mut said) = Witness::new(map);
        for (node, incarnation) in [(0, 1), (2, 1), (u64::MAX, 1), (1, incarnation.0 + 1)] {
            witness.heard(Evidence {
                node: NodeId(node),
                incarnation: Incarnation(incarnation),
                sign: Sign::Refused,
            });
            witness.saw(NodeId(2), Sign::Refused);
        }
        assert!(said.try_recv().is_err() && witness.reports.lock().is_empty());
    }
}
