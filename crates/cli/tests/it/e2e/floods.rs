//! Clients that ask for far more than they take, or begin far more than they end: a node stays small, and goes on for others.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use super::*;

const VALUE_BYTES: usize = 4 << 20;
const VALUES: usize = 4;
pub(super) const MIB: u64 = 1 << 20;
/// The memory of a node, and what may come on top of it.
pub(super) const RESIDENT_MAX: u64 = 128 * MIB + 32 * MIB + 64 * MIB;

pub(super) struct Client(BufReader<TcpStream>);

impl Client {
    pub(super) fn at(node: &Node) -> Client {
        let socket = TcpStream::connect(("127.0.0.1", node.resp)).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Client(BufReader::new(socket))
    }

    pub(super) fn say(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("it takes bytes");
    }

    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }

    /// The number of values in the next answer. A node whose memory for requests is taken may refuse any of them.
    pub(super) fn values(&mut self, bytes: usize) -> usize {
        let line = self.line();
        if let Some(count) = line.strip_prefix('*') {
            let count: usize = count.parse().expect("a number");
            return (0..count).map(|_| self.values(bytes)).sum();
        }
        if line.starts_with("-TRYAGAIN") {
            return 0;
        }
        assert_eq!(line, format!("${bytes}"));
        let mut value = vec![0; bytes + 2];
        self.0.read_exact(&mut value).expect("all of it");
        assert!(value[..bytes].iter().all(|b| *b == b'v'));
        1
    }

    /// Asks for a value until it is given: whoever has waited for too long is refused, on a loaded machine most.
    fn take(&mut self, key: &str, bytes: usize) {
        let begun = Instant::now();
        let get = format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
        while {
            self.say(get.as_bytes());
            self.values(bytes) == 0
        } {
            assert!(begun.elapsed() < PATIENCE, "no value of '{key}' comes");
        }
    }
}

/// The most memory that the node's process has had.
pub(super) fn resident_max(node: &Node) -> u64 {
    of_status(node, "VmHWM:")
}

/// The memory that it has.
pub(super) fn resident(node: &Node) -> u64 {
    of_status(node, "VmRSS:")
}

fn of_status(node: &Node, name: &str) -> u64 {
    let pid = node.child.as_ref().expect("it runs").id();
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let word = line.and_then(|line| line.split_whitespace().next());
    1024 * word
        .and_then(|word| word.parse::<u64>().ok())
        .expect("a number")
}

/// Four clients ask each node for 1.6 GB in all by one write each and take it later, of which at least one node has to get it
/// from others. Regression: a node that forwards held all of it, and what was asked last was refused.
#[test]
fn a_node_that_forwards_holds_little_of_what_one_client_asks_for() {
    let cluster = Cluster::start(3);
    let mut client = Client::at(&cluster.nodes[0]);
    for i in 0..VALUES {
        client.say(format!("*3\r\n$3\r\nSET\r\n$4\r\n{{b}}{i}\r\n${VALUE_BYTES}\r\n").as_bytes());
        client.say(&vec![b'v'; VALUE_BYTES]);
        client.say(b"\r\n");
        assert_eq!(client.line(), "+OK");
    }
    let keys: String = (0..VALUES).map(|i| format!("$4\r\n{{b}}{i}\r\n")).collect();
    let mget = format!("*{}\r\n$4\r\nMGET\r\n{keys}", VALUES + 1);
    let get = "*2\r\n$3\r\nGET\r\n$4\r\n{b}0\r\n";
    for node in &cluster.nodes {
        let mut clients: Vec<Client> = (0..4).map(|_| Client::at(node)).collect();
        for client in &mut clients {
            client.say((mget.repeat(20) + &get.repeat(20)).as_bytes());
        }
        std::thread::sleep(Duration::from_secs(2));
        // All at a time: one that stands still for 10 s is closed, for others wait for the memory that it holds.
        let given: usize = std::thread::scope(|scope| {
            let takes =
                |client: &mut Client| (0..40).map(|_| client.values(VALUE_BYTES)).sum::<usize>();
            let all: Vec<_> = clients
                .iter_mut()
                .map(|client| scope.spawn(move || takes(client)))
                .collect();
            all.into_iter().map(|c| c.join().expect("a client")).sum()
        });
        let asked = 4 * 20 * (VALUES + 1);
        assert!(given >= asked / 2, "{given} of {asked} values");
        let most = resident_max(node);
        assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
    }
}

/// Regression: a value of more than 16 MiB, which a batch's answers may have, was refused to a node that forwarded until its client's deadline.
#[test]
fn a_value_larger_than_a_batch_s_answers_is_read_through_every_node() {
    const LARGE: usize = 20 << 20;
    let cluster = Cluster::start(3);
    let mut client = Client::at(&cluster.nodes[0]);
    client.say(&set("large", LARGE));
    assert_eq!(client.line(), "+OK");
    for node in &cluster.nodes {
        let mut client = Client::at(node);
        client.say(b"*2\r\n$3\r\nGET\r\n$5\r\nlarge\r\n");
        assert_eq!(client.values(LARGE), 1);
    }
}

/// A client that has read many small values, and so lets large batches expect little, asks for 1,000 large ones by one write, through
/// each node. Regression: a node that forwards asked for them all at once.
#[test]
fn a_thousand_large_values_behind_small_ones_come_in_bounded_parts() {
    const LARGE: usize = 1 << 20;
    let cluster = Cluster::start(3);
    let mut client = Client::at(&cluster.nodes[0]);
    for (key, bytes) in [("{b}small", 10), ("{b}large", LARGE)] {
        client.say(&set(key, bytes));
        assert_eq!(client.line(), "+OK");
    }
    let get = |key: &str| format!("*2\r\n$3\r\nGET\r\n$8\r\n{key}\r\n");
    let mut value = vec![0; LARGE + 2];
    for node in &cluster.nodes {
        let mut client = Client::at(node);
        for _ in 0..4 {
            client.say(get("{b}small").repeat(1000).as_bytes());
            for _ in 0..1000 {
                assert_eq!(client.line(), "$10");
                assert_eq!(client.line(), "vvvvvvvvvv");
            }
        }
        client.say(get("{b}large").repeat(1000).as_bytes());
        std::thread::sleep(Duration::from_secs(2));
        for i in 0..1000 {
            assert_eq!(client.line(), format!("${LARGE}"), "value {i}");
            client.0.read_exact(&mut value).expect("all of it");
        }
    }
    for node in &cluster.nodes {
        let most = resident_max(node);
        assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
    }
}

/// Two hundred clients ask each node for values of 8 MiB, which at least one node has to get from another, and most take none.
/// Regression: a node that forwards held the first value of each of them, whatever its size.
#[test]
fn values_come_from_other_nodes_as_there_is_memory_for_them() {
    const LARGE: usize = 8 << 20;
    let cluster = Cluster::start(3);
    let mut client = Client::at(&cluster.nodes[0]);
    for key in ["{b}0", "{b}1"] {
        client.say(&set(key, LARGE));
        assert_eq!(client.line(), "+OK");
    }
    let mget = "*3\r\n$4\r\nMGET\r\n$4\r\n{b}0\r\n$4\r\n{b}1\r\n";
    for node in &cluster.nodes {
        let mut clients: Vec<Client> = (0..200).map(|_| Client::at(node)).collect();
        for client in &mut clients {
            client.say(mget.as_bytes());
        }
        std::thread::sleep(Duration::from_secs(3));
        goes_on(node);
        // Who has waited for too long is refused; whoever comes when the others have gone gets all.
        let mut taker = clients.pop().expect("one of them");
        drop(clients);
        taker.values(LARGE);
        let begun = Instant::now();
        loop {
            taker.say(mget.as_bytes());
            if taker.values(LARGE) == 2 {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "no value comes any more");
        }
        for node in &cluster.nodes {
            let most = resident_max(node);
            assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
        }
    }
}

/// A hundred clients of each node take a value of 8 MiB and stay, so that at least one node has answered each of them out of its own
/// memory. Regression: each connection kept the memory of the largest value that it had been answered, and counted none of it.
#[test]
fn who_has_taken_a_large_value_takes_no_memory_any_more() {
    const LARGE: usize = 8 << 20;
    let cluster = Cluster::start(3);
    let mut client = Client::at(&cluster.nodes[0]);
    client.say(&set("large", LARGE));
    assert_eq!(client.line(), "+OK");
    for node in &cluster.nodes {
        let mut clients: Vec<Client> = (0..100).map(|_| Client::at(node)).collect();
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(move || client.take("large", LARGE));
            }
        });
        for node in &cluster.nodes {
            let most = resident_max(node);
            assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
        }
    }
}

/// Sixty clients ask each node for 20,000 keys that are not there, by one command each. Regression: a node that forwards held
/// hundreds of bytes for each key, and counted none of them.
#[test]
fn many_keys_of_one_command_take_memory_that_is_counted() {
    const KEYS: usize = 20_000;
    let cluster = Cluster::start(3);
    let keys: String = (0..KEYS).map(|i| format!("$9\r\nmis{i:06}\r\n")).collect();
    let mget = format!("*{}\r\n$4\r\nMGET\r\n{keys}", KEYS + 1);
    for node in &cluster.nodes {
        let answers: Vec<bool> = std::thread::scope(|scope| {
            let client = || {
                let mut client = Client::at(node);
                client.say(mget.as_bytes());
                let line = client.line();
                if line.starts_with("-TRYAGAIN") {
                    return false;
                }
                assert_eq!(line, format!("*{KEYS}"));
                (0..KEYS).all(|_| client.line() == "$-1")
            };
            let clients: Vec<_> = (0..60).map(|_| scope.spawn(client)).collect();
            clients
                .into_iter()
                .map(|c| c.join().expect("a client"))
                .collect()
        });
        assert!(answers.contains(&true), "nobody is answered");
        let most = resident_max(node);
        assert!(most <= 128 * MIB, "{} MiB", most / MIB);
    }
}

pub(super) fn set(key: &str, bytes: usize) -> Vec<u8> {
    let mut command =
        format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${bytes}\r\n", key.len()).into_bytes();
    command.resize(command.len() + bytes, b'v');
    command.extend_from_slice(b"\r\n");
    command
}

/// Small requests are answered while others hold all the memory that there is for requests.
fn goes_on(node: &Node) {
    let mut client = Client::at(node);
    for _ in 0..5 {
        client.say(&set("small", 100));
        assert_eq!(client.line(), "+OK");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Sixteen clients begin values of 24 MiB and end them three seconds later. Regression: a node took all of them at once.
#[test]
fn unfinished_values_take_a_bounded_part_of_memory() {
    const LARGE: usize = 24 << 20;
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    let begun = Instant::now();
    let answers: Vec<String> = std::thread::scope(|scope| {
        let client = |i: usize| {
            // All of one key, so that the pool has room for them.
            let command = set("large", LARGE);
            let mut client = Client::at(node);
            let (begin, end) = command.split_at(command.len() - 10);
            if client.0.get_mut().write_all(begin).is_ok() {
                let wait = Duration::from_secs(3).saturating_sub(begun.elapsed());
                std::thread::sleep(wait);
                let _ = client.0.get_mut().write_all(end);
            }
            let mut line = String::new();
            match client.0.read_line(&mut line) {
                Ok(_) => line,
                // The refusal of what it was still sending may be lost with the connection.
                Err(error) => format!("{i}: {error}"),
            }
        };
        let clients: Vec<_> = (0..16).map(|i| scope.spawn(move || client(i))).collect();
        goes_on(node);
        let ended = clients.into_iter().map(|c| c.join().expect("a client"));
        ended.collect()
    });
    assert!(answers.iter().any(|line| line == "+OK\r\n"), "{answers:?}");
    let most = resident_max(node);
    assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
}

/// Four clients write four keys of one slot, and behind that ask each node for 200 MB, by one write each; an owner of the slot dies while the
/// last do. Regression: reads that waited for a write held copies of their values, the short answers to writes were taken for those of
/// the reads behind them, and a node took 900 MiB.
#[test]
fn reads_that_wait_hold_no_values() {
    const BYTES: usize = 1 << 20;
    const KEYS: [&str; 4] = ["{flood}0", "{flood}1", "{flood}2", "{flood}3"];
    let mut cluster = Cluster::start(3);
    let writes: Vec<u8> = KEYS.iter().flat_map(|key| set(key, BYTES)).collect();
    let keys: String = KEYS.iter().map(|key| format!("$8\r\n{key}\r\n")).collect();
    let mget = format!("*5\r\n$4\r\nMGET\r\n{keys}").repeat(50);
    let flood = [&writes[..], mget.as_bytes()].concat();
    for (at, ends) in [(2, false), (1, false), (0, true)] {
        let node = &cluster.nodes[at];
        let mut clients: Vec<Client> = (0..4).map(|_| Client::at(node)).collect();
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(|| client.say(&flood));
            }
        });
        if ends {
            cluster.end(2, "-KILL");
        }
        std::thread::sleep(Duration::from_secs(3));
        for node in cluster.nodes.iter().filter(|node| node.child.is_some()) {
            let most = resident_max(node);
            assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
        }
    }
}

/// A client that began a value and says no more is closed when another needs the memory.
#[test]
fn a_client_that_stands_still_gives_its_memory_up() {
    const LARGE: usize = 24 << 20;
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    let mut still = Client::at(node);
    still.say(&set("a", LARGE)[..1000]);
    let begun = Instant::now();
    loop {
        let mut client = Client::at(node);
        let command = set("b", LARGE);
        let sent = client.0.get_mut().write_all(&command);
        let mut line = String::new();
        let heard = client.0.read_line(&mut line);
        if line == "+OK\r\n" {
            break;
        }
        assert!(line.is_empty() || line.starts_with("-TRYAGAIN"), "{line}");
        assert!(begun.elapsed() < PATIENCE, "{sent:?}, {heard:?}");
    }
    let mut rest = String::new();
    assert!(
        matches!(still.0.read_line(&mut rest), Ok(0) | Err(_)),
        "{rest}"
    );
}
