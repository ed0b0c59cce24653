//! More requests than a node can answer in time: it refuses what is too much at once, and goes on with the rest.

use std::io::Write;

use staves_wire::cache::OwnedOp;
use staves_wire::{Message, Opcode};

use super::crowds::{frames, native, of_cache, opcode};
use super::descriptors::{figure, page};
use super::floods::{Client, set};
use super::*;

const MAX: u64 = 1000;
const CLIENTS: usize = 400;
const ASKED: usize = 50;

impl Cluster {
    fn signal_all_but_the_first(&self, name: &str) {
        let children = self.nodes[1..].iter().filter_map(|n| n.child.as_ref());
        children.for_each(|child| signal(name, child.id()));
    }
}

/// The node's requests that wait, and those that it refused.
fn waiting(node: &Node) -> (u64, u64) {
    let metrics = page(node.admin, "/metrics");
    let value = |name| figure(&metrics, name);
    (
        value("staves_in_flight_requests"),
        value("staves_in_flight_requests_refused_total"),
    )
}

/// Two of three nodes stand still, and the third is asked for 20,000 writes by 400 clients. Regression: it took all of them, to refuse them when
/// their time was over.
#[test]
fn what_waits_beyond_a_bound_is_refused_at_once() {
    let max = MAX.to_string();
    let flags = ["--in-flight-requests-max", &max, "--request-ms", "30s"];
    let cluster = Cluster::start_with(3, &flags);
    let node = &cluster.nodes[0];
    let one = set("some", 10);
    cluster.signal_all_but_the_first("-STOP");
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::at(node)).collect();
    clients.iter_mut().for_each(|c| c.say(&one.repeat(ASKED)));
    let asked = (CLIENTS * ASKED) as u64;
    let begun = Instant::now();
    loop {
        let (waits, refused) = waiting(node);
        // The first of each connection, and those that the threads have just taken.
        assert!(waits <= MAX + CLIENTS as u64 + 4096, "{waits} wait");
        if waits >= MAX && waits + refused >= asked {
            break;
        }
        assert!(
            begun.elapsed() < PATIENCE / 4,
            "{waits} wait, {refused} refused"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    the_native_door_refuses(node);
    cluster.signal_all_but_the_first("-CONT");
    let answers: Vec<String> = clients
        .iter_mut()
        .flat_map(|client| (0..ASKED).map(|_| client.line()).collect::<Vec<_>>())
        .collect();
    let words =
        format!("-TRYAGAIN {MAX} requests wait at this node already (in_flight_requests_max)");
    let refused = answers.iter().filter(|line| line.starts_with(&words));
    assert!(refused.count() >= CLIENTS * ASKED / 2, "{:?}", answers[1]);
    goes_on(node);
}

/// The first request of a connection is taken, the others are refused, and what no application asks of a service is answered.
fn the_native_door_refuses(node: &Node) {
    let mut socket = native(node);
    let get = OwnedOp::Get { key: "some".into() };
    let ask = of_cache([get].into_iter());
    let asked = std::iter::repeat_n(ask, 100).chain([Message::Status]);
    socket.write_all(&frames(asked)).expect("it takes bytes");
    let begun = Instant::now();
    let answers: Vec<Opcode> = (0..100).map(|_| opcode(&mut socket)).collect();
    let count = |of: Opcode| answers.iter().filter(|answer| **answer == of).count();
    assert_eq!(count(Opcode::Error), 99, "{answers:?}");
    assert_eq!(count(Opcode::StatusAnswer), 1, "{answers:?}");
    let waited = begun.elapsed();
    assert!(
        waited < PATIENCE / 4,
        "they waited like the others: {waited:?}"
    );
}

/// All that is left of it is served, and as many requests at a time as before.
fn goes_on(node: &Node) {
    let one = set("some", 10);
    let mut client = Client::at(node);
    let begun = Instant::now();
    loop {
        client.say(&one.repeat(500));
        let lines: Vec<String> = (0..500).map(|_| client.line()).collect();
        if lines.iter().all(|line| line == "+OK") && waiting(node).0 == 0 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{}", lines[499]);
    }
}
