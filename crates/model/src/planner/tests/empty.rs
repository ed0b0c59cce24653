//! Losses beyond the scheme, and the nodes whose return is waited for.

use super::*;

/// More than k lost. A cache starts empty after T; other pools report the loss.
#[test]
fn when_all_is_lost_a_cache_starts_empty_and_others_say_lost() {
    for may in [true, false] {
        let mut map = cluster(4);
        map.apply(None, &create_pool("cache", "1+1", 1, may))
            .expect("new");
        let mut town = TestCluster::of(map);
        town.settle();
        let group = town.map.groups[&GroupId(1)].clone();
        for (_, x) in group.listed() {
            town.change(&Change::NodeDown {
                node: x.id.node,
                incarnation: x.id.incarnation,
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
                    node: x.id.node,
                    incarnation: x.id.incarnation,
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

/// A region of a thousand groups on nodes without processor time: each takes long to open, for all begin together. Those of the
/// first wave are waited for, and nobody is taken for stuck: on other nodes they would open no sooner.
#[test]
fn groups_that_begin_together_are_waited_for() {
    let mut town = TestCluster::of(cluster_with_pool(4, "1+2", 256));
    let begun = town.keep(&[]);
    assert_eq!(epochs_of(&begun).len(), STARTS_AT_ONCE, "a wave");
    let coordinator = town.map.groups[&GroupId(1)].members[0].expect("placed");
    for _ in 0..29 {
        town.wait(100);
        let report = stuck(&town, 1, &[1, 2], coordinator.id.node);
        assert_eq!(town.keep(&[report]), [], "2.9 s of 3 s");
    }
    // They open at last, but for one, which is alone then and gets other members in the time of one.
    for group in (2..=256).map(GroupId) {
        town.keep(&[]);
        let epoch = town.map.groups[&group].epoch;
        town.change(&Change::step(GroupStep::Open { group, epoch }));
    }
    town.wait(25);
    town.keep(&[]);
    assert!(town.map.groups[&GroupId(1)].epoch > Epoch(1));
}

#[cfg(feature = "mutants")]
#[test]
fn a_planner_that_hurries_starts_is_seen() {
    crate::mutant::plant(Some(Mutant::StartsHurried));
    let seen = std::panic::catch_unwind(groups_that_begin_together_are_waited_for);
    crate::mutant::plant(None);
    assert!(seen.is_err(), "it waits all the same");
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

/// A new leader does not know when the members were last seen, nor whether a life that it has not
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
    town.planner = Planner::new(PlannerConfig::default());
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
    let (node, incarnation) = (x.id.node, x.id.incarnation);
    town.change(&Change::NodeDown { node, incarnation });
    assert!(town.keep(&[]).is_empty());
    town.wait(START_EMPTY_AFTER.as_millis() as u64 - 1);
    town.change(&Change::NodeBack { node, incarnation });
    town.planner.look(town.now, &town.map);
    town.change(&Change::NodeDown { node, incarnation });
    town.wait(2);
    assert!(town.keep(&[]).is_empty(), "it was heard a moment ago");
    town.wait(START_EMPTY_AFTER.as_millis() as u64);
    assert_eq!(epochs_of(&town.keep(&[])).len(), 1);
}

#[test]
fn nodes_that_cannot_come_back_are_forgotten() {
    let mut town = settled(3, "1+1", 4);
    let mut up = node_up(None);
    if let Change::NodeUp { durable, .. } = &mut up {
        *durable = false;
    }
    town.change(&up);
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

/// A cache begins anew, and its new members are taken for dead before the next step of the planner: they may have reached
/// the directory until now, and the time after which others may start empty is theirs.
#[test]
fn who_began_anew_is_waited_for_as_long_as_who_was_before() {
    let mut town = settled(2, "1+0", 1);
    let first = town.map.groups[&GroupId(1)].clone();
    let (_, x) = first.listed().next().expect("one");
    let (node, incarnation) = (x.id.node, x.id.incarnation);
    town.change(&Change::NodeDown { node, incarnation });
    assert!(town.keep(&[]).is_empty());
    town.wait(START_EMPTY_AFTER.as_millis() as u64);
    assert!(epochs_of(&town.keep(&[]))[0].fresh);
    let begun = town.map.groups[&GroupId(1)].clone();
    let (_, x) = begun.listed().next().expect("one");
    let (node, incarnation) = (x.id.node, x.id.incarnation);
    town.change(&Change::step(GroupStep::Open {
        group: begun.id,
        epoch: begun.epoch,
    }));
    town.change(&Change::NodeDown { node, incarnation });
    town.wait(200);
    assert!(town.keep(&[]).is_empty(), "it may live and answer for T");
    town.change(&node_up(Some(
        first.listed().next().expect("one").1.id.node.0,
    )));
    town.wait(START_EMPTY_AFTER.as_millis() as u64 - 1);
    assert!(town.keep(&[]).is_empty());
    town.wait(1);
    assert!(epochs_of(&town.keep(&[]))[0].fresh);
}
