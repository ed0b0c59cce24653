//! Nodes that are emptied on purpose.

use super::isolated::{nodes_of, pair};
use super::*;

/// Row X5: a drained node gives everything up, before other moves, and takes it again when resumed.
#[test]
fn a_drained_node_is_emptied() {
    let mut town = settled(5, "1+1", 64);
    let before = town.map.clone();
    town.change(&set_drain(2, true));
    town.settle();
    town.check_at_rest();
    assert!(town.map.groups.values().all(|g| !g.names(NodeId(2))));
    town.change(&set_drain(2, false));
    town.settle();
    town.check_at_rest();
    let members = |map: &ClusterMap| -> Vec<BTreeSet<NodeId>> {
        let of = |g: &Group| g.listed().map(|(_, x)| x.id.node).collect();
        map.groups.values().map(of).collect()
    };
    assert_eq!(members(&town.map), members(&before), "as it was");
    // With no other node to go to, the buckets stay.
    let mut town = settled(1, "1+1", 4);
    town.change(&set_drain(1, true));
    town.settle();
    assert!(
        town.map
            .groups
            .values()
            .all(|g| g.open && g.names(NodeId(1)))
    );
}

#[test]
fn drains_go_before_balance() {
    let mut town = settled(5, "1+1", 64);
    town.change(&node_up(None));
    town.change(&set_drain(1, true));
    let said = town.keep(&[]);
    let new = epochs_of(&said);
    assert_eq!(new.len(), 16);
    assert!(
        new.iter()
            .all(|n| n.members.iter().flatten().any(|x| x.node == NodeId(1)))
    );
}

/// Row X5 with m > 1: who is to take a bucket stands beside the one that has it until it is complete, so that
/// the group never bears less than before; and in the end nothing names the drained node.
#[test]
fn a_drain_never_lowers_what_a_coded_group_bears() {
    for (scheme, nodes, k) in [("2+1", 4, 1), ("4+2", 7, 2), ("2+0", 3, 0)] {
        let mut town = coded(nodes, scheme, 8);
        drain(&mut town, 2, true);
        let mut dice = Dice(7);
        let mut beside = 0;
        for _ in 0..4000 {
            town.keep(&[]);
            town.work(&mut dice, 30);
            town.wait(25);
            for group in town.map.groups.values() {
                let bears = group.tolerates(|id| town.map.runs(id));
                assert!(bears >= Some(k), "{scheme}: {group:?}");
                beside += usize::from(group.members.len() > 16);
            }
        }
        assert!(beside > 0, "{scheme}: nobody stood beside another");
        town.check_at_rest();
        for group in town.map.groups.values() {
            assert!(!group.names(NodeId(2)), "{scheme}: {group:?}");
            assert_eq!(group.members.len(), usize::from(group.m + k), "{scheme}");
        }
    }
}

/// A node that stops drains for a moment, so that copies take over in good order: nobody begins to copy its coded
/// buckets for that.
#[test]
fn a_short_drain_calls_no_twin_in() {
    let mut town = coded(4, "2+1", 8);
    let epochs = |town: &TestCluster| {
        town.map
            .groups
            .values()
            .map(|g| g.epoch)
            .collect::<Vec<_>>()
    };
    let before = epochs(&town);
    drain(&mut town, 2, true);
    for _ in 0..100 {
        town.keep(&[]);
        town.work(&mut Dice(1), 100);
        town.wait(25);
    }
    drain(&mut town, 2, false);
    town.settle();
    assert_eq!(epochs(&town), before, "2.5 s");
    drain(&mut town, 2, true);
    town.settle();
    assert!(epochs(&town) > before, "it stays drained");
    town.check_at_rest();
}

/// A node dies, or the drain is taken back, at any moment of a drain: nothing is lost, and all comes to rest.
#[test]
fn a_drain_that_is_disturbed_loses_nothing() {
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let mut town = coded(6, "2+1", 4);
        drain(&mut town, 1, true);
        if dice.below(2) == 0 {
            drain(&mut town, 2, true);
        }
        let (at, node) = (dice.below(60), 1 + dice.below(6));
        for step in 0..200 {
            if step == at {
                match dice.below(3) {
                    0 => drain(&mut town, 1, false),
                    _ => {
                        town.change(&node_down(&town.map.clone(), node));
                    }
                }
            }
            town.keep(&[]);
            town.work(&mut dice, 30);
            town.wait(25);
        }
        town.settle();
        town.check_at_rest();
        for group in town.map.groups.values() {
            assert!(!group.lost, "seed {seed}: {group:?}");
            assert_eq!(group.members.len(), 3, "seed {seed}: {group:?}");
        }
    }
}

/// A member dies while another is being moved, and no other node is free: what is missing goes first.
#[test]
fn a_lost_bucket_goes_before_one_that_moves() {
    let mut town = coded(4, "2+1", 1);
    let group = |town: &TestCluster| town.map.groups[&GroupId(1)].clone();
    let of = |slot: usize| group(&town).members[slot].expect("listed").id.node.0;
    let (moves, dies) = (of(0), of(2));
    drain(&mut town, moves, true);
    town.keep(&[]);
    town.wait(3_000);
    town.keep(&[]);
    assert!(group(&town).members.len() > 3, "one stands beside it");
    town.change(&node_down(&town.map.clone(), dies));
    town.settle();
    let nodes: Vec<u64> = group(&town).listed().map(|(_, x)| x.id.node.0).collect();
    assert!(nodes.len() == 3 && nodes.contains(&moves), "{nodes:?}");
    assert_eq!(group(&town).tolerates(|_| true), Some(1));
}

/// Regression: where the node that was to take a drained node's copies had no room for them, the drain ended all the
/// same, and the groups had a copy less.
#[test]
fn a_drain_that_finds_no_room_keeps_its_copies_until_there_is_some() {
    let mut town = settled(4, "1+2", 8);
    let of_two = |town: &TestCluster| {
        town.map
            .groups
            .values()
            .filter(|g| g.names(NodeId(2)))
            .count()
    };
    let before = of_two(&town);
    drain(&mut town, 2, true);
    for _ in 0..2_000 {
        // No joiner has room, and the data bucket reports so.
        let filling = |g: &&Group| g.open && g.listed().any(|(_, x)| !x.complete);
        let reports = town.map.groups.values().filter(filling).map(|group| {
            let joiners = group.listed().filter(|(_, x)| !x.complete);
            StuckReport {
                group: group.id,
                epoch: group.epoch,
                slots: joiners.map(|(slot, _)| slot).collect(),
                reporter: group.members[0].expect("listed").id.node,
            }
        });
        let reports: Vec<_> = reports.collect();
        town.keep(&reports);
        for group in town.map.groups.clone().into_values().filter(|g| !g.open) {
            let (group, epoch) = (group.id, group.epoch);
            town.change(&Change::step(GroupStep::Open { group, epoch }));
        }
        town.wait(25);
        for group in town.map.groups.values() {
            let bears = group.tolerates(|id| town.map.runs(id));
            assert!(bears >= Some(2), "{group:?}");
        }
    }
    assert!(before > 0);
    assert_eq!(of_two(&town), before, "nobody else could have them");
    let first = |g: &Group| g.members[0].expect("listed").id.node;
    assert!(
        town.map.groups.values().all(|g| first(g) != NodeId(2)),
        "others serve"
    );
    town.settle();
    town.check_at_rest();
    assert_eq!(of_two(&town), 0, "there is room now");
}

/// Lives with a cut, and after so long also with a drain: each group has few epochs, and all serve but for a moment.
fn drained_beside_a_cut(town: &TestCluster, node: NodeId, cut: (NodeId, NodeId), after: u64) {
    let (mut town, cuts) = (town.clone(), [cut].into());
    let mut lived = town.live_with(&cuts, None, Duration::from_millis(after));
    town.change(&set_drain(node.0, true));
    let beside = town.live_with(&cuts, None, Duration::from_secs(14));
    lived.epochs.extend(beside.epochs);
    for id in town.map.groups.keys() {
        let of = lived.epochs.iter().filter(|(_, new)| new.group == *id);
        let of: Vec<_> = of.collect();
        assert!(of.len() <= 7, "{node} {cut:?} {after}: {of:?}");
    }
    let stood = beside.stood_until;
    let whole = stood < Duration::from_secs(3);
    assert!(whole, "{node} {cut:?} {after}: {stood:?}");
    let left = town.map.groups.values().filter(|g| g.names(node)).count();
    assert_eq!(left, 0, "{node} {cut:?} {after}");
}

/// The same where the cut comes while the copy that takes the place of the drained one is filled.
#[test]
fn a_cut_between_the_copies_to_be_does_not_hold_a_drain_up() {
    for scheme in ["1+1", "1+2"] {
        let town = settled(5, scheme, 16);
        for node in town.map.nodes.keys().copied().collect::<Vec<_>>() {
            let mut town = town.clone();
            town.change(&set_drain(node.0, true));
            town.keep(&[]);
            let mut dice = Dice(1);
            town.work(&mut dice, 100);
            town.keep(&[]);
            let begun = town.map.groups.values().find(|g| g.names(node));
            let Some(group) = begun.map(|g| g.id.0) else {
                continue;
            };
            let held = nodes_of(&town, group);
            let others: Vec<_> = held.iter().copied().filter(|n| *n != node).collect();
            let cuts = [pair(others[0], others[others.len() - 1])].into();
            let lived = town.live_with(&cuts, None, Duration::from_secs(30));
            let left = town.map.groups.values().filter(|g| g.names(node)).count();
            assert_eq!(left, 0, "{scheme} {node} {cuts:?}: {lived:?}");
            let most = |id: &GroupId| {
                lived
                    .epochs
                    .iter()
                    .filter(|(_, new)| new.group == *id)
                    .count()
            };
            assert!(town.map.groups.keys().all(|id| most(id) <= 8), "{lived:?}");
        }
    }
}

/// A cut between two data buckets is in nobody's way.
#[test]
fn a_coded_bucket_is_drained_beside_a_cut_of_two_others() {
    let town = coded(8, "4+2", 1);
    let held = nodes_of(&town, 1);
    for cut in [pair(held[0], held[1]), pair(held[0], held[5])] {
        let mut town = town.clone();
        let cuts = [cut].into();
        town.live_with(&cuts, None, Duration::from_secs(5));
        town.change(&set_drain(held[2].0, true));
        let lived = town.live_with(&cuts, None, Duration::from_secs(30));
        assert!(!nodes_of(&town, 1).contains(&held[2]), "{cut:?} {lived:?}");
    }
}

/// A node of a group without parity, of whose two data buckets neither reaches the other, cannot be drained: the group goes on as it is.
#[test]
fn a_group_that_would_not_open_goes_on_as_it_is() {
    let town = coded(4, "2+0", 1);
    let held = nodes_of(&town, 1);
    for node in &held {
        let mut town = town.clone();
        let cuts = [pair(held[0], held[1])].into();
        town.live_with(&cuts, None, Duration::from_secs(5));
        town.change(&set_drain(node.0, true));
        let lived = town.live_with(&cuts, None, Duration::from_secs(20));
        assert!(lived.epochs.is_empty(), "{lived:?}");
    }
}

/// Regression: buckets of a node that was drained while it did not reach another, or two others did not reach each other, went back and
/// forth for as long as the cut lasted.
#[test]
fn a_node_is_drained_beside_any_cut_in_few_epochs() {
    let town = settled(5, "1+2", 16);
    let nodes: Vec<NodeId> = town.map.nodes.keys().copied().collect();
    let pairs = nodes.iter().flat_map(|a| nodes.iter().map(|b| (*a, *b)));
    for cut in pairs.filter(|(a, b)| a < b) {
        for node in &nodes {
            for after in [0, 300, 1_000, 5_000] {
                drained_beside_a_cut(&town, *node, cut, after);
            }
        }
    }
}
