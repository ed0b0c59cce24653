//! The writes of many connections leave together.

use std::collections::BTreeMap;
use std::time::Duration;

use staves_model::hash_slot;
use staves_testkit::cluster::TestCluster;
use staves_testkit::resp::{Reply, RespClient};

/// Connections, each with one write to each bucket.
const CONNECTIONS: usize = 32;
/// Longer than all of them take to send.
const HANG: Duration = Duration::from_millis(200);

/// The writes of all connections that a node finds at once are one message for each bucket, not one for each bucket and
/// connection, and the messages of all buckets are a few frames.
#[test]
fn the_deltas_of_a_turn_leave_together() {
    let cluster = TestCluster::start_with(2, |_, config| {
        config.scheme = "1+1".parse().expect("a scheme");
    });
    let node = &cluster.nodes[0];
    let map = node.map();
    let pool = map.pool_named("cache").expect("the first pool").id;
    // One key for each of its buckets.
    let mut keys = BTreeMap::new();
    for key in (0..1000).map(|at| format!("k{at}")) {
        let group = map.group_of(pool, hash_slot(key.as_bytes()));
        let group = group.expect("each slot has a group").id;
        if node.owner(&key) == node.id {
            keys.insert(group, key);
        }
    }
    let buckets = keys.len();
    assert!(buckets >= 4, "{buckets} data buckets");
    let mut clients: Vec<RespClient> = (0..CONNECTIONS).map(|_| node.client()).collect();
    for client in &mut clients {
        assert_eq!(client.ask("PING"), Reply::Simple("PONG".into()));
    }
    let sent = || {
        let messages = node.metric("staves_net_group_sent_total");
        (messages, node.metric("staves_net_group_frames_total"))
    };
    let before = sent();
    node.hang(HANG);
    for client in &mut clients {
        let sets = keys.values().map(|key| format!("SET {key} 1\r\n"));
        client.send_raw(sets.collect::<String>().as_bytes());
    }
    for client in &mut clients {
        for _ in 0..buckets {
            assert_eq!(client.receive().expect("an answer"), Reply::Ok);
        }
    }
    let (messages, frames) = sent();
    let (messages, frames) = (messages - before.0, frames - before.1);
    let apart = (CONNECTIONS * buckets) as u64;
    assert!(messages >= buckets as u64);
    assert!(
        messages <= apart / 2,
        "{messages} messages for {apart} writes to {buckets} buckets"
    );
    assert!(
        frames <= messages / 2,
        "{frames} frames for {messages} messages"
    );
}
