//! The state of simulated clients.

use std::collections::BTreeMap;
use std::sync::Arc;

use staves_client::Avoid;
use staves_client::turn::{RouterTurn, TurnEvent};
use staves_model::{ClusterMap, Group, NodeId};

/// A simulated client.
#[derive(Default)]
pub struct SimClient {
    /// The number of its newest request.
    pub number: u64,
    /// Its operation under way: an index into the history.
    pub under_way: Option<usize>,
    pub(crate) attempts: u32,
    /// The index of the group that its operation is for.
    pub group: usize,
    pub(crate) maps: BTreeMap<usize, Arc<Group>>,
    pub(crate) target: (usize, usize),
    /// Of a service's client; its timer is everybody's.
    pub router: Router,
    /// The life of the group that the last answer came from; for the judges alone.
    pub(crate) life: usize,
}

impl SimClient {
    /// A client whose first operation is under way.
    pub fn with(group: usize, operation: usize) -> SimClient {
        SimClient {
            group,
            number: 1,
            under_way: Some(operation),
            ..SimClient::default()
        }
    }
}

/// The wait of a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// For the answer of a node.
    Answer(NodeId),
    /// For a newer map.
    Map,
    /// For its time.
    Time,
}

/// One operation on its way.
pub(crate) struct ClientTurn {
    pub(crate) machine: RouterTurn,
    pub(crate) operation: usize,
    pub(crate) wait: Wait,
}

/// A client's router.
#[derive(Default)]
pub struct Router {
    pub(crate) map: Arc<ClusterMap>,
    pub(crate) number: u64,
    pub(crate) turn: Option<ClientTurn>,
    /// Requests sent.
    pub(crate) attempt: u32,
    /// Its timer; earlier ones count no more.
    pub(crate) due: u64,
    /// Nodes that are passed over, and until when.
    pub(crate) avoid: BTreeMap<NodeId, u64>,
}

impl Router {
    /// True if an operation is on its way.
    pub fn is_busy(&self) -> bool {
        self.turn.is_some()
    }

    pub(crate) fn go(&mut self, now: u64) -> TurnEvent {
        self.avoid.retain(|_, until| *until > now);
        let nodes = self.avoid.keys().copied().collect();
        TurnEvent::Go(
            self.map.clone(),
            Avoid {
                nodes,
                ..Avoid::default()
            },
        )
    }
}
