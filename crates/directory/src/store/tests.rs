//! The layout of a map in the file: postcard names no fields, so a program that has others reads nonsense.

mod suite;

use staves_model::testing::node_facts;
use staves_model::{
    Change, ClusterId, ClusterMap, Epoch, GroupId, GroupStep, Incarnation, Medium, MemberId,
    MemberSlot, NewEpoch, NodeId, Pin, PoolKind, RegionId, VolumeLimit,
};

/// FNV-1a, so that no bytes need be kept here.
fn digest(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// A map with something of everything.
fn map() -> ClusterMap {
    let mut map = ClusterMap::default();
    let mut make = |change: Change| {
        let made = map.apply(None, &change);
        assert!(made.is_ok(), "{change:?}: {made:?}");
    };
    let cluster = ClusterId(7);
    make(Change::Bootstrap { cluster });
    for (name, zone) in [("a", Some("z")), ("b", None)] {
        let mut facts = node_facts(name, 1 << 30);
        facts.zone = zone.map(str::to_owned);
        make(Change::NodeUp {
            id: None,
            facts,
            durable: zone.is_some(),
            claims: Vec::new(),
        });
    }
    let regions = Vec::new();
    let kinds = [
        ("cache", PoolKind::Cache, Medium::Ram, 1),
        ("memory", PoolKind::Memory { regions }, Medium::Disk, 0),
        ("files", PoolKind::Files(Default::default()), Medium::Ram, 2),
    ];
    for (name, kind, medium, buckets) in kinds {
        make(Change::CreatePool {
            name: name.into(),
            kind,
            scheme: "1+1".parse().expect("a scheme"),
            medium,
            node_budget_bytes: 1 << 24,
            buckets,
            may_start_empty: false,
        });
    }
    let (group, epoch) = (GroupId(1), Epoch(1));
    make(Change::CommitEpochs(vec![NewEpoch {
        group,
        epoch,
        members: vec![Some(MemberId::new(NodeId(1), Incarnation(1))), None],
        kept: vec![None, None],
        coordinator: MemberSlot(0),
        fresh: true,
    }]));
    make(Change::step(GroupStep::Open { group, epoch }));
    make(Change::CreateRegion {
        pool: "memory".into(),
        name: "r".into(),
        size_bytes: 1 << 20,
    });
    make(Change::CreateVolume {
        pool: "memory".into(),
        name: "v".into(),
        size_bytes: 1 << 20,
    });
    make(Change::SetDataset {
        pool: "files".into(),
        name: "d".into(),
        source: "/data".into(),
    });
    make(Change::PinFiles(vec![Pin {
        dataset: "d".into(),
        path: b"p".to_vec(),
        size: 1,
        version: "v".into(),
    }]));
    map
}

#[test]
fn the_stored_map_has_the_layout_of_its_format() {
    let bytes = postcard::to_stdvec(&map()).expect("it encodes");
    assert_eq!(super::FORMAT, 6);
    assert_eq!(
        (bytes.len(), digest(&bytes)),
        (258, 12_131_458_302_208_462_501),
        "the layout of a stored map has changed: raise FORMAT, and have files of the former one converted, or refused \
         with what to do"
    );
}

/// A map that was stored before there were limits is read, and one without any is stored as it was then.
#[test]
fn a_map_of_before_there_were_limits_has_none() {
    // Its digest is that of the format's first maps: see above.
    let before = postcard::to_stdvec(&map()).expect("it encodes");
    let read: ClusterMap = postcard::from_bytes(&before).expect("it decodes");
    assert_eq!(read, map());
    let mut limited = map();
    let limit = Change::LimitVolume {
        name: "v".into(),
        limit: Some(VolumeLimit {
            iops: Some(500),
            bytes_per_second: None,
            burst_ms: 1000,
        }),
    };
    limited.apply(None, &limit).expect("a volume");
    let bytes = postcard::to_stdvec(&limited).expect("it encodes");
    let (read, rest) = postcard::take_from_bytes::<ClusterMap>(&bytes).expect("it decodes");
    assert_eq!((read, rest), (limited, &[][..]));
    for cut in before.len() + 1..bytes.len() {
        assert!(
            postcard::from_bytes::<ClusterMap>(&bytes[..cut]).is_err(),
            "{cut}"
        );
    }
}

/// A map of before there were larger data buckets is read, and one without any is stored as it was then: see the digest above. One
/// that has some is none to a program that knows of none: the state of its groups has a number that there was not.
#[test]
fn a_map_of_before_there_were_larger_buckets_has_none() {
    let mut larger = map();
    let extend = Change::ExtendRegion {
        name: "v".into(),
        size_bytes: 1 << 30,
        bucket_bytes: 1 << 30,
    };
    larger.apply(None, &extend).expect("a volume");
    let bytes = postcard::to_stdvec(&larger).expect("it encodes");
    let read: ClusterMap = postcard::from_bytes(&bytes).expect("it decodes");
    assert_eq!(read, larger);
    let (_, region) = read.region_named("v").expect("there");
    let of = region.stretches.iter().map(|stretch| stretch.bucket_bytes);
    assert_eq!(of.collect::<Vec<_>>(), [64 << 20, 1 << 30]);
}

/// The numbers of changes in the log: a new one stands behind all others.
#[test]
fn entries_of_before_are_the_same() {
    let (volume, session) = (RegionId(5), 2);
    let detach = Change::DetachVolume { volume, session };
    let limit = Change::LimitVolume {
        name: "v".into(),
        limit: None,
    };
    let make = Change::MakeRegion {
        pool: "p".into(),
        name: "v".into(),
        size_bytes: 9,
        bucket_bytes: 1 << 26,
        is_volume: true,
    };
    let bytes = [&detach, &limit, &make];
    let bytes = bytes.map(|change| postcard::to_stdvec(change).expect("it encodes"));
    let made = vec![28, 1, b'p', 1, b'v', 9, 0x80, 0x80, 0x80, 0x20, 1];
    assert_eq!(bytes, [vec![25, 5, 2], vec![27, 1, b'v', 0], made]);
}

/// The folder is the node's identity: others of the machine could take it, or read what the directory has.
#[test]
fn a_data_folder_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &std::path::Path| {
        let found = std::fs::metadata(path).expect("it is there");
        found.permissions().mode() & 0o777
    };
    let outer = tempfile::tempdir().expect("a folder");
    let (made, open) = (outer.path().join("a/made"), outer.path().join("open"));
    std::fs::create_dir(&open).expect("a folder");
    let wide = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&open, wide).expect("it is ours");
    for folder in [made, open] {
        let path = folder.join(super::FILE);
        drop(super::open_file(&folder, &path).expect("it opens"));
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
    }
    // Regression: whatever folder was given was closed to others: /tmp, for one.
    let others = outer.path().join("others");
    std::fs::create_dir(&others).expect("a folder");
    std::fs::set_permissions(&others, std::fs::Permissions::from_mode(0o755)).expect("ours");
    std::fs::write(others.join("letter"), "dear").expect("a file");
    let refused = super::open_file(&others, &others.join(super::FILE));
    let error = refused.map(|_| ()).expect_err("it is not a node's");
    assert!(error.to_string().contains("holds 'letter'"), "{error}");
    assert_eq!(mode(&others), 0o755);
    assert!(!others.join(super::FILE).exists());
}
