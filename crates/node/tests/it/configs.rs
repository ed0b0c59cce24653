//! A node starts with every configuration that `config check` takes, and refuses those that it refuses.

use staves_node::StartError;
use staves_node::config::{Config, Setting};

use staves_testkit::cluster::{TestNode, config};

/// A value of a key, at the edge of what is taken or beyond it.
type Edge = (&'static str, fn(&mut Config));

fn set<T: Setting>(text: &str) -> T {
    T::parse(text).expect("a value")
}

const EDGES: &[Edge] = &[
    ("memory 16MiB", |c| c.memory = set("16MiB")),
    ("memory 15MiB", |c| c.memory = set("15MiB")),
    ("all addresses", |c| c.listen = set("0.0.0.0:0")),
    ("all addresses, advertised", |c| {
        c.listen = set("0.0.0.0:0");
        c.advertise = set("127.0.0.1");
    }),
    ("one address twice", |c| {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = free.local_addr().expect("an address").to_string();
        (c.listen, c.resp) = (set(&at), set(&at));
    }),
    ("name with a line end", |c| c.name = Some("a\nb".into())),
    ("name of 255", |c| c.name = Some("x".repeat(255))),
    ("name of 256", |c| c.name = Some("x".repeat(256))),
    ("zone, empty", |c| c.zone = Some(String::new())),
    ("pool, empty", |c| c.pool = String::new()),
    ("pool with a blank", |c| c.pool = "a b".into()),
    ("pool of 256", |c| c.pool = "x".repeat(256)),
    ("scheme 1+0", |c| c.scheme = set("1+0")),
    ("scheme 1+8", |c| c.scheme = set("1+8")),
    ("scheme 2+1", |c| c.scheme = set("2+1")),
    ("buckets 0", |c| c.buckets = 0),
    ("buckets 1", |c| c.buckets = 1),
    ("buckets 4096", |c| c.buckets = 4096),
    ("buckets 8192", |c| c.buckets = 8192),
    ("voters 2", |c| c.voters_max = 2),
    ("voters 9", |c| c.voters_max = 9),
    ("clients 0", |c| c.clients_max = 0),
    ("values of nothing", |c| c.value_bytes_max = set("0B")),
    ("hardly any request", |c| {
        c.in_flight_bytes_max = set("1MiB")
    }),
    ("log of nothing", |c| c.log_bytes_max = set("0B")),
    ("log as large as memory", |c| c.log_bytes_max = c.memory),
    ("log larger than memory", |c| {
        c.log_bytes_max = set("129MiB")
    }),
    ("log, absurd", |c| c.log_bytes_max = set("16777215TiB")),
    ("lease of 1 ms", |c| c.lease_ms = set("1ms")),
    ("heartbeat of 1 ms", |c| c.heartbeat_ms = set("1ms")),
    ("elections too near", |c| {
        c.election_min_ms = set("451ms");
        c.election_max_ms = set("452ms");
    }),
    ("elections as one", |c| {
        c.election_min_ms = set("300ms");
        c.election_max_ms = set("300ms");
    }),
    ("elections before heartbeats", |c| {
        c.heartbeat_ms = set("200ms");
        c.election_min_ms = set("400ms");
    }),
    ("pings of 1 ms", |c| c.ping_ms = set("1ms")),
];

#[test]
fn the_check_and_the_start_agree() {
    let (mut taken, mut refused) = (0, 0);
    for (what, edge) in EDGES {
        let mut config = config(None, &[]);
        edge(&mut config);
        let check = config.check();
        let start = TestNode::try_start(config).map(|_| ());
        match (&check, &start) {
            (Ok(()), Ok(())) => taken += 1,
            (Err(check), Err(start)) => {
                assert_eq!(check.to_string(), start.to_string(), "{what}");
                refused += 1;
            }
            _ => panic!("{what}: the check says {check:?}, the start {start:?}"),
        }
    }
    assert!(taken > 5 && refused > 5, "{taken} taken, {refused} refused");
}

/// Regression: any `--memory` was taken, and the node was killed when it was filled.
#[test]
fn memory_that_the_machine_does_not_have_is_refused() {
    let total = staves_node::resident::total_bytes().expect("/proc is there");
    let mut config = config(None, &[]);
    config.memory = set(&format!("{}B", total + 1));
    let error = TestNode::try_start(config)
        .map(|_| ())
        .expect_err("too much");
    assert!(matches!(error, StartError::Memory { .. }), "{error}");
    let error = error.to_string();
    assert!(
        error.ends_with("in all; ask for less with --memory"),
        "{error}"
    );
}
