//! Members that are being filled, and nodes that could be: which of them reach what they are to be filled from.

use std::collections::BTreeSet;

use super::isolated::has_wide_copy;
use super::{GroupWatch, Planner, TEAR_REPORTED};
use crate::ids::{MemberId, MemberSlot, NodeId};
use crate::map::{ClusterMap, Group, Member, whole_buckets};
use crate::reach::{Cuts, NarrowNodes, apart};
use crate::scheme::{PARITY_SLOTS, bucket_slot};
use crate::time::Time;

/// A member that is being filled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filling {
    pub(super) id: MemberId,
    pub(super) since: Time,
    /// Since when it has not reached enough of what it is filled from.
    starved_since: Option<Time>,
}

impl GroupWatch {
    /// Takes in what only lasts, of the newest epoch.
    pub(super) fn look(&mut self, now: Time, group: &Group, silent: &Cuts) {
        let torn = |x: &Member| {
            let mut others = group.listed();
            others.any(|(_, other)| apart(silent, x.id.node, other.id.node))
        };
        let is_torn = !silent.is_empty() && group.listed().any(|(_, x)| torn(x));
        self.torn_since = is_torn.then(|| self.torn_since.unwrap_or(now));
        let before = std::mem::take(&mut self.filling);
        let filling = group.listed().filter(|(_, x)| !x.complete);
        let filling = filling.map(|(slot, x)| {
            let before = before.iter().find(|f| f.id == x.id);
            let starved_since = before.and_then(|f| f.starved_since).unwrap_or(now);
            Filling {
                id: x.id,
                since: before.map_or(now, |f| f.since),
                starved_since: starves(group, silent, slot, x).then_some(starved_since),
            }
        });
        self.filling = filling.collect();
    }

    /// True if a member has not reached enough of what it is filled from for a while.
    pub(super) fn has_starved(&self, now: Time, id: MemberId) -> bool {
        let filling = self.filling.iter().find(|f| f.id == id);
        let since = filling.and_then(|f| f.starved_since);
        since.is_some_and(|since| now.since(since) >= TEAR_REPORTED)
    }
}

impl Planner {
    /// True if the group has been filled for so long that it keeps no others waiting.
    pub(super) fn fills_for_long(&self, now: Time, group: &Group) -> bool {
        let filling = self.watches.get(&group.id).map(|w| &w.filling);
        let long = |f: &Filling| now.since(f.since) >= self.config.fill_patience;
        filling.is_some_and(|filling| filling.iter().any(long))
    }
}

/// True if a member that is being filled does not reach enough of what it is filled from: m whole buckets, or, of a twin, its original.
pub(super) fn starves(group: &Group, silent: &Cuts, slot: MemberSlot, x: &Member) -> bool {
    if silent.is_empty() || group.m == 1 {
        return false;
    }
    let reaches = |o: &Member| !apart(silent, o.id.node, x.id.node);
    match bucket_slot(group.m, slot) {
        of if of != slot => group.member(of).is_some_and(|o| !reaches(o)),
        _ => {
            let end = group.members.len().min((group.m + PARITY_SLOTS).into());
            whole_buckets(group.m, &group.members[..end], reaches) < group.m.into()
        }
    }
}

/// True if a place that is no member, be it beside one, does not reach a member that goes along.
pub(super) fn is_cut_off(
    cuts: &Cuts,
    narrow: &NarrowNodes,
    map: &ClusterMap,
    group: &Group,
    stay_behind: &BTreeSet<MemberSlot>,
    sole: Option<MemberId>,
    id: MemberId,
) -> bool {
    if cuts.is_empty() {
        return false;
    }
    let apart = |x: NodeId| apart(cuts, x, id.node);
    if let Some(sole) = sole {
        return apart(sole.node);
    }
    let goes_along = |(s, x): &(MemberSlot, &Member)| map.runs(x.id) && !stay_behind.contains(s);
    let joins = !group.listed().any(|(_, x)| x.id == id);
    let wide = has_wide_copy(map, group, narrow);
    let counts = |x: &Member| !(wide && narrow.contains(x.id.node));
    let mut others = group.listed().filter(goes_along);
    joins && others.any(|(_, x)| counts(x) && apart(x.id.node))
}
