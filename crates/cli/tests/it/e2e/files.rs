//! Files: what a node takes under a flood, and what people are told before they take files away.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use staves_client::{Client, ClientOptions, OpenFile};
use staves_model::{Change, ClusterId, Pin, PoolId};
use staves_net::{Connection, Identity, Options};
use staves_node::resident::resident_bytes;
use staves_wire::Message;
use staves_wire::files::{CHECKED_ALL, FileChanges, FileFetch, FileRead};

use super::Cluster;

const MIB: u64 = 1 << 20;
/// The pool's memory, and the file's size.
const POOL_BYTES: u64 = 64 * MIB;
const FILE_BYTES: u64 = 256 * MIB;
/// Bytes that requests may take beside blocks on a node of 128 MiB: 14 MiB by their own bounds, the rest for buffers of connections and what the
/// allocator keeps.
const REQUESTS_BYTES: u64 = 56 * MIB;
/// Connections, and what each asks for at a time.
const CONNECTIONS: usize = 32;
const AT_ONCE: usize = 16;
const STRETCHES: u64 = 3000;

fn ask(pool: PoolId, file: &OpenFile, from: u64) -> Message {
    let version = file.version();
    Message::FileFetch(FileFetch {
        read: FileRead {
            pool,
            file: file.id(),
            from,
            len: MIB as u32,
        },
        size: version.size,
        dataset: version.dataset.clone(),
        path: bytes::Bytes::copy_from_slice(&version.path),
        version: version.version.clone(),
    })
}

/// The byte of the file at an offset.
fn byte(at: u64) -> u8 {
    ((at >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ at as u8
}

/// A hard budget: many readers of a file four times as large as the pool, all at once, and the process takes no
/// more than the pool's budget and a tenth, and a constant for requests.
#[test]
fn a_flood_of_readers_stays_within_the_budget() {
    let cluster = Cluster::start(1);
    let folder = tempfile::tempdir().expect("a folder");
    let bytes: Vec<u8> = (0..FILE_BYTES).map(byte).collect();
    std::fs::write(folder.path().join("a"), bytes).expect("written");
    let made = cluster.run(
        0,
        &[
            "pool", "create", "files", "--kind", "files", "--memory", "64MiB",
        ],
    );
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    cluster.wait_for("all buckets are held", 0, |s| s["state"] == "healthy");
    std::thread::sleep(Duration::from_millis(2100)); // files that changed just now are not kept
    let pid = cluster.nodes[0].child.as_ref().map(std::process::Child::id);
    let idle = resident_bytes(pid).expect("it runs");
    let (native, runtime) = (
        cluster.nodes[0].native.clone(),
        tokio::runtime::Runtime::new().unwrap(),
    );
    let (pool, file) = runtime.block_on(async {
        let client = Client::connect(std::slice::from_ref(&native), ClientOptions::default());
        let client = client.await.expect("a client");
        let source = folder.path().to_str().expect("a path");
        let data = client
            .dataset("files", "data", source)
            .await
            .expect("a dataset");
        (data.pool().0, data.open(b"a").expect("a file"))
    });
    let (most, over) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let watch = {
        let (most, over) = (most.clone(), over.clone());
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                most.fetch_max(resident_bytes(pid).unwrap_or(0), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        })
    };
    let (given, next) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..CONNECTIONS {
            let (identity, options) = (Identity::client(ClusterId(0)), Options::default());
            let open = Connection::open(&native, &identity, &options);
            let connection = open.await.expect("it opens");
            for _ in 0..AT_ONCE {
                let (connection, file) = (connection.clone(), file.clone());
                let (given, next) = (given.clone(), next.clone());
                tasks.spawn(async move {
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        if i >= STRETCHES {
                            return;
                        }
                        let from = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (FILE_BYTES / MIB) * MIB;
                        let until = Instant::now() + Duration::from_secs(30);
                        let answer = connection.call(&ask(pool, &file, from), until).await;
                        // Who is told that the node is busy goes to the source.
                        if let Ok(Message::FileBytes(answer)) = answer
                            && let Some(bytes) = answer.bytes
                        {
                            let right = (0..MIB)
                                .step_by(509)
                                .all(|at| bytes[at as usize] == byte(from + at));
                            assert!(right && bytes.len() as u64 == MIB);
                            given.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        }
        while let Some(ended) = tasks.join_next().await {
            ended.expect("right bytes, or none");
        }
    });
    over.store(true, Ordering::Relaxed);
    watch.join().expect("it watched");
    let grew = most.load(Ordering::Relaxed).saturating_sub(idle);
    let given = given.load(Ordering::Relaxed);
    println!(
        "grew by {} MiB; {given} of {STRETCHES} stretches were given",
        grew / MIB
    );
    assert!(given > STRETCHES / 100, "{given} of {STRETCHES}");
    assert!(
        grew <= POOL_BYTES + POOL_BYTES / 10 + REQUESTS_BYTES,
        "it grew by {} MiB",
        grew / MIB
    );
    assert!(
        grew >= POOL_BYTES / 2,
        "the pool was used: {} MiB",
        grew / MIB
    );
}

/// People learn of mounts before they take files from under them, and what is pinned and where it is.
#[test]
fn people_are_told_what_they_take_away() {
    let cluster = Cluster::start(1);
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("a"), vec![7; 300_000]).expect("written");
    let run = |args: &[&str]| cluster.run(0, args);
    let good = |args: &[&str]| {
        let ran = run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
        ran.stdout
    };
    good(&[
        "pool", "create", "files", "--kind", "files", "--memory", "32MiB",
    ]);
    cluster.wait_for("all buckets are held", 0, |s| s["state"] == "healthy");
    assert!(
        good(&["pool", "show", "files"]).contains("all: what they held of files is fetched again")
    );
    let native = cluster.nodes[0].native.clone();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let data = runtime.block_on(async {
        let client = Client::connect(&[native], ClientOptions::default()).await;
        let source = folder.path().to_str().expect("a path");
        let client = client.expect("a client");
        client
            .dataset("files", "data", source)
            .await
            .expect("a dataset")
    });
    std::thread::sleep(Duration::from_millis(2100));
    let out = run(&["files", "preload", "data", "../etc"]);
    assert!(out.stderr.contains("leads out"), "{}", out.stderr);
    good(&["files", "preload", "data", "--pin"]);
    cluster.wait_for("its memory is told", 0, |s| {
        s["nodes"][0]["facts"]["files_bytes"].as_u64() >= Some(300_000)
    });
    let shown: serde_json::Value =
        serde_json::from_str(&good(&["files", "show", "data", "--files", "-o", "json"]))
            .expect("json");
    assert_eq!(shown["in_memory_bytes"], 300_000);
    assert_eq!(shown["files"][0]["pinned"], true);
    let name = good(&["status", "-o", "json"]);
    let name: serde_json::Value = serde_json::from_str(&name).expect("json");
    let name = name["nodes"][0]["name"]
        .as_str()
        .expect("a name")
        .to_owned();
    assert_eq!(shown["files"][0]["node_bytes"][&name], 300_000);
    let listed = good(&["files", "list", "-o", "json"]);
    assert!(
        listed.contains("\"pinned_bytes\":300000") || listed.contains("\"pinned_bytes\": 300000"),
        "{listed}"
    );
    let scrubbed = good(&["scrub", "--pool", "files", "-o", "json"]);
    assert!(
        scrubbed.contains("\"files_bytes_checked\":300000")
            || scrubbed.contains("\"files_bytes_checked\": 300000"),
        "{scrubbed}"
    );
    let slip = run(&["files", "unpin", "data", "nothing"]);
    assert_eq!(slip.code, Some(3), "{}", slip.stderr);
    assert!(good(&["files", "unpin", "data"]).contains("1 file "));
    // A mount says that it is there.
    data.used_by("lab7:/mnt/data");
    runtime.block_on(data.refresh());
    for command in [["files", "drop", "data"], ["pool", "delete", "files"]] {
        let refused = run(&command);
        assert!(
            refused.stderr.contains("lab7:/mnt/data"),
            "{}",
            refused.stderr
        );
        assert_ne!(refused.code, Some(0));
    }
    let dropped = run(&["files", "drop", "data", "--yes"]);
    assert_eq!(dropped.code, Some(0), "{}", dropped.stderr);
    let said = format!("{}{}", dropped.stdout, dropped.stderr);
    assert!(said.contains("lab7:/mnt/data"), "{said}");
}

/// The bytes that preload reports are in memory, and a script learns if that is all.
#[test]
fn preload_says_what_is_in_memory_and_why_that_is_not_all() {
    let cluster = Cluster::start(1);
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("a"), vec![7; 5_000_000]).expect("written");
    std::fs::write(at("closed"), vec![7; 300_000]).expect("written");
    std::fs::set_permissions(at("closed"), PermissionsExt::from_mode(0o640)).expect("closed");
    let large = std::fs::File::create(at("large")).expect("made");
    large.set_len(64 * MIB).expect("long");
    drop(large); // what is open for writing is not kept
    std::thread::sleep(Duration::from_millis(2100));
    let made = cluster.run(
        0,
        &[
            "pool", "create", "files", "--kind", "files", "--memory", "32MiB",
        ],
    );
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let native = cluster.nodes[0].native.clone();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&[native], ClientOptions::default()).await;
        let source = folder.path().to_str().expect("a path");
        let client = client.expect("a client");
        let data = client.dataset("files", "data", source).await;
        data.map(drop).expect("a dataset");
    });
    let preload = |name: &str| {
        let ran = cluster.run(0, &["files", "preload", "data", name, "-o", "json"]);
        let told = serde_json::from_str::<serde_json::Value>(&ran.stdout);
        let told = told.unwrap_or_else(|error| panic!("{error}: {}", ran.stderr));
        (ran, told)
    };
    // The pool was made just now: its buckets are waited for.
    let (ran, told) = preload("a");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(
        (&told["result"], &told["bytes"]),
        (&"loaded".into(), &told["in_memory_bytes"])
    );
    for (name, why) in [("closed", "chmod o+r"), ("large", "no room for more: 32")] {
        let (ran, told) = preload(name);
        assert_eq!(
            (ran.code, &told["result"]),
            (Some(1), &"partly".into()),
            "{name}"
        );
        assert!(ran.stderr.contains(why), "{}", ran.stderr);
        assert!(told["in_memory_bytes"].as_u64() < told["bytes"].as_u64());
    }
    // Written just now, unless the machine is too slow to see it.
    let changed = (0..20).any(|_| {
        std::fs::write(at("new"), vec![7; 300_000]).expect("written");
        let (ran, _) = preload("new");
        ran.code == Some(1) && ran.stderr.contains("had changed just before")
    });
    assert!(changed);
}

/// The folder in which the processes of nodes find the dataset, if they are in the right one.
const WHERE: &str = "/proc/self/cwd/data";

/// A pinned file whose buckets' homes do not reach its source is in memory all the same, by those that do; where nobody does,
/// people are told so.
#[test]
fn pinned_files_are_fetched_by_whoever_reaches_their_source() {
    let (near, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = near.path().join("data");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("a"), vec![7; 9 * MIB as usize + 5]).unwrap();
    let homes = [Some(near.path()), Some(far.path()), Some(far.path())];
    let cluster = Cluster::start_at(&homes, &[]);
    let made = cluster.run(
        0,
        &[
            "pool", "create", "files", "--kind", "files", "--memory", "64MiB",
        ],
    );
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    cluster.wait_for("all buckets are held", 0, |s| s["state"] == "healthy");
    let (natives, runtime) = (
        vec![cluster.nodes[0].native.clone()],
        tokio::runtime::Runtime::new().unwrap(),
    );
    let options = ClientOptions {
        admin: true,
        ..ClientOptions::default()
    };
    let client = Client::connect(&natives, options);
    let client = runtime.block_on(client).expect("a client");
    // The file as the map has it.
    let real = client.dataset("files", "real", folder.to_str().unwrap());
    let real = runtime.block_on(real).expect("a dataset");
    let mut file = real.open(b"a").unwrap().version().clone();
    file.dataset = "data".into();
    let propose = |change: Change| runtime.block_on(client.propose(&change)).map(drop).unwrap();
    // In `nowhere` no node finds anything.
    for (name, source) in [("data", WHERE), ("nowhere", "/proc/self/cwd/nowhere")] {
        let (pool, name, source) = ("files".into(), name.to_owned(), source.into());
        propose(Change::SetDataset {
            pool,
            name: name.clone(),
            source,
        });
        propose(Change::PinFiles(vec![Pin {
            dataset: name,
            path: b"a".into(),
            size: file.size,
            version: file.version.clone(),
        }]));
    }
    let whole = || {
        let map = runtime.block_on(client.refresh()).unwrap();
        let mut there = std::collections::BTreeMap::new();
        let pool = map.pool_named("files").unwrap().id;
        for node in map.nodes.keys() {
            let (since, from) = (0, 0);
            let ask = Message::FileChanges(FileChanges { pool, since, from });
            let until = Instant::now() + Duration::from_secs(5);
            let answer = runtime.block_on(client.ask(*node, ask, until));
            let Ok(Message::FileChangesAnswer(answer)) = answer else {
                return false;
            };
            assert_eq!(answer.next, CHECKED_ALL, "so few are one page");
            let keys = answer.entries.iter().map(|change| change.key);
            for key in keys.filter(|key| key.file == file.id()) {
                *there.entry(key.block).or_insert(0) |= key.parts;
            }
        }
        let parts: u32 = there.values().map(|parts: &u32| parts.count_ones()).sum();
        u64::from(parts) == file.size.div_ceil(8 << 10)
    };
    let until = Instant::now() + super::PATIENCE;
    while !whole() {
        assert!(Instant::now() < until, "it is never all in memory");
        std::thread::sleep(Duration::from_millis(100));
    }
    cluster.wait_for("people are told what is not there, and why", 0, |s| {
        let lacks = s["nodes"].as_array().unwrap().iter();
        let mut lacks = lacks.flat_map(|node| node["facts"]["lacking"].as_array());
        lacks.any(|lacks| {
            let of = |lack: &serde_json::Value| {
                let why = lack["why"].as_str().unwrap_or_default();
                lack["dataset"] == "nowhere" && why.contains("nor do the nodes that were asked")
            };
            lacks.iter().any(of)
        })
    });
    let said = cluster.run(0, &["status"]).stdout;
    assert!(said.contains("a of nowhere is pinned, and "), "{said}");
    cluster.wait_for("nothing is said of what is there", 0, |s| {
        let lacks = s["nodes"].as_array().unwrap().iter();
        let mut lacks = lacks.flat_map(|node| node["facts"]["lacking"].as_array());
        !lacks.any(|lacks| lacks.iter().any(|lack| lack["dataset"] == "data"))
    });
}
