//! Sessions of volumes: one at a time, each with a higher number than those before.

use super::super::*;
use crate::map::ClusterMap;
use crate::region::Volume;
use crate::testing::*;

fn with_volume() -> (ClusterMap, RegionId) {
    let mut map = cluster(3);
    let pool = create_memory_pool("memory", "1+1", 1 << 29);
    map.apply(None, &pool).expect("new");
    let create = Change::CreateVolume {
        pool: "memory".into(),
        name: "v".into(),
        size_bytes: 1 << 30,
    };
    map.apply(None, &create).expect("new");
    let id = map.region_named("v").expect("made").1.id;
    (map, id)
}

fn writer(map: &ClusterMap, node: u64, client: &str) -> VolumeWriter {
    let node = NodeId(node);
    VolumeWriter {
        node,
        incarnation: map.nodes[&node].incarnation,
        client: client.into(),
    }
}

fn volume(map: &ClusterMap) -> Volume {
    map.region_named("v")
        .and_then(|(_, region)| region.volume.clone())
        .expect("a volume")
}

fn attach(
    map: &mut ClusterMap,
    id: RegionId,
    after: u64,
    of: &VolumeWriter,
) -> Result<Outcome, Refusal> {
    let change = Change::AttachVolume {
        volume: id,
        after,
        writer: of.clone(),
    };
    map.apply(None, &change)
}

fn detach(map: &mut ClusterMap, volume: RegionId, session: u64) -> Result<Outcome, Refusal> {
    map.apply(None, &Change::DetachVolume { volume, session })
}

#[test]
fn a_volume_is_attached_to_one_client_until_it_lets_go() {
    let (mut map, id) = with_volume();
    let (a, b) = (writer(&map, 1, "10.0.0.7"), writer(&map, 2, "10.0.0.8"));
    assert_eq!(attach(&mut map, id, 0, &a), Ok(Outcome::Done));
    assert_eq!(
        attach(&mut map, id, 0, &a),
        Ok(Outcome::Unchanged),
        "asked twice"
    );
    for after in [0, 1] {
        let refused = attach(&mut map, id, after, &b);
        assert!(
            matches!(refused, Err(Refusal::VolumeAttached { .. })),
            "{refused:?}"
        );
    }
    // The same client through another node is another door: what it sent to the first one may still be on its way.
    let elsewhere = writer(&map, 2, "10.0.0.7");
    assert!(attach(&mut map, id, 1, &elsewhere).is_err());
    assert_eq!(
        detach(&mut map, id, 7),
        Ok(Outcome::Unchanged),
        "another session"
    );
    assert_eq!(detach(&mut map, id, 1), Ok(Outcome::Done));
    assert_eq!(detach(&mut map, id, 1), Ok(Outcome::Unchanged));
    let late = attach(&mut map, id, 0, &a);
    assert!(
        matches!(late, Err(Refusal::SessionMovedOn { .. })),
        "{late:?}"
    );
    assert_eq!(attach(&mut map, id, 1, &b), Ok(Outcome::Done));
    assert_eq!(
        volume(&map),
        Volume {
            session: 2,
            writer: Some(b)
        }
    );
}

#[test]
fn a_door_that_is_down_holds_nothing() {
    let (mut map, id) = with_volume();
    let (a, b) = (writer(&map, 1, "a"), writer(&map, 2, "b"));
    attach(&mut map, id, 0, &a).expect("free");
    let down = Change::NodeDown {
        node: a.node,
        incarnation: a.incarnation,
    };
    map.apply(None, &down).expect("up");
    assert!(
        attach(&mut map, id, 1, &a).is_err(),
        "its own node does not attach again"
    );
    assert_eq!(attach(&mut map, id, 1, &b), Ok(Outcome::Done));
    let back = Change::NodeBack {
        node: a.node,
        incarnation: a.incarnation,
    };
    map.apply(None, &back).expect("down");
    assert_eq!(volume(&map).session, 2, "who comes back finds it taken");
    assert!(attach(&mut map, id, 2, &a).is_err());
    assert_eq!(
        detach(&mut map, id, 1),
        Ok(Outcome::Unchanged),
        "and cannot end the other's"
    );
    assert_eq!(volume(&map).writer, Some(b));
}

#[test]
fn an_attached_volume_is_not_deleted_and_never_loaded() {
    let (mut map, id) = with_volume();
    let name = || "v".to_owned();
    let load = Change::LoadRegion {
        name: name(),
        load: Some(0..1 << 30),
    };
    let refused = map.apply(None, &load);
    assert!(
        matches!(refused, Err(Refusal::IsVolume { .. })),
        "{refused:?}"
    );
    let a = writer(&map, 1, "a");
    attach(&mut map, id, 0, &a).expect("free");
    let delete = Change::DeleteRegion { name: name() };
    let refused = map.apply(None, &delete);
    assert!(
        matches!(refused, Err(Refusal::VolumeAttached { .. })),
        "{refused:?}"
    );
    let grow = Change::GrowRegion {
        name: name(),
        size_bytes: 3 << 30,
    };
    map.apply(None, &grow)
        .expect("it grows while it is attached");
    assert_eq!(volume(&map).session, 1);
    detach(&mut map, id, 1).expect("attached");
    map.apply(None, &delete).expect("nobody has it");
    let region = Change::CreateRegion {
        pool: "memory".into(),
        name: name(),
        size_bytes: 1,
    };
    map.apply(None, &region).expect("the name is free");
    let id = map.region_named("v").expect("made").1.id;
    let refused = attach(&mut map, id, 0, &a);
    assert!(
        matches!(refused, Err(Refusal::NotAVolume { .. })),
        "{refused:?}"
    );
}

fn limit(map: &mut ClusterMap, iops: u64) -> Result<Outcome, Refusal> {
    let limit = VolumeLimit {
        iops: Some(iops),
        bytes_per_second: None,
        burst_ms: 1000,
    };
    change_limit(map, "v", Some(limit))
}

fn change_limit(
    map: &mut ClusterMap,
    name: &str,
    limit: Option<VolumeLimit>,
) -> Result<Outcome, Refusal> {
    let name = name.to_owned();
    map.apply(None, &Change::LimitVolume { name, limit })
}

#[test]
fn a_limit_stays_until_it_is_taken_away_or_the_volume_is_deleted() {
    let (mut map, id) = with_volume();
    let a = writer(&map, 1, "a");
    attach(&mut map, id, 0, &a).expect("free");
    assert_eq!(limit(&mut map, 100), Ok(Outcome::Done));
    assert_eq!(limit(&mut map, 100), Ok(Outcome::Unchanged), "asked twice");
    assert_eq!(limit(&mut map, 200), Ok(Outcome::Done));
    detach(&mut map, id, 1).expect("attached");
    assert_eq!(
        map.volumes.limits.get(&id).and_then(|limit| limit.iops),
        Some(200)
    );
    assert_eq!(change_limit(&mut map, "v", None), Ok(Outcome::Done));
    assert_eq!(change_limit(&mut map, "v", None), Ok(Outcome::Unchanged));
    let name = || "v".to_owned();
    for delete in [
        Change::DeleteRegion { name: name() },
        Change::DeletePool {
            name: "memory".into(),
        },
    ] {
        let (mut map, _) = with_volume();
        limit(&mut map, 1).expect("a volume");
        map.apply(None, &delete).expect("nobody has it");
        assert!(map.volumes.limits.is_empty(), "{delete:?}");
    }
}

#[test]
fn a_limit_that_is_none_is_refused_and_a_region_has_none() {
    let (mut map, _) = with_volume();
    let before = map.clone();
    let of = |iops, bytes_per_second, burst_ms| VolumeLimit {
        iops,
        bytes_per_second,
        burst_ms,
    };
    for wrong in [
        of(None, None, 1000),
        of(Some(0), None, 1000),
        of(Some(1), Some(1000), 1000),
        of(Some(1), None, 0),
        of(Some(1), None, 60_001),
    ] {
        let refused = change_limit(&mut map, "v", Some(wrong));
        let is_refused = matches!(refused, Err(Refusal::BadLimit { .. }));
        assert!(is_refused, "{wrong:?}: {refused:?}");
    }
    assert_eq!(map, before);
    let region = Change::CreateRegion {
        pool: "memory".into(),
        name: "r".into(),
        size_bytes: 1,
    };
    map.apply(None, &region).expect("the name is free");
    let refused = change_limit(&mut map, "r", None);
    assert!(
        matches!(refused, Err(Refusal::NotAVolume { .. })),
        "{refused:?}"
    );
}
