//! A source that stops to answer: a folder on a file server that is gone holds whoever asks it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use staves_mount::{FileError, Files, Folder, FolderFile, Listing, Options, Stat};
use staves_testkit::tools::can_mount;

use super::Cluster;
use super::descriptors::page;
use super::mount::{Point, bytes, read_anew};

/// The bound for a wait of some seconds, on a machine that is busy.
const BOUND: Duration = Duration::from_secs(60);

/// Shut, it holds who comes. Broken, it sends them back.
#[derive(Default)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
    is_broken: AtomicBool,
}

impl Gate {
    fn pass(&self) -> Result<(), FileError> {
        let is_shut = self.is_shut.lock().expect("no test fails in here");
        let passed = self.opened.wait_while(is_shut, |is_shut| *is_shut);
        drop(passed.expect("no test fails in here"));
        match self.is_broken.load(Ordering::Relaxed) {
            true => Err(FileError::Io("the gate is broken".into())),
            false => Ok(()),
        }
    }

    fn set(&self, is_shut: bool) {
        *self.is_shut.lock().expect("no test fails in here") = is_shut;
        self.opened.notify_all();
    }
}

/// A folder behind a gate.
struct Gated(Folder, Arc<Gate>);

impl Files for Gated {
    type File = FolderFile;

    fn stat(&self, path: &Path) -> Result<Stat, FileError> {
        self.1.pass()?;
        self.0.stat(path)
    }

    fn list(&self, path: &Path) -> Result<Listing, FileError> {
        self.1.pass()?;
        self.0.list(path)
    }

    fn open(&self, path: &Path) -> Result<FolderFile, FileError> {
        self.1.pass()?;
        self.0.open(path)
    }

    fn stat_open<'a>(&self, file: &'a FolderFile) -> &'a Stat {
        self.0.stat_open(file)
    }

    fn read(&self, file: &FolderFile, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        self.1.pass()?;
        self.0.read(file, offset, into)
    }
}

/// Opens the gate at the end, whatever happens.
struct Opens(Arc<Gate>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Does what may hang, and fails if it does.
fn within<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, come) = channel();
    std::thread::spawn(move || done.send(work()));
    come.recv_timeout(BOUND)
        .unwrap_or_else(|_| panic!("{what} hangs"))
}

fn anew(file: &File, at: u64, len: usize) -> std::io::Result<Vec<u8>> {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    let mut some = vec![0; len];
    file.read_exact_at(&mut some, at).map(|()| some)
}

/// A folder on a file server of which the gate is the network.
struct GatedSource {
    gate: Arc<Gate>,
    _opens: Opens,
    _server: staves_mount::Mounted,
    dir: tempfile::TempDir,
}

impl GatedSource {
    /// With files of this content, which are not fresh any more.
    fn with(names: &[&str], whole: &[u8]) -> GatedSource {
        let dir = tempfile::tempdir().expect("a folder");
        let (disk, source) = (dir.path().join("disk"), dir.path().join("source"));
        for folder in [&disk, &source] {
            std::fs::create_dir(folder).expect("a folder");
        }
        for name in names {
            std::fs::write(disk.join(name), whole).expect("a file");
        }
        let gate = Arc::new(Gate::default());
        let gated = Gated(Folder::open(&disk).expect("a folder"), gate.clone());
        // The kernel is to ask each time, as one whose attributes of a file server's files are old. A dataset's mount would be no source.
        let options = Options {
            name: disk.display().to_string(),
            lifetime: Duration::ZERO,
            ..Options::default()
        };
        let server = staves_mount::mount(gated, &source, &options).expect("it is mounted");
        std::thread::sleep(Duration::from_millis(2100));
        GatedSource {
            _opens: Opens(gate.clone()),
            gate,
            _server: server,
            dir,
        }
    }

    /// A mount of it, in a folder of this name.
    fn mounted(&self, cluster: &Cluster, name: &str) -> Point {
        let (source, point) = (self.dir.path().join("source"), self.dir.path().join(name));
        std::fs::create_dir(&point).expect("a folder");
        let (from, to) = (source.to_string_lossy(), point.to_string_lossy());
        let mounted = cluster.run(0, &["mount", &from, &to]);
        assert_eq!(mounted.code, Some(0), "{}", mounted.stderr);
        Point(point)
    }
}

/// Row D11: a source that hangs hangs nobody. What is in memory is read on, the rest is an error soon, and all is well again
/// when it answers.
#[test]
fn d11_a_source_that_hangs_holds_neither_mount_nor_node() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::start(2);
    let whole = bytes(1_000_000);
    let source = GatedSource::with(&["read", "unread", "unknown"], &whole);
    let gate = source.gate.clone();
    cluster.files_pool();
    let _point = source.mounted(&cluster, "mnt");
    let point = source.dir.path().join("mnt");
    let loaded = cluster.run(0, &["files", "preload", "source", "read"]);
    assert_eq!(loaded.code, Some(0), "{}", loaded.stderr);
    assert!(std::fs::read(point.join("read")).expect("it is there") == whole);
    let (read, unread) = (
        File::open(point.join("read")).expect("it is there"),
        File::open(point.join("unread")).expect("it is there"),
    );
    gate.set(true);

    // More than the mount has threads.
    let held: Vec<_> = (0..20)
        .map(|i| {
            let (file, unknown) = (
                unread.try_clone().expect("a handle"),
                point.join("unknown").join(i.to_string()),
            );
            std::thread::spawn(move || {
                let read = anew(&file, i * 40_000, 8192).map(drop);
                (read, std::fs::metadata(unknown).map(drop))
            })
        })
        .collect();
    let want = whole.clone();
    within("a read of what is in memory", move || {
        for at in (0..900_000).step_by(100_000) {
            let some = anew(&read, at, 8192).expect("it is in memory");
            assert!(some == want[at as usize..at as usize + 8192]);
        }
    });
    for held in held {
        let (read, stat) = within("what is not in memory", move || {
            held.join().expect("a thread")
        });
        let read = read.expect_err("it is not in memory");
        assert_eq!(read.raw_os_error(), Some(110), "ETIMEDOUT: {read}");
        let stat = stat.expect_err("nobody knows it");
        assert_eq!(stat.raw_os_error(), Some(110), "ETIMEDOUT: {stat}");
    }
    // What is known of names serves those that open now; nodes answer for what has nothing to do with it.
    let (again, want) = (point.join("read"), whole.clone());
    let opened = within("opening", move || std::fs::read(again));
    assert!(opened.expect("its name was asked for lately") == want);
    for node in 0..2 {
        assert_eq!(cluster.run(node, &["files", "list"]).code, Some(0));
    }
    let began = Instant::now();
    for _ in 0..100 {
        let unknown = point.join("unknown");
        let error = within("what is known to be silent", || std::fs::metadata(unknown));
        assert_eq!(error.expect_err("it hangs").raw_os_error(), Some(110));
    }
    assert!(began.elapsed() < BOUND, "each is told so at once");

    gate.set(false);
    let until = Instant::now() + BOUND;
    while std::fs::read(point.join("unknown")).ok().as_ref() != Some(&whole) {
        assert!(Instant::now() < until, "it answers again");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(unread);

    // Regression: the folder itself is asked for first, and holds who does; from then on nothing could be opened.
    gate.set(true);
    std::thread::sleep(Duration::from_millis(1100)); // the kernel asks again
    within("opening again and again", move || {
        let until = Instant::now() + Duration::from_secs(15);
        while Instant::now() < until {
            let opened = std::fs::read(point.join("read"));
            assert!(opened.expect("its name was asked for lately") == whole);
            std::thread::sleep(Duration::from_millis(300));
        }
    });
}

/// For how long the source of the dataset `source` has been away, by the metrics of all nodes.
fn away_seconds(cluster: &Cluster) -> u64 {
    let of_node = |node: &super::Node| -> u64 {
        let page = page(node.admin, "/metrics");
        let name = "staves_files_source_away_seconds{dataset=\"source\"} ";
        let number = page.lines().find_map(|line| line.strip_prefix(name));
        number.expect(name).parse().expect("a number")
    };
    cluster.nodes.iter().map(of_node).max().unwrap_or(0)
}

fn names(folder: &Path) -> Vec<std::ffi::OsString> {
    let names = std::fs::read_dir(folder).expect("it is known");
    let mut names: Vec<_> = names
        .map(|entry| entry.expect("a name").file_name())
        .collect();
    names.sort();
    names
}

/// Row D11: status, metrics and `files show` say that a source is away, though nobody reads, and what still works does: by each mount, of
/// names that were only listed, and whether the source hangs or fails.
#[test]
fn d11_a_source_that_is_away_is_told_and_what_is_in_memory_is_opened() {
    if !can_mount() {
        return;
    }
    // What a cluster of three is never warned of.
    let cluster = Cluster::start_with(3, &["--buckets", "16"]);
    let whole = bytes(1_000_000);
    let source = GatedSource::with(&["listed", "read"], &whole);
    cluster.files_pool();
    let points = [
        source.mounted(&cluster, "one"),
        source.mounted(&cluster, "two"),
    ];
    let loaded = cluster.run(0, &["files", "preload", "source"]);
    assert_eq!(loaded.code, Some(0), "{}", loaded.stderr);
    let strict = || cluster.run(0, &["status", "--check", "--strict"]).code;
    for point in &points {
        assert!(std::fs::read(point.0.join("read")).expect("it is there") == whole);
        assert_eq!(names(&point.0), ["listed", "read"]);
    }
    let warnings = |status: &serde_json::Value| status["warnings"].to_string();
    let away = "the source of dataset 'source' is away";
    cluster.wait_for("nothing is wrong", 0, |s| warnings(s) == "[]");
    assert_eq!((strict(), away_seconds(&cluster)), (Some(0), 0));

    for is_broken in [false, true] {
        match is_broken {
            true => source.gate.is_broken.store(true, Ordering::Relaxed),
            false => source.gate.set(true),
        }
        cluster.wait_for("it is said, by a mount too", 0, |s| {
            let nodes = s["nodes"].as_array().expect("nodes");
            let mut facts = nodes.iter().map(|node| node["facts"]["away"].to_string());
            warnings(s).contains(away) && facts.any(|away| away.contains("/one"))
        });
        assert_eq!(strict(), Some(5));
        assert!(away_seconds(&cluster) > 0);
        // The kernel lets no process end that waits for what a file server in user space has begun: it must not be asked.
        let shown = cluster.run(0, &["files", "show", "source"]);
        assert_ne!(shown.code, Some(0));
        assert!(shown.stderr.contains(away), "{}", shown.stderr);
        for point in &points {
            let (folder, want) = (point.0.clone(), whole.clone());
            within("what is in memory", move || {
                for name in ["listed", "read", "listed"] {
                    let read = read_anew(&folder.join(name));
                    assert!(read.expect("it is in memory") == want, "{name}");
                }
                assert_eq!(names(&folder), ["listed", "read"]);
            });
        }
        match is_broken {
            true => source.gate.is_broken.store(false, Ordering::Relaxed),
            false => source.gate.set(false),
        }
        cluster.wait_for("it is back", 0, |s| warnings(s) == "[]");
        assert_eq!((strict(), away_seconds(&cluster)), (Some(0), 0));
    }
}
