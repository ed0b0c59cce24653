//! Groups on disk whose nodes start anew: what their disks have is kept, and waited for.

use super::*;
use crate::change::NodeDisks;

/// `nodes` nodes, and a pool on disk with one group of two copies that is open on two of them.
fn on_disk(nodes: u64) -> TestCluster {
    on_disk_as(nodes, "1+1")
}

/// The same with another scheme.
fn on_disk_as(nodes: u64, scheme: &str) -> TestCluster {
    let mut town = TestCluster::of(cluster(nodes));
    town.change(&create_disk_pool("disk", scheme));
    town.change(&Change::CreateRegion {
        pool: "disk".into(),
        name: "r".into(),
        size_bytes: 1 << 16,
    });
    town.settle();
    town.check_at_rest();
    town
}

fn group(town: &TestCluster) -> &Group {
    &town.map.groups[&GroupId(1)]
}

/// The nodes that hold it, in order of slot.
fn holders(town: &TestCluster) -> Vec<u64> {
    group(town).listed().map(|(_, x)| x.id.node.0).collect()
}

/// A node starts with its disk as it is.
fn restart(town: &mut TestCluster, node: u64) {
    let epoch = group(town).last_open.epoch.0;
    restart_at(town, node, epoch);
}

fn restart_at(town: &mut TestCluster, node: u64, epoch: u64) {
    town.change(&node_up_with(node, &[(1, epoch)]));
}

fn down(town: &mut TestCluster, node: u64) {
    town.change(&node_down(&town.map.clone(), node));
}

fn members_kept(new: &NewEpoch) -> usize {
    new.kept.iter().flatten().count()
}

#[test]
fn a_cluster_that_starts_anew_goes_on_with_what_its_disks_have() {
    for down_before in [false, true] {
        let mut town = on_disk(2);
        let before = group(&town).last_open.epoch;
        if down_before {
            down(&mut town, 1);
            down(&mut town, 2);
            assert_eq!(town.keep(&[]), []);
        }
        restart(&mut town, 1);
        restart(&mut town, 2);
        let said = town.keep(&[]);
        let new = epochs_of(&said);
        assert_eq!((said.len(), new.len(), members_kept(new[0])), (1, 1, 2));
        town.settle();
        town.check_at_rest();
        assert!(group(&town).last_open.epoch > before && !group(&town).lost);
    }
}

/// On disk no node takes a second member: what a data bucket served waits for its node where no other is without a part of the group.
#[test]
fn a_lost_data_bucket_waits_for_its_node_where_no_other_is_free() {
    let mut town = on_disk_as(3, "2+1");
    let data = group(&town).members[0].expect("a data bucket").id.node.0;
    down(&mut town, data);
    town.settle();
    let left = group(&town).clone();
    assert!(
        left.open && !left.lost && left.members[0].is_none(),
        "{left:?}"
    );
    assert!(left.listed().all(|(_, x)| !x.id.is_second()), "{left:?}");
    restart_at(&mut town, data, 1);
    town.settle();
    town.check_at_rest();
    assert_eq!(group(&town).listed().count(), 3);
}

/// Twice in a row, the second time while the epoch that lists the first lives is not open.
#[test]
fn a_cluster_that_starts_anew_twice_goes_on() {
    let mut town = on_disk(2);
    let opened = group(&town).last_open.epoch.0;
    for _ in 0..2 {
        restart_at(&mut town, 1, opened);
        restart_at(&mut town, 2, opened + 1);
        let said = town.keep(&[]);
        assert_eq!(members_kept(epochs_of(&said)[0]), 2, "{said:?}");
    }
    town.settle();
    town.check_at_rest();
    assert_eq!(group(&town).tolerates(|id| town.map.runs(id)), Some(1));
}

#[test]
fn a_node_that_starts_anew_while_another_serves_is_kept() {
    for slot in [0, 1] {
        let mut town = on_disk(3);
        let held = holders(&town);
        restart(&mut town, held[slot]);
        let said = town.keep(&[]);
        let new = epochs_of(&said)[0].clone();
        assert_eq!((new.members.len(), members_kept(&new)), (2, 2), "{new:?}");
        let open = Change::step(GroupStep::Open {
            group: new.group,
            epoch: new.epoch,
        });
        town.change(&open);
        assert_eq!(group(&town).tolerates(|id| town.map.runs(id)), Some(1));
        assert!(group(&town).listed().all(|(_, x)| x.complete));
        town.settle();
        assert_eq!(holders(&town), held);
    }
}

/// The other went on alone, and is gone: what it acknowledged alone is on its disk only.
#[test]
fn an_older_disk_that_returns_alone_waits() {
    let mut town = on_disk(2);
    let held = holders(&town);
    let (older, newest) = (held[0], held[1]);
    let opened = group(&town).last_open.epoch.0;
    down(&mut town, older);
    town.settle();
    assert_eq!(holders(&town), [newest], "it goes on alone");
    down(&mut town, newest);
    town.settle();
    restart_at(&mut town, older, opened);
    assert_eq!(town.keep(&[]), []);
    town.settle();
    assert!(!group(&town).lost);
    assert_eq!(holders(&town), [newest], "nobody serves the older one");
    assert_eq!(town.map.awaited_disks(group(&town)), [NodeId(newest)]);
    restart(&mut town, newest);
    town.settle();
    town.check_at_rest();
    assert_eq!(holders(&town).len(), 2);
}

/// A disk that was put back as it was before the last epoch opened lacks what was acknowledged since.
#[test]
fn an_older_disk_is_filled_anew() {
    let mut town = on_disk(2);
    let older = holders(&town)[0];
    let before = group(&town).last_open.epoch.0 - 1;
    restart_at(&mut town, older, before);
    let said = town.keep(&[]);
    let new = epochs_of(&said)[0];
    assert_eq!((new.members.len(), members_kept(new)), (2, 1), "{new:?}");
    let (first, _) = group(&town).listed().next().expect("one is kept");
    assert!(group(&town).retained(first));
    assert_ne!(holders(&town)[0], older);
    town.settle();
    town.check_at_rest();
}

#[test]
fn a_map_that_retains_an_older_disk_is_seen() {
    crate::mutant::plant(Some(Mutant::OlderDiskRetained));
    let seen = std::panic::catch_unwind(an_older_disk_is_filled_anew);
    crate::mutant::plant(None);
    assert!(seen.is_err(), "it looks at the epoch all the same");
}

/// A node comes up with an empty disk. Another may return: it is waited for. None can: what they held is lost, until one of them finds
/// its disk after all.
#[test]
fn a_group_is_lost_once_no_disk_may_return() {
    let mut town = on_disk(3);
    let held = holders(&town);
    let opened = group(&town).last_open.epoch.0;
    held.iter().for_each(|node| down(&mut town, *node));
    assert_eq!(town.keep(&[]), [], "both may return");
    town.change(&node_up(Some(held[0])));
    assert_eq!(town.keep(&[]), [], "the other may return");
    assert_eq!(town.map.awaited_disks(group(&town)), [NodeId(held[1])]);
    town.change(&node_up(Some(held[1])));
    let groups = vec![GroupId(1)];
    assert_eq!(town.keep(&[]), [Change::MarkLost { groups }]);
    town.settle();
    assert!(group(&town).lost);
    assert_eq!(town.map.awaited_disks(group(&town)), []);
    restart_at(&mut town, held[1], opened);
    town.settle();
    town.check_at_rest();
    assert!(!group(&town).lost);
}

/// A process takes with it what its memory had.
#[test]
fn a_group_in_memory_is_not_waited_for() {
    let mut town = TestCluster::of(cluster(2));
    town.change(&create_memory_pool("memory", "1+1", 1 << 20));
    town.change(&Change::CreateRegion {
        pool: "memory".into(),
        name: "r".into(),
        size_bytes: 1 << 16,
    });
    town.settle();
    down(&mut town, 1);
    down(&mut town, 2);
    let groups = vec![GroupId(1)];
    assert_eq!(town.keep(&[]), [Change::MarkLost { groups }]);
    assert_eq!(town.map.awaited_disks(group(&town)), []);
}

/// One disk of several of a node: its members are dead, and the node, which has room on another one, is filled again.
#[test]
fn a_member_whose_disk_failed_is_filled_again_on_its_node() {
    for slot in [0, 1] {
        let mut town = on_disk(2);
        let held = holders(&town);
        let node = NodeId(held[slot]);
        let gone = Change::SetDisks(NodeDisks {
            node,
            incarnation: town.map.nodes[&node].incarnation,
            disk_bytes: town.map.nodes[&node].disk_bytes,
            gone: vec![(GroupId(1), group(&town).epoch)],
        });
        town.change(&gone);
        let said = town.keep(&[]);
        let new = epochs_of(&said)[0].clone();
        assert_eq!((new.members.len(), members_kept(&new)), (2, 1), "{new:?}");
        town.settle();
        town.check_at_rest();
        assert_eq!(group(&town).tolerates(|id| town.map.runs(id)), Some(1));
        assert_eq!(holders(&town).len(), 2);
    }
}
