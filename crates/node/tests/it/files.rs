//! Datasets against real nodes: read once from the source, then from memory, whoever dies meanwhile.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use staves_client::{Client, ClientOptions, Dataset, OpenFile, SourceError};
use staves_model::{Change, Holdings, Medium, NodeId, Pin, PoolKind, Scheme};
use staves_wire::Message;
use staves_wire::files::{
    CHECKED_ALL, FILE_KEYS_MAX, FROM_LAST, FileBytes, FileChanges, FileCheck, FileFetch, FileId,
    FileKey, FileKeys, FilePut, FileRead,
};
use tempfile::TempDir;

use staves_testkit::cluster::{TestCluster, TestNode, config};
use staves_testkit::wait_until;

pub const POOL: &str = "files";
pub const MIB: usize = 1 << 20;

/// A folder whose files changed a while ago.
pub fn folder(files: &[(&str, usize)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for (i, (name, size)) in files.iter().enumerate() {
        write(&dir, name, &pattern(i as u64, *size));
    }
    dir
}

pub fn write(dir: &TempDir, name: &str, bytes: &[u8]) {
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).expect("a file");
    // Only the times of change that programs can set: the rest comes with age.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(60))
        .unwrap();
}

/// Files count as changing until two seconds after their last change.
pub fn let_it_age() {
    std::thread::sleep(Duration::from_millis(2100));
}

pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let word = |i: u64| (i ^ seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 13;
    let words = (0..len.div_ceil(8) as u64).flat_map(|i| word(i).to_le_bytes());
    words.take(len).collect()
}

pub fn cluster(nodes: usize, budget: u64) -> TestCluster {
    cluster_of(nodes, budget, 64)
}

pub fn cluster_of(nodes: usize, budget: u64, buckets: u32) -> TestCluster {
    with_files(TestCluster::start(nodes), budget, buckets)
}

/// With a pool for them.
pub fn with_files(cluster: TestCluster, budget: u64, buckets: u32) -> TestCluster {
    let change = Change::CreatePool {
        name: POOL.into(),
        kind: PoolKind::Files(Holdings::default()),
        scheme: Scheme { m: 1, k: 0 },
        medium: Medium::Ram,
        node_budget_bytes: budget,
        buckets,
        may_start_empty: true,
    };
    cluster.nodes[0].propose(&change).expect("a pool");
    held(&cluster);
    cluster
}

/// Until every bucket has a holder that runs.
pub fn held(cluster: &TestCluster) {
    wait_until("every bucket is held", || {
        let running = cluster.nodes.iter().filter(|c| !c.is_dead());
        running.into_iter().all(|c| {
            let map = c.map();
            let pool = map.pool_named(POOL).and_then(|p| p.holdings());
            pool.is_some_and(|h| h.buckets.iter().all(|b| !b.is_empty()))
        })
    });
}

pub fn dataset(cluster: &TestCluster, dir: &TempDir) -> Dataset {
    dataset_of(cluster, dir, "data")
}

pub fn dataset_of(cluster: &TestCluster, dir: &TempDir, name: &str) -> Dataset {
    let running = cluster.nodes.iter().filter(|c| !c.is_dead());
    let addresses: Vec<String> = running.map(|c| c.addresses.native.to_string()).collect();
    let first = cluster.nodes.iter().find(|c| !c.is_dead()).expect("a node");
    first.runtime().block_on(async {
        let client = Client::connect(&addresses, ClientOptions::default()).await;
        let client = client.expect("a client");
        let source = dir.path().to_str().expect("a path");
        client.dataset(POOL, name, source).await.expect("a dataset")
    })
}

pub fn read(cluster: &TestCluster, data: &Dataset, name: &str) -> Result<Vec<u8>, SourceError> {
    let first = cluster.nodes.iter().find(|c| !c.is_dead()).expect("a node");
    let file = data.open(name.as_bytes())?;
    first.runtime().block_on(async {
        let mut all = Vec::new();
        while (all.len() as u64) < file.size() {
            let some = data.read_at(&file, all.len() as u64, 700_001).await?;
            assert!(!some.is_empty());
            all.extend_from_slice(&some);
        }
        Ok(all)
    })
}

pub fn from_source(data: &Dataset) -> u64 {
    data.figures().source_bytes.load(Ordering::Relaxed)
}

fn fetched(data: &Dataset) -> u64 {
    data.figures().fetched_bytes.load(Ordering::Relaxed)
}

/// Rows D1 and D8: what was read once comes from memory, for every reader; each byte is fetched once.
#[test]
fn d8_each_byte_is_fetched_once_and_then_comes_from_memory() {
    let files = [
        ("a", 5 * MIB + 12_345),
        ("b", 77),
        ("empty", 0),
        ("c", 300_000),
    ];
    let dir = folder(&files);
    let cluster = cluster(3, 64 << 20);
    let_it_age();
    let data = dataset(&cluster, &dir);
    for (i, (name, size)) in files.iter().enumerate() {
        assert!(
            read(&cluster, &data, name).unwrap() == pattern(i as u64, *size),
            "{name}"
        );
    }
    let unique: u64 = files.iter().map(|(_, size)| *size as u64).sum();
    let read_by_homes = fetched(&data);
    assert!(
        read_by_homes <= unique + unique / 10,
        "{read_by_homes} for {unique}"
    );
    // Another reader, and the source is gone: all comes from memory. A home that is silent for long, here for want
    // of a processor, is passed over, so it may try a few times.
    let other = dataset(&cluster, &dir);
    let open = |name: &str| other.open(name.as_bytes()).unwrap();
    let opened: Vec<_> = files.iter().map(|(name, _)| open(name)).collect();
    std::fs::rename(dir.path().join("a"), dir.path().join("gone")).unwrap();
    wait_until("all of it is in memory", || {
        let whole = other.read_at(&opened[0], 0, files[0].1);
        let whole = cluster.nodes[0].runtime().block_on(whole);
        whole.is_ok_and(|whole| whole == pattern(0, files[0].1))
    });
    assert_eq!((fetched(&other), from_source(&other)), (0, 0));
}

/// Row D9: a file overwritten in place, with the same size, is another version; who has the old one open is told.
#[test]
fn d9_an_overwritten_file_is_never_mixed() {
    let dir = folder(&[("a", 2 * MIB)]);
    let cluster = cluster(2, 64 << 20);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let runtime = cluster.nodes[0].runtime();
    let file = data.open(b"a").unwrap();
    let first = runtime.block_on(data.read_at(&file, 0, 1000)).unwrap();
    assert!(first == pattern(0, 2 * MIB)[..1000]);
    write(&dir, "a", &pattern(9, 2 * MIB));
    // What is in memory is of the old version; what is not cannot be had any more.
    wait_until("what is in memory is read", || {
        let there = runtime.block_on(data.read_at(&file, 0, 1000));
        there.is_ok_and(|there| there == first)
    });
    let gone = runtime.block_on(data.read_at(&file, MIB as u64, 1000));
    assert!(matches!(gone, Err(SourceError::Changed { .. })), "{gone:?}");
    assert!(read(&cluster, &data, "a").unwrap() == pattern(9, 2 * MIB));
}

/// Rows D5 and D11: a node dies, the directory's majority too: reads go on, with right bytes.
#[test]
fn d11_reads_go_on_down_to_one_node_and_to_none() {
    let size = 8 * MIB;
    let dir = folder(&[("a", size), ("b", 9000)]);
    let mut cluster = cluster(3, 64 << 20);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let want = pattern(0, size);
    assert!(read(&cluster, &data, "a").unwrap() == want);
    cluster.nodes[2].kill();
    assert!(
        read(&cluster, &data, "a").unwrap() == want,
        "one node is dead"
    );
    held(&cluster);
    assert!(
        read(&cluster, &data, "a").unwrap() == want,
        "its buckets are adopted"
    );
    cluster.nodes[1].kill();
    let file = data.open(b"a").unwrap();
    let runtime = cluster.nodes[0].runtime();
    for at in (0..size).step_by(511_111) {
        let begun = Instant::now();
        let bytes = runtime
            .block_on(data.read_at(&file, at as u64, 8192))
            .unwrap();
        assert!(
            bytes == want[at..size.min(at + 8192)],
            "no majority, at {at}"
        );
        assert!(
            begun.elapsed() < Duration::from_secs(15),
            "{:?}",
            begun.elapsed()
        );
    }
    // A client keeps its runtime; the last node's is gone with it.
    let alone = tokio::runtime::Runtime::new().unwrap();
    let addresses = [cluster.nodes[0].addresses.native.to_string()];
    let data = alone.block_on(async {
        let client = Client::connect(&addresses, ClientOptions::default())
            .await
            .unwrap();
        let source = dir.path().to_str().unwrap();
        client.dataset(POOL, "data", source).await.unwrap()
    });
    cluster.nodes[0].kill();
    for at in [0, 3 * MIB, size - 8192] {
        let bytes = alone
            .block_on(data.read_at(&file, at as u64, 8192))
            .unwrap();
        assert!(bytes == want[at..at + 8192], "no node at all, at {at}");
    }
    // What no node ever had: the memory of a dead one may still be mapped here.
    let b = alone.block_on(data.read_at(&data.open(b"b").unwrap(), 0, 9000));
    assert!(b.unwrap() == pattern(1, 9000));
    assert!(from_source(&data) > 0);
}

/// Rows D6 and D7: spare memory holds copies, and a node that drains hands all over.
#[test]
fn d7_copies_fill_free_memory_and_a_drained_node_holds_nothing() {
    let size = 6 * MIB;
    let dir = folder(&[("a", size)]);
    let cluster = cluster(3, 64 << 20);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let file = data.open(b"a").unwrap();
    wait_until("all of it is in memory", || {
        assert!(read(&cluster, &data, "a").unwrap() == pattern(0, size));
        in_memory(&cluster, &file) == size as u64
    });
    let copies = |least: usize| {
        let map = cluster.nodes[0].map();
        let holdings = map
            .pool_named(POOL)
            .and_then(|p| p.holdings())
            .unwrap()
            .clone();
        holdings.buckets.iter().filter(|b| b.len() >= least).count()
    };
    wait_until("every bucket has a copy", || copies(2) == 64);
    let node: NodeId = cluster.nodes[1].id;
    cluster.nodes[0]
        .propose(&Change::Drain { node, on: true })
        .unwrap();
    wait_until("the drained node holds nothing", || {
        let map = cluster.nodes[0].map();
        let holdings = map
            .pool_named(POOL)
            .and_then(|p| p.holdings())
            .unwrap()
            .clone();
        assert!(
            holdings.buckets.iter().all(|b| !b.is_empty()),
            "never an orphan"
        );
        !holdings.buckets.iter().flatten().any(|h| h.node == node)
    });
    wait_until("it has given up its memory", || {
        keys(&cluster.nodes[1]).is_empty()
    });
    let left = in_memory(&cluster, &file);
    assert!(
        left >= size as u64 * 3 / 4,
        "{left} of {size} bytes are left"
    );
    assert!(read(&cluster, &data, "a").unwrap() == pattern(0, size));
}

/// Regression: what was loaded ahead under load was read around a slow home, and then in nobody's memory.
#[test]
fn d8_what_is_loaded_ahead_is_in_memory_however_slow_the_home() {
    let size = 6 * MIB;
    let dir = folder(&[("a", size)]);
    let cluster = cluster(2, 64 << 20);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let file = data.open(b"a").unwrap();
    // Longer than a reader would wait.
    cluster.nodes[1].pause(Duration::from_millis(400));
    let loading = tokio::runtime::Runtime::new().unwrap();
    loading.block_on(async {
        for at in (0..size).step_by(MIB) {
            assert_eq!(data.load(&file, at as u64, MIB).await.unwrap(), MIB as u64);
        }
    });
    std::fs::rename(dir.path().join("a"), dir.path().join("gone")).unwrap();
    let whole = cluster.nodes[0]
        .runtime()
        .block_on(data.read_at(&file, 0, size));
    assert!(whole.unwrap() == pattern(0, size));
}

/// A metric of all nodes together.
pub fn metric(cluster: &TestCluster, name: &str) -> u64 {
    let running = cluster.nodes.iter().filter(|c| !c.is_dead());
    running.map(|c| c.metric(name)).sum()
}

/// Changes a byte, in the memory of every node of this process, behind each place where these bytes lie. How many places.
fn flip(needle: &[u8]) -> usize {
    use std::os::unix::fs::FileExt;
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_blocks = |path: &std::path::Path| {
        let to = std::fs::read_link(path).unwrap_or_default();
        to.to_string_lossy().contains("staves-blocks")
    };
    let mut flipped = Vec::new();
    for path in fds.map(|fd| fd.path()).filter(|path| is_blocks(path)) {
        // Nodes of other tests come and go meanwhile.
        let open = std::fs::File::options().read(true).write(true).open(&path);
        let Ok(memory) = open else { continue };
        let len = memory.metadata().map_or(0, |m| m.len());
        let mut page = [0; 4096];
        for at in (0..len).step_by(page.len()) {
            if memory.read_exact_at(&mut page, at).is_ok() && page.starts_with(needle) {
                use std::os::unix::fs::MetadataExt;
                let of = (memory.metadata().map_or(0, |m| m.ino()), at);
                if !flipped.contains(&of) {
                    memory.write_all_at(&[page[100] ^ 2], at + 100).unwrap();
                    flipped.push(of);
                }
            }
        }
    }
    flipped.len()
}

/// Row D9: a bit that flips in memory is found though nobody reads it, never given to anybody, and fetched again.
#[test]
fn d9_a_flipped_bit_is_found_and_what_was_there_is_fetched_again() {
    let size = 3 * MIB;
    let dir = folder(&[("a", size)]);
    let want = pattern(77, size);
    write(&dir, "a", &want);
    let cluster = cluster(2, 48 << 20);
    let_it_age();
    let data = dataset(&cluster, &dir);
    assert!(read(&cluster, &data, "a").unwrap() == want);
    let needle = &want[MIB..MIB + 64];
    wait_until("the block is in memory", || flip(needle) > 0);
    wait_until("it is found", || {
        metric(&cluster, "staves_files_damaged_blocks_total") > 0
    });
    for _ in 0..3 {
        assert!(read(&cluster, &data, "a").unwrap() == want);
    }
    // The same at once, when a person asks.
    let map = cluster.nodes[0].map();
    let pool = map.pool_named(POOL).unwrap().id;
    wait_until("the block is in memory again, and found again", || {
        read(&cluster, &data, "a").unwrap();
        if flip(needle) == 0 {
            return false;
        }
        let damaged = cluster.nodes.iter().map(|node| {
            let mut from = 0;
            let mut damaged = 0;
            while from != CHECKED_ALL {
                let ask = Message::FileCheck(FileCheck { pool, from });
                let Message::FileChecked(found) = node.ask(&ask) else {
                    panic!("it does not check");
                };
                assert!(found.next > from);
                from = found.next;
                damaged += found.damaged;
            }
            damaged
        });
        damaged.sum::<u32>() > 0
    });
    assert!(read(&cluster, &data, "a").unwrap() == want);
}

/// The keys of the blocks that a node has in memory.
pub fn keys(node: &TestNode) -> Vec<FileKey> {
    let pool = node.map().pool_named(POOL).unwrap().id;
    let (mut keys, mut from) = (Vec::new(), 0);
    while from != CHECKED_ALL {
        let since = 0;
        let asked = node.ask(&Message::FileChanges(FileChanges { pool, since, from }));
        let Message::FileChangesAnswer(page) = asked else {
            panic!("it does not say what it has");
        };
        assert!(page.next > from);
        from = page.next;
        keys.extend(page.entries.into_iter().map(|entry| entry.key));
    }
    keys.retain(|key| key.parts != 0);
    keys
}

/// Bytes of a file that any node has in memory.
pub fn in_memory(cluster: &TestCluster, file: &OpenFile) -> u64 {
    let mut parts = std::collections::BTreeMap::<u32, u32>::new();
    for node in cluster.nodes.iter().filter(|c| !c.is_dead()) {
        let keys = keys(node);
        for key in keys.iter().filter(|key| key.file == file.id()) {
            *parts.entry(key.block).or_default() |= key.parts;
        }
    }
    let parts: u32 = parts.values().map(|parts| parts.count_ones()).sum();
    u64::from(parts) * (8 << 10)
}

fn pin(file: &OpenFile) -> Pin {
    let version = file.version();
    Pin {
        dataset: version.dataset.clone(),
        path: version.path.clone(),
        size: version.size,
        version: version.version.clone(),
    }
}

/// Pinned files are fetched without a reader, are not evicted by other reads, and come back when a node dies; more than
/// fits is refused with numbers.
#[test]
fn pinned_files_stay_in_memory_whatever_is_read_and_whoever_dies() {
    let (small, large) = (6 * MIB, 40 * MIB);
    let dir = folder(&[("pinned", small), ("other", large)]);
    let mut cluster = cluster(3, 8 << 20);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let (pinned, other) = (data.open(b"pinned").unwrap(), data.open(b"other").unwrap());
    let refused = cluster.nodes[0].propose(&Change::PinFiles(vec![pin(&other)]));
    let refused = refused.unwrap_err();
    assert!(
        refused.contains("40MiB") && refused.contains("18MiB"),
        "{refused}"
    );
    let change = Change::PinFiles(vec![pin(&pinned)]);
    cluster.nodes[0].propose(&change).unwrap();
    let whole = |cluster: &TestCluster| in_memory(cluster, &pinned) == small as u64;
    wait_until("it is fetched", || whole(&cluster));
    assert!(read(&cluster, &data, "other").unwrap() == pattern(1, large));
    // A bucket's home may have become another node meanwhile.
    wait_until("it is there still", || whole(&cluster));
    cluster.nodes[2].kill();
    wait_until("what the dead node held of it is fetched again", || {
        whole(&cluster)
    });
    let dataset = "data".to_owned();
    let paths = Vec::new();
    cluster.nodes[0]
        .propose(&Change::UnpinFiles { dataset, paths })
        .unwrap();
    wait_until("it is evicted like all else", || {
        read(&cluster, &data, "other").unwrap();
        !whole(&cluster)
    });
}

/// Row D6: a node that was killed and comes back holds buckets again, with what is in them.
#[test]
fn d6_a_node_that_comes_back_takes_its_share() {
    let size = 6 * MIB;
    let dir = folder(&[("a", size)]);
    let mut cluster = cluster(3, 48 << 20);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let want = pattern(0, size);
    assert!(read(&cluster, &data, "a").unwrap() == want);
    let id = cluster.nodes[2].id;
    cluster.nodes[2].kill();
    held(&cluster);
    assert!(read(&cluster, &data, "a").unwrap() == want);
    let config = config(Some(&cluster.folders[2]), &[&cluster.nodes[0]]);
    cluster.nodes[2] = TestNode::start(config);
    assert_eq!(cluster.nodes[2].id, id);
    let share = |cluster: &TestCluster| {
        let map = cluster.nodes[0].map();
        let (pool, node) = (map.pool_named(POOL).unwrap(), &map.nodes[&id]);
        let buckets = 0..64;
        let holdings = pool.holdings().unwrap();
        let mine = buckets.filter(|b| holdings.place(*b, id, node.incarnation).is_some());
        mine.count()
    };
    // A bucket each quarter of a second.
    wait_until("it holds a third of the buckets", || {
        share(&cluster) >= 64 / 3
    });
    let has = || !keys(&cluster.nodes[2]).is_empty();
    wait_until("it has bytes of the file", has);
    assert!(read(&cluster, &data, "a").unwrap() == want);
}

/// However many blocks a bucket has, nobody is told of them in one message; and whoever takes a copy of it gets them all.
#[test]
fn a_bucket_of_many_blocks_is_told_and_copied_by_pages() {
    let mut cluster = cluster_of(1, 64 << 20, 1);
    let pool = cluster.nodes[0].map().pool_named(POOL).unwrap().id;
    let (block_bytes, blocks) = (256 << 10, FILE_KEYS_MAX as u64 + 500);
    cluster.nodes[0].runtime().block_on(async {
        let identity = staves_net::Identity::admin(staves_model::ClusterId(0));
        let address = cluster.nodes[0].addresses.native.to_string();
        let options = staves_net::Options::default();
        let connection = staves_net::Connection::open(&address, &identity, &options).await;
        let connection = connection.expect("it takes connections");
        for block in 0..blocks {
            let put = Message::FilePut(FilePut {
                pool,
                file: FileId { high: 5, low: 7 },
                size: blocks * block_bytes,
                from: block * block_bytes,
                bytes: vec![block as u8; 8 << 10].into(),
                forwarded: false,
            });
            let until = Instant::now() + Duration::from_secs(20);
            let done = connection.call(&put, until).await;
            assert_eq!(done.expect("it answers"), Message::Done);
        }
    });
    let page = |bucket, before| {
        let ask = FileKeys {
            pool,
            bucket,
            before,
        };
        cluster.nodes[0].ask(&Message::FileKeys(ask))
    };
    let (mut told, mut before) = (std::collections::BTreeSet::new(), FROM_LAST);
    while before > 0 {
        let Message::FileKeysAnswer(page) = page(0, before) else {
            panic!("it does not say what it has");
        };
        assert!(page.holds && page.keys.len() <= FILE_KEYS_MAX && page.next < before);
        told.extend(page.keys.iter().map(|key| key.block));
        before = page.next;
    }
    assert_eq!(told.len() as u64, blocks);
    assert!(matches!(page(1, FROM_LAST), Message::Error(_)), "no bucket");
    let dir = tempfile::tempdir().unwrap();
    let other = TestNode::start(config(Some(&dir), &[&cluster.nodes[0]]));
    wait_until("another node has a copy of all", || {
        keys(&other).len() as u64 == blocks
    });
    cluster.nodes.push(other);
}

/// Regression: who had a dataset open read it from its source for ever once its pool had been deleted and made anew.
#[test]
fn a_pool_made_anew_under_its_name_is_found_again() {
    let size = 3 * MIB;
    let dir = folder(&[("a", size)]);
    let cluster = cluster(2, 48 << 20);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let file = data.open(b"a").unwrap();
    assert!(read(&cluster, &data, "a").unwrap() == pattern(0, size));
    let name = POOL.into();
    let delete = Change::DeletePool { name };
    cluster.nodes[0].propose(&delete).unwrap();
    wait_until("it is read from its source", || {
        let before = data.figures().source_bytes.load(Ordering::Relaxed);
        assert!(read(&cluster, &data, "a").unwrap() == pattern(0, size));
        data.figures().source_bytes.load(Ordering::Relaxed) - before == size as u64
    });
    let cluster = with_files(cluster, 48 << 20, 64);
    wait_until("the new pool has it", || {
        assert!(read(&cluster, &data, "a").unwrap() == pattern(0, size));
        in_memory(&cluster, &file) == size as u64
    });
    wait_until("it is read where it lies", || {
        let before = data.figures().local_bytes.load(Ordering::Relaxed);
        assert!(read(&cluster, &data, "a").unwrap() == pattern(0, size));
        data.figures().local_bytes.load(Ordering::Relaxed) > before
    });
    let map = cluster.nodes[0].map();
    let (pool, known) = map.dataset("data").expect("homes know its source");
    assert_eq!((pool.name.as_str(), pool.id), (POOL, data.pool().0));
    assert_eq!(known.source, dir.path().to_str().unwrap());
}

/// Regression: one name that a folder refused, such as a link, kept a home from the whole dataset for ten seconds, and all mounts
/// read the source themselves.
#[test]
fn what_a_folder_refuses_is_one_name_and_not_the_dataset() {
    let dir = folder(&[("a", MIB)]);
    std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
    let cluster = cluster(1, 48 << 20);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let file = data.open(b"a").unwrap();
    let link = data.version(b"link", MIB as u64, file.version().version.clone());
    let fetch = |version: &staves_client::FileVersion| {
        let read = FileRead {
            pool: cluster.nodes[0].map().pool_named(POOL).unwrap().id,
            file: version.id(),
            from: 0,
            len: 10,
        };
        let asked = cluster.nodes[0].ask(&Message::FileFetch(FileFetch {
            read,
            size: version.size,
            dataset: version.dataset.clone(),
            path: version.path.clone().into(),
            version: version.version.clone(),
        }));
        match asked {
            Message::FileBytes(FileBytes { bytes }) => bytes,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(fetch(&link), None);
    let bytes = fetch(file.version()).expect("the home reads on");
    assert_eq!(bytes, pattern(0, MIB)[..10]);
}

/// A web server that gives any file as ten bytes in one version, and refuses those whose name begins with `no`.
fn half_open_server() -> std::net::SocketAddr {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = |mut stream: std::net::TcpStream| -> std::io::Result<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let refuses = String::from_utf8_lossy(&head).contains("/no");
        let answer: &[u8] = match refuses {
            true => b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            false => {
                b"HTTP/1.1 206 Partial Content\r\nETag: \"one\"\r\nContent-Range: bytes 0-9/10\r\n\
                Last-Modified: Wed, 01 Jan 2020 00:00:00 GMT\r\nContent-Length: 10\r\nConnection: close\r\n\r\n0123456789"
            }
        };
        stream.write_all(answer)
    };
    // It ends with the process: nobody waits for it.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

/// Regression: an object that a server refused kept a home from the whole dataset for 10 s.
#[test]
fn what_a_server_refuses_is_one_file_until_it_refuses_all() {
    let cluster = cluster(1, 48 << 20);
    let change = Change::SetDataset {
        pool: POOL.into(),
        name: "web".into(),
        source: format!("http://{}/data", half_open_server()),
    };
    cluster.nodes[0].propose(&change).unwrap();
    let fetch = |path: &str| {
        let version = staves_client::FileVersion {
            dataset: "web".into(),
            path: path.into(),
            size: 10,
            version: "\"one\"".into(),
        };
        let read = FileRead {
            pool: cluster.nodes[0].map().pool_named(POOL).unwrap().id,
            file: version.id(),
            from: 0,
            len: 10,
        };
        let asked = cluster.nodes[0].ask(&Message::FileFetch(FileFetch {
            read,
            size: version.size,
            dataset: version.dataset,
            path: version.path.into(),
            version: version.version,
        }));
        match asked {
            Message::FileBytes(FileBytes { bytes }) => bytes,
            other => panic!("{other:?}"),
        }
    };
    wait_until("it follows the map", || fetch("first").is_some());
    for file in 0..20 {
        assert_eq!(fetch(&format!("no{file}")), None);
        let bytes = fetch(&format!("a{file}")).expect("the home reads on");
        assert_eq!(&bytes[..], b"0123456789");
    }
    let mut next = 20..;
    wait_until("who is refused all is not sent there again at once", || {
        let mut files = next.by_ref().take(20);
        assert!(files.all(|file| fetch(&format!("no{file}")).is_none()));
        fetch(&format!("a{}", next.start)).is_none()
    });
}

/// A pool that is deleted takes no memory any more, though a mount on the machine has it mapped.
#[test]
fn a_deleted_pool_gives_its_memory_back_under_a_mount() {
    use std::os::unix::fs::MetadataExt;
    let size = 8 * MIB;
    let dir = folder(&[("a", size)]);
    let cluster = cluster(1, 64 << 20);
    let_it_age();
    let data = dataset(&cluster, &dir);
    assert!(read(&cluster, &data, "a").unwrap() == pattern(0, size));
    let (map, node) = (cluster.nodes[0].map(), cluster.nodes[0].id);
    let (pool, life) = (
        map.pool_named(POOL).unwrap().id,
        map.nodes[&node].incarnation,
    );
    let given = staves_files::attach::attach(map.cluster, node, life, pool);
    let (memory, _stream) = given.unwrap().expect("its memory");
    let memory = std::fs::File::from(memory);
    let there = || memory.metadata().unwrap().blocks() * 512;
    wait_until("the file is in memory", || there() >= size as u64);
    let name = POOL.to_owned();
    cluster.nodes[0]
        .propose(&Change::DeletePool { name })
        .unwrap();
    // What is left is the table, and pages of 2 MiB where the machine gives such.
    wait_until("its memory went back", || there() <= size as u64 / 2);
}
