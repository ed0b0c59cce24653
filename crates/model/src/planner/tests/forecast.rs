//! The moves that are foretold are those that the planner makes.

use super::*;
use crate::forecast::{GroupMove, forecast};

fn pool_of(map: &ClusterMap) -> PoolId {
    *map.pools.keys().next().expect("a pool")
}

/// Checks that a planner that has seen the map before comes to the places that are foretold, and that it copies to nobody else: with so
/// many steps of a hundred done between two looks.
fn is_what_happens(mut town: TestCluster, percent: u64) -> Vec<GroupMove> {
    let foretold = forecast(&town.map, pool_of(&town.map));
    let before = town.map.clone();
    let mut filled: BTreeMap<GroupId, BTreeSet<NodeId>> = BTreeMap::new();
    let mut dice = Dice(7);
    for _ in 0..8_000 {
        town.keep(&[]);
        for group in town.map.groups.values() {
            let joiners = group.listed().filter(|(_, x)| !x.complete);
            let nodes = joiners.map(|(_, x)| x.id.node);
            filled.entry(group.id).or_default().extend(nodes);
        }
        town.work(&mut dice, percent);
        town.wait(100);
    }
    town.check_at_rest();
    let moved = |id: &GroupId| foretold.iter().find(|found| found.group == *id);
    for (id, group) in &town.map.groups {
        let nodes = |group: &Group| {
            let placed = group.listed().map(|(slot, x)| (slot, x.id.node));
            placed.collect::<Vec<_>>()
        };
        let (now, then) = (nodes(&before.groups[id]), nodes(group));
        let found = moved(id);
        let (was, to) = found.map_or((now.clone(), now.clone()), |f| {
            (f.now.clone(), f.then.clone())
        });
        assert_eq!((was, to), (now, then), "group {id}");
        let fills: Option<BTreeSet<NodeId>> =
            found.map(|f| f.fills.iter().map(|(_, node)| *node).collect());
        let copied = filled.remove(id).unwrap_or_default();
        assert_eq!(fills.unwrap_or_default(), copied, "group {id}");
    }
    let none = forecast(&town.map, pool_of(&town.map));
    assert_eq!(none, [], "nothing is left to do");
    foretold
}

#[test]
fn a_node_that_joins_gets_the_copies_that_are_foretold() {
    let mut town = settled(3, "1+1", 32);
    assert_eq!(forecast(&town.map, pool_of(&town.map)), []);
    town.change(&node_up(None));
    let moves = is_what_happens(town, 60);
    let fills: usize = moves.iter().map(|found| found.fills.len()).sum();
    assert!((8..=24).contains(&fills), "a quarter of 64: {fills}");
    let to_new = |found: &GroupMove| found.fills.iter().all(|(_, node)| *node == NodeId(4));
    assert!(moves.iter().all(to_new), "{moves:?}");
}

#[test]
fn a_drained_node_gives_up_what_is_foretold() {
    let mut town = settled(4, "1+1", 32);
    town.change(&set_drain(2, true));
    let moves = is_what_happens(town, 60);
    assert!(!moves.is_empty());
    let stays = |found: &GroupMove| found.then.iter().any(|(_, node)| *node == NodeId(2));
    assert!(!moves.iter().any(stays), "{moves:?}");
}

/// With m > 1 a bucket moves for balance alone once its group has been well for a while, one at a time.
#[test]
fn data_and_parity_are_spread_as_foretold() {
    let mut town = settled(4, "2+1", 16);
    for _ in 0..2 {
        town.change(&node_up(None));
    }
    let moves = is_what_happens(town.clone(), 100);
    assert!(moves.len() >= 8, "{moves:?}");
    // Another pace makes other groups the next ones, and leaves the shares as they are foretold.
    let load = |map: &ClusterMap| {
        let mut load: BTreeMap<NodeId, usize> = BTreeMap::new();
        for (_, x) in map.groups.values().flat_map(|group| group.listed()) {
            *load.entry(x.id.node).or_default() += 1;
        }
        load
    };
    let mut foretold = load(&town.map);
    for (_, node) in moves.iter().flat_map(|found| &found.now) {
        *foretold.entry(*node).or_default() -= 1;
    }
    for (_, node) in moves.iter().flat_map(|found| &found.then) {
        *foretold.entry(*node).or_default() += 1;
    }
    town.settle();
    let near = |(node, n): (&NodeId, &usize)| foretold[node].abs_diff(*n) <= 1;
    assert!(load(&town.map).iter().all(near), "{foretold:?}");
}

#[test]
fn what_a_dead_node_had_is_made_anew_where_it_is_foretold() {
    let mut town = settled(5, "2+1", 16);
    let down = node_down(&town.map, 3);
    town.change(&down);
    let moves = is_what_happens(town.clone(), 100);
    let had = |found: &GroupMove| found.now.iter().any(|(_, node)| *node == NodeId(3));
    let lacking = town
        .map
        .groups
        .values()
        .filter(|group| group.names(NodeId(3)));
    let made_anew = moves.iter().filter(|found| had(found)).count();
    assert_eq!(made_anew, lacking.count(), "{moves:?}");
}

/// Moves that were begun are among those that are left, and no others.
#[test]
fn moves_that_are_half_made_are_foretold_to_their_end() {
    let mut town = settled(3, "1+1", 32);
    town.change(&node_up(None));
    let all = forecast(&town.map, pool_of(&town.map));
    let mut dice = Dice(3);
    let fills = |moves: &[GroupMove]| moves.iter().map(|found| found.fills.len()).sum::<usize>();
    let mut last = fills(&all);
    for _ in 0..40 {
        town.keep(&[]);
        town.work(&mut dice, 30);
        town.wait(100);
        let left = fills(&forecast(&town.map, pool_of(&town.map)));
        assert!(left <= last, "{left} after {last}");
        last = left;
    }
    assert!(last < fills(&all));
}
