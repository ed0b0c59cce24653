//! Snapshots and clones: copied at one instant, and deleted while others share their buckets.

use super::super::*;
use crate::image::{IMAGES_MAX, ImageState};
use crate::map::ClusterMap;
use crate::region::StretchState;
use crate::testing::*;

fn with_volumes() -> ClusterMap {
    let mut map = cluster(3);
    make(&mut map, &create_memory_pool("memory", "1+1", 1 << 29));
    for name in ["v", "w"] {
        let create = Change::CreateVolume {
            pool: "memory".into(),
            name: name.into(),
            size_bytes: 1 << 30,
        };
        make(&mut map, &create);
    }
    map
}

fn make(map: &mut ClusterMap, change: &Change) {
    let made = map.apply(None, change);
    assert!(made.is_ok(), "{change:?}: {made:?}");
}

fn copy(copies: &[(&str, &str)], kind: ImageKind) -> Change {
    let copies = copies.iter().map(|(of, name)| VolumeCopy {
        of: (*of).into(),
        name: (*name).into(),
    });
    Change::CopyVolumes {
        copies: copies.collect(),
        kind,
        at_ms: 77,
    }
}

fn id(map: &ClusterMap, name: &str) -> RegionId {
    map.region_named(name).expect("it is there").1.id
}

fn end(map: &mut ClusterMap, are_good: bool) {
    let together = *map.volumes.images.keys().next_back().expect("copied");
    make(map, &Change::EndCopies { together, are_good });
}

fn snapshot(map: &mut ClusterMap, of: &str, name: &str) {
    make(map, &copy(&[(of, name)], ImageKind::Snapshot));
    end(map, true);
}

fn delete(map: &mut ClusterMap, name: &str) -> Result<Outcome, Refusal> {
    map.apply(None, &Change::DeleteRegion { name: name.into() })
}

fn attach(map: &mut ClusterMap, name: &str, after: u64) -> Result<Outcome, Refusal> {
    let node = NodeId(1);
    let volume = id(map, name);
    let writer = VolumeWriter {
        node,
        incarnation: map.nodes[&node].incarnation,
        client: "10.0.0.7".into(),
    };
    map.apply(
        None,
        &Change::AttachVolume {
            volume,
            after,
            writer,
        },
    )
}

fn session(map: &ClusterMap, name: &str) -> u64 {
    let (_, region) = map.region_named(name).expect("it is there");
    region.volume.as_ref().expect("a volume").session
}

#[test]
fn copies_are_made_together_and_their_origins_go_on_in_a_new_session() {
    let mut map = with_volumes();
    attach(&mut map, "v", 0).expect("free");
    let groups = map.groups.len();
    make(
        &mut map,
        &copy(&[("v", "one"), ("w", "one")], ImageKind::Snapshot),
    );
    assert_eq!(
        map.groups.len(),
        groups,
        "an image has no groups of its own"
    );
    assert_eq!((session(&map, "v"), session(&map, "w")), (2, 1));
    let v = map.region_named("v").expect("there").1.clone();
    assert!(
        v.volume.expect("a volume").writer.is_some(),
        "its client goes on"
    );
    let image = *map.image(id(&map, "v@one")).expect("an image");
    let ImageState::Copying { session, together } = image.state else {
        panic!("{image:?}")
    };
    assert_eq!((session, image.of), (2, id(&map, "v")));
    assert_eq!(map.image_number(id(&map, "v@one")), id(&map, "v@one").0);
    // Nothing else happens to either meanwhile.
    for of in ["v", "w", "v@one"] {
        let refused = map.apply(None, &copy(&[(of, "x")], ImageKind::Clone));
        let is_refused = matches!(refused, Err(Refusal::VolumeIsCopied { .. }));
        assert!(is_refused, "{of}: {refused:?}");
    }
    assert!(matches!(
        attach(&mut map, "w", 1),
        Err(Refusal::VolumeIsCopied { .. })
    ));
    assert!(matches!(
        delete(&mut map, "w"),
        Err(Refusal::VolumeIsCopied { .. })
    ));
    make(
        &mut map,
        &Change::EndCopies {
            together,
            are_good: true,
        },
    );
    attach(&mut map, "w", 1).expect("free again");
    assert!(matches!(
        attach(&mut map, "v@one", 0),
        Err(Refusal::IsSnapshot { .. })
    ));
}

#[test]
fn a_clone_of_a_snapshot_is_a_volume_of_its_own() {
    let mut map = with_volumes();
    let groups = map.groups.len();
    snapshot(&mut map, "v", "one");
    make(&mut map, &copy(&[("v@one", "c")], ImageKind::Clone));
    end(&mut map, true);
    assert_eq!((session(&map, "v"), session(&map, "v@one")), (1, 0));
    attach(&mut map, "c", 0).expect("a volume");
    let grown = Change::GrowRegion {
        name: "c".into(),
        size_bytes: 1 << 31,
    };
    make(&mut map, &grown);
    assert!(map.groups.len() > groups);
    let (_, v) = map.region_named("v").expect("there");
    assert_eq!(v.stretches.len(), 1, "what grows is the clone");
    let grow = Change::GrowRegion {
        name: "v@one".into(),
        size_bytes: 1 << 31,
    };
    assert!(matches!(
        map.apply(None, &grow),
        Err(Refusal::IsSnapshot { .. })
    ));
}

#[test]
fn groups_go_with_the_last_that_has_them() {
    let mut map = with_volumes();
    snapshot(&mut map, "v", "one");
    make(&mut map, &copy(&[("v@one", "c")], ImageKind::Clone));
    end(&mut map, true);
    let grown = Change::GrowRegion {
        name: "c".into(),
        size_bytes: 1 << 31,
    };
    make(&mut map, &grown);
    let all = map.groups.len();
    for name in ["v", "c"] {
        let of = id(&map, name);
        assert_eq!(delete(&mut map, name), Ok(Outcome::Done));
        assert!(matches!(
            delete(&mut map, name),
            Err(Refusal::VolumeIsDeleted { .. })
        ));
        assert!(attach(&mut map, name, 0).is_err());
        assert_eq!(map.groups.len(), all, "the buckets give back first");
        make(&mut map, &Change::ForgetImage(of));
        assert!(map.region_named(name).is_none());
        if name == "v" {
            assert_eq!(map.groups.len(), all, "the others have them");
        }
    }
    assert_eq!(map.groups.len(), all - 16, "those that the clone alone had");
    // The last of them is a plain deletion.
    assert_eq!(delete(&mut map, "v@one"), Ok(Outcome::Done));
    assert!(map.region_named("v@one").is_none());
    assert!(map.volumes.images.is_empty());
    assert_eq!(map.groups.len(), all - 32);
    assert!(
        map.pools
            .values()
            .all(|pool| pool.groups.len() == map.groups.len())
    );
}

#[test]
fn a_copy_that_is_given_up_is_deleted() {
    let mut map = with_volumes();
    make(&mut map, &copy(&[("v", "one")], ImageKind::Snapshot));
    end(&mut map, false);
    let of = id(&map, "v@one");
    assert_eq!(
        map.image(of).map(|image| image.state),
        Some(ImageState::Deleting)
    );
    assert_eq!(session(&map, "v"), 1, "some buckets may know of it");
    attach(&mut map, "v", 1).expect("free");
    make(&mut map, &Change::ForgetImage(of));
    assert!(map.volumes.images.is_empty());
}

#[test]
fn what_cannot_be_copied_is_refused() {
    let mut map = with_volumes();
    let region = Change::CreateRegion {
        pool: "memory".into(),
        name: "r".into(),
        size_bytes: 1,
    };
    make(&mut map, &region);
    snapshot(&mut map, "v", "one");
    let long = "x".repeat(254);
    for (copies, kind) in [
        (&[("r", "s")][..], ImageKind::Snapshot),
        (&[("nobody", "s")], ImageKind::Snapshot),
        (&[], ImageKind::Snapshot),
        (&[("v", "a"), ("v", "b")], ImageKind::Snapshot),
        (&[("v", "a b")], ImageKind::Snapshot),
        (&[("v", "")], ImageKind::Clone),
        (&[("v", "a@b")], ImageKind::Clone),
        (&[("v", "one")], ImageKind::Snapshot),
        (&[("v", "w")], ImageKind::Clone),
        (&[("v", &long)], ImageKind::Snapshot),
        (&[("v", "a"), ("w", "a")], ImageKind::Clone),
        (&[("v@one", "a")], ImageKind::Snapshot),
        (&[("v", "a")], ImageKind::Original),
    ] {
        let before = map.clone();
        let refused = map.apply(None, &copy(copies, kind));
        assert!(refused.is_err(), "{copies:?}");
        assert_eq!(map, before, "{copies:?}");
    }
    for number in 1..IMAGES_MAX {
        snapshot(&mut map, "v", &format!("s{number}"));
    }
    let refused = map.apply(None, &copy(&[("v", "more")], ImageKind::Snapshot));
    assert!(
        matches!(refused, Err(Refusal::TooMany { .. })),
        "{refused:?}"
    );
    snapshot(&mut map, "w", "one");
}

/// Volumes that share buckets may be copied by one change, which must not pass the bound either.
#[test]
fn copies_of_one_change_count_together() {
    let mut map = with_volumes();
    for number in 0..IMAGES_MAX / 2 + 1 {
        make(
            &mut map,
            &copy(&[("v", &format!("c{number}"))], ImageKind::Clone),
        );
        end(&mut map, true);
    }
    let names: Vec<String> = (0..IMAGES_MAX / 2).map(|n| format!("c{n}")).collect();
    let all: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "s")).collect();
    let refused = map.apply(None, &copy(&all, ImageKind::Snapshot));
    assert!(
        matches!(refused, Err(Refusal::TooMany { .. })),
        "{refused:?}"
    );
    make(&mut map, &copy(&all[1..], ImageKind::Snapshot));
}

#[test]
fn a_map_with_images_is_read_as_it_was_stored_and_not_from_a_part_of_it() {
    let mut map = with_volumes();
    let before = postcard::to_stdvec(&map).expect("it encodes");
    assert_eq!(postcard::from_bytes::<ClusterMap>(&before), Ok(map.clone()));
    snapshot(&mut map, "v", "one");
    let bytes = postcard::to_stdvec(&map).expect("it encodes");
    let images = postcard::to_stdvec(&map.volumes.images)
        .expect("they encode")
        .len();
    assert_eq!(postcard::from_bytes::<ClusterMap>(&bytes), Ok(map));
    for cut in bytes.len() - images + 1..bytes.len() {
        let read = postcard::from_bytes::<ClusterMap>(&bytes[..cut]);
        assert!(read.is_err(), "{cut}");
    }
}

/// Regression: the groups of a part that was first written to after it was copied took no writes, for the copy had them as empty.
#[test]
fn a_part_that_is_first_written_to_is_so_in_all_copies_that_have_its_groups() {
    let mut map = with_volumes();
    snapshot(&mut map, "v", "one");
    make(&mut map, &copy(&[("v@one", "c")], ImageKind::Clone));
    end(&mut map, true);
    let states = |map: &ClusterMap| {
        ["v", "v@one", "c", "w"]
            .map(|name| map.region_named(name).expect("there").1.stretches[0].state)
    };
    assert_eq!(states(&map), [StretchState::Empty; 4]);
    let written = Change::WriteRegion {
        region: id(&map, "c"),
        offsets: 0..1,
    };
    make(&mut map, &written);
    let [v, one, c, w] = states(&map);
    assert_eq!([v, one, c], [StretchState::Written; 3]);
    assert_eq!(w, StretchState::Empty);
    assert_eq!(map.apply(None, &written), Ok(Outcome::Unchanged));
}
