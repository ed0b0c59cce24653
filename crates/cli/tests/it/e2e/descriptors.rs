//! Nodes with few file descriptors: idle clients do not keep out nodes, tools or the admin door.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use staves_client::{Client, ClientOptions};
use staves_model::ClusterId;
use staves_net::{Connection, Identity, NetError, Options};
use staves_wire::ErrorCode;

use super::{Cluster, PATIENCE};

/// The limit of each process, and more clients than that.
const LIMIT: u32 = 128;
const CLIENTS: usize = 150;

const REFUSED: &[u8] = b"-ERR max number of clients reached\r\n";

fn connect(port: u16) -> TcpStream {
    let socket = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    socket
}

/// True if the client is served; what it gets otherwise are Redis's words, and the end.
fn is_served(socket: &mut TcpStream) -> bool {
    let mut said = Vec::new();
    let mut bytes = [0; 64];
    if socket.write_all(b"PING\r\n").is_err() {
        return false;
    }
    while !said.ends_with(b"\n") {
        match socket.read(&mut bytes) {
            Ok(0) => break,
            Ok(n) => said.extend_from_slice(&bytes[..n]),
            // What it wrote was never read: the end may overtake the words.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("neither served nor refused: {error}"),
        }
    }
    match &said[..] {
        b"+PONG\r\n" => true,
        words => {
            assert!(words.is_empty() || words == REFUSED, "{words:?}");
            false
        }
    }
}

pub fn page(port: u16, path: &str) -> String {
    let mut socket = connect(port);
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("it listens");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("it answers");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text
}

/// The number behind a name on the page of metrics.
pub(super) fn figure(page: &str, name: &str) -> u64 {
    let number = page.lines().find_map(|line| line.strip_prefix(name));
    number.expect(name).trim().parse().expect("a number")
}

fn log(cluster: &Cluster, i: usize) -> String {
    let path = cluster.folder.path().join(format!("{i}.log"));
    std::fs::read_to_string(path).expect("its log")
}

fn pid(cluster: &Cluster, i: usize) -> u32 {
    cluster.nodes[i].child.as_ref().expect("it runs").id()
}

fn native_client(addr: &str) -> Result<Connection, NetError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let identity = Identity::client(ClusterId(0));
    runtime.block_on(Connection::open(addr, &identity, &Options::default()))
}

/// The soft and the hard limit of descriptors of a process.
fn limits(pid: u32) -> [String; 2] {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("its limits");
    let line = text.lines().find(|l| l.starts_with("Max open files"));
    let words: Vec<&str> = line.expect("a limit").split_whitespace().collect();
    [words[3], words[4]].map(str::to_owned)
}

/// Regression: with a limit of 128 and 105 idle clients, nodes that came back could not connect ("silent 27 s").
#[test]
fn idle_clients_keep_out_neither_nodes_nor_tools() {
    let mut cluster = Cluster::start_within(3, LIMIT);
    assert_eq!(
        limits(pid(&cluster, 0)),
        ["128", "128"],
        "the soft limit was raised"
    );
    let resp = cluster.nodes[0].resp;
    let mut idle: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(resp)).collect();
    idle.retain_mut(is_served);
    assert!(
        (20..=64).contains(&idle.len()),
        "{} of {CLIENTS} clients are served",
        idle.len()
    );
    // Who waits for the words gets them.
    let mut words = Vec::new();
    let mut refused = connect(resp);
    refused.read_to_end(&mut words).expect("words and the end");
    assert_eq!(words, REFUSED);
    let native = cluster.nodes[0].native.clone();
    let Err(error) = native_client(&native).map(|_| ()) else {
        panic!("a native client takes of the reserve");
    };
    assert_eq!(error.code(), ErrorCode::Busy, "{error}");
    assert!(error.to_string().contains("no file descriptor"), "{error}");

    // A node dies and comes back: it reaches the full one, and the full one reaches it.
    cluster.end(2, "-KILL");
    cluster.wait_for("its death is seen", 0, |s| s["state"] != "healthy");
    cluster.up(2);
    for i in [0, 2] {
        cluster.wait_for("all are well, with full clients", i, |s| {
            s["state"] == "healthy"
        });
    }
    cluster.wait_for("the status tells of the refused", 0, |s| {
        let text = s["sentence"].as_str().unwrap_or_default();
        text.contains("refused clients in the last minute")
    });
    let metrics = page(cluster.nodes[0].admin, "/metrics");
    let value = |name| figure(&metrics, name);
    let rejected = value("staves_resp_connections_rejected_total ");
    assert!(rejected >= (CLIENTS - idle.len()) as u64, "{rejected}");
    let native = value("staves_net_connections_refused_total{reason=\"descriptors\"} ");
    assert_eq!(native, 1);
    let lines = log(&cluster, 0)
        .matches("a RESP client was refused")
        .count();
    assert!((1..=3).contains(&lines), "{lines} lines for {rejected}");

    idle.clear();
    let until = Instant::now() + PATIENCE;
    while !is_served(&mut connect(resp)) {
        assert!(Instant::now() < until, "places that are given back serve");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Clock ticks of processor time that a process has had.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |at: usize| fields[at].parse::<u64>().expect("ticks");
    number(11) + number(12)
}

/// Sets the soft limit of a process, and returns what it was.
fn set_limit(pid: u32, current: u64) -> u64 {
    let pid = Pid::from_raw(pid as i32);
    let limit = Rlimit {
        current: Some(current),
        maximum: Some(u64::from(LIMIT)),
    };
    let before = prlimit(pid, Resource::Nofile, limit).expect("it is a child");
    before.current.expect("a limit")
}

/// No descriptor at all: the doors wait, without working for it, and go on when there are some.
#[test]
fn doors_without_descriptors_wait_and_recover() {
    let cluster = Cluster::start_within(1, LIMIT);
    let (pid, node) = (pid(&cluster, 0), &cluster.nodes[0]);
    let before = set_limit(pid, 3);
    assert_eq!(before, u64::from(LIMIT));
    let native: u16 = node.native.rsplit(':').next().unwrap().parse().unwrap();
    let mut waiting: Vec<TcpStream> = [node.resp, node.admin, native].map(connect).into();
    let then = ticks(pid);
    std::thread::sleep(Duration::from_secs(3));
    let used = ticks(pid) - then;
    assert!(used < 150, "{used} ticks in 3 s, of 300 for one processor");
    let lines = log(&cluster, 0).matches("could not be accepted").count();
    assert!((1..=6).contains(&lines), "{lines} lines");
    set_limit(pid, before);
    assert!(is_served(&mut waiting[0]), "who waited is served");
    page(node.admin, "/livez");
    cluster.wait_for("tools are answered", 0, |s| s["state"] == "healthy");
}

/// Regression: each dataset kept 256 of its files open, whatever the limit, and nodes had no descriptors left for one another.
#[test]
fn files_that_were_read_leave_descriptors_for_sockets() {
    let cluster = Cluster::start_within(1, LIMIT);
    let well = |args: &[&str]| {
        let ran = cluster.run(0, args);
        assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    };
    well(&[
        "pool", "create", "files", "--kind", "files", "--memory", "32MiB",
    ]);
    let native = cluster.nodes[0].native.clone();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = runtime.block_on(Client::connect(&[native], ClientOptions::default()));
    let client = client.expect("a client");
    let names = ["one", "two"];
    for name in names {
        let folder = cluster.folder.path().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        for i in 0..150 {
            std::fs::write(folder.join(i.to_string()), b"a few bytes").expect("a file");
        }
        let made = client.dataset("files", name, folder.to_str().expect("text"));
        runtime.block_on(made).map(drop).expect("a dataset");
    }
    // What was written just now may change again, and is not kept.
    std::thread::sleep(Duration::from_millis(2100));
    names
        .iter()
        .for_each(|name| well(&["files", "preload", name]));
    let pid = pid(&cluster, 0);
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
    let target =
        |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
    let kept = open
        .filter_map(target)
        .filter(|path| path.starts_with(cluster.folder.path()));
    let kept = kept.filter(|path| {
        path.parent()
            .is_some_and(|p| names.iter().any(|n| p.ends_with(n)))
    });
    let kept = kept.count();
    assert!(kept <= LIMIT as usize / 4, "{kept} files are open");
    let mut clients: Vec<TcpStream> = (0..30).map(|_| connect(cluster.nodes[0].resp)).collect();
    assert!(clients.iter_mut().all(is_served));
}
