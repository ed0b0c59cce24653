//! `staves files` where a node or a source does not answer, and where it is interrupted.

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use staves_client::{Client, ClientOptions};
use staves_model::{Node, NodeId};
use staves_wire::files::{FileId, FileKey};

use crate::fake::Fake;
use crate::{Ran, staves_with};

/// The bound for a command whose deadline is 5 s, however busy the machine is; a wait for a source's own bounds takes longer.
const WELL_BEFORE: Duration = Duration::from_secs(18);
const PATIENCE: Duration = Duration::from_secs(60);
const PART_BYTES: u64 = staves_store::blocks::PART_BYTES as u64;

fn ask(fake: &Fake, args: &[&str]) -> Ran {
    staves_with(&[("STAVES_CLUSTER", &fake.addr)], args)
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = vec![7; 4 * PART_BYTES as usize];
    std::fs::write(folder.path().join("a"), bytes).expect("written");
    folder
}

/// A file's name in the pool.
fn id_of(fake: &Fake, source: &str, path: &[u8]) -> FileId {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let seeds = [fake.addr.clone()];
        let client = Client::connect(&seeds, ClientOptions::default()).await;
        let client = client.expect("a client");
        let data = client.dataset("files", "data", source).await;
        data.expect("a dataset").open(path).expect("a file").id()
    })
}

/// Regression: each silent node was waited for, for 5 s, one after the other.
#[test]
fn nodes_that_say_nothing_are_named_and_not_waited_for_beyond_the_deadline() {
    let (fake, folder) = (Fake::start(), folder());
    let source = folder.path().to_str().expect("a path");
    fake.with_dataset(source);
    fake.with(|state| {
        let one = state.map.nodes[&NodeId(1)].clone();
        for id in (2..=9).map(NodeId) {
            let node = Node {
                id,
                name: format!("node-{id}"),
                ..one.clone()
            };
            state.map.nodes.insert(id, node);
        }
    });
    let began = Instant::now();
    let show = ["files", "show", "data", "-o", "json", "--deadline", "5s"];
    let shown = ask(&fake, &show);
    assert!(began.elapsed() < WELL_BEFORE, "{:?}", began.elapsed());
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    let told = json(&shown.stdout);
    assert_eq!(told["bytes"], 4 * PART_BYTES, "what could be learned");
    let warning = told["warning"].as_str().expect("a warning");
    assert!(
        warning.contains("nodes node-1, node-2, node-3, node-4, "),
        "{warning}"
    );
    assert!(warning.contains("node-9 did not say"), "{warning}");
}

/// Regression: nodes had numbers where all else has names, and nothing but all files could be shown.
#[test]
fn a_dataset_is_summed_up_by_nodes_names_and_its_files_are_shown_when_asked_for() {
    let (fake, folder) = (Fake::start(), folder());
    std::fs::create_dir(folder.path().join("deep")).expect("a folder");
    std::fs::write(folder.path().join("deep/b"), b"acgt").expect("written");
    let source = folder.path().to_str().expect("a path");
    fake.with_dataset(source);
    let block = FileKey {
        file: id_of(&fake, source, b"a"),
        block: 0,
        bytes: 4 * PART_BYTES as u32,
        parts: 0b0101,
    };
    fake.with(|state| {
        state.blocks = Some(vec![block]);
        state.map.nodes.retain(|id, _| *id == NodeId(1));
    });
    let told = |more: &[&str]| {
        let show = ["files", "show", "data", "-o", "json", "--deadline", "30s"];
        let shown = ask(&fake, &[&show, more].concat());
        assert_eq!(shown.code, Some(0), "{}", shown.stderr);
        json(&shown.stdout)
    };
    let sums = told(&[]);
    let expected = serde_json::json!({
        "dataset": "data", "source": source, "bytes": 4 * PART_BYTES + 4, "in_memory_bytes": 2 * PART_BYTES,
        "file_count": 2, "files_in_memory": 0, "files_partly_in_memory": 1, "files_pinned": 0,
        "node_bytes": { "node-1": 2 * PART_BYTES },
    });
    assert_eq!(sums, expected);
    let each = told(&["--files"]);
    assert_eq!(each["files"][0]["path"], "a");
    assert_eq!(each["files"][0]["node_bytes"]["node-1"], 2 * PART_BYTES);
    assert_eq!(each["files"][1]["path"], "deep/b");
    assert_eq!(each["files"][1]["in_memory_bytes"], 0);
    let text = |more: &[&str]| ask(&fake, &[&["files", "show", "data"], more].concat()).stdout;
    assert!(text(&[]).contains("node-1") && !text(&[]).contains("deep/b"));
    assert!(text(&["--files"]).contains("node-1: 50 %"));
}

/// Regression: each file was looked at by itself, twice, and 200,000 took longer than the deadline.
#[test]
fn many_files_are_shown_within_the_deadline() {
    const FOLDERS: usize = 20;
    const FILES: usize = 1000;
    let (fake, folder) = (Fake::start(), tempfile::tempdir().expect("a folder"));
    for deep in 0..FOLDERS {
        let deep = folder.path().join(deep.to_string());
        std::fs::create_dir(&deep).expect("a folder");
        for file in 0..FILES {
            std::fs::write(deep.join(file.to_string()), b"acgt").expect("written");
        }
    }
    fake.with_dataset(folder.path().to_str().expect("a path"));
    fake.with(|state| {
        state.blocks = Some(Vec::new());
        state.map.nodes.retain(|id, _| *id == NodeId(1));
    });
    let show = ["files", "show", "data", "-o", "json", "--deadline", "20s"];
    let shown = ask(&fake, &show);
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    let told = json(&shown.stdout);
    assert_eq!(told["file_count"], FOLDERS * FILES);
    assert_eq!(told["bytes"], 4 * FOLDERS * FILES);
    assert!(shown.stdout.len() < 1000, "a summary");
}

/// Regression: a source that says nothing was waited for for half a minute.
#[test]
fn a_source_that_says_nothing_is_named_and_not_waited_for_beyond_the_deadline() {
    let fake = Fake::start();
    // The kernel takes connections, and nobody answers.
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = nobody.local_addr().expect("an address").port();
    let source = format!("http://127.0.0.1:{port}/data");
    fake.with_dataset(&source);
    let began = Instant::now();
    let shown = ask(&fake, &["files", "show", "data", "--deadline", "5s"]);
    assert!(began.elapsed() < WELL_BEFORE, "{:?}", began.elapsed());
    assert_eq!(shown.code, Some(4), "{}", shown.stderr);
    for word in [&*source, "--deadline", "(deadline)"] {
        assert!(shown.stderr.contains(word), "{word}: {}", shown.stderr);
    }
    // What needs no source does not ask it.
    let listed = ask(&fake, &["files", "list", "--deadline", "30s"]);
    assert!(listed.stdout.contains(&source), "{}", listed.stderr);
    // Nor does a slip hold up.
    let began = Instant::now();
    let unpinned = ask(&fake, &["files", "unpin", "data", "a", "--deadline", "5s"]);
    assert!(began.elapsed() < WELL_BEFORE, "{:?}", began.elapsed());
    assert_eq!(unpinned.code, Some(0), "{}", unpinned.stderr);
}

/// Starts a preload, which waits for homes that never come, and interrupts it.
fn interrupted(fake: &Fake, format: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_staves"));
    command
        .args(["--cluster", &fake.addr, "-o", format])
        .args(["files", "preload", "data", "--deadline", "30s"])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().expect("the program starts");
    let until = Instant::now() + PATIENCE;
    while !catches_interrupts(&child) {
        assert!(Instant::now() < until, "it does not come so far");
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.expect("kill runs").success());
    child.wait_with_output().expect("it ends")
}

/// True if SIGINT, the second signal, has a handler.
fn catches_interrupts(child: &Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
    let status = status.expect("it runs");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 0b10 != 0)
}

/// Regression: Ctrl-C ended a preload without a word.
#[test]
fn a_preload_that_is_interrupted_says_what_is_in_memory() {
    let (fake, folder) = (Fake::start(), folder());
    let source = folder.path().to_str().expect("a path");
    fake.with_dataset(source);
    let block = FileKey {
        file: id_of(&fake, source, b"a"),
        block: 0,
        bytes: 4 * PART_BYTES as u32,
        parts: 0b0101,
    };
    fake.with(|state| state.blocks = Some(vec![block]));

    let ended = interrupted(&fake, "json");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{stderr}");
    let told = json(&String::from_utf8_lossy(&ended.stdout));
    assert_eq!(told["result"], "interrupted", "{told}");
    assert_eq!(told["in_memory_bytes"], 2 * PART_BYTES, "{told}");
    assert_eq!(told["bytes"], 4 * PART_BYTES, "{told}");
    let error = &json(&stderr)["error"];
    assert_eq!(error["code"], "interrupted", "{stderr}");
    assert_eq!(error["exit_code"], 130, "{stderr}");

    let ended = interrupted(&fake, "table");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{stderr}");
    for word in [
        "16.0 KiB of 32.0 KiB",
        "50 %",
        "goes on from there",
        "(interrupted)",
    ] {
        assert!(stderr.contains(word), "{word}: {stderr}");
    }
}

/// Regression: the first of several nodes was given all of the time, if it took connections and said nothing.
#[test]
fn a_node_that_hangs_leaves_time_for_the_next_one() {
    let fake = Fake::start();
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = nobody.local_addr().expect("an address");
    let cluster = format!("{at}{}", format!(",{}", fake.addr).repeat(7));
    let env = [("STAVES_CLUSTER", &*cluster), ("STAVES_DEADLINE", "40s")];
    let began = Instant::now();
    let listed = staves_with(&env, &["node", "list"]);
    assert!(began.elapsed() < WELL_BEFORE, "{:?}", began.elapsed());
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
}

/// Regression: a variable of a shell that was empty unpinned everything.
#[test]
fn an_empty_path_is_a_slip() {
    for command in ["preload", "unpin"] {
        let ran = staves_with(&[], &["files", command, "data", ""]);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains("PATH"), "{}", ran.stderr);
    }
}

/// Regression: the usage named flags that were given by the environment, as if they had to be.
#[test]
fn the_usage_names_nothing_that_the_environment_gives() {
    let env = [("STAVES_CLUSTER", "127.0.0.1:1"), ("STAVES_DEADLINE", "3s")];
    let usage = |args: &[&str]| {
        let ran = staves_with(&env, args);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        ran.stderr
    };
    let shown = usage(&["files", "show"]);
    assert!(
        shown.contains("\nUsage: staves files show <DATASET>\n"),
        "{shown}"
    );
    let shown = usage(&["mount"]);
    assert!(!shown.contains("--cluster"), "{shown}");
    // A variable that is wrong is what is told.
    let wrong = staves_with(&[("STAVES_DEADLINE", "soon")], &["files", "list"]);
    assert!(wrong.stderr.contains("'soon'"), "{}", wrong.stderr);
    let wrong = staves_with(&[("STAVES_DEADLINE", "soon")], &["files", "show"]);
    assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
}
