//! Tests of the home's part over a real folder, in one process: what is asked for by many is read once, and nothing is kept or
//! given under a name that is not its own.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use staves_directory::Life;
use staves_files::{FileVersion, Kind, Source};
use staves_hunts::{Hunt, hunt};
use staves_model::mutant::Mutant;
use staves_model::{
    Change, ClusterId, Holder, Holdings, Incarnation, NodeId, PoolId, PoolKind, testing,
};
use staves_net::{Identity, PeerOptions, Peers};
use staves_store::Arena;
use staves_store::blocks::PART_BYTES;
use staves_wire::ErrorCode;
use staves_wire::files::{FileFetch, FileId, FileLost, FileNamed, FilePut, FileRead};

use crate::{Files, FilesPool};

const MIB: usize = 1 << 20;
/// Far more than anything here takes.
const DEADLINE: Duration = Duration::from_secs(60);

/// One node, which holds all buckets of a pool but the last, over a folder of one file.
struct Home {
    files: Files,
    pool: Arc<FilesPool>,
    holdings: Holdings,
    folder: tempfile::TempDir,
    version: FileVersion,
}

fn bytes() -> Vec<u8> {
    (0..MIB + 5000).map(|at| ((at * 7) >> 5) as u8).collect()
}

/// A file that counts as settled: its last change lies some time back.
fn settled(path: &Path) {
    std::fs::write(path, bytes()).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let before = SystemTime::now() - Duration::from_secs(60);
    file.set_modified(before).unwrap();
}

fn version_of(folder: &Path) -> FileVersion {
    let source = Source::parse(folder.to_str().unwrap()).unwrap();
    let begun = Instant::now();
    loop {
        let stat = source.stat_to_open(b"a").unwrap();
        match stat.kind {
            Kind::File { version, fresh } if !fresh => {
                return FileVersion {
                    dataset: "d".into(),
                    path: b"a".to_vec(),
                    size: stat.size,
                    version,
                };
            }
            other => assert!(begun.elapsed() < DEADLINE, "{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn home() -> Home {
    let folder = tempfile::tempdir().unwrap();
    settled(&folder.path().join("a"));
    let life = Life {
        cluster: ClusterId(7),
        node: NodeId(1),
        incarnation: Incarnation(1),
    };
    let identity = Identity::admin(life.cluster);
    let peers = Peers::new(identity, PeerOptions::default(), Arc::new(|_, _| {}));
    let files = Files::new(life, peers, Arena::new(1).unwrap(), 1 << 30);
    let mut map = testing::cluster(0);
    let holder = Holder {
        node: life.node,
        incarnation: life.incarnation,
        leaving: false,
    };
    for change in [
        testing::new_node("n1", 1 << 30),
        testing::create_files_pool("files", 4, 64 << 20),
        Change::SetDataset {
            pool: "files".into(),
            name: "d".into(),
            source: folder.path().to_str().unwrap().into(),
        },
    ] {
        map.apply(None, &change).unwrap();
    }
    let id = map.pool_named("files").unwrap().id;
    let pool = map.pools.get_mut(&id).unwrap();
    let PoolKind::Files(holdings) = &mut pool.kind else {
        panic!("a pool of files")
    };
    let version = version_of(folder.path());
    let [first, second] = [0, 4].map(|block| bucket(holdings, version.id(), block));
    for (at, held) in holdings.buckets.iter_mut().enumerate() {
        // All that the file is in.
        let ours = [first, second].contains(&(at as u32));
        *held = Vec::from_iter(ours.then_some(holder));
    }
    let holdings = holdings.clone();
    files.follow(&Arc::new(map));
    let pool = files.pool(id).unwrap();
    Home {
        files,
        pool,
        holdings,
        folder,
        version,
    }
}

fn bucket(holdings: &Holdings, file: FileId, block: u32) -> u32 {
    holdings.bucket_of([file.high, file.low], block)
}

impl Home {
    fn id(&self) -> PoolId {
        self.pool.id
    }

    fn ask(&self, version: &FileVersion, from: usize, len: usize) -> FileFetch {
        FileFetch {
            read: FileRead {
                pool: self.id(),
                file: version.id(),
                from: from as u64,
                len: len as u32,
            },
            size: version.size,
            dataset: version.dataset.clone(),
            path: Bytes::copy_from_slice(&version.path),
            version: version.version.clone(),
        }
    }

    async fn fetch(&self, from: usize, len: usize) -> Bytes {
        let ask = self.ask(&self.version, from, len);
        let answer = self.files.fetch(ask, Instant::now() + DEADLINE).await;
        let fetched = answer.unwrap().bytes.expect("the source has it");
        assert!(fetched == bytes()[from..from + len], "right bytes");
        fetched
    }

    /// Bytes read from the source.
    fn fetched(&self) -> u64 {
        self.pool.counts.fetched_bytes.load(Ordering::Relaxed)
    }
}

/// A reader that comes to the home directly, or whose question crossed another's, finds in memory what was fetched meanwhile.
#[tokio::test]
async fn what_is_in_memory_is_not_fetched() {
    let home = home();
    for _ in 0..2 {
        home.fetch(100, 65_000).await;
        assert_eq!(home.fetched(), 64 << 10, "read once");
    }
    std::fs::remove_file(home.folder.path().join("a")).unwrap();
    home.fetch(20_000, 20_000).await;
}

#[tokio::test]
async fn readers_of_the_same_bytes_wait_for_each_other() {
    let home = home();
    let read = || home.fetch(0, 100_000);
    tokio::join!(read(), read(), read());
    let parts = 100_000_usize.div_ceil(PART_BYTES) * PART_BYTES;
    assert_eq!(home.fetched(), parts as u64, "read once");
}

#[tokio::test]
async fn what_a_reader_fetched_meanwhile_is_not_fetched_as_lost() {
    let home = home();
    let version = &home.version;
    let ask = FileLost {
        pool: home.id(),
        file: version.id(),
        stretch: 0,
        parts: u128::MAX.into(),
        named: Some(FileNamed {
            size: version.size,
            dataset: version.dataset.clone(),
            path: Bytes::copy_from_slice(&version.path),
            version: version.version.clone(),
        }),
    };
    let lost = home.files.lost(ask, Instant::now() + DEADLINE);
    let (_, lost) = tokio::join!(home.fetch(0, MIB), lost);
    assert_eq!(u128::from(lost.unwrap().missing), 0);
    assert_eq!(home.fetched(), MIB as u64, "read once");
}

/// Bytes of one version under the digest of another would be given to all who open that one.
#[tokio::test]
async fn bytes_come_under_the_digest_of_their_version_only() {
    let home = home();
    let other = FileVersion {
        version: "another".into(),
        ..home.version.clone()
    };
    let mut ask = home.ask(&home.version, 0, 1000);
    ask.read.file = other.id();
    let answer = home.files.fetch(ask, Instant::now() + DEADLINE).await;
    let code = answer.map(|_| "bytes").map_err(|error| error.code);
    assert_eq!(code, Err(ErrorCode::Malformed), "another version's name");
    assert_eq!(home.fetched(), 0);
}

#[tokio::test]
async fn only_what_is_held_is_taken() {
    let home = home();
    let held = |file: FileId| {
        !home
            .holdings
            .holders(bucket(&home.holdings, file, 0))
            .is_empty()
    };
    let file = |high| FileId { high, low: 9 };
    let put = |file| {
        home.files.put(FilePut {
            pool: home.id(),
            file,
            size: 100,
            from: 0,
            bytes: Bytes::from_static(&[7; 100]),
            forwarded: true,
        })
    };
    let there = |file| home.pool.get(file, 0, 100, 1).is_some();
    for file in (0..40).map(file) {
        let code = put(file).map_err(|error| error.code);
        let wanted = match held(file) {
            true => Ok(()),
            false => Err(ErrorCode::NotServing),
        };
        assert_eq!((code, there(file)), (wanted, held(file)), "by the map");
    }
}

#[test]
fn planted_bugs_of_files_are_seen() {
    let of = |mutant, test, shows| Hunt {
        mutant,
        test,
        shows,
    };
    hunt(&[
        of(
            Mutant::FetchedWithoutLook,
            "tests::reads::what_is_in_memory_is_not_fetched",
            "read once",
        ),
        of(
            Mutant::TurnNotAwaited,
            "tests::reads::readers_of_the_same_bytes_wait_for_each_other",
            "read once",
        ),
        of(
            Mutant::LostFetchedWithoutLook,
            "tests::reads::what_a_reader_fetched_meanwhile_is_not_fetched_as_lost",
            "read once",
        ),
        of(
            Mutant::DigestNotChecked,
            "tests::reads::bytes_come_under_the_digest_of_their_version_only",
            "another version's name",
        ),
        of(
            Mutant::UnheldPutKept,
            "tests::reads::only_what_is_held_is_taken",
            "by the map",
        ),
        of(
            Mutant::ListJumpsAhead,
            "neighbour::tests::a_list_follows_what_comes_and_goes_and_knows_it_by_stretches",
            "left: (12, 0)",
        ),
        of(
            Mutant::AllCopiesSpare,
            "pool::tests::a_buckets_home_alone_keeps_last_copies",
            "assertion `left == right` failed",
        ),
    ]);
}
