//! Clients that take all that they ask for, and ask for more together than a node has memory for: all are answered.

use std::io::{Read, Write};
use std::sync::Mutex;

use bytes::Bytes;
use staves_wire::Message;
use staves_wire::cache::OwnedOp;
use staves_wire::frame::{FLAG_MORE, HEADER_BYTES, Header};

use super::crowds::{frames, native, of_cache};
use super::floods::{Client, set};
use super::*;

const CLIENTS: usize = 150;
const KEYS: usize = 50;
const ROUNDS: usize = 4;

/// A hundred and fifty clients write this command four times, and take so many answers to each before the next: the values among them.
fn values_given(node: &Node, commands: &str, answers: usize, bytes: usize) -> usize {
    std::thread::scope(|scope| {
        let reads = || {
            let mut client = Client::at(node);
            let mut given = 0;
            for _ in 0..ROUNDS {
                client.say(commands.as_bytes());
                given += (0..answers).map(|_| client.values(bytes)).sum::<usize>();
            }
            given
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(reads)).collect();
        let given = clients.into_iter().map(|c| c.join().expect("a client"));
        given.sum()
    })
}

/// Through a node that gets some of the values from others. Regression: all connections held answers that lay behind one which another
/// node was to give, none had memory for that one, and reads stood still until they were refused.
#[test]
fn clients_that_ask_for_more_than_the_memory_are_all_answered() {
    let cluster = Cluster::start_with(3, &["--in-flight-bytes-max", "4MiB"]);
    let node = &cluster.nodes[0];
    for (bytes, in_one_write) in [(3_000, 100), (60_000, 4)] {
        let mut client = Client::at(node);
        for i in 0..KEYS {
            client.say(&set(&format!("key{i:02}"), bytes));
            assert_eq!(client.line(), "+OK");
        }
        let key = |i: usize| format!("$5\r\nkey{:02}\r\n", i % KEYS);
        let gets: String = (0..in_one_write)
            .map(|i| format!("*2\r\n$3\r\nGET\r\n{}", key(i * 7)))
            .collect();
        let all = CLIENTS * ROUNDS * in_one_write;
        let given = values_given(node, &gets, in_one_write, bytes);
        assert_eq!(given, all, "GETs of {bytes} bytes");
        let keys: String = (0..in_one_write).map(|i| key(i * 3)).collect();
        let mget = format!("*{}\r\n$4\r\nMGET\r\n{keys}", in_one_write + 1);
        let given = values_given(node, &mget, 1, bytes);
        assert_eq!(given, all, "MGETs of {bytes} bytes");
    }
}

/// The longest time in which no client got anything.
struct Pauses(Mutex<(Instant, Duration)>);

impl Pauses {
    fn came(&self) {
        let mut guard = self.0.lock().expect("no reader fails");
        let (last, longest) = *guard;
        *guard = (Instant::now(), longest.max(last.elapsed()));
    }
}

/// Twenty clients of the native protocol ask for more values at once than go at once, of this node and of others, and take all. Regression:
/// batches that had some waited for memory for one more of another node, and held what others waited for: nothing came for three to
/// five seconds.
#[test]
fn batches_that_have_values_give_them_where_there_is_no_memory_for_more() {
    let cluster = Cluster::start(3);
    let node = &cluster.nodes[0];
    let mut client = Client::at(node);
    for i in 0..KEYS {
        client.say(&set(&format!("key{i:02}"), 64 << 10));
        assert_eq!(client.line(), "+OK");
    }
    let get = |i: usize| OwnedOp::Get {
        key: Bytes::from(format!("key{:02}", i % KEYS)),
    };
    let Message::Service(mut batch) = of_cache((0..4096).map(get)) else {
        unreachable!("it is one to a service");
    };
    (batch.answer_bytes_max, batch.strict) = (u32::MAX, true);
    let asked = frames([Message::Service(batch.clone()), Message::Service(batch)]);
    let pauses = Pauses(Mutex::new((Instant::now(), Duration::ZERO)));
    let read = || {
        let mut socket = native(node);
        socket.write_all(&asked).expect("it takes bytes");
        let mut answers = 0;
        while answers < 2 {
            let mut header = [0; HEADER_BYTES];
            socket.read_exact(&mut header).expect("an answer");
            let header = Header::decode(&header).expect("the node speaks well");
            let mut body = vec![0; header.body_len as usize];
            socket.read_exact(&mut body).expect("all of it");
            answers += usize::from(header.flags & FLAG_MORE == 0);
            pauses.came();
        }
    };
    for _ in 0..3 {
        std::thread::scope(|scope| (0..20).for_each(|_| drop(scope.spawn(read))));
    }
    let (_, longest) = pauses.0.into_inner().expect("no reader fails");
    assert!(longest < Duration::from_millis(2500), "{longest:?}");
}

/// Beside a client that brings a value which takes all memory for requests, at its leisure. Regression: MGETs of keys of this node and of
/// others were refused for as long as it did, however small they were.
#[test]
fn small_commands_of_several_nodes_keys_go_on_beside_a_large_value() {
    let cluster = Cluster::start(3);
    let node = &cluster.nodes[0];
    let mut client = Client::at(node);
    for i in 0..KEYS {
        client.say(&set(&format!("key{i:02}"), 8_000));
        assert_eq!(client.line(), "+OK");
    }
    let mut slow = Client::at(node);
    slow.say(b"*3\r\n$3\r\nSET\r\n$1\r\nf\r\n$33550000\r\n");
    slow.say(&[b'v'; 200_000]);
    let begun = Instant::now();
    let mut at = 0;
    while begun.elapsed() < Duration::from_secs(3) {
        let keys: String = (0..4)
            .map(|i| format!("$5\r\nkey{:02}\r\n", (at * 4 + i) % KEYS))
            .collect();
        client.say(format!("*5\r\n$4\r\nMGET\r\n{keys}").as_bytes());
        assert_eq!(client.values(8_000), 4, "the {at}th");
        at += 1;
        slow.say(&[b'v'; 1000]);
    }
}
