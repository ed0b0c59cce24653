//! Plans for maps in every kind of trouble.

use super::*;
use crate::change::{Outcome, Refusal};
use crate::scheme::Scheme;
use crate::testing::*;

/// A cluster in which epochs open and joiners complete as the test lets them.
struct Town {
    map: ClusterMap,
    keeper: Keeper,
    now: Time,
    /// Most groups seen in change by moves at one time.
    moving_most: usize,
}

impl Town {
    fn of(map: ClusterMap) -> Town {
        let keeper = Keeper::new(KeeperConfig::default());
        Town {
            map,
            keeper,
            now: Time::from_millis(1000),
            moving_most: 0,
        }
    }

    fn change(&mut self, change: &Change) -> Outcome {
        self.map
            .apply(None, change)
            .expect("the test knows that it may")
    }

    fn wait(&mut self, ms: u64) {
        self.now = self.now + Duration::from_millis(ms);
    }

    /// One look of the keeper. What it proposes on the present map is never refused.
    fn keep(&mut self, stuck: &[StuckReport]) -> Vec<Change> {
        let proposed = self.keeper.step(self.now, &self.map, stuck);
        for (revision, change) in &proposed {
            if let Err(refusal) = self.map.apply(Some(*revision), change) {
                panic!("{refusal}\n{change:?}");
            }
        }
        let changing = self
            .map
            .groups
            .values()
            .filter(|g| in_change_now(&self.map, g))
            .count();
        self.moving_most = self.moving_most.max(changing);
        proposed.into_iter().map(|(_, change)| change).collect()
    }

    fn runs(&self, group: &Group) -> bool {
        group
            .listed()
            .all(|(_, x)| self.map.is_up(x.node, x.incarnation))
    }

    /// Leaders open, and joiners complete, each with the given chance in percent.
    fn work(&mut self, dice: &mut Dice, percent: u64) {
        let able = self
            .map
            .groups
            .values()
            .filter(|g| g.epoch > Epoch(0) && self.runs(g));
        let able: Vec<Group> = able.cloned().collect();
        for group in able {
            if dice.below(100) >= percent {
                continue;
            }
            if !group.open {
                self.change(&Change::Open {
                    group: group.id,
                    epoch: group.epoch,
                });
                continue;
            }
            for (slot, member) in group.listed().filter(|(_, x)| !x.complete) {
                if dice.below(100) >= percent {
                    continue;
                }
                let incarnation = member.incarnation;
                let epoch = group.epoch;
                self.change(&Change::Complete {
                    group: group.id,
                    epoch,
                    slot,
                    incarnation,
                });
            }
        }
    }

    /// Lets everything go well until the keeper has nothing more to say.
    fn settle(&mut self) {
        let mut dice = Dice(1);
        let mut idle = 0;
        for _ in 0..5_000 {
            let said = self.keep(&[]);
            self.work(&mut dice, 100);
            idle = if said.is_empty() { idle + 1 } else { 0 };
            // Long enough for a start from nothing, and for who was stuck to be tried again.
            self.wait(if idle < 20 { 25 } else { 5_000 });
            if idle > 150 {
                return;
            }
        }
        panic!("it does not come to rest: {:?}", self.keep(&[]));
    }

    /// What must be so when nothing has gone wrong for long.
    fn check_at_rest(&self) {
        let ring = Ring::of(&self.map);
        for pool in self.map.pools.values() {
            let plan = ring.plan(pool);
            for (id, plan) in pool.groups.iter().zip(plan) {
                let group = &self.map.groups[id];
                if group.lost || plan.len() < usize::from(group.m) {
                    continue;
                }
                assert!(group.open && self.runs(group), "{group:?}");
                assert!(
                    group.members.iter().flatten().all(|x| x.complete),
                    "{group:?}"
                );
                let nodes: Vec<NodeId> = group.listed().map(|(_, x)| x.node).collect();
                let as_set = |nodes: &[NodeId]| nodes.iter().copied().collect::<BTreeSet<_>>();
                if group.m == 1 {
                    assert_eq!(nodes[0], plan[0], "the ring's first serves: {group:?}");
                    assert_eq!(as_set(&nodes), as_set(&plan), "{group:?}");
                } else {
                    assert!(
                        group.members[..usize::from(group.m)]
                            .iter()
                            .all(Option::is_some)
                    );
                    assert!(nodes.len() <= pool.scheme.width());
                    let free = ring.nodes().any(|n| !nodes.iter().any(|x| x.home() == n));
                    assert!(nodes.len() == pool.scheme.width() || !free, "{group:?}");
                    let doubled = group.listed().any(|(_, x)| group.is_doubled(x));
                    assert!(!doubled || !free, "{group:?}");
                    let draining = nodes.iter().any(|n| self.map.nodes[&n.home()].draining);
                    assert!(
                        !draining || !free || nodes.len() == usize::from(group.m),
                        "{group:?}"
                    );
                    assert_eq!(as_set(&nodes).len(), nodes.len(), "{group:?}");
                    // No twin is left beside its original.
                    let own = |(slot, _): (MemberSlot, &Member)| group.bucket_slot(slot) == slot;
                    assert!(group.listed().all(own), "{group:?}");
                    let bears = group.tolerates(|n, i| self.map.is_up(n, i));
                    let spare = nodes.len() - usize::from(group.m);
                    assert!(doubled || bears == Some(spare as u8), "{group:?}");
                }
            }
        }
    }

    fn set_scheme(&mut self, scheme: &str) {
        let scheme = scheme.parse::<Scheme>().expect("a scheme");
        let name = "cache".into();
        self.change(&Change::SetPool {
            name,
            scheme: Some(scheme),
            node_budget_bytes: None,
        });
    }

    fn firsts(&self) -> BTreeMap<NodeId, usize> {
        let mut count = BTreeMap::new();
        for group in self.map.groups.values() {
            *count
                .entry(group.members[0].expect("data slots are listed").node)
                .or_insert(0) += 1;
        }
        count
    }
}

fn settled(nodes: u64, scheme: &str, buckets: u32) -> Town {
    let mut town = Town::of(cluster_with_pool(nodes, scheme, buckets));
    town.settle();
    town.check_at_rest();
    town
}

fn epochs_of(changes: &[Change]) -> Vec<&NewEpoch> {
    let epochs = changes.iter().filter_map(|c| match c {
        Change::CommitEpochs(new) => Some(new),
        _ => None,
    });
    epochs.flatten().collect()
}

#[test]
fn a_new_pool_starts_on_the_ring_in_one_proposal() {
    let mut town = Town::of(cluster_with_pool(5, "1+2", 64));
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
    let mut town = Town::of(cluster_with_pool(3, "1+1", 1024));
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
    let drain = |node| Change::Drain {
        node: NodeId(node),
        on: true,
    };
    town.change(&drain(1));
    let opens = |town: &mut Town| {
        let new: Vec<Group> = town
            .map
            .groups
            .values()
            .filter(|g| !g.open)
            .cloned()
            .collect();
        for Group { id, epoch, .. } in new {
            town.change(&Change::Open { group: id, epoch });
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
    let most = KeeperConfig::default().moves_at_once;
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
        let bears = |group: &Group| group.tolerates(|n, i| map.is_up(n, i));
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
            *buckets.get_mut(&x.node).expect("a node") += 1;
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
        let first = old.members.iter().flatten().find(|x| x.node != NodeId(3));
        assert_eq!(new.members[0].map(|x| x.0), first.map(|x| x.node));
        assert_eq!(new.members.len(), 3, "a joiner for the dead one");
        assert_eq!(new.kept.iter().flatten().count(), 2);
        assert_eq!(new.leader, MemberSlot(0));
    }
    town.settle();
    town.check_at_rest();
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
            let bears = group.tolerates(|n, i| town.map.is_up(n, i));
            assert!(bears >= Some(2), "{group:?}");
        }
    }
    town.check_at_rest();
    assert!(town.moving_most <= 16, "{}", town.moving_most);
    let share = town.firsts()[&NodeId(5)];
    assert!((6..=17).contains(&share), "{share} of 64 data buckets");
}

/// Row X5: a drained node gives everything up, before other moves, and takes it again when resumed.
#[test]
fn a_drained_node_is_emptied() {
    let mut town = settled(5, "1+1", 64);
    let before = town.map.clone();
    town.change(&Change::Drain {
        node: NodeId(2),
        on: true,
    });
    town.settle();
    town.check_at_rest();
    assert!(town.map.groups.values().all(|g| !g.names(NodeId(2))));
    town.change(&Change::Drain {
        node: NodeId(2),
        on: false,
    });
    town.settle();
    town.check_at_rest();
    let members = |map: &ClusterMap| -> Vec<BTreeSet<NodeId>> {
        let of = |g: &Group| g.listed().map(|(_, x)| x.node).collect();
        map.groups.values().map(of).collect()
    };
    assert_eq!(members(&town.map), members(&before), "as it was");
    // With no other node to go to, the buckets stay.
    let mut town = settled(1, "1+1", 4);
    town.change(&Change::Drain {
        node: NodeId(1),
        on: true,
    });
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
    town.change(&Change::Drain {
        node: NodeId(1),
        on: true,
    });
    let said = town.keep(&[]);
    let new = epochs_of(&said);
    assert_eq!(new.len(), 16);
    assert!(
        new.iter()
            .all(|n| n.members.iter().flatten().any(|x| x.0 == NodeId(1)))
    );
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

#[test]
fn an_epoch_that_does_not_open_is_tried_again_with_another_leader_then_with_survivors_alone() {
    let mut town = settled(5, "1+2", 1);
    let dead = town.map.groups[&GroupId(1)].members[0]
        .expect("listed")
        .node;
    town.change(&node_down(&town.map, dead.0));
    let mut tries = Vec::new();
    for _ in 0..400 {
        for new in epochs_of(&town.keep(&[])) {
            let leader = new.members[new.leader.index()].expect("listed").0;
            tries.push((town.now, leader, new.members.len()));
        }
        town.wait(25);
    }
    assert_ne!(tries[0].1, tries[1].1, "another leader");
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

/// As many nodes as the scheme has members, and k with data buckets die together: others take these at once, beside
/// what they hold. Then parity too, for the group bears one more loss with it. As nodes come, all is on nodes of its own.
#[test]
fn a_data_bucket_without_a_node_goes_beside_another() {
    let mut town = coded(6, "4+2", 1);
    let group = |town: &Town| town.map.groups[&GroupId(1)].clone();
    let bears = |town: &Town| group(town).tolerates(|n, i| town.map.is_up(n, i));
    let shadows = |town: &Town| {
        let group = group(town);
        group.listed().filter(|(_, x)| x.node.is_shadow()).count()
    };
    for slot in [0, 1] {
        let data = group(&town).members[slot].expect("a data bucket");
        town.change(&node_down(&town.map, data.node.0));
    }
    let said = town.keep(&[]);
    let new = epochs_of(&said)[0];
    assert!(new.members[..4].iter().all(Option::is_some), "{new:?}");
    assert_eq!((shadows(&town), bears(&town)), (2, Some(0)));
    let left: BTreeSet<NodeId> = group(&town).listed().map(|(_, x)| x.node.home()).collect();
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
        dead.expect("two are doubled").node.home().0,
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
        assert_eq!((shadows(&town), bears(&town)), (6 - nodes, Some(borne)));
    }
}

/// No node has room for a second member: a parity bucket gives its place up, once the group was calm for a
/// while, for two that fail together are not found dead together.
#[test]
fn a_data_bucket_that_nobody_has_room_for_takes_the_place_of_parity() {
    let mut town = coded(6, "4+2", 1);
    let group = |town: &Town| town.map.groups[&GroupId(1)].clone();
    let data = group(&town).members[1].expect("a data bucket");
    let last = group(&town).members[5].expect("a parity bucket");
    town.change(&node_down(&town.map, data.node.0));
    let (mut tried, mut waited) = (0, 0);
    while group(&town).members[1].map(|x| x.node) != Some(last.node) {
        let now = group(&town);
        let shadow = now.members[1].filter(|x| x.node.is_shadow());
        let report =
            shadow.map(|_| stuck(&town, 1, &[1], now.member(now.leader).expect("listed").node));
        tried += usize::from(report.is_some());
        let given_up = now.members.get(5).is_none_or(Option::is_none);
        waited += usize::from(now.open && !given_up);
        town.keep(&Vec::from_iter(report));
        if group(&town).members[1].is_none_or(|x| !x.node.is_shadow()) {
            town.work(&mut Dice(1), 100);
        }
        town.wait(25);
        assert!(tried + waited < 4000, "{now:?}");
    }
    assert!((2..200).contains(&tried), "{tried}");
    assert!(waited >= 200, "calm for 5 s");
    town.settle();
    let bears = |town: &Town| group(town).tolerates(|n, i| town.map.is_up(n, i));
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

fn coded(nodes: u64, scheme: &str, groups: u32) -> Town {
    let mut town = Town::of(cluster(nodes));
    town.change(&create_pool("cache", scheme, groups, false));
    town.settle();
    town.check_at_rest();
    town
}

fn drain(town: &mut Town, node: u64, on: bool) {
    let node = NodeId(node);
    town.change(&Change::Drain { node, on });
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
                let bears = group.tolerates(|n, i| town.map.is_up(n, i));
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
    let epochs = |town: &Town| {
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
    let group = |town: &Town| town.map.groups[&GroupId(1)].clone();
    let of = |slot: usize| group(&town).members[slot].expect("listed").node.0;
    let (moves, dies) = (of(0), of(2));
    drain(&mut town, moves, true);
    town.keep(&[]);
    town.wait(3_000);
    town.keep(&[]);
    assert!(group(&town).members.len() > 3, "one stands beside it");
    town.change(&node_down(&town.map.clone(), dies));
    town.settle();
    let nodes: Vec<u64> = group(&town).listed().map(|(_, x)| x.node.0).collect();
    assert!(nodes.len() == 3 && nodes.contains(&moves), "{nodes:?}");
    assert_eq!(group(&town).tolerates(|_, _| true), Some(1));
}

/// Regression: a node that had no memory for a bucket was not asked again for half a minute and more, though the
/// pool had been given more meanwhile.
#[test]
fn a_raised_budget_takes_effect_within_a_second() {
    let mut town = coded(4, "2+1", 1);
    let before = town.map.groups[&GroupId(1)].clone();
    let dead = before.members[0].expect("a data bucket").node;
    town.change(&node_down(&town.map.clone(), dead.0));
    // Who is to take its place cannot, again and again.
    let mut asked = 0;
    for _ in 0..8_000 {
        let said = town.keep(&[]);
        asked += epochs_of(&said).len();
        let group = town.map.groups[&GroupId(1)].clone();
        let joins = group.listed().find(|(_, x)| !x.complete);
        if let (false, Some((slot, _))) = (group.open, joins) {
            let leader = group.member(group.leader).expect("listed").node;
            let report = stuck(&town, 1, &[slot.0], leader);
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
    assert_eq!(group.tolerates(|_, _| true), Some(1), "{group:?}");
    assert!(group.members.iter().flatten().all(|x| x.complete));
}

fn stuck(town: &Town, group: u32, slots: &[u8], reporter: NodeId) -> StuckReport {
    let epoch = town.map.groups[&GroupId(group)].epoch;
    let slots = slots.iter().map(|s| MemberSlot(*s)).collect();
    StuckReport {
        group: GroupId(group),
        epoch,
        slots,
        reporter,
    }
}

#[test]
fn stuck_members_are_left_out_and_not_called_again_for_a_while() {
    let mut town = settled(5, "1+2", 1);
    let group = town.map.groups[&GroupId(1)].clone();
    let node = |s: usize| group.members[s].expect("listed").node;
    let report = stuck(&town, 1, &[2], node(1));
    assert!(
        town.keep(&[report]).is_empty(),
        "a copy is not entitled to say so"
    );
    let report = stuck(&town, 1, &[2], node(0));
    let said = town.keep(&[report]);
    let new = epochs_of(&said)[0];
    assert_eq!(new.members[0].map(|x| x.0), Some(node(0)));
    assert!(!new.members.iter().flatten().any(|x| x.0 == node(2)));
    assert_eq!(new.members.len(), 3, "another joins for it");
    let mut dice = Dice(1);
    for _ in 0..400 {
        town.keep(&[]);
        town.work(&mut dice, 100);
        town.wait(25);
        assert!(
            town.map.groups[&GroupId(1)]
                .slot_of(node(2), Incarnation(node(2).0))
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

/// As many nodes as members: who had a slow moment is needed again when another dies.
#[test]
fn who_had_a_slow_moment_stands_in_where_nobody_else_can() {
    let mut town = settled(6, "4+2", 1);
    let group = town.map.groups[&GroupId(1)].clone();
    let member = |s: usize| group.members[s].expect("listed");
    let report = stuck(&town, 1, &[4], member(0).node);
    assert_eq!(epochs_of(&town.keep(&[report])).len(), 1);
    town.work(&mut Dice(1), 100);
    let (node, incarnation) = (member(1).node, member(1).incarnation);
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

/// A leader that reaches nobody is itself the odd one: the others are not thrown out at its word.
#[test]
fn who_finds_all_others_stuck_loses_the_lead() {
    let mut town = settled(3, "1+2", 1);
    let node = |town: &Town, s: usize| {
        town.map.groups[&GroupId(1)].members[s]
            .expect("listed")
            .node
    };
    let cut_off = node(&town, 0);
    let said = town.keep(&[stuck(&town, 1, &[1, 2], cut_off)]);
    let new = epochs_of(&said)[0].clone();
    assert_eq!(new.members.iter().flatten().count(), 3);
    let leader = new.members[new.leader.index()].expect("listed").0;
    assert_ne!(leader, cut_off);
    let said = town.keep(&[stuck(&town, 1, &[0], leader)]);
    let new = epochs_of(&said)[0];
    assert_eq!(new.members.len(), 2);
    assert!(!new.members.iter().flatten().any(|x| x.0 == cut_off));
    assert_eq!(
        new.members[new.leader.index()].expect("listed").0,
        leader,
        "it is at work"
    );
}

/// DESIGN section 9: more than k lost. A cache starts empty after T; other pools say so.
#[test]
fn when_all_is_lost_a_cache_starts_empty_and_others_say_lost() {
    for may in [true, false] {
        let mut map = cluster(4);
        map.apply(None, &create_pool("cache", "1+1", 1, may))
            .expect("new");
        let mut town = Town::of(map);
        town.settle();
        let group = town.map.groups[&GroupId(1)].clone();
        for (_, x) in group.listed() {
            town.change(&Change::NodeDown {
                node: x.node,
                incarnation: x.incarnation,
            });
        }
        let said = town.keep(&[]);
        if !may {
            assert_eq!(
                said,
                vec![Change::MarkLost {
                    groups: vec![GroupId(1)]
                }]
            );
            town.settle();
            assert!(town.map.groups[&GroupId(1)].lost);
            // They were only cut off: what was thought lost is found again.
            for (_, x) in group.listed() {
                town.change(&Change::NodeBack {
                    node: x.node,
                    incarnation: x.incarnation,
                });
            }
            town.settle();
            assert!(!town.map.groups[&GroupId(1)].lost);
            town.check_at_rest();
            continue;
        }
        assert!(said.is_empty(), "they may live on and answer for T");
        town.wait(START_EMPTY_AFTER.as_millis() as u64 - 1);
        assert!(town.keep(&[]).is_empty());
        town.wait(1);
        assert!(epochs_of(&town.keep(&[]))[0].fresh);
        town.settle();
        town.check_at_rest();
    }
}

#[test]
fn a_cache_whose_processes_all_started_anew_need_not_wait() {
    let mut town = settled(1, "1+0", 4);
    town.change(&node_up(Some(1)));
    let said = town.keep(&[]);
    assert!(epochs_of(&said).iter().all(|n| n.fresh) && epochs_of(&said).len() == 4);
}

/// The folder was copied, and started elsewhere while the first process was cut off: that one may answer
/// for its buckets as long as it may go unheard.
#[test]
fn a_cache_whose_process_started_anew_elsewhere_waits_for_the_former() {
    let mut town = settled(1, "1+0", 4);
    town.change(&node_up(Some(1)));
    town.map.nodes.get_mut(&NodeId(1)).expect("it").native = "elsewhere:1600".into();
    assert!(town.keep(&[]).is_empty());
    town.wait(START_EMPTY_AFTER.as_millis() as u64 - 1);
    // At the new address it has started anew since; the first process is not there.
    let mut there = town.map.nodes[&NodeId(1)].clone();
    there.incarnation = town.map.next_incarnation;
    town.map.next_incarnation.0 += 1;
    town.map.nodes.insert(NodeId(1), there);
    assert!(town.keep(&[]).is_empty());
    town.wait(1);
    assert_eq!(epochs_of(&town.keep(&[])).len(), 4);
}

/// Who comes to lead does not know when the members were last heard, nor whether a life that it has not
/// seen had the same address.
#[test]
fn a_new_leader_waits_the_whole_time_before_a_group_starts_empty() {
    let mut town = settled(1, "1+0", 4);
    let (node, incarnation) = (NodeId(1), town.map.nodes[&NodeId(1)].incarnation);
    town.change(&Change::NodeDown { node, incarnation });
    assert!(town.keep(&[]).is_empty());
    town.wait(START_EMPTY_AFTER.as_millis() as u64 - 1);
    assert!(town.keep(&[]).is_empty());
    town.change(&node_up(Some(1)));
    town.keeper = Keeper::new(KeeperConfig::default());
    assert!(town.keep(&[]).is_empty());
    town.wait(START_EMPTY_AFTER.as_millis() as u64 - 1);
    assert!(town.keep(&[]).is_empty());
    town.wait(1);
    assert_eq!(epochs_of(&town.keep(&[])).len(), 4);
}

/// It was taken for dead, was back, was answered, and is taken for dead again: it may go on unheard from
/// then, not from the first time.
#[test]
fn a_node_that_was_back_for_a_moment_is_waited_for_anew() {
    let mut town = settled(2, "1+0", 1);
    let group = town.map.groups[&GroupId(1)].clone();
    let (_, x) = group.listed().next().expect("one");
    let (node, incarnation) = (x.node, x.incarnation);
    town.change(&Change::NodeDown { node, incarnation });
    assert!(town.keep(&[]).is_empty());
    town.wait(START_EMPTY_AFTER.as_millis() as u64 - 1);
    town.change(&Change::NodeBack { node, incarnation });
    town.keeper.look(town.now, &town.map);
    town.change(&Change::NodeDown { node, incarnation });
    town.wait(2);
    assert!(town.keep(&[]).is_empty(), "it was heard a moment ago");
    town.wait(START_EMPTY_AFTER.as_millis() as u64);
    assert_eq!(epochs_of(&town.keep(&[])).len(), 1);
}

#[test]
fn nodes_that_cannot_come_back_are_forgotten() {
    let mut town = settled(3, "1+1", 4);
    let Change::NodeUp {
        id,
        name,
        zone,
        native,
        resp,
        admin,
        memory_bytes,
        ..
    } = node_up(None)
    else {
        unreachable!("it makes that");
    };
    let durable = false;
    town.change(&Change::NodeUp {
        id,
        name,
        zone,
        native,
        resp,
        admin,
        memory_bytes,
        durable,
    });
    town.settle();
    town.change(&node_down(&town.map, 4));
    town.change(&node_down(&town.map, 3));
    town.settle();
    town.wait(60_000);
    town.keep(&[]);
    assert!(!town.map.nodes.contains_key(&NodeId(4)));
    assert!(
        town.map.nodes.contains_key(&NodeId(3)),
        "this one has a data folder"
    );
}

/// Rows D5, D6, X2, X3, X5 together: joins, deaths, returns, drains, changes of k, stuck members, in
/// any order; then it heals, and comes to the ring's placement (I11). No proposal is ever refused.
#[test]
fn from_any_history_it_converges_to_the_ring() {
    for seed in 0..300 {
        let scheme = ["1+0", "1+1", "1+2", "2+1", "2+2"][seed as usize % 5];
        let mut dice = Dice(seed);
        let mut town = Town::of(cluster_with_pool(1 + dice.below(5), scheme, 8));
        for _ in 0..150 {
            let reports = disturb(&mut town, &mut dice, scheme);
            town.keep(&reports);
            town.work(&mut dice, 40);
            town.wait(25 + dice.below(200));
        }
        heal(&mut town);
        town.settle();
        town.check_at_rest();
    }
}

fn disturb(town: &mut Town, dice: &mut Dice, scheme: &str) -> Vec<StuckReport> {
    let all: Vec<NodeId> = town.map.nodes.keys().copied().collect();
    let Some(node) = dice.pick(&all) else {
        return Vec::new();
    };
    let incarnation = town.map.nodes[&node].incarnation;
    match dice.below(30) {
        0 if all.len() < 8 => drop(town.change(&node_up(None))),
        1 => drop(town.change(&node_up(Some(node.0)))),
        2 | 3 => drop(town.change(&Change::NodeDown { node, incarnation })),
        4..=6 => drop(town.change(&Change::NodeBack { node, incarnation })),
        7 => drop(town.change(&Change::Drain {
            node,
            on: dice.below(3) == 0,
        })),
        8 => town.set_scheme(&format!("{}+{}", &scheme[..1], dice.below(4))),
        9 | 10 => {
            let group = &town.map.groups[&GroupId(1 + dice.below(8) as u32)];
            let leader = group.member(group.leader).map_or(node, |x| x.node);
            let slots: Vec<u8> = (0..5).filter(|_| dice.below(2) == 0).collect();
            return vec![stuck(town, group.id.0, &slots, leader)];
        }
        11 => town.keeper = Keeper::new(KeeperConfig::default()),
        _ => {}
    }
    Vec::new()
}

fn heal(town: &mut Town) {
    let all: Vec<NodeId> = town.map.nodes.keys().copied().collect();
    for node in all {
        let incarnation = town.map.nodes[&node].incarnation;
        town.change(&Change::NodeBack { node, incarnation });
    }
}

/// A proposal that comes late is refused whole and made anew; nothing is stuck by it.
#[test]
fn late_proposals_are_refused_and_made_anew() {
    let mut town = settled(5, "1+2", 8);
    town.change(&node_down(&town.map, 1));
    let late = town.keeper.step(town.now, &town.map, &[]);
    town.change(&node_down(&town.map, 2));
    for (revision, change) in &late {
        let refusal = town
            .map
            .apply(Some(*revision), change)
            .expect_err("2 is down as well");
        assert!(matches!(refusal, Refusal::MemberNotUp { .. }), "{refusal}");
    }
    assert!(!town.keep(&[]).is_empty(), "the nodes changed: at once");
    town.settle();
    town.check_at_rest();
}

#[cfg(feature = "mutants")]
mod planted {
    use super::*;
    use crate::mutant::{Mutant, plant};

    /// The simulator can only find what the keeper does with the rule off.
    #[test]
    fn a_stuck_source_is_called_in_as_a_joiner() {
        let mut town = settled(3, "1+2", 1);
        let node = |s: usize| {
            town.map.groups[&GroupId(1)].members[s]
                .expect("listed")
                .node
        };
        let (data, copy) = (node(0), node(2));
        plant(Some(Mutant::SourceListedAsJoiner));
        let said = town.keep(&[stuck(&town, 1, &[2], data)]);
        plant(None);
        let new = epochs_of(&said)[0];
        let at = new
            .members
            .iter()
            .position(|x| x.is_some_and(|x| x.0 == copy));
        assert_eq!(new.kept[at.expect("listed again")], None);
    }

    #[test]
    fn an_abandoned_epochs_joiner_is_taken_for_a_source() {
        let mut town = settled(4, "1+2", 1);
        let first = town.map.groups[&GroupId(1)].members[0]
            .expect("listed")
            .node;
        town.change(&node_down(&town.map, first.0));
        town.keep(&[]);
        let joiner = town.map.groups[&GroupId(1)].members[2]
            .expect("listed")
            .node;
        town.wait(1000);
        town.keep(&[]);
        town.wait(1000);
        plant(Some(Mutant::SourcesFromCommitted));
        let said = town.keep(&[]);
        plant(None);
        let new = epochs_of(&said)[0];
        let at = new
            .members
            .iter()
            .position(|x| x.is_some_and(|x| x.0 == joiner));
        assert!(new.kept[at.expect("listed")].is_some());
    }
}
