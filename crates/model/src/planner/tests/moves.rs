//! New pools, nodes that join, and other schemes: who goes where.

use super::*;

#[test]
fn a_new_pool_starts_on_the_ring_in_one_proposal() {
    let mut town = TestCluster::of(cluster_with_pool(5, "1+2", 64));
    let said = town.keep(&[]);
    assert_eq!(said.len(), 1);
    assert_eq!(epochs_of(&said).len(), 64);
    assert!(town.keep(&[]).is_empty(), "it is under way");
    town.settle();
    town.check_at_rest();
    assert!(
        town.map.groups.values().all(|g| g.epoch == Epoch(1)),
        "and it stays there"
    );
}

/// Row D5: one proposal moves all buckets of a dead node, and the first complete copy serves.
/// Regression: thousands of groups of one huge region began at once, and the cluster did nothing else.
#[test]
fn very_many_groups_begin_a_few_hundred_at_a_time() {
    let mut town = TestCluster::of(cluster_with_pool(3, "1+1", 1024));
    let mut begun = 0;
    while begun < 1024 {
        let said = town.keep(&[]);
        let new = epochs_of(&said).len();
        assert!((1..=STARTS_AT_ONCE).contains(&new), "{new}");
        begun += new;
        assert!(town.keep(&[]).is_empty(), "the others wait for these");
        town.work(&mut Dice(1), 100);
    }
}

/// Regression: groups whose fill never ended (a node without room, or one that fetches nothing unasked) held the
/// places of all moves for ever, and a drain elsewhere never began.
#[test]
fn fills_that_do_not_end_hold_no_move_back_for_ever() {
    let mut town = settled(6, "2+1", 64);
    let drain = |node| set_drain(node, true);
    town.change(&drain(1));
    let opens = |town: &mut TestCluster| {
        let new: Vec<Group> = town
            .map
            .groups
            .values()
            .filter(|g| !g.open)
            .cloned()
            .collect();
        for Group { id, epoch, .. } in new {
            town.change(&Change::step(GroupStep::Open { group: id, epoch }));
        }
    };
    // A node that drains for a moment only is not copied from.
    assert!(epochs_of(&town.keep(&[])).is_empty());
    town.wait(3000);
    let mut begun = 0;
    for _ in 0..10 {
        begun += epochs_of(&town.keep(&[])).len();
        opens(&mut town);
        town.wait(100);
    }
    let most = PlannerConfig::default().moves_at_once;
    assert_eq!(begun, most, "and nobody completes");
    town.wait(59_000 - 1000);
    assert_eq!(epochs_of(&town.keep(&[])).len(), 0);
    town.wait(2000);
    assert!(!epochs_of(&town.keep(&[])).is_empty(), "the others go on");
}

/// Row X2. Regression: with m > 1 a node that joined got no bucket before something else was lost.
#[test]
fn x2_coded_buckets_go_to_nodes_that_join_one_at_a_time() {
    let mut town = settled(4, "2+1", 32);
    for _ in 0..2 {
        town.change(&node_up(None));
    }
    let before = town.map.clone();
    let tolerated = |map: &ClusterMap| {
        let bears = |group: &Group| group.tolerates(|id| map.runs(id));
        map.groups.values().map(bears).min().flatten()
    };
    let mut dice = Dice(3);
    (town.moving_most, dice.0) = (0, 3);
    for _ in 0..5_000 {
        town.keep(&[]);
        town.work(&mut dice, 60);
        assert_eq!(tolerated(&town.map), Some(1), "a move costs nothing");
        town.wait(200);
    }
    assert_eq!(town.moving_most, 1);
    town.settle();
    town.check_at_rest();
    let load = |map: &ClusterMap| {
        let mut buckets: BTreeMap<NodeId, usize> = map.nodes.keys().map(|n| (*n, 0)).collect();
        for (_, x) in map.groups.values().flat_map(|group| group.listed()) {
            *buckets.get_mut(&x.id.node).expect("a node") += 1;
        }
        buckets
    };
    assert_eq!(load(&before).values().min(), Some(&0));
    let after = load(&town.map);
    assert!(
        after.values().all(|n| (13..=19).contains(n)),
        "16 each: {after:?}"
    );
    // And there it stays.
    let revision = town.map.revision;
    town.settle();
    assert_eq!(town.map.revision, revision);
}

/// Rows X2 and D6: a node that joins gets its share, of copies and of data buckets; what a
/// group bears never falls meanwhile, and only so many move at a time.
#[test]
fn a_joined_node_gets_its_fair_share_and_nothing_is_risked() {
    let mut town = settled(4, "1+2", 64);
    town.change(&node_up(None));
    town.moving_most = 0;
    let mut dice = Dice(5);
    for _ in 0..2000 {
        town.keep(&[]);
        town.work(&mut dice, 30);
        town.wait(25);
        for group in town.map.groups.values() {
            let bears = group.tolerates(|id| town.map.runs(id));
            assert!(bears >= Some(2), "{group:?}");
        }
    }
    town.check_at_rest();
    assert!(town.moving_most <= 16, "{}", town.moving_most);
    let share = town.firsts()[&NodeId(5)];
    assert!((6..=17).contains(&share), "{share} of 64 data buckets");
}

/// Row X3: the number of copies is changed while running, up and down.
#[test]
fn copies_are_raised_and_lowered() {
    let mut town = settled(4, "1+2", 32);
    for (scheme, width) in [("1+0", 1), ("1+3", 4), ("1+1", 2), ("1+8", 4), ("1+2", 3)] {
        town.set_scheme(scheme);
        town.settle();
        town.check_at_rest();
        assert!(
            town.map.groups.values().all(|g| g.members.len() == width),
            "{scheme}"
        );
    }
}

/// Row H10: k raised and lowered with m > 1. The new parity buckets come together, so that one pass over the
/// data makes them all.
#[test]
fn parity_is_raised_at_once_and_lowered() {
    let mut town = settled(8, "4+1", 4);
    town.set_scheme("4+3");
    let said = town.keep(&[]);
    for new in epochs_of(&said) {
        assert_eq!(new.members.iter().flatten().count(), 7, "{new:?}");
    }
    assert_eq!(epochs_of(&said).len(), 4);
    town.settle();
    town.check_at_rest();
    town.set_scheme("4+0");
    town.settle();
    town.check_at_rest();
}

/// Regression: a node that had no memory for a bucket was not asked again for half a minute and more, though the
/// pool had been given more meanwhile.
#[test]
fn a_raised_budget_takes_effect_within_a_second() {
    let mut town = coded(4, "2+1", 1);
    let before = town.map.groups[&GroupId(1)].clone();
    let dead = before.members[0].expect("a data bucket").id.node;
    town.change(&node_down(&town.map.clone(), dead.0));
    // Who is to take its place cannot, again and again.
    let mut asked = 0;
    for _ in 0..8_000 {
        let said = town.keep(&[]);
        asked += epochs_of(&said).len();
        let group = town.map.groups[&GroupId(1)].clone();
        let joins = group.listed().find(|(_, x)| !x.complete);
        if let (false, Some((slot, _))) = (group.open, joins) {
            let coordinator = group.member(group.coordinator).expect("listed").id.node;
            let report = stuck(&town, 1, &[slot.0], coordinator);
            town.keep(&[report]);
        }
        town.work(&mut Dice(1), 100);
        town.wait(25);
    }
    assert!((3..60).contains(&asked), "rarely: {asked}");
    town.change(&Change::SetPool {
        name: "cache".into(),
        scheme: None,
        node_budget_bytes: Some(1 << 30),
    });
    for _ in 0..50 {
        town.keep(&[]);
        town.work(&mut Dice(1), 100);
        town.wait(25);
    }
    let group = &town.map.groups[&GroupId(1)];
    assert_eq!(group.tolerates(|_| true), Some(1), "{group:?}");
    assert!(group.members.iter().flatten().all(|x| x.complete));
}

/// The places for moves go to what is more to be done: what lies on a draining node goes on before the ring's shares are dealt anew, in
/// whatever order the groups come.
#[test]
fn what_a_draining_node_holds_goes_before_what_balance_moves() {
    let mut town = settled(4, "1+1", 64);
    town.planner.config.moves_at_once = 4;
    town.change(&node_up(None));
    let (mut dice, mut moved) = (Dice(1), BTreeSet::new());
    // The groups that begin to move, each once: its further steps are no new beginnings.
    let mut begin = |town: &mut TestCluster| -> Vec<GroupId> {
        let said = town.keep(&[]);
        let epochs = epochs_of(&said);
        let begun = epochs.iter().map(|new| new.group);
        let begun = begun.filter(|id| moved.insert(*id)).collect();
        town.work(&mut dice, 100);
        town.wait(25);
        begun
    };
    while begin(&mut town).is_empty() {}
    town.change(&set_drain(1, true));
    let on = |group: &Group, node: u64| group.listed().any(|(_, x)| x.id.node == NodeId(node));
    let groups = town.map.groups.values();
    let mut waiting: BTreeSet<GroupId> = groups
        .filter(|group| on(group, 1))
        .map(|group| group.id)
        .collect();
    let held = waiting.clone();
    assert!((8..56).contains(&held.len()), "{held:?}");
    let mut others = 0;
    for step in 0..400 {
        let begun = begin(&mut town);
        waiting.retain(|group| !begun.contains(group) && on(&town.map.groups[group], 1));
        let beside = begun.iter().filter(|group| !held.contains(group)).count();
        let is_first = waiting.is_empty() || beside == 0;
        assert!(is_first, "{step}: {begun:?} before {waiting:?}");
        others += beside;
    }
    assert!(waiting.is_empty() && others > 0, "the others follow");
    assert!(!town.map.groups.values().any(|group| on(group, 1)));
}
