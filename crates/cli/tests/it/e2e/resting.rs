//! Connections that have asked for much and rest: they hold little, and what they count leaves room for others.

use std::io::Write;

use bytes::Bytes;
use staves_wire::cache::{Condition, OwnedOp};

use super::crowds::{frames, native, of_cache, opcode};
use super::floods::{Client, MIB, RESIDENT_MAX, resident, resident_max, set};
use super::littles::goes_on;
use super::*;

/// Each of two thousand clients has had a thousand small commands answered at once, by this node and by others, and rests. Regression:
/// the list of their places was kept: 220 KiB of each.
#[test]
fn who_has_asked_much_at_once_and_rests_holds_little() {
    let cluster = Cluster::start(3);
    let node = &cluster.nodes[0];
    let gets: String = (0..1000)
        .map(|i| format!("*2\r\n$3\r\nGET\r\n$4\r\nk{:03}\r\n", i % 40))
        .collect();
    let rests: Vec<Client> = (0..2000)
        .map(|_| {
            let mut client = Client::at(node);
            client.say(gets.as_bytes());
            (0..1000).for_each(|_| assert_eq!(client.line(), "$-1"));
            client
        })
        .collect();
    goes_on(node);
    let most = resident_max(node);
    assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
    drop(rests);
}

/// Each of sixteen hundred connections of the native protocol has written 60 kB, and rests. Regression: each kept the memory that its
/// requests had come in.
#[test]
fn native_connections_that_wrote_and_rest_hold_little() {
    const CLIENTS: u64 = 1000;
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    let write = |key: &'static str| {
        frames([of_cache(std::iter::once(OwnedOp::Set {
            key: Bytes::from_static(key.as_bytes()),
            value: Bytes::from(vec![b'v'; 60_000]),
            condition: Condition::Always,
            get_old: false,
        }))])
    };
    let (write, small) = (write("large"), frames([of_cache(std::iter::empty())]));
    let wrote = || {
        let mut socket = native(node);
        for request in [&write, &write, &small] {
            socket.write_all(request).expect("it takes bytes");
            opcode(&mut socket);
        }
        socket
    };
    // Some keep the buffer that they read into.
    let few: Vec<_> = (0..600).map(|_| wrote()).collect();
    goes_on(node);
    let before = resident(node);
    let rests: Vec<_> = (0..CLIENTS).map(|_| wrote()).collect();
    goes_on(node);
    let each = resident(node).saturating_sub(before) / CLIENTS;
    assert!(each <= 16 << 10, "{each} bytes each");
    drop((few, rests));
}

/// Each of three hundred clients has asked for four thousand keys by one command, and rests. Regression: the list of its arguments was kept
/// and counted, and nobody's large values were taken any more.
#[test]
fn commands_of_many_arguments_count_for_nothing_when_they_are_done() {
    let cluster = Cluster::start_with(1, &["--in-flight-bytes-max", "4MiB"]);
    let node = &cluster.nodes[0];
    let mget = ["*4001\r\n$4\r\nMGET\r\n", &"$1\r\nk\r\n".repeat(4000)].concat();
    let rests: Vec<Client> = (0..300)
        .map(|_| {
            let mut client = Client::at(node);
            client.say(mget.as_bytes());
            (0..=4000).for_each(|_| drop(client.line()));
            client
        })
        .collect();
    let mut client = Client::at(node);
    for _ in 0..3 {
        client.say(&set("large", 1 << 20));
        assert_eq!(client.line(), "+OK");
    }
    drop(rests);
}
