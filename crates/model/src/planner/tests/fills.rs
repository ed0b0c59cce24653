//! Coded groups with a member that is being filled when nodes are cut from each other, or answer late.

use super::isolated::{STUCK_AFTER, missed_by, nodes_of, pair};
use super::*;
use crate::map::whole_buckets;
use crate::planner::fills::starves;
use crate::reach::apart;

/// The time that a member needs to be filled.
const FILL: Duration = Duration::from_secs(4);

/// The events of a time.
#[derive(Default, Debug)]
struct Seen {
    epochs: Vec<(Duration, NewEpoch)>,
    /// The last time at which some data bucket was not read and written.
    stood_until: Duration,
    /// The fewest complete members that run, of the last open epoch.
    fewest_whole: usize,
}

/// A data bucket is answered if it reaches all parity, and has or reaches its bytes.
fn is_served(group: &Group, slot: u8, cuts: &Cuts) -> bool {
    let Some(x) = group.member(MemberSlot(slot)) else {
        return false;
    };
    let reaches = |o: &Member| !apart(cuts, x.id.node, o.id.node);
    let parity = group.listed().filter(|(s, _)| s.0 >= group.m);
    let mut parity = parity.map(|(_, o)| o);
    let whole = whole_buckets(group.m, &group.members, reaches);
    group.open && parity.all(reaches) && (x.complete || whole >= group.m.into())
}

impl TestCluster {
    /// Lives with cuts for a time. Members are filled from nodes that they reach alone: from m, and twins from their originals.
    fn fill_with(&mut self, cuts: &Cuts, time: Duration) -> Seen {
        let (began, mut seen) = (self.now, Seen::default());
        seen.fewest_whole = usize::MAX;
        let (mut since, mut filled) = (BTreeMap::new(), BTreeMap::new());
        while self.now.since(began) < time {
            self.planner.see_cuts(cuts.clone());
            let mut reports = Vec::new();
            for group in self.map.groups.clone().into_values() {
                let state = (group.epoch, group.open);
                let from = since.entry(group.id).or_insert((state, self.now));
                if from.0 != state {
                    *from = (state, self.now);
                }
                let late = self.now.since(from.1) >= STUCK_AFTER;
                reports.extend(reports_of(&group, cuts).into_iter().filter(|_| late));
                if !group.open {
                    if reports_of(&group, cuts).is_empty() {
                        let (group, epoch) = (group.id, group.epoch);
                        self.change(&Change::step(GroupStep::Open { group, epoch }));
                    }
                } else {
                    self.fill(&group, cuts, &mut filled);
                }
                let whole = self.map.complete_sources_up(&group);
                seen.fewest_whole = seen.fewest_whole.min(whole);
                if !(0..group.m).all(|slot| is_served(&group, slot, cuts)) {
                    seen.stood_until = self.now.since(began);
                }
            }
            let new = self.keep(&reports);
            let new = epochs_of(&new).into_iter().cloned();
            seen.epochs
                .extend(new.map(|new| (self.now.since(began), new)));
            self.wait(25);
        }
        seen
    }

    /// Fills what is not whole for 25 ms.
    fn fill(
        &mut self,
        group: &Group,
        cuts: &Cuts,
        filled: &mut BTreeMap<(GroupId, MemberId), Duration>,
    ) {
        for (slot, x) in group.listed().filter(|(_, x)| !x.complete) {
            let reaches = |o: &Member| !apart(cuts, x.id.node, o.id.node);
            let of = crate::scheme::bucket_slot(group.m, slot);
            let can = match of == slot {
                true => whole_buckets(group.m, &group.members, reaches) >= group.m.into(),
                false => group.member(of).is_some_and(reaches),
            };
            let so_far = filled.entry((group.id, x.id)).or_default();
            *so_far += Duration::from_millis(25) * can.into();
            if *so_far >= FILL {
                self.change(&Change::step(GroupStep::Complete {
                    group: group.id,
                    epoch: group.epoch,
                    slot,
                    incarnation: x.id.incarnation,
                }));
            }
        }
    }
}

fn reports_of(group: &Group, cuts: &Cuts) -> Vec<StuckReport> {
    let leads = match group.open {
        true => 0..group.m,
        false => group.coordinator.0..group.coordinator.0 + 1,
    };
    let leaders = leads.filter_map(|slot| group.member(MemberSlot(slot)));
    let reports = leaders.map(|x| StuckReport {
        group: group.id,
        epoch: group.epoch,
        slots: missed_by(group, x.id.node, cuts),
        reporter: x.id.node,
    });
    reports.filter(|r| !r.slots.is_empty()).collect()
}

/// A group of which a member died, and who takes its place has just begun to be filled.
fn half_made(nodes: u64, scheme: &str, slot: u8) -> (TestCluster, Vec<NodeId>) {
    let mut town = coded(nodes, scheme, 1);
    let dead = nodes_of(&town, 1)[usize::from(slot)];
    town.change(&node_down(&town.map, dead.0));
    let before = town.fill_with(&Cuts::new(), Duration::from_secs(1));
    assert_eq!(before.epochs.len(), 1);
    let held = nodes_of(&town, 1);
    let group = &town.map.groups[&GroupId(1)];
    let joined = group.members[usize::from(slot)].expect("a place for it");
    assert!(group.open && !joined.complete && joined.id.node != dead);
    (town, held)
}

/// Regression: a data bucket that was being made anew and cut from a parity bucket had that one put out, which could not be done without: the
/// group was between epochs once a second, and answered a part of its reads, for as long as the cut lasted.
#[test]
fn a_member_that_is_cut_off_while_it_is_filled_is_replaced() {
    for (nodes, scheme) in [(6, "2+1"), (7, "2+2"), (9, "4+2")] {
        let scheme_of: Scheme = scheme.parse().expect("a scheme");
        for slot in 0..scheme_of.width() as u8 {
            let (town, held) = half_made(nodes, scheme, slot);
            let joined = held[usize::from(slot)];
            for other in held.iter().filter(|n| **n != joined) {
                let mut town = town.clone();
                let cuts: Cuts = [pair(joined, *other)].into();
                let seen = town.fill_with(&cuts, Duration::from_secs(20));
                let what = format!("{scheme}, slot {slot}, {joined} and {other} cut: {seen:?}");
                assert!(seen.epochs.len() <= 3, "{what}");
                assert_eq!(seen.fewest_whole, scheme_of.width() - 1, "{what}");
                assert!(seen.stood_until < Duration::from_secs(4), "{what}");
                let group = &town.map.groups[&GroupId(1)];
                let mut whole = group.listed().map(|(_, x)| x);
                assert!(group.open && whole.all(|x| x.complete), "{what}");
                let bears = group.tolerates(|id| town.map.runs(id));
                assert_eq!(bears, Some(scheme_of.k), "{what}");
            }
        }
    }
}

/// Nor does any other cut keep the group from being whole again, or take it out of service for longer than a member takes to be filled.
#[test]
fn a_cut_of_two_others_does_not_end_a_fill() {
    for (nodes, scheme) in [(6, "2+1"), (9, "4+2")] {
        let scheme_of: Scheme = scheme.parse().expect("a scheme");
        for slot in 0..scheme_of.width() as u8 {
            let (town, held) = half_made(nodes, scheme, slot);
            let joined = held[usize::from(slot)];
            let others: Vec<NodeId> = held.iter().copied().filter(|n| *n != joined).collect();
            for (at, one) in others.iter().enumerate() {
                for other in &others[at + 1..] {
                    let mut town = town.clone();
                    let cuts: Cuts = [pair(*one, *other)].into();
                    let seen = town.fill_with(&cuts, Duration::from_secs(30));
                    let what = format!("{scheme}, slot {slot}, {one} and {other} cut: {seen:?}");
                    assert!(seen.epochs.len() <= 6, "{what}");
                    assert!(seen.stood_until < Duration::from_secs(7), "{what}");
                    let group = &town.map.groups[&GroupId(1)];
                    assert!(
                        group.open && group.listed().all(|(_, x)| x.complete),
                        "{what}"
                    );
                }
            }
        }
    }
}

/// However many fills are under way: to put another in the place of one that does not get on begins no further one.
#[test]
fn who_is_cut_off_is_replaced_beside_any_number_of_fills() {
    let mut town = coded(6, "2+1", 128);
    town.planner.config.moves_at_once = 2;
    town.change(&node_down(&town.map, 6));
    town.fill_with(&Cuts::new(), Duration::from_secs(1));
    let cuts: Cuts = [2, 3].map(|other| (NodeId(1), NodeId(other))).into();
    let starved = town.map.groups.values().filter(|group| {
        let mut filling = group.listed().filter(|(_, x)| !x.complete);
        // Without the two whole ones, which do not reach each other, nobody can do anything.
        let whole = |node| group.listed().any(|(_, x)| x.complete && x.id.node == node);
        let apart = cuts.iter().any(|(a, b)| whole(*a) && whole(*b));
        !apart && filling.any(|(slot, x)| starves(group, &cuts, slot, x))
    });
    let starved: Vec<GroupId> = starved.map(|group| group.id).collect();
    assert!(starved.len() >= 4, "{starved:?}");
    town.fill_with(&cuts, Duration::from_secs(12));
    for id in starved {
        let group = &town.map.groups[&id];
        assert!(
            group.open && group.listed().all(|(_, x)| x.complete),
            "{group:?}"
        );
    }
}

/// A half-made member of 2+1 in this slot, cut from the one in another, where no place is free for long.
fn cut_without_a_successor(slot: u8, other: usize) -> (TestCluster, Vec<NodeId>, Seen) {
    let (mut town, held) = half_made(4, "2+1", slot);
    let nodes: Vec<NodeId> = town.map.nodes.keys().copied().collect();
    for node in nodes {
        let id = MemberId::new(node, town.map.nodes[&node].incarnation);
        for place in [id, id.second()] {
            town.planner.note_unable(town.now, (GroupId(1), place));
        }
    }
    let cuts: Cuts = [pair(held[usize::from(slot)], held[other])].into();
    let seen = town.fill_with(&cuts, Duration::from_secs(10));
    (town, held, seen)
}

/// A data bucket that is half made and cut off serves what it has, if nobody can take its place. Parity serves nothing: it goes, and the
/// bucket that it kept from acknowledging goes on.
#[test]
fn a_half_made_member_without_a_successor_stays_if_it_serves() {
    let (town, held, seen) = cut_without_a_successor(0, 2);
    assert!(seen.epochs.is_empty(), "{seen:?}");
    assert_eq!(nodes_of(&town, 1), held);
    let (town, held, seen) = cut_without_a_successor(2, 0);
    assert!(seen.stood_until < Duration::from_secs(3), "{seen:?}");
    assert_eq!(nodes_of(&town, 1), held[..2]);
}

/// Regression: groups that could not get on with their fills counted anew with each epoch among those in change, and no other was repaired.
#[test]
fn a_fill_holds_others_up_for_one_patience_whatever_else_happens_to_the_group() {
    let (mut town, held) = half_made(5, "2+2", 0);
    let patience = PlannerConfig::default().fill_patience;
    let wait = |town: &mut TestCluster, time: Duration| {
        let until = town.now + time;
        while town.now < until {
            town.keep(&[]);
            let group = town.map.groups[&GroupId(1)].clone();
            if !group.open {
                let (group, epoch) = (group.id, group.epoch);
                town.change(&Change::step(GroupStep::Open { group, epoch }));
            }
            town.wait(25);
        }
    };
    wait(&mut town, patience / 2);
    let before = town.map.groups[&GroupId(1)].epoch;
    town.change(&node_down(&town.map, held[3].0));
    wait(&mut town, patience / 2);
    let group = &town.map.groups[&GroupId(1)];
    assert!(group.open && group.epoch > before && !group.members[0].expect("it").complete);
    assert!(town.planner.fills_for_long(town.now, group));
}

/// Regression: a member that answers late, and stays so that others take over what was lost before it, kept the others from joining.
#[test]
fn nodes_to_which_a_member_is_late_join_where_there_are_no_others() {
    let mut town = coded(8, "4+2", 1);
    let held = nodes_of(&town, 1);
    let late = held[5];
    let nodes: Vec<NodeId> = town.map.nodes.keys().copied().collect();
    let others = nodes.into_iter().filter(|n| *n != late);
    let cuts: Cuts = others.map(|n| pair(n, late)).collect();
    town.planner.see_cuts(cuts.clone());
    town.planner.see_late(&cuts);
    town.change(&node_down(&town.map, held[4].0));
    let said = town.keep(&[]);
    let new = epochs_of(&said)[0];
    assert_eq!(new.members.iter().flatten().count(), 6, "{new:?}");
    // Where nothing comes at all, they do not.
    let mut town = coded(8, "4+2", 1);
    town.planner.see_cuts(cuts);
    town.change(&node_down(&town.map, held[4].0));
    let said = town.keep(&[]);
    assert_eq!(epochs_of(&said)[0].members.iter().flatten().count(), 5);
}

/// Regression: a pair that answers late kept a coded group bare that had lost its parity for a moment, and a drain from its end.
#[test]
fn a_pair_that_answers_late_holds_neither_repairs_nor_drains_up() {
    let mut town = coded(3, "2+1", 1);
    let held = nodes_of(&town, 1);
    let cuts: Cuts = [pair(held[0], held[1])].into();
    town.change(&node_down(&town.map, held[2].0));
    town.settle();
    town.planner.see_cuts(cuts.clone());
    town.planner.see_late(&cuts);
    town.change(&node_up(Some(held[2].0)));
    let said = town.keep(&[]);
    assert_eq!(epochs_of(&said)[0].members.iter().flatten().count(), 3);

    let mut town = settled(2, "1+1", 1);
    let held = nodes_of(&town, 1);
    let cuts: Cuts = [pair(held[0], held[1])].into();
    town.planner.see_cuts(cuts.clone());
    town.planner.see_late(&cuts);
    drain(&mut town, held[0].0, true);
    town.settle();
    let group = &town.map.groups[&GroupId(1)];
    let serves = group.members[0].expect("somebody").id.node;
    assert_eq!((serves, group.open), (held[1], true));
}

#[test]
fn planners_that_keep_who_cannot_be_filled_are_seen() {
    for mutant in [Mutant::HalfMadeKept, Mutant::StarvedKept] {
        crate::mutant::plant(Some(mutant));
        let test = a_member_that_is_cut_off_while_it_is_filled_is_replaced;
        let seen = std::panic::catch_unwind(test);
        crate::mutant::plant(None);
        assert!(seen.is_err(), "{mutant:?}");
    }
}

/// Regression: a group that a cut kept from opening took a new epoch every 0.85 s for as long as it lasted.
#[test]
fn a_group_that_cannot_open_takes_few_epochs_and_opens_after_the_cut() {
    let mut town = coded(5, "2+1", 1);
    let held = nodes_of(&town, 1);
    let cuts: Cuts = [pair(held[1], held[2])].into();
    town.planner.see_cuts(cuts.clone());
    town.change(&node_down(&town.map, held[0].0));
    let seen = town.fill_with(&cuts, Duration::from_secs(30));
    assert!(!town.map.groups[&GroupId(1)].open);
    assert!(seen.epochs.len() <= 12, "{:?}", seen.epochs.len());
    let healed = town.fill_with(&Cuts::new(), Duration::from_secs(20));
    assert!(healed.stood_until < Duration::from_secs(1), "{healed:?}");
    let group = &town.map.groups[&GroupId(1)];
    assert!(group.open && group.listed().all(|(_, x)| x.complete));
}
