//! Clients of the native protocol that ask for much by little, and take no answers: the nodes go on for others.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use staves_model::{ClientId, ClusterId, GroupId, MemberSlot, Revision, ServiceId};
use staves_net::Identity;
use staves_wire::admin::GroupSums;
use staves_wire::cache::{CacheStats, OwnedOp};
use staves_wire::directory::{GetMap, Propose};
use staves_wire::frame::{self, Envelope, HEADER_BYTES, Header};
use staves_wire::service::{PoolRef, ServiceRequest};
use staves_wire::{Message, Opcode};

use super::floods::{Client, MIB, RESIDENT_MAX, resident_max, set};
use super::littles::goes_on;
use super::*;

/// A connection of a client, after the hello.
pub(super) fn native(node: &Node) -> TcpStream {
    let mut socket = TcpStream::connect(&node.native).expect("it listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let hello = Message::Hello(Identity::client(ClusterId(0)).hello());
    socket.write_all(&frames([hello])).expect("it takes bytes");
    assert_eq!(opcode(&mut socket), Opcode::Welcome);
    socket
}

pub(super) fn frames(messages: impl IntoIterator<Item = Message>) -> Vec<u8> {
    let mut bytes = bytes::BytesMut::new();
    for (request, message) in (1..).zip(messages) {
        let envelope = Envelope {
            request,
            deadline_ms: 30_000,
            ..Envelope::default()
        };
        frame::encode(envelope, &message, &mut bytes);
    }
    bytes.to_vec()
}

/// The next message's kind.
pub(super) fn opcode(socket: &mut TcpStream) -> Opcode {
    let mut header = [0; HEADER_BYTES];
    socket.read_exact(&mut header).expect("an answer");
    let header = Header::decode(&header).expect("the node speaks well");
    let mut body = vec![0; header.body_len as usize];
    socket.read_exact(&mut body).expect("all of it");
    Opcode::from_number(header.opcode).expect("known")
}

/// Says the same again and again on each of so many connections, for so long, and takes nothing.
pub(super) fn flood(cluster: &Cluster, connections: usize, bytes: &[u8], time: Duration) {
    let nodes = cluster.nodes.iter().cycle().take(connections);
    drop(flooded(nodes.map(native), bytes, time));
}

/// The same on these connections, which are still there then.
pub(super) fn flooded(
    connections: impl Iterator<Item = TcpStream>,
    bytes: &[u8],
    time: Duration,
) -> Vec<TcpStream> {
    let mut all: Vec<(TcpStream, usize)> = connections.map(|socket| (socket, 0)).collect();
    for (socket, _) in &all {
        socket.set_nonblocking(true).expect("a socket");
    }
    let until = Instant::now() + time;
    while Instant::now() < until {
        for (socket, at) in &mut all {
            match socket.write(&bytes[*at..]) {
                Ok(count) => *at = (*at + count) % bytes.len(),
                // It may be closed, for others wait for the memory that it holds.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => assert!(is_over(&error), "{error}"),
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    all.into_iter().map(|(socket, _)| socket).collect()
}

fn is_over(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}

/// A request of these operations to the first pool.
pub(super) fn of_cache(ops: impl Iterator<Item = OwnedOp>) -> Message {
    Message::Service(ServiceRequest {
        revision: Revision(0),
        service: ServiceId::CACHE,
        pool: PoolRef::Name("cache".into()),
        client: ClientId(0),
        floor: 1,
        retry: false,
        forwarded: false,
        answer_bytes_max: 0,
        strict: false,
        ops: ops.map(|op| op.numbered(0)).collect(),
    })
}

/// Nodes that were taken for dead, by the words of all.
fn deaths(cluster: &Cluster) -> Vec<String> {
    let log = |i| std::fs::read_to_string(cluster.folder.path().join(format!("{i}.log")));
    let logs = (0..cluster.nodes.len()).map(|i| log(i).expect("a log"));
    let lines: Vec<String> = logs
        .flat_map(|log| log.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    lines
        .into_iter()
        .filter(|line| line.contains("is dead"))
        .collect()
}

/// Sixty connections ask three nodes for their state, for sums of pages and for figures all the time. Regression: each was worked on at once
/// where it was read; no node answered anybody for more than a minute after they had gone, and nodes were declared dead.
#[test]
fn a_flood_of_costly_requests_costs_others_little() {
    let cluster = Cluster::start(3);
    let sums = |group: u32| {
        Message::GroupSums(GroupSums {
            group: GroupId(group % 32 + 1),
            slot: MemberSlot((group % 2) as u8),
            page: 0,
            count: u32::MAX,
        })
    };
    let figures = Message::CacheStats(CacheStats {
        pool: PoolRef::Name("cache".into()),
    });
    let all = (0..64).flat_map(|i| [Message::Status, sums(i), figures.clone()]);
    flood(&cluster, 60, &frames(all), Duration::from_secs(10));
    let ended = Instant::now();
    for node in &cluster.nodes {
        let mut socket = native(node);
        socket
            .write_all(&frames([Message::Status]))
            .expect("it takes bytes");
        assert_eq!(opcode(&mut socket), Opcode::StatusAnswer);
    }
    let waited = ended.elapsed();
    assert!(waited < Duration::from_secs(20), "{waited:?}");
    assert_eq!(deaths(&cluster), [""; 0]);
}

/// One connection waits for a thousand newer maps. Regression: each wait was a task of its own for 30 s, however many there were, and did
/// not end with the connection.
#[test]
fn of_one_connection_only_a_few_requests_wait_for_a_newer_map() {
    let cluster = Cluster::start(1);
    let ask = Message::GetMap(GetMap {
        known: Revision(1 << 60),
        wait_ms: u32::MAX,
    });
    let began = Instant::now();
    let mut socket = native(&cluster.nodes[0]);
    socket
        .write_all(&frames(std::iter::repeat_n(ask, 1000)))
        .expect("it takes bytes");
    for _ in 0..998 {
        assert_eq!(opcode(&mut socket), Opcode::MapAnswer);
    }
    let waited = began.elapsed();
    assert!(
        waited < Duration::from_secs(25),
        "they have waited: {waited:?}"
    );
    socket.set_nonblocking(true).expect("a socket");
    let more = socket.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(more, Err(ErrorKind::WouldBlock), "two wait");
}

/// Sixty connections ask three nodes for 1,000 values of 1 MiB by each of their requests, of which all have to get some of each other, and
/// take none. Regression: those that came together all saw that there was room, and were answered by 16 MiB each: 1.4 GiB.
#[test]
fn batches_that_come_together_share_the_memory_for_their_answers() {
    let cluster = Cluster::start(3);
    let node = &cluster.nodes[0];
    let mut client = Client::at(node);
    for i in 0..8 {
        client.say(&set(&format!("big{i}"), 1 << 20));
        assert_eq!(client.line(), "+OK");
    }
    let get = |i: usize| OwnedOp::Get {
        key: Bytes::from(format!("big{}", i % 8)),
    };
    let reads = |count: usize| of_cache((0..count).map(get));
    flood(&cluster, 60, &frames([reads(1000)]), Duration::from_secs(6));
    for node in &cluster.nodes {
        let most = resident_max(node);
        assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
    }
    // Whoever comes after them is answered by all that goes at once.
    let mut socket = native(node);
    let begun = Instant::now();
    loop {
        socket
            .write_all(&frames([reads(2)]))
            .expect("it takes bytes");
        let bytes = service_answer_bytes(&mut socket);
        if bytes >= 2 << 20 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{bytes} bytes");
    }
}

/// The bytes of the answers to a request, in however many frames.
fn service_answer_bytes(socket: &mut TcpStream) -> usize {
    let mut all = 0;
    loop {
        let mut header = [0; HEADER_BYTES];
        socket.read_exact(&mut header).expect("an answer");
        let header = Header::decode(&header).expect("the node speaks well");
        let mut body = vec![0; header.body_len as usize];
        socket.read_exact(&mut body).expect("all of it");
        assert_eq!(header.opcode, Opcode::ServiceAnswers as u8);
        all += body.len();
        if header.flags & frame::FLAG_MORE == 0 {
            return all;
        }
    }
}

/// Six hundred clients ask for a map of 4.4 MB each, and take none. Regression: maps were counted nowhere, and each connection had one: the
/// node took 3.8 GB, and others waited for ten seconds.
#[test]
fn large_maps_that_nobody_takes_have_a_bound() {
    const DATASETS: usize = 1000;
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    let create = [
        "pool", "create", "files", "--kind", "files", "--memory", "16MiB",
    ];
    let made = cluster.run(0, &create);
    assert!(made.stdout.contains("files"), "{}", made.stderr);
    let source = |i: usize| format!("/none/{i}{}", "/a".repeat(2000));
    let datasets = (0..DATASETS).map(|i| {
        let change = staves_model::Change::SetDataset {
            pool: "files".into(),
            name: format!("data{i}"),
            source: source(i),
        };
        let change = postcard::to_allocvec(&change).expect("it encodes");
        Message::Propose(Propose {
            expected: None,
            change: change.into(),
        })
    });
    let mut socket = native(node);
    for request in datasets {
        socket
            .write_all(&frames([request]))
            .expect("it takes bytes");
        assert_eq!(opcode(&mut socket), Opcode::Proposed);
    }
    let ask = |_| {
        Message::GetMap(GetMap {
            known: Revision(0),
            wait_ms: 0,
        })
    };
    let ask = frames((0..3).map(ask));
    let asked: Vec<TcpStream> = (0..600)
        .map(|_| {
            let mut socket = native(node);
            socket.write_all(&ask).expect("it takes bytes");
            socket
        })
        .collect();
    std::thread::sleep(Duration::from_secs(2));
    goes_on(node);
    let most = resident_max(node);
    assert!(most <= RESIDENT_MAX, "{} MiB", most / MIB);
    drop(asked);
    // Who takes it is given it.
    let mut socket = native(node);
    socket.write_all(&ask).expect("it takes bytes");
    assert_eq!(opcode(&mut socket), Opcode::MapAnswer);
}
