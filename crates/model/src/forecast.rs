//! The moves that are still to be made: the planner's own steps, on a copy of the map in which all goes well.
//!
//! Nothing here decides where a group belongs: [`forecast`] has a [`Planner`] look at a copy of the map again and again, opens each epoch
//! that it commits, completes each joiner, and compares what comes of it with the map as it is. So the planner of the directory comes to
//! the same places, as long as no node comes or goes, and all nodes reach each other. With m > 1 buckets are spread one at a time, and
//! which group is the next one is a matter of pace: the shares of nodes are as foretold then, and some groups others.

use std::time::Duration;

use crate::change::{Change, GroupStep};
use crate::ids::{GroupId, MemberSlot, NodeId, PoolId};
use crate::map::{ClusterMap, Group, Member};
use crate::planner::{Planner, PlannerConfig};
use crate::time::Time;

/// The time from one look to the next while there is something to do, and while there is not.
const BUSY_STEP: Duration = Duration::from_millis(100);
const IDLE_STEP: Duration = Duration::from_secs(1);
/// Looks without a move after which there is none: longer than the planner waits before it moves for balance, or for a drain.
const IDLE_MAX: u32 = 12;
/// Most looks: all groups of all regions move one at a time within so many.
const LOOKS_MAX: u32 = 20_000;

/// A group that is to lie elsewhere than it does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupMove {
    /// The group.
    pub group: GroupId,
    /// Its nodes now, by slot; with m = 1 the first serves.
    pub now: Vec<(MemberSlot, NodeId)>,
    /// Its nodes once it lies where it is to lie.
    pub then: Vec<(MemberSlot, NodeId)>,
    /// The buckets that are to be copied to nodes which do not have all of their bytes: the slot of each, then.
    pub fills: Vec<(MemberSlot, NodeId)>,
}

/// The moves of a pool's groups that the planner makes, or has begun, in the order of the groups.
pub fn forecast(map: &ClusterMap, pool: PoolId) -> Vec<GroupMove> {
    let then = settled(map, pool);
    let groups = map.groups.values().filter(|group| group.pool == pool);
    let pairs = groups.filter_map(|now| Some((now, then.groups.get(&now.id)?)));
    pairs
        .filter_map(|(now, then)| group_move(now, then))
        .collect()
}

/// The map once the planner has nothing more to do in a pool.
fn settled(map: &ClusterMap, pool: PoolId) -> ClusterMap {
    let mut then = map.clone();
    // Others only take time.
    then.pools.retain(|id, _| *id == pool);
    then.groups.retain(|_, group| group.pool == pool);
    let mut planner = Planner::new(PlannerConfig::default());
    let (mut now, mut idle) = (Time::from_millis(1), 0);
    for _ in 0..LOOKS_MAX {
        let mut moved = false;
        for (revision, change) in planner.step(now, &then, &[]) {
            let is_move = matches!(change, Change::CommitEpochs(_));
            moved |= is_move && then.apply(Some(revision), &change).is_ok();
        }
        moved |= goes_well(&mut then);
        idle = if moved { 0 } else { idle + 1 };
        if idle > IDLE_MAX {
            break;
        }
        now = now + if moved { BUSY_STEP } else { IDLE_STEP };
    }
    then
}

/// Opens what can open, and completes who joins. True if there was something.
fn goes_well(map: &mut ClusterMap) -> bool {
    let steps: Vec<GroupStep> = map.groups.values().flat_map(|g| steps_of(map, g)).collect();
    !steps.is_empty() && map.apply(None, &Change::Steps(steps)).is_ok()
}

fn steps_of(map: &ClusterMap, group: &Group) -> Vec<GroupStep> {
    let (id, epoch) = (group.id, group.epoch);
    if epoch.0 == 0 || !group.listed().all(|(_, x)| map.runs(x.id)) {
        return Vec::new();
    }
    if !group.open {
        return vec![GroupStep::Open { group: id, epoch }];
    }
    let joiners = group.listed().filter(|(_, x)| !x.complete);
    let complete = joiners.map(|(slot, x)| GroupStep::Complete {
        group: id,
        epoch,
        slot,
        incarnation: x.id.incarnation,
    });
    complete.collect()
}

/// The difference between a group as it is and as it will be.
fn group_move(now: &Group, then: &Group) -> Option<GroupMove> {
    let nodes = |group: &Group| {
        let placed = group.listed().map(|(slot, x)| (slot, x.id.node));
        placed.collect::<Vec<_>>()
    };
    let has = |slot: MemberSlot, x: &Member| {
        let same = |(s, y): (MemberSlot, &Member)| {
            // Every copy has the same bytes; with data and parity those of its bucket.
            let bucket = now.m == 1 || now.bucket_slot(s) == then.bucket_slot(slot);
            y.complete && y.id == x.id && bucket
        };
        now.listed().any(same)
    };
    let fills = then.listed().filter(|(slot, x)| !has(*slot, x));
    let found = GroupMove {
        group: now.id,
        now: nodes(now),
        then: nodes(then),
        fills: fills.map(|(slot, x)| (slot, x.id.node)).collect(),
    };
    (found.now != found.then || !found.fills.is_empty()).then_some(found)
}
