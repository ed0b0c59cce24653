//! Redis's own clients against real nodes: such as know nothing of clusters, through any node; such as
//! do, by redirects, and past the death of a node.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use staves_testkit::tools::runs;

use crate::e2e::{Cluster, PATIENCE, tool};

/// The first version of redis-py whose cluster clients outlive a node: the asyncio one of 4.3 fails with
/// an error of its own when its connection is refused.
const CLUSTER_VERSION: u32 = 5;
/// The first version whose plain clients are tested.
const PLAIN_VERSION: u32 = 4;

/// A Python that has redis-py of this version or a later one: what STAVES_PYTHON names, else the machine's.
fn python(version: u32) -> Option<String> {
    let needed = format!("import redis; assert int(redis.__version__.split('.')[0]) >= {version}");
    let works = |python: &str| {
        let mut command = Command::new(python);
        command.args(["-c", &needed]).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if let Ok(named) = std::env::var("STAVES_PYTHON") {
        assert!(
            works(&named),
            "STAVES_PYTHON is {named}, which does not run \"{needed}\": pip install redis"
        );
        return Some(named);
    }
    let mut pythons = ["python3", "/usr/bin/python3"].into_iter();
    let found = pythons.find(|python| works(python));
    if found.is_none() {
        // Says that it skips, or fails where tools are required.
        runs("python3", &["-c", &needed]);
    }
    found.map(str::to_owned)
}

fn ports(cluster: &Cluster) -> Vec<String> {
    cluster.nodes.iter().map(|n| n.resp.to_string()).collect()
}

fn run(python: &str, script: &str, ports: &[String]) {
    let args = ["-c", script]
        .into_iter()
        .chain(ports.iter().map(String::as_str));
    let args: Vec<&str> = args.collect();
    assert_eq!(tool(python, &args).trim(), "fine");
}

/// D1: any node takes any key.
#[test]
fn redis_py_works_against_any_node() {
    let Some(python) = python(PLAIN_VERSION) else {
        return;
    };
    let cluster = Cluster::start(3);
    run(&python, include_str!("clients/plain.py"), &ports(&cluster));
}

#[test]
fn asyncio_redis_py_works_against_any_node() {
    let Some(python) = python(PLAIN_VERSION) else {
        return;
    };
    let cluster = Cluster::start(3);
    let script = include_str!("clients/plain_async.py");
    run(&python, script, &ports(&cluster));
}

#[test]
fn a_cluster_client_finds_the_nodes_and_asks_each_for_its_keys() {
    let Some(python) = python(CLUSTER_VERSION) else {
        return;
    };
    let cluster = Cluster::start_with(3, &["--resp-redirect", "moved"]);
    run(
        &python,
        include_str!("clients/cluster.py"),
        &ports(&cluster),
    );
}

/// A script that writes while a node is killed.
struct Writer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Writer {
    fn start(python: &str, script: &str, ports: &[String]) -> Writer {
        let mut child = Command::new(python)
            .args(["-c", script])
            .args(ports)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python runs");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Writer {
            child,
            stdin,
            stdout,
        }
    }

    /// The next line that it says; it ends by itself after a while, and its output with it.
    fn says(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("text");
        line.trim().to_owned()
    }

    fn is_told(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it listens");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// D4, H7, as cluster clients live it: they are not started anew, and every write that was acknowledged
/// is there afterwards.
#[test]
fn cluster_clients_follow_a_failover_and_lose_nothing() {
    let Some(python) = python(CLUSTER_VERSION) else {
        return;
    };
    let mut cluster = Cluster::start_with(3, &["--resp-redirect", "moved"]);
    let ports = ports(&cluster);
    let scripts = [
        include_str!("clients/follow.py"),
        include_str!("clients/follow_async.py"),
    ];
    let mut writers = scripts.map(|script| Writer::start(&python, script, &ports));
    for writer in &mut writers {
        assert_eq!(writer.says(), "loaded");
    }
    cluster.end(2, "-KILL");
    for writer in &mut writers {
        writer.is_told(&ports[2]);
    }
    for writer in &mut writers {
        let said = writer.says();
        let story: serde_json::Value = serde_json::from_str(&said)
            .unwrap_or_else(|error| panic!("no JSON but '{said}': {error}"));
        assert_eq!(story["lost"], serde_json::json!([]), "{story}");
        assert!(story["after"].as_u64() >= Some(600), "{story}");
        assert_eq!(story["asks_the_dead"], false, "{story}");
    }
}

#[test]
fn redis_cli_follows_redirects_and_a_failover() {
    if !runs("redis-cli", &["--version"]) {
        return;
    }
    let mut cluster = Cluster::start_with(3, &["--resp-redirect", "moved"]);
    let ports = ports(&cluster);
    let cli = |port: &str, args: &[&str]| {
        let mut all = vec!["-p", port];
        all.extend(args);
        tool("redis-cli", &all).trim().to_owned()
    };
    let keys: Vec<String> = (0..60).map(|i| format!("cli:{i}")).collect();
    for key in &keys {
        assert_eq!(cli(&ports[0], &["-c", "SET", key, "v"]), "OK");
    }
    let redirected = keys.iter().map(|key| cli(&ports[0], &["GET", key]));
    let redirected = redirected.filter(|said| said.starts_with("MOVED ")).count();
    assert!(
        (1..60).contains(&redirected),
        "{redirected} of 60 keys are of other nodes"
    );
    let across = cli(&ports[0], &["-c", "MGET", "cli:0", "cli:1"]);
    assert!(across.starts_with("CROSSSLOT "), "{across}");

    cluster.end(1, "-KILL");
    let begun = Instant::now();
    loop {
        let nodes = cli(&ports[0], &["CLUSTER", "NODES"]);
        let dead = nodes.lines().find(|line| line.contains("master,fail"));
        // Its slots are others' when its line ends with the state of its link.
        if dead.is_some_and(|line| line.ends_with(" disconnected")) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "never taken over: {nodes}");
        std::thread::sleep(Duration::from_millis(50));
    }
    for key in &keys {
        assert_eq!(cli(&ports[0], &["-c", "GET", key]), "v", "{key}");
        assert_eq!(cli(&ports[2], &["-c", "SET", key, "w"]), "OK", "{key}");
    }
    let state = cli(&ports[2], &["CLUSTER", "INFO"]);
    assert!(state.starts_with("cluster_state:ok"), "{state}");
}
