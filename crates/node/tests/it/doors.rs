//! The admin door: half requests end by themselves and keep few places, and strange hosts are refused.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use staves_testkit::cluster::{TestNode, config};
use staves_testkit::{DEADLINE, wait_until};

/// More than the door's places.
const MANY: usize = 200;

fn open(node: &TestNode, bytes: &str) -> TcpStream {
    let mut socket = TcpStream::connect(node.addresses.admin).expect("the admin door");
    socket.set_read_timeout(Some(DEADLINE)).expect("a time-out");
    let _ = socket.write_all(bytes.as_bytes()); // refused, it may have closed already
    socket
}

fn answer(node: &TestNode, request: &str) -> String {
    let mut text = String::new();
    let read = open(node, request).read_to_string(&mut text);
    read.map_or(String::new(), |_| text)
}

fn stands(mut socket: &TcpStream) -> bool {
    socket
        .set_read_timeout(Some(Duration::from_millis(20)))
        .expect("a time-out");
    let read = socket.read(&mut [0; 4096]);
    read.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
}

/// Regression: 3,000 half requests stood after 40 s.
#[test]
fn half_requests_are_few_and_end_by_themselves() {
    let node = TestNode::start(config(None, &[]));
    let half = "GET /livez HTTP/1.1\r\nHost: local";
    let sockets: Vec<TcpStream> = (0..MANY)
        .map(|i| open(&node, if i % 2 == 0 { half } else { "" }))
        .collect();
    let standing = || sockets.iter().filter(|s| stands(s)).count();
    // Regression: whoever came while all places were taken was refused.
    let whole = answer(&node, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(whole.starts_with("HTTP/1.1 200"), "{whole:?}");
    let first = standing();
    assert!(first <= 64, "{first} of {MANY} half requests stand");
    wait_until("half requests end", || standing() == 0);
}

/// Regression: a page in a browser could read the door by a name of its own that leads to it (DNS rebinding).
#[test]
fn the_admin_door_answers_to_its_own_names_only() {
    let mut config = config(None, &[]);
    config.name = Some("rack7".into());
    let node = TestNode::start(config);
    let ask = |path: &str, host: &str| {
        answer(
            &node,
            &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        )
    };
    let port = node.addresses.admin.port();
    for own in [
        "localhost".to_owned(),
        "RACK7".to_owned(),
        format!("127.0.0.1:{port}"),
    ] {
        let said = ask("/livez", &own);
        assert!(said.starts_with("HTTP/1.1 200"), "{own}: {said:?}");
    }
    for path in ["/livez", "/readyz", "/metrics", "/api/v1/status"] {
        let said = ask(path, &format!("evil.example:{port}"));
        assert!(said.starts_with("HTTP/1.1 421"), "{path}: {said:?}");
        assert!(
            said.ends_with(&format!("--advertise admin=evil.example:{port}\n")),
            "{said:?}"
        );
    }
}
