//! Volumes with write-back on real nodes: what only a node may hold that does not come back is given up at last.

use std::time::{Duration, Instant};

use staves_hunts::{Hunt, hunt};
use staves_model::mutant::Mutant;
use staves_model::{Change, Medium, PoolKind};
use staves_node::config::Config;
use staves_testkit::cluster::{Parse, TestCluster, TestNode, config};
use staves_testkit::nbd::{NbdClient, NbdFailure};
use staves_testkit::{DEADLINE, wait_until};

use crate::volumes::{MIB, connect, nbd};

const BLOCK: usize = 4096;
/// Far more than the wait that is set, and less than the one by default.
const GIVEN_UP_MAX: Duration = Duration::from_secs(50);

/// The first node has no disk: its door outlives the two that hold the volume.
fn configure(at: usize, config: &mut Config) {
    config.nbd = Some("127.0.0.1:0".parse().expect("an address"));
    config.unflushed_wait_ms = "2s".parse_millis();
    config.disk = ["0", "96MiB"][at.min(1)].parse_size();
}

/// A cluster of three with a volume `v`.
fn start() -> TestCluster {
    let cluster = TestCluster::start_with(3, configure);
    let pool = Change::CreatePool {
        name: "vols".into(),
        kind: PoolKind::Memory {
            regions: Vec::new(),
        },
        scheme: "1+1".parse().expect("a scheme"),
        medium: Medium::Disk,
        node_budget_bytes: 60 * MIB,
        buckets: 0,
        may_start_empty: false,
    };
    cluster.nodes[0].propose(&pool).expect("a pool");
    let make = Change::MakeWriteback {
        pool: "vols".into(),
        name: "v".into(),
        size_bytes: 40 * MIB,
        bucket_bytes: 64 * MIB,
    };
    cluster.nodes[0].propose(&make).expect("a volume");
    wait_until("the first node knows the volume", || {
        cluster.nodes[0].map().region_named("v").is_some()
    });
    cluster
}

/// Reads through new connections until the volume is served again.
fn read(cluster: &TestCluster, at: u64) -> Vec<u8> {
    let until = Instant::now() + DEADLINE;
    loop {
        let client = NbdClient::connect(nbd(cluster, 0), "v");
        match client.map(|mut client| client.read(at * BLOCK as u64, BLOCK)) {
            Ok(Ok(bytes)) => return bytes,
            other => assert!(Instant::now() < until, "it is not served: {other:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_a_node_that_stays_away_may_hold_is_given_up_and_no_flush_says_otherwise() {
    let mut cluster = start();
    let mut client = connect(&cluster, 0, "v");
    client.write(0, &[1; BLOCK]).expect("written");
    client.flush().expect("both have synced it");
    client.write(BLOCK as u64, &[2; BLOCK]).expect("written");
    // At once: else the second one to go would have gone on alone.
    std::thread::scope(|scope| {
        let holders = cluster.nodes[1..].iter_mut();
        holders.for_each(|node| drop(scope.spawn(|| node.kill())));
    });
    let mut again = config(Some(&cluster.folders[1]), &[&cluster.nodes[0]]);
    configure(1, &mut again);
    cluster.nodes[1] = TestNode::start(again);
    let until = Instant::now() + GIVEN_UP_MAX;
    loop {
        match client.flush() {
            Err(NbdFailure::Ended(_)) if Instant::now() < until => break,
            // Its group is not served, for the other one is waited for.
            Err(error) => assert!(Instant::now() < until, "the connection goes on: {error:?}"),
            Ok(()) => panic!("a flush of a session that is over"),
        }
    }
    let map = cluster.nodes[0].map();
    assert!(!map.is_up(
        cluster.nodes[2].id,
        map.nodes[&cluster.nodes[2].id].incarnation
    ));
    let (_, region) = map.region_named("v").expect("the volume");
    let session = region.volume.as_ref().map_or(0, |volume| volume.session);
    let over = map.writeback(region.id).map(|writeback| writeback.over);
    assert_eq!((session, over), (2, Some(2)), "the first session is over");
    assert_eq!(read(&cluster, 0), [1; BLOCK], "it was flushed");
    // The next one begins anew, on the one node that is there.
    let mut client = connect(&cluster, 0, "v");
    client
        .write(2 * BLOCK as u64, &[3; BLOCK])
        .expect("written");
    client.flush().expect("a session of its own");
    assert_eq!(read(&cluster, 2), [3; BLOCK]);
}

#[test]
fn sessions_that_go_on_without_what_was_given_up_are_seen() {
    hunt(&[Hunt {
        mutant: Mutant::GiveUpKeepsSessions,
        test: "writeback::what_a_node_that_stays_away_may_hold_is_given_up_and_no_flush_says_otherwise",
        shows: "a flush of a session that is over",
    }]);
}
