//! A real mount of a local folder, used as programs use it.

mod contents;
mod errors;
mod fuzz;
mod names;
mod nfs;
mod points;
mod reads;
mod versions;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use staves_mount::{
    FileError, Files, Folder, FolderFile, Kind, Listing, Mounted, Options, Stat, Version, mount,
};
use staves_testkit::tools::can_mount;
use tempfile::TempDir;

/// A source and its mount.
struct Fixture {
    // Fields are dropped in this order.
    mounted: Option<Mounted>,
    source: TempDir,
    dir: TempDir,
}

impl Fixture {
    /// None if this machine cannot mount.
    fn new(fill: impl FnOnce(&Path)) -> Option<Fixture> {
        Fixture::with(&Options::default(), fill, |folder| folder)
    }

    fn with<S: Files>(
        options: &Options,
        fill: impl FnOnce(&Path),
        wrap: impl FnOnce(Folder) -> S,
    ) -> Option<Fixture> {
        if !can_mount() {
            return None;
        }
        let source = tempfile::tempdir().unwrap();
        let dir = tempfile::tempdir().unwrap();
        fill(source.path());
        let files = wrap(Folder::open(source.path()).unwrap());
        let mounted = mount(files, dir.path(), options).unwrap();
        let mounted = Some(mounted);
        Some(Fixture {
            mounted,
            source,
            dir,
        })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn source(&self, name: &str) -> PathBuf {
        self.source.path().join(name)
    }
}

/// Bytes that differ everywhere and from seed to seed.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    });
    words.flatten().take(bytes).collect()
}

/// Puts back the time of change that programs can set. It is the other one that makes a file fresh.
fn age(path: &Path) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(3600))
        .unwrap();
}

/// Until files that were made just now are not fresh any more: read ahead, and kept by the page cache.
fn settle() {
    std::thread::sleep(Duration::from_millis(2100));
}

fn errno(error: &std::io::Error) -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(error).expect("the system's own error")
}

/// The requests to a folder, and its answers.
#[derive(Default)]
struct Seen {
    looks: AtomicU64,
    reads: AtomicU64,
    bytes: AtomicU64,
    ahead_bytes: AtomicU64,
    late: AtomicBool,
    /// Files other than those that are asked for are well.
    others_answer: AtomicBool,
    /// Reads wait for as long.
    stands: AtomicBool,
    /// Only what is in memory can be had: bytes, and no names.
    silent: AtomicBool,
    empty: AtomicBool,
    /// Deleted, but for its first half, which is in memory.
    gone: AtomicBool,
    /// The source refuses `file`: a list has its name alone.
    refused: AtomicBool,
}

/// A folder that is watched, and that can be made to answer too late, or with nothing.
struct Watched {
    folder: Folder,
    seen: Arc<Seen>,
}

impl Files for Watched {
    type File = FolderFile;

    fn stat(&self, path: &Path) -> Result<Stat, FileError> {
        if self.seen.silent.load(Ordering::Relaxed) {
            return Err(FileError::TimedOut("nobody answered".into()));
        }
        if self.seen.refused.load(Ordering::Relaxed) && path == Path::new("file") {
            return Err(FileError::Denied("it is refused".into()));
        }
        self.seen.looks.fetch_add(1, Ordering::Relaxed);
        let stat = self.folder.stat(path)?;
        match stat.kind != Kind::Folder && self.seen.gone.load(Ordering::Relaxed) {
            true => Err(FileError::NotFound),
            false => Ok(stat),
        }
    }

    fn list(&self, path: &Path) -> Result<Listing, FileError> {
        let listing = self.folder.list(path)?;
        if !self.seen.refused.load(Ordering::Relaxed) {
            return Ok(listing);
        }
        let mut refused = Listing::default();
        for (name, stat) in listing.iter() {
            let mut stat = stat.clone();
            if name == "file" {
                (stat.mode, stat.size, stat.version) = (0, 0, Version([0; 2]));
            }
            refused.push(name, stat);
        }
        Ok(refused)
    }

    fn open(&self, path: &Path) -> Result<FolderFile, FileError> {
        self.stat(path)?;
        self.folder.open(path)
    }

    fn stat_open<'a>(&self, file: &'a FolderFile) -> &'a Stat {
        self.folder.stat_open(file)
    }

    fn read(&self, file: &FolderFile, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        self.seen.reads.fetch_add(1, Ordering::Relaxed);
        self.seen
            .bytes
            .fetch_add(into.len() as u64, Ordering::Relaxed);
        let begun = Instant::now();
        while self.seen.stands.load(Ordering::Relaxed) && begun.elapsed().as_secs() < 30 {
            std::thread::sleep(Duration::from_millis(5));
        }
        if self.seen.late.load(Ordering::Relaxed) {
            return Err(FileError::TimedOut("nobody answered".into()));
        }
        if self.seen.empty.load(Ordering::Relaxed) {
            return Ok(0);
        }
        let half = self.stat_open(file).size / 2;
        if self.seen.gone.load(Ordering::Relaxed) && offset + into.len() as u64 > half {
            return Err(FileError::NotFound);
        }
        self.folder.read(file, offset, into)
    }

    fn is_away(&self) -> bool {
        !self.seen.others_answer.load(Ordering::Relaxed)
    }

    fn will_read(&self, _: &FolderFile, _: u64, bytes: u64) {
        self.seen.ahead_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
