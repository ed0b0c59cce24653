//! Limits and figures of volumes that are served by gRPC.

use std::time::{Duration, Instant};

use staves_grpc::v1;
use staves_model::{Change, VolumeLimit};
use staves_testkit::wait_until;

use crate::grpc_volumes::{AT_ONCE, client_of, cluster, stub};
use crate::memory::pattern;
use crate::volumes::{MIB, connect, create};

const IOPS: u64 = 50;
const BURST_MS: u64 = 100;
const LIMIT: VolumeLimit = VolumeLimit {
    iops: Some(IOPS),
    bytes_per_second: None,
    burst_ms: BURST_MS,
};

#[test]
fn b1_a_limited_volume_does_no_more_by_both_doors_together_and_its_calls_show() {
    let (cluster, client, runtime) = cluster(1, "1+0");
    create(&cluster, &client, "v", 10 * MIB);
    let limited = Change::LimitVolume {
        name: "v".into(),
        limit: Some(LIMIT),
    };
    cluster.nodes[0].propose(&limited).expect("limited");
    let mut nbd = connect(&cluster, 0, "v");
    let began = Instant::now();
    runtime.block_on(async {
        let volumes = client_of(&cluster, &[0]);
        let volume = volumes.attach("v", AT_ONCE).await.expect("attached");
        for i in 0..60 {
            let written = volume.write(i * 4096, pattern(i, 4096)).await;
            written.expect("written");
        }
        volume.zero(0, 4096).await.expect("zeroed");
        volume.discard(MIB, MIB).await.expect("discarded");
        for i in 1..20 {
            let read = volumes.read("v", i * 4096, 4096).await.expect("read");
            assert!(read == pattern(i, 4096), "{i}");
        }
        let flush = v1::FlushRequest {
            volume: "v".into(),
            session: 0,
        };
        let flushed = stub(&cluster, 0).await.flush(flush).await;
        flushed.expect("flushed");
    });
    for i in 20..40 {
        let read = nbd.read(i * 4096, 4096).expect("read");
        assert!(read == pattern(i, 4096), "{i}");
    }
    let took = began.elapsed();
    // 101 requests, less what was saved up and the last, which need not be paid for.
    let least = Duration::from_millis(1000 * (101 - 1) / IOPS - BURST_MS);
    assert!(took >= least - Duration::from_millis(200), "{took:?}");
    wait_until("the last of NBD's requests is counted", || {
        let name = r#"staves_volume_requests_total{volume="v",op="read"}"#;
        cluster.nodes[0].metric(name) == 39
    });
    for (figure, op, count) in [
        ("requests", "write", 60),
        ("requests", "zero", 1),
        ("requests", "discard", 1),
        ("requests", "flush", 1),
        ("bytes", "read", 39 * 4096),
        ("bytes", "write", 60 * 4096),
        ("bytes", "discard", MIB),
        ("errors", "write", 0),
    ] {
        let name = format!("staves_volume_{figure}_total{{volume=\"v\",op=\"{op}\"}}");
        assert_eq!(cluster.nodes[0].metric(&name), count, "{name}");
    }
}
