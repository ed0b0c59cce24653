//! Changes that are made twice in a row.
//!
//! The directory never repeats a change whose outcome it does not know; the proposer may, after an error that says so.
//! Then a change must not do more than it did the first time: it is refused, or finds everything as it wants it.

use std::collections::HashSet;
use std::mem::discriminant;

use super::super::*;
use crate::files::Holdings;
use crate::ids::{Epoch, MemberSlot};
use crate::map::ClusterMap;
use crate::testing::*;

/// Of all changes one alone is something else each time: a node's new life. Whoever joins names his join, and a
/// leader that knows the name answers again. A former leader's answer that was lost costs an id, or the first of two
/// lives that nobody has begun.
fn is_new_each_time(change: &Change) -> bool {
    match change {
        Change::NodeUp { .. } => true,
        // A kind that is added belongs here, and into the script below.
        Change::Bootstrap { .. }
        | Change::NodeDown { .. }
        | Change::NodeBack { .. }
        | Change::NodeLeft { .. }
        | Change::ForgetNode { .. }
        | Change::Drain { .. }
        | Change::CreatePool { .. }
        | Change::SetPool { .. }
        | Change::DeletePool { .. }
        | Change::CommitEpochs(_)
        | Change::Steps(_)
        | Change::MarkLost { .. }
        | Change::CreateRegion { .. }
        | Change::GrowRegion { .. }
        | Change::DeleteRegion { .. }
        | Change::LoadRegion { .. }
        | Change::WriteRegion { .. }
        | Change::Hold(_)
        | Change::SetDataset { .. }
        | Change::DropDataset { .. }
        | Change::PinFiles(_)
        | Change::UnpinFiles { .. }
        | Change::CreateVolume { .. }
        | Change::AttachVolume { .. }
        | Change::DetachVolume { .. }
        | Change::SetDisks(_)
        | Change::LimitVolume { .. }
        | Change::MakeRegion { .. }
        | Change::ExtendRegion { .. }
        | Change::CopyVolumes { .. }
        | Change::EndCopies { .. }
        | Change::ForgetImage(_)
        | Change::SetCopiesMin { .. }
        | Change::MakeSharedVolume { .. }
        | Change::LeaveVolume { .. }
        | Change::MakeWriteback { .. }
        | Change::GiveUpUnflushed(_) => false,
    }
}

/// A map, and what was tried on it.
struct Script {
    map: ClusterMap,
    tried: HashSet<std::mem::Discriminant<Change>>,
}

impl Script {
    fn make(&mut self, change: Change) {
        let made = self.map.apply(None, &change);
        assert!(made.is_ok(), "{change:?}: {made:?}");
        self.tried.insert(discriminant(&change));
        let after = self.map.clone();
        let again = self.map.apply(None, &change);
        if is_new_each_time(&change) {
            assert_ne!(made, again, "{change:?}");
            self.map = after;
            return;
        }
        let nothing = matches!(again, Err(_) | Ok(Outcome::Unchanged));
        assert!(nothing, "{change:?}: {again:?}");
        assert_eq!(self.map, after, "{change:?}");
    }

    fn life(&self, node: u64) -> (NodeId, Incarnation) {
        (NodeId(node), self.map.nodes[&NodeId(node)].incarnation)
    }

    fn epoch(&mut self, group: u32, fresh: bool, members: &[(u64, Option<u8>)]) {
        let new = NewEpoch {
            fresh,
            ..next_epoch(&self.map, group, members)
        };
        let (group, epoch) = (new.group, new.epoch);
        self.make(Change::CommitEpochs(vec![new]));
        self.make(Change::step(GroupStep::Open { group, epoch }));
    }
}

#[test]
fn a_change_that_is_made_twice_does_no_more_than_once() {
    let mut script = Script {
        map: ClusterMap::default(),
        tried: HashSet::new(),
    };
    let cluster = ClusterId(7);
    script.make(Change::Bootstrap { cluster });
    (0..5).for_each(|_| script.make(node_up(None)));
    groups_and_nodes(&mut script);
    regions(&mut script);
    writeback(&mut script);
    files(&mut script);
    // Every kind of change there is.
    assert_eq!(script.tried.len(), 38);
}

fn groups_and_nodes(script: &mut Script) {
    script.make(create_pool("cache", "1+2", 1, true));
    script.epoch(1, true, &[(1, None), (2, None)]);
    script.epoch(1, false, &[(1, Some(0)), (2, Some(1)), (3, None)]);
    let (node, incarnation) = script.life(3);
    script.make(Change::step(GroupStep::Complete {
        group: GroupId(1),
        epoch: Epoch(2),
        slot: MemberSlot(2),
        incarnation,
    }));
    script.make(Change::SetPool {
        name: "cache".into(),
        scheme: Some("1+1".parse().expect("a scheme")),
        node_budget_bytes: Some(1 << 21),
    });
    script.make(Change::NodeDown { node, incarnation });
    script.make(Change::NodeBack { node, incarnation });
    script.make(Change::Drain { node, on: true });
    script.make(Change::Drain { node, on: false });
    script.make(create_pool("one", "1+0", 1, false));
    script.epoch(2, true, &[(4, None)]);
    let (node, incarnation) = script.life(4);
    script.make(Change::NodeLeft { node, incarnation });
    let groups = vec![GroupId(2)];
    script.make(Change::MarkLost { groups });
    let (node, incarnation) = script.life(5);
    script.make(Change::NodeDown { node, incarnation });
    script.make(Change::ForgetNode { node });
}

fn regions(script: &mut Script) {
    script.make(create_memory_pool("memory", "2+1", 1 << 29));
    let name = || "r".to_owned();
    script.make(Change::CreateRegion {
        pool: "memory".into(),
        name: name(),
        size_bytes: 1 << 20,
    });
    script.make(Change::GrowRegion {
        name: name(),
        size_bytes: 1 << 30,
    });
    let region = script.map.region_named("r").expect("made").1.id;
    script.make(Change::WriteRegion {
        region,
        offsets: 0..1,
    });
    script.make(Change::LoadRegion {
        name: name(),
        load: Some(0..1 << 30),
    });
    script.make(Change::LoadRegion {
        name: name(),
        load: None,
    });

    script.make(Change::DeleteRegion { name: name() });
    volumes(script);
}

fn shared_volumes(script: &mut Script) {
    let (node, incarnation) = script.life(1);
    script.make(Change::MakeSharedVolume {
        pool: "memory".into(),
        name: "shared".into(),
        size_bytes: 1 << 20,
        bucket_bytes: 64 << 20,
    });
    let volume = script.map.region_named("shared").expect("made").1.id;
    let join = Change::AttachVolume {
        volume,
        after: 0,
        writer: VolumeWriter {
            node,
            incarnation,
            client: "10.0.0.7".into(),
        },
    };
    script.map.apply(None, &join).expect("nobody has it");
    let joined = script.map.revision.0;
    script.make(Change::LeaveVolume {
        volume,
        node,
        incarnation,
        joined,
    });
}

fn volumes(script: &mut Script) {
    script.make(Change::CreateVolume {
        pool: "memory".into(),
        name: "v".into(),
        size_bytes: 1 << 20,
    });
    let volume = script.map.region_named("v").expect("made").1.id;
    let (node, incarnation) = script.life(1);
    let client = "10.0.0.7".into();
    script.make(Change::AttachVolume {
        volume,
        after: 0,
        writer: VolumeWriter {
            node,
            incarnation,
            client,
        },
    });
    let session = 1;
    script.make(Change::DetachVolume { volume, session });
    shared_volumes(script);
    let disk_bytes = 1 << 30;
    script.make(Change::SetDisks(NodeDisks {
        node,
        incarnation,
        disk_bytes,
        gone: Vec::new(),
    }));
    let (name, bucket_bytes) = ("w".to_owned(), crate::REGION_BUCKET_BYTES_MAX);
    script.make(Change::MakeRegion {
        pool: "memory".into(),
        name: name.clone(),
        size_bytes: 1 << 31,
        bucket_bytes,
        is_volume: true,
    });
    script.make(Change::ExtendRegion {
        name,
        size_bytes: 1 << 33,
        bucket_bytes,
    });
    script.make(Change::LimitVolume {
        name: "v".into(),
        limit: Some(VolumeLimit {
            iops: Some(100),
            bytes_per_second: None,
            burst_ms: 1000,
        }),
    });
    script.make(Change::SetCopiesMin {
        pool: "memory".into(),
        copies: 2,
    });
    script.make(Change::SetCopiesMin {
        pool: "memory".into(),
        copies: 1,
    });
    copies(script);
}

fn copies(script: &mut Script) {
    let copy = |of: &str, name: &str, kind| Change::CopyVolumes {
        copies: vec![VolumeCopy {
            of: of.into(),
            name: name.into(),
        }],
        kind,
        at_ms: 1,
    };
    let end = |script: &mut Script, are_good| {
        let newest = script.map.volumes.images.keys().next_back();
        let together = *newest.expect("just copied");
        script.make(Change::EndCopies { together, are_good });
        together
    };
    script.make(copy("v", "one", ImageKind::Snapshot));
    end(script, true);
    script.make(copy("v@one", "c", ImageKind::Clone));
    let region = end(script, false);
    script.make(Change::ForgetImage(region));
    let region = script.map.region_named("v").expect("made").1.id;
    let name = "v".to_owned();
    script.make(Change::DeleteRegion { name });
    script.make(Change::ForgetImage(region));
}

fn writeback(script: &mut Script) {
    script.make(create_disk_pool("disk", "1+1"));
    script.make(Change::MakeWriteback {
        pool: "disk".into(),
        name: "back".into(),
        size_bytes: 1 << 20,
        bucket_bytes: crate::REGION_BUCKET_BYTES_MIN,
    });
    let group = script.map.region_named("back").expect("made").1.id.0;
    script.epoch(group, true, &[(1, None), (2, None)]);
    script.make(node_down(&script.map, 1));
    let new = next_epoch(&script.map, group, &[(2, Some(1))]);
    script.make(Change::GiveUpUnflushed(vec![new]));
    script.make(node_up(Some(1)));
}

fn files(script: &mut Script) {
    script.make(Change::CreatePool {
        name: "files".into(),
        kind: PoolKind::Files(Holdings::default()),
        scheme: "1+0".parse().expect("a scheme"),
        medium: Medium::Ram,
        node_budget_bytes: 1 << 20,
        buckets: 4,
        may_start_empty: true,
    });
    let pool = script.map.pool_named("files").expect("made").id;
    let (node, incarnation) = script.life(1);
    let hold = |take: &[u32], leave: &[u32], flag: &[u32], unflag: &[u32]| {
        Change::Hold(NewHoldings {
            pool,
            node,
            incarnation,
            take: take.to_vec(),
            leave: leave.to_vec(),
            flag: flag.to_vec(),
            unflag: unflag.to_vec(),
        })
    };
    script.make(hold(&[0, 1], &[], &[], &[]));
    script.make(hold(&[], &[], &[1], &[]));
    script.make(hold(&[], &[], &[], &[1]));
    let (dataset, path) = ("d".to_owned(), b"a/b".to_vec());
    script.make(Change::SetDataset {
        pool: "files".into(),
        name: dataset.clone(),
        source: "/data".into(),
    });
    script.make(Change::PinFiles(vec![Pin {
        dataset: dataset.clone(),
        path: path.clone(),
        size: 1,
        version: "1".into(),
    }]));
    script.make(Change::UnpinFiles {
        dataset: dataset.clone(),
        paths: vec![path],
    });
    script.make(Change::DropDataset { name: dataset });
    let name = "files".to_owned();
    script.make(Change::DeletePool { name });
}
