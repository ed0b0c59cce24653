//! A group none of whose members reaches another, while other nodes reach them: one member goes on, with such nodes.
//!
//! The others go as any stuck member does: the next epoch does not retain them. That loses no acknowledged write. With m = 1
//! every complete member holds them all (GROUP rule 3: an acknowledgement takes every listed copy), the survivor seals
//! before the epoch opens (rule 8), so no write of the old epoch is acknowledged after that; and the
//! directory waits out the lease of a data bucket that is put out (rule 11), which so answers no more reads.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::odd::coordinator_is_the_odd_one;
use crate::change::sources;
use crate::ids::{MemberId, MemberSlot};
use crate::map::{ClusterMap, Group, Member};
use crate::reach::{Cuts, NarrowNodes, apart, reached};

/// Fewer members are no triangle: the one that reports the other stuck is believed.
const MEMBERS_MIN: usize = 3;

/// The member that goes on, if every pair of those that run is cut and the coordinator reported all others stuck.
///
/// It is the complete one that reaches most nodes, of equals the first. It stays so until an epoch of it
/// alone neither opens nor reports an obstacle in time: then the next has its turn.
/// With m > 1 one member is not enough.
pub(super) fn sole_survivor(
    map: &ClusterMap,
    group: &Group,
    stuck: &BTreeSet<MemberSlot>,
    cuts: &Cuts,
) -> Option<MemberId> {
    let tried = sole_source(group).filter(|_| !group.open);
    if group.m != 1 || !(tried.is_some() || coordinator_is_the_odd_one(group, stuck)) {
        return None;
    }
    let running = sources(group).iter().flatten().filter(|x| map.runs(x.id));
    let running: Vec<Member> = running.copied().collect();
    if running.len() < MEMBERS_MIN || !all_apart(cuts, &running) {
        return None;
    }
    let mut able: Vec<(usize, MemberId)> = running
        .iter()
        .filter(|x| x.complete)
        .map(|x| (reached(map, cuts, x.id.node), x.id))
        .filter(|(reached, _)| *reached > 0)
        .collect();
    // Stable: equals stay in order of slot.
    able.sort_by_key(|(reached, _)| Reverse(*reached));
    let before = tried.and_then(|tried| able.iter().position(|(_, id)| *id == tried));
    let turn = before.map_or(0, |at| at + usize::from(stuck.is_empty()));
    able.get(turn).or(able.first()).map(|(_, id)| *id)
}

/// True if a complete copy of the group is on a node that is wide: who takes part need reach that one only.
pub(super) fn has_wide_copy(map: &ClusterMap, group: &Group, narrow: &NarrowNodes) -> bool {
    let wide = |x: &&Member| x.complete && map.runs(x.id) && narrow.is_wide(x.id.node);
    group.m == 1 && sources(group).iter().flatten().any(|x| wide(&x))
}

/// The one member that the newest epoch retains, if it is one.
pub(super) fn sole_source(group: &Group) -> Option<MemberId> {
    let mut retained = group.listed().filter(|(slot, _)| group.retained(*slot));
    let (_, x) = retained.next()?;
    retained.next().is_none().then_some(x.id)
}

fn all_apart(cuts: &Cuts, members: &[Member]) -> bool {
    (1..).zip(members).all(|(next, x)| {
        let mut others = members[next..].iter();
        others.all(|other| apart(cuts, x.id.node, other.id.node))
    })
}
