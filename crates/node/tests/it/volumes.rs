//! Volumes by NBD against real nodes: one writer at a time, whatever becomes of the doors.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use staves_client::{Client, ErrorCode};
use staves_hunts::{Hunt, hunt};
use staves_model::mutant::Mutant;
use staves_model::{CHUNK_BYTES, MemberSlot, PoolId, ServiceId};
use staves_testkit::cluster::TestCluster;
use staves_testkit::nbd::{ENOSPC, EPERM, NbdClient};
use staves_testkit::wait_until;
use staves_wire::memory::Action;
use staves_wire::service::{Address, Answer, PoolRef};

use crate::memory::{POOL, make_pool, pattern};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn cluster(nodes: usize, scheme: &str) -> (TestCluster, Client) {
    let cluster = TestCluster::start_with(nodes, |_, config| {
        config.nbd = Some("127.0.0.1:0".parse().expect("an address"));
    });
    make_pool(&cluster, POOL, scheme, 24 << 20);
    let client = cluster.native_client();
    (cluster, client)
}

pub(crate) fn create(cluster: &TestCluster, client: &Client, name: &str, size_bytes: u64) {
    let create = client.create_volume(POOL, name, size_bytes);
    let stat = cluster.nodes[0].runtime().block_on(create).expect("made");
    assert_eq!((stat.session, stat.writer), (0, None));
    // Every door knows of it.
    wait_until("all nodes know the volume", || {
        let maps = cluster.nodes.iter().map(|node| node.map());
        maps.into_iter().all(|map| map.region_named(name).is_some())
    });
}

pub(crate) fn nbd(cluster: &TestCluster, node: usize) -> SocketAddr {
    cluster.nodes[node].addresses.nbd.expect("it has the door")
}

pub(crate) fn connect(cluster: &TestCluster, node: usize, name: &str) -> NbdClient {
    NbdClient::connect(nbd(cluster, node), name).expect("it connects")
}

/// Another machine, for the nodes.
fn connect_from_elsewhere(cluster: &TestCluster, node: usize, name: &str) -> NbdClient {
    let from = Ipv4Addr::new(127, 0, 0, 7);
    NbdClient::connect_from(from, nbd(cluster, node), name).expect("it connects")
}

fn session(cluster: &TestCluster, client: &Client, name: &str) -> (u64, Option<u64>) {
    let stat = cluster.nodes[0].runtime().block_on(client.volume(name));
    let stat = stat.expect("a volume");
    (stat.session, stat.writer.map(|writer| writer.node.0))
}

#[test]
fn what_is_written_through_one_node_is_read_through_all_others() {
    let (cluster, client) = cluster(3, "1+1");
    let size = 1300 * MIB + 512;
    create(&cluster, &client, "v", size);
    let mut a = connect(&cluster, 0, "v");
    assert_eq!((a.size_bytes, a.is_read_only()), (size, false));
    assert_eq!(a.read(size - 700, 700).expect("zeroes"), vec![0; 700]);
    // Any length at any place, over ends of pages, chunks and buckets.
    let places = [
        (0, 1),
        (4095, 2),
        (CHUNK_BYTES - 5, 3 * MIB as usize),
        (64 * MIB - 9, 70_000),
        (size - 77, 77),
    ];
    for (seed, (offset, len)) in places.into_iter().enumerate() {
        a.write(offset, &pattern(seed as u64, len))
            .expect("written");
    }
    a.flush().expect("flushed");
    let mut others = [connect(&cluster, 1, "v"), connect(&cluster, 2, "v")];
    for (seed, (offset, len)) in places.into_iter().enumerate() {
        for door in others.iter_mut().chain([&mut a]) {
            let read = door.read(offset, len).expect("read");
            assert!(read == pattern(seed as u64, len), "{len} bytes at {offset}");
        }
    }
    a.zero(CHUNK_BYTES, 2 * MIB as u32 + 100).expect("zeroed");
    a.trim(70 * MIB, 64 * MIB as u32).expect("trimmed");
    a.zero(5 * MIB, 1200 * MIB as u32)
        .expect("more than a request of ours has");
    let [b, _] = &mut others;
    let read = b.read(CHUNK_BYTES - 5, 5).expect("read");
    assert!(read == pattern(2, 5), "what lies before stays");
    assert_eq!(
        b.read(CHUNK_BYTES, 2 * MIB as usize + 100).expect("read"),
        vec![0; 2 * MIB as usize + 100]
    );
    // Beyond the end nothing is written.
    assert_eq!(
        a.write(size - 1, b"no").expect_err("too far").number(),
        Some(ENOSPC)
    );
    assert!(
        NbdClient::connect(nbd(&cluster, 0), "w").is_err(),
        "no such volume"
    );
}

#[test]
fn a_volume_has_one_writer_until_that_lets_go_or_its_door_ends() {
    let (mut cluster, client) = cluster(3, "1+2");
    create(&cluster, &client, "v", 10 * MIB);
    let mut a = connect(&cluster, 2, "v");
    let mut early = connect_from_elsewhere(&cluster, 1, "v");
    assert!(!early.is_read_only(), "nobody has it yet");
    a.write(0, b"of a").expect("written");
    let at = |node: usize| Some(cluster.nodes[node].id.0);
    assert_eq!(session(&cluster, &client, "v"), (1, at(2)));
    // Who came before it was taken, and who comes after.
    let refused = early.write(0, b"of b").expect_err("taken");
    assert_eq!(refused.number(), Some(EPERM));
    wait_until("the other doors know", || {
        connect_from_elsewhere(&cluster, 1, "v").is_read_only()
    });
    let mut reader = connect_from_elsewhere(&cluster, 1, "v");
    assert_eq!(reader.read(0, 4).expect("read"), b"of a");
    let refused = reader.write(0, b"no").expect_err("read-only");
    assert_eq!(refused.number(), Some(EPERM));
    // The same client by another connection: that one has to end first.
    let second = std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let mut second = connect(&cluster, 2, "v");
            second.write(4, b"!!").map(|()| second)
        });
        std::thread::sleep(Duration::from_millis(600));
        a.write(0, b"Of a").expect("it has the volume still");
        drop(a);
        second.join().expect("no panic")
    });
    assert_eq!(session(&cluster, &client, "v").0, 2);
    drop(second.expect("written"));
    wait_until("it is free", || {
        session(&cluster, &client, "v") == (2, None)
    });
    let mut b = connect_from_elsewhere(&cluster, 1, "v");
    b.write(0, b"of b").expect("written");
    assert_eq!(session(&cluster, &client, "v"), (3, at(1)));
    // Its door ends: the next one waits for that and no longer.
    cluster.nodes[1].kill();
    let began = Instant::now();
    wait_until("another door takes it over", || {
        let mut c = connect(&cluster, 2, "v");
        !c.is_read_only() && c.write(8, b"of c").is_ok()
    });
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    let mut c = connect(&cluster, 2, "v");
    assert_eq!(c.read(0, 12).expect("read"), b"of b!!\0\0of c");
}

/// A client whose door has ended, or lost it, goes to the next one and on: it need not know how long a death takes to be seen.
#[test]
fn a_client_that_comes_to_another_door_waits_for_its_former_one_to_end() {
    let (mut cluster, client) = cluster(3, "1+2");
    create(&cluster, &client, "v", 10 * MIB);
    let mut a = connect(&cluster, 2, "v");
    a.write(0, b"one").expect("written");
    cluster.nodes[2].kill();
    let mut b = connect(&cluster, 1, "v");
    assert!(!b.is_read_only());
    b.write(3, b"two").expect("written");
    assert_eq!(b.read(0, 6).expect("read"), b"onetwo");
    drop(a);
}

/// A write whose client has lost its connection waits for a node, and the client writes the same bytes anew by another connection.
#[test]
fn what_a_broken_connection_left_under_way_is_fenced() {
    let (cluster, client) = cluster(3, "1+1");
    create(&cluster, &client, "v", 10 * MIB);
    connect(&cluster, 0, "v")
        .write(0, b"first")
        .expect("written");
    // Its bucket's node stands still; the door is another's.
    let map = cluster.nodes[0].map();
    let region = map.region_named("v").expect("made").1;
    let group = &map.groups[&region.groups().next().expect("one")];
    let at = cluster.position(group.members[0].expect("a data bucket").id.node);
    let door = (at + 1) % 3;
    wait_until("it is free", || session(&cluster, &client, "v").1.is_none());
    let mut a = connect(&cluster, door, "v");
    a.write(0, b"again").expect("written");
    let sessions = session(&cluster, &client, "v").0;
    cluster.nodes[at].pause(Duration::from_millis(1200));
    a.send_write(0, b"late!").expect("sent");
    std::thread::sleep(Duration::from_millis(200));
    drop(a);
    let mut b = connect(&cluster, door, "v");
    b.write(0, b"newer").expect("written");
    assert!(
        session(&cluster, &client, "v").0 > sessions,
        "another session"
    );
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(b.read(0, 5).expect("read"), b"newer");
}

/// Writes that a former door had sent, as they arrive late: at every bucket, written to or not.
fn late_writes_are_fenced() -> Result<(), String> {
    let (cluster, client) = cluster(2, "1+1");
    let size = 200 * MIB;
    create(&cluster, &client, "v", size);
    let mut a = connect(&cluster, 0, "v");
    a.write(0, b"of a").expect("written");
    drop(a);
    wait_until("it is free", || session(&cluster, &client, "v").1.is_none());
    let mut b = connect(&cluster, 1, "v");
    b.write(0, b"of b").expect("written");
    let map = cluster.nodes[0].map();
    let (pool, region) = map.region_named("v").expect("made");
    let (pool, groups): (PoolId, Vec<_>) = (pool.id, region.groups().collect());
    let pool = PoolRef::Id(pool);
    assert_eq!(groups.len(), 4);
    for group in groups {
        let late = Action::Put {
            image: 0,
            session: 1,
            offset: 0,
            bytes: Bytes::from_static(b"late"),
        };
        let op = staves_client::turn::ServiceOp {
            to: Address::Bucket(group, MemberSlot(0)),
            is_write: true,
            answer_bytes: 0,
            body: late.into_body(&mut BytesMut::new()),
        };
        let sent = client.execute_for(
            ServiceId::MEMORY,
            &pool,
            vec![op],
            Instant::now() + Duration::from_secs(10),
        );
        let answers = cluster.nodes[0].runtime().block_on(sent).expect("answers");
        let is_fenced = matches!(&answers[..], [Answer::Error(ErrorCode::Fenced, _)]);
        if !is_fenced {
            return Err(format!("group {group}: {answers:?}"));
        }
    }
    assert_eq!(b.read(0, 4).expect("read"), b"of b");
    Ok(())
}

#[test]
fn nothing_of_a_former_door_takes_effect_at_any_bucket() {
    late_writes_are_fenced().expect("all are fenced");
}

#[test]
fn a_client_whose_volume_is_taken_away_is_told_and_its_connections_end() {
    let (cluster, client) = cluster(2, "1+1");
    let runtime = cluster.nodes[0].runtime();
    create(&cluster, &client, "v", 10 * MIB);
    let mut a = connect(&cluster, 0, "v");
    a.write(0, b"mine").expect("written");
    let refused = runtime.block_on(client.delete_volume("v"));
    let text = refused.expect_err("attached").to_string();
    assert!(text.contains("attached to 127.0.0.1:"), "{text}");
    assert!(
        runtime
            .block_on(client.detach_volume("v"))
            .expect("detached")
    );
    wait_until("its connection ends", || a.has_ended());
    assert!(
        !runtime.block_on(client.detach_volume("v")).expect("asked"),
        "nobody has it"
    );
    // It grows; whoever connects anew sees that, and may write there.
    runtime
        .block_on(client.grow_volume("v", 150 * MIB))
        .expect("grown");
    wait_until("the doors know", || {
        connect(&cluster, 0, "v").size_bytes == 150 * MIB
    });
    let mut a = connect(&cluster, 0, "v");
    a.write(140 * MIB, b"new").expect("written");
    assert_eq!(a.read(140 * MIB, 4).expect("read"), b"new\0");
    drop(a);
    wait_until("it is free", || session(&cluster, &client, "v").1.is_none());
    let mut a = connect(&cluster, 1, "v");
    runtime
        .block_on(client.delete_volume("v"))
        .expect("nobody has it");
    wait_until("its readers' connections end", || a.has_ended());
    assert!(NbdClient::connect(nbd(&cluster, 1), "v").is_err());
    // A region is no volume, and a volume no region.
    create(&cluster, &client, "w", MIB);
    let error = runtime
        .block_on(client.region("w"))
        .map(drop)
        .expect_err("a volume");
    assert!(
        error.to_string().contains("it is written through NBD"),
        "{error}"
    );
    runtime
        .block_on(client.create_region(POOL, "r", MIB))
        .expect("made");
    wait_until("the doors know the region, which is no volume", || {
        let refused = NbdClient::connect(nbd(&cluster, 0), "r").map(drop);
        refused.is_err_and(|error| error.contains("no volume"))
    });
}

#[test]
fn a_door_that_does_not_tell_all_buckets_is_seen() {
    hunt(&[Hunt {
        mutant: Mutant::FenceOfSome,
        test: "volumes::nothing_of_a_former_door_takes_effect_at_any_bucket",
        shows: "all are fenced",
    }]);
}
