//! A program that writes a file of the source through a shared mapping: the file's times move at its first write to a page alone.

use std::fs::{File, FileTimes};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use staves_files::{FileVersion, Keep, Kind, Source};
use staves_testkit::tools::{missing, python, runs, skip};

/// A file counts as changing until two seconds after its last change.
const SETTLED: Duration = Duration::from_millis(2100);
const SIZE: u64 = 8192;
/// Looks at a file that others open meanwhile: so many that some come between taking a lease and giving it back.
const LOOKS: usize = 30_000;

/// Maps a file and closes it; writes each byte that it is given all over the mapping. Python's own mappings keep a descriptor.
const WRITE: &str = "
import ctypes, mmap, os, sys
c = ctypes.CDLL(None)
c.mmap.restype = ctypes.c_void_p
f = os.open(sys.argv[1], os.O_RDWR)
size = os.fstat(f).st_size
prot = mmap.PROT_READ | mmap.PROT_WRITE
at = c.mmap(None, ctypes.c_size_t(size), prot, mmap.MAP_SHARED, f, ctypes.c_long(0))
os.close(f)
print('mapped', flush=True)
for line in sys.stdin:
    ctypes.memset(at, int(line), size)
    print('written', flush=True)
";

/// A writer by a shared mapping, until it is dropped.
struct Writer(Child, ChildStdin, BufReader<ChildStdout>);

impl Writer {
    fn map(path: &Path) -> Writer {
        let mut python = Command::new(python());
        python.args(["-c", WRITE]).arg(path);
        let mut child = python
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut writer = Writer(child, to, BufReader::new(from));
        writer.says("mapped\n");
        writer
    }

    fn write(&mut self, byte: u8) {
        writeln!(self.1, "{byte}").expect("it listens");
        self.says("written\n");
    }

    fn says(&mut self, what: &str) {
        let mut said = String::new();
        self.2.read_line(&mut said).expect("it answers");
        assert_eq!(said, what);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The version, and whether it is fresh, as it is opened.
async fn open(source: &Source) -> (FileVersion, bool) {
    let source = source.clone();
    let stat = tokio::task::spawn_blocking(move || source.stat_to_open(b"f"));
    let stat = stat.await.unwrap().unwrap();
    let Kind::File { version, fresh } = stat.kind else {
        panic!("it is a file");
    };
    let file = FileVersion {
        dataset: "d".into(),
        path: b"f".to_vec(),
        version,
        size: SIZE,
    };
    (file, fresh)
}

/// Regression: bytes were kept while a program wrote the file through a mapping, and were given out for its later ones (row D9).
#[tokio::test]
async fn d9_nothing_is_kept_of_a_file_that_a_program_has_mapped_for_writing() {
    if !runs(&python(), &["--version"]) {
        return missing("there is no python3");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, [1; SIZE as usize]).unwrap();
    let source = Source::parse(dir.path().to_str().unwrap()).unwrap();
    let mut writer = Writer::map(&path);
    writer.write(2);
    tokio::time::sleep(SETTLED).await;
    let (first, fresh) = open(&source).await;
    assert!(fresh, "whoever opens it keeps nothing");
    for byte in 3..6 {
        let (file, _) = open(&source).await;
        assert_eq!(file, first, "its times do not move: a blind test otherwise");
        writer.write(byte);
        let (bytes, keep) = source.read(&file, 0, 4096).await.unwrap();
        assert_eq!((bytes[0], keep), (byte, Keep::NotYet));
    }
    drop(writer);
    let (file, fresh) = open(&source).await;
    let (bytes, keep) = source.read(&file, 0, 4096).await.unwrap();
    assert_eq!((bytes[0], keep, fresh), (5, Keep::Yes, false));
    // The next writer's first write makes another version of it, before anybody sees the bytes.
    let mut writer = Writer::map(&path);
    writer.write(7);
    assert_ne!(open(&source).await.0, file);
    assert!(source.read(&file, 0, 4096).await.is_err());
}

/// An overlay file system, until it is dropped.
struct Overlay(tempfile::TempDir);

impl Overlay {
    fn mount() -> Option<Overlay> {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path.display().to_string()
        };
        let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(at);
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "overlay", "overlay", "-o", &options, &merged]);
        let said = mount.output().ok()?;
        said.status.success().then_some(Overlay(dir))
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("merged")
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// Regression: overlayfs grants a lease on a file that a program has mapped and closed, and reports no end of it. A write through the
/// mapping, whose time was set back, was taken for a change of modes, and older bytes were given out for good (row D9).
#[tokio::test]
async fn d9_on_overlayfs_each_of_the_times_counts_and_what_rests_is_kept() {
    if !runs(&python(), &["--version"]) {
        return missing("there is no python3");
    }
    let Some(overlay) = Overlay::mount() else {
        return skip("no overlay can be mounted here");
    };
    let path = overlay.path().join("f");
    std::fs::write(&path, [1; SIZE as usize]).unwrap();
    let source = Source::parse(overlay.path().to_str().unwrap()).unwrap();
    let mut writer = Writer::map(&path);
    tokio::time::sleep(SETTLED).await;
    let (file, fresh) = open(&source).await;
    let (bytes, keep) = source.read(&file, 0, 4096).await.unwrap();
    assert_eq!((bytes[0], keep, fresh), (1, Keep::Yes, false), "it rests");
    let before = std::fs::metadata(&path).unwrap();
    writer.write(2);
    // Both times, as `cp -p` and `touch -r` do: one alone is reported as a write.
    let times = FileTimes::new().set_modified(before.modified().unwrap());
    let times = times.set_accessed(before.accessed().unwrap());
    File::open(&path).unwrap().set_times(times).unwrap();
    let after = std::fs::metadata(&path).unwrap();
    assert_eq!(before.modified().unwrap(), after.modified().unwrap());
    assert_ne!(open(&source).await.0, file);
    assert!(source.read(&file, 0, 4096).await.is_err());
    drop(writer);
    tokio::time::sleep(SETTLED).await;
    let (file, _) = open(&source).await;
    let (bytes, keep) = source.read(&file, 0, 4096).await.unwrap();
    assert_eq!((bytes[0], keep), (2, Keep::Yes));
    // Who has it open for writing is reported there, too.
    let writer = File::options().write(true).open(&path).unwrap();
    assert!(open(&source).await.1);
    drop(writer);
    assert!(!open(&source).await.1);
}

/// A program that opens a file for writing just then has a signal sent to whoever holds the lease: it must not end the process.
#[tokio::test]
async fn writers_that_come_and_go_end_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, [1; SIZE as usize]).unwrap();
    let source = Source::parse(dir.path().to_str().unwrap()).unwrap();
    let (file, _) = open(&source).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let writing = std::thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            drop(File::options().write(true).open(&path).unwrap());
        }
    });
    for _ in 0..LOOKS {
        let (bytes, _) = source.read(&file, 0, 4096).await.unwrap();
        assert_eq!(bytes[0], 1);
    }
    is_over.store(true, Ordering::Relaxed);
    writing.join().unwrap();
}
