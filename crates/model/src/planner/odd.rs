//! Those that the next epoch leaves out where members were reported stuck: they, or who reported them.
//!
//! A report says that two members do not come along with each other, and not whose fault that is. With m = 1 the reporter serves, and
//! is believed. With m > 1 a data bucket that is cut off from all parity would have all of it put out by its word alone, and the group
//! acknowledge without any: where the failure detector's evidence shows that the reporter misses more of those that it has to reach than
//! whom it reports, it goes itself, and its bucket is made anew elsewhere; where both miss as many, the one that reaches fewer of the group, for whoever took
//! the other's place would not reach it either. So does a reporter that is being filled where the one that it reports
//! is complete. That loses no more than its death would.

use std::collections::BTreeSet;

use crate::ids::MemberSlot;
use crate::map::{ClusterMap, Group, Member};
use crate::mutant::{Mutant, planted};
use crate::reach::{Cuts, apart};

/// The reports about the newest epoch of a group.
#[derive(Clone, Debug, Default)]
pub(super) struct StuckMembers {
    /// Those who were reported.
    pub(super) slots: BTreeSet<MemberSlot>,
    /// Those who reported them.
    pub(super) by: BTreeSet<MemberSlot>,
}

impl StuckMembers {
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.by.clear();
    }

    /// The members, by their slots in the newest epoch, that the next one goes on without.
    pub(super) fn left_out(
        &self,
        map: &ClusterMap,
        group: &Group,
        cuts: &Cuts,
    ) -> BTreeSet<MemberSlot> {
        if coordinator_is_the_odd_one(group, &self.slots) {
            return BTreeSet::new();
        }
        if group.m == 1 || cuts.is_empty() || planted(Mutant::ReporterBelieved) {
            return self.slots.clone();
        }
        let reach = MembersReach { map, group, cuts };
        if !group.open && self.another_reaches_all(&reach) {
            return BTreeSet::new();
        }
        let mut out = BTreeSet::new();
        for stuck in self.slots.iter().copied() {
            let cut = |by: &&MemberSlot| reach.are_apart(**by, stuck);
            let missers: Vec<MemberSlot> = self.by.iter().filter(cut).copied().collect();
            let misses = reach.missed(stuck);
            let half_made = |by: MemberSlot| {
                let half = reach.is_whole(stuck) && !reach.is_whole(by);
                half && !planted(Mutant::HalfMadeKept)
            };
            let goes = |by: &MemberSlot| match reach.missed(*by) {
                as_many if as_many == misses => {
                    half_made(*by) || reach.missed_of_all(*by) > reach.missed_of_all(stuck)
                }
                missed => missed > misses,
            };
            match !missers.is_empty() && missers.iter().all(goes) {
                true => out.extend(missers),
                false => out.extend([stuck]),
            }
        }
        out
    }

    /// The coordinator does not reach those that it reports, and one that could coordinate reaches all.
    fn another_reaches_all(&self, reach: &MembersReach<'_>) -> bool {
        let by_cut = |stuck: &MemberSlot| self.by.iter().any(|by| reach.are_apart(*by, *stuck));
        let could = |(slot, x): &(MemberSlot, &Member)| x.complete && reach.group.retained(*slot);
        let mut able = reach.running().filter(could);
        self.slots.iter().all(by_cut) && able.any(|(slot, _)| reach.missed(slot) == 0)
    }
}

/// The members of a group's newest epoch, and which of them reach each other.
struct MembersReach<'a> {
    map: &'a ClusterMap,
    group: &'a Group,
    cuts: &'a Cuts,
}

impl<'a> MembersReach<'a> {
    fn running(&self) -> impl Iterator<Item = (MemberSlot, &'a Member)> {
        let map = self.map;
        self.group.listed().filter(move |(_, x)| map.runs(x.id))
    }

    fn are_apart(&self, a: MemberSlot, b: MemberSlot) -> bool {
        let node = |slot| self.group.member(slot).map(|x| x.id.node);
        let nodes = node(a).zip(node(b));
        nodes.is_some_and(|(a, b)| apart(self.cuts, a, b))
    }

    fn is_whole(&self, slot: MemberSlot) -> bool {
        self.group.member(slot).is_some_and(|x| x.complete)
    }

    /// The number of members that it has to reach and does not: of an open epoch, data buckets parity and parity data buckets.
    fn missed(&self, slot: MemberSlot) -> usize {
        let is_data = |slot: MemberSlot| slot.0 < self.group.m;
        let has_to = |other: MemberSlot| !self.group.open || is_data(slot) != is_data(other);
        let missed =
            |(other, _): &(MemberSlot, &Member)| has_to(*other) && self.are_apart(slot, *other);
        self.running().filter(missed).count()
    }

    /// The number of members that it does not reach. One that takes its place elsewhere would have to be filled by them.
    fn missed_of_all(&self, slot: MemberSlot) -> usize {
        let missed = |(other, _): &(MemberSlot, &Member)| self.are_apart(slot, *other);
        match planted(Mutant::NarrowKept) {
            true => 0,
            false => self.running().filter(missed).count(),
        }
    }
}

/// True if a report that all others are stuck rather points to its sender: there are at least two
/// others, and one of them could lead instead.
pub(super) fn coordinator_is_the_odd_one(group: &Group, stuck: &BTreeSet<MemberSlot>) -> bool {
    let listed = group.listed().count();
    let could_lead = |(slot, x): (MemberSlot, &Member)| {
        stuck.contains(&slot) && x.complete && (group.open || group.retained(slot) || group.fresh)
    };
    listed >= 3 && stuck.len() + 1 >= listed && group.listed().any(could_lead)
}
