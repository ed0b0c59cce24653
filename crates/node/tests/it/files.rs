//! Datasets against real nodes: read once from the source, then from memory, whoever dies meanwhile.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use staves_client::{Client, ClientOptions, Dataset, SourceError};
use staves_model::{Change, Holdings, Medium, NodeId, PoolKind, Scheme};
use tempfile::TempDir;

use crate::town::{Town, eventually};

const POOL: &str = "files";
const MIB: usize = 1 << 20;

/// A folder whose files changed a while ago.
fn folder(files: &[(&str, usize)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for (i, (name, size)) in files.iter().enumerate() {
        write(&dir, name, &pattern(i as u64, *size));
    }
    dir
}

fn write(dir: &TempDir, name: &str, bytes: &[u8]) {
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).expect("a file");
    // Only the times of change that programs can set: the rest comes with age.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(60))
        .unwrap();
}

/// Files count as changing until two seconds after their last change.
fn let_it_age() {
    std::thread::sleep(Duration::from_millis(2100));
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let word = |i: u64| (i ^ seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 13;
    let words = (0..len.div_ceil(8) as u64).flat_map(|i| word(i).to_le_bytes());
    words.take(len).collect()
}

fn town(nodes: usize, budget: u64) -> Town {
    let town = Town::found(nodes);
    let change = Change::CreatePool {
        name: POOL.into(),
        kind: PoolKind::Files(Holdings::default()),
        scheme: Scheme { m: 1, k: 0 },
        medium: Medium::Ram,
        node_budget_bytes: budget,
        buckets: 64,
        may_start_empty: true,
    };
    town.citizens[0].propose(&change).expect("a pool");
    held(&town);
    town
}

/// Until every bucket has a holder that runs.
fn held(town: &Town) {
    eventually("every bucket is held", || {
        let running = town.citizens.iter().filter(|c| !c.is_dead());
        running.into_iter().all(|c| {
            let map = c.map();
            let pool = map.pool_named(POOL).and_then(|p| p.holdings());
            pool.is_some_and(|h| h.buckets.iter().all(|b| !b.is_empty()))
        })
    });
}

fn dataset(town: &Town, dir: &TempDir) -> Dataset {
    let running = town.citizens.iter().filter(|c| !c.is_dead());
    let addresses: Vec<String> = running.map(|c| c.addresses.native.to_string()).collect();
    let first = town.citizens.iter().find(|c| !c.is_dead()).expect("a node");
    first.runtime().block_on(async {
        let client = Client::connect(&addresses, ClientOptions::default()).await;
        let client = client.expect("a client");
        let source = dir.path().to_str().expect("a path");
        client
            .dataset(POOL, "data", source)
            .await
            .expect("a dataset")
    })
}

fn read(town: &Town, data: &Dataset, name: &str) -> Result<Vec<u8>, SourceError> {
    let first = town.citizens.iter().find(|c| !c.is_dead()).expect("a node");
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

fn from_source(data: &Dataset) -> u64 {
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
    let town = town(3, 64 << 20);
    let_it_age();
    let data = dataset(&town, &dir);
    for (i, (name, size)) in files.iter().enumerate() {
        assert!(
            read(&town, &data, name).unwrap() == pattern(i as u64, *size),
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
    let other = dataset(&town, &dir);
    let open = |name: &str| other.open(name.as_bytes()).unwrap();
    let opened: Vec<_> = files.iter().map(|(name, _)| open(name)).collect();
    std::fs::rename(dir.path().join("a"), dir.path().join("gone")).unwrap();
    eventually("all of it is in memory", || {
        let whole = other.read_at(&opened[0], 0, files[0].1);
        let whole = town.citizens[0].runtime().block_on(whole);
        whole.is_ok_and(|whole| whole == pattern(0, files[0].1))
    });
    assert_eq!((fetched(&other), from_source(&other)), (0, 0));
}

/// Row D9: a file overwritten in place, with the same size, is another version; who has the old one open is told.
#[test]
fn d9_an_overwritten_file_is_never_mixed() {
    let dir = folder(&[("a", 2 * MIB)]);
    let town = town(2, 64 << 20);
    let_it_age();
    let data = dataset(&town, &dir);
    let runtime = town.citizens[0].runtime();
    let file = data.open(b"a").unwrap();
    let first = runtime.block_on(data.read_at(&file, 0, 1000)).unwrap();
    assert!(first == pattern(0, 2 * MIB)[..1000]);
    write(&dir, "a", &pattern(9, 2 * MIB));
    // What is in memory is of the old version; what is not cannot be had any more.
    eventually("what is in memory is read", || {
        let there = runtime.block_on(data.read_at(&file, 0, 1000));
        there.is_ok_and(|there| there == first)
    });
    let gone = runtime.block_on(data.read_at(&file, MIB as u64, 1000));
    assert!(matches!(gone, Err(SourceError::Changed { .. })), "{gone:?}");
    assert!(read(&town, &data, "a").unwrap() == pattern(9, 2 * MIB));
}

/// Rows D5 and D11: a node dies, the directory's majority too: reads go on, with right bytes.
#[test]
fn d11_reads_go_on_down_to_one_node_and_to_none() {
    let size = 8 * MIB;
    let dir = folder(&[("a", size)]);
    let mut town = town(3, 64 << 20);
    let_it_age();
    let data = dataset(&town, &dir);
    let want = pattern(0, size);
    assert!(read(&town, &data, "a").unwrap() == want);
    town.citizens[2].kill();
    assert!(read(&town, &data, "a").unwrap() == want, "one node is dead");
    held(&town);
    assert!(
        read(&town, &data, "a").unwrap() == want,
        "its buckets are adopted"
    );
    town.citizens[1].kill();
    let file = data.open(b"a").unwrap();
    let runtime = town.citizens[0].runtime();
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
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
    }
    // A client keeps its runtime; the last node's is gone with it.
    let alone = tokio::runtime::Runtime::new().unwrap();
    let addresses = [town.citizens[0].addresses.native.to_string()];
    let data = alone.block_on(async {
        let client = Client::connect(&addresses, ClientOptions::default())
            .await
            .unwrap();
        let source = dir.path().to_str().unwrap();
        client.dataset(POOL, "data", source).await.unwrap()
    });
    town.citizens[0].kill();
    for at in [0, 3 * MIB, size - 8192] {
        let bytes = alone
            .block_on(data.read_at(&file, at as u64, 8192))
            .unwrap();
        assert!(bytes == want[at..at + 8192], "no node at all, at {at}");
    }
    assert!(from_source(&data) > 0);
}

/// Rows D6 and D7: spare memory holds copies, and a node that drains hands all over.
#[test]
fn d7_copies_fill_free_memory_and_a_drained_node_holds_nothing() {
    let size = 6 * MIB;
    let dir = folder(&[("a", size)]);
    let town = town(3, 64 << 20);
    let_it_age();
    let data = dataset(&town, &dir);
    assert!(read(&town, &data, "a").unwrap() == pattern(0, size));
    let copies = |least: usize| {
        let map = town.citizens[0].map();
        let holdings = map
            .pool_named(POOL)
            .and_then(|p| p.holdings())
            .unwrap()
            .clone();
        holdings.buckets.iter().filter(|b| b.len() >= least).count()
    };
    eventually("every bucket has a copy", || copies(2) == 64);
    let node: NodeId = town.citizens[1].id;
    town.citizens[0]
        .propose(&Change::Drain { node, on: true })
        .unwrap();
    eventually("the drained node holds nothing", || {
        let map = town.citizens[0].map();
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
    let fetched_before = fetched(&data) + from_source(&data);
    assert!(read(&town, &data, "a").unwrap() == pattern(0, size));
    let again = fetched(&data) + from_source(&data) - fetched_before;
    assert!(
        again <= size as u64 / 4,
        "{again} bytes came from the source again"
    );
}

/// Regression: what was loaded ahead under load was read around a slow home, and then in nobody's memory.
#[test]
fn d8_what_is_loaded_ahead_is_in_memory_however_slow_the_home() {
    let size = 6 * MIB;
    let dir = folder(&[("a", size)]);
    let town = town(2, 64 << 20);
    let_it_age();
    let data = dataset(&town, &dir);
    let file = data.open(b"a").unwrap();
    // Longer than a reader would wait.
    town.citizens[1].pause(Duration::from_millis(400));
    let loading = tokio::runtime::Runtime::new().unwrap();
    loading.block_on(async {
        for at in (0..size).step_by(MIB) {
            assert_eq!(data.load(&file, at as u64, MIB).await.unwrap(), MIB as u64);
        }
    });
    std::fs::rename(dir.path().join("a"), dir.path().join("gone")).unwrap();
    let whole = town.citizens[0]
        .runtime()
        .block_on(data.read_at(&file, 0, size));
    assert!(whole.unwrap() == pattern(0, size));
}
