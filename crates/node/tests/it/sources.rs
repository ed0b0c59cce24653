//! Datasets in buckets against real nodes and a real object store.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use staves_client::{Client, ClientOptions, Dataset, SourceError};
use staves_model::{Change, Holdings, Medium, PoolKind, Scheme};

use staves_testkit::servers;

use staves_testkit::cluster::TestCluster;
use staves_testkit::wait_until;

const MIB: usize = 1 << 20;

fn cluster(nodes: usize) -> TestCluster {
    let cluster = TestCluster::start(nodes);
    let change = Change::CreatePool {
        name: "files".into(),
        kind: PoolKind::Files(Holdings::default()),
        scheme: Scheme { m: 1, k: 0 },
        medium: Medium::Ram,
        node_budget_bytes: 64 << 20,
        buckets: 64,
        may_start_empty: true,
    };
    cluster.nodes[0].propose(&change).expect("a pool");
    wait_until("every bucket is held", || {
        cluster.nodes.iter().all(|c| {
            let map = c.map();
            let pool = map.pool_named("files").and_then(|p| p.holdings());
            pool.is_some_and(|h| h.buckets.iter().all(|b| !b.is_empty()))
        })
    });
    cluster
}

fn dataset(cluster: &TestCluster, source: &str) -> Dataset {
    let address = cluster.nodes[0].addresses.native.to_string();
    cluster.nodes[0].runtime().block_on(async {
        let client = Client::connect(&[address], ClientOptions::default()).await;
        let client = client.expect("a client");
        let data = client.dataset("files", "data", source).await;
        data.expect("a dataset")
    })
}

fn read(cluster: &TestCluster, data: &Dataset, path: &str) -> Result<Vec<u8>, SourceError> {
    let file = data.open(path.as_bytes())?;
    cluster.nodes[0].runtime().block_on(async {
        let mut all = Vec::new();
        while (all.len() as u64) < file.size() {
            all.extend_from_slice(&data.read_at(&file, all.len() as u64, 700_001).await?);
        }
        Ok(all)
    })
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let word = |i: u64| (i ^ seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 13;
    let words = (0..len.div_ceil(8) as u64).flat_map(|i| word(i).to_le_bytes());
    words.take(len).collect()
}

/// Bytes that nodes read from sources.
fn fetched(data: &Dataset) -> u64 {
    let figures = data.figures();
    figures.fetched_bytes.load(Ordering::Relaxed) + figures.source_bytes.load(Ordering::Relaxed)
}

/// Rows D1, D8 and D9: a bucket is read through the cluster, each byte once; what is in memory outlives the store, and
/// what is not is an error soon.
#[test]
fn d8_a_bucket_is_read_once_and_outlives_its_store() {
    let Some(mut store) = servers::object_store() else {
        return;
    };
    store.make_bucket("genomes");
    let files = [
        ("a.fa", 3 * MIB + 12_345),
        ("deep/er/b", 77),
        ("c", 300_000),
    ];
    for (seed, (path, len)) in (0..).zip(files) {
        store.put(&format!("genomes/hg/{path}"), &bytes(seed, len));
    }
    store.put("genomes/hg/unread", &bytes(9, 2 * MIB));
    let cluster = cluster(3);
    let source = format!("s3://genomes/hg#endpoint=http://127.0.0.1:{}", store.port);
    let data = dataset(&cluster, &source);
    for (seed, (path, len)) in (0..).zip(files) {
        assert!(
            read(&cluster, &data, path).unwrap() == bytes(seed, len),
            "{path}"
        );
    }
    let unique: usize = files.iter().map(|(_, len)| len).sum();
    // A home that waits for a processor is passed over, so that some may come twice.
    assert!(
        fetched(&data) <= 2 * unique as u64,
        "{} for {unique}",
        fetched(&data)
    );
    let other = dataset(&cluster, &source);
    wait_until("all of it comes from memory", || {
        let before = fetched(&other);
        let read = (0..).zip(files).all(|(seed, (path, len))| {
            read(&cluster, &other, path).is_ok_and(|read| read == bytes(seed, len))
        });
        assert!(read);
        fetched(&other) == before
    });
    let opened: Vec<_> = files
        .iter()
        .map(|(path, _)| other.open(path.as_bytes()).unwrap())
        .collect();
    let unread = other.open(b"unread").unwrap();
    store.kill();
    wait_until("what is in memory needs no store", || {
        (0..)
            .zip(&opened)
            .zip(files)
            .all(|((seed, file), (_, len))| {
                let read = other.read_at(file, 0, len.min(MIB));
                let read = cluster.nodes[0].runtime().block_on(read);
                read.is_ok_and(|read| read == bytes(seed, len)[..len.min(MIB)])
            })
    });
    let began = Instant::now();
    let gone = cluster.nodes[0]
        .runtime()
        .block_on(other.read_at(&unread, 0, 1000));
    let error = gone.unwrap_err();
    assert!(matches!(error, SourceError::Unreachable { .. }), "{error}");
    assert!(
        error.to_string().contains("s3://genomes/hg/unread"),
        "{error}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
}

/// Row D9: an object that is overwritten while it is read is never mixed, and is seen by who opens it then.
#[test]
fn d9_an_object_overwritten_in_the_middle_is_never_mixed() {
    let Some(store) = servers::object_store() else {
        return;
    };
    store.make_bucket("bucket");
    let (one, two) = (bytes(1, 3 * MIB), bytes(2, 3 * MIB));
    store.put("bucket/f", &one);
    let cluster = cluster(2);
    let data = dataset(
        &cluster,
        &format!("s3://bucket#endpoint=http://127.0.0.1:{}", store.port),
    );
    let file = data.open(b"f").unwrap();
    let runtime = cluster.nodes[0].runtime();
    let first = runtime.block_on(data.read_at(&file, 0, MIB)).unwrap();
    assert!(first == one[..MIB]);
    store.put("bucket/f", &two);
    // In memory, or not any more: of the old version, or an error.
    match runtime.block_on(data.read_at(&file, 0, MIB)) {
        Ok(again) => assert!(again == one[..MIB]),
        Err(error) => assert!(matches!(error, SourceError::Changed { .. }), "{error}"),
    }
    let rest = runtime.block_on(data.read_at(&file, MIB as u64, 2 * MIB));
    assert!(
        matches!(rest, Err(SourceError::Changed { .. })),
        "a part that was never read"
    );
    assert!(
        read(&cluster, &data, "f").unwrap() == two,
        "whoever opens it now"
    );
}
