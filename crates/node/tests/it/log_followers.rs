//! Followers of logs by both doors: they resume, go on over a node's death, and cost each other nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use staves_grpc::logs_v1 as v1;
use staves_model::NodeState;
use staves_testkit::wait_until;

use crate::log_doors::{ask, cluster, connect, grpc, http, make};

/// A stream of server-sent events.
pub(crate) struct Events {
    socket: BufReader<TcpStream>,
    text: String,
}

impl Events {
    /// Follows a log. Fails with the head of the answer if it is refused.
    pub(crate) fn open(door: SocketAddr, path: &str, headers: &str) -> Result<Events, String> {
        let mut socket = connect(door);
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        socket.write_all(head.as_bytes()).expect("sent");
        let mut socket = BufReader::new(socket);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let read = socket.read_line(&mut head);
            assert!(read.expect("a head") > 0, "{head}");
        }
        match head.starts_with("HTTP/1.1 200") {
            true => Ok(Events {
                socket,
                text: String::new(),
            }),
            false => Err(head),
        }
    }

    /// The next block of lines; none at the end of the stream.
    pub(crate) fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                return Some(block);
            }
            let mut size = String::new();
            self.socket.read_line(&mut size).expect("a chunk");
            let size = usize::from_str_radix(size.trim(), 16).expect("its size");
            let mut chunk = vec![0; size + 2];
            self.socket.read_exact(&mut chunk).expect("all of it");
            if size == 0 {
                return None;
            }
            chunk.truncate(size);
            self.text += &String::from_utf8(chunk).expect("text");
        }
    }

    /// The next record: its position and the event's data. Signs of life are passed over.
    pub(crate) fn record(&mut self) -> (u64, serde_json::Value) {
        loop {
            let block = self.block().expect("it goes on");
            if block == ":" {
                continue;
            }
            let (id, data) = block.split_once('\n').expect("two lines");
            let id = id.strip_prefix("id: ").and_then(|id| id.parse().ok());
            let data = data.strip_prefix("data: ").expect("data");
            let data = serde_json::from_str(data).expect("JSON");
            return (id.unwrap_or_else(|| panic!("{block}")), data);
        }
    }
}

fn append(door: SocketAddr, log: &str, record: &[u8]) -> u64 {
    let appended = ask(door, "POST", &format!("/v1/logs/{log}"), record);
    assert_eq!(appended.status, 200, "{appended:?}");
    appended.json()["positions"][0]
        .as_u64()
        .expect("a position")
}

#[test]
fn a_browser_that_connects_anew_goes_on_behind_its_last_event() {
    let (cluster, _runtime) = cluster(2);
    make(&cluster, "l");
    let path = "/v1/logs/l/follow?from=0";
    let mut events = Events::open(http(&cluster, 1), path, "").expect("it follows");
    for n in 0..3_u64 {
        append(
            http(&cluster, 0),
            "l",
            format!("line {n}\nand more").as_bytes(),
        );
        let (position, data) = events.record();
        assert_eq!((position, &data["position"]), (n, &n.into()));
        assert_eq!(data["value"], format!("line {n}\nand more"));
    }
    drop(events);
    append(http(&cluster, 0), "l", b"meanwhile");
    let again = Events::open(http(&cluster, 0), path, "last-event-id: 1\r\n");
    let mut again = again.expect("it follows");
    assert_eq!(again.record().0, 2, "behind the last one");
    let (position, data) = again.record();
    assert_eq!((position, &data["value"]), (3, &"meanwhile".into()));
    let mut late = Events::open(http(&cluster, 0), "/v1/logs/l/follow?from=tail", "");
    append(http(&cluster, 1), "l", b"new");
    let (position, _) = late.as_mut().expect("it follows").record();
    assert_eq!(position, 4, "only what came then");
}

#[test]
fn a_quiet_log_shows_signs_of_life_and_the_end_of_a_deleted_one_is_said() {
    let (cluster, runtime) = cluster(1);
    make(&cluster, "l");
    let events = Events::open(http(&cluster, 0), "/v1/logs/l/follow", "");
    let mut events = events.expect("it follows");
    assert_eq!(events.block().expect("a sign"), ":");
    let follow = v1::FollowRequest {
        name: "l".into(),
        ..v1::FollowRequest::default()
    };
    let stream = runtime.block_on(async { grpc(&cluster, 0).await.follow(follow).await });
    let mut stream = stream.expect("it follows").into_inner();
    let deleted = ask(http(&cluster, 0), "DELETE", "/v1/logs/l", b"");
    assert_eq!(deleted.status, 200, "{deleted:?}");
    let mut end = events.block().expect("an event");
    while end == ":" {
        end = events.block().expect("an event");
    }
    assert!(end.starts_with("event: error\ndata: "), "{end}");
    assert!(end.contains("\"code\":\"not-found\""), "{end}");
    assert_eq!(events.block(), None);
    let ended = runtime.block_on(stream.message()).expect_err("it ends");
    assert_eq!(ended.code(), tonic::Code::NotFound, "{ended}");
}

#[test]
fn followers_by_both_doors_go_on_when_the_sequencers_node_dies() {
    let (mut cluster, runtime) = cluster(4);
    make(&cluster, "l");
    append(http(&cluster, 0), "l", b"0");
    let shown = ask(http(&cluster, 0), "GET", "/v1/logs/l", b"").json();
    let name = shown["sequencer"].as_str().expect("a sequencer").to_owned();
    let map = cluster.nodes[0].map();
    let victim = map.nodes.values().find(|node| node.name == name);
    let victim = cluster.position(victim.expect("a node").id);
    let near = (victim + 1) % 4;
    let door = http(&cluster, near);
    let mut events = Events::open(door, "/v1/logs/l/follow?from=0", "").expect("it follows");
    let follow = v1::FollowRequest {
        name: "l".into(),
        from: Some(0),
        ..v1::FollowRequest::default()
    };
    let stream = runtime.block_on(async { grpc(&cluster, near).await.follow(follow).await });
    let mut stream = stream.expect("it follows").into_inner();
    for n in 1..20_u64 {
        append(door, "l", n.to_string().as_bytes());
    }
    cluster.nodes[victim].kill();
    for n in 20..40_u64 {
        append(door, "l", n.to_string().as_bytes());
    }
    let life = cluster.nodes[near].map();
    let dead = life.nodes.values().find(|node| node.name == name);
    assert!(dead.is_none_or(|node| node.state != NodeState::Up));
    let mut last = None;
    for n in 0..40_u64 {
        let (position, data) = events.record();
        assert!(last < Some(position), "in order, and each once");
        last = Some(position);
        assert_eq!(data["value"], n.to_string());
    }
    runtime.block_on(async {
        let (mut values, mut last) = (Vec::new(), None);
        while values.len() < 40 {
            let reply = stream.message().await.expect("it goes on");
            for record in reply.expect("it does not end").records {
                assert!(last < Some(record.position), "in order, and each once");
                last = Some(record.position);
                values.push(String::from_utf8(record.value.to_vec()).expect("text"));
            }
        }
        let expected: Vec<String> = (0..40).map(|n| n.to_string()).collect();
        assert_eq!(values, expected);
    });
}

/// Regression for slow readers: one that takes nothing costs the others neither time nor memory.
#[test]
fn a_follower_that_reads_nothing_is_bounded_and_costs_others_nothing() {
    const RECORDS: u64 = 64;
    let (cluster, runtime) = cluster(1);
    let door = http(&cluster, 0);
    make(&cluster, "l");
    // Neither reads a byte of what it is sent.
    let mut slow = connect(door);
    let head = b"GET /v1/logs/l/follow?from=0 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    slow.write_all(head).expect("sent");
    let follow = v1::FollowRequest {
        name: "l".into(),
        ..v1::FollowRequest::default()
    };
    let stream = runtime.block_on(async { grpc(&cluster, 0).await.follow(follow).await });
    let stream = stream.expect("it follows");
    let mut fast = Events::open(door, "/v1/logs/l/follow?from=0", "").expect("it follows");
    wait_until("all of them follow", || {
        cluster.nodes[0].metric("staves_log_followers") == 3
    });
    let record = vec![b'x'; 512 << 10];
    for n in 0..RECORDS {
        assert_eq!(append(door, "l", &record), n);
        assert_eq!(fast.record().0, n, "as if it were alone");
        let held = cluster.nodes[0].metric("staves_log_in_flight_bytes");
        assert!(held < 6 << 20, "{held} bytes at record {n}");
    }
    // They had their time, and their places go to others.
    let begun = Instant::now();
    wait_until("the slow ones are gone", || {
        cluster.nodes[0].metric("staves_log_followers") == 1
    });
    assert!(begun.elapsed() < Duration::from_secs(60));
    append(door, "l", b"end");
    assert_eq!(fast.record().0, RECORDS);
    drop((slow, stream));
}
