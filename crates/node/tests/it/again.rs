//! What only a lost node had of files is fetched again, by itself; and nothing else is.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use staves_client::OpenFile;
use staves_model::{Change, NodeId, NodeState};
use staves_wire::files::{FileChanges, FileFetch, FileLost, FileLostAnswer, FileNamed, FileRead};
use staves_wire::{ErrorCode, Message};

use crate::files::{
    MIB, POOL, dataset, dataset_of, folder, from_source, held, in_memory, keys, let_it_age, metric,
    pattern, read, town_of, with_files, write,
};
use crate::town::{Citizen, Parse, Town, eventually};

/// So many that copies of them all, a bucket a round, take much longer than a test does.
const BUCKETS: u32 = 2048;
const FETCHED: &str = "staves_files_fetched_bytes_total";
const AGAIN: &str = "staves_files_again_bytes_total";
const LOSSES: &str = "staves_files_losses_total";
const LOST: &str = "staves_files_lost_bytes";
const REMEMBERED: &str = "staves_files_remembered_blocks";

/// By block, the parts of a file that a node has.
fn parts(citizen: &Citizen, file: &OpenFile) -> BTreeMap<u32, u32> {
    let keys = keys(citizen).into_iter();
    let keys = keys.filter(|key| key.file == file.id());
    keys.map(|key| (key.block, key.parts)).collect()
}

/// Bytes of a file that these have and no other.
fn alone(town: &Town, file: &OpenFile, these: &[usize]) -> u64 {
    let mut others = BTreeMap::<u32, u32>::new();
    let mut theirs = BTreeMap::<u32, u32>::new();
    for (at, citizen) in town.citizens.iter().enumerate() {
        let all = if these.contains(&at) {
            &mut theirs
        } else {
            &mut others
        };
        for (block, parts) in parts(citizen, file) {
            *all.entry(block).or_default() |= parts;
        }
    }
    let left = |(block, parts): (&u32, &u32)| parts & !others.get(block).copied().unwrap_or(0);
    let parts: u32 = theirs.iter().map(left).map(u32::count_ones).sum();
    u64::from(parts) * (8 << 10)
}

/// Until each node remembers what the one before it has.
fn remembered(town: &Town) {
    let ids: BTreeMap<NodeId, usize> = (0..)
        .zip(&town.citizens)
        .map(|(at, c)| (c.id, at))
        .collect();
    let order: Vec<usize> = ids.into_values().collect();
    eventually("each node remembers what its neighbour has", || {
        (0..order.len()).all(|i| {
            let before = &town.citizens[order[i]];
            let after = &town.citizens[order[(i + 1) % order.len()]];
            after.metric(REMEMBERED) == keys(before).len() as u64
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
    let mut town = town_of(3, 64 << 20, BUCKETS);
    let_it_age();
    let data = dataset(&town, &dir);
    let file = data.open(b"a/b/c").unwrap();
    assert!(read(&town, &data, "a/b/c").unwrap() == pattern(0, size));
    eventually("all of it is in memory", || {
        read(&town, &data, "a/b/c").unwrap();
        in_memory(&town, &file) == size as u64
    });
    remembered(&town);
    let lost = alone(&town, &file, &[2]);
    assert!(lost > 0, "it has something that no other has");
    let fetched = |town: &Town| -> u64 {
        let living = town.citizens[..2].iter();
        living.map(|citizen| citizen.metric(FETCHED)).sum()
    };
    let before = fetched(&town);
    town.citizens[2].kill();
    eventually("all of it is in memory again", || {
        in_memory(&town, &file) == size as u64
    });
    eventually("the loss is seen to", || metric(&town, LOSSES) == 1);
    let (fetched, again) = (fetched(&town) - before, metric(&town, AGAIN));
    // Copies that were being made when it was counted may have come in time.
    assert!(
        fetched == again && again <= lost,
        "{fetched}, {again} of {lost}"
    );
    assert!(again * 2 > lost, "{again} of {lost}");
    assert_eq!(metric(&town, LOST), 0);
    held(&town);
    eventually("it is read from memory", || {
        let were = metric(&town, FETCHED) + from_source(&data);
        assert!(read(&town, &data, "a/b/c").unwrap() == pattern(0, size));
        metric(&town, FETCHED) + from_source(&data) == were
    });
}

/// Row D6: a node that was drained had nothing that others have not, and nothing is fetched for it.
#[test]
fn d6_nothing_is_fetched_after_a_drain() {
    let size = 8 * MIB;
    let dir = folder(&[("a", size)]);
    let mut town = town_of(3, 64 << 20, 32);
    let_it_age();
    let data = dataset(&town, &dir);
    let file = data.open(b"a").unwrap();
    assert!(read(&town, &data, "a").unwrap() == pattern(0, size));
    let node = town.citizens[2].id;
    let drain = Change::Drain { node, on: true };
    town.citizens[0].propose(&drain).unwrap();
    eventually("the drained node has nothing", || {
        parts(&town.citizens[2], &file).is_empty()
    });
    remembered(&town);
    let fetched = |town: &Town| {
        town.citizens[..2]
            .iter()
            .map(|c| c.metric(FETCHED))
            .sum::<u64>()
    };
    let before = (fetched(&town), in_memory(&town, &file));
    town.citizens[2].leave();
    eventually("it is gone", || {
        let map = town.citizens[0].map();
        map.nodes
            .get(&node)
            .is_none_or(|n| n.state != NodeState::Up)
    });
    // As long as it would take to begin.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(metric(&town, AGAIN), 0);
    assert_eq!(fetched(&town), before.0);
    assert_eq!(in_memory(&town, &file), before.1);
}

/// What only a node has that stops is copied from its memory before it goes, and not fetched again.
#[test]
fn d6_who_stops_has_its_files_copied_first() {
    let size = 24 * MIB;
    let dir = folder(&[("a", size)]);
    let town = Town::found_as(3, |_, config| config.stop_ms = "300s".parse_millis());
    // The cache would be handed over anyhow.
    let name = "cache".into();
    town.citizens[0]
        .propose(&Change::DeletePool { name })
        .unwrap();
    let mut town = with_files(town, 64 << 20, 512);
    let_it_age();
    let data = dataset(&town, &dir);
    let file = data.open(b"a").unwrap();
    eventually("all of it is in memory", || {
        read(&town, &data, "a").unwrap();
        in_memory(&town, &file) == size as u64
    });
    remembered(&town);
    let lost = alone(&town, &file, &[2]);
    assert!(lost > 0, "it has something that no other has");
    town.citizens[2].leave();
    eventually("all of it is in memory without it", || {
        in_memory(&town, &file) == size as u64
    });
    let again = metric(&town, AGAIN);
    assert!(again * 2 < lost, "{again} of {lost} were fetched again");
}

/// Regression: a node that stood still and was taken for dead let go of all that it had of files, and it was fetched again; where the
/// source was gone, it was lost.
#[test]
fn d5_who_was_taken_for_dead_gives_back_what_only_it_has() {
    let size = 12 * MIB;
    let dir = folder(&[("a", size)]);
    let town = town_of(3, 64 << 20, BUCKETS);
    let_it_age();
    let data = dataset(&town, &dir);
    let file = data.open(b"a").unwrap();
    eventually("all of it is in memory", || {
        read(&town, &data, "a").unwrap();
        in_memory(&town, &file) == size as u64
    });
    let lost = alone(&town, &file, &[2]);
    assert!(lost > 0, "it has something that no other has");
    std::fs::remove_file(dir.path().join("a")).unwrap();
    let sleeper = &town.citizens[2];
    let is_up = || town.citizens[0].map().nodes[&sleeper.id].state == NodeState::Up;
    sleeper.pause(Duration::from_secs(8));
    eventually("it is taken for dead", || !is_up());
    eventually("it is back", is_up);
    eventually("the others have all of it", || {
        in_memory(&town, &file) == size as u64 && alone(&town, &file, &[2]) == 0
    });
}

/// The source is gone when the node dies: nothing comes of it, and it ends.
#[test]
fn a_source_that_is_gone_ends_it() {
    let size = 12 * MIB;
    let dir = folder(&[("a", size)]);
    let mut town = town_of(3, 64 << 20, BUCKETS);
    let_it_age();
    let data = dataset(&town, &dir);
    let file = data.open(b"a").unwrap();
    assert!(read(&town, &data, "a").unwrap() == pattern(0, size));
    remembered(&town);
    let lost = alone(&town, &file, &[2]);
    std::fs::remove_file(dir.path().join("a")).unwrap();
    town.citizens[2].kill();
    eventually("the loss is seen to", || metric(&town, LOSSES) == 1);
    assert_eq!((metric(&town, AGAIN), metric(&town, LOST)), (0, 0));
    assert!(in_memory(&town, &file) >= size as u64 - lost);
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
    let mut town = town_of(3, 64 << 20, BUCKETS);
    let_it_age();
    let first = dataset(&town, &closed);
    let next = dataset_of(&town, &open, "next");
    for at in 0..files {
        read(&town, &first, &name(at)).unwrap();
    }
    let file = next.open(b"a").unwrap();
    eventually("all of it is in memory", || {
        read(&town, &next, "a").unwrap();
        in_memory(&town, &file) == size as u64
    });
    remembered(&town);
    let has = keys(&town.citizens[2]).len();
    assert!(has > 100, "{has} blocks");
    assert!(alone(&town, &file, &[2]) > 0, "and some of the next one");
    // The files are what they were, and their names are found; but no node may read them for others.
    let mode = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(&below, mode).unwrap();
    town.citizens[2].kill();
    eventually("all of the next one is in memory again", || {
        in_memory(&town, &file) == size as u64
    });
}

/// Two nodes die together, which no neighbour of each other: what both had comes back, by way of those that remember.
#[test]
fn d5_a_second_death_in_the_middle_is_seen_to_as_well() {
    let size = 24 * MIB;
    let dir = folder(&[("a", size)]);
    let mut town = town_of(4, 64 << 20, BUCKETS);
    let_it_age();
    let data = dataset(&town, &dir);
    let file = data.open(b"a").unwrap();
    assert!(read(&town, &data, "a").unwrap() == pattern(0, size));
    town.citizens.sort_by_key(|citizen| citizen.id);
    remembered(&town);
    // Of the four three vote: those two go that leave a majority.
    let voters = town.citizens[0].status().directory.voters;
    let votes = |at: usize| usize::from(voters.contains(&town.citizens[at].id.0));
    let at = usize::from(votes(1) + votes(3) < 2);
    // What the one alone had may be fetched by the other before it dies: nobody remembers that.
    let (first, rest) = town.citizens.split_at_mut(2);
    std::thread::scope(|scope| {
        scope.spawn(|| first[at].kill());
        scope.spawn(|| rest[at].kill());
    });
    eventually("both losses are seen to", || metric(&town, LOSSES) == 2);
    let there = in_memory(&town, &file);
    assert!(there >= size as u64 / 10 * 9, "{there} of {size}");
    assert!(read(&town, &data, "a").unwrap() == pattern(0, size));
}

/// The home of a stretch of a file.
fn home<'a>(town: &'a Town, file: &OpenFile, stretch: u32) -> &'a Citizen {
    let map = town.citizens[0].map();
    let holdings = map.pool_named(POOL).and_then(|p| p.holdings()).unwrap();
    let bucket = holdings.bucket_of([file.id().high, file.id().low], stretch * 4);
    &town.citizens[town.position(holdings.home(bucket).unwrap().node)]
}

fn lost(town: &Town, file: &OpenFile, stretch: u32) -> FileLost {
    let version = file.version();
    FileLost {
        pool: town.citizens[0].map().pool_named(POOL).unwrap().id,
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
    let town = town_of(2, 64 << 20, BUCKETS);
    let_it_age();
    let data = dataset(&town, &dir);
    let file = data.open(b"a").unwrap();
    let before = metric(&town, FETCHED);
    let sound = lost(&town, &file, 1);
    let home_of = home(&town, &file, 1);
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
    let elsewhere = town.citizens.iter().find(|c| c.id != home_of.id).unwrap();
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
    assert_eq!(metric(&town, FETCHED), before, "nothing is fetched so far");
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
            scope.spawn(|| eventually("it has it", || missing(&sound) == 0));
        }
    });
    assert_eq!(metric(&town, FETCHED) - before, MIB as u64);
    // The file's end is no whole part, and there is nothing beyond it.
    let end = lost(&town, &file, 3);
    let answer = home(&town, &file, 3).ask(&Message::FileLost(end));
    let want = FileLostAnswer {
        missing: (u128::MAX << 1).into(),
    };
    assert_eq!(answer, Message::FileLostAnswer(want));
    assert_eq!(metric(&town, FETCHED) - before, MIB as u64 + 5000);
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
    let town = town_of(1, 8 << 20, 64);
    let_it_age();
    let data = dataset(&town, &dir);
    let (a, b) = (data.open(b"a").unwrap(), data.open(b"b").unwrap());
    assert!(read(&town, &data, "a").unwrap() == pattern(0, size));
    let full = in_memory(&town, &a);
    let evicted = metric(&town, "staves_files_evicted_blocks_total");
    assert!(evicted > 0, "{full} bytes are there");
    let ask = Message::FileLost(lost(&town, &b, 0));
    eventually("it answers", || {
        let answer = town.citizens[0].ask(&ask);
        matches!(answer, Message::FileLostAnswer(a) if a.missing == u128::MAX.into())
    });
    assert_eq!(in_memory(&town, &a), full);
    assert_eq!(metric(&town, AGAIN), 0);
    assert_eq!(metric(&town, "staves_files_evicted_blocks_total"), evicted);
}
