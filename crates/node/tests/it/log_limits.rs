//! Logs by HTTP and gRPC where something is wrong, or runs out: requests, bytes, memory, places.

use std::io::Write;

use staves_grpc::SETTLED;
use staves_grpc::logs_v1 as v1;
use staves_testkit::cluster::Parse;
use staves_testkit::wait_until;
use tonic::Code;
use tonic::codegen::tokio_stream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use crate::grpc_volumes::channel;
use crate::log_doors::{ask, ask_with, cluster, cluster_with, connect, grpc, http, make, raw};
use crate::log_followers::Events;

const LINES: &str = "content-type: application/x-ndjson\r\n";

/// Requests without a body, the status that each gets, and a part of the reason.
const WRONG: &[(&str, &str, u16, &str)] = &[
    ("GET", "/", 404, "no such path"),
    ("GET", "/v1", 404, "no such path"),
    ("GET", "/v1/logsx", 404, "no such path"),
    ("GET", "/v1/logs/l/head", 404, "no such path"),
    ("GET", "/v1/logs/l/tail/x", 404, "no such path"),
    ("GET", "/v1/logs/none", 404, "no log 'none'"),
    ("GET", "/v1/logs/none?from=0", 404, "no log 'none'"),
    ("GET", "/v1/logs/none/follow", 404, "no log 'none'"),
    ("GET", "/v1/logs/none/tail", 404, "no log 'none'"),
    ("POST", "/v1/logs/none", 404, "no log 'none'"),
    ("DELETE", "/v1/logs/none", 404, "no log 'none'"),
    ("GET", "/v1/logs/l?from=0&pool=cache", 404, "cache"),
    ("PATCH", "/v1/logs/l", 405, "GET, POST, PUT, DELETE"),
    ("POST", "/v1/logs", 405, "GET"),
    ("GET", "/v1/logs/l/trim?to=1", 405, "POST"),
    ("DELETE", "/v1/logs/l/follow", 405, "GET"),
    ("GET", "/v1/logs/l?from=-1", 400, "whole number"),
    (
        "GET",
        "/v1/logs/l?from=18446744073709551616",
        400,
        "whole number",
    ),
    ("GET", "/v1/logs/l?from=0&count=0", 400, "from 1 to 1000"),
    ("GET", "/v1/logs/l?from=0&count=1001", 400, "from 1 to 1000"),
    ("GET", "/v1/logs/l?from=0&from=0", 400, "twice"),
    ("GET", "/v1/logs/l?form=0", 400, "no 'form' here"),
    (
        "GET",
        "/v1/logs/l?from=0&timeout_ms=30001",
        400,
        "1 to 30000",
    ),
    ("GET", "/v1/logs/l?from=2", 416, "past its tail, 1"),
    (
        "GET",
        "/v1/logs/l?from=18446744073709551615",
        416,
        "past its tail",
    ),
    ("GET", "/v1/logs/l/follow?from=2", 416, "past its tail, 1"),
    ("GET", "/v1/logs/l/follow?from=tails", 400, "whole number"),
    ("GET", "/v1/logs/l/follow?count=1", 400, "no 'count' here"),
    ("GET", "/v1/logs/%ff/tail", 400, "no UTF-8"),
    ("GET", "/v1/logs/%zz/tail", 400, "hexadecimal"),
    ("PUT", "/v1/logs/", 400, "1 to 255 bytes"),
    ("PUT", "/v1/logs/m?mode=fast", 400, "bind, predict or corfu"),
    ("PUT", "/v1/logs/l", 409, "already"),
    ("POST", "/v1/logs/l/trim", 400, "to is missing"),
    ("POST", "/v1/logs/l/trim?to=9", 409, "cannot be trimmed"),
];

#[test]
fn wrong_requests_by_http_are_refused_with_the_reason_and_change_nothing() {
    let (cluster, _runtime) = cluster(1);
    let door = http(&cluster, 0);
    make(&cluster, "l");
    assert_eq!(ask(door, "POST", "/v1/logs/l", b"first").status, 200);
    let long = format!("/v1/logs/{}", "x".repeat(256));
    let too_long = ("PUT", &long[..], 400, "1 to 255 bytes");
    for (method, path, status, part) in WRONG.iter().copied().chain([too_long]) {
        let refused = ask(door, method, path, b"");
        assert_eq!(refused.status, status, "{method} {path:.40}: {refused:?}");
        let json = refused.json();
        let text = json["error"].as_str().expect("words");
        assert!(text.contains(part), "{method} {path:.40}: {text}");
        assert_eq!(json["may_have_been_done"], false, "{json}");
        assert_eq!(refused.header("allow").is_some(), status == 405);
    }
    for (body, part) in [
        (&b""[..], "no lines"),
        (b"{\n", "line 1"),
        (b"1\n\n2\n", "line 2"),
        (b"1\n\"\xff\"\n", "line 2"),
    ] {
        let refused = ask_with(door, ("POST", "/v1/logs/l"), LINES, body);
        assert_eq!(refused.status, 400, "{refused:?}");
        assert!(refused.text().contains(part), "{refused:?}");
    }
    let id = Events::open(door, "/v1/logs/l/follow", "last-event-id: x\r\n");
    assert!(id.is_err_and(|head| head.starts_with("HTTP/1.1 400")));
    let tail = ask(door, "GET", "/v1/logs/l/tail", b"").json();
    assert_eq!(tail["tail"], 1, "nothing was appended");
}

#[test]
fn what_is_too_long_is_refused_by_http_before_it_is_read() {
    let (cluster, _runtime) = cluster(1);
    let door = http(&cluster, 0);
    make(&cluster, "l");
    let head = "POST /v1/logs/l HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    // None of its bytes are sent.
    let declared = format!("{head}content-length: 9999999999\r\n\r\n");
    let refused = raw(door, declared.as_bytes());
    assert_eq!(refused.status, 413, "{refused:?}");
    assert_eq!(refused.json()["code"], "too-large");
    // Its length shows only as it comes.
    let mut chunked = format!("{head}transfer-encoding: chunked\r\n\r\n").into_bytes();
    for _ in 0..40 {
        chunked.extend_from_slice(b"10000\r\n");
        chunked.extend_from_slice(&[b'x'; 0x10000]);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    let refused = raw(door, &chunked);
    assert_eq!(refused.status, 413, "{}", refused.head);
    let large = ask(door, "POST", "/v1/logs/l", &vec![b'x'; (1 << 20) + 1]);
    assert_eq!(large.status, 413, "{large:?}");
    let lines = "1\n".repeat(1025);
    let many = ask_with(door, ("POST", "/v1/logs/l"), LINES, lines.as_bytes());
    assert_eq!(many.status, 413, "{many:?}");
    let path = format!("GET /v1/logs/{} HTTP/1.1\r\n\r\n", "x".repeat(100_000));
    let refused = raw(door, path.as_bytes());
    assert!([414, 431].contains(&refused.status), "{refused:?}");
    assert_eq!(raw(door, b"\xff\xfe nothing of ours\r\n\r\n").status, 400);
    let tail = ask(door, "GET", "/v1/logs/l/tail", b"").json();
    assert_eq!(tail["tail"], 0, "nothing was appended");
    // The largest that there is, and as many as there may be.
    let largest = ask(door, "POST", "/v1/logs/l", &vec![b'x'; 1 << 20]);
    assert_eq!(largest.json()["positions"][0], 0, "{}", largest.head);
    let lines = "1\n".repeat(1024);
    let most = ask_with(door, ("POST", "/v1/logs/l"), LINES, lines.as_bytes());
    assert_eq!(most.json()["positions"][1023], 1024);
    let read = ask(door, "GET", "/v1/logs/l?from=0&count=2", b"");
    assert_eq!(
        read.header("staves-next"),
        Some("1"),
        "one that is long comes alone"
    );
}

#[test]
fn wrong_appends_by_grpc_are_refused_with_the_reason() {
    let (cluster, runtime) = cluster(1);
    make(&cluster, "l");
    let name = || "l".to_owned();
    runtime.block_on(async {
        let mut stub = grpc(&cluster, 0).await;
        let append = |records: Vec<bytes::Bytes>| v1::AppendRequest {
            name: name(),
            records,
            ..v1::AppendRequest::default()
        };
        for (records, part) in [
            (vec![], "takes 1 to 1024"),
            (vec![bytes::Bytes::new(); 1025], "takes 1 to 1024"),
            (vec![vec![0; (1 << 20) + 1].into()], "at most"),
            (vec![vec![0; 3 << 20].into()], "at most"),
        ] {
            let refused = stub.append(append(records)).await.expect_err("refused");
            assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
            assert!(refused.message().contains(part), "{refused}");
            assert!(refused.metadata().contains_key(SETTLED), "{refused}");
        }
    });
}

#[test]
fn wrong_calls_by_grpc_are_refused_with_the_reason() {
    let (cluster, runtime) = cluster(1);
    make(&cluster, "l");
    let name = || "l".to_owned();
    runtime.block_on(async {
        let mut stub = grpc(&cluster, 0).await;
        let create = v1::CreateRequest {
            name: "m".into(),
            mode: 99,
            ..v1::CreateRequest::default()
        };
        let refused = stub.create(create).await.expect_err("no such mode");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        let both = v1::FollowRequest {
            name: name(),
            from: Some(0),
            from_tail: true,
            ..v1::FollowRequest::default()
        };
        let refused = stub.follow(both).await.expect_err("both");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        let past = v1::ReadRequest {
            name: name(),
            from: Some(7),
            ..v1::ReadRequest::default()
        };
        let refused = stub.read(past).await.expect_err("past the tail");
        assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
        let trim = v1::TrimRequest {
            name: name(),
            to: 7,
            ..v1::TrimRequest::default()
        };
        let refused = stub.trim(trim).await.expect_err("past the tail");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        let none = v1::TailRequest {
            name: "none".into(),
            pool: None,
        };
        let refused = stub.tail(none).await.expect_err("there is none");
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
        let tail = v1::TailRequest {
            name: name(),
            pool: None,
        };
        let tail = stub.tail(tail).await.expect("the tail").into_inner().tail;
        assert_eq!(tail, 0, "nothing was appended");
    });
}

#[test]
fn the_grpc_door_knows_the_service_of_logs() {
    let (cluster, runtime) = cluster(1);
    let door = cluster.nodes[0].addresses.grpc.expect("the door");
    runtime.block_on(async {
        let mut health = HealthClient::new(channel(door).await);
        let ask = HealthCheckRequest {
            service: "staves.logs.v1.Logs".into(),
        };
        let answer = health.check(ask).await.expect("known").into_inner();
        assert_eq!(answer.status().as_str_name(), "SERVING");
        let mut reflection = ServerReflectionClient::new(channel(door).await);
        let ask = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::FileContainingSymbol(
                "staves.logs.v1.Logs".into(),
            )),
        };
        let answers = reflection.server_reflection_info(tokio_stream::once(ask));
        let mut answers = answers.await.expect("known").into_inner();
        let answer = answers.message().await.expect("no error").expect("one");
        let file = format!("{:?}", answer.message_response);
        assert!(file.contains("FileDescriptorResponse"), "{file:.200}");
    });
}

#[test]
fn connections_and_followers_are_bounded_and_their_places_go_to_others() {
    let (cluster, _runtime) = cluster_with(1, |config| config.clients_max = 5);
    let door = http(&cluster, 0);
    make(&cluster, "l");
    let connections = || cluster.nodes[0].metric("staves_http_connections");
    wait_until("there are none", || connections() == 0);
    let follow = || Events::open(door, "/v1/logs/l/follow", "").expect("it follows");
    let mut open: Vec<Events> = (0..5).map(|_| follow()).collect();
    let mut more = connect(door);
    let _ = more.write_all(b"GET /v1/logs HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let read = std::io::Read::read(&mut more, &mut [0; 100]);
    assert!(!read.is_ok_and(|count| count > 0), "beyond the bound");
    open.truncate(2);
    wait_until("there are places again", || connections() == 2);
    assert_eq!(ask(door, "GET", "/v1/logs", b"").status, 200);
    let rejected = cluster.nodes[0].metric("staves_http_connections_rejected_total");
    assert!(rejected >= 1);
}

#[test]
fn no_more_than_so_many_follow_through_a_node() {
    const FOLLOWERS_MAX: usize = 256;
    let (cluster, runtime) = cluster(1);
    let door = http(&cluster, 0);
    make(&cluster, "l");
    let follow = || Events::open(door, "/v1/logs/l/follow", "");
    let mut open: Vec<Events> = (0..FOLLOWERS_MAX)
        .map(|n| follow().unwrap_or_else(|head| panic!("{n}: {head}")))
        .collect();
    let refused = follow().map(drop).expect_err("one too many");
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    runtime.block_on(async {
        let follow = v1::FollowRequest {
            name: "l".into(),
            ..v1::FollowRequest::default()
        };
        let refused = grpc(&cluster, 0).await.follow(follow).await;
        let refused = refused.expect_err("by the other door, too");
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    });
    assert_eq!(ask(door, "POST", "/v1/logs/l", b"for all").status, 200);
    assert!(open.iter_mut().all(|events| events.record().0 == 0));
    drop(open);
    wait_until("there are places again", || follow().is_ok());
}

#[test]
fn bodies_that_do_not_move_are_counted_and_make_way_for_others() {
    let (cluster, _runtime) = cluster_with(1, |config| {
        config.in_flight_bytes_max = "32MiB".parse_size();
    });
    let door = http(&cluster, 0);
    make(&cluster, "l");
    let held = || cluster.nodes[0].metric("staves_log_in_flight_bytes");
    // Of 8 MiB each takes two: there is memory for four of them.
    let begun = b"POST /v1/logs/l HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1048576\r\n\r\nx";
    let mut stalled: Vec<_> = (0..8).map(|_| connect(door)).collect();
    for socket in &mut stalled {
        socket.write_all(begun).expect("sent");
    }
    wait_until("they take memory", || held() >= 6 << 20);
    assert!(held() <= 12 << 20, "{}", held());
    let small = ask(door, "POST", "/v1/logs/l", b"small");
    assert_eq!(small.status, 200, "small ones go on: {small:?}");
    let large = vec![b'x'; 1 << 20];
    let mut done = 0;
    for _ in 0..10 {
        let answer = ask(door, "POST", "/v1/logs/l", &large);
        assert!([200, 429].contains(&answer.status), "{answer:?}");
        done += usize::from(answer.status == 200);
        if done > 0 {
            break;
        }
    }
    assert_eq!(done, 1, "those that hold what others wait for are refused");
    drop(stalled);
    wait_until("nothing is held", || held() < 64 << 10);
}

#[test]
fn no_more_than_so_many_logs_are_open() {
    const OPEN_MAX: u64 = 256;
    let (cluster, runtime) = cluster(1);
    runtime.block_on(async {
        let mut stub = grpc(&cluster, 0).await;
        for n in 0..OPEN_MAX + 4 {
            let create = v1::CreateRequest {
                name: format!("l{n}"),
                ..v1::CreateRequest::default()
            };
            stub.create(create).await.expect("made");
            let append = v1::AppendRequest {
                name: format!("l{n}"),
                records: vec!["x".into()],
                ..v1::AppendRequest::default()
            };
            stub.append(append).await.expect("appended");
        }
    });
    assert_eq!(cluster.nodes[0].metric("staves_log_handles"), OPEN_MAX);
    // One that was closed opens again.
    let read = ask(http(&cluster, 0), "GET", "/v1/logs/l0?from=0", b"");
    assert_eq!(read.text(), "{\"position\":0,\"value\":\"x\"}\n");
}
