//! Groups with m > 1 of which one member is cut off from some of the others: how many members they keep.

use super::isolated::{nodes_of, pair};
use super::*;

/// For every member of a group, and every choice of others that it does not reach, but for one.
fn every_partial_cut(held: &[NodeId]) -> Vec<(NodeId, Cuts)> {
    let cuts_of = |node: &NodeId| {
        let others: Vec<NodeId> = held.iter().copied().filter(|n| n != node).collect();
        let node = *node;
        (1..(1 << others.len()) - 1).map(move |chosen: u32| {
            let missed = (0..).zip(&others).filter(|(at, _)| chosen >> at & 1 == 1);
            (node, missed.map(|(_, other)| pair(node, *other)).collect())
        })
    };
    held.iter().flat_map(cuts_of).collect()
}

/// A group of as many nodes as members, or with some to spare, lives with cuts that touch one node: in each epoch all are kept but one.
fn all_are_kept_but_one(nodes: u64, scheme: &str) {
    let town = coded(nodes, scheme, 1);
    for (node, cuts) in every_partial_cut(&nodes_of(&town, 1)) {
        let mut town = town.clone();
        let lived = town.live_with(&cuts, None, Duration::from_secs(12));
        let width = town.map.groups[&GroupId(1)].last_open.members.len();
        for (at, new) in &lived.epochs {
            let kept = new.kept.iter().flatten().count();
            assert!(kept + 1 >= width, "{node} with {cuts:?}: {at:?} {new:?}");
        }
        let stood = lived.stood_until;
        assert!(
            stood < Duration::from_secs(3),
            "{node} with {cuts:?}: {lived:?}"
        );
    }
}

#[test]
fn who_misses_more_than_whom_it_reports_is_left_out() {
    for (nodes, scheme) in [(5, "3+2"), (7, "4+2"), (4, "2+2")] {
        all_are_kept_but_one(nodes, scheme);
    }
}

/// Regression: a data bucket that reached no parity had all of it put out, and the group acknowledged without any.
#[test]
fn a_data_bucket_that_reaches_no_parity_goes_itself() {
    let mut town = coded(5, "3+2", 1);
    let held = nodes_of(&town, 1);
    town.planner
        .see_cuts([3, 4].map(|parity| pair(held[0], held[parity])).into());
    let epochs = town.keep(&[stuck(&town, 1, &[3, 4], held[0])]);
    let new = epochs_of(&epochs)[0];
    let kept: Vec<_> = new.kept.iter().flatten().map(|slot| slot.0).collect();
    assert_eq!(kept, [1, 2, 3, 4]);
    assert_ne!(new.members[0].map(|x| x.node), Some(held[0]));
}

/// A data bucket that reaches one other alone, with one of two parities out of its reach: a group that bears all in the end.
fn a_narrow_one_goes() -> Option<u8> {
    let mut town = coded(5, "2+2", 1);
    let held = nodes_of(&town, 1);
    let all: Vec<NodeId> = town.map.nodes.keys().copied().collect();
    let missed = all.iter().filter(|n| ![held[0], held[3]].contains(n));
    let cuts: Cuts = missed.map(|n| pair(held[0], *n)).collect();
    town.live_with(&cuts, None, Duration::from_secs(12));
    let group = &town.map.groups[&GroupId(1)];
    group.tolerates(|id| town.map.runs(id))
}

/// Regression: both miss one that they have to reach, so the parity went, and nobody could take its place: none reached the data bucket.
#[test]
fn where_both_miss_as_many_the_one_that_reaches_fewer_goes() {
    assert_eq!(a_narrow_one_goes(), Some(2));
}

/// Parity that nobody hears is stuck itself, whoever is the first to say so.
#[test]
fn parity_that_nobody_reaches_goes() {
    let mut town = coded(6, "3+2", 1);
    let held = nodes_of(&town, 1);
    let gone = [held[3], held[4]];
    let all: Vec<NodeId> = town.map.nodes.keys().copied().collect();
    let missed = |n: &NodeId| gone.map(|g| pair(*n, g));
    let mut cuts: Cuts = all.iter().flat_map(missed).collect();
    cuts.retain(|(a, b)| a != b);
    town.planner.see_cuts(cuts);
    let epochs = town.keep(&[stuck(&town, 1, &[3, 4], held[0])]);
    let new = epochs_of(&epochs)[0];
    let kept: Vec<_> = new.kept.iter().flatten().map(|slot| slot.0).collect();
    assert_eq!(kept, [0, 1, 2]);
}

/// Regression: a lost bucket went to the second place of a node that did not reach enough parts to make it from.
#[test]
fn a_second_place_is_taken_where_all_are_reached() {
    let mut town = coded(6, "4+2", 1);
    let held = nodes_of(&town, 1);
    // A data bucket does not reach two others.
    town.planner
        .see_cuts([2, 3].map(|other| pair(held[1], held[other])).into());
    let dead = held[0];
    let incarnation = town.map.nodes[&dead].incarnation;
    town.change(&Change::NodeDown {
        node: dead,
        incarnation,
    });
    let epochs = town.keep(&[]);
    let new = epochs_of(&epochs)[0];
    let takes = new.members[0].map(|x| x.node);
    assert!(takes == Some(held[4]) || takes == Some(held[5]), "{new:?}");
}

/// Without evidence of a cut the reporter is believed, as it is with m = 1.
#[test]
fn without_a_cut_the_reporter_is_believed() {
    let mut town = coded(6, "3+2", 1);
    let held = nodes_of(&town, 1);
    let epochs = town.keep(&[stuck(&town, 1, &[4], held[0])]);
    let new = epochs_of(&epochs)[0];
    assert!(!new.members.iter().flatten().any(|x| x.node == held[4]));
    assert_eq!(new.members[0].map(|x| x.node), Some(held[0]));
}

/// All choices of two cuts that have no node in common.
fn two_cuts(held: &[NodeId]) -> Vec<Cuts> {
    let pairs: Vec<(NodeId, NodeId)> = held
        .iter()
        .flat_map(|a| held.iter().filter(move |b| a < b).map(|b| pair(*a, *b)))
        .collect();
    let common = |(a, b): &(NodeId, NodeId), (c, d): &(NodeId, NodeId)| {
        [a, b].contains(&c) || [a, b].contains(&d)
    };
    let all = pairs.iter().flat_map(|one| {
        let others = pairs.iter().filter(move |other| one < other);
        others.map(move |other| (*one, *other))
    });
    let all = all.filter(|(one, other)| !common(one, other));
    all.map(|(one, other)| [one, other].into()).collect()
}

/// Regression: two cuts without a node in common put out all parity, whatever is chosen, and the group acknowledged without any for
/// more than five seconds: one death then lost it.
#[test]
fn a_group_that_cuts_leave_without_parity_has_some_soon() {
    for (nodes, scheme) in [(5, "3+2"), (6, "4+2")] {
        let town = coded(nodes, scheme, 1);
        let held = nodes_of(&town, 1);
        for cuts in two_cuts(&held) {
            let mut town = town.clone();
            let lived = town.live_with(&cuts, None, Duration::from_secs(10));
            let (bare, stood) = (lived.bare, lived.stood_until);
            assert!(bare < Duration::from_millis(1500), "{cuts:?}: {bare:?}");
            let group = &town.map.groups[&GroupId(1)];
            assert!(
                group.tolerates(|id| town.map.runs(id)) >= Some(1),
                "{cuts:?}"
            );
            assert!(stood < Duration::from_secs(3), "{cuts:?}: {stood:?}");
        }
    }
}

/// Regression: the ring's first was made the one that serves though it did not reach another copy, and the one before was called back, three
/// times a second for as long as the cuts lasted.
#[test]
fn copies_are_not_given_to_a_first_that_does_not_reach_them() {
    let town = settled(5, "1+2", 32);
    for cuts in two_cuts(&town.map.nodes.keys().copied().collect::<Vec<_>>()) {
        let cut: BTreeSet<NodeId> = cuts.iter().flat_map(|(a, b)| [*a, *b]).collect();
        let mut town = town.clone();
        let whole = town.map.nodes.keys().find(|n| !cut.contains(n));
        let dead = *whole.expect("five nodes");
        let incarnation = town.map.nodes[&dead].incarnation;
        let mut lived = town.live_with(&cuts, None, Duration::from_secs(5));
        town.change(&Change::NodeDown {
            node: dead,
            incarnation,
        });
        let after = town.live_with(&cuts, None, Duration::from_secs(20));
        lived.epochs.extend(after.epochs);
        for id in town.map.groups.keys() {
            let of = lived.epochs.iter().filter(|(_, new)| new.group == *id);
            assert!(
                of.clone().count() <= 10,
                "{cuts:?}: {:?}",
                of.collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn planners_that_do_not_look_at_cuts_are_seen() {
    for (mutant, test) in [
        (
            Mutant::BareUntilCalm,
            a_group_that_cuts_leave_without_parity_has_some_soon as fn(),
        ),
        (
            Mutant::NarrowKept,
            where_both_miss_as_many_the_one_that_reaches_fewer_goes,
        ),
        (
            Mutant::FirstServesBehindCut,
            copies_are_not_given_to_a_first_that_does_not_reach_them,
        ),
    ] {
        crate::mutant::plant(Some(mutant));
        let seen = std::panic::catch_unwind(test);
        crate::mutant::plant(None);
        assert!(seen.is_err(), "{mutant:?}");
    }
}

#[test]
fn a_planner_that_believes_every_reporter_is_seen() {
    crate::mutant::plant(Some(Mutant::ReporterBelieved));
    let seen = std::panic::catch_unwind(a_data_bucket_that_reaches_no_parity_goes_itself);
    crate::mutant::plant(None);
    assert!(seen.is_err());
}
