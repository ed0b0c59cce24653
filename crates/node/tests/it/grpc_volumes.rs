//! Volumes by gRPC against real nodes: any node serves any volume, one session writes at a time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use staves_client::Client;
use staves_grpc::{AttachOptions, ClientOptions, VolumesClient, VolumesError, v1};
use staves_model::CHUNK_BYTES;
use staves_testkit::cluster::TestCluster;
use staves_testkit::nbd::{EPERM, NbdClient};
use staves_testkit::wait_until;
use tokio::runtime::Runtime;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::memory::{POOL, make_pool, pattern};
use crate::volumes::{MIB, connect, create};

/// A cluster with both doors for volumes, a native client, and a runtime that outlives the nodes.
pub(crate) fn cluster(nodes: usize, scheme: &str) -> (TestCluster, Client, Runtime) {
    let cluster = TestCluster::start_with(nodes, |_, config| {
        config.nbd = Some("127.0.0.1:0".parse().expect("an address"));
        config.grpc = Some("127.0.0.1:0".parse().expect("an address"));
    });
    make_pool(&cluster, POOL, scheme, 24 << 20);
    let client = cluster.native_client();
    (cluster, client, Runtime::new().expect("a runtime"))
}

pub(crate) fn door(cluster: &TestCluster, node: usize) -> SocketAddr {
    cluster.nodes[node].addresses.grpc.expect("it has the door")
}

/// A client of these nodes, in this order.
pub(crate) fn client_of(cluster: &TestCluster, nodes: &[usize]) -> VolumesClient {
    client_from(cluster, nodes, Ipv4Addr::LOCALHOST)
}

fn client_from(cluster: &TestCluster, nodes: &[usize], from: Ipv4Addr) -> VolumesClient {
    let doors: Vec<String> = nodes
        .iter()
        .map(|node| door(cluster, *node).to_string())
        .collect();
    let options = ClientOptions {
        from: Some(IpAddr::V4(from)),
        ..ClientOptions::default()
    };
    VolumesClient::new(&doors, options).expect("addresses")
}

/// Takes over whoever has it.
pub(crate) const TAKE_OVER: AttachOptions = AttachOptions {
    wait: Duration::ZERO,
    take_over: true,
};
/// Refused if somebody has it.
pub(crate) const AT_ONCE: AttachOptions = AttachOptions {
    wait: Duration::ZERO,
    take_over: false,
};
const PATIENT: AttachOptions = AttachOptions {
    wait: Duration::from_secs(30),
    take_over: false,
};

#[test]
fn b1_blocks_at_any_offset_are_written_by_one_node_and_read_by_all_and_by_nbd() {
    let (cluster, client, runtime) = cluster(3, "1+1");
    let size = 1300 * MIB + 512;
    create(&cluster, &client, "v", size);
    runtime.block_on(async {
        let readers: Vec<_> = (0..3).map(|node| client_of(&cluster, &[node])).collect();
        let volume = readers[0].attach("v", AT_ONCE).await.expect("attached");
        assert_eq!((volume.session(), volume.size_bytes()), (1, size));
        let zeroes = volume.read(size - 700, 700).await.expect("read");
        assert_eq!(&zeroes[..], vec![0; 700]);
        // 4 KiB blocks, aligned and not, and longer ones over ends of pages, chunks and groups.
        let places = [
            (0, 4096),
            (3 * 4096 + 17, 4096),
            (12 * 4096 - 1, 4096),
            (CHUNK_BYTES - 5, 9 * MIB as usize),
            (64 * MIB - 9, 70_000),
            (size - 77, 77),
        ];
        for (seed, (offset, len)) in places.into_iter().enumerate() {
            let written = volume.write(offset, pattern(seed as u64, len)).await;
            written.expect("written");
        }
        let mut nbd = connect(&cluster, 2, "v");
        for (seed, (offset, len)) in places.into_iter().enumerate().skip(3) {
            for reader in &readers {
                let read = reader.read("v", offset, len).await.expect("read");
                assert!(read == pattern(seed as u64, len), "{len} bytes at {offset}");
            }
            let read = nbd.read(offset, len).expect("read");
            assert!(read == pattern(seed as u64, len), "{len} bytes at {offset}");
        }
        let zeroed = volume.zero(CHUNK_BYTES, 2 * MIB + 100).await;
        zeroed.expect("zeroed");
        volume.discard(0, 64 * MIB).await.expect("discarded");
        let read = readers[1].read("v", 0, 4096).await.expect("read");
        assert_eq!(&read[..], vec![0; 4096], "a whole piece of 64 KiB is gone");
        let read = readers[1].read("v", 64 * MIB, 60_000).await.expect("read");
        assert!(read == pattern(4, 70_000)[9..60_009], "the rest stays");
        volume.detach().await.expect("detached");
        nbd.write(64 * MIB, b"by nbd").expect("it is free");
        let read = readers[2].read("v", 64 * MIB, 6).await.expect("read");
        assert_eq!(&read[..], b"by nbd");
    });
    let metric = |name: &str| -> u64 { (0..3).map(|i| cluster.nodes[i].metric(name)).sum() };
    assert!(metric("staves_grpc_requests_total{kind=\"write\"}") >= 6);
    assert!(metric("staves_grpc_bytes_total{kind=\"read\"}") > 9 * MIB);
}

#[test]
fn b1_a_client_goes_on_through_another_node_when_its_own_is_killed() {
    let (mut cluster, client, runtime) = cluster(3, "1+2");
    create(&cluster, &client, "v", 10 * MIB);
    let _within = runtime.enter();
    let writer = client_of(&cluster, &[2, 1, 0]);
    let volume = runtime.block_on(writer.attach("v", AT_ONCE));
    let volume = volume.expect("attached");
    runtime
        .block_on(volume.write(4095, pattern(1, 4096)))
        .expect("written");
    cluster.nodes[2].kill();
    let failed = runtime.block_on(volume.write(4095, pattern(2, 4096)));
    assert!(
        matches!(failed, Err(VolumesError::SessionOver(_))),
        "{failed:?}"
    );
    let again = runtime.block_on(volume.write(4095, pattern(2, 4096)));
    assert!(
        matches!(again, Err(VolumesError::SessionOver(_))),
        "never sent again"
    );
    // Reads go on through the next node, and a new session follows once its former node is known to be dead.
    let read = runtime.block_on(volume.read(4095, 4096)).expect("read");
    assert!(read == pattern(1, 4096), "what was answered is there");
    let volume = runtime.block_on(writer.attach("v", PATIENT));
    let volume = volume.expect("attached through another");
    assert_eq!(volume.session(), 2);
    runtime
        .block_on(volume.write(5000, pattern(3, 4096)))
        .expect("written");
    let reader = client_of(&cluster, &[0]);
    let read = runtime
        .block_on(reader.read("v", 4095, 5001))
        .expect("read");
    assert!(read[..905] == pattern(1, 4096)[..905]);
    assert!(read[905..] == pattern(3, 4096));
}

#[test]
fn b1_a_session_that_another_has_followed_writes_nothing() {
    let (cluster, client, runtime) = cluster(2, "1+1");
    create(&cluster, &client, "v", 10 * MIB);
    runtime.block_on(async {
        let (a, b) = (client_of(&cluster, &[0]), client_of(&cluster, &[1]));
        let first = a.attach("v", AT_ONCE).await.expect("attached");
        first.write(1, pattern(1, 5000)).await.expect("written");
        wait_until("the other node knows", || {
            cluster.nodes[1]
                .map()
                .region_named("v")
                .is_some_and(|(_, r)| {
                    r.volume
                        .as_ref()
                        .is_some_and(|volume| volume.writer.is_some())
                })
        });
        let busy = b.attach("v", AT_ONCE).await.expect_err("it has a writer");
        assert_eq!(busy.code(), Some(Code::FailedPrecondition), "{busy}");
        assert!(busy.to_string().contains("attached to 127.0.0.1"), "{busy}");
        first.write(1, pattern(2, 5000)).await.expect("it goes on");
        let second = b.attach("v", TAKE_OVER).await.expect("taken over");
        assert_eq!(second.session(), 2);
        let late = first.write(1, pattern(3, 5000)).await;
        assert!(
            matches!(late, Err(VolumesError::SessionOver(_))),
            "{late:?}"
        );
        // Nor does it by hand, in its own session or the other's, by its own connection or a new one.
        let mut stub = stub(&cluster, 0).await;
        for session in [1, 2, 77] {
            let write = v1::WriteRequest {
                volume: "v".into(),
                session,
                offset: 0,
                data: "late".into(),
            };
            let refused = stub.write(write).await.expect_err("refused");
            assert_eq!(refused.code(), Code::Aborted, "{refused}");
        }
        let read = second.read(1, 5000).await.expect("read");
        assert!(read == pattern(2, 5000), "nothing of the first was done");
        second.write(3, pattern(4, 4096)).await.expect("written");
        // By one connection, too: a second session of it ends the first.
        let attach = |take_over| v1::AttachRequest {
            volume: "v".into(),
            wait_ms: 0,
            take_over,
        };
        let third = stub.attach(attach(true)).await.expect("taken over");
        assert_eq!(third.into_inner().session, 3);
        let refused = stub.attach(attach(false)).await.expect_err("its own");
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let fourth = stub.attach(attach(true)).await.expect("taken over");
        assert_eq!(fourth.into_inner().session, 4);
        let write = |session| v1::WriteRequest {
            volume: "v".into(),
            session,
            offset: 0,
            data: "four".into(),
        };
        let refused = stub.write(write(3)).await.expect_err("over");
        assert_eq!(refused.code(), Code::Aborted);
        stub.write(write(4)).await.expect("written");
    });
    // And NBD's clients are kept out by it.
    wait_until("the door knows", || {
        connect_elsewhere(&cluster).is_read_only()
    });
    let refused = connect_elsewhere(&cluster).write(0, b"no");
    assert_eq!(refused.expect_err("taken").number(), Some(EPERM));
}

fn connect_elsewhere(cluster: &TestCluster) -> NbdClient {
    let from = Ipv4Addr::new(127, 0, 0, 7);
    let nbd = cluster.nodes[1].addresses.nbd.expect("the door");
    NbdClient::connect_from(from, nbd, "v").expect("it connects")
}

pub(crate) async fn channel(door: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{door}"));
    let endpoint = endpoint.expect("an address");
    endpoint.connect().await.expect("it connects")
}

pub(crate) type Stub = v1::volumes_client::VolumesClient<Channel>;

pub(crate) async fn stub(cluster: &TestCluster, node: usize) -> Stub {
    Stub::new(channel(door(cluster, node)).await)
}

/// Waits until a volume has no writer.
fn wait_for_free(cluster: &TestCluster, client: &Client, what: &str) {
    wait_until(what, || {
        let stat = cluster.nodes[0].runtime().block_on(client.volume("v"));
        stat.is_ok_and(|stat| stat.writer.is_none())
    });
}

#[test]
fn b1_a_client_that_goes_without_a_word_lets_go_of_its_volume() {
    let (cluster, client, dies) = cluster(2, "1+1");
    create(&cluster, &client, "v", 10 * MIB);
    let within = dies.enter();
    let gone = client_of(&cluster, &[0]);
    drop(within);
    let held = dies.block_on(gone.attach("v", AT_ONCE)).expect("attached");
    dies.block_on(held.write(0, pattern(1, 4096)))
        .expect("written");
    dies.shutdown_timeout(Duration::from_secs(1));
    drop((held, gone));
    wait_for_free(&cluster, &client, "the connection's end is noticed");
}

/// A write that waits for a node, and that its client gives up; the client writes something else then.
#[test]
fn b1_a_write_that_its_client_gave_up_does_not_follow_what_comes_next() {
    let (cluster, client, runtime) = cluster(3, "1+1");
    create(&cluster, &client, "v", 10 * MIB);
    let map = cluster.nodes[0].map();
    let region = map.region_named("v").expect("made").1;
    let group = &map.groups[&region.groups().next().expect("one")];
    let at = cluster.position(group.members[0].expect("a data bucket").id.node);
    runtime.block_on(async {
        let mut stub = stub(&cluster, (at + 1) % 3).await;
        let attach = v1::AttachRequest {
            volume: "v".into(),
            ..v1::AttachRequest::default()
        };
        let attached = stub.attach(attach.clone()).await.expect("attached");
        let first = attached.into_inner().session;
        let write = |session, data: &'static str| v1::WriteRequest {
            volume: "v".into(),
            session,
            offset: 5,
            data: data.into(),
        };
        stub.write(write(first, "first")).await.expect("written");
        // Its bucket's node stands still; the door is another's.
        cluster.nodes[at].pause(Duration::from_millis(1200));
        let late = stub.write(write(first, "late!"));
        let late = tokio::time::timeout(Duration::from_millis(200), late).await;
        assert!(late.is_err(), "it waits for its bucket: {late:?}");
        let next = stub.write(write(first, "newer")).await;
        let over = next.expect_err("its session is over");
        assert_eq!(over.code(), Code::Aborted, "{over}");
        let attached = stub.attach(v1::AttachRequest {
            wait_ms: 30_000,
            ..attach
        });
        let second = attached.await.expect("attached").into_inner().session;
        assert!(second > first);
        stub.write(write(second, "newer")).await.expect("written");
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let reader = client_of(&cluster, &[at]);
        let read = reader.read("v", 5, 5).await.expect("read");
        assert_eq!(&read[..], b"newer");
    });
}

#[test]
fn b5_heartbeats_and_states_tell_of_nodes_volumes_and_groups() {
    let (mut cluster, client, runtime) = cluster(2, "1+1");
    let _within = runtime.enter();
    create(&cluster, &client, "v", 100 * MIB);
    let reader = client_of(&cluster, &[0]);
    let mut own = runtime.block_on(stub(&cluster, 0));
    let attach = v1::AttachRequest {
        volume: "v".into(),
        ..v1::AttachRequest::default()
    };
    runtime.block_on(own.attach(attach)).expect("attached");
    let beat = runtime.block_on(own.heartbeat(v1::HeartbeatRequest {}));
    let beat = beat.expect("it lives").into_inner();
    assert_eq!((beat.node, beat.stopping), (cluster.nodes[0].id.0, false));
    let session = v1::Session {
        volume: "v".into(),
        session: 1,
    };
    assert_eq!(beat.sessions, [session]);
    let other = runtime.block_on(reader.heartbeat()).expect("it lives");
    assert_eq!(other.cluster, beat.cluster);
    assert!(other.sessions.is_empty(), "another connection");
    let volumes = runtime.block_on(reader.list()).expect("listed");
    let [volume] = &volumes[..] else {
        panic!("one volume: {volumes:?}");
    };
    assert_eq!((volume.size_bytes, &volume.scheme[..]), (100 * MIB, "1+1"));
    assert_eq!(volume.medium(), v1::Medium::Memory);
    let writer = volume.writer.clone().expect("attached");
    assert!(writer.client.starts_with("127.0.0.1:"), "{writer:?}");
    assert_eq!(writer.node, beat.node);
    let health = |client: &VolumesClient| {
        let state = runtime.block_on(client.state("v")).expect("known");
        let groups = state.groups.iter();
        groups.map(v1::Group::health).collect::<Vec<_>>()
    };
    wait_until("both groups are whole", || {
        health(&reader) == [v1::GroupHealth::Whole; 2]
    });
    let state = runtime.block_on(reader.state("v")).expect("known");
    for group in &state.groups {
        let both = group.members.iter().filter(|m| m.up && m.complete).count();
        assert_eq!(both, 2, "{group:?}");
    }
    // One node is left, and its members answer alone.
    cluster.nodes[1].kill();
    wait_until("both groups are short of a member", || {
        health(&reader) == [v1::GroupHealth::Short; 2]
    });
}

#[test]
fn b5_the_members_of_a_volume_are_compared_while_it_is_written() {
    let (cluster, client, runtime) = cluster(3, "1+1");
    create(&cluster, &client, "v", 100 * MIB);
    runtime.block_on(async {
        let writer = client_of(&cluster, &[1]);
        let volume = writer.attach("v", AT_ONCE).await.expect("attached");
        let written = volume
            .write(70 * MIB - 7, pattern(1, 2 * MIB as usize))
            .await;
        written.expect("written");
        let mut stub = stub(&cluster, 0).await;
        let check = v1::CheckConsistencyRequest { volume: "v".into() };
        let stream = stub.check_consistency(check).await.expect("begun");
        let mut stream = stream.into_inner();
        let (mut groups, mut agree) = (0, 0);
        while let Some(group) = stream.message().await.expect("checked") {
            volume
                .write(70 * MIB, pattern(2, 4096))
                .await
                .expect("beside it");
            assert_eq!((group.pages_differ, group.pages_busy), (0, 0), "{group:?}");
            if group.done {
                (groups, agree) = (groups + 1, agree + group.pages_agree);
            }
        }
        assert_eq!(groups, 2);
        assert!(agree >= 2 * MIB / 4096, "{agree}");
    });
}
