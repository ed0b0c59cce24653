//! Planners that look at no group while nothing can have changed.

use super::isolated::pair;
use super::*;

const TICK: u64 = 50;

/// Looks for so long. What was proposed first, and after how long.
fn first_within(town: &mut TestCluster, ms: u64) -> Option<(u64, Vec<Change>)> {
    (0..ms / TICK).find_map(|tick| {
        town.wait(TICK);
        let said = town.keep(&[]);
        (!said.is_empty()).then_some(((tick + 1) * TICK, said))
    })
}

fn rests(town: &TestCluster) -> bool {
    town.planner.rests(town.now, &town.map)
}

#[test]
fn no_group_is_looked_at_while_all_are_well() {
    let mut town = settled(5, "1+2", 64);
    town.keep(&[]);
    for tick in 0..100 {
        // One look a second all the same.
        town.wait(TICK);
        assert!(tick % 20 == 19 || rests(&town), "{tick}");
        assert!(town.keep(&[]).is_empty());
    }
}

#[test]
fn a_change_a_report_and_a_cut_end_the_rest() {
    let town = settled(5, "1+2", 8);
    let held = |town: &TestCluster| {
        let group = &town.map.groups[&GroupId(1)];
        let ids = group.listed().map(|(_, x)| x.id.node);
        ids.collect::<Vec<_>>()
    };
    let nodes = held(&town);

    let mut changed = town.clone();
    changed.change(&node_down(&changed.map, nodes[0].0));
    let said = changed.keep(&[]);
    assert!(!epochs_of(&said).is_empty(), "a node died: {said:?}");

    let mut reported = town.clone();
    let group = &reported.map.groups[&GroupId(1)];
    let report = StuckReport {
        group: group.id,
        epoch: group.epoch,
        slots: vec![MemberSlot(1)],
        reporter: nodes[0],
    };
    let said = reported.keep(&[report]);
    assert!(!epochs_of(&said).is_empty(), "one is stuck: {said:?}");

    let mut cut = town.clone();
    cut.keep(&[]);
    assert!(rests(&cut));
    cut.planner.see_cuts([pair(nodes[0], nodes[1])].into());
    assert!(!rests(&cut), "a cut");
    cut.keep(&[]);
    cut.planner.see_cuts(BTreeSet::new());
    assert!(!rests(&cut), "it is healed, and what it held back is due");
}

/// A drain of a coded bucket begins when the node has been draining for 3 s, without any change of the map before that.
#[test]
fn what_is_due_at_a_time_ends_the_rest() {
    let mut town = coded(7, "4+2", 4);
    town.keep(&[]);
    let of = town.map.groups[&GroupId(1)].listed().next();
    let node = of.expect("it has members").1.id.node;
    town.change(&set_drain(node.0, true));
    let (after, said) = first_within(&mut town, 10_000).expect("it goes elsewhere");
    assert!(!epochs_of(&said).is_empty(), "{said:?}");
    let due = PlannerConfig::default().twins_after.as_millis() as u64;
    assert!((due..=due + 2 * TICK).contains(&after), "after {after} ms");
}

#[test]
fn a_planner_that_rests_past_what_is_due_is_seen() {
    crate::mutant::plant(Some(Mutant::RestsPastDeadline));
    let seen = std::panic::catch_unwind(what_is_due_at_a_time_ends_the_rest);
    crate::mutant::plant(None);
    assert!(seen.is_err());
}
