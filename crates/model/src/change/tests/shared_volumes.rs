//! Volumes that several clients write at a time: one session, as long as there is a door.

use super::super::*;
use crate::map::ClusterMap;
use crate::region::Volume;
use crate::shared_volume::SHARED_CLIENTS;
use crate::testing::*;
use crate::volume_entries::SharedVolume;

fn with_shared_volume() -> (ClusterMap, RegionId) {
    let mut map = cluster(3);
    let pool = create_memory_pool("memory", "1+1", 1 << 29);
    map.apply(None, &pool).expect("new");
    let make = Change::MakeSharedVolume {
        pool: "memory".into(),
        name: "v".into(),
        size_bytes: 1 << 30,
        bucket_bytes: 64 << 20,
    };
    map.apply(None, &make).expect("new");
    let id = map.region_named("v").expect("made").1.id;
    (map, id)
}

fn volume(map: &ClusterMap) -> Volume {
    let region = map.region_named("v").expect("there").1;
    region.volume.clone().expect("a volume")
}

fn shared(map: &ClusterMap) -> SharedVolume {
    map.volumes.shared.values().next().expect("one").clone()
}

/// A client comes to a node's door.
fn join(map: &mut ClusterMap, volume: RegionId, node: u64) -> Result<Outcome, Refusal> {
    let node = NodeId(node);
    let writer = VolumeWriter {
        node,
        incarnation: map.nodes[&node].incarnation,
        client: "10.0.0.7:1".into(),
    };
    let after = 0;
    map.apply(
        None,
        &Change::AttachVolume {
            volume,
            after,
            writer,
        },
    )
}

/// The door's last client goes, as far as the door knew at a revision.
fn leave(map: &mut ClusterMap, volume: RegionId, node: u64, joined: u64) -> Outcome {
    let node = NodeId(node);
    let incarnation = map.nodes[&node].incarnation;
    let leave = Change::LeaveVolume {
        volume,
        node,
        incarnation,
        joined,
    };
    map.apply(None, &leave).expect("it may go")
}

fn joined(map: &ClusterMap, node: u64) -> u64 {
    shared(map).doors[&NodeId(node)].joined
}

#[test]
fn several_doors_have_one_session_until_the_last_one_leaves() {
    let (mut map, id) = with_shared_volume();
    for node in [1, 2, 1] {
        assert_eq!(join(&mut map, id, node), Ok(Outcome::Done));
        assert_eq!(volume(&map).session, 1);
    }
    let writer = volume(&map).writer.expect("attached");
    assert_eq!(writer.client, SHARED_CLIENTS);
    let name = "v".to_owned();
    let delete = Change::DeleteRegion { name };
    let refused = map.apply(None, &delete).expect_err("it is written");
    assert!(refused.to_string().contains("several clients"), "{refused}");
    let (first, second) = (joined(&map, 1), joined(&map, 2));
    assert_eq!(leave(&mut map, id, 1, first), Outcome::Done);
    assert_eq!(leave(&mut map, id, 1, first), Outcome::Unchanged);
    assert_eq!(map.shared_doors(id).collect::<Vec<_>>(), [NodeId(2)]);
    assert_eq!(volume(&map).writer.map(|w| w.node), Some(NodeId(2)));
    assert_eq!(leave(&mut map, id, 2, second), Outcome::Done);
    assert_eq!(volume(&map).writer, None);
    // Another use, in another session: of the one before nothing takes effect any more.
    assert_eq!(join(&mut map, id, 3), Ok(Outcome::Done));
    assert_eq!((volume(&map).session, shared(&map).began), (2, 2));
}

/// A client that comes while its door believes that the last has gone stays.
#[test]
fn a_door_does_not_leave_with_a_client_that_has_just_come() {
    let (mut map, id) = with_shared_volume();
    join(&mut map, id, 1).expect("free");
    let before = joined(&map, 1);
    join(&mut map, id, 1).expect("shared");
    assert_eq!(leave(&mut map, id, 1, before), Outcome::Unchanged);
    assert_eq!(map.shared_doors(id).count(), 1);
}

#[test]
fn a_dead_door_ends_nothing_while_another_is_up() {
    let (mut map, id) = with_shared_volume();
    join(&mut map, id, 1).expect("free");
    join(&mut map, id, 2).expect("shared");
    let down = node_down(&map, 2);
    map.apply(None, &down).expect("it dies");
    let region = map.region_named("v").expect("there").1;
    assert!(map.live_writer(region).is_some());
    join(&mut map, id, 3).expect("shared");
    assert_eq!(volume(&map).session, 1);
    for node in [1, 3] {
        let down = node_down(&map, node);
        map.apply(None, &down).expect("it dies");
    }
    let region = map.region_named("v").expect("there").1;
    assert!(map.live_writer(region).is_none());
    assert!(join(&mut map, id, 1).is_err(), "it is down");
    map.apply(None, &node_up(Some(1))).expect("it is back");
    join(&mut map, id, 1).expect("free");
    assert_eq!((volume(&map).session, shared(&map).doors.len()), (2, 1));
}

/// A door that was only taken for dead, while the last of the others left: the session is over for it as well.
#[test]
fn a_door_that_comes_back_does_not_go_on_in_a_session_that_ended() {
    let (mut map, id) = with_shared_volume();
    join(&mut map, id, 1).expect("free");
    join(&mut map, id, 2).expect("shared");
    let down = node_down(&map, 2);
    map.apply(None, &down).expect("it is taken for dead");
    let last = joined(&map, 1);
    assert_eq!(leave(&mut map, id, 1, last), Outcome::Done);
    let (node, incarnation) = (NodeId(2), map.nodes[&NodeId(2)].incarnation);
    let back = Change::NodeBack { node, incarnation };
    map.apply(None, &back).expect("it lives");
    assert_eq!(map.shared_doors(id).count(), 0);
    assert_eq!(volume(&map).writer, None);
}

/// The clients of before it was taken away are told apart from those of after, though the node is the same.
#[test]
fn what_is_taken_away_is_begun_anew() {
    let (mut map, id) = with_shared_volume();
    join(&mut map, id, 1).expect("free");
    join(&mut map, id, 2).expect("shared");
    let (volume_id, session) = (id, 1);
    let detach = Change::DetachVolume {
        volume: volume_id,
        session,
    };
    map.apply(None, &detach).expect("it may");
    assert_eq!((shared(&map).doors.len(), volume(&map).writer), (0, None));
    join(&mut map, id, 1).expect("free");
    assert_eq!((volume(&map).session, shared(&map).began), (2, 2));
}

/// A copy raises the session, and those who write go on.
#[test]
fn a_copy_leaves_the_same_use() {
    let (mut map, id) = with_shared_volume();
    join(&mut map, id, 1).expect("free");
    let copies = vec![crate::image::VolumeCopy {
        of: "v".into(),
        name: "monday".into(),
    }];
    let (kind, at_ms) = (ImageKind::Snapshot, 1);
    let copy = Change::CopyVolumes {
        copies,
        kind,
        at_ms,
    };
    let Ok(Outcome::Region { id: together }) = map.apply(None, &copy) else {
        panic!("it may be copied");
    };
    assert_eq!((volume(&map).session, shared(&map).began), (2, 1));
    assert!(matches!(
        join(&mut map, id, 2),
        Err(Refusal::VolumeIsCopied { .. })
    ));
    let are_good = true;
    let end = Change::EndCopies { together, are_good };
    map.apply(None, &end).expect("it ends");
    join(&mut map, id, 2).expect("shared");
    assert_eq!((volume(&map).session, shared(&map).began), (2, 1));
    assert!(!map.is_shared(together), "a snapshot is nobody's to write");
}

/// A map that has no shared volumes has the bytes that it had before there were any.
#[test]
fn shared_volumes_lie_at_the_end_of_the_map() {
    let (with, id) = with_shared_volume();
    let bytes = postcard::to_allocvec(&with).expect("it fits");
    let read: ClusterMap = postcard::from_bytes(&bytes).expect("it is a map");
    assert_eq!(read, with);
    let mut without = with.clone();
    without.volumes.shared.clear();
    let shorter = postcard::to_allocvec(&without).expect("it fits");
    let tables = |map: &ClusterMap| postcard::to_allocvec(&map.volumes).expect("it fits");
    // The tables before it, which are empty, and its own.
    assert!(bytes.starts_with(&shorter) && bytes.len() > shorter.len());
    assert_eq!(tables(&without), [0; 0]);
    assert!(with.is_shared(id) && !without.is_shared(id));
}
