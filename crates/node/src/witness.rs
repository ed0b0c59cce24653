//! What this node, its links and its clients see of other nodes, on its way to the directory's leader
//! (row D5). Said at most so often about each node: who is silent is seen again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_directory::{Directory, Evidence, Sign};
use staves_model::{NodeId, NodeState};
use tokio::sync::mpsc;

/// Least time between two reports of one node.
const PAUSE: Duration = Duration::from_millis(100);
/// Reports that wait to be sent; more are dropped.
const QUEUE: usize = 256;
/// How long a report may look for the leader; what it says is old then.
const PATIENCE: Duration = Duration::from_millis(700);

/// Takes note of what is seen. Clones share it.
#[derive(Clone)]
pub(crate) struct Witness {
    queue: mpsc::Sender<(NodeId, Sign)>,
    last: Arc<Mutex<BTreeMap<NodeId, Instant>>>,
}

impl Witness {
    /// A witness, and the other end of what it says.
    pub(crate) fn new() -> (Witness, mpsc::Receiver<(NodeId, Sign)>) {
        let (queue, said) = mpsc::channel(QUEUE);
        let last = Arc::default();
        (Witness { queue, last }, said)
    }

    /// Something was seen of a node. Never blocks.
    pub(crate) fn saw(&self, node: NodeId, sign: staves_wire::directory::Sign) {
        use staves_wire::directory::Sign as Seen;
        let sign = match sign {
            Seen::Silent(_) => Sign::Silent,
            Seen::Refused => Sign::Refused,
            Seen::Reset => Sign::Failed,
            // The pinger takes its own words back; nobody else's are ours to take back.
            Seen::Alive => return,
        };
        let now = Instant::now();
        {
            let mut last = self.last.lock();
            if last.get(&node).is_some_and(|at| now - *at < PAUSE) {
                return;
            }
            last.insert(node, now);
        }
        let _ = self.queue.try_send((node, sign));
    }
}

/// Reports until the witness is gone.
pub(crate) async fn run(directory: Directory, mut said: mpsc::Receiver<(NodeId, Sign)>) {
    let map = directory.map();
    let mut batch = Vec::new();
    while said.recv_many(&mut batch, QUEUE).await > 0 {
        let seen = {
            let map = map.borrow();
            let evidence = |(node, sign): (NodeId, Sign)| {
                let known = map.nodes.get(&node)?;
                (known.state == NodeState::Up).then_some(Evidence {
                    node,
                    incarnation: known.incarnation,
                    sign,
                })
            };
            batch
                .drain(..)
                .filter_map(evidence)
                .collect::<Vec<Evidence>>()
        };
        if seen.is_empty() {
            continue;
        }
        if let Err(error) = directory.report(seen, PATIENCE).await {
            tracing::debug!(%error, "a report of failing nodes was lost");
        }
    }
}
