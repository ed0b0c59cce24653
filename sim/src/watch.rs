//! One process's part in the failure detector.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use staves_model::pinger::{FailureReports, Pinger, PingerConfig};
use staves_model::{ClusterMap, Detector, DetectorConfig, Incarnation, NodeId, Silences, Time};

use crate::event::Place;
use crate::scale::MS;

/// Time between two pings of a node; like all times here, the program's in the proportion of the leases.
pub(crate) const PING_EVERY: u64 = 40 * MS;
/// Silence that is reported; an answer that takes longer is late.
pub(crate) const SUSPICION: u64 = 140 * MS;
/// The time for which the answer to a ping is waited for.
pub(crate) const ECHO_COUNTED: u64 = 400 * MS;
/// Least time between two reports of one node.
pub(crate) const REPORT_AGAIN: Duration = Duration::from_millis(40);
/// The time for which a second node looks at a suspect.
pub(crate) const PROBE: u64 = 100 * MS;
/// First and longest pause between two assurances that a node lives.
pub(crate) const ASSURE: (Duration, Duration) =
    (Duration::from_millis(200), Duration::from_millis(3000));
/// Silence between two nodes that is told their groups; half of `stuck_after`, as in the program.
const SILENCE: Duration = Duration::from_nanos(150 * MS);
/// The longest time between two ticks of a process that runs.
const TICK_MAX: Duration = Duration::from_nanos(36 * MS);
/// Clocks differ by so much from true time, in per cent, with room to spare.
pub(crate) const CLOCKS_PERCENT: u64 = 4;

/// A detector with the simulator's times.
pub fn new_detector() -> Detector {
    Detector::new(DetectorConfig {
        window: Duration::from_millis(400),
        probe_again: Duration::from_millis(60),
        probers: 3,
        probed_within: Duration::from_millis(120),
        alone_after: Duration::from_millis(120),
        alone_against_all: Duration::from_millis(2000),
        slow_stays: Duration::from_millis(2000),
        verdict_again: Duration::from_millis(100),
    })
}

/// A look at a suspect that the leader asked for.
pub(crate) struct Look {
    pub(crate) suspect: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) leader: Place,
    pub(crate) until: u64,
}

/// A ping under way.
pub(crate) struct Ping {
    pub(crate) sent: u64,
    pub(crate) to: NodeId,
    pub(crate) incarnation: Incarnation,
}

/// One process's part in the failure detector. A new process begins without knowledge.
pub struct Watch {
    pub(crate) map: Option<Arc<ClusterMap>>,
    pub(crate) pinger: Pinger,
    pub(crate) reports: FailureReports,
    pub(crate) pings: Vec<Ping>,
    pub(crate) looks: Vec<Look>,
    pub(crate) ticked_at: u64,
    /// The last time that each node was heard, by this one's clock.
    pub(crate) links: BTreeMap<NodeId, Time>,
    pub(crate) silences: Silences,
    /// For the judges: since when each life can have been silent at most.
    pub(crate) silent_since: BTreeMap<(NodeId, Incarnation), u64>,
}

impl Default for Watch {
    fn default() -> Watch {
        let config = PingerConfig {
            period: Duration::from_nanos(PING_EVERY),
            suspicion: Duration::from_nanos(SUSPICION),
            report_again: REPORT_AGAIN,
            assure: ASSURE,
        };
        Watch {
            map: None,
            pinger: Pinger::new(config),
            reports: FailureReports::new(REPORT_AGAIN),
            pings: Vec::new(),
            looks: Vec::new(),
            ticked_at: 0,
            links: BTreeMap::new(),
            silences: Silences::new(SILENCE, TICK_MAX),
            silent_since: BTreeMap::new(),
        }
    }
}
