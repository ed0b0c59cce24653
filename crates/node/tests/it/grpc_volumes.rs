//! Volumes by gRPC against real nodes: any node serves any volume, one session writes at a time.

use std::net::SocketAddr;
use std::time::Duration;

use staves_client::Client;
use staves_grpc::{AttachOptions, ClientOptions, VolumesClient, VolumesError, v1};
use staves_model::CHUNK_BYTES;
use staves_testkit::cluster::TestCluster;
use staves_testkit::wait_until;
use tokio::runtime::Runtime;
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
    let doors: Vec<String> = nodes
        .iter()
        .map(|node| door(cluster, *node).to_string())
        .collect();
    VolumesClient::new(&doors, ClientOptions::default()).expect("addresses")
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

pub(crate) async fn channel(door: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{door}"));
    let endpoint = endpoint.expect("an address");
    endpoint.connect().await.expect("it connects")
}

pub(crate) type Stub = v1::volumes_client::VolumesClient<Channel>;

pub(crate) async fn stub(cluster: &TestCluster, node: usize) -> Stub {
    Stub::new(channel(door(cluster, node)).await)
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
