//! Files that programs have open or mapped while nodes die, memory rots and sources change.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use staves_testkit::tools::{can_mount, runs};

use super::mount::{Point, bytes};
use super::{Cluster, PATIENCE};

/// Files count as changing until two seconds after their last change.
pub const SETTLED: Duration = Duration::from_millis(2100);
pub const MIB: usize = 1 << 20;

/// A cluster with a mounted folder, with settled files in it.
pub struct Mounted {
    // Fields are dropped in this order.
    _point: Point,
    pub at: PathBuf,
    pub source: PathBuf,
    cluster: Cluster,
    _dir: tempfile::TempDir,
}

impl Mounted {
    pub fn new(nodes: usize, files: &[(&str, &[u8])]) -> Mounted {
        let cluster = Cluster::start(nodes);
        let dir = tempfile::tempdir().expect("a folder");
        let (source, at) = (dir.path().join("data"), dir.path().join("mnt"));
        std::fs::create_dir(&source).expect("a folder");
        std::fs::create_dir(&at).expect("a folder");
        for (name, bytes) in files {
            std::fs::write(source.join(name), bytes).expect("a file");
        }
        std::thread::sleep(SETTLED);
        cluster.files_pool();
        let (from, to) = (source.to_string_lossy(), at.to_string_lossy());
        let mounted = cluster.run(0, &["mount", &from, &to]);
        assert_eq!(mounted.code, Some(0), "{}", mounted.stderr);
        Mounted {
            _point: Point(at.clone()),
            at,
            source,
            cluster,
            _dir: dir,
        }
    }

    pub fn preload(&self, name: &str) {
        let ran = self.cluster.run(0, &["files", "preload", "data", name]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
}

impl Cluster {
    /// Makes a pool for files, and waits until every bucket has a holder.
    pub fn files_pool(&self) {
        let pool = ["pool", "create", "files", "--kind", "files"];
        let made = self.run(0, &[&pool[..], &["--memory", "48MiB"]].concat());
        assert_eq!(made.code, Some(0), "{}", made.stderr);
        self.wait_for("every bucket has a holder", 0, |s| {
            let pools = s["pools"].as_array().into_iter().flatten();
            let mut files = pools.filter(|p| p["kind"] == "files");
            files.any(|p| p["whole"] == p["buckets"])
        });
    }
}

/// The page cache lets go of a file.
fn forget_pages(file: &File) {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
}

/// Maps a file, and touches pages at random until it is told to end by a file, or gets wrong bytes. A page that cannot be
/// had is a signal, which ends it.
const TOUCH: &str = "
import mmap, os, random, sys, time
path, source, stop = sys.argv[1:]
want = open(source, 'rb').read()
f = open(path, 'rb')
m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
pages = random.Random(1)
longest = 0
while not os.path.exists(stop):
    for _ in range(300):
        at = pages.randrange(len(m) >> 12) << 12
        began = time.monotonic()
        got = m[at:at + 4096]
        longest = max(longest, time.monotonic() - began)
        if got != want[at:at + 4096]:
            sys.exit('wrong bytes at %d' % at)
    m.madvise(mmap.MADV_DONTNEED)
    os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    print('touched', flush=True)
print(longest, flush=True)
";

pub struct Reader(pub Child);

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Rows D8, D9 and D11: who has mapped a file sees the right bytes, and no SIGBUS, while nodes are killed until none is left.
#[test]
fn d11_a_mapped_file_is_read_on_while_every_node_is_killed() {
    if !can_mount() || !runs("python3", &["--version"]) {
        return;
    }
    let whole = bytes(16 * MIB);
    let mut mounted = Mounted::new(3, &[("mapped", &whole)]);
    let stop = mounted.source.with_file_name("stop");
    let mut reader = Command::new("python3")
        .args(["-c", TOUCH])
        .args([mounted.at.join("mapped"), mounted.source.join("mapped")])
        .arg(&stop)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map(Reader)
        .expect("it starts");
    let said = reader.0.stdout.take().expect("a pipe");
    let mut said = BufReader::new(said).lines();
    let mut touched = |times: usize| {
        for _ in 0..times {
            if said.next().is_none_or(|line| line.is_err()) {
                return false;
            }
        }
        true
    };
    let mut went_on = touched(5);
    for node in [1, 2, 0] {
        mounted.cluster.end(node, "-KILL");
        went_on = went_on && touched(10);
    }
    std::fs::write(stop, "").expect("a file");
    let last = said.map_while(Result::ok).last();
    let mut why = String::new();
    let stderr = reader.0.stderr.take().expect("a pipe");
    std::io::Read::read_to_string(&mut BufReader::new(stderr), &mut why).ok();
    let ended = reader.0.wait().expect("it ends");
    assert!(went_on && ended.success(), "{ended}: {why}");
    let longest: f64 = last.and_then(|l| l.parse().ok()).expect("seconds");
    assert!(longest < 30.0, "a page took {longest} s");
}

/// Row D9: what rots in the memory that a mount shares with its node is never read.
#[test]
fn d9_a_flipped_bit_in_shared_memory_is_never_read() {
    if !can_mount() {
        return;
    }
    let whole = bytes(2 * MIB);
    let mounted = Mounted::new(1, &[("rotten", &whole)]);
    mounted.preload("rotten");
    let path = mounted.at.join("rotten");
    let file = File::open(&path).expect("it is there");
    assert!(std::fs::read(&path).expect("bytes") == whole);
    let node = mounted.cluster.nodes[0].child.as_ref().expect("it runs");
    let memory = shared_memory(node.id());
    let pages: Vec<u64> = (0..whole.len() as u64).step_by(4096).collect();
    let at = places(&memory, &whole, &pages);
    assert_eq!(
        at.len(),
        pages.len(),
        "every page lies in the shared memory"
    );
    for (i, (page, place)) in at.iter().enumerate() {
        // Each page elsewhere: its first byte, its last, those between.
        let bit = (i * 997) as u64 % (4096 * 8);
        let mut byte = [0];
        memory
            .read_exact_at(&mut byte, place + bit / 8)
            .expect("memory");
        byte[0] ^= 1 << (bit % 8);
        memory.write_all_at(&byte, place + bit / 8).expect("memory");
        forget_pages(&file);
        let mut got = vec![0; 4096];
        file.read_exact_at(&mut got, *page)
            .expect("the source has it");
        let page = *page as usize;
        assert!(got == whole[page..page + 4096], "a rotten page {page}");
    }
    forget_pages(&file);
    assert!(std::fs::read(&path).expect("bytes") == whole);
}

/// The memory of a node's blocks.
fn shared_memory(node: u32) -> File {
    let all = std::fs::read_dir(format!("/proc/{node}/fd")).expect("its descriptors");
    let is_it = |path: &PathBuf| {
        let to = std::fs::read_link(path).unwrap_or_default();
        to.to_string_lossy().contains("memfd:staves-blocks")
    };
    let path = all.flatten().map(|entry| entry.path()).find(is_it);
    let path = path.expect("a node with a files pool has memory for blocks");
    let opened = File::options().read(true).write(true).open(path);
    opened.expect("its memory can be opened")
}

/// The places of a file's pages in memory, which keeps them at multiples of 4 KiB: page and place.
fn places(memory: &File, whole: &[u8], pages: &[u64]) -> Vec<(u64, u64)> {
    let head = |page: u64| &whole[page as usize..page as usize + 32];
    let wanted: std::collections::HashMap<_, _> = pages.iter().map(|p| (head(*p), *p)).collect();
    let size = memory.metadata().expect("its size").size();
    let mut found = Vec::new();
    let mut bytes = [0; 32];
    for place in (0..size.saturating_sub(32)).step_by(4096) {
        memory.read_exact_at(&mut bytes, place).expect("memory");
        if let Some(page) = wanted.get(&bytes[..]) {
            found.push((*page, place));
        }
    }
    found
}

/// Row D9: same-size overwrites and replacements under readers. A handle gives one version or says ESTALE; whoever opens anew
/// has the new one soon.
#[test]
fn d9_versions_are_never_mixed_under_many_overwrites() {
    if !can_mount() {
        return;
    }
    const SIZE: usize = 512 << 10;
    let mounted = Mounted::new(1, &[("f", &[1; SIZE])]);
    let (path, source) = (mounted.at.join("f"), mounted.source.join("f"));
    // A source that is amid an overwrite has mixed bytes itself: no read comes between.
    let still = RwLock::new(());
    let over = AtomicBool::new(false);
    let read_whole = |file: &File| -> std::io::Result<u8> {
        let mut seen = None;
        for piece in 0..8u64 {
            let mut got = vec![0; SIZE / 8];
            let _still = still.read().expect("no panic");
            // Every other piece first.
            file.read_exact_at(&mut got, (piece * 3 % 8) * (SIZE as u64 / 8))?;
            let of = *seen.get_or_insert(got[0]);
            assert!(got.iter().all(|b| *b == of), "a mix of versions");
        }
        Ok(seen.expect("eight pieces"))
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let file = match File::open(&path) {
                        Ok(file) => file,
                        Err(error) => {
                            assert_eq!(error.raw_os_error(), Some(116), "{error}");
                            continue;
                        }
                    };
                    let mut first = None;
                    for _ in 0..20 {
                        match read_whole(&file) {
                            Ok(seen) => {
                                assert_eq!(*first.get_or_insert(seen), seen, "one handle");
                            }
                            Err(error) => {
                                assert_eq!(error.raw_os_error(), Some(116), "{error}");
                                break;
                            }
                        }
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            });
        }
        scope.spawn(|| {
            let _over = Over(&over);
            for version in 2..60u8 {
                overwrite(&source, version, &still, SIZE);
                // Some stay until they are kept in memory.
                let slow = version % 20 == 0;
                std::thread::sleep(match slow {
                    true => SETTLED + Duration::from_millis(500),
                    false => Duration::from_millis(30),
                });
                if slow {
                    opens_anew(&path, version, &read_whole);
                }
            }
        });
    });
}

/// Ends the readers, however the writer ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn overwrite(source: &Path, version: u8, still: &RwLock<()>, size: usize) {
    let _still = still.write().expect("no panic");
    let bytes = vec![version; size];
    if version.is_multiple_of(2) {
        let file = File::options().write(true).open(source).expect("a file");
        file.write_all_at(&bytes, 0).expect("it is overwritten");
    } else {
        let other = source.with_file_name("other");
        std::fs::write(&other, bytes).expect("a file");
        std::fs::rename(other, source).expect("it is replaced");
    }
}

fn opens_anew(path: &Path, version: u8, read: &dyn Fn(&File) -> std::io::Result<u8>) {
    let until = Instant::now() + PATIENCE;
    while File::open(path).and_then(|file| read(&file)).ok() != Some(version) {
        assert!(Instant::now() < until, "version {version} is never seen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A file that is deleted at the source: who has it open reads on what is in memory; of the rest it is said that it is stale.
#[test]
fn d9_a_deleted_file_is_read_on_from_memory_by_who_has_it_open() {
    if !can_mount() {
        return;
    }
    let (kept, unread) = (bytes(4 * MIB), bytes(MIB));
    let mounted = Mounted::new(1, &[("kept", &kept), ("unread", &unread)]);
    mounted.preload("kept");
    let open = |name| File::open(mounted.at.join(name)).expect("it is there");
    let (in_memory, nowhere) = (open("kept"), open("unread"));
    for name in ["kept", "unread"] {
        std::fs::remove_file(mounted.source.join(name)).expect("it was there");
    }
    let gone = File::open(mounted.at.join("kept")).expect_err("it is deleted");
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
    // Names and attributes are remembered for a second.
    std::thread::sleep(Duration::from_millis(1200));
    let error = nowhere
        .read_at(&mut [0; 4096], 0)
        .expect_err("nobody has it");
    assert_eq!(error.raw_os_error(), Some(116), "ESTALE: {error}");
    let mut got = vec![0; kept.len()];
    for _ in 0..2 {
        forget_pages(&in_memory);
        in_memory
            .read_exact_at(&mut got, 0)
            .expect("it is in memory");
        assert!(got == kept);
        assert_eq!(in_memory.metadata().expect("it is open").len(), 4 << 20);
    }
}
