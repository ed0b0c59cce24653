//! Members on disk that come back in a later life: as sources, if their disk has the last open epoch, and only so.

use std::time::Duration;

use super::*;
use crate::lease::Leases;
use crate::map::{Group, Member};
use crate::time::Time;

/// Three nodes and a pool on disk with one group, open in epoch 1 on the first two.
fn on_disk() -> ClusterMap {
    let mut map = in_pool(&create_disk_pool("disk", "1+1"));
    start(&mut map, &[1, 2]);
    map
}

/// Three nodes and a pool with one group.
fn in_pool(pool: &Change) -> ClusterMap {
    let mut map = cluster(3);
    map.apply(None, pool).expect("a new pool");
    let region = Change::CreateRegion {
        pool: "disk".into(),
        name: "r".into(),
        size_bytes: 1 << 16,
    };
    map.apply(None, &region).expect("a new region");
    assert_eq!(map.groups.len(), 1);
    map
}

/// A node starts, and its disk has the group's member as of an epoch.
fn restart(map: &mut ClusterMap, node: u64, epoch: u64) -> MemberId {
    let up = node_up_with(node, &[(1, epoch)]);
    map.apply(None, &up).expect("known");
    MemberId::new(NodeId(node), map.nodes[&NodeId(node)].incarnation)
}

fn group(map: &ClusterMap) -> &Group {
    &map.groups[&GroupId(1)]
}

fn sources_up(map: &ClusterMap) -> usize {
    let sources = group(map).last_open.members.iter().flatten();
    sources.filter(|x| map.runs(x.id)).count()
}

/// A third member joins in epoch 2, which opens, and is not filled yet.
fn with_joiner(map: &mut ClusterMap) -> MemberId {
    let wider = next_epoch(map, 1, &[(1, Some(0)), (2, Some(1)), (3, None)]);
    commit(map, wider).expect("two are kept");
    open(map, 1, 2).expect("newest");
    MemberId::new(NodeId(3), map.nodes[&NodeId(3)].incarnation)
}

fn complete(map: &mut ClusterMap, slot: u8, id: MemberId) -> Result<Outcome, Refusal> {
    let step = GroupStep::Complete {
        group: GroupId(1),
        epoch: group(map).epoch,
        slot: MemberSlot(slot),
        incarnation: id.incarnation,
    };
    map.apply(None, &Change::step(step))
}

#[test]
fn pools_on_disk_are_regions() {
    let mut map = cluster(1);
    let on_disk = |pool: Change| {
        let mut pool = pool;
        if let Change::CreatePool { medium, .. } = &mut pool {
            *medium = Medium::Disk;
        }
        pool
    };
    let mut starts_empty = create_disk_pool("d", "1+1");
    if let Change::CreatePool {
        may_start_empty, ..
    } = &mut starts_empty
    {
        *may_start_empty = true;
    }
    for (pool, why) in [
        (
            on_disk(create_pool("d", "1+1", 4, false)),
            "make it of kind memory",
        ),
        (
            on_disk(create_files_pool("d", 4, 1 << 20)),
            "make it of kind memory",
        ),
        (starts_empty, "never starts empty"),
        (create_disk_pool("d", "5+1"), "a scheme such as 4+2"),
    ] {
        let refusal = refused(&mut map, &pool).to_string();
        assert!(refusal.contains(why), "{refusal}");
    }
    let pool = create_disk_pool("coded", "4+2");
    map.apply(None, &pool).expect("regions that are coded");
    let pool = create_disk_pool("d", "1+2");
    map.apply(None, &pool).expect("copies of regions");
    let pool = map.pool_named("d").expect("made");
    assert_eq!(pool.medium, Medium::Disk);
}

#[test]
fn a_disk_has_one_member_of_a_group() {
    let mut map = in_pool(&create_disk_pool("disk", "2+1"));
    start(&mut map, &[1, 2, 3]);
    let down = node_down(&map, 3);
    map.apply(None, &down).expect("it was up");
    let twice = next_epoch(&map, 1, &[(1, Some(0)), (2, Some(1)), (second(1), None)]);
    let refusal = refused_epoch(&mut map, twice);
    assert!(matches!(refusal, Refusal::NodeTwice { .. }), "{refusal}");
}

#[test]
fn a_claimed_member_is_a_source_in_its_new_life() {
    let mut map = on_disk();
    let before = group(&map).clone();
    let life = restart(&mut map, 1, 1);
    let after = group(&map);
    assert_eq!(after.last_open.slot_of(life), Some(MemberSlot(0)));
    assert_eq!(after.members, before.members, "it is not listed yet");
    assert_eq!((after.epoch, after.open), (Epoch(1), true));
    assert_eq!(after.revision, map.revision);
    assert_eq!(map.complete_sources_up(after), 2);
    assert_eq!(after.tolerates(|id| map.runs(id)), Some(1));
    // What was proposed on the map before is decided anew.
    let stale = Change::CommitEpochs(vec![next_epoch(&map, 1, &[(2, Some(1)), (3, None)])]);
    let expected = Some(before.revision);
    let refusal = map.apply(expected, &stale).expect_err("it moved on");
    assert!(matches!(refusal, Refusal::MapMovedOn { .. }), "{refusal}");
    // It would wipe what it holds.
    let joins = next_epoch(&map, 1, &[(2, Some(1)), (1, None)]);
    let refusal = refused_epoch(&mut map, joins);
    assert!(
        matches!(refusal, Refusal::SourceAsJoiner { .. }),
        "{refusal}"
    );
    let kept = next_epoch(&map, 1, &[(1, Some(0)), (2, Some(1))]);
    commit(&mut map, kept).expect("both are sources");
    open(&mut map, 1, 2).expect("newest");
    assert_eq!(group(&map).members, group(&map).last_open.members);
    assert!(group(&map).listed().all(|(_, x)| x.complete));
}

/// A member is claimed twice in a row before an epoch lists it, and again while one that lists it is not open.
#[test]
fn a_node_that_starts_again_and_again_claims_each_time() {
    let mut map = on_disk();
    let first = restart(&mut map, 1, 1);
    let second = restart(&mut map, 1, 1);
    assert_eq!(group(&map).last_open.slot_of(first), None);
    assert_eq!(group(&map).last_open.slot_of(second), Some(MemberSlot(0)));
    let kept = next_epoch(&map, 1, &[(1, Some(0)), (2, Some(1))]);
    commit(&mut map, kept).expect("both are sources");
    // Its disk has the cut of the new epoch already.
    let third = restart(&mut map, 1, 2);
    assert_eq!(group(&map).last_open.slot_of(third), Some(MemberSlot(0)));
    assert_eq!(group(&map).slot_of(second), Some(MemberSlot(0)));
    let refusal = refused(
        &mut map,
        &Change::step(GroupStep::Open {
            group: GroupId(1),
            epoch: Epoch(2),
        }),
    );
    assert!(
        matches!(refusal, Refusal::NotThatMember { .. }),
        "the third life would be no source any more: {refusal}"
    );
    let kept = next_epoch(&map, 1, &[(1, Some(0)), (2, Some(1))]);
    commit(&mut map, kept).expect("both are sources");
    open(&mut map, 1, 3).expect("all lives are the present ones");
    assert_eq!(group(&map).slot_of(third), Some(MemberSlot(0)));
}

/// A claim without effect changes the node, and nothing else.
fn without_effect(mut map: ClusterMap, node: u64, claims: &[(u32, u64)]) {
    let groups = map.groups.clone();
    map.apply(None, &node_up_with(node, claims)).expect("known");
    assert_eq!(map.groups, groups, "{claims:?} of node {node}");
}

/// Node 1 was left out of an epoch that opened: its disk is older than what the others have acknowledged since.
#[test]
fn an_older_disk_is_no_source() {
    let mut map = on_disk();
    let kept = next_epoch(&map, 1, &[(1, Some(0)), (2, Some(1))]);
    commit(&mut map, kept).expect("both are sources");
    open(&mut map, 1, 2).expect("newest");
    without_effect(map, 1, &[(1, 1)]);
}

#[test]
fn claims_that_the_map_has_no_use_for_change_nothing() {
    let mut map = on_disk();
    with_joiner(&mut map);
    without_effect(map.clone(), 3, &[(1, 2)]); // it was not complete
    let mut wider = map.clone();
    wider.apply(None, &node_up(None)).expect("new");
    without_effect(wider, 4, &[(1, 9)]); // it holds nothing of it
    without_effect(map, 1, &[(9, 2)]); // there is no such group
    let mut ram = in_pool(&create_memory_pool("disk", "1+1", 1 << 20));
    start(&mut ram, &[1, 2]);
    without_effect(ram, 1, &[(1, 1)]);
    without_effect(in_pool(&create_disk_pool("disk", "1+1")), 1, &[(1, 0)]);
}

#[test]
fn claims_are_counted_and_name_each_group_once() {
    let mut map = on_disk();
    let twice = node_up_with(1, &[(1, 1), (1, 1)]);
    let group = GroupId(1);
    assert_eq!(refused(&mut map, &twice), Refusal::NamedTwice { group });
    let most: Vec<_> = (1..=GROUPS_MAX as u32).map(|g| (g, 1)).collect();
    map.apply(None, &node_up_with(1, &most)).expect("as many");
    let more: Vec<_> = (0..=GROUPS_MAX as u32).map(|g| (g, 1)).collect();
    let refusal = refused(&mut map, &node_up_with(1, &more));
    assert!(matches!(refusal, Refusal::TooMany { .. }), "{refusal}");
}

/// A joiner reports that it is complete after another member was claimed, and before an epoch lists that one.
#[test]
fn a_claim_outlives_the_report_of_a_joiner() {
    let mut map = on_disk();
    let joiner = with_joiner(&mut map);
    let life = restart(&mut map, 1, 2);
    complete(&mut map, 2, joiner).expect("it is listed");
    let sources = &group(&map).last_open;
    assert_eq!(sources.slot_of(life), Some(MemberSlot(0)));
    let whole = |x: &Option<Member>| x.is_some_and(|x| x.complete);
    assert!(sources.members.iter().all(whole) && group(&map).members.iter().all(whole));
    // As any life it may be taken for dead, and come back.
    map.apply(None, &node_down(&map, 1)).expect("up");
    assert_eq!(sources_up(&map), 2);
    map.apply(None, &node_back(1, life.incarnation))
        .expect("same life");
    assert_eq!(sources_up(&map), 3);
}

/// It serves nothing yet, and its former life's lease is waited out.
#[test]
fn a_claimed_life_gets_no_lease_before_it_is_listed() {
    let mut map = on_disk();
    let lease = Duration::from_millis(500);
    let mut book = Leases::new(lease);
    book.become_leader(Time::from_millis(0));
    let ask = |book: &mut Leases, map: &ClusterMap, ms, epoch| {
        let (node, wanted) = (NodeId(1), [(GroupId(1), Epoch(epoch))]);
        let life = map.nodes[&node].incarnation;
        !book
            .grant(Time::from_millis(ms), map, node, life, &wanted)
            .is_empty()
    };
    assert!(ask(&mut book, &map, 1000, 1));
    restart(&mut map, 1, 1);
    assert!(!ask(&mut book, &map, 1001, 1), "epoch 1 does not list it");
    let kept = next_epoch(&map, 1, &[(1, Some(0)), (2, Some(1))]);
    commit(&mut map, kept).expect("both are sources");
    assert!(!book.may_open(Time::from_millis(1499), group(&map)));
    assert!(book.may_open(Time::from_millis(1500), group(&map)));
    open(&mut map, 1, 2).expect("newest");
    assert!(ask(&mut book, &map, 1501, 2));
}

/// A node tells of its disks, and of the groups whose members they have no more.
fn disks(map: &ClusterMap, node: u64, disk_bytes: u64, gone: &[u32]) -> Change {
    let epoch = group(map).epoch;
    Change::SetDisks(NodeDisks {
        node: NodeId(node),
        incarnation: map.nodes[&NodeId(node)].incarnation,
        disk_bytes,
        gone: gone.iter().map(|id| (GroupId(*id), epoch)).collect(),
    })
}

#[test]
fn a_member_whose_disk_failed_is_dead_though_its_node_lives() {
    let mut map = on_disk();
    let change = disks(&map, 1, 1 << 30, &[1, 7]);
    map.apply(None, &change).expect("its life");
    let after = group(&map);
    assert_eq!(map.nodes[&NodeId(1)].disk_bytes, 1 << 30);
    assert_eq!((map.complete_sources_up(after), sources_up(&map)), (1, 1));
    assert_eq!(after.tolerates(|id| map.runs(id)), Some(0));
    assert_eq!(
        after.revision, map.revision,
        "what rests on it is decided anew"
    );
    assert_eq!(map.awaited_disks(after), [], "the other one has all");
    assert_eq!(map.apply(None, &change), Ok(Outcome::Unchanged));
    // The same life joins again, with nothing.
    let next = next_epoch(&map, 1, &[(2, Some(1)), (1, None)]);
    commit(&mut map, next).expect("no source any more");
    open(&mut map, 1, 2).expect("newest");
    assert_eq!(
        map.complete_sources_up(group(&map)),
        1,
        "it is not filled yet"
    );
    // A word of the former epoch that comes late does not touch it.
    assert_eq!(map.apply(None, &change), Ok(Outcome::Unchanged));
    assert_eq!(sources_up(&map), 2);
}

#[test]
fn a_failed_disk_that_is_there_again_at_a_start_is_claimed() {
    let mut map = on_disk();
    let change = disks(&map, 1, 0, &[1]);
    map.apply(None, &change).expect("its life");
    let life = restart(&mut map, 1, 1);
    assert_eq!(group(&map).last_open.slot_of(life), Some(MemberSlot(0)));
    assert_eq!(map.complete_sources_up(group(&map)), 2);
    // Another epoch has opened since: the disk is an older one.
    let change = disks(&map, 1, 0, &[1]);
    map.apply(None, &change).expect("its life");
    let next = next_epoch(&map, 1, &[(2, Some(1))]);
    commit(&mut map, next).expect("one is kept");
    open(&mut map, 1, 2).expect("newest");
    let life = restart(&mut map, 1, 1);
    assert_eq!(group(&map).last_open.slot_of(life), None);
}

#[test]
fn disks_of_a_former_life_or_in_memory_change_nothing() {
    let mut map = on_disk();
    let stale = disks(&map, 1, 0, &[1]);
    restart(&mut map, 1, 1);
    let before = map.clone();
    let refusal = refused(&mut map, &stale);
    assert!(
        matches!(refusal, Refusal::OldIncarnation { .. }),
        "{refusal}"
    );
    assert_eq!(map, before);
    let mut memory = create_disk_pool("disk", "1+1");
    if let Change::CreatePool { medium, .. } = &mut memory {
        *medium = Medium::Ram;
    }
    let mut map = in_pool(&memory);
    start(&mut map, &[1, 2]);
    let bytes = map.nodes[&NodeId(1)].disk_bytes;
    let change = disks(&map, 1, bytes, &[1]);
    assert_eq!(map.apply(None, &change), Ok(Outcome::Unchanged));
    let many = vec![1; GROUPS_MAX + 1];
    let change = disks(&map, 1, bytes, &many);
    refused(&mut map, &change);
}
