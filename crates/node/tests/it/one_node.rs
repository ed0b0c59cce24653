//! One node by itself: what its doors answer, and what keeps it from starting.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use staves_node::StartError;
use staves_node::status::State;

use staves_testkit::cluster::{Parse, TestNode, config};
use staves_testkit::resp::{Reply, RespClient};
use staves_testkit::wait_until;

#[test]
fn commands_are_answered_as_redis_does() {
    let node = TestNode::start(config(None, &[]));
    let mut c = node.client();
    let cases: &[(&str, Reply)] = &[
        ("PING", Reply::Simple("PONG".into())),
        ("SET a 1", Reply::Ok),
        ("GET a", Reply::text("1")),
        ("INCR a", Reply::Int(2)),
        ("DECRBY a 5", Reply::Int(-3)),
        ("GET none", Reply::Nil),
        ("SET a 2 NX", Reply::Nil),
        ("SET a 2 XX GET", Reply::text("-3")),
        ("SETNX b x", Reply::Int(1)),
        ("SETNX b x", Reply::Int(0)),
        ("APPEND b yz", Reply::Int(3)),
        ("STRLEN b", Reply::Int(3)),
        ("GETSET b q", Reply::text("xyz")),
        ("GETDEL b", Reply::text("q")),
        ("MSET k1 v1 k2 v2 k3 v3", Reply::Ok),
        (
            "MGET k1 none k3",
            Reply::Array(vec![Reply::text("v1"), Reply::Nil, Reply::text("v3")]),
        ),
        ("EXISTS k1 k2 none", Reply::Int(2)),
        ("DBSIZE", Reply::Int(4)),
        ("DEL k1 k2 none", Reply::Int(2)),
        ("SELECT 0", Reply::Ok),
    ];
    for (line, answer) in cases {
        assert_eq!(&c.ask(line), answer, "{line}");
    }
    let errors = [
        ("INCR k3", "ERR value is not an integer or out of range"),
        ("GET", "ERR wrong number of arguments for 'get' command"),
        ("SELECT 1", "ERR DB index is out of range"),
        ("FOO bar", "ERR unknown command 'FOO'"),
        ("SET a 1 EX 5", "ERR SET option 'EX' is not supported yet"),
    ];
    for (line, text) in errors {
        match c.ask(line) {
            Reply::Error(got) => assert!(got.starts_with(text), "{line}: {got}"),
            other => panic!("{line}: {other:?}"),
        }
    }
}

/// Regression: a pool that was full once kept its pages when all was deleted, and was called full ever after.
#[test]
fn a_pool_that_was_emptied_is_not_full() {
    let mut config = config(None, &[]);
    config.memory = "16MiB".parse_size();
    let node = TestNode::start(config);
    let mut c = node.client();
    let value = "x".repeat(32 << 10);
    let set = |c: &mut RespClient, key: usize| c.ask(&format!("SET {key} {value}"));
    let is_oom = |answer: &Reply| matches!(answer, Reply::Error(text) if text.starts_with("OOM"));
    // Keys go to all buckets, so that after many refusals in a row each of them is full.
    let (mut keys, mut refused) = (0, 0);
    while refused < 50 {
        match set(&mut c, keys) {
            Reply::Ok => refused = 0,
            answer => {
                assert!(is_oom(&answer), "{answer:?}");
                refused += 1;
            }
        }
        keys += 1;
        assert!(keys < 2_000, "16 MiB hold no {keys} values of 32 KiB");
    }
    let full = node.status();
    assert_eq!(full.state, State::Critical, "{}", full.sentence);
    assert!(full.sentence.contains("fail with OOM"), "{}", full.sentence);
    for key in 0..keys {
        c.ask(&format!("DEL {key}"));
    }
    wait_until("an empty pool is not called full", || {
        node.status().state == State::Healthy
    });
    assert_eq!(set(&mut c, 0), Reply::Ok);
}

#[test]
fn a_node_that_has_not_joined_says_so_at_once_and_the_connection_stays() {
    let ports = staves_testkit::free_ports(2);
    let free = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let (resp, founder) = (free(ports[0]), free(ports[1]));
    let at = |addr: std::net::SocketAddr| addr.to_string().parse().expect("an address");
    let waiting = config(None, &[]);
    let waiting = staves_node::config::Config {
        resp: at(resp),
        join: vec![at(founder)],
        ..waiting
    };
    let starting = std::thread::spawn(move || TestNode::start(waiting));
    let mut client = None;
    wait_until("the door is open", || {
        client = RespClient::try_connect(resp).ok();
        client.is_some()
    });
    let mut client = client.expect("just seen");
    for line in ["PING", "GET a", "HELLO 3", "INFO"] {
        let begun = Instant::now();
        let answer = client.ask(line);
        let said =
            format!("this node has not joined its cluster yet: it looks for one at {founder}");
        let text = answer.is_error().unwrap_or_default();
        assert!(
            text.starts_with("LOADING ") && text.contains(&said),
            "{line}: {text}"
        );
        assert!(begun.elapsed() < Duration::from_secs(6), "{line}");
    }
    let many: Vec<String> = (0..5000).map(|i| format!("GET k{i}")).collect();
    let refused = |answer: &Reply| answer.is_error().is_some_and(|e| e.starts_with("LOADING "));
    assert!(client.pipeline(&many).iter().all(refused), "each by itself");
    half_a_command_is_not_kept(resp);

    let listen = at(founder);
    let _founder = TestNode::start(staves_node::config::Config {
        listen,
        ..config(None, &[])
    });
    let _joined = starting.join().expect("it joins");
    wait_until("what comes on the connection is done", || {
        client.ask("SET a 1") == Reply::Ok
    });
    assert_eq!(client.ask("GET a"), Reply::text("1"));
}

/// Regression: a node that waited for its cluster kept whatever had come of commands that were not whole, in any number: 2.5 GB.
fn half_a_command_is_not_kept(resp: std::net::SocketAddr) {
    use std::io::{Read, Write};

    let mut socket = std::net::TcpStream::connect(resp).expect("it listens");
    let time = Some(Duration::from_secs(20));
    socket.set_read_timeout(time).expect("a socket");
    let argument = [&b"$65536\r\n"[..], &[b'x'; 65_536], b"\r\n"].concat();
    socket.write_all(b"*1000\r\n").expect("it takes bytes");
    // It may be closed before all was sent.
    let _ = (0..100).try_for_each(|_| socket.write_all(&argument));
    let mut said = Vec::new();
    // An end by a reset is one, too.
    let _ = socket.read_to_end(&mut said);
    assert!(said.len() < 1000, "{} bytes", said.len());
    let sent = (0..100).try_for_each(|_| socket.write_all(&argument));
    assert!(sent.is_err(), "it is still taken");
}

#[test]
fn a_door_whose_pool_is_not_there_says_so() {
    let founder = TestNode::start(config(None, &[]));
    let node = TestNode::start(staves_node::config::Config {
        pool: "nopool".into(),
        ..config(None, &[&founder])
    });
    let mut client = node.client();
    for line in ["GET a", "MGET a b", "DBSIZE"] {
        let answer = client.ask(line);
        let text = answer.is_error().unwrap_or_default();
        assert!(
            text.starts_with("CLUSTERDOWN ") && text.contains("'nopool'"),
            "{line}: {answer:?}"
        );
    }
}

#[test]
fn a_pipeline_is_answered_in_its_order() {
    let node = TestNode::start(config(None, &[]));
    let mut c = node.client();
    let lines: Vec<String> = (0..2000)
        .map(|i| match i % 4 {
            0 => format!("SET k{} {i}", i % 7),
            1 => format!("GET k{}", (i - 1) % 7),
            2 => "DBSIZE".to_owned(),
            _ => "INCR n".to_owned(),
        })
        .collect();
    let answers = c.pipeline(&lines);
    for (i, answer) in answers.iter().enumerate() {
        match i % 4 {
            0 => assert_eq!(*answer, Reply::Ok),
            1 => assert_eq!(*answer, Reply::text(&(i - 1).to_string())),
            2 => assert!(matches!(answer, Reply::Int(_))),
            _ => assert_eq!(*answer, Reply::Int(i as i64 / 4 + 1)),
        }
    }
}

/// Regression: clients send a transaction in one go. Its MULTI was refused, its EXEC too, and what lay between was done. Then clients
/// that saw MULTI fail, and so sent no EXEC, were refused everything after it.
#[test]
fn nothing_of_a_transaction_is_done_and_its_client_knows_that_it_is_in_one() {
    let node = TestNode::start(config(None, &[]));
    let mut c = node.client();
    let lines = [
        "MULTI", "SET t 1", "INCR t", "DBSIZE", "PING", "MULTI", "EXEC",
    ];
    let answers = c.pipeline(&lines.map(str::to_owned));
    let begins = [
        "ERR transactions are not supported",
        "ERR transactions are not supported",
        "ERR transactions are not supported",
        "ERR transactions are not supported",
        "ERR MULTI calls can not be nested",
        "EXECABORT ",
    ];
    assert_eq!(answers[0], Reply::Ok);
    for (answer, begin) in answers[1..].iter().zip(begins) {
        let text = answer.is_error().unwrap_or_default();
        assert!(text.starts_with(begin), "{answers:?}");
    }
    assert_eq!(c.ask("GET t"), Reply::Nil);
    // It is over now; and an EXEC of nothing is what it is with Redis.
    assert_eq!(c.ask("SET t 2"), Reply::Ok);
    for (line, says) in [
        ("EXEC", "ERR EXEC without MULTI"),
        ("DISCARD", "ERR DISCARD without MULTI"),
    ] {
        assert_eq!(c.ask(line).is_error(), Some(says));
    }
    for end in ["DISCARD", "RESET", "EXEC"] {
        assert_eq!(c.ask("MULTI"), Reply::Ok);
        assert!(c.ask("GET t").is_error().is_some());
        c.ask(end);
        assert_eq!(c.ask("GET t"), Reply::text("2"), "{end}");
    }
}

#[test]
fn large_values_and_a_full_memory() {
    let node = TestNode::start(config(None, &[]));
    let mut c = node.client();
    let value = vec![b'x'; 5 << 20];
    assert_eq!(c.ask_args(&[b"SET", b"large", &value]), Reply::Ok);
    assert_eq!(c.ask("GET large"), Reply::Bulk(value.clone()));
    // The pool has 64 MiB on this node.
    let refused = (0..16).find_map(|i| {
        let key = format!("large{i}");
        match c.ask_args(&[b"SET", key.as_bytes(), &value]) {
            Reply::Ok => None,
            other => Some((key, other)),
        }
    });
    let (key, refusal) = refused.expect("memory is finite");
    let Reply::Error(text) = refusal else {
        panic!("{refusal:?}")
    };
    assert!(text.starts_with("OOM command not allowed"), "{text}");
    assert_eq!(
        c.ask(&format!("GET {key}")),
        Reply::Nil,
        "nothing half-written"
    );
    assert_eq!(c.ask("GET large"), Reply::Bulk(value));
    assert_eq!(c.ask("DEL large"), Reply::Int(1));
}

#[test]
fn nonsense_ends_its_own_connection_only() {
    let node = TestNode::start(config(None, &[]));
    let (mut good, mut bad) = (node.client(), node.client());
    assert_eq!(good.ask("SET a 1"), Reply::Ok);
    bad.send_raw(b"*1\r\n!oops\r\n");
    let Ok(Reply::Error(text)) = bad.receive() else {
        panic!("an error")
    };
    assert_eq!(text, "ERR Protocol error: expected '$', got '!'");
    assert!(bad.receive().is_err(), "closed");
    assert_eq!(good.ask("GET a"), Reply::text("1"));
}

fn http(node: &TestNode, path: &str) -> String {
    let mut socket = TcpStream::connect(node.addresses.admin).expect("the admin door");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("a request");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn the_admin_door_tells_how_the_node_is() {
    let node = TestNode::start(config(None, &[]));
    assert_eq!(node.client().ask("SET a 1"), Reply::Ok);
    wait_until("all buckets serve", || {
        node.status().state == State::Healthy
    });
    for path in ["/livez", "/readyz"] {
        assert!(http(&node, path).starts_with("HTTP/1.1 200"), "{path}");
    }
    let metrics = http(&node, "/metrics");
    for line in [
        "staves_cache_keys 1",
        "staves_resp_commands_total 1",
        "staves_cache_buckets{role=\"serving\"} 16",
        "staves_store_used_bytes{pool=\"cache\"} ",
        "staves_store_budget_bytes{pool=\"cache\"} ",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    let status = http(&node, "/api/v1/status");
    assert!(status.contains("\"state\":\"healthy\""), "{status}");
    assert!(http(&node, "/nothing").starts_with("HTTP/1.1 404"));
}

#[test]
fn a_port_in_use_gets_one_clear_line() {
    let first = TestNode::start(config(None, &[]));
    let mut second = config(None, &[]);
    second.resp = first
        .addresses
        .resp
        .to_string()
        .parse()
        .expect("an address");
    let error = TestNode::try_start(second)
        .err()
        .expect("the port has an owner");
    assert!(
        matches!(error, StartError::PortInUse { door: "RESP", .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("--resp") && text.contains(&first.addresses.resp.to_string()),
        "{text}"
    );
}

#[test]
fn a_folder_in_use_and_a_folder_that_is_none_get_one_clear_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let _first = TestNode::start(config(Some(&folder), &[]));
    let error = TestNode::try_start(config(Some(&folder), &[]))
        .err()
        .expect("locked");
    assert!(error.to_string().contains("in use by process"), "{error}");
    let mut file = config(None, &[]);
    let path = folder.path().join("file");
    std::fs::write(&path, b"x").expect("a file");
    file.data = Some(path);
    let error = TestNode::try_start(file).err().expect("no folder");
    assert!(matches!(error, StartError::Folder(_)), "{error}");
}

#[test]
fn nobody_to_join_names_every_address() {
    let mut alone = config(None, &[]);
    alone.join = vec![
        "127.0.0.1:1".parse().expect("an address"),
        "127.0.0.1:2".parse().expect("an address"),
    ];
    alone.join_ms = staves_testkit::cluster::Parse::parse_millis("400ms");
    let error = TestNode::try_start(alone).err().expect("nobody is there");
    let text = error.to_string();
    assert!(
        text.contains("127.0.0.1:1") && text.contains("127.0.0.1:2"),
        "{text}"
    );
}
