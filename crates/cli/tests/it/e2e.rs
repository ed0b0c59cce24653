//! The program as a user has it: real processes, real clients.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use staves_testkit::free_ports;
use staves_testkit::tools::{must_mount, runs};

use crate::{Ran, staves};

mod bench;
mod block_devices;
mod clocks;
mod coded_disks;
mod costly;
mod crowds;
mod cut_off;
mod descriptors;
mod disks;
mod files;
mod filesystems;
mod floods;
mod grpc;
mod guest;
mod hung;
mod large_volumes;
mod left_out;
mod littles;
mod log;
mod log_bench;
mod log_words;
mod losses;
mod mapped;
mod memory;
mod mount;
mod mounting;
mod nbd_tls;
mod nbd_tools;
mod nfs;
mod out_of_memory;
mod readers;
mod rebalance;
mod recovery;
mod restarts;
mod resting;
mod scrub;
mod secrets;
mod several_disks;
mod shared_volumes;
mod shed;
mod small;
mod snapshots;
mod states;
mod unread;
mod volume_tools;
mod volumes;
mod writeback;
mod written;

/// Real nodes, killed when dropped.
pub struct Cluster {
    pub nodes: Vec<Node>,
    folder: tempfile::TempDir,
    /// Flags of `up` beyond the addresses.
    flags: Vec<String>,
    /// Commands of a shell that come before each node's program.
    before: Vec<String>,
    /// One cluster at a time: nodes that share two cores with a dozen others look dead to each other.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

pub struct Node {
    native: String,
    pub resp: u16,
    admin: u16,
    data: PathBuf,
    /// The working folder of its process, if not that of the test.
    home: Option<PathBuf>,
    child: Option<Child>,
}

/// Long enough for a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

impl Cluster {
    pub fn start(count: usize) -> Cluster {
        Cluster::start_with(count, &[])
    }

    /// With further flags of `up` for every node.
    pub fn start_with(count: usize, flags: &[&str]) -> Cluster {
        Cluster::start_at(&vec![None; count], flags)
    }

    /// Each process with so many file descriptors, of which its soft limit grants half.
    pub fn start_within(count: usize, descriptors: u32) -> Cluster {
        let soft = descriptors / 2;
        let limits = format!("ulimit -S -n {soft} && ulimit -H -n {descriptors}");
        Cluster::start_after(&vec![limits; count])
    }

    /// Each process after these commands of a shell.
    pub fn start_after(before: &[String]) -> Cluster {
        Cluster::start_as(&vec![None; before.len()], &[], before)
    }

    /// With the folder that each node's process is in, where that matters.
    pub fn start_at(homes: &[Option<&std::path::Path>], flags: &[&str]) -> Cluster {
        Cluster::start_as(homes, flags, &[])
    }

    fn start_as(homes: &[Option<&std::path::Path>], flags: &[&str], before: &[String]) -> Cluster {
        let count = homes.len();
        // Whose test failed has ended its nodes all the same.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let ports = free_ports(count * 3);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let node = |(i, p): (usize, &[u16])| Node {
            native: format!("127.0.0.1:{}", p[0]),
            resp: p[1],
            admin: p[2],
            data: folder.path().join(i.to_string()),
            home: homes[i].map(PathBuf::from),
            child: None,
        };
        let nodes = ports.chunks_exact(3).enumerate().map(node).collect();
        let flags = flags.iter().map(|f| (*f).to_owned()).collect();
        let mut cluster = Cluster {
            nodes,
            folder,
            flags,
            before: before.to_vec(),
            _alone: alone,
        };
        for i in 0..count {
            cluster.up(i);
            if i == 0 {
                cluster.wait_for("the first node answers", 0, |s| s["nodes"][0]["up"] == true);
            }
        }
        cluster.wait_for("all are up and healthy", 0, |s| {
            let up = s["nodes"]
                .as_array()
                .map_or(0, |n| n.iter().filter(|n| n["up"] == true).count());
            up == count && s["state"] == "healthy"
        });
        cluster
    }

    fn up(&mut self, i: usize) {
        let others = || (0..).zip(&self.nodes).filter(|(at, _)| *at != i);
        let running = others().find(|(_, node)| node.child.is_some());
        let first = running.or(others().next()).map(|(_, n)| n.native.clone());
        let join = (self.nodes[i].data.exists() || i > 0)
            .then_some(first)
            .flatten();
        let node = &mut self.nodes[i];
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join(format!("{i}.log")))
            .expect("a log");
        let program = env!("CARGO_BIN_EXE_staves");
        let mut command = match self.before.get(i) {
            None => Command::new(program),
            Some(before) => {
                let mut shell = Command::new("sh");
                let line = format!("{before} && exec \"$@\"");
                shell.args(["-c", &line, "sh", program]);
                shell
            }
        };
        command
            .args(["up", "--listen", &node.native, "--memory", "128MiB"])
            .args(["--resp", &format!("127.0.0.1:{}", node.resp)])
            .args(["--admin", &format!("127.0.0.1:{}", node.admin)])
            .args(["--parent-pid", &std::process::id().to_string()])
            .arg("--data")
            .arg(&node.data)
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(home) = &node.home {
            command.current_dir(home);
        }
        if let Some(join) = join {
            command.args(["--join", &join]);
        }
        node.child = Some(command.spawn().expect("the program starts"));
    }

    fn run(&self, i: usize, args: &[&str]) -> Ran {
        let mut all = vec!["--cluster", &self.nodes[i].native];
        if let Some(at) = self.flags.iter().position(|f| f == "--client-secret-file") {
            all.extend(["--secret-file", &self.flags[at + 1]]);
        }
        all.extend(args);
        staves(&all)
    }

    fn wait_for(&self, what: &str, i: usize, wanted: impl Fn(&serde_json::Value) -> bool) {
        let until = Instant::now() + PATIENCE;
        let mut last = String::new();
        while Instant::now() < until {
            let ran = self.run(i, &["status", "-o", "json"]);
            if let Ok(status) = serde_json::from_str(&ran.stdout)
                && wanted(&status)
            {
                return;
            }
            last = format!("{}{}", ran.stdout, ran.stderr);
            std::thread::sleep(Duration::from_millis(100));
        }
        let logs: String = (0..self.nodes.len())
            .filter_map(|i| {
                std::fs::read_to_string(self.folder.path().join(format!("{i}.log"))).ok()
            })
            .collect();
        panic!("after {PATIENCE:?} still waiting until {what}; last seen: {last}\nlogs:\n{logs}");
    }

    /// Ends a node with a signal and gives its exit code.
    pub fn end(&mut self, i: usize, signal: &str) -> Option<i32> {
        let mut child = self.nodes[i].child.take().expect("it runs");
        let sent = Command::new("kill")
            .args([signal, &child.id().to_string()])
            .status();
        assert!(sent.expect("kill runs").success());
        let mut ended = None;
        staves_testkit::wait_until(&format!("node {i} ends after {signal}"), || {
            ended = child.try_wait().expect("a child");
            ended.is_some()
        });
        ended.and_then(|status| status.code())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().filter_map(|n| n.child.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn tool(program: &str, args: &[&str]) -> String {
    let out = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("the tool runs");
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    assert!(
        out.status.success(),
        "{program} {args:?}: {}{}",
        text(&out.stdout),
        text(&out.stderr)
    );
    text(&out.stdout)
}

/// D1: any node takes any key. X3: with the pool's copies in place.
#[test]
fn redis_cli_and_redis_benchmark_work_against_any_node() {
    if !runs("redis-cli", &["--version"]) || !runs("redis-benchmark", &["--version"]) {
        return;
    }
    let cluster = Cluster::start(3);
    for (i, node) in cluster.nodes.iter().enumerate() {
        let port = node.resp.to_string();
        for key in 0..20 {
            let (key, value) = (format!("key:{key}"), format!("from-{i}"));
            assert_eq!(
                tool("redis-cli", &["-p", &port, "SET", &key, &value]).trim(),
                "OK"
            );
        }
        for other in &cluster.nodes {
            let port = other.resp.to_string();
            let got = tool("redis-cli", &["-3", "-p", &port, "GET", "key:7"]);
            assert_eq!(got.trim(), format!("from-{i}"));
        }
        let bench = [
            "-p",
            &port,
            "-q",
            "-n",
            "2000",
            "-c",
            "20",
            "-P",
            "4",
            "-r",
            "500",
            "-t",
            "set,get,incr,mset",
        ];
        let said = tool("redis-benchmark", &bench);
        assert!(!said.contains("ERR") && said.contains("GET"), "{said}");
    }
}

/// Regression: a node in a terminal ended at once when that was closed, without a word to the others.
#[test]
fn a_node_whose_terminal_is_closed_leaves_cleanly() {
    // Whoever runs the tests may have been told to outlive its terminal, too.
    let meant = "set -- env --default-signal=HUP \"$@\"";
    let before = [meant, "trap '' HUP", meant].map(str::to_owned);
    let mut cluster = Cluster::start_after(&before);
    assert_eq!(cluster.end(2, "-HUP"), Some(0));
    // As of nohup: it is not meant.
    let child = cluster.nodes[1].child.as_ref().expect("it runs");
    signal("-HUP", child.id());
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(cluster.end(1, "-TERM"), Some(0));
}

/// X5, D6: a node that is asked to end leaves cleanly, comes back to its folder, and nobody notices.
#[test]
fn a_node_leaves_on_sigterm_and_comes_back() {
    let mut cluster = Cluster::start(3);
    for i in 0..50 {
        let key = format!("stay:{i}");
        assert_eq!(
            cluster.run(0, &["cache", "put", &key, "here"]).code,
            Some(0)
        );
    }
    assert_eq!(cluster.end(2, "-TERM"), Some(0), "SIGTERM ends it with 0");
    for i in 0..50 {
        let ran = cluster.run(1, &["cache", "get", &format!("stay:{i}")]);
        assert_eq!(
            (ran.code, ran.stdout.trim()),
            (Some(0), "here"),
            "{}",
            ran.stderr
        );
    }
    cluster.up(2);
    cluster.wait_for("it is back and whole", 0, |s| {
        let up = s["nodes"]
            .as_array()
            .map_or(0, |n| n.iter().filter(|n| n["up"] == true).count());
        up == 3 && s["state"] == "healthy"
    });
}

/// A node that is stopped and started again does not wait for its ports.
#[test]
fn a_node_that_was_told_to_stop_starts_again_at_once() {
    let mut cluster = Cluster::start(3);
    let (at, _, _) = cluster.follower();
    let asked = usize::from(at == 0);
    let native = cluster.nodes[at].native.clone();
    let ran = cluster.run(asked, &["node", "stop", &native]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let mut before = cluster.nodes[at].child.take().expect("it ran");
    cluster.up(at);
    assert!(before.wait().expect("it is ours").success());
    cluster.wait_for("it is back and whole", asked, |s| {
        let up = s["nodes"]
            .as_array()
            .map_or(0, |n| n.iter().filter(|n| n["up"] == true).count());
        up == 3 && s["state"] == "healthy"
    });
}

/// An orderly stop does not throw away the last copy of anything, unless it is told to.
#[test]
fn the_last_copy_of_a_key_is_not_stopped_by_the_way() {
    let cluster = Cluster::start(1);
    let native = cluster.nodes[0].native.clone();
    let put = cluster.run(0, &["cache", "put", "greeting", "hello"]);
    assert_eq!(put.code, Some(0), "{}", put.stderr);
    let refused = cluster.run(0, &["node", "stop", &native]);
    assert_eq!(refused.code, Some(1), "{}", refused.stdout);
    for part in ["pool 'cache'", "no copy left", "--force"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    let got = cluster.run(0, &["cache", "get", "greeting"]);
    assert_eq!(got.stdout.trim(), "hello");
    let forced = cluster.run(0, &["node", "stop", &native, "--force"]);
    assert_eq!(forced.code, Some(0), "{}", forced.stderr);
    assert!(forced.stdout.contains("nobody"), "{}", forced.stdout);
}

/// A node that holds nothing goes at once.
#[test]
fn an_empty_node_stops_without_a_word() {
    let cluster = Cluster::start(1);
    let native = cluster.nodes[0].native.clone();
    let ran = cluster.run(0, &["node", "stop", &native]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

impl Cluster {
    /// A node that does not lead the directory: its place here, its row in the status, its process's id.
    fn follower(&self) -> (usize, usize, u32) {
        let status = self.run(0, &["status", "-o", "json"]);
        let status: serde_json::Value = serde_json::from_str(&status.stdout).expect("JSON");
        let rows = status["nodes"].as_array().expect("nodes");
        let row = rows
            .iter()
            .position(|row| row["leads_directory"] == false)
            .expect("a follower");
        let is_it = |node: &Node| rows[row]["native"] == node.native.as_str();
        let at = self.nodes.iter().position(is_it).expect("one of ours");
        let child = self.nodes[at].child.as_ref().expect("it runs");
        (at, row, child.id())
    }

    /// The outcome of a start of the program, on free ports, that is expected to end.
    fn up_and_end(&self, data: &std::path::Path) -> Ran {
        let data = data.to_str().expect("text");
        let free = "127.0.0.1:0";
        let join = &self.nodes[0].native;
        let doors = ["--listen", free, "--resp", free, "--admin", free];
        let up = ["up", "--log", "error", "--data", data, "--join", join];
        staves(&[&up[..], &doors].concat())
    }
}

/// A process that stands still, and is killed if the test ends before it does.
struct Standing(Child);

impl Drop for Standing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn signal(signal: &str, pid: u32) {
    let sent = Command::new("kill")
        .args([signal, &pid.to_string()])
        .status();
    assert!(sent.expect("kill runs").success());
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir(to).expect("a folder");
    for file in std::fs::read_dir(from).expect("a folder").flatten() {
        std::fs::copy(file.path(), to.join(file.file_name())).expect("copied");
    }
}

/// Two processes with one identity: on one folder, on a copy while the first runs, and on a copy that took
/// over while the first stood still. Each time one of the two ends with one line.
#[test]
fn one_identity_runs_once() {
    let mut cluster = Cluster::start(3);
    let (at, row, pid) = cluster.follower();
    let (data, native) = (
        cluster.nodes[at].data.clone(),
        cluster.nodes[at].native.clone(),
    );
    let same = cluster.up_and_end(&data);
    assert_eq!(same.code, Some(1), "{}", same.stderr);
    assert_eq!(same.stderr.lines().count(), 1, "{}", same.stderr);
    let holder = format!("is in use by process {pid}: ");
    assert!(same.stderr.contains(&holder), "{}", same.stderr);
    assert!(
        same.stderr.ends_with("(folder-in-use)\n"),
        "{}",
        same.stderr
    );

    let copied = cluster.folder.path().join("copy");
    copy(&data, &copied);
    let second = cluster.up_and_end(&copied);
    assert_eq!(second.code, Some(1), "{}", second.stderr);
    assert_eq!(second.stderr.lines().count(), 1, "{}", second.stderr);
    assert!(second.stderr.contains(&native), "{}", second.stderr);
    assert!(
        second.stderr.ends_with("(identity-taken)\n"),
        "{}",
        second.stderr
    );

    signal("-STOP", pid);
    let mut first = Standing(cluster.nodes[at].child.take().expect("it runs"));
    let ports = free_ports(3);
    cluster.nodes[at] = Node {
        native: format!("127.0.0.1:{}", ports[0]),
        resp: ports[1],
        admin: ports[2],
        data: copied,
        home: None,
        child: None,
    };
    // A signal takes a moment on a loaded machine; who still answers would be found by the copy.
    let asked = usize::from(at == 0);
    cluster.wait_for("the first process stands still", asked, |s| {
        s["nodes"][row]["up"] == false
    });
    cluster.up(at);
    let moved = cluster.nodes[at].native.clone();
    cluster.wait_for("the copy has taken over", asked, |s| {
        s["nodes"][row]["native"] == moved.as_str() && s["nodes"][row]["up"] == true
    });
    signal("-CONT", pid);
    assert_eq!(first.0.wait().expect("it ends").code(), Some(1));
    let log = std::fs::read_to_string(cluster.folder.path().join(format!("{at}.log")));
    let log = log.expect("a log");
    let line = log.lines().find(|line| line.starts_with("staves: "));
    let line = line.unwrap_or_else(|| panic!("no line in {log}"));
    assert!(
        line.contains(&moved) && line.ends_with("(identity-taken)"),
        "{line}"
    );
    cluster.wait_for("the others never noticed", asked, |s| {
        s["state"] == "healthy"
    });
}

/// The main job: five nodes lose two in turn under load, the directory's leader among them (D5, H3, H7).
#[test]
fn the_demo_loses_nothing() {
    let ran = staves(&["demo", "--once", "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    let story: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON on stdout");
    assert_eq!(story["lost"], 0, "{story}");
    assert_eq!(story["rounds"].as_array().map(Vec::len), Some(2), "{story}");
    assert!(
        story["writes_acknowledged"].as_u64() > Some(1000),
        "{story}"
    );
    // Row D9: all files twice, before and after a node died.
    let files = &story["files"];
    assert_eq!(files["seen"]["checked"], 24, "{story}");
    assert_eq!(files["seen"]["wrong"], 0, "{story}");
    let fetched = ["fetched_bytes", "source_bytes"].map(|from| files["served"][from].as_u64());
    let fetched: u64 = fetched.into_iter().flatten().sum();
    // What nodes fetched ahead of it was in memory by then.
    let bytes = files["bytes"].as_u64().expect("a number");
    assert!(fetched > 0 && fetched < 2 * bytes, "{story}");
    if must_mount() {
        assert_eq!(files["way"], "a mount", "{story}");
    }
    // Every record of the log at its position, in its client's order and once, after both deaths and after the power cut.
    let log = &story["log"];
    for findings in [&log["done"], &log["after_power_cut"]] {
        assert!(findings["records"].as_u64() > Some(20), "{story}");
        assert!(
            findings["positions"].as_u64() >= findings["records"].as_u64(),
            "{story}"
        );
        for wrong in ["lost", "twice", "unordered", "foreign", "differing"] {
            assert_eq!(findings[wrong], 0, "{wrong}: {story}");
        }
    }
    assert_eq!(
        log["done"]["records"], log["after_power_cut"]["records"],
        "{story}"
    );
    // Row B8: every page of the volume, after all nodes were killed at once.
    let volume = &story["volume"]["done"];
    assert_eq!(
        (&volume["checked"], &volume["wrong"]),
        (&2048.into(), &0.into()),
        "{story}"
    );
    // The write that the first kill cut off, at least.
    assert!(volume["unknown"].as_u64() >= Some(1), "{story}");
}

#[test]
fn a_demo_that_is_interrupted_ends_as_what_is_interrupted_does() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let demo = Command::new(env!("CARGO_BIN_EXE_staves"))
        .args(["demo", "--nodes", "3", "-o", "json"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    std::thread::sleep(Duration::from_secs(3));
    signal("-INT", demo.id());
    let ended = demo.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains("the demo was interrupted"), "{said}");
}

#[test]
fn the_demo_tells_its_story_once_in_one_place() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let told = folder.path().join("told");
    let file = std::fs::File::create(&told).expect("a file");
    let ran = Command::new(env!("CARGO_BIN_EXE_staves"))
        .args(["demo", "--once", "--nodes", "3"])
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("the same file"))
        .stderr(file)
        .status();
    let text = std::fs::read_to_string(&told).expect("readable");
    assert!(ran.expect("the program runs").success(), "{text}");
    for line in [
        "3 nodes started",
        "healthy: pool 'cache'",
        "keys through",
        "which had the log's sequencer",
        "which answered for a unit of the log",
        "positions of it again: 0 lost or changed",
        "power cut",
    ] {
        assert_eq!(text.matches(line).count(), 1, "{line}: {text}");
    }
}

#[test]
fn a_port_of_another_protocol_is_told_by_its_name() {
    let cluster = Cluster::start(1);
    let resp = format!("127.0.0.1:{}", cluster.nodes[0].resp);
    let ran = staves(&["status", "--cluster", &resp]);
    assert_eq!(ran.code, Some(4), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("is this the RESP port?"),
        "{}",
        ran.stderr
    );
}

/// Bytes that a page in a browser could send to a port of its own machine are not taken for commands.
#[test]
fn an_http_request_to_the_resp_door_ends_its_connection() {
    use std::io::{Read, Write};
    let cluster = Cluster::start(1);
    let mut socket =
        std::net::TcpStream::connect(("127.0.0.1", cluster.nodes[0].resp)).expect("it listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let request = b"POST / HTTP/1.1\r\nHost: x\r\n\r\nSET evil 1\r\n";
    socket.write_all(request).expect("it takes bytes");
    let mut said = Vec::new();
    // Closed, or reset because there was more to read: either way nothing was done.
    let _ = socket.read_to_end(&mut said);
    assert!(
        !said.windows(3).any(|w| w == b"+OK"),
        "{}",
        String::from_utf8_lossy(&said)
    );
    let got = cluster.run(0, &["cache", "get", "evil"]);
    assert_eq!(got.code, Some(3), "{}{}", got.stdout, got.stderr);
}
