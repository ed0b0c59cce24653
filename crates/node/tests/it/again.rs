//! Blocks of files that a lost node alone had are fetched again, by themselves; and nothing else is.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use staves_client::OpenFile;
use staves_model::{Change, NodeId, NodeState};
use staves_wire::files::{FileChanges, FileFetch, FileLost, FileLostAnswer, FileNamed, FileRead};
use staves_wire::{ErrorCode, Message};

use crate::files::{
    MIB, POOL, cluster_of, dataset, dataset_of, folder, from_source, held, in_memory, keys,
    let_it_age, metric, pattern, read, with_files, write,
};
use staves_testkit::cluster::{Parse, TestCluster, TestNode};
use staves_testkit::wait_until;

const BUCKETS: u32 = 256;
const FETCHED: &str = "staves_files_fetched_bytes_total";
const AGAIN: &str = "staves_files_again_bytes_total";
const LOSSES: &str = "staves_files_losses_total";
const LOST: &str = "staves_files_lost_bytes";
const REMEMBERED: &str = "staves_files_remembered_blocks";
const REMEMBERED_BYTES: &str = "staves_files_remembered_bytes";
const PART: u64 = 8 << 10;

/// Nodes that make no copies: what one alone has, it alone has for as long as a test needs it.
fn without_copies(nodes: usize) -> TestCluster {
    let cluster = TestCluster::start_with(nodes, |_, config| config.files_copies = false);
    with_files(cluster, 64 << 20, BUCKETS)
}

/// By block, the parts of a file that a node has.
fn parts(node: &TestNode, file: &OpenFile) -> BTreeMap<u32, u32> {
    let keys = keys(node).into_iter();
    let keys = keys.filter(|key| key.file == file.id());
    keys.map(|key| (key.block, key.parts)).collect()
}

/// Bytes of a file that these have and no other.
fn alone(cluster: &TestCluster, file: &OpenFile, these: &[usize]) -> u64 {
    let mut others = BTreeMap::<u32, u32>::new();
    let mut theirs = BTreeMap::<u32, u32>::new();
    for (at, node) in cluster.nodes.iter().enumerate() {
        let all = if these.contains(&at) {
            &mut theirs
        } else {
            &mut others
        };
        for (block, parts) in parts(node, file) {
            *all.entry(block).or_default() |= parts;
        }
    }
    let left = |(block, parts): (&u32, &u32)| parts & !others.get(block).copied().unwrap_or(0);
    let parts: u32 = theirs.iter().map(left).map(u32::count_ones).sum();
    u64::from(parts) * PART
}

/// Until each node remembers what the one before it has, to the last part.
fn remembered(cluster: &TestCluster) {
    let ids: BTreeMap<NodeId, usize> = (0..)
        .zip(&cluster.nodes)
        .map(|(at, c)| (c.id, at))
        .collect();
    let order: Vec<usize> = ids.into_values().collect();
    wait_until("each node remembers what its neighbour has", || {
        (0..order.len()).all(|i| {
            let before = &cluster.nodes[order[i]];
            let after = &cluster.nodes[order[(i + 1) % order.len()]];
            let keys = keys(before);
            let parts: u32 = keys.iter().map(|key| key.parts.count_ones()).sum();
            after.metric(REMEMBERED) == keys.len() as u64
                && after.metric(REMEMBERED_BYTES) == u64::from(parts) * PART
        })
    });
}

/// Rows D5 and D10: a node is killed, and nobody reads. What it alone had is fetched again, once, and nothing else.
#[test]
fn d5_what_only_a_dead_node_had_is_fetched_again_without_a_reader() {
    let size = 24 * MIB;
    let dir = folder(&[("other", MIB)]);
    std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
    write(&dir, "a/b/c", &pattern(0, size));
    let mut cluster = without_copies(3);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let file = data.open(b"a/b/c").unwrap();
    assert!(read(&cluster, &data, "a/b/c").unwrap() == pattern(0, size));
    wait_until("all of it is in memory", || {
        read(&cluster, &data, "a/b/c").unwrap();
        in_memory(&cluster, &file) == size as u64
    });
    remembered(&cluster);
    let lost = alone(&cluster, &file, &[2]);
    assert!(lost > 0, "it has something that no other has");
    let fetched = |cluster: &TestCluster| -> u64 {
        let living = cluster.nodes[..2].iter();
        living.map(|node| node.metric(FETCHED)).sum()
    };
    let before = fetched(&cluster);
    cluster.nodes[2].kill();
    wait_until("all of it is in memory again", || {
        in_memory(&cluster, &file) == size as u64
    });
    wait_until("the loss is seen to", || metric(&cluster, LOSSES) == 1);
    let (fetched, again) = (fetched(&cluster) - before, metric(&cluster, AGAIN));
    // Copies that were being made when it was counted may have come in time.
    assert!(
        fetched == again && again <= lost,
        "{fetched}, {again} of {lost}"
    );
    assert!(again * 2 > lost, "{again} of {lost}");
    assert_eq!(metric(&cluster, LOST), 0);
    held(&cluster);
    wait_until("it is read from memory", || {
        let were = metric(&cluster, FETCHED) + from_source(&data);
        assert!(read(&cluster, &data, "a/b/c").unwrap() == pattern(0, size));
        metric(&cluster, FETCHED) + from_source(&data) == were
    });
}

/// Row D6: a node that was drained had nothing that others have not, and nothing is fetched for it.
#[test]
fn d6_nothing_is_fetched_after_a_drain() {
    let size = 8 * MIB;
    let dir = folder(&[("a", size)]);
    let mut cluster = cluster_of(3, 64 << 20, 32);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let file = data.open(b"a").unwrap();
    assert!(read(&cluster, &data, "a").unwrap() == pattern(0, size));
    let node = cluster.nodes[2].id;
    let drain = Change::Drain { node, on: true };
    cluster.nodes[0].propose(&drain).unwrap();
    wait_until("the drained node has nothing", || {
        parts(&cluster.nodes[2], &file).is_empty()
    });
    remembered(&cluster);
    let fetched = |cluster: &TestCluster| {
        cluster.nodes[..2]
            .iter()
            .map(|c| c.metric(FETCHED))
            .sum::<u64>()
    };
    let before = (fetched(&cluster), in_memory(&cluster, &file));
    cluster.nodes[2].leave();
    wait_until("it is gone", || {
        let map = cluster.nodes[0].map();
        map.nodes
            .get(&node)
            .is_none_or(|n| n.state != NodeState::Up)
    });
    // As long as it would take to begin.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(metric(&cluster, AGAIN), 0);
    assert_eq!(fetched(&cluster), before.0);
    assert_eq!(in_memory(&cluster, &file), before.1);
}

/// Blocks that only the stopping node has are copied from its memory before it goes, and are not fetched again.
#[test]
fn d6_who_stops_has_its_files_copied_first() {
    let size = 24 * MIB;
    let dir = folder(&[("a", size)]);
    let cluster = TestCluster::start_with(3, |_, config| {
        config.stop_ms = "300s".parse_millis();
        // Others would have copies of all in a while.
        config.files_copies = false;
    });
    // The cache would be handed over anyhow.
    let name = "cache".into();
    cluster.nodes[0]
        .propose(&Change::DeletePool { name })
        .unwrap();
    let mut cluster = with_files(cluster, 64 << 20, 512);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let file = data.open(b"a").unwrap();
    wait_until("all of it is in memory", || {
        read(&cluster, &data, "a").unwrap();
        in_memory(&cluster, &file) == size as u64
    });
    remembered(&cluster);
    let lost = alone(&cluster, &file, &[2]);
    assert!(lost > 0, "it has something that no other has");
    cluster.nodes[2].leave();
    wait_until("all of it is in memory without it", || {
        in_memory(&cluster, &file) == size as u64
    });
    let again = metric(&cluster, AGAIN);
    assert!(again * 2 < lost, "{again} of {lost} were fetched again");
}

/// Regression: a node that stood still and was taken for dead let go of all that it had of files, and it was fetched again; where the
/// source was gone, it was lost.
#[test]
fn d5_who_was_taken_for_dead_gives_back_what_only_it_has() {
    let size = 24 * MIB;
    let dir = folder(&[("a", size)]);
    let cluster = without_copies(3);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let file = data.open(b"a").unwrap();
    wait_until("all of it is in memory", || {
        read(&cluster, &data, "a").unwrap();
        in_memory(&cluster, &file) == size as u64
    });
    let lost = alone(&cluster, &file, &[2]);
    assert!(lost > 0, "it has something that no other has");
    std::fs::remove_file(dir.path().join("a")).unwrap();
    let sleeper = &cluster.nodes[2];
    let is_up = || cluster.nodes[0].map().nodes[&sleeper.id].state == NodeState::Up;
    sleeper.pause(Duration::from_secs(8));
    wait_until("it is taken for dead", || !is_up());
    wait_until("it is back", is_up);
    wait_until("the others have all of it", || {
        in_memory(&cluster, &file) == size as u64 && alone(&cluster, &file, &[2]) == 0
    });
}

/// The source is gone when the node dies: nothing comes of it, and it ends.
#[test]
fn a_source_that_is_gone_ends_it() {
    let size = 24 * MIB;
    let dir = folder(&[("a", size)]);
    let mut cluster = without_copies(3);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let file = data.open(b"a").unwrap();
    assert!(read(&cluster, &data, "a").unwrap() == pattern(0, size));
    remembered(&cluster);
    let lost = alone(&cluster, &file, &[2]);
    std::fs::remove_file(dir.path().join("a")).unwrap();
    cluster.nodes[2].kill();
    wait_until("the loss is seen to", || metric(&cluster, LOSSES) == 1);
    assert_eq!((metric(&cluster, AGAIN), metric(&cluster, LOST)), (0, 0));
    assert!(in_memory(&cluster, &file) >= size as u64 - lost);
}

/// Regression: after a dataset of which no home could fetch anything, the next one was given up as well.
#[test]
fn a_dataset_that_cannot_be_fetched_says_nothing_of_the_next() {
    use std::os::unix::fs::PermissionsExt;
    // More stretches than are tried in vain.
    let (files, size) = (400, 24 * MIB);
    let (closed, open) = (folder(&[]), folder(&[("a", size)]));
    let below = closed.path().join("below");
    std::fs::create_dir(&below).unwrap();
    let name = |at: usize| format!("below/{at}");
    for at in 0..files {
        write(&closed, &name(at), &pattern(at as u64, 100));
    }
    let mut cluster = without_copies(3);
    let_it_age();
    let first = dataset(&cluster, &closed);
    let next = dataset_of(&cluster, &open, "next");
    for at in 0..files {
        read(&cluster, &first, &name(at)).unwrap();
    }
    let file = next.open(b"a").unwrap();
    wait_until("all of it is in memory", || {
        read(&cluster, &next, "a").unwrap();
        in_memory(&cluster, &file) == size as u64
    });
    remembered(&cluster);
    let has = keys(&cluster.nodes[2]).len();
    assert!(has > 100, "{has} blocks");
    assert!(alone(&cluster, &file, &[2]) > 0, "and some of the next one");
    // The files are what they were, and their names are found; but no node may read them for others.
    let mode = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(&below, mode).unwrap();
    cluster.nodes[2].kill();
    wait_until("all of the next one is in memory again", || {
        in_memory(&cluster, &file) == size as u64
    });
}

/// Two nodes die together, which no neighbour of each other: what both had comes back, by way of those that remember.
#[test]
fn d5_a_second_death_in_the_middle_is_seen_to_as_well() {
    let size = 24 * MIB;
    let dir = folder(&[("a", size)]);
    let mut cluster = without_copies(4);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let file = data.open(b"a").unwrap();
    // A mount that read beside a slow home gives it the bytes, and waits for nothing.
    wait_until("all of it is in memory", || {
        assert!(read(&cluster, &data, "a").unwrap() == pattern(0, size));
        in_memory(&cluster, &file) == size as u64
    });
    cluster.nodes.sort_by_key(|node| node.id);
    remembered(&cluster);
    // Of the four three vote: those two go that leave a majority.
    let voters = cluster.nodes[0].status().directory.voters;
    let votes = |at: usize| usize::from(voters.contains(&cluster.nodes[at].id.0));
    let at = usize::from(votes(1) + votes(3) < 2);
    // What the one alone had may be fetched by the other before it dies: nobody remembers that.
    let (first, rest) = cluster.nodes.split_at_mut(2);
    // Both come to stand still at the same time, before the first is killed, and for longer than that takes on a busy machine: one
    // would have time to fetch for the other.
    let both = [&mut first[at], &mut rest[at]];
    std::thread::scope(|scope| {
        for node in &both {
            scope.spawn(|| node.pause(Duration::from_secs(10)));
        }
    });
    std::thread::scope(|scope| {
        for node in both {
            scope.spawn(|| node.kill());
        }
    });
    wait_until("both losses are seen to", || metric(&cluster, LOSSES) == 2);
    let there = in_memory(&cluster, &file);
    assert!(there >= size as u64 / 10 * 9, "{there} of {size}");
    assert!(read(&cluster, &data, "a").unwrap() == pattern(0, size));
}

/// The home of a stretch of a file.
fn home<'a>(cluster: &'a TestCluster, file: &OpenFile, stretch: u32) -> &'a TestNode {
    let map = cluster.nodes[0].map();
    let holdings = map.pool_named(POOL).and_then(|p| p.holdings()).unwrap();
    let bucket = holdings.bucket_of([file.id().high, file.id().low], stretch * 4);
    &cluster.nodes[cluster.position(holdings.home(bucket).unwrap().node)]
}

fn lost(cluster: &TestCluster, file: &OpenFile, stretch: u32) -> FileLost {
    let version = file.version();
    FileLost {
        pool: cluster.nodes[0].map().pool_named(POOL).unwrap().id,
        file: file.id(),
        stretch,
        parts: u128::MAX.into(),
        named: Some(FileNamed {
            size: version.size,
            dataset: version.dataset.clone(),
            path: Bytes::copy_from_slice(&version.path),
            version: version.version.clone(),
        }),
    }
}

/// Readers and those who see to a loss ask for the same: it is fetched once. Questions without sense change nothing.
#[test]
fn what_is_lost_is_fetched_once_whoever_asks_for_it() {
    let size = 3 * MIB + 5000;
    let dir = folder(&[("a", size)]);
    let cluster = cluster_of(2, 64 << 20, BUCKETS);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let file = data.open(b"a").unwrap();
    let before = metric(&cluster, FETCHED);
    let sound = lost(&cluster, &file, 1);
    let home_of = home(&cluster, &file, 1);
    let refused = |ask: FileLost| match home_of.ask(&Message::FileLost(ask)) {
        Message::Error(packet) => packet.code,
        other => panic!("{other:?}"),
    };
    let mut other = sound.clone();
    other.named.as_mut().unwrap().size += 1;
    assert_eq!(refused(other), ErrorCode::Malformed);
    let mut beyond = sound.clone();
    beyond.stretch = u32::MAX;
    assert_eq!(refused(beyond), ErrorCode::Malformed);
    let elsewhere = cluster.nodes.iter().find(|c| c.id != home_of.id).unwrap();
    let Message::Error(packet) = elsewhere.ask(&Message::FileLost(sound.clone())) else {
        panic!("only the home is asked");
    };
    assert_eq!(packet.code, ErrorCode::NotServing);
    let unnamed = FileLost {
        named: None,
        ..sound.clone()
    };
    let missing = |ask: &FileLost| match home_of.ask(&Message::FileLost(ask.clone())) {
        Message::FileLostAnswer(FileLostAnswer { missing }) => u128::from(missing),
        other => panic!("{other:?}"),
    };
    assert_eq!(missing(&unnamed), u128::MAX);
    assert_eq!(
        metric(&cluster, FETCHED),
        before,
        "nothing is fetched so far"
    );
    let version = file.version();
    let fetch = FileFetch {
        read: FileRead {
            pool: sound.pool,
            file: file.id(),
            from: MIB as u64,
            len: MIB as u32,
        },
        size: version.size,
        dataset: version.dataset.clone(),
        path: Bytes::copy_from_slice(&version.path),
        version: version.version.clone(),
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let fetch = Message::FileFetch(fetch.clone());
            scope.spawn(move || assert!(matches!(home_of.ask(&fetch), Message::FileBytes(_))));
            scope.spawn(|| wait_until("it has it", || missing(&sound) == 0));
        }
    });
    assert_eq!(metric(&cluster, FETCHED) - before, MIB as u64);
    // The file's end is no whole part, and there is nothing beyond it.
    let end = lost(&cluster, &file, 3);
    let answer = home(&cluster, &file, 3).ask(&Message::FileLost(end));
    let want = FileLostAnswer {
        missing: (u128::MAX << 1).into(),
    };
    assert_eq!(answer, Message::FileLostAnswer(want));
    assert_eq!(metric(&cluster, FETCHED) - before, MIB as u64 + 5000);
    // A place in no table is its end.
    let (pool, since, from) = (sound.pool, 0, u32::MAX - 1);
    let beyond = home_of.ask(&Message::FileChanges(FileChanges { pool, since, from }));
    assert!(matches!(beyond, Message::FileChangesAnswer(a) if a.entries.is_empty()));
}

/// A home that is full of what no other has evicts nothing for what was lost.
#[test]
fn what_was_lost_pushes_no_last_copy_out() {
    let size = 20 * MIB;
    let dir = folder(&[("a", size), ("b", MIB)]);
    let cluster = cluster_of(1, 8 << 20, 64);
    let_it_age();
    let data = dataset(&cluster, &dir);
    let (a, b) = (data.open(b"a").unwrap(), data.open(b"b").unwrap());
    assert!(read(&cluster, &data, "a").unwrap() == pattern(0, size));
    let full = in_memory(&cluster, &a);
    let evicted = metric(&cluster, "staves_files_evicted_blocks_total");
    assert!(evicted > 0, "{full} bytes are there");
    let ask = Message::FileLost(lost(&cluster, &b, 0));
    wait_until("it answers", || {
        let answer = cluster.nodes[0].ask(&ask);
        matches!(answer, Message::FileLostAnswer(a) if a.missing == u128::MAX.into())
    });
    assert_eq!(in_memory(&cluster, &a), full);
    assert_eq!(metric(&cluster, AGAIN), 0);
    assert_eq!(
        metric(&cluster, "staves_files_evicted_blocks_total"),
        evicted
    );
}
