//! Leases granted, waited out and refused.

use super::*;
use crate::testing::*;

const LEASE: Duration = Duration::from_millis(500);

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn ask(book: &mut Leases, now: u64, map: &ClusterMap, node: u64, epoch: u64) -> bool {
    let wanted = [(GroupId(1), Epoch(epoch))];
    let life = map.nodes[&NodeId(node)].incarnation;
    !book
        .grant(at(now), map, NodeId(node), life, &wanted)
        .is_empty()
}

fn group(map: &ClusterMap) -> &Group {
    &map.groups[&GroupId(1)]
}

/// A group on nodes 1, 2 and 3, and a directory leader of old.
fn settled() -> (ClusterMap, Leases) {
    let mut map = cluster_with_pool(4, "1+2", 2);
    start(&mut map, &[1, 2, 3]);
    let mut book = Leases::new(LEASE);
    book.become_leader(at(0));
    (map, book)
}

/// A node that holds two data buckets of a group asks once for both: it gets both leases, or none; and both are
/// waited out.
#[test]
fn a_node_with_two_data_buckets_gets_leases_for_both_or_none() {
    let second = crate::testing::second(1);
    let mut map = cluster(4);
    map.apply(None, &create_pool("kept", "2+1", 1, false))
        .expect("new");
    start(&mut map, &[1, second, 2]);
    let mut book = Leases::new(LEASE);
    book.become_leader(at(0));
    assert!(ask(&mut book, 1000, &map, 1, 1));
    assert_eq!(book.until.len(), 2);
    let stays = next_epoch(
        &map,
        1,
        &[(1, Some(0)), (second, Some(1)), (2, Some(2)), (3, None)],
    );
    commit(&mut map, stays).expect("well formed");
    assert!(book.may_open(at(1001), group(&map)), "both are retained");
    assert!(ask(&mut book, 1001, &map, 1, 1));

    let without = next_epoch(&map, 1, &[(1, Some(0)), (3, None), (2, Some(2))]);
    commit(&mut map, without).expect("well formed");
    assert!(
        !ask(&mut book, 1002, &map, 1, 1),
        "one of them is succeeded"
    );
    assert!(!book.may_open(at(1500), group(&map)), "its lease runs");
    assert!(book.may_open(at(1501), group(&map)));
}

#[test]
fn only_the_data_bucket_of_the_last_open_epoch_gets_a_lease() {
    let (mut map, mut book) = settled();
    assert!(ask(&mut book, 1000, &map, 1, 1));
    assert!(!ask(&mut book, 1000, &map, 2, 1), "a copy");
    assert!(!ask(&mut book, 1000, &map, 4, 1), "a stranger");
    assert!(
        !ask(&mut book, 1000, &map, 1, 2),
        "an epoch that is not open"
    );
    assert!(!ask(&mut book, 1000, &map, 1, 0), "no epoch");
    let before = [(GroupId(2), Epoch(0)), (GroupId(99), Epoch(1))];
    assert!(
        book.grant(at(1000), &map, NodeId(1), Incarnation(1), &before)
            .is_empty()
    );

    // A successor under way that keeps the data bucket in place does not stop it, another does.
    let stays = next_epoch(&map, 1, &[(1, Some(0)), (2, Some(1))]);
    commit(&mut map, stays).expect("well formed");
    assert!(ask(&mut book, 1001, &map, 1, 1));
    assert!(!ask(&mut book, 1001, &map, 1, 2), "committed is not open");
    let moved = next_epoch(&map, 1, &[(2, Some(1)), (1, Some(0))]);
    commit(&mut map, moved).expect("well formed");
    assert!(!ask(&mut book, 1002, &map, 1, 1), "it is to be a copy");
    assert!(!ask(&mut book, 1002, &map, 2, 1), "not yet");

    map.apply(None, &node_down(&map, 1)).expect("up");
    assert!(!ask(&mut book, 1003, &map, 1, 1), "declared dead");
}

/// GROUP rule 11: the directory first waits out every other holder's lease.
#[test]
fn an_epoch_opens_when_every_other_holders_lease_ran_out() {
    let (mut map, mut book) = settled();
    assert!(ask(&mut book, 1000, &map, 1, 1));
    let stays = next_epoch(&map, 1, &[(1, Some(0)), (2, Some(1))]);
    commit(&mut map, stays).expect("well formed");
    assert!(
        book.may_open(at(1000), group(&map)),
        "the holder stays in place"
    );
    let promoted = next_epoch(&map, 1, &[(2, Some(1)), (3, Some(2))]);
    commit(&mut map, promoted).expect("well formed");
    assert!(!book.may_open(at(1499), group(&map)));
    assert_eq!(book.opens_at(group(&map)), Some(at(1500)));
    assert!(book.may_open(at(1500), group(&map)));

    // Another life of the same node is another holder.
    assert!(!ask(&mut book, 1200, &map, 1, 1));
    map.apply(None, &node_up(Some(1))).expect("known");
    let joiner = next_epoch(&map, 1, &[(2, Some(1)), (1, None)]);
    commit(&mut map, joiner).expect("well formed");
    assert!(!book.may_open(at(1499), group(&map)));
}

/// A retained member has sealed before its leader asks to open, and so has released its lease.
#[test]
fn a_holder_that_becomes_a_copy_is_not_waited_for() {
    let (mut map, mut book) = settled();
    assert!(ask(&mut book, 1000, &map, 1, 1));
    let switched = next_epoch(&map, 1, &[(2, Some(1)), (1, Some(0))]);
    commit(&mut map, switched).expect("well formed");
    assert!(book.may_open(at(1001), group(&map)));
}

/// A new leader knows nothing of its forerunner's leases, and waits for the longest that there can be.
#[test]
fn a_new_directory_leader_waits_one_lease() {
    let (mut map, mut book) = settled();
    let stays = next_epoch(&map, 1, &[(1, Some(0)), (2, Some(1))]);
    commit(&mut map, stays).expect("well formed");
    assert!(!book.may_open(at(499), group(&map)));
    assert!(ask(&mut book, 100, &map, 1, 1), "leases need not wait");
    assert!(book.may_open(at(500), group(&map)));
    book.lose_leadership();
    assert!(!ask(&mut book, 2000, &map, 1, 1));
    assert!(!book.may_open(at(2000), group(&map)));
    book.become_leader(at(3000));
    assert!(!book.may_open(at(3499), group(&map)));
    assert!(book.may_open(at(3500), group(&map)));
}

#[test]
fn the_book_stays_small() {
    let (mut map, mut book) = settled();
    for life in 0..1000 {
        let now = 1000 + life * 400;
        let inc = map.nodes[&NodeId(1)].incarnation;
        let mut moved = group(&map).clone();
        for members in [&mut moved.members, &mut moved.last_open.members] {
            members[0].as_mut().expect("listed").id.incarnation = inc;
        }
        map.groups.insert(GroupId(1), moved);
        assert!(ask(&mut book, now, &map, 1, 1));
        map.apply(None, &node_up(Some(1))).expect("known");
    }
    assert!(book.until.len() <= 4, "{}", book.until.len());
}

/// GROUP rule 13: the answers that count as contact with the directory.
#[test]
fn only_members_of_a_group_that_can_go_on_hear_the_directory() {
    let mut map = cluster(3);
    map.apply(None, &create_pool("cache", "1+1", 1, true))
        .expect("new");
    start(&mut map, &[1, 2]);
    let life = |map: &ClusterMap, n| map.nodes[&NodeId(n)].incarnation;
    let heard = |map: &ClusterMap, n| {
        let group = &map.groups[&GroupId(1)];
        heard_from(map, group, NodeId(n), life(map, n))
    };
    let first = map.groups[&GroupId(1)].last_open.epoch;
    assert_eq!([1, 2].map(|n| heard(&map, n)), [Some(first); 2]);
    map.apply(None, &node_down(&map, 1)).expect("up");
    assert_eq!(heard(&map, 1), None, "declared dead, whoever it may reach");
    assert_eq!(heard(&map, 2), Some(first), "enough are left");
    map.apply(None, &node_down(&map, 2)).expect("up");
    let anew = crate::change::NewEpoch {
        fresh: true,
        ..next_epoch(&map, 1, &[(3, None)])
    };
    let epoch = anew.epoch.0;
    commit(&mut map, anew).expect("all are gone");
    let back = crate::change::Change::NodeBack {
        node: NodeId(1),
        incarnation: life(&map, 1),
    };
    map.apply(None, &back).expect("it lives");
    assert_eq!(heard(&map, 1), None, "the group is about to begin anew");
    open(&mut map, 1, epoch).expect("the newest");
    let anew = Some(Epoch(epoch));
    assert_eq!([1, 3].map(|n| heard(&map, n)), [anew; 2]);
    assert!(anew > Some(first), "who is of the life before has not");
}
