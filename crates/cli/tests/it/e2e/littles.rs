//! Many clients that each hold little: a half request, or answers that they do not take. Together they have a bound as well.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;

use bytes::Bytes;
use staves_wire::cache::{Condition, OwnedOp};
use staves_wire::{Message, Opcode};

use super::crowds::{frames, native, of_cache, opcode};
use super::floods::{Client, MIB, RESIDENT_MAX, resident_max, set};
use super::*;

/// As many connections as fit beside the rest into 1,024 descriptors.
const CONNECTIONS: usize = 800;

/// Writes it on a connection until nothing more is taken.
pub(super) fn push(socket: &mut TcpStream, bytes: &[u8]) {
    socket.set_nonblocking(true).expect("a socket");
    let mut at = 0;
    while at < bytes.len() {
        match socket.write(&bytes[at..]) {
            Ok(count) => at += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            // It was closed, for others waited for the memory that it holds.
            Err(_) => return,
        }
    }
}

/// Small requests go on.
pub(super) fn goes_on(node: &Node) {
    let mut client = Client::at(node);
    for _ in 0..3 {
        client.say(&set("small", 100));
        assert_eq!(client.line(), "+OK");
    }
}

/// Regression: 64 KiB of each connection were counted nowhere, nor were the lists of their arguments: ten thousand half requests took
/// 0.7 to 1.4 GiB.
#[test]
fn half_requests_of_many_clients_have_a_bound() {
    let cluster = Cluster::start_with(1, &["--in-flight-bytes-max", "4MiB"]);
    let node = &cluster.nodes[0];
    goes_on(node);
    let half_value = set("half", 64_000)[..60_000].to_vec();
    let half_list = [
        b"*10000\r\n$4\r\nMGET\r\n",
        &b"$1\r\nk\r\n".repeat(9_000)[..],
    ]
    .concat();
    let mut clients = Vec::new();
    for i in 0..CONNECTIONS {
        let mut socket = TcpStream::connect(("127.0.0.1", node.resp)).expect("it listens");
        push(&mut socket, [&half_value, &half_list][i % 2]);
        clients.push(socket);
    }
    std::thread::sleep(Duration::from_secs(2));
    goes_on(node);
    // 4 MiB, a quarter of that for small ones, some KiB of each, and what the node has at rest.
    let most = resident_max(node);
    assert!(most <= 70 * MIB, "{} MiB", most / MIB);
}

/// Regression: answers that fit into a connection's own buffer were counted when they had been made, a pipeline at a time.
#[test]
fn answers_that_nobody_takes_have_a_bound() {
    const KEY: &str = "0123456789";
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    let mut client = Client::at(node);
    client.say(&set(KEY, 8_000));
    assert_eq!(client.line(), "+OK");
    let gets = format!("*2\r\n$3\r\nGET\r\n$10\r\n{KEY}\r\n").repeat(1000);
    let list = "*2\r\n$6\r\nCLIENT\r\n$4\r\nLIST\r\n".repeat(20);
    let mut clients = Vec::new();
    for i in 0..CONNECTIONS {
        let mut socket = TcpStream::connect(("127.0.0.1", node.resp)).expect("it listens");
        push(
            &mut socket,
            [&gets, &list][usize::from(i % 8 == 0)].as_bytes(),
        );
        clients.push(socket);
    }
    std::thread::sleep(Duration::from_secs(2));
    goes_on(node);
    let most = resident_max(node);
    assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
    // Who takes them has them all.
    let mut one = Client::at(node);
    drop(clients);
    one.say(gets.as_bytes());
    for _ in 0..1000 {
        assert_eq!(one.line(), "$8000");
        assert_eq!(one.line().len(), 8_000);
    }
}

/// Regression: a request of the native door had 64 KiB of its own, of which a connection has hundreds under way; and answers that
/// waited to be written did not count where a value was larger than all that others held.
#[test]
fn batches_whose_answers_nobody_takes_have_a_bound() {
    let cluster = Cluster::start(3);
    let node = &cluster.nodes[0];
    let mut client = Client::at(node);
    for i in 0..4 {
        for (key, bytes) in [("mid", 60_000), ("big", 1 << 20)] {
            client.say(&set(&format!("{key}{i}"), bytes));
            assert_eq!(client.line(), "+OK");
        }
    }
    let get = |key: &str, i: usize| OwnedOp::Get {
        key: Bytes::from(format!("{key}{}", i % 4)),
    };
    let batches = |key: &str, gets: usize, batches: usize| -> Vec<u8> {
        let batch = |_| -> Message { of_cache((0..gets).map(|i| get(key, i))) };
        frames((0..batches).map(batch))
    };
    for flood in [batches("mid", 50, 50), batches("big", 8, 20)] {
        let mut clients: Vec<TcpStream> = (0..50).map(|_| native(node)).collect();
        for socket in &mut clients {
            push(socket, &flood);
        }
        std::thread::sleep(Duration::from_secs(3));
        goes_on(node);
        let most = resident_max(node);
        assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
    }
}

/// Regression: each connection kept the buffer of the largest thing that it had ever asked for or been told, for as long as it was open.
#[test]
fn who_has_asked_for_much_and_rests_holds_nothing() {
    const BYTES: usize = 900_000;
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    let (write, read) = (set("x", BYTES), "*2\r\n$3\r\nGET\r\n$1\r\nx\r\n");
    let native_write = frames([of_cache(std::iter::once(OwnedOp::Set {
        key: Bytes::from_static(b"x"),
        value: Bytes::from(vec![b'v'; BYTES]),
        condition: Condition::Always,
        get_old: false,
    }))]);
    let (mut clients, mut natives) = (Vec::new(), Vec::new());
    for _ in 0..150 {
        let mut client = Client::at(node);
        client.say(&write);
        assert_eq!(client.line(), "+OK");
        client.say(read.as_bytes());
        assert_eq!(client.line(), format!("${BYTES}"));
        assert_eq!(client.line().len(), BYTES);
        clients.push(client);
        let mut socket = native(node);
        socket.write_all(&native_write).expect("it takes bytes");
        assert_eq!(opcode(&mut socket), Opcode::ServiceAnswers);
        natives.push(socket);
    }
    std::thread::sleep(Duration::from_secs(1));
    let most = resident_max(node);
    assert!(most <= 110 * MIB, "{} MiB", most / MIB);
}

/// Regression: while one client held the memory for requests, values of 4 to 64 KiB of other nodes' buckets were asked for with 4 KiB
/// again and again until their deadline.
#[test]
fn small_values_of_other_nodes_come_while_a_large_one_holds_the_memory() {
    let cluster = Cluster::start(3);
    let node = &cluster.nodes[0];
    let mut client = Client::at(node);
    let keys: Vec<String> = (0..12).map(|i| format!("key{i:02}")).collect();
    for key in &keys {
        client.say(&set(key, 60_000));
        assert_eq!(client.line(), "+OK");
    }
    let mut holder = Client::at(node);
    holder.say(&set("large", 33_550_000)[..100_000]);
    std::thread::sleep(Duration::from_millis(500));
    for key in &keys {
        client.say(format!("*2\r\n$3\r\nGET\r\n$5\r\n{key}\r\n").as_bytes());
        assert_eq!(client.line(), "$60000", "{key}");
        assert_eq!(client.line().len(), 60_000);
    }
}

/// Regression: it was read to its end, or kept memory from others for as long as its client liked.
#[test]
fn a_value_that_is_larger_than_the_node_s_memory_is_refused_when_it_is_announced() {
    let cluster = Cluster::start(1);
    let mut client = Client::at(&cluster.nodes[0]);
    client.say(format!("*3\r\n$3\r\nSET\r\n$1\r\nv\r\n${}\r\n", 200 * MIB).as_bytes());
    assert_eq!(client.line(), "-ERR Protocol error: invalid bulk length");
}

/// Regression: a command of a million keys was answered after a minute, for each batch of them went through all that were left; meanwhile
/// its node refused whoever asked for more than a little, and took twice the memory that is promised.
#[test]
fn a_command_of_very_many_keys_is_refused_or_ends_soon() {
    let cluster = Cluster::start(3);
    let node = &cluster.nodes[0];
    let mget = |count: usize| {
        let keys = (0..count).map(|i| format!("$9\r\nk{i:08}\r\n"));
        format!(
            "*{}\r\n$4\r\nMGET\r\n{}",
            count + 1,
            keys.collect::<String>()
        )
    };
    let mut client = Client::at(node);
    for many in [1_000_000, 100_000] {
        client.say(mget(many).as_bytes());
        let refused = client.line();
        assert!(
            refused.starts_with("-ERR a command may have at most"),
            "{refused}"
        );
        assert!(refused.contains("in_flight_bytes_max"), "{refused}");
        goes_on(node);
    }
    let begun = Instant::now();
    client.say(mget(50_000).as_bytes());
    assert_eq!(client.line(), "*50000");
    assert!((0..50_000).all(|_| client.line() == "$-1"));
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
    let most = resident_max(node);
    assert!(most <= 128 * MIB, "{} MiB", most / MIB);
}
