//! A source that stops to answer: a folder on a file server that is gone holds whoever asks it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use staves_mount::{FileError, Files, Folder, FolderFile, Listing, Options, Stat};
use staves_testkit::tools::can_mount;

use super::Cluster;
use super::mount::{Point, bytes};

/// The bound for a wait of some seconds, on a machine that is busy.
const BOUND: Duration = Duration::from_secs(60);

/// Shut, it holds who comes.
#[derive(Default)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let is_shut = self.is_shut.lock().expect("no test fails in here");
        let passed = self.opened.wait_while(is_shut, |is_shut| *is_shut);
        drop(passed.expect("no test fails in here"));
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
        self.1.pass();
        self.0.stat(path)
    }

    fn list(&self, path: &Path) -> Result<Listing, FileError> {
        self.1.pass();
        self.0.list(path)
    }

    fn open(&self, path: &Path) -> Result<FolderFile, FileError> {
        self.1.pass();
        self.0.open(path)
    }

    fn stat_open<'a>(&self, file: &'a FolderFile) -> &'a Stat {
        self.0.stat_open(file)
    }

    fn read(&self, file: &FolderFile, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        self.1.pass();
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

/// Row D11: a source that hangs hangs nobody. What is in memory is read on, the rest is an error soon, and all is well again
/// when it answers.
#[test]
fn d11_a_source_that_hangs_holds_neither_mount_nor_node() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::start(2);
    let dir = tempfile::tempdir().expect("a folder");
    let (disk, source, point) = (
        dir.path().join("disk"),
        dir.path().join("source"),
        dir.path().join("mnt"),
    );
    for folder in [&disk, &source, &point] {
        std::fs::create_dir(folder).expect("a folder");
    }
    let whole = bytes(1_000_000);
    for name in ["read", "unread", "unknown"] {
        std::fs::write(disk.join(name), &whole).expect("a file");
    }
    let gate = Arc::new(Gate::default());
    let gated = Gated(Folder::open(&disk).expect("a folder"), gate.clone());
    // The kernel is to ask each time, as one whose attributes of a file server's files are old. A dataset's mount would be no source.
    let options = Options {
        name: disk.display().to_string(),
        lifetime: Duration::ZERO,
        ..Options::default()
    };
    let _server = staves_mount::mount(gated, &source, &options).expect("it is mounted");
    let _opens = Opens(gate.clone());
    std::thread::sleep(Duration::from_millis(2100));

    cluster.files_pool();
    let (from, to) = (source.to_string_lossy(), point.to_string_lossy());
    let mounted = cluster.run(0, &["mount", &from, &to]);
    assert_eq!(mounted.code, Some(0), "{}", mounted.stderr);
    let _point = Point(point.clone());
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
