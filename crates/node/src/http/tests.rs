//! Times and bounds of connections, without a node behind them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::bodies::{BODY_BYTES_MAX, lines};
use super::query::{QueryPairs, decoded};
use super::*;
use crate::client_doors::LogDoorFigures;
use crate::config::Doors;
use crate::entry::Entry;

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(60);

/// A door whose node never joins, with these times.
fn door(times: HttpTimes) -> (Runtime, SocketAddr, Arc<LogDoorFigures>) {
    let runtime = Runtime::new().expect("a runtime");
    let config = Config::default();
    let figures = LogDoorFigures::new(32 << 20);
    let told = Doors {
        native: config.listen.clone(),
        resp: config.resp.clone(),
        admin: config.admin.clone(),
    };
    let door = HttpDoor {
        logs: LogGateway::new(
            Entry::new(&config, false),
            config.listen.to_string(),
            None,
            figures.clone(),
        ),
        names: HostNames::new(&config, &told),
        places: DoorClients::new("HTTP", 8),
        times,
    };
    let address = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (sender, phase) = watch::channel(Phase::Open);
        tokio::spawn(async move {
            let _sender = sender;
            accept(listener, Arc::new(door), phase).await;
        });
        address
    });
    (runtime, address, figures)
}

/// All that the door says to these bytes, until it ends the connection.
fn said(address: SocketAddr, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(address).expect("it listens");
    let patience = Some(Duration::from_secs(20));
    socket.set_read_timeout(patience).expect("set");
    socket.write_all(bytes).expect("sent");
    let mut all = Vec::new();
    match socket.read_to_end(&mut all) {
        // Not all that was sent was read.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        ended => drop(ended.expect("the connection ends")),
    }
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn a_head_that_does_not_come_ends_its_connection() {
    let times = HttpTimes {
        head: SHORT,
        body: LONG,
        take: LONG,
    };
    let (_runtime, address, _figures) = door(times);
    assert!(said(address, b"").len() < 200, "nothing was asked");
    assert!(!said(address, b"GET /v1/logs HTTP/1.1\r\nhost: loc").contains("200 OK"));
    // A connection that was used, and says nothing more.
    let used = said(address, b"GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert!(used.starts_with("HTTP/1.1 404"), "{used}");
    assert!(used.contains("\"code\":\"not-found\""), "{used}");
}

#[test]
fn a_body_that_does_not_come_is_refused_and_gives_its_memory_back() {
    let times = HttpTimes {
        head: LONG,
        body: SHORT,
        take: LONG,
    };
    let (_runtime, address, figures) = door(times);
    let begun = b"POST /v1/logs/l HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999\r\n\r\nabc";
    let refused = said(address, begun);
    assert!(refused.starts_with("HTTP/1.1 408"), "{refused}");
    assert!(refused.contains("did not come whole"), "{refused}");
    assert_eq!(figures.memory.held_bytes(), 0);
}

#[test]
fn a_body_that_stands_still_makes_way_for_one_that_waits() {
    let times = HttpTimes {
        head: LONG,
        body: LONG,
        take: LONG,
    };
    let (_runtime, address, figures) = door(times);
    let begin = || {
        let mut socket = TcpStream::connect(address).expect("it listens");
        let patience = Some(Duration::from_secs(20));
        socket.set_read_timeout(patience).expect("set");
        let begun =
            b"POST /v1/logs/l HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1048576\r\n\r\nx";
        socket.write_all(begun).expect("sent");
        socket
    };
    // Each takes two of 8 MiB.
    let mut stalled: Vec<TcpStream> = (0..4).map(|_| begin()).collect();
    while figures.memory.held_bytes() < 7 << 20 {
        std::thread::sleep(Duration::from_millis(10));
    }
    // It waits for some seconds, and is refused if nobody makes way.
    std::thread::sleep(Duration::from_millis(2500));
    let _waiting = begin();
    let mut answer = [0; 12];
    let until = std::time::Instant::now() + Duration::from_secs(20);
    let short = Some(Duration::from_millis(50));
    let mut ended = false;
    while !ended && std::time::Instant::now() < until {
        ended = stalled.iter_mut().any(|socket| {
            socket.set_read_timeout(short).expect("set");
            socket.read_exact(&mut answer).is_ok()
        });
    }
    assert!(ended, "one makes way");
    assert_eq!(&answer, b"HTTP/1.1 408");
}

#[test]
fn a_body_that_is_too_long_is_refused_before_it_comes() {
    let times = HttpTimes {
        head: LONG,
        body: LONG,
        take: LONG,
    };
    let (_runtime, address, figures) = door(times);
    let ask = |length: usize| {
        let head = "POST /v1/logs/l HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
        let head = format!("{head}content-length: {length}\r\n\r\n");
        said(address, head.as_bytes())
    };
    let refused = ask(BODY_BYTES_MAX + 1);
    assert!(refused.starts_with("HTTP/1.1 413"), "{refused}");
    assert!(refused.contains("split it"), "{refused}");
    assert_eq!(figures.memory.held_bytes(), 0);
}

#[test]
fn a_head_that_is_too_long_is_refused() {
    let (_runtime, address, _figures) = door(HttpTimes::default());
    let ask = |headers: &str| {
        let request = format!(
            "GET /v1/logs HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n"
        );
        said(address, request.as_bytes())
    };
    let many = |count: usize| (0..count).map(|n| format!("x-{n}: 1\r\n")).collect();
    let few: String = many(60);
    assert!(ask(&few).starts_with("HTTP/1.1 503"), "{}", ask(&few));
    let more: String = many(70);
    assert!(ask(&more).starts_with("HTTP/1.1 431"), "{}", ask(&more));
    let long = format!("x: {}\r\n", "y".repeat(8 << 10));
    assert!(ask(&long).starts_with("HTTP/1.1 503"));
    let longer = format!("x: {}\r\n", "y".repeat(17 << 10));
    assert!(ask(&longer).starts_with("HTTP/1.1 431"));
}

#[test]
fn an_answer_that_nobody_takes_ends_its_connection() {
    let (runtime, short) = (Runtime::new().expect("a runtime"), SHORT);
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let client = tokio::net::TcpStream::connect(address).await;
        let (server, _) = listener.accept().await.expect("accepted");
        let mut server = socket::PatientSocket::new(server, short);
        let much = vec![0; 64 << 20];
        let written = tokio::io::AsyncWriteExt::write_all(&mut server, &much);
        let written = tokio::time::timeout(Duration::from_secs(30), written).await;
        let failed = written.expect("it does not wait for ever");
        let failed = failed.expect_err("nobody reads");
        assert_eq!(failed.kind(), std::io::ErrorKind::TimedOut, "{failed}");
        drop(client);
    });
}

#[test]
fn a_request_before_the_node_has_joined_says_so() {
    let (_runtime, address, _figures) = door(HttpTimes::default());
    let asked = b"GET /v1/logs/l/tail HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let refused = said(address, asked);
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.contains("has not joined"), "{refused}");
    assert!(refused.contains("retry-after: 1"), "{refused}");
}

#[test]
fn strangers_and_pages_of_other_origins_are_refused() {
    let (_runtime, address, _figures) = door(HttpTimes::default());
    let ask = |headers: &str| {
        let request = format!("GET /v1/logs HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
        said(address, request.as_bytes())
    };
    let rebound = ask("host: evil.example\r\n");
    assert!(rebound.starts_with("HTTP/1.1 421"), "{rebound}");
    let page = ask("host: localhost\r\norigin: http://evil.example\r\n");
    assert!(page.starts_with("HTTP/1.1 403"), "{page}");
    let own = ask("host: localhost\r\norigin: http://localhost\r\n");
    assert!(own.starts_with("HTTP/1.1 503"), "{own}");
}

#[test]
fn lines_are_json_each_and_records_as_they_stand() {
    let body = |text: &'static str| lines(&Bytes::from_static(text.as_bytes()));
    let two = body("{\"a\": 1}\r\n[2]\n").expect("two lines");
    assert_eq!(two, [&b"{\"a\": 1}"[..], b"[2]"]);
    assert_eq!(body("1").expect("no end of the line").len(), 1);
    for wrong in ["", "{\n", "{}\n\n{}\n", "{} {}\n", "a\n"] {
        assert!(body(wrong).is_err(), "{wrong:?}");
    }
    let deep = "[".repeat(100_000);
    assert!(lines(&Bytes::from(deep)).is_err());
    assert!(
        lines(&Bytes::from_static(b"\"\xff\"\n")).is_err(),
        "no UTF-8"
    );
    let many = "1\n".repeat(1025);
    assert!(lines(&Bytes::from(many)).is_err());
}

#[test]
fn paths_and_queries_are_taken_apart_or_refused() {
    assert_eq!(decoded("it", "a%2Fb%20c").expect("text"), "a/b c");
    for wrong in ["%", "%2", "%zz", "%ff", "a%"] {
        assert!(decoded("it", wrong).is_err(), "{wrong}");
    }
    let parse = |query| QueryPairs::parse(Some(query), &["from", "pool"]);
    let pairs = parse("from=7&pool=a+b").expect("two pairs");
    assert_eq!(pairs.number("from").expect("a number"), Some(7));
    assert_eq!(pairs.text("pool"), Some("a b"));
    for wrong in ["from=1&from=2", "form=1", "to=3", "%ff=1"] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
    for wrong in ["-1", "+1", "", "1.0", "18446744073709551616", "x"] {
        let pairs = QueryPairs::parse(Some(&format!("from={wrong}")), &["from"]);
        let number = pairs.expect("a pair").number("from");
        assert!(number.is_err(), "{wrong:?}");
    }
    let count = |query| QueryPairs::parse(Some(query), &["count"]).map(|q| q.count("count", 10));
    assert!(matches!(count("count=10"), Ok(Ok(10))));
    assert!(matches!(count("count=0"), Ok(Err(_))));
    assert!(matches!(count("count=11"), Ok(Err(_))));
}
