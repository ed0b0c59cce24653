//! The time for which no group needs to be looked at: all are well, and nothing that they rest on changes by itself.
//!
//! The needs of a group follow from the map, from who reaches whom, from reports, and from times that pass. At rest the map is the
//! one that was looked at, nobody is cut off and no report has come; so only the times are left, and the first of them ends the rest.

use std::time::Duration;

use super::{GroupWatch, Needs, Planner};
use crate::ids::Revision;
use crate::map::ClusterMap;
use crate::mutant::{Mutant, planted};
use crate::time::Time;

/// The longest rest: should a time be missing among those that end one, no more than this is lost.
const REST_MAX: Duration = Duration::from_secs(1);

/// A look at the map of this revision found nothing to do, and none finds more before this time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    revision: Revision,
    until: Time,
}

impl Planner {
    /// True if a look at this map finds nothing to do, where no report has come.
    pub(super) fn rests(&self, now: Time, map: &ClusterMap) -> bool {
        let holds = |rest: Rest| rest.revision == map.revision && now < rest.until;
        self.cuts.is_empty() && self.rest.is_some_and(holds)
    }

    /// The rest after a look that found nothing to do. `None`: a group waits to open, which has many deadlines, or some node is cut off
    /// or was of late.
    pub(super) fn rest_from(&self, now: Time, map: &ClusterMap) -> Option<Rest> {
        let waits = |w: &GroupWatch| w.waiting_since.is_some();
        let cut = !self.cuts.is_empty() || !self.narrow.is_none();
        if cut || self.watches.values().any(waits) {
            return None;
        }
        let config = &self.config;
        let groups = self.watches.values().flat_map(|watch| {
            let calm = watch.open_since.map(|since| since + config.calm_after);
            let empty = watch.gone_since;
            let empty = empty.map(|since| since + config.start_empty_after);
            [calm, empty]
        });
        let able = self.unable.values();
        let able = able.flat_map(|unable| [Some(unable.barred_until), Some(unable.until)]);
        let twins = self.draining_since.values();
        let twins = twins.map(|since| Some(*since + config.twins_after));
        let forgotten = self.down_since.values().flat_map(|since| {
            let over = [config.forget_after, config.give_up_after];
            over.map(|after| Some(*since + after))
        });
        let times = groups.chain(able).chain(twins).chain(forgotten).flatten();
        let first = times.filter(|at| *at > now).min();
        let until = match planted(Mutant::RestsPastDeadline) {
            true => now + Duration::from_secs(3600),
            false => first.map_or(now + REST_MAX, |at| at.min(now + REST_MAX)),
        };
        let revision = map.revision;
        Some(Rest { revision, until })
    }
}

impl Needs {
    /// True if no group needs anything, and no proposal is under way.
    pub(super) fn is_nothing(&self) -> bool {
        let epochs = self.urgent.len() + self.starts.len() + self.moves.len();
        epochs + self.lost.len() + self.under_way == 0
    }
}
