//! The state of stops: of a node that is to stop, of a leader that is asked for permits, and of a world.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use staves_model::{ClusterMap, Incarnation, NodeId, OwnStop, StopBook, StopTimes, Time};

use crate::event::Place;
use crate::rng::Rng;
use crate::scale::MS;

/// The times of stops, the program's in the proportion of the leases.
pub(crate) const TIMES: StopTimes = StopTimes {
    permit: Duration::from_secs(12),
    young: Duration::from_secs(2),
};
/// The time for which one attempt waits for its answer.
pub(crate) const ATTEMPT: u64 = 300 * MS;
/// The time for which a node asks.
pub(crate) const DEADLINE: u64 = 900 * MS;
/// The time for which a leader waits for the states of nodes.
pub(crate) const PATIENCE: u64 = 120 * MS;
/// The longest time for which a node that stays is drained for a stop that is over, while the directory answers.
pub(crate) const DRAINED_MAX: u64 = 800 * MS;
/// Most permits that the judge remembers.
pub(crate) const PERMITS_MAX: usize = 20;

/// A node's request for a permit.
#[derive(Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) until: u64,
    pub(crate) again_at: u64,
    pub(crate) attempt: u32,
}

/// A process's own stop.
#[derive(Clone, Copy, Default)]
pub struct NodeStop {
    pub(crate) own: OwnStop,
    pub(crate) asking: Option<Asking>,
}

/// A leader's question to all nodes, on behalf of one that asks for a permit.
pub struct StopRound {
    pub(crate) number: u64,
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) from: Place,
    pub(crate) attempt: u32,
    pub(crate) young: bool,
    pub(crate) waiting: BTreeSet<NodeId>,
    pub(crate) gone: BTreeSet<NodeId>,
    pub(crate) until: u64,
}

/// A permit as a leader gave it, with the map by which it was given.
pub(crate) struct Permit {
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) map: ClusterMap,
}

/// The stops of a world.
pub struct Stops {
    /// Chance of its own, so that worlds without stops are what they are.
    pub(crate) rng: Rng,
    /// Of a thousand faults, how many are stops.
    pub(crate) often: u64,
    /// Of a thousand stops, during how many the leader changes.
    pub(crate) elects: u64,
    pub(crate) rounds: u64,
    /// In the order in which they were given.
    pub(crate) permits: Vec<Permit>,
    /// Nodes whose data folder says that they are drained for a stop.
    pub(crate) marks: BTreeSet<usize>,
    /// Nodes that the operator wants drained.
    pub(crate) wished: BTreeSet<usize>,
    /// For the judges: nodes that stay, and since when they are drained though nobody wants that.
    pub(crate) unwanted: BTreeMap<usize, u64>,
}

/// A new leader's book.
pub fn new_book(now: Time, map: &ClusterMap) -> StopBook {
    StopBook::new(now, map, TIMES)
}

impl Stops {
    /// The stops of a seed.
    pub fn new(seed: u64, hunted: bool, elects: u64) -> Stops {
        let mut rng = Rng::new(seed ^ 0x5709_5709);
        let often = rng.pick(&[0, 60, 200]);
        Stops {
            rng,
            often: if hunted { 400 } else { often },
            elects,
            rounds: 0,
            permits: Vec::new(),
            marks: BTreeSet::new(),
            wished: BTreeSet::new(),
            unwanted: BTreeMap::new(),
        }
    }
}
