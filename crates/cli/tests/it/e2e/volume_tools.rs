//! The tools of those who run volumes: figures, rates, limits and checks, with real nodes.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use staves_testkit::nbd::NbdClient;

use super::descriptors::{figure, page};
use super::volumes::{make, start};
use super::{Cluster, PATIENCE};

fn connect(port: u16) -> NbdClient {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    NbdClient::connect(address, "disk").expect("it connects")
}

/// Waits until the page of metrics of a node is as it should be.
fn until_page(cluster: &Cluster, i: usize, holds: impl Fn(&str) -> bool) {
    let until = Instant::now() + PATIENCE;
    loop {
        let text = page(cluster.nodes[i].admin, "/metrics");
        if holds(&text) {
            return;
        }
        assert!(Instant::now() < until, "{text}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_node_counts_the_requests_of_each_volume_until_it_is_deleted() {
    let (cluster, ports) = start(2);
    make(&cluster, "1+1", "4MiB");
    let mut client = connect(ports[0]);
    for at in 0..5u64 {
        client.write(at << 12, &[7; 4096]).expect("written");
    }
    client.read(0, 8192).expect("read");
    client.flush().expect("flushed");
    client.trim(0, 65536).expect("trimmed");
    client.zero(65536, 4096).expect("zeroed");
    let beyond = client.write(4 << 20, &[1; 512]);
    assert!(beyond.is_err(), "it lies beyond the end");
    let text = page(cluster.nodes[0].admin, "/metrics");
    let of = |name: &str, op: &str| {
        let name = format!("staves_volume_{name}{{volume=\"disk\",op=\"{op}\"}} ");
        figure(&text, &name)
    };
    let counts = [
        ("read", 1, 8192),
        ("write", 5, 5 * 4096),
        ("flush", 1, 0),
        ("discard", 1, 65536),
        ("zero", 1, 4096),
    ];
    for (op, requests, bytes) in counts {
        assert_eq!(of("requests_total", op), requests, "{op}");
        assert_eq!(of("bytes_total", op), bytes, "{op}");
        assert_eq!(of("errors_total", op), 0, "{op}");
        assert_eq!(of("request_seconds_count", op), requests, "{op}");
    }
    let all = "staves_volume_request_seconds_bucket{volume=\"disk\",op=\"write\",le=\"+Inf\"} ";
    assert_eq!(figure(&text, all), 5);
    assert!(text.contains("# TYPE staves_volume_request_seconds histogram\n"));
    let other = page(cluster.nodes[1].admin, "/metrics");
    assert!(
        !other.contains("volume=\"disk\""),
        "nobody has it from there"
    );
    drop(client);
    let detached = |text: &str| text.contains("staves_nbd_connections 0\n");
    until_page(&cluster, 0, detached);
    let deleted = cluster.run(0, &["volume", "delete", "disk", "--yes"]);
    assert_eq!(deleted.code, Some(0), "{}", deleted.stderr);
    until_page(&cluster, 0, |text| !text.contains("volume=\"disk\""));
}
