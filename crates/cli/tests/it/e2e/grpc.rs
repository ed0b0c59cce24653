//! Volumes by gRPC from real processes: written by a program, past killed nodes, and compared.

use std::time::{Duration, Instant};

use staves_grpc::{AttachOptions, ClientOptions, VolumesClient, VolumesError, v1};
use staves_testkit::free_ports;
use staves_testkit::nbd::NbdClient;
use tokio::runtime::Runtime;

use super::scrub::page;
use super::{Cluster, PATIENCE};

/// Nodes with both doors for volumes; the ports of gRPC's, then of NBD's.
pub(super) fn start(count: usize, scheme: &str) -> (Cluster, Vec<u16>, Vec<u16>) {
    let (grpc, nbd) = (free_ports(count), free_ports(count));
    let export = |(grpc, nbd)| {
        format!("export STAVES_GRPC=127.0.0.1:{grpc} && export STAVES_NBD=127.0.0.1:{nbd}")
    };
    let before: Vec<String> = grpc.iter().zip(&nbd).map(export).collect();
    let cluster = Cluster::start_after(&before);
    for args in [
        &[
            "pool", "create", "memory", "--kind", "memory", "--scheme", scheme, "--memory", "60MiB",
        ][..],
        &["volume", "create", "disk", "--size", "40MiB"],
    ] {
        let ran = cluster.run(0, args);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
    (cluster, grpc, nbd)
}

/// A client that asks the node of the first of these ports first.
pub(super) fn client(ports: &[u16]) -> VolumesClient {
    let nodes: Vec<String> = ports.iter().map(|p| format!("127.0.0.1:{p}")).collect();
    VolumesClient::new(&nodes, ClientOptions::default()).expect("addresses")
}

pub(super) const PATIENT: AttachOptions = AttachOptions {
    wait: Duration::from_secs(30),
    take_over: false,
};

fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| seed ^ (i % 251) as u8).collect()
}

#[test]
fn b1_blocks_of_a_program_outlive_its_node_and_are_read_by_nbd() {
    let (mut cluster, grpc, nbd) = start(3, "1+1");
    let runtime = Runtime::new().expect("a runtime");
    let _within = runtime.enter();
    // Asked in this order: the last node first.
    let program = client(&[grpc[2], grpc[1], grpc[0]]);
    let volume = runtime.block_on(program.attach("disk", PATIENT));
    let volume = volume.expect("attached");
    for (seed, at) in [(1, 0), (2, 4096), (3, 65_535), (4, (40 << 20) - 4096)] {
        let written = runtime.block_on(volume.write(at, bytes(seed, 4096)));
        written.expect("written");
    }
    let shown = cluster.run(0, &["volume", "show", "disk"]).stdout;
    assert!(shown.contains("127.0.0.1:"), "{shown}");
    let by_nbd = |at: u64| {
        let address = ([127, 0, 0, 1], nbd[1]).into();
        let mut client = NbdClient::connect(address, "disk").expect("it connects");
        client.read(at, 4096).expect("read")
    };
    assert_eq!(by_nbd(65_535), bytes(3, 4096));
    cluster.end(2, "-KILL");
    let failed = runtime.block_on(volume.write(1, bytes(5, 4096)));
    assert!(
        matches!(failed, Err(VolumesError::SessionOver(_))),
        "{failed:?}"
    );
    let volume = runtime.block_on(program.attach("disk", PATIENT));
    let volume = volume.expect("attached through another node");
    for (seed, at) in [(3, 65_535), (4, (40 << 20) - 4096)] {
        let read = runtime.block_on(volume.read(at, 4096)).expect("read");
        assert_eq!(read, bytes(seed, 4096));
    }
    let written = runtime.block_on(volume.write(4095, bytes(6, 4096)));
    written.expect("written");
    assert_eq!(by_nbd(4095), bytes(6, 4096));
    assert_eq!(volume.session(), 2);
}

#[test]
fn b5_a_byte_that_changed_in_one_members_memory_shows_in_a_check() {
    let (cluster, grpc, _) = start(2, "1+1");
    let runtime = Runtime::new().expect("a runtime");
    let _within = runtime.enter();
    let program = client(&grpc);
    let volume = runtime.block_on(program.attach("disk", PATIENT));
    let volume = volume.expect("attached");
    for seed in 0..8 {
        let written = runtime.block_on(volume.write(seed * 4096, page(seed as usize)));
        written.expect("written");
    }
    let until = Instant::now() + PATIENCE;
    loop {
        let (agree, differ, busy) = check(&runtime, grpc[1]);
        if agree >= 8 {
            assert_eq!((differ, busy), (0, 0));
            break;
        }
        assert!(Instant::now() < until, "{agree} pages agree");
        std::thread::sleep(Duration::from_millis(200));
    }
    let state = runtime.block_on(program.state("disk")).expect("known");
    let copy = cluster.node_of(&state.groups[0].id.to_string(), 1);
    cluster.flip(copy, &page(3), 77);
    let (agree, differ, busy) = check(&runtime, grpc[0]);
    assert_eq!((differ, busy), (1, 0), "{agree} agree");
}

/// Pages of the volume that agree, that differ, and that are busy; none while its groups change.
fn check(runtime: &Runtime, port: u16) -> (u64, u64, u64) {
    let checked = runtime.block_on(async {
        let door = tonic::transport::Endpoint::from_shared(format!("http://127.0.0.1:{port}"));
        let channel = door.expect("an address").connect().await;
        let channel = channel.expect("it connects");
        let mut stub = v1::volumes_client::VolumesClient::new(channel);
        let request = v1::CheckConsistencyRequest {
            volume: "disk".into(),
        };
        let mut groups = stub.check_consistency(request).await?.into_inner();
        let mut sum = (0, 0, 0);
        while let Some(group) = groups.message().await? {
            if group.done {
                sum.0 += group.pages_agree;
                sum.1 += group.pages_differ;
                sum.2 += group.pages_busy;
            }
        }
        Ok::<_, tonic::Status>(sum)
    });
    checked.unwrap_or_default()
}
