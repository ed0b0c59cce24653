//! Many who ask for the cluster's state: they have a bound, and keep nobody from what is asked beside it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use staves_wire::directory::Propose;
use staves_wire::files::FileAway;
use staves_wire::{Message, Opcode};

use super::crowds::{frames, native, opcode};
use super::floods::{MIB, resident_max};
use super::littles::{goes_on, push};
use super::*;

/// The first line of an answer of the admin door. None if the connection ended.
fn answer(port: u16, path: &str) -> Option<String> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    socket.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    socket.read_to_string(&mut text).ok()?;
    text.lines().next().map(str::to_owned)
}

/// A hundred readers take the status again and again. Regression: those that waited for their turn had all places of the door, and
/// `/livez` was refused in five of six tries.
#[test]
fn readers_of_the_status_keep_nobody_from_asking_whether_the_node_lives() {
    const OK: &str = "HTTP/1.1 200 OK";
    const FULL: &str = "HTTP/1.1 503 Service Unavailable";
    let cluster = Cluster::start(1);
    let port = cluster.nodes[0].admin;
    let ended = AtomicBool::new(false);
    let read = || {
        let (mut given, mut refused) = (0, 0);
        while !ended.load(Ordering::Relaxed) {
            match answer(port, "/api/v1/status").as_deref() {
                Some(OK) => given += 1,
                Some(FULL) => refused += 1,
                other => assert_eq!(other, None),
            }
        }
        (given, refused)
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..100).map(|_| scope.spawn(read)).collect();
        std::thread::sleep(Duration::from_millis(500));
        let asked: Vec<Option<String>> = (0..60)
            .map(|i| {
                std::thread::sleep(Duration::from_millis(30));
                answer(port, ["/livez", "/readyz", "/metrics"][i % 3])
            })
            .collect();
        ended.store(true, Ordering::Relaxed);
        let readers = readers.into_iter().map(|r| r.join().expect("a reader"));
        let (given, refused): (Vec<i32>, Vec<i32>) = readers.unzip();
        assert!(given.iter().sum::<i32>() > 0, "the status is read");
        assert!(refused.iter().sum::<i32>() > 0, "by fewer than ask for it");
        assert_eq!(asked, vec![Some(OK.to_owned()); 60]);
    });
}

/// Two hundred and fifty mounts with words of control characters make the status long, and a hundred clients ask for it four times and take
/// nothing. Regression: it had 4 MB, and was counted nowhere before it was made: 750 MB of a node that may take 350.
#[test]
fn statuses_that_nobody_takes_have_a_bound() {
    let cluster = Cluster::start_with(1, &["--in-flight-bytes-max", "4MiB"]);
    let node = &cluster.nodes[0];
    goes_on(node);
    let create = [
        "pool", "create", "files", "--kind", "files", "--memory", "16MiB",
    ];
    let made = cluster.run(0, &create);
    assert!(made.stdout.contains("files"), "{}", made.stderr);
    let mut mounts = native(node);
    let mut say = |message| {
        mounts
            .write_all(&frames([message]))
            .expect("it takes bytes");
        opcode(&mut mounts)
    };
    let dataset = "d".repeat(200);
    let change = staves_model::Change::SetDataset {
        pool: "files".into(),
        name: dataset.clone(),
        source: "/none".into(),
    };
    let change = postcard::to_allocvec(&change).expect("it encodes").into();
    let expected = None;
    assert_eq!(
        say(Message::Propose(Propose { expected, change })),
        Opcode::Proposed
    );
    for i in 0..256 {
        let words = format!("{i}{}", "\u{1}".repeat(500));
        let told = FileAway {
            dataset: dataset.clone(),
            by: words.clone(),
            for_ms: 1 << 40,
            why: words,
        };
        assert_eq!(say(Message::FileAway(told)), Opcode::Done);
    }
    let ask = frames([const { Message::Status }; 4]);
    let mut asked: Vec<TcpStream> = (0..100).map(|_| native(node)).collect();
    asked.iter_mut().for_each(|socket| push(socket, &ask));
    std::thread::sleep(Duration::from_secs(12));
    goes_on(node);
    let most = resident_max(node);
    // 4 MiB, a quarter of that for small ones, some KiB of each, and what the node has at rest.
    assert!(most <= 90 * MIB, "{} MiB", most / MIB);
    drop(asked);
    // Who takes it is given it.
    let mut socket = native(node);
    socket.write_all(&ask).expect("it takes bytes");
    assert_eq!(opcode(&mut socket), Opcode::StatusAnswer);
}
