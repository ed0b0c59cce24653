//! Clients that ask for large values by ways that a plain read does not take, and never take them; and operations whose cost does not
//! show in their bytes. All have the bound of the node's memory for requests.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use staves_model::ClientId;
use staves_wire::Message;
use staves_wire::cache::{Condition, OwnedOp};
use staves_wire::service::PoolRef;

use super::crowds::{flood, flooded, frames, native, of_cache};
use super::floods::{Client, MIB, RESIDENT_MAX, resident_max, set};
use super::littles::{goes_on, push};
use super::*;

/// So many clients write this and take nothing: the node goes on, and stays small.
fn stays_small_beside(node: &Node, clients: usize, flood: &[u8]) {
    let connect = || TcpStream::connect(("127.0.0.1", node.resp)).expect("it listens");
    let mut clients: Vec<TcpStream> = (0..clients).map(|_| connect()).collect();
    clients.iter_mut().for_each(|socket| push(socket, flood));
    std::thread::sleep(Duration::from_secs(3));
    goes_on(node);
    let most = resident_max(node);
    assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
}

/// Regression: only plain reads asked for the memory for a value; a write that is answered with one took it.
#[test]
fn writes_that_take_out_large_values_wait_for_memory() {
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    let mut client = Client::at(node);
    client.say(&set("k", 1_000_000));
    assert_eq!(client.line(), "+OK");
    let take = "*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nz\r\n$2\r\nNX\r\n$3\r\nGET\r\n";
    stays_small_beside(node, 400, take.repeat(12).as_bytes());
    // It is answered to one who takes it.
    client.say(take.as_bytes());
    assert_eq!(client.values(1_000_000), 1);
}

/// Regression: each value of a command asked for the memory of those before it, so that nobody did for the last.
#[test]
fn the_last_value_of_a_command_waits_for_memory_like_the_others() {
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    let mut client = Client::at(node);
    client.say(&set("k", 8_000_000));
    assert_eq!(client.line(), "+OK");
    let mget = b"*3\r\n$4\r\nMGET\r\n$1\r\nn\r\n$1\r\nk\r\n";
    stays_small_beside(node, 60, mget);
}

/// Regression: behind a key of a command that waited for a write under way all further values were taken without a question: of
/// 256 MiB, with 32 MiB for requests, an owner took 451 MiB.
#[test]
fn values_behind_one_that_waits_for_a_write_ask_for_memory_too() {
    const VALUE: usize = 4_000_000;
    let cluster = Cluster::start(3);
    let mut client = Client::at(&cluster.nodes[0]);
    for key in ["{b}0", "{b}1", "{b}2", "{b}3"] {
        client.say(&set(key, VALUE));
        assert_eq!(client.line(), "+OK");
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = staves_testkit::SetAtEnd(&stop);
        for at in 0..6 {
            let (node, stop) = (&cluster.nodes[at % 3], &stop);
            scope.spawn(move || {
                let mut writer = Client::at(node);
                let writes = set("{b}w", 5000).repeat(8);
                while !stop.load(Ordering::SeqCst) {
                    writer.say(&writes);
                    (0..8).for_each(|_| drop(writer.line()));
                }
            });
        }
        let mget = "*6\r\n$4\r\nMGET\r\n$4\r\n{b}w\r\n$4\r\n{b}0\r\n$4\r\n{b}1\r\n$4\r\n{b}2\r\n$4\r\n{b}3\r\n";
        // One of them owns the keys.
        for node in &cluster.nodes {
            stays_small_beside(node, 40, mget.repeat(40).as_bytes());
        }
    });
    for node in &cluster.nodes {
        let most = resident_max(node);
        assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
    }
}

/// Regression: batches of the native protocol counted by their bytes on the wire, of which an operation has twenty, and takes four hundred.
#[test]
fn batches_of_many_tiny_operations_count_as_what_they_become() {
    const OPS: usize = 65_536;
    let cluster = Cluster::start(3);
    let node = &cluster.nodes[0];
    let batch = |_| {
        let get = |i: usize| OwnedOp::Get {
            key: Bytes::from(vec![b'a' + (i % 16) as u8]),
        };
        of_cache((0..OPS).map(get))
    };
    let flood = frames((0..4).map(batch));
    let writes: Vec<_> = (0..24)
        .map(|_| {
            let (mut socket, flood) = (native(node), flood.clone());
            // It is not read while there is no memory for more; nor does it wait for its answers.
            std::thread::spawn(move || {
                let _ = socket.set_write_timeout(Some(Duration::from_secs(4)));
                let _ = std::io::Write::write_all(&mut socket, &flood);
                std::thread::sleep(Duration::from_secs(1));
            })
        })
        .collect();
    writes.into_iter().for_each(|w| w.join().expect("a client"));
    goes_on(node);
    let most = resident_max(node);
    assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
}

/// Four hundred appends to a value that has no room beside itself. Regression: each copied all of it before it was refused, and nobody else
/// was answered by its bucket for ten seconds.
#[test]
fn appends_to_a_large_value_cost_little_where_there_is_no_memory() {
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    let mut client = Client::at(node);
    for (key, bytes) in [("{k}other", 10), ("{k}", 40_000_000)] {
        client.say(&set(key, bytes));
        assert_eq!(client.line(), "+OK");
    }
    let mut appends = Client::at(node);
    appends.say(
        "*3\r\n$6\r\nAPPEND\r\n$3\r\n{k}\r\n$1\r\ny\r\n"
            .repeat(400)
            .as_bytes(),
    );
    let begun = Instant::now();
    client.say(b"*2\r\n$3\r\nGET\r\n$8\r\n{k}other\r\n");
    assert_eq!(client.values(10), 1);
    for _ in 0..400 {
        let line = appends.line();
        assert!(line.starts_with("-OOM"), "{line}");
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
}

/// Appends of one byte to values of 200 kB, whose answers are all read. Regression: what waited for a copy was there twice more for each
/// other node, beside the log that had it.
#[test]
fn updates_that_wait_for_copies_are_there_once() {
    const KEYS: usize = 100;
    const APPENDS: usize = 80;
    const LOGS: u64 = 64 * MIB;
    let cluster = Cluster::start(3);
    let node = &cluster.nodes[0];
    let mut client = Client::at(node);
    for key in 0..KEYS {
        client.say(&set(&format!("k{key}"), 200_000));
        assert_eq!(client.line(), "+OK");
    }
    let mut clients: Vec<Client> = (0..200).map(|_| Client::at(node)).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        let key = format!("k{}", at % KEYS);
        let append = format!(
            "*3\r\n$6\r\nAPPEND\r\n${}\r\n{key}\r\n$1\r\ny\r\n",
            key.len()
        );
        client.say(append.repeat(APPENDS).as_bytes());
    }
    for client in &mut clients {
        for _ in 0..APPENDS {
            let line = client.line();
            // A slow machine does not do all of them within their time.
            let late = line.starts_with("-IOERR") || line.starts_with("-TRYAGAIN");
            assert!(late || line.starts_with(":200"), "{line}");
        }
    }
    for node in &cluster.nodes {
        let most = resident_max(node);
        assert!(most <= RESIDENT_MAX + LOGS, "{} MiB", most / MIB);
    }
}

/// Regression: a request that said of itself that it is a retry took values out without a question for memory, and its node held 285 MB.
#[test]
fn writes_that_call_themselves_retries_wait_for_memory() {
    const VALUE_BYTES: usize = 300_000;
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    let mut client = Client::at(node);
    client.say(&set("k", VALUE_BYTES));
    assert_eq!(client.line(), "+OK");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.expect("after 1970").as_micros() as u64;
    let take = OwnedOp::Set {
        key: Bytes::from_static(b"k"),
        value: Bytes::from_static(b"z"),
        condition: Condition::IfAbsent,
        get_old: true,
    };
    let retry = |of: u64, i: u64| {
        let Message::Service(mut request) = of_cache(std::iter::repeat_n(take.clone(), 4)) else {
            unreachable!("it is one to a service");
        };
        (request.client, request.retry) = (ClientId(100 + of), true);
        let numbers = now + 4 * i..;
        let ops = request.ops.iter_mut().zip(numbers);
        ops.for_each(|(op, number)| op.number = number);
        Message::Service(request)
    };
    let mut clients: Vec<TcpStream> = (0..400).map(|_| native(node)).collect();
    for (of, socket) in (0..).zip(&mut clients) {
        push(socket, &frames((0..10).map(|i| retry(of, i))));
    }
    std::thread::sleep(Duration::from_secs(3));
    goes_on(node);
    let most = resident_max(node);
    assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
}

/// One request of 144 kB. Regression: each of its operations was answered with the whole name of a pool that there is not: 727 MiB.
#[test]
fn an_error_says_no_more_of_a_name_than_people_read() {
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    let get = |_| OwnedOp::Get {
        key: Bytes::from_static(b"a"),
    };
    let Message::Service(mut request) = of_cache((0..4000).map(get)) else {
        unreachable!("it is one to a service");
    };
    request.pool = PoolRef::Name("n".repeat(60_000));
    let mut socket = native(node);
    push(&mut socket, &frames([Message::Service(request)]));
    std::thread::sleep(Duration::from_secs(1));
    goes_on(node);
    let most = resident_max(node);
    assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
}

/// Regression: whoever had read more than there was memory for was let read on at its next turn, as it held no more than it did: 600
/// connections whose writes waited for copies made 130 MB of the 33.5 that there are.
#[test]
fn connections_whose_writes_wait_for_copies_read_no_further_than_there_is_memory() {
    const LOGS: u64 = 64 * MIB;
    let cluster = Cluster::start(3);
    let node = &cluster.nodes[0];
    let append = |key: usize| {
        let value = "y".repeat(3000);
        format!("*3\r\n$6\r\nAPPEND\r\n$2\r\nk{key}\r\n$3000\r\n{value}\r\n")
    };
    let flood: String = (0..60).map(|i| append(i % 10)).collect();
    let connect = || TcpStream::connect(("127.0.0.1", node.resp)).expect("it listens");
    let mut clients: Vec<TcpStream> = (0..1200).map(|_| connect()).collect();
    clients
        .iter_mut()
        .for_each(|socket| push(socket, flood.as_bytes()));
    std::thread::sleep(Duration::from_secs(3));
    goes_on(node);
    let most = resident_max(node);
    assert!(most <= RESIDENT_MAX + LOGS, "{} MiB", most / MIB);
}

/// Commands of a million small arguments that do not end. Regression: what was read was counted without a question, and a few bytes that
/// lacked were always there: 1,000 connections made 2,150 MB.
#[test]
fn arguments_without_end_have_a_bound() {
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    let connect = |i: usize| {
        let mut socket = TcpStream::connect(("127.0.0.1", node.resp)).expect("it listens");
        // Their pieces end at bytes of all kinds.
        let key = "k".repeat(1 + i % 97);
        let begin = format!("*1000000\r\n$4\r\nMSET\r\n${}\r\n{key}\r\n", key.len());
        push(&mut socket, begin.as_bytes());
        socket
    };
    let arguments = "$10\r\nargumentsa\r\n".repeat(1000);
    let time = Duration::from_secs(5);
    let clients = flooded((0..400).map(connect), arguments.as_bytes(), time);
    goes_on(node);
    let most = resident_max(node);
    assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
    drop(clients);
}

/// Regression: the answers to reads that are answered at once lay each in memory for far larger ones: one connection made 1,354 MiB.
#[test]
fn short_answers_that_nobody_takes_have_a_bound() {
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    goes_on(node);
    let get = |i: usize| OwnedOp::Get {
        key: Bytes::from(format!("none{i}")),
    };
    let batches = (0..500).map(|_| of_cache((0..7).map(get)));
    flood(&cluster, 8, &frames(batches), Duration::from_secs(6));
    goes_on(node);
    let most = resident_max(node);
    assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
}
