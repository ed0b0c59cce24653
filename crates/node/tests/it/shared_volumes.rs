//! Volumes that several clients write at a time: one session for all doors, until it is taken away.

use std::net::Ipv4Addr;

use staves_client::{Client, VolumeKind, VolumeStat};
use staves_hunts::{Hunt, hunt};
use staves_model::mutant::Mutant;
use staves_testkit::cluster::TestCluster;
use staves_testkit::nbd::NbdClient;
use staves_testkit::wait_until;

use crate::memory::POOL;
use crate::volumes::{MIB, cluster, connect, nbd};

fn create_shared(cluster: &TestCluster, client: &Client) {
    let create = client.create_volume_with(POOL, "v", (10 * MIB, None), VolumeKind::Shared);
    let stat = cluster.nodes[0].runtime().block_on(create).expect("made");
    assert!(stat.is_shared && stat.doors.is_empty());
    wait_until("all nodes know the volume", || {
        let maps = cluster.nodes.iter().map(|node| node.map());
        maps.into_iter().all(|map| map.region_named("v").is_some())
    });
}

fn stat(cluster: &TestCluster, client: &Client) -> VolumeStat {
    let stat = cluster.nodes[0].runtime().block_on(client.volume("v"));
    stat.expect("a volume")
}

/// Another machine, for the nodes.
fn connect_from_elsewhere(cluster: &TestCluster, node: usize) -> NbdClient {
    let from = Ipv4Addr::new(127, 0, 0, 7);
    NbdClient::connect_from(from, nbd(cluster, node), "v").expect("it connects")
}

#[test]
fn clients_of_several_doors_write_at_a_time_and_read_what_the_others_wrote() {
    let (cluster, client) = cluster(3, "1+1");
    create_shared(&cluster, &client);
    let mut all = [
        connect(&cluster, 0, "v"),
        connect(&cluster, 0, "v"),
        connect_from_elsewhere(&cluster, 1),
    ];
    for one in &all {
        assert!(one.is_multi_conn() && !one.is_read_only());
    }
    for round in 0..20u8 {
        for at in 0..all.len() {
            let byte = round * 3 + at as u8;
            all[at].write(0, &[byte; 5000]).expect("written");
            // A flush of one covers what another was answered.
            let next = &mut all[(at + 1) % 3];
            next.flush().expect("flushed");
            assert_eq!(next.read(0, 5000).expect("read"), [byte; 5000]);
        }
    }
    let shared = stat(&cluster, &client);
    assert_eq!((shared.session, shared.doors.len()), (1, 2));
    // A copy raises the session, and all go on.
    let snapshot = [("v".to_owned(), "monday".to_owned())];
    let made = client.snapshot_volumes(&snapshot);
    cluster.nodes[0].runtime().block_on(made).expect("made");
    for (at, one) in all.iter_mut().enumerate() {
        one.write(at as u64 * MIB, b"later").expect("written");
    }
    let copy = NbdClient::connect(nbd(&cluster, 2), "v@monday").expect("it connects");
    assert!(copy.is_read_only() && !copy.is_multi_conn());
    drop(all);
    wait_until("nobody has it", || {
        let shared = stat(&cluster, &client);
        (shared.session, shared.writer, shared.doors.len()) == (2, None, 0)
    });
}

#[test]
fn a_shared_volume_that_is_taken_away_ends_all_its_connections() {
    let (cluster, client) = cluster(3, "1+1");
    create_shared(&cluster, &client);
    let mut a = connect(&cluster, 0, "v");
    let mut b = connect_from_elsewhere(&cluster, 1);
    a.write(0, b"of a").expect("written");
    b.write(4, b"of b").expect("written");
    let detach = client.detach_volume("v");
    let detached = cluster.nodes[0].runtime().block_on(detach);
    assert!(detached.expect("it answers"));
    // Through the same node, at once: it is another use.
    let mut c = connect(&cluster, 0, "v");
    c.write(8, b"of c").expect("written");
    assert!(a.write(0, b"late").is_err(), "a was sent away");
    assert!(b.write(4, b"late").is_err(), "b was sent away");
    assert_eq!(c.read(0, 12).expect("read"), b"of aof bof c");
    let shared = stat(&cluster, &client);
    assert_eq!((shared.session, shared.doors.len()), (2, 1));
}

#[test]
fn a_client_that_goes_and_a_node_that_dies_end_nothing_for_others() {
    let (mut cluster, client) = cluster(3, "1+2");
    create_shared(&cluster, &client);
    let mut a = connect(&cluster, 0, "v");
    let mut b = connect_from_elsewhere(&cluster, 1);
    let mut c = connect(&cluster, 2, "v");
    for one in [&mut a, &mut b, &mut c] {
        one.write(0, b"first").expect("written");
    }
    drop(b);
    wait_until("one door has left", || {
        stat(&cluster, &client).doors.len() == 2
    });
    a.write(0, b"again").expect("the others go on");
    c.write(5, b"again").expect("the others go on");
    cluster.nodes[2].kill();
    wait_until("its door is not counted any more", || {
        stat(&cluster, &client).doors.len() == 1
    });
    a.write(0, b"still").expect("the last one goes on");
    let mut d = connect_from_elsewhere(&cluster, 1);
    d.write(5, b"there").expect("and a new one");
    assert_eq!(a.read(0, 10).expect("read"), b"stillthere");
    assert_eq!(stat(&cluster, &client).session, 1);
}

#[test]
fn doors_that_end_too_little_or_too_much_are_seen() {
    hunt(&[
        Hunt {
            mutant: Mutant::SharedOutlivesDetach,
            test: "shared_volumes::a_shared_volume_that_is_taken_away_ends_all_its_connections",
            shows: "was sent away",
        },
        Hunt {
            mutant: Mutant::DoorLeavesForAll,
            test: "shared_volumes::a_client_that_goes_and_a_node_that_dies_end_nothing_for_others",
            shows: "one door has left",
        },
    ]);
}
