//! Regions from the shell: made, filled from a file, read back past a killed node, scrubbed, grown, deleted.

use std::fs::File;
use std::process::{Command, Output, Stdio};

use super::Cluster;

const KIB: usize = 1024;

impl Cluster {
    /// Runs the program with bytes as its standard input; bytes come out.
    pub(super) fn pipe(&self, i: usize, args: &[&str], input: &[u8]) -> Output {
        let file = self.folder.path().join("input");
        std::fs::write(&file, input).expect("a file");
        Command::new(env!("CARGO_BIN_EXE_staves"))
            .args(["--cluster", &self.nodes[i].native, "--deadline", "30s"])
            .args(args)
            .env_clear()
            .stdin(File::open(&file).expect("the file"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()
            .expect("the program runs")
    }

    fn write(&self, args: &[&str], input: &[u8]) -> String {
        let out = self.pipe(0, args, input);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{args:?}: {text}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    fn read(&self, args: &[&str]) -> Vec<u8> {
        let out = self.pipe(0, args, &[]);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{args:?}: {text}");
        out.stdout
    }

    /// The exit code and what is said.
    fn refused(&self, args: &[&str]) -> (Option<i32>, String) {
        let out = self.pipe(0, args, &[]);
        assert!(out.stdout.is_empty(), "{args:?}");
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        (out.status.code(), text)
    }

    /// A node that holds data of a group, but not the one that is asked.
    fn node_that_holds(&self, group: &str) -> usize {
        let shown = self.run(0, &["group", "show", group, "-o", "json"]).stdout;
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        let members = shown["members"].as_array().expect("members");
        let data = members.iter().filter(|member| member["holds"] == "data");
        let mut names = data.map(|member| member["name"].as_str().expect("a name"));
        let other = names.find(|name| *name != self.nodes[0].native);
        let other = other.expect("two hold data");
        let at = self.nodes.iter().position(|node| node.native == other);
        at.expect("one of ours")
    }

    pub(super) fn scrubbed(&self) -> serde_json::Value {
        let ran = self.run(0, &["scrub", "--pool", "memory", "-o", "json"]);
        let found: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
        // Between two epochs there is nothing that could be compared.
        let nothing = found["result"] == "nothing-checked" && found["groups_short"] == 1;
        assert!(ran.code == Some(0) || nothing, "{found}{}", ran.stderr);
        found
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (seed * 31 + i * 7 + i / 251) as u8)
        .collect()
}

/// Rows H1, H5 and H7 as an operator sees them.
#[test]
fn h7_regions_from_the_shell_survive_a_killed_node() {
    // One more than the scheme has members: to be rebuilt on.
    let mut cluster = Cluster::start(4);
    let c = &cluster;
    let pool = [
        "pool", "create", "memory", "--kind", "memory", "--scheme", "2+1", "--memory", "32MiB",
    ];
    assert_eq!(c.run(0, &pool).code, Some(0));
    let made = c.run(1, &["memory", "create", "r", "--size", "10MiB"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    assert!(
        made.stdout.contains("2+1") && made.stdout.contains("10.0 MiB"),
        "{}",
        made.stdout
    );

    let bytes = pattern(1, 3000 * KIB + 17);
    let said = c.write(&["memory", "write", "r", "--offset", "1000KiB"], &bytes);
    assert!(said.contains("3,072,017 bytes written"), "{said}");
    let length = format!("{}B", bytes.len());
    let read = [
        "memory", "read", "r", "--offset", "1000KiB", "--length", &length,
    ];
    assert!(c.read(&read) == bytes);
    assert_eq!(
        c.read(&["memory", "read", "r"]).len(),
        10 << 20,
        "all of it"
    );

    let list = c.run(2, &["memory", "list"]).stdout;
    assert!(list.contains("r ") && list.contains("10.0 MiB"), "{list}");
    let shown = c.run(2, &["memory", "show", "r", "-o", "json"]).stdout;
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown["size_bytes"], 10 << 20);
    let group = shown["groups"][0].to_string();
    let shown = c.run(1, &["group", "show", &group]).stdout;
    assert!(
        shown.contains("parity") && shown.contains("0:") && shown.contains("1:"),
        "{shown}"
    );
    let found = c.scrubbed();
    assert_eq!(
        (&found["differences"], &found["groups"]),
        (&0.into(), &1.into())
    );
    assert!(found["pages_checked"].as_u64() > Some(300), "{found}");

    let victim = c.node_that_holds(&group);
    cluster.end(victim, "-KILL");
    let c = &cluster;
    assert!(c.read(&read) == bytes, "rebuilt as it is asked for");
    let more = pattern(2, 100 * KIB);
    c.write(&["memory", "write", "r", "--offset", "2000KiB"], &more);
    let at = [
        "memory", "read", "r", "--offset", "2000KiB", "--length", "100KiB",
    ];
    assert!(c.read(&at) == more, "written while a node was missing");

    assert_eq!(
        c.run(0, &["memory", "grow", "r", "--size", "200MiB"]).code,
        Some(0)
    );
    c.write(&["memory", "write", "r", "--offset", "199MiB"], b"the end");
    assert_eq!(
        c.read(&[
            "memory", "read", "r", "--offset", "199MiB", "--length", "7B"
        ]),
        b"the end"
    );
    let same = c.run(0, &["memory", "grow", "r", "--size", "200MiB"]);
    assert!(
        same.stdout.contains("ends there already"),
        "{}",
        same.stdout
    );
    scrub_under_load(c);
    errors(c);
    let (code, text) = c.refused(&["memory", "delete", "r"]);
    assert!(code == Some(1) && text.contains("--yes"), "{code:?} {text}");
    assert!(text.contains("(not-confirmed)"), "as with pools: {text}");
    assert_eq!(c.run(0, &["memory", "delete", "r", "--yes"]).code, Some(0));
    let (code, text) = c.refused(&["memory", "read", "r"]);
    assert!(
        code == Some(3) && text.contains("no region 'r'"),
        "{code:?} {text}"
    );
}

/// I4 while others write, and while the dead node's part is rebuilt.
fn scrub_under_load(c: &Cluster) {
    let args = [
        "bench", "memory", "--size", "4MiB", "--blocks", "4KiB", "--reads", "0",
    ];
    let mut bench = Command::new(env!("CARGO_BIN_EXE_staves"))
        .args(["--cluster", &c.nodes[0].native, "--deadline", "30s"])
        .args(args)
        .args(["--duration", "3s", "--callers", "4"])
        .env_clear()
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let mut checked = 0;
    while bench.try_wait().expect("it is ours").is_none() {
        let found = c.scrubbed();
        assert_eq!(found["differences"], 0, "{found}");
        checked += found["pages_checked"].as_u64().unwrap_or(0);
    }
    assert!(bench.wait().expect("it has ended").success());
    assert!(checked > 1000, "{checked} pages were checked meanwhile");
}

fn errors(c: &Cluster) {
    let out = c.pipe(
        0,
        &["memory", "write", "r", "--offset", "199MiB"],
        &pattern(9, 2 << 20),
    );
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("nothing was written"), "{text}");
    let end = [
        "memory", "read", "r", "--offset", "199MiB", "--length", "7B",
    ];
    assert_eq!(c.read(&end), b"the end");
    let json = c.read(&[&end[..], &["-o", "json"]].concat());
    let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(
        (&json["value"], &json["bytes"]),
        (&"the end".into(), &7.into())
    );
    for (args, code, says) in [
        (
            &["memory", "read", "r", "--offset", "201MiB"][..],
            1,
            "ends at",
        ),
        (&["memory", "read", "r", "--length", "0B"], 1, "0 bytes"),
        (&["memory", "read", "r", "--length", "201MiB"], 1, "ends at"),
        (&["memory", "write", "r"], 1, "0 bytes"),
        (&["memory", "read", "nobody"], 3, "no region 'nobody'"),
        (
            &["memory", "create", "r", "--size", "1MiB"],
            1,
            "exists already",
        ),
        (
            &["memory", "create", "s", "--size", "1MiB", "--pool", "cache"],
            1,
            "holds keys",
        ),
        (
            &["memory", "grow", "r", "--size", "1MiB"],
            1,
            "cannot shrink",
        ),
        (
            &["cache", "get", "k", "--pool", "memory"],
            3,
            "no key-value pool 'memory': it holds regions",
        ),
        (
            &["cache", "stats", "--pool", "memory"],
            3,
            "no key-value pool 'memory': it holds regions",
        ),
        (
            &["bench", "memory", "--pool", "cache"],
            1,
            "holds keys, not regions",
        ),
        (
            &["memory", "create", "s", "--size", "1MiB", "--pool", "none"],
            3,
            "no pool 'none'",
        ),
        (
            &["memory", "read", "r", "--length", "100MiB", "-o", "json"],
            2,
            "as JSON at most",
        ),
        (
            &[
                "memory", "read", "r", "--offset", "201MiB", "--length", "1B",
            ],
            1,
            "region 'r' ends at 200MiB: there are no 1B at offset 201MiB",
        ),
        (
            &[
                "memory", "read", "r", "--offset", "199MiB", "--length", "2MiB",
            ],
            1,
            "there are no 2MiB at offset 199MiB",
        ),
        (
            &["memory", "create", "s", "--size", "0B"],
            1,
            "'s' cannot get 0B: choose a size from 1B",
        ),
    ] {
        let (got, text) = c.refused(args);
        assert!(
            got == Some(code) && text.contains(says),
            "{args:?}: {got:?} {text}"
        );
    }
}

#[test]
fn the_bench_of_regions_measures_and_leaves_nothing_behind() {
    let cluster = Cluster::start(3);
    let pool = [
        "pool", "create", "memory", "--kind", "memory", "--scheme", "1+1", "--memory", "32MiB",
    ];
    assert_eq!(cluster.run(0, &pool).code, Some(0));
    let ran = cluster.run(
        0,
        &[
            "bench",
            "memory",
            "--size",
            "8MiB",
            "--blocks",
            "64B,4KiB",
            "--reads",
            "50",
            "--callers",
            "4",
            "--duration",
            "300ms",
            "--warm-up",
            "1ms",
            "--threads",
            "2",
            "--unaligned",
            "-o",
            "json",
            "--deadline",
            "30s",
        ],
    );
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert!(run["operations"].as_u64() > Some(0), "{run}");
        assert_eq!(run["errors"], 0, "{run}");
        assert!(run["p99_us"].as_f64() >= run["p50_us"].as_f64(), "{run}");
    }
    let left = cluster.run(0, &["memory", "list", "-o", "json"]).stdout;
    assert_eq!(left.trim(), "[]");
}

/// A bench that is interrupted leaves nothing behind, either.
#[test]
fn an_interrupted_bench_deletes_its_region() {
    let cluster = Cluster::start(1);
    let pool = [
        "pool", "create", "memory", "--kind", "memory", "--scheme", "1+0", "--memory", "32MiB",
    ];
    assert_eq!(cluster.run(0, &pool).code, Some(0));
    let args = ["bench", "memory", "--size", "4MiB", "--duration", "100s"];
    let mut bench = Command::new(env!("CARGO_BIN_EXE_staves"))
        .args(["--cluster", &cluster.nodes[0].native, "--deadline", "30s"])
        .args(args)
        .env_clear()
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let regions = || cluster.run(0, &["memory", "list", "-o", "json"]).stdout;
    let until = std::time::Instant::now() + super::PATIENCE;
    while !regions().contains("bench-") {
        assert!(std::time::Instant::now() < until, "it makes a region");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    super::signal("-INT", bench.id());
    let ended = bench.wait().expect("it is ours");
    assert_eq!(ended.code(), Some(130));
    assert_eq!(regions().trim(), "[]");
}

/// Row H11. Regression: a load for whose parity there was no room was begun all the same, and left the region
/// without it; nothing said what was missing.
#[test]
fn h11_a_load_without_room_for_its_parity_is_refused_with_numbers() {
    let cluster = Cluster::start(3);
    let c = &cluster;
    let pool = [
        "pool", "create", "memory", "--kind", "memory", "--scheme", "2+1", "--memory", "8MiB",
    ];
    assert_eq!(c.run(0, &pool).code, Some(0));
    let create = ["memory", "create", "r", "--size", "64MiB"];
    assert_eq!(c.run(0, &create).code, Some(0));
    let stat = || {
        let shown = c.run(0, &["memory", "show", "r", "-o", "json"]).stdout;
        serde_json::from_str::<serde_json::Value>(&shown).expect("JSON")
    };

    // 20 MiB in two data buckets: each node would hold 10 MiB, and has 8.
    let out = c.pipe(
        0,
        &["memory", "write", "r", "--load"],
        &pattern(1, 20 << 20),
    );
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{text}");
    for part in [
        "cannot be loaded with 20.0 MiB",
        "takes 10.2 MiB more then",
        "that node has 8.0 MiB left for pool 'memory'",
        "nothing was written",
        "(out-of-memory)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(stat()["loading"], false, "it has its parity still");

    // What fits is loaded, and once more: to places that are written already.
    let bytes = pattern(2, 8 << 20);
    for _ in 0..2 {
        c.write(&["memory", "write", "r", "--load"], &bytes);
    }
    assert_eq!(stat()["loading"], false);
    assert!(c.read(&["memory", "read", "r", "--length", "8MiB"]) == bytes);
}

/// A region whose load was broken off is reported: by the status, by a write, and by the command that ends it.
#[test]
fn h11_a_load_that_was_broken_off_is_told_of_until_it_is_ended() {
    let cluster = Cluster::start(3);
    let c = &cluster;
    let pool = [
        "pool", "create", "memory", "--kind", "memory", "--scheme", "2+1", "--memory", "96MiB",
    ];
    assert_eq!(c.run(0, &pool).code, Some(0));
    let create = ["memory", "create", "r", "--size", "128MiB"];
    assert_eq!(c.run(0, &create).code, Some(0));
    let mut load = Command::new(env!("CARGO_BIN_EXE_staves"))
        .args(["--cluster", &c.nodes[0].native, "--deadline", "60s"])
        .args(["memory", "write", "r", "--load"])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = load.stdin.take().expect("piped");
    // All that is read before the first write, and a part.
    let bytes = pattern(4, 72 << 20);
    std::io::Write::write_all(&mut stdin, &bytes).expect("it reads");
    let status = || c.run(0, &["status"]).stdout;
    let until = std::time::Instant::now() + super::PATIENCE;
    while !status().contains("region 'r' has no parity") {
        assert!(std::time::Instant::now() < until, "{}", status());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    // It waits for more: all of that is written by then.
    let at = [
        "memory", "read", "r", "--offset", "71MiB", "--length", "1MiB",
    ];
    while c.read(&at) != bytes[71 << 20..] {
        assert!(std::time::Instant::now() < until, "it writes what came");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    super::signal("-INT", load.id());
    let ended = load.wait_with_output().expect("it is ours");
    drop(stdin);
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{text}");
    for part in [
        "stopped: 72MiB of region 'r'",
        "acknowledged",
        "staves memory protect r",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        status().contains("region 'r' has no parity"),
        "{}",
        status()
    );
    let out = c.pipe(0, &["memory", "write", "r", "--offset", "1KiB"], b"more");
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        !out.status.success() && text.contains("region 'r' has no parity there"),
        "{text}"
    );
    let out = c.run(0, &["memory", "protect", "r", "--deadline", "30s"]);
    assert_eq!(out.code, Some(0), "{}", out.stderr);
    assert!(!status().contains("no parity"), "{}", status());
    let out = c.pipe(0, &["memory", "write", "r", "--offset", "1KiB"], b"more");
    assert!(out.status.success() && out.stderr.is_empty());
    // It holds bytes now that a small load leaves as they are: with their parity.
    let out = c.pipe(
        0,
        &["memory", "write", "r", "--load", "-o", "json"],
        b"more",
    );
    let answer: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(
        (&answer["loaded_bytes"], &answer["logged_bytes"]),
        (&0.into(), &4.into())
    );
}
