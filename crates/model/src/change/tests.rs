//! Every rule of the map refuses what breaks it, and then nothing has changed.

mod claims;
mod copies_min;
mod images;
mod map_bytes;
mod region_bytes;
mod shared_volumes;
mod twice;
mod volumes;

use super::*;
use crate::ids::PoolId;
use crate::ids::Revision;
use crate::ids::{DiskId, Epoch, MemberId, MemberSlot};
use crate::map::ClusterMap;
use crate::testing::*;

/// A refused change leaves the map byte for byte as it was.
fn refused(map: &mut ClusterMap, change: &Change) -> Refusal {
    let before = map.clone();
    let refusal = map.apply(None, change).expect_err("a refusal");
    assert_eq!(*map, before, "{refusal}");
    assert!(
        refusal.to_string().contains([':', ';']),
        "names a remedy: {refusal}"
    );
    refusal
}

fn refused_epoch(map: &mut ClusterMap, new: NewEpoch) -> Refusal {
    refused(map, &Change::CommitEpochs(vec![new]))
}

#[test]
fn nothing_goes_before_bootstrap_and_it_happens_once() {
    let mut map = ClusterMap::default();
    assert_eq!(refused(&mut map, &node_up(None)), Refusal::NotBootstrapped);
    let mut map = cluster(0);
    let again = Change::Bootstrap {
        cluster: ClusterId(8),
    };
    assert_eq!(
        refused(&mut map, &again),
        Refusal::AlreadyBootstrapped {
            cluster: ClusterId(7)
        }
    );
}

/// Row D6: a node comes, comes back, and ids and incarnations only grow.
#[test]
fn each_start_of_a_node_is_a_new_life() {
    let mut map = cluster(2);
    let first = map.nodes[&NodeId(1)].incarnation;
    let again = map.apply(None, &node_up(Some(1))).expect("known");
    assert_eq!(
        again,
        Outcome::Node {
            id: NodeId(1),
            incarnation: Incarnation(3)
        }
    );
    assert!(
        !map.is_up(NodeId(1), first),
        "what the old life held is lost at once"
    );
    assert!(map.is_up(NodeId(1), Incarnation(3)));
    assert_eq!(
        refused(&mut map, &node_up(Some(9))),
        Refusal::UnknownNode { node: NodeId(9) }
    );
    let late = Change::NodeDown {
        node: NodeId(1),
        incarnation: first,
    };
    assert!(matches!(
        refused(&mut map, &late),
        Refusal::OldIncarnation { .. }
    ));
}

#[test]
fn a_node_declared_dead_may_come_back_in_the_same_life() {
    let mut map = cluster_with_pool(1, "1+0", 1);
    start(&mut map, &[1]);
    let life = Incarnation(1);
    map.apply(None, &node_down(&map, 1)).expect("up");
    assert_eq!(map.complete_sources_up(&map.groups[&GroupId(1)]), 0);
    map.apply(None, &node_back(1, life)).expect("same life");
    assert_eq!(map.complete_sources_up(&map.groups[&GroupId(1)]), 1);
    map.apply(None, &node_up(Some(1))).expect("known");
    let late = node_back(1, life);
    assert!(matches!(
        refused(&mut map, &late),
        Refusal::OldIncarnation { .. }
    ));
}

#[test]
fn a_node_is_forgotten_only_when_it_is_down_and_holds_nothing() {
    let mut map = cluster_with_pool(2, "1+1", 1);
    start(&mut map, &[1, 2]);
    let forget = Change::ForgetNode { node: NodeId(2) };
    assert_eq!(
        refused(&mut map, &forget),
        Refusal::NodeIsUp { node: NodeId(2) }
    );
    map.apply(None, &node_down(&map, 2)).expect("up");
    assert!(matches!(
        refused(&mut map, &forget),
        Refusal::NodeIsMember { .. }
    ));
    let alone = next_epoch(&map, 1, &[(1, Some(0))]);
    commit(&mut map, alone).expect("one complete member");
    assert!(
        matches!(refused(&mut map, &forget), Refusal::NodeIsMember { .. }),
        "a member of the last open epoch is a member still"
    );
    open(&mut map, 1, 2).expect("newest");
    map.apply(None, &forget).expect("holds nothing");
    assert!(!map.nodes.contains_key(&NodeId(2)));
}

#[test]
fn names_addresses_and_pools_are_checked() {
    let mut map = cluster_with_pool(1, "1+2", 4);
    for (change, why) in [
        (create_pool("cache", "1+1", 4, true), "exists already"),
        (create_pool("a b", "1+1", 4, true), "only letters"),
        (create_pool("", "1+1", 4, true), "is empty"),
        (
            create_pool(&"x".repeat(300), "1+1", 4, true),
            "longer than 255",
        ),
        (create_pool("c", "1+1", 3, true), "power of two"),
        (create_pool("c", "1+1", 0, true), "power of two"),
        (create_pool("c", "1+1", 8192, true), "power of two"),
        (Change::DeletePool { name: "x".into() }, "does not exist"),
        (node_in_zone("a\nb", 1), "control character"),
    ] {
        let refusal = refused(&mut map, &change).to_string();
        assert!(refusal.contains(why), "{refusal}");
    }
    let to = |s: &str| Change::SetPool {
        name: "cache".into(),
        scheme: Some(s.parse().expect("a scheme")),
        node_budget_bytes: None,
    };
    assert!(matches!(
        refused(&mut map, &to("2+1")),
        Refusal::SchemeChangesM { .. }
    ));
    assert_eq!(map.apply(None, &to("1+2")), Ok(Outcome::Unchanged));
    assert_eq!(map.apply(None, &to("1+0")), Ok(Outcome::Done));
    map.apply(
        None,
        &Change::DeletePool {
            name: "cache".into(),
        },
    )
    .expect("exists");
    assert!(map.groups.is_empty() && map.pools.is_empty());
    map.apply(None, &create_pool("cache", "1+1", 4, true))
        .expect("free again");
    assert_eq!(
        map.pools[&PoolId(2)].groups[0],
        GroupId(5),
        "ids are never used twice"
    );
}

#[test]
fn a_proposal_on_an_old_map_is_refused() {
    let mut map = cluster_with_pool(3, "1+1", 2);
    let seen = map.revision;
    let drain = set_drain(3, true);
    map.apply(Some(seen), &drain).expect("the present map");
    let now = map.revision;
    assert_eq!(map.apply(Some(now), &drain), Ok(Outcome::Unchanged));
    assert_eq!(map.revision, now);
    assert_eq!(
        map.apply(Some(seen), &set_drain(3, false)),
        Err(Refusal::MapMovedOn {
            expected: seen,
            found: now
        })
    );

    // An epoch rests on its group alone: other groups' changes do not hold it up, its own do.
    let fresh = |map: &ClusterMap, g, n| {
        let new = NewEpoch {
            fresh: true,
            ..next_epoch(map, g, &[(n, None)])
        };
        Change::CommitEpochs(vec![new])
    };
    let (one, two) = (fresh(&map, 1, 1), fresh(&map, 2, 2));
    map.apply(Some(now), &one).expect("unchanged");
    map.apply(Some(now), &two).expect("group 2 is as it was");
    let three = fresh(&map, 1, 3);
    assert!(matches!(
        map.apply(Some(now), &three),
        Err(Refusal::MapMovedOn { .. })
    ));
    let ahead = Revision(map.revision.0 + 1);
    assert!(matches!(
        map.apply(Some(ahead), &three),
        Err(Refusal::MapMovedOn { .. })
    ));
}

/// GROUP rules 7 and 11.
#[test]
fn epochs_are_committed_opened_and_completed() {
    let mut map = cluster_with_pool(3, "1+2", 1);
    start(&mut map, &[1, 2]);
    let joined = next_epoch(&map, 1, &[(1, Some(0)), (2, Some(1)), (3, None)]);
    commit(&mut map, joined).expect("a joiner");
    let group = &map.groups[&GroupId(1)];
    assert_eq!(
        (group.epoch, group.open, group.last_open.epoch),
        (Epoch(2), false, Epoch(1))
    );
    assert!(
        group.members[1].expect("listed").complete,
        "the mark goes with the member"
    );
    assert!(!group.members[2].expect("listed").complete);

    let done = |epoch| {
        Change::step(GroupStep::Complete {
            group: GroupId(1),
            epoch: Epoch(epoch),
            slot: MemberSlot(2),
            incarnation: Incarnation(3),
        })
    };
    assert!(matches!(
        refused(&mut map, &done(2)),
        Refusal::NotOpen { .. }
    ));
    let early = Change::step(GroupStep::Open {
        group: GroupId(1),
        epoch: Epoch(1),
    });
    assert!(matches!(
        refused(&mut map, &early),
        Refusal::NotNewest { .. }
    ));
    open(&mut map, 1, 2).expect("newest");
    let again = Change::step(GroupStep::Open {
        group: GroupId(1),
        epoch: Epoch(2),
    });
    assert!(matches!(
        refused(&mut map, &again),
        Refusal::AlreadyOpen { .. }
    ));
    assert_eq!(map.groups[&GroupId(1)].tolerates(|_| true), Some(1));
    map.apply(None, &done(2)).expect("open");
    assert!(matches!(
        refused(&mut map, &done(2)),
        Refusal::AlreadyComplete { .. }
    ));
    let group = &map.groups[&GroupId(1)];
    assert_eq!(group.members, group.last_open.members);
    assert_eq!(group.tolerates(|_| true), Some(2));
    let stray = Change::step(GroupStep::Complete {
        group: GroupId(1),
        epoch: Epoch(2),
        slot: MemberSlot(9),
        incarnation: Incarnation(3),
    });
    assert!(matches!(
        refused(&mut map, &stray),
        Refusal::NotThatMember { .. }
    ));
}

/// GROUP rule 7: sources are the members of the last *open* epoch.
#[test]
fn an_abandoned_epoch_changes_nothing() {
    let mut map = cluster_with_pool(4, "1+2", 1);
    start(&mut map, &[1, 2]);
    let abandoned = next_epoch(&map, 1, &[(1, Some(0)), (3, None)]);
    commit(&mut map, abandoned).expect("well formed");
    let from_committed = next_epoch(&map, 1, &[(1, Some(0)), (3, Some(1))]);
    assert!(matches!(
        refused_epoch(&mut map, from_committed),
        Refusal::NotThatSource {
            slot: MemberSlot(1),
            from: MemberSlot(1),
            ..
        }
    ));
    let wiped = next_epoch(&map, 1, &[(1, Some(0)), (2, None)]);
    assert_eq!(
        refused_epoch(&mut map, wiped),
        Refusal::SourceAsJoiner {
            group: GroupId(1),
            node: NodeId(2)
        }
    );
    let back = next_epoch(&map, 1, &[(2, Some(1)), (1, Some(0)), (4, None)]);
    commit(&mut map, back).expect("2 is a source still");
}

#[test]
fn a_malformed_epoch_is_refused_and_the_whole_proposal_with_it() {
    let mut map = cluster_with_pool(3, "1+2", 2);
    start(&mut map, &[1, 2]);
    let ok = next_epoch(&map, 1, &[(1, Some(0)), (2, Some(1)), (3, None)]);
    let with = |edit: &dyn Fn(&mut NewEpoch)| {
        let mut new = ok.clone();
        edit(&mut new);
        new
    };
    let dead = Some(MemberId::new(NodeId(3), Incarnation(99)));
    for (bad, why) in [
        (with(&|n| n.epoch = Epoch(3)), "does not follow"),
        (with(&|n| n.epoch = Epoch(1)), "does not follow"),
        (with(&|n| n.group = GroupId(9)), "does not exist"),
        (with(&|n| n.members.truncate(0)), "member slots"),
        (with(&|n| n.kept.truncate(1)), "marks of kept"),
        (with(&|n| n.members[0] = None), "vacant"),
        (with(&|n| n.members[2] = n.members[1]), "listed twice"),
        (with(&|n| n.members[2] = dead), "not up"),
        (with(&|n| n.kept[2] = Some(MemberSlot(1))), "another stands"),
        (
            with(&|n| n.kept[2] = Some(MemberSlot(77))),
            "another stands",
        ),
        (with(&|n| n.members[1] = None), "another stands"),
        (with(&|n| n.coordinator = MemberSlot(2)), "cannot lead"),
        (with(&|n| n.coordinator = MemberSlot(200)), "cannot lead"),
        (with(&|n| n.fresh = true), "keeps nobody"),
        (next_epoch(&map, 1, &[(3, None)]), "needs 1"),
        (
            next_epoch(&map, 1, &[(3, None), (1, Some(0))]),
            "only that one can serve",
        ),
    ] {
        let both = vec![
            NewEpoch {
                fresh: true,
                ..next_epoch(&map, 2, &[(1, None)])
            },
            bad,
        ];
        let refusal = refused(&mut map, &Change::CommitEpochs(both)).to_string();
        assert!(refusal.contains(why), "{refusal} for '{why}'");
    }
    let twice = Change::CommitEpochs(vec![ok.clone(), ok.clone()]);
    assert_eq!(
        refused(&mut map, &twice),
        Refusal::NamedTwice { group: GroupId(1) }
    );
    commit(&mut map, ok).expect("it was well formed");
}

#[test]
fn with_more_data_buckets_members_keep_their_slots() {
    let mut map = cluster_with_pool(4, "2+1", 1);
    start(&mut map, &[1, 2, 3]);
    let moved = next_epoch(&map, 1, &[(2, Some(1)), (1, Some(0)), (3, Some(2))]);
    assert!(
        refused_epoch(&mut map, moved)
            .to_string()
            .contains("keep their slots")
    );
    let replaced = next_epoch(&map, 1, &[(4, None), (2, Some(1)), (3, Some(2))]);
    assert!(
        matches!(
            refused_epoch(&mut map, replaced.clone()),
            Refusal::BadLeader { .. }
        ),
        "a joiner has nothing to lead with"
    );
    commit(
        &mut map,
        NewEpoch {
            coordinator: MemberSlot(1),
            ..replaced
        },
    )
    .expect("2 of 3 kept");
    open(&mut map, 1, 2).expect("newest");
    let too_few = next_epoch(&map, 1, &[(4, Some(0)), (2, Some(1))]);
    assert!(matches!(
        refused_epoch(&mut map, too_few),
        Refusal::TooFewSources { kept: 1, m: 2, .. }
    ));
}

/// With m > 1 the others keep what a lost data bucket held, so its slot may wait for a node; a start from
/// nothing has all of them.
#[test]
fn a_data_slot_is_vacant_only_where_others_keep_what_it_held() {
    let mut map = cluster_with_pool(4, "2+1", 1);
    let fresh = NewEpoch {
        fresh: true,
        ..next_epoch(&map, 1, &[(1, None), (0, None), (3, None)])
    };
    let refusal = refused_epoch(&mut map, fresh).to_string();
    assert!(refusal.contains("data slot 1 is vacant"), "{refusal}");
    start(&mut map, &[1, 2, 3]);
    let without = next_epoch(&map, 1, &[(1, Some(0)), (0, None), (3, Some(2))]);
    commit(&mut map, without).expect("2 of 3 kept");
    open(&mut map, 1, 2).expect("newest");
    let group = &map.groups[&GroupId(1)];
    assert_eq!(group.tolerates(|_| true), Some(0));
}

/// GROUP rule 13: only a pool that may starts empty, and only when all is gone.
#[test]
fn starting_empty_and_being_lost_are_last_resorts() {
    for may in [true, false] {
        let mut map = cluster(2);
        map.apply(None, &create_pool("cache", "1+1", 1, may))
            .expect("new");
        start(&mut map, &[1, 2]);
        let lost = Change::MarkLost {
            groups: vec![GroupId(1)],
        };
        let empty = |map: &ClusterMap| NewEpoch {
            fresh: true,
            ..next_epoch(map, 1, &[(2, None)])
        };
        map.apply(None, &node_down(&map, 1)).expect("up");
        assert!(matches!(
            refused(&mut map, &lost),
            Refusal::NotLost { kept: 1, .. }
        ));
        let early = empty(&map);
        assert!(matches!(
            refused_epoch(&mut map, early),
            Refusal::NotFresh { .. }
        ));
        map.apply(None, &node_up(Some(2))).expect("known");
        map.apply(None, &lost).expect("nobody is left");
        assert_eq!(map.apply(None, &lost), Ok(Outcome::Unchanged));
        assert!(map.groups[&GroupId(1)].lost);
        assert_eq!(map.groups[&GroupId(1)].tolerates(|id| map.runs(id)), None);
        let now = empty(&map);
        if may {
            commit(&mut map, now).expect("it may");
            open(&mut map, 1, 2).expect("newest");
            assert!(!map.groups[&GroupId(1)].lost);
        } else {
            let refusal = refused_epoch(&mut map, now).to_string();
            assert!(refusal.contains("promises to keep"), "{refusal}");
        }
    }
}

#[cfg(feature = "mutants")]
mod planted {
    use super::*;
    use crate::mutant::{Mutant, plant};

    #[test]
    fn the_planted_bugs_let_through_what_the_rules_refuse() {
        let mut map = cluster_with_pool(4, "1+2", 1);
        start(&mut map, &[1, 2]);
        let abandoned = next_epoch(&map, 1, &[(1, Some(0)), (3, None)]);
        commit(&mut map, abandoned).expect("well formed");
        let from_committed = next_epoch(&map, 1, &[(1, Some(0)), (3, Some(1))]);
        let wiped = next_epoch(&map, 1, &[(1, Some(0)), (2, None)]);
        plant(Some(Mutant::SourcesFromCommitted));
        assert!(commit(&mut map.clone(), from_committed).is_ok());
        plant(Some(Mutant::SourceListedAsJoiner));
        assert!(commit(&mut map, wiped).is_ok());
        plant(None);
    }
}

/// GROUP rule 13: once a start from nothing is committed there is no way back. The epoch may list a
/// former member that came back too late, which lets go of what it held before the epoch opens; to keep
/// it as a source then would bring the group up with nothing, or break it (found by the simulator).
#[test]
fn a_start_from_nothing_is_not_taken_back() {
    let mut map = cluster(3);
    map.apply(None, &create_pool("cache", "1+1", 1, true))
        .expect("new");
    start(&mut map, &[1, 2]);
    let life = map.nodes[&NodeId(1)].incarnation;
    for node in [1, 2] {
        map.apply(None, &node_down(&map, node)).expect("up");
    }
    let anew = |map: &ClusterMap, node| NewEpoch {
        fresh: true,
        ..next_epoch(map, 1, &[(node, None)])
    };
    let new = anew(&map, 3);
    commit(&mut map, new).expect("all are gone");
    let back = node_back(1, life);
    map.apply(None, &back).expect("it lives");
    let kept = next_epoch(&map, 1, &[(1, Some(0))]);
    assert!(matches!(
        refused_epoch(&mut map, kept),
        Refusal::NotThatSource { .. }
    ));
    let again = anew(&map, 1);
    commit(&mut map, again).expect("another start from nothing, now with the one that is back");
    let epoch = map.groups[&GroupId(1)].epoch;
    open(&mut map, 1, epoch.0).expect("the newest");
}

/// Regions of memory pools.
mod regions {
    use super::*;
    use crate::map::{ClusterMap, PoolKind};
    use crate::region::stretch_unit;

    fn make(map: &mut ClusterMap, name: &str, size_bytes: u64) -> Result<Outcome, Refusal> {
        let (pool, name) = ("memory".into(), name.into());
        map.apply(
            None,
            &Change::CreateRegion {
                pool,
                name,
                size_bytes,
            },
        )
    }

    fn grow(map: &mut ClusterMap, name: &str, size_bytes: u64) -> Result<Outcome, Refusal> {
        let name = name.into();
        map.apply(None, &Change::GrowRegion { name, size_bytes })
    }

    fn memory(scheme: &str) -> ClusterMap {
        let mut map = cluster(3);
        map.apply(None, &create_memory_pool("memory", scheme, 1 << 29))
            .expect("new");
        map
    }

    /// Every group of the pool belongs to one region and stands in its place.
    fn check(map: &ClusterMap) {
        let pool = map.pool_named("memory").expect("made");
        let mut of_regions: Vec<GroupId> = pool.regions().iter().flat_map(|r| r.groups()).collect();
        of_regions.sort();
        let mut of_pool = pool.groups.clone();
        of_pool.sort();
        assert_eq!(of_regions, of_pool);
        for (bucket, id) in pool.groups.iter().enumerate() {
            assert_eq!(map.groups[id].bucket as usize, bucket);
        }
        let of_map = map.groups.values().filter(|g| g.pool == pool.id);
        assert_eq!(of_map.count(), pool.groups.len());
    }

    #[test]
    fn a_region_is_made_grows_by_whole_groups_and_goes_with_them() {
        let mut map = memory("2+1");
        let unit = stretch_unit(2);
        assert!(matches!(make(&mut map, "a", 1), Ok(Outcome::Region { .. })));
        make(&mut map, "b", 2 * unit + 1).expect("new");
        let groups = |map: &ClusterMap, name: &str| {
            let (_, region) = map.region_named(name).expect("there");
            (region.size_bytes, region.groups().count())
        };
        assert_eq!(groups(&map, "a"), (1, 1));
        assert_eq!(groups(&map, "b"), (2 * unit + 1, 3));
        check(&map);

        grow(&mut map, "a", unit).expect("room enough in its group");
        assert_eq!(groups(&map, "a"), (unit, 1));
        grow(&mut map, "a", 4 * unit).expect("three groups more");
        assert_eq!(groups(&map, "a"), (4 * unit, 4));
        assert_eq!(grow(&mut map, "a", 4 * unit), Ok(Outcome::Unchanged));
        check(&map);

        let before = map.next_group;
        let name = "b".into();
        map.apply(None, &Change::DeleteRegion { name })
            .expect("there");
        assert!(map.region_named("b").is_none());
        assert_eq!(map.groups.len(), 4);
        check(&map);
        make(&mut map, "b", 1).expect("the name is free again");
        let (_, region) = map.region_named("b").expect("made");
        assert_eq!(region.id.0, before.0, "ids of groups are not used again");
        check(&map);
        let name = "memory".into();
        map.apply(None, &Change::DeletePool { name })
            .expect("there");
        assert!(map.groups.is_empty() && map.region_named("a").is_none());
    }

    /// Changes of before make the buckets that there were then, whatever is chosen now: a log is made again to the same map.
    #[test]
    fn groups_have_the_buckets_that_their_change_says() {
        use crate::region::{REGION_BUCKET_BYTES_MAX, REGION_BUCKET_BYTES_MIN};
        const GIB: u64 = 1 << 30;
        let mut map = memory("1+1");
        make(&mut map, "old", 10 * GIB).expect("new");
        let sizes = |map: &ClusterMap, name: &str| {
            let (_, region) = map.region_named(name).expect("there");
            let of = region.stretches.iter().map(|s| (s.count, s.bucket_bytes));
            of.collect::<Vec<_>>()
        };
        let old = (160, REGION_BUCKET_BYTES_MIN);
        assert_eq!(sizes(&map, "old"), [old]);
        grow(&mut map, "old", 10 * GIB + 1).expect("a group more");
        let bucket_bytes = map.bucket_bytes_to_grow("old", 40 * GIB);
        let extend = |bucket_bytes| Change::ExtendRegion {
            name: "old".into(),
            size_bytes: 40 * GIB,
            bucket_bytes,
        };
        map.apply(None, &extend(bucket_bytes)).expect("larger ones");
        let one = (1, REGION_BUCKET_BYTES_MIN);
        let larger = (30, REGION_BUCKET_BYTES_MAX);
        assert_eq!(sizes(&map, "old"), [old, one, larger]);
        let create = |size_bytes, bucket_bytes| Change::MakeRegion {
            pool: "memory".into(),
            name: "new".into(),
            size_bytes,
            bucket_bytes,
            is_volume: true,
        };
        for wrong in [0, 1, REGION_BUCKET_BYTES_MIN / 2, 3 * GIB, 2 * GIB] {
            for change in [create(GIB, wrong), extend(wrong)] {
                let refusal = map.apply(None, &change).expect_err("no such buckets");
                assert!(matches!(refusal, Refusal::BadBucketBytes { .. }));
            }
        }
        // With those of one GiB regions have as many GiB as groups.
        let left = REGION_GROUPS_MAX as u64 - 191;
        let size = left * GIB;
        let chosen = map.bucket_bytes_to_create("memory", size);
        assert_eq!(chosen, REGION_BUCKET_BYTES_MAX);
        let refusal = map.apply(None, &create(size + 1, chosen));
        let refusal = refusal.expect_err("a byte too many").to_string();
        let most = crate::with_unit(size);
        assert!(refusal.contains(&format!("1B to {most}, ")), "{refusal}");
        map.apply(None, &create(size, chosen))
            .expect("just so many");
        assert_eq!(sizes(&map, "new"), [(left as u32, chosen)]);
        check(&map);
    }

    #[test]
    fn what_is_wrong_with_a_region_is_said_and_changes_nothing() {
        let mut map = memory("1+1");
        map.apply(None, &create_pool("cache", "1+1", 4, true))
            .expect("new");
        make(&mut map, "a", 1 << 20).expect("new");
        let before = map.clone();
        for size in [0, u64::MAX, 16_385 * stretch_unit(1)] {
            let refusal = make(&mut map, "b", size).expect_err("no such size");
            let text = refusal.to_string();
            assert!(
                text.contains(&format!("'b' cannot get {}", crate::with_unit(size))),
                "{text}"
            );
            assert!(!refusal.is_missing());
            assert!(
                matches!(refusal, Refusal::BadRegionSize { .. }),
                "{refusal}"
            );
        }
        // Region 'a' has one of the groups that regions may have.
        let most = REGION_GROUPS_MAX as u64;
        let refusal = make(&mut map, "b", most * stretch_unit(1)).expect_err("too many");
        let left = crate::with_unit((most - 1) * stretch_unit(1));
        assert!(
            refusal.to_string().contains(&format!("1B to {left}, ")),
            "{refusal}"
        );
        let refusal = grow(&mut map, "a", 100 << 40).expect_err("too many");
        let all = crate::with_unit(most * stretch_unit(1));
        let text = refusal.to_string();
        assert!(
            text.contains("ends at 1MiB and cannot end at 100TiB"),
            "{text}"
        );
        assert!(text.contains(&format!("up to {all}, ")), "{text}");
        assert!(matches!(
            make(&mut map, "a", 1),
            Err(Refusal::RegionExists { .. })
        ));
        assert!(matches!(
            make(&mut map, "b b", 1),
            Err(Refusal::BadName { .. })
        ));
        let gone = grow(&mut map, "b", 1).expect_err("no such region");
        assert!(matches!(gone, Refusal::UnknownRegion { .. }) && gone.is_missing());
        assert!(matches!(
            grow(&mut map, "a", 1),
            Err(Refusal::RegionShrinks { .. })
        ));
        let in_pool = |pool: &str| Change::CreateRegion {
            pool: pool.into(),
            name: "b".into(),
            size_bytes: 1,
        };
        assert!(matches!(
            map.apply(None, &in_pool("cache")),
            Err(Refusal::NoMemoryPool { .. })
        ));
        assert!(matches!(
            map.apply(None, &in_pool("nobody")),
            Err(Refusal::UnknownPool { .. })
        ));
        let mut wrong = create_memory_pool("m2", "1+1", 1 << 29);
        if let Change::CreatePool { buckets, .. } = &mut wrong {
            *buckets = 4;
        }
        assert!(matches!(
            map.apply(None, &wrong),
            Err(Refusal::BadMemoryPool { .. })
        ));
        assert_eq!(map, before);
        let pool = map.pool_named("memory").expect("made");
        assert!(matches!(&pool.kind, PoolKind::Memory { regions } if regions.len() == 1));
    }
}

/// With m > 1 a node may hold one member more, beside it; with m = 1 none, and never as one that is not up.
#[test]
fn a_node_holds_at_most_two_members_of_a_group() {
    let mut map = cluster(3);
    map.apply(None, &create_pool("kept", "2+1", 1, false))
        .expect("new");
    let fresh = |map: &ClusterMap, nodes: &[u64]| NewEpoch {
        fresh: true,
        ..next_epoch(
            map,
            1,
            &nodes.iter().map(|n| (*n, None)).collect::<Vec<_>>(),
        )
    };
    for twice in [[1, 2, 1], [1, second(1), second(1)]] {
        let new = fresh(&map, &twice);
        let refusal = commit(&mut map, new).expect_err("twice");
        assert!(matches!(refusal, Refusal::NodeTwice { .. }), "{refusal}");
    }
    start(&mut map, &[1, second(1), 2]);
    let group = map.groups[&GroupId(1)].clone();
    assert!(group.names(NodeId(1)) && group.seats(NodeId(1), DiskId::SECOND));
    assert!(!group.names(NodeId(3)) && !group.seats(NodeId(2), DiskId::SECOND));
    let bears = |map: &ClusterMap| group.tolerates(|id| map.runs(id));
    assert_eq!(bears(&map), Some(0));
    assert_eq!(map.after_stop(NodeId(1), |_| false).broken, [GroupId(1)]);
    assert!(map.after_stop(NodeId(2), |_| false).broken.is_empty());
    map.apply(None, &node_down(&map.clone(), 1)).expect("up");
    assert_eq!(bears(&map), None, "both went with the node");
    let forget = Change::ForgetNode { node: NodeId(1) };
    assert!(map.apply(None, &forget).is_err(), "it is a member still");
    let new = next_epoch(&map, 1, &[(3, None), (second(1), Some(1)), (2, Some(2))]);
    let refusal = commit(&mut map, new).expect_err("its node is down");
    assert!(matches!(refusal, Refusal::MemberNotUp { .. }), "{refusal}");

    let mut copies = cluster_with_pool(3, "1+2", 1);
    let new = fresh(&copies, &[1, 2, second(1)]);
    let refusal = commit(&mut copies, new).expect_err("copies are on distinct nodes");
    assert!(matches!(refusal, Refusal::NodeTwice { .. }), "{refusal}");
}
