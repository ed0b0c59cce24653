//! Write-back: an epoch keeps those who hold what was not flushed, or ends the sessions of the time in which it was written.

use super::*;
use crate::change::Refusal;
use crate::ids::RegionId;
use crate::image::{ImageKind, VolumeCopy};
use crate::mutant::plant;
use crate::region::VolumeWriter;

const VOLUME: RegionId = RegionId(1);

/// `nodes` nodes, and a volume with write-back in one group, which a client behind the last node has in session 1.
fn attached(nodes: u64, scheme: &str) -> TestCluster {
    let mut town = TestCluster::of(cluster(nodes));
    town.change(&create_disk_pool("disk", scheme));
    town.change(&volume("disk"));
    town.settle();
    town.check_at_rest();
    attach(&mut town, nodes, 0);
    town
}

fn volume(pool: &str) -> Change {
    Change::MakeWriteback {
        pool: pool.into(),
        name: "v".into(),
        size_bytes: 1 << 16,
        bucket_bytes: 64 << 20,
    }
}

fn attach(town: &mut TestCluster, node: u64, after: u64) {
    let node = NodeId(node);
    let writer = VolumeWriter {
        node,
        incarnation: town.map.nodes[&node].incarnation,
        client: "1.2.3.4:5".into(),
    };
    town.change(&Change::AttachVolume {
        volume: VOLUME,
        after,
        writer,
    });
}

fn group(town: &TestCluster) -> &Group {
    &town.map.groups[&GroupId(1)]
}

fn holders(town: &TestCluster) -> Vec<u64> {
    group(town).listed().map(|(_, x)| x.id.node.0).collect()
}

/// A node starts with its disk as it is.
fn restart(town: &mut TestCluster, node: u64) {
    let epoch = group(town).last_open.epoch.0;
    town.change(&node_up_with(node, &[(1, epoch)]));
}

fn down(town: &mut TestCluster, node: u64) {
    town.change(&node_down(&town.map.clone(), node));
}

/// The session of the volume, whether somebody has it, and the one up to which all are over.
fn session(town: &TestCluster) -> (u64, bool, u64) {
    let (_, region) = town.map.region(VOLUME).expect("the volume");
    let volume = region.volume.clone().expect("a volume");
    let over = town.map.sessions_over(GroupId(1));
    let over = over.get(&0).copied().unwrap_or(0);
    (volume.session, volume.writer.is_some(), over)
}

const GOES_ON: (u64, bool, u64) = (1, true, 0);
const OVER: (u64, bool, u64) = (2, false, 2);

fn gives_up(changes: &[Change]) -> bool {
    let given_up = |c: &Change| matches!(c, Change::GiveUpUnflushed(_));
    changes.iter().any(given_up)
}

/// The epochs of a scheme after a crash of some nodes that come back; whether they keep the sessions.
fn after_crashes(scheme: &str, nodes: u64, crashed: &[usize]) -> (u64, bool, u64) {
    let mut town = attached(nodes + 1, scheme);
    let held = holders(&town);
    crashed.iter().for_each(|at| restart(&mut town, held[*at]));
    town.settle();
    town.check_at_rest();
    assert!(town.map.volumes.broken.is_empty(), "a new epoch is open");
    session(&town)
}

#[test]
fn sessions_are_over_where_too_few_have_lived_on_and_the_planted_bugs_are_seen() {
    let cases = [
        ("1+1", 2, &[0][..], GOES_ON),
        ("1+1", 2, &[1], GOES_ON),
        ("1+1", 2, &[0, 1], OVER),
        ("1+2", 3, &[0, 2], GOES_ON),
        ("1+2", 3, &[0, 1, 2], OVER),
        ("2+1", 3, &[0], GOES_ON),
        ("2+1", 3, &[2], GOES_ON),
        ("2+1", 3, &[0, 2], OVER),
        ("2+2", 4, &[1, 3], GOES_ON),
        ("2+2", 4, &[0, 1, 3], OVER),
    ];
    let wrong = || {
        let mut cases = cases.iter();
        let is_wrong = |(scheme, nodes, crashed, expected): &&(&str, u64, &[usize], _)| {
            after_crashes(scheme, *nodes, crashed) != *expected
        };
        cases.find(is_wrong).map(|case| format!("{case:?}"))
    };
    assert_eq!(wrong(), None);
    for mutant in [Mutant::BrokenLivesAtOnce, Mutant::GiveUpKeepsSessions] {
        plant(Some(mutant));
        let found = wrong();
        plant(None);
        assert!(found.is_some(), "{mutant:?} was not found");
    }
}

/// The other may run on, unseen: it is waited for, and if it is back all goes on.
#[test]
fn who_may_hold_what_was_not_flushed_is_waited_for() {
    for is_back in [true, false] {
        let mut town = attached(3, "1+1");
        let held = holders(&town);
        let life = town.map.nodes[&NodeId(held[1])].incarnation;
        restart(&mut town, held[0]);
        down(&mut town, held[1]);
        assert_eq!(town.keep(&[]), []);
        assert_eq!(town.map.awaited_disks(group(&town)), [NodeId(held[1])]);
        for _ in 0..59 {
            town.wait(1_000);
            assert_eq!(town.keep(&[]), []);
        }
        assert_eq!(session(&town), GOES_ON);
        if is_back {
            town.change(&node_back(held[1], life));
            town.settle();
            assert_eq!(session(&town), GOES_ON);
            continue;
        }
        town.wait(1_500);
        let said = town.keep(&[]);
        assert!(gives_up(&said), "{said:?}");
        assert_eq!(session(&town), OVER);
        town.settle();
        assert!(group(&town).open);
        assert_eq!(session(&town), OVER, "once");
        // Another session begins, and goes on while somebody lives on.
        attach(&mut town, 3, 2);
        restart(&mut town, held[0]);
        town.settle();
        assert_eq!(session(&town), (3, true, 2));
    }
}

/// A node that comes back without its disk has nothing: there is nobody to wait for.
#[test]
fn who_is_known_to_be_gone_is_not_waited_for() {
    let mut town = attached(3, "1+1");
    let held = holders(&town);
    restart(&mut town, held[0]);
    down(&mut town, held[1]);
    assert_eq!(town.keep(&[]), []);
    town.change(&node_up(Some(held[1])));
    let said = town.keep(&[]);
    assert!(!gives_up(&said) && !said.is_empty(), "{said:?}");
    assert_eq!(session(&town), OVER);
}

#[test]
fn the_map_refuses_epochs_that_drop_what_others_hold() {
    let mut town = attached(3, "1+1");
    let held = holders(&town);
    restart(&mut town, held[0]);
    let alone = next_epoch(&town.map, 1, &[(held[0], Some(0))]);
    let given_up = Change::GiveUpUnflushed(vec![alone.clone()]);
    let alone = Change::CommitEpochs(vec![alone]);
    let refused = |town: &mut TestCluster, change: &Change| {
        matches!(
            town.map.apply(None, change),
            Err(Refusal::UnflushedAwaited { .. })
        )
    };
    assert!(refused(&mut town, &alone));
    assert!(refused(&mut town, &given_up), "the other one runs");
    down(&mut town, held[1]);
    assert!(refused(&mut town, &alone));
    assert!(!refused(&mut town, &given_up));
    assert_eq!(session(&town), OVER);
}

/// A clone shares the groups of its origin, and so what becomes of them.
#[test]
fn a_clone_is_write_back_too_and_its_sessions_end_as_well() {
    let mut town = attached(3, "1+1");
    let copies = vec![VolumeCopy {
        of: "v".into(),
        name: "c".into(),
    }];
    town.change(&Change::CopyVolumes {
        copies,
        kind: ImageKind::Clone,
        at_ms: 0,
    });
    let (clone, session_of_clone) = {
        let (_, region) = town.map.region_named("c").expect("the clone");
        (region.id, region.volume.clone().expect("one").session)
    };
    assert_eq!(session_of_clone, 0);
    assert!(town.map.writeback(clone).is_some());
    town.change(&Change::EndCopies {
        together: clone,
        are_good: true,
    });
    let writer = town
        .map
        .region(VOLUME)
        .and_then(|r| r.1.volume.clone()?.writer);
    town.change(&Change::AttachVolume {
        volume: clone,
        after: 0,
        writer: writer.expect("attached"),
    });
    let held = holders(&town);
    held.iter().for_each(|node| restart(&mut town, *node));
    town.settle();
    let over = town.map.sessions_over(GroupId(1));
    let number = town.map.image_number(clone);
    // The copy took the origin to its second session.
    assert_eq!(over.into_iter().collect::<Vec<_>>(), [(0, 3), (number, 2)]);
    // The map says the same after a way over the wire, and without write-back has the bytes that it had.
    let bytes = postcard::to_allocvec(&town.map).expect("encoded");
    assert_eq!(postcard::from_bytes(&bytes), Ok(town.map.clone()));
    town.change(&Change::DeleteRegion { name: "c".into() });
    town.change(&Change::ForgetImage(clone));
    assert!(town.map.writeback(clone).is_none());
}

#[test]
fn a_pool_in_memory_has_no_write_back() {
    let mut map = cluster(1);
    map.apply(None, &create_memory_pool("m", "1+0", 1 << 20))
        .expect("a new pool");
    let refusal = map.apply(None, &volume("m")).expect_err("no disk");
    assert!(
        refusal.to_string().contains("no disk to write back to"),
        "{refusal}"
    );
}
