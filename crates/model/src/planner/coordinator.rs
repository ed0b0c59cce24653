//! The member that carries out the change to an epoch: it has to reach all others.

use super::odd::coordinator_is_the_odd_one;
use super::plan::{EpochSeat, View, takeover};
use crate::change::sources;
use crate::ids::{Epoch, MemberId, MemberSlot};
use crate::map::Group;
use crate::reach::{Cuts, apart};

/// The coordinator: the present one if it is at work and has reported its obstacle; else the next in turn
/// of those that are complete, beginning with the one that will serve.
pub(super) fn choose_coordinator(
    view: &View<'_>,
    seats: &[Option<EpochSeat>],
) -> Option<MemberSlot> {
    let group = view.group;
    let whole = |from: MemberSlot| {
        sources(group)
            .get(from.index())
            .copied()
            .flatten()
            .is_some_and(|x| x.complete)
    };
    let mut able: Vec<usize> = (0..seats.len())
        .filter(|s| seats[*s].is_some_and(|(_, kept)| kept.is_some_and(whole)))
        .collect();
    // Whoever reaches few would report the others stuck one after another, and go on as the one who leads.
    let wide = |s: &usize| seats[*s].is_some_and(|(member, _)| view.narrow.is_wide(member.node));
    if able.iter().any(wide) {
        able.retain(wide);
    }
    let able = reach_most(view, seats, able);
    if able.is_empty() {
        return None;
    }
    let leads_now = |s: &usize| {
        let now = group.member(group.coordinator).filter(|_| !group.open);
        now.is_some_and(|x| seats[*s].is_some_and(|(member, _)| x.id == member))
    };
    let odd = coordinator_is_the_odd_one(group, view.stuck);
    let is_stuck = |member: MemberId| view.stuck.iter().any(|s| is_at(group, *s, member));
    let all_go = !seats.iter().flatten().any(|(member, _)| is_stuck(*member));
    let reported = !view.stuck.is_empty() && !odd && all_go;
    let slot = match able.iter().copied().find(leads_now).filter(|_| reported) {
        Some(slot) => slot,
        None => {
            let turn = view.tries_after() as usize + usize::from(odd && group.open);
            able[turn % able.len()]
        }
    };
    Some(MemberSlot(slot as u8))
}

/// The places, of these, of the members that reach most of the others: whoever coordinates has to reach them all.
pub(super) fn reach_most(
    view: &View<'_>,
    seats: &[Option<EpochSeat>],
    of: Vec<usize>,
) -> Vec<usize> {
    if view.cuts.is_empty() {
        return of;
    }
    let missed = |cuts: &Cuts, at: &usize| {
        let misses = |a: MemberId, b: MemberId| apart(cuts, a.node, b.node);
        let member = seats[*at].map(|(member, _)| member);
        let others = seats.iter().flatten();
        let missed = others.filter(|(other, _)| member.is_some_and(|x| misses(x, *other)));
        missed.count()
    };
    // Late is better than not at all.
    let missed = |at: &usize| (missed(view.silent, at), missed(view.cuts, at));
    let fewest = of.iter().map(missed).min();
    let most = |at: &usize| Some(missed(at)) == fewest;
    of.into_iter().filter(most).collect()
}

fn is_at(group: &Group, slot: MemberSlot, member: MemberId) -> bool {
    group.member(slot).is_some_and(|x| x.id == member)
}

impl View<'_> {
    /// True if another epoch, be it with another coordinator, would open no more than this one.
    pub(super) fn is_hopeless(&self) -> bool {
        let begun = self.group.last_open.epoch > Epoch(0);
        let next = takeover(self).filter(|_| begun);
        next.is_some_and(|new| !self.opens(&new.members, new.coordinator.index()))
    }

    /// True if the coordinator of these members reaches all: else their epoch would not open, and what serves now would not.
    pub(super) fn opens(&self, members: &[Option<MemberId>], coordinator: usize) -> bool {
        let misses = |a: MemberId, b: MemberId| apart(self.silent, a.node, b.node);
        let leader = members.get(coordinator).copied().flatten();
        leader.is_some_and(|leader| !members.iter().flatten().any(|id| misses(leader, *id)))
    }
}
