//! The state of the directory's stand-in and of its leaders.

use std::sync::Arc;
use std::time::Duration;

use staves_model::detector::Report;
use staves_model::{
    ClusterMap, Detector, Group, LeaseBatcher, Leases, Planner, PlannerConfig, StopBook,
    StuckReport, Time,
};

use crate::event::Place;
use crate::scale::{LEASE, QUIET};
use crate::stop_state::{StopRound, new_book};
use crate::watch::new_detector;

/// The stand-in.
pub struct Directory {
    /// The truth.
    pub map: ClusterMap,
    /// The leader.
    pub leader: Leader,
    /// The leader before, which may still answer.
    pub former: Option<Former>,
    /// It answers nobody before.
    pub stalled_until: u64,
    /// Members that were reported, as the planner takes them.
    pub reports: Vec<StuckReport>,
    /// The real detector of the program's directory leader, and what was reported to it.
    pub detector: Detector,
    pub(crate) evidence: Vec<Report>,
    /// The map as it is shown around.
    pub(crate) shown: Arc<ClusterMap>,
    /// The real planner of the program's directory leader, where it is at work.
    pub planner: Planner,
}

impl Default for Directory {
    fn default() -> Directory {
        let map = ClusterMap::default();
        Directory {
            leader: Leader::new(1, LeaderClock::default(), 0, &map),
            map,
            former: None,
            stalled_until: 0,
            reports: Vec::new(),
            detector: new_detector(),
            evidence: Vec::new(),
            shown: Arc::default(),
            planner: new_planner(),
        }
    }
}

/// A planner with the simulator's times.
pub fn new_planner() -> Planner {
    Planner::new(PlannerConfig {
        open_deadline: Duration::from_millis(500),
        unable_for: Duration::from_millis(1500),
        calm_after: Duration::from_millis(300),
        twins_after: Duration::from_millis(300),
        propose_again: Duration::from_millis(60),
        start_empty_after: QUIET,
        ..PlannerConfig::default()
    })
}

impl Directory {
    /// True if it answers at all.
    pub fn answers(&self, now: u64) -> bool {
        now >= self.stalled_until
    }

    /// The leader's clock.
    pub fn clock(&self, now: u64) -> Time {
        self.leader.clock.at(now)
    }

    /// The map as it is shown around.
    pub(crate) fn shown(&self) -> Arc<ClusterMap> {
        self.shown.clone()
    }
}

/// A leader's clock.
#[derive(Clone, Copy, Debug)]
pub struct LeaderClock {
    pub(crate) rate_ppm: u64,
    pub(crate) offset: u64,
}

impl Default for LeaderClock {
    fn default() -> LeaderClock {
        LeaderClock {
            rate_ppm: 1_000_000,
            offset: 0,
        }
    }
}

impl LeaderClock {
    /// The time that it shows at true time `now`.
    pub fn at(&self, now: u64) -> Time {
        Time(self.offset + now / 1000 * self.rate_ppm / 1000)
    }
}

/// The state of one leader's term.
pub struct Leader {
    /// The term.
    pub term: u64,
    /// Its clock.
    pub clock: LeaderClock,
    /// Its lease book.
    pub leases: Leases,
    /// Its book of stops.
    pub stops: StopBook,
    /// Nodes that it asks about on behalf of one that is to stop.
    pub rounds: Vec<StopRound>,
    pub(crate) batcher: LeaseBatcher<Asker>,
}

impl Leader {
    /// A leader elected at true time `now`.
    pub fn new(term: u64, clock: LeaderClock, now: u64, map: &ClusterMap) -> Leader {
        let mut leases = Leases::new(LEASE);
        leases.become_leader(clock.at(now));
        Leader {
            term,
            clock,
            leases,
            stops: new_book(clock.at(now), map),
            rounds: Vec::new(),
            batcher: LeaseBatcher::default(),
        }
    }
}

/// A leader that is deposed and still answers.
pub struct Former {
    pub(crate) leader: Leader,
    pub(crate) deposed_at: u64,
    pub(crate) until: u64,
    pub(crate) map: ClusterMap,
    /// The entry of each group.
    pub(crate) entries: Vec<Option<Arc<Group>>>,
    /// The newest entry of each group that it saw open.
    pub opened: Vec<Option<Arc<Group>>>,
}

/// The origin of a request for leases.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    pub(crate) from: Place,
    /// The asker's clock.
    pub(crate) clock: Time,
    pub(crate) came_at: u64,
}

impl Directory {
    /// The leader of a term, if it is the newest or the one before, and its map.
    pub(crate) fn leader_at(&mut self, term: u64) -> Option<(&mut Leader, &ClusterMap)> {
        if term == self.leader.term {
            return Some((&mut self.leader, &self.map));
        }
        let former = self.former.as_mut().filter(|f| f.leader.term == term)?;
        Some((&mut former.leader, &former.map))
    }
}

impl Directory {
    /// The map of the leader that was deposed last.
    pub(crate) fn former_map(&self) -> Option<&ClusterMap> {
        self.former.as_ref().map(|former| &former.map)
    }
}
