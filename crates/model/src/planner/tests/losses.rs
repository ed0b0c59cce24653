//! Members that die, or are stuck.

use super::*;

#[test]
fn a_death_moves_all_buckets_of_the_node_at_once() {
    let mut town = settled(5, "1+2", 64);
    let before = town.map.clone();
    let holds = before
        .groups
        .values()
        .filter(|g| g.names(NodeId(3)))
        .count();
    town.change(&node_down(&before, 3));
    let said = town.keep(&[]);
    let new = epochs_of(&said);
    assert_eq!((said.len(), new.len()), (1, holds));
    for new in new {
        let old = &before.groups[&new.group];
        let first = old
            .members
            .iter()
            .flatten()
            .find(|x| x.id.node != NodeId(3));
        assert_eq!(new.members[0].map(|x| x.node), first.map(|x| x.id.node));
        assert_eq!(new.members.len(), 3, "a joiner for the dead one");
        assert_eq!(new.kept.iter().flatten().count(), 2);
        assert_eq!(new.coordinator, MemberSlot(0));
    }
    town.settle();
    town.check_at_rest();
}

#[test]
fn an_epoch_that_does_not_open_is_tried_again_with_another_leader_then_with_survivors_alone() {
    let mut town = settled(5, "1+2", 1);
    let dead = town.map.groups[&GroupId(1)].members[0]
        .expect("listed")
        .id
        .node;
    town.change(&node_down(&town.map, dead.0));
    let mut tries = Vec::new();
    for _ in 0..400 {
        for new in epochs_of(&town.keep(&[])) {
            let coordinator = new.members[new.coordinator.index()].expect("listed").node;
            tries.push((town.now, coordinator, new.members.len()));
        }
        town.wait(25);
    }
    assert_ne!(tries[0].1, tries[1].1, "another coordinator");
    assert_eq!(
        (tries[0].2, tries[1].2, tries[2].2),
        (3, 3, 2),
        "joiners are left out at last"
    );
    let waited = |i: usize| tries[i + 1].0.since(tries[i].0).as_millis();
    for (i, ms) in [600, 1200, 2400].into_iter().enumerate() {
        assert!(
            (ms..=ms + 50).contains(&waited(i)),
            "patience grows: {}",
            waited(i)
        );
    }
}

/// As many nodes as the scheme has members, and k with data buckets die together: others take these at once, beside
/// what they hold. Then parity too, for the group bears one more loss with it. As nodes come, all is on nodes of its own.
#[test]
fn a_data_bucket_without_a_node_goes_beside_another() {
    let mut town = coded(6, "4+2", 1);
    let group = |town: &TestCluster| town.map.groups[&GroupId(1)].clone();
    let bears = |town: &TestCluster| group(town).tolerates(|id| town.map.runs(id));
    let seconds = |town: &TestCluster| {
        let group = group(town);
        group.listed().filter(|(_, x)| x.id.is_second()).count()
    };
    for slot in [0, 1] {
        let data = group(&town).members[slot].expect("a data bucket");
        town.change(&node_down(&town.map, data.id.node.0));
    }
    let said = town.keep(&[]);
    let new = epochs_of(&said)[0];
    assert!(new.members[..4].iter().all(Option::is_some), "{new:?}");
    assert_eq!((seconds(&town), bears(&town)), (2, Some(0)));
    let left: BTreeSet<NodeId> = group(&town).listed().map(|(_, x)| x.id.node).collect();
    assert_eq!(
        (left.len(), group(&town).listed().count()),
        (4, 6),
        "2 each at most"
    );
    town.settle();
    town.check_at_rest();
    assert_eq!(
        bears(&town),
        Some(1),
        "any one node takes two, and two are borne"
    );

    let dead = group(&town)
        .members
        .iter()
        .flatten()
        .find(|x| group(&town).is_doubled(x))
        .copied();
    town.change(&node_down(
        &town.map,
        dead.expect("two are doubled").id.node.0,
    ));
    town.settle();
    assert_eq!(bears(&town), Some(1), "six on three");
    for (nodes, borne) in [(4, 1), (5, 1), (6, 2)] {
        let id = (1..=6).find(|n| {
            !town
                .map
                .is_up(NodeId(*n), town.map.nodes[&NodeId(*n)].incarnation)
        });
        town.change(&node_up(id));
        town.settle();
        town.check_at_rest();
        assert_eq!((seconds(&town), bears(&town)), (6 - nodes, Some(borne)));
    }
}

/// No node has room for a second member: a parity bucket gives its place up, once the group was calm for a
/// while, for two that fail together are not found dead together.
#[test]
fn a_data_bucket_that_nobody_has_room_for_takes_the_place_of_parity() {
    let mut town = coded(6, "4+2", 1);
    let group = |town: &TestCluster| town.map.groups[&GroupId(1)].clone();
    let data = group(&town).members[1].expect("a data bucket");
    let last = group(&town).members[5].expect("a parity bucket");
    town.change(&node_down(&town.map, data.id.node.0));
    let (mut tried, mut waited) = (0, 0);
    while group(&town).members[1].map(|x| x.id.place()) != Some(last.id.place()) {
        let now = group(&town);
        let second = now.members[1].filter(|x| x.id.is_second());
        let report = second.map(|_| {
            stuck(
                &town,
                1,
                &[1],
                now.member(now.coordinator).expect("listed").id.node,
            )
        });
        tried += usize::from(report.is_some());
        let given_up = now.members.get(5).is_none_or(Option::is_none);
        waited += usize::from(now.open && !given_up);
        town.keep(&Vec::from_iter(report));
        if group(&town).members[1].is_none_or(|x| !x.id.is_second()) {
            town.work(&mut Dice(1), 100);
        }
        town.wait(25);
        assert!(tried + waited < 4000, "{now:?}");
    }
    assert!((2..200).contains(&tried), "{tried}");
    assert!(waited >= 200, "calm for 5 s");
    town.settle();
    let bears = |town: &TestCluster| group(town).tolerates(|id| town.map.runs(id));
    assert_eq!(bears(&town), Some(1));
}

/// Down to m nodes a group goes on, and bears nothing more; one less waits, and is not given up.
#[test]
fn a_group_of_fewer_than_m_members_is_lost() {
    let mut town = coded(3, "2+1", 1);
    for node in [1, 2] {
        town.change(&node_down(&town.map, node));
    }
    town.settle();
    assert!(
        town.map.groups[&GroupId(1)].lost,
        "m - 1 cannot say what it held"
    );
}

#[test]
fn stuck_members_are_left_out_and_not_called_again_for_a_while() {
    let mut town = settled(5, "1+2", 1);
    let group = town.map.groups[&GroupId(1)].clone();
    let node = |s: usize| group.members[s].expect("listed").id.node;
    let report = stuck(&town, 1, &[2], node(1));
    assert!(
        town.keep(&[report]).is_empty(),
        "a copy is not entitled to say so"
    );
    let report = stuck(&town, 1, &[2], node(0));
    let said = town.keep(&[report]);
    let new = epochs_of(&said)[0];
    assert_eq!(new.members[0].map(|x| x.node), Some(node(0)));
    assert!(!new.members.iter().flatten().any(|x| x.node == node(2)));
    assert_eq!(new.members.len(), 3, "another joins for it");
    let mut dice = Dice(1);
    for _ in 0..400 {
        town.keep(&[]);
        town.work(&mut dice, 100);
        town.wait(25);
        assert!(
            town.map.groups[&GroupId(1)]
                .slot_of(MemberId::new(node(2), Incarnation(node(2).0)))
                .is_none()
        );
    }
    town.settle();
    town.check_at_rest();
    assert!(
        town.map.groups[&GroupId(1)].names(node(2)),
        "later it is tried again"
    );
}

/// A node that does not reach a member is not called in, as long as that is so.
#[test]
fn a_node_that_does_not_reach_a_member_does_not_join_it() {
    let mut town = settled(5, "1+2", 1);
    let group = town.map.groups[&GroupId(1)].clone();
    let held: Vec<NodeId> = group.listed().map(|(_, x)| x.id.node).collect();
    town.change(&node_down(&town.map, held[2].0));
    let called_in = |town: &TestCluster| {
        let mut planner = town.planner.clone();
        let said = planner.step(town.now, &town.map, &[]);
        let said: Vec<Change> = said.into_iter().map(|(_, change)| change).collect();
        epochs_of(&said)[0]
            .members
            .get(2)
            .copied()
            .flatten()
            .map(|x| x.node)
    };
    let first = called_in(&town).expect("a third");
    let pair = |a: NodeId, b: NodeId| (a.min(b), a.max(b));
    town.planner.see_cuts([pair(held[1], first)].into());
    let second = called_in(&town).expect("another");
    assert!(second != first && !held.contains(&second));
    let both = [pair(held[1], first), pair(second, held[0])];
    town.planner.see_cuts(both.into());
    let alone = called_in(&town);
    assert_eq!(alone, None, "two that reach each other go on alone");
    town.planner.see_cuts(BTreeSet::new());
    town.settle();
    town.check_at_rest();
}

/// Regression: a node that could not join a group was called in again as soon as the others had opened without it, and the group
/// was between epochs all the time.
#[test]
fn who_stood_in_the_way_twice_is_not_called_in_again_for_a_while() {
    let mut town = settled(5, "1+2", 1);
    let group = town.map.groups[&GroupId(1)].clone();
    let dead = group.members[2].expect("listed").id.node;
    town.change(&node_down(&town.map, dead.0));
    let said = town.keep(&[]);
    let joiner = epochs_of(&said)[0].members[2].expect("a third").node;
    let (mut tries, mut dice) = (1, Dice(1));
    for _ in 0..400 {
        let said = town.keep(&[]);
        let names = |new: &&NewEpoch| new.members.iter().flatten().any(|x| x.node == joiner);
        tries += epochs_of(&said).into_iter().filter(names).count();
        if town.map.groups[&GroupId(1)]
            .listed()
            .all(|(_, x)| x.id.node != joiner)
        {
            town.work(&mut dice, 100);
        }
        town.wait(25);
    }
    let group = &town.map.groups[&GroupId(1)];
    assert_eq!((tries, group.listed().count(), group.open), (2, 3, true));
}

/// As many nodes as members: who had a slow moment is needed again when another dies.
#[test]
fn who_had_a_slow_moment_stands_in_where_nobody_else_can() {
    let mut town = settled(6, "4+2", 1);
    let group = town.map.groups[&GroupId(1)].clone();
    let member = |s: usize| group.members[s].expect("listed");
    let report = stuck(&town, 1, &[4], member(0).id.node);
    assert_eq!(epochs_of(&town.keep(&[report])).len(), 1);
    town.work(&mut Dice(1), 100);
    let (node, incarnation) = (member(1).id.node, member(1).id.incarnation);
    town.change(&Change::NodeDown { node, incarnation });
    let mut dice = Dice(1);
    for _ in 0..60 {
        town.keep(&[]);
        town.work(&mut dice, 100);
        town.wait(50);
    }
    let data = &town.map.groups[&GroupId(1)].members[..4];
    let whole = |x: &Option<Member>| x.is_some_and(|x| x.complete);
    assert!(data.iter().all(whole), "{data:?}");
}

/// A coordinator that reaches nobody is itself the odd one: the others are not thrown out at its word.
#[test]
fn who_finds_all_others_stuck_loses_the_lead() {
    let mut town = settled(3, "1+2", 1);
    let node = |town: &TestCluster, s: usize| {
        town.map.groups[&GroupId(1)].members[s]
            .expect("listed")
            .id
            .node
    };
    let cut_off = node(&town, 0);
    let said = town.keep(&[stuck(&town, 1, &[1, 2], cut_off)]);
    let new = epochs_of(&said)[0].clone();
    assert_eq!(new.members.iter().flatten().count(), 3);
    let coordinator = new.members[new.coordinator.index()].expect("listed").node;
    assert_ne!(coordinator, cut_off);
    let said = town.keep(&[stuck(&town, 1, &[0], coordinator)]);
    let new = epochs_of(&said)[0];
    assert_eq!(new.members.len(), 2);
    assert!(!new.members.iter().flatten().any(|x| x.node == cut_off));
    assert_eq!(
        new.members[new.coordinator.index()].expect("listed").node,
        coordinator,
        "it is at work"
    );
}

/// A report crosses the opening of the epoch that it is about: who was slow has come along, and stays.
#[test]
fn who_was_stuck_before_the_epoch_opened_is_not_thrown_out_after() {
    for late in [false, true] {
        let mut town = settled(4, "1+2", 1);
        let stays = town.map.groups[&GroupId(1)].members.clone();
        let (node, incarnation) = stays[1]
            .map(|x| (x.id.node, x.id.incarnation))
            .expect("one");
        town.change(&Change::NodeDown { node, incarnation });
        assert_eq!(epochs_of(&town.keep(&[])).len(), 1);
        let group = town.map.groups[&GroupId(1)].clone();
        let coordinator = group.member(group.coordinator).expect("it leads").id.node;
        let slow = group
            .listed()
            .find(|(_, x)| x.id.node != coordinator)
            .expect("one");
        let report = stuck(&town, 1, &[slow.0.0], coordinator);
        if !late {
            // Heard while the epoch was not open, and nothing was proposed before it was.
            town.planner.hear(town.now, &town.map, &report);
        }
        town.change(&Change::step(GroupStep::Open {
            group: group.id,
            epoch: group.epoch,
        }));
        town.wait(20);
        let reports = if late { vec![report] } else { Vec::new() };
        let said = town.keep(&reports);
        let thrown = epochs_of(&said).iter().any(|new| {
            let left = new.members.iter().flatten();
            !left.clone().any(|x| x.node == slow.1.id.node)
        });
        assert!(!thrown, "late: {late}: {said:?}");
    }
}

/// Regression: groups that could not open counted among those in change for ever, and where they were many nobody else's lost copies were
/// made again.
#[test]
fn groups_that_cannot_open_hold_no_others_up() {
    let mut town = settled(3, "1+2", 8);
    town.change(&create_pool("memory", "2+1", 32, false));
    town.settle();
    town.change(&node_down(&town.map.clone(), 1));
    town.keep(&[]);
    town.change(&node_up(Some(1)));
    for _ in 0..1200 {
        town.wait(25);
        town.keep(&[]);
        let groups: Vec<Group> = town.map.groups.values().cloned().collect();
        for group in groups.iter().filter(|g| g.m == 1) {
            town.get_on(group);
        }
    }
    let of = |m: bool| {
        let groups = town.map.groups.values();
        groups.filter(move |g| (g.m > 1) == m)
    };
    assert!(of(true).filter(|g| !g.open).count() >= 16, "too few wait");
    for group in of(false) {
        let bears = group.tolerates(|id| town.map.runs(id));
        assert_eq!(bears, Some(2), "{group:?}");
    }
}
