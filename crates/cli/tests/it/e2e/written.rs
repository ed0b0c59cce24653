//! A source that a program writes through a shared mapping.

use std::fs::{File, FileTimes};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use staves_testkit::tools::{can_mount, runs};

use super::PATIENCE;
use super::mapped::{MIB, Mounted, Reader, SETTLED};

/// Maps a file, closes it, and writes each byte that it is given all over the mapping.
const WRITE: &str = "
import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(f, 0)
os.close(f)
for line in sys.stdin:
    m[:] = bytes([int(line)]) * len(m)
    print('written', flush=True)
";

/// Regression: a program that writes the source through a mapping moves its times once, and what was read then was given out from
/// memory for minutes (row D9).
#[test]
fn d9_a_file_that_is_written_through_a_mapping_is_never_read_as_it_was() {
    if !can_mount() || !runs("python3", &["--version"]) {
        return;
    }
    let mounted = Mounted::new(1, &[("f", &[1; MIB])]);
    let mut writer = Command::new("python3")
        .args(["-c", WRITE])
        .arg(mounted.source.join("f"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map(Reader)
        .expect("it starts");
    let said = writer.0.stdout.take().expect("a pipe");
    let mut said = BufReader::new(said).lines();
    let mut to = writer.0.stdin.take().expect("a pipe");
    let mut write = |byte: u8| {
        writeln!(to, "{byte}").expect("it listens");
        said.next().expect("it answers").expect("a line");
    };
    let path = mounted.at.join("f");
    write(2);
    std::thread::sleep(SETTLED);
    let times = || {
        std::fs::metadata(mounted.source.join("f"))
            .expect("it is there")
            .ctime_nsec()
    };
    let before = times();
    let kept_open = File::open(&path).expect("it is there");
    for byte in 3..10 {
        write(byte);
        assert_eq!(times(), before, "a blind test otherwise");
        let got = std::fs::read(&path).expect("bytes");
        assert!(got == [byte; MIB], "{} for {byte}", got[0]);
    }
    let until = Instant::now() + PATIENCE;
    let mut got = [0];
    while got != [9] {
        assert!(Instant::now() < until, "it is open with {got:?}");
        kept_open.read_exact_at(&mut got, 7 * 4096).expect("a byte");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop((to, writer));
    mounted.preload("f");
    assert!(std::fs::read(&path).expect("bytes") == [9; MIB]);
}

/// Regression: a backup that makes hard links, or a change of modes, was taken for another version, and whoever had the file open got
/// an error.
#[test]
fn who_reads_a_file_reads_on_while_a_backup_links_it() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(1, &[("f", &[1; MIB])]);
    let (from, path) = (mounted.source.join("f"), mounted.at.join("f"));
    let open = File::open(&path).expect("it is there");
    let inode = open.metadata().expect("attributes").ino();
    let mut got = vec![0; 8192];
    open.read_exact_at(&mut got, 0).expect("bytes");
    let links = || std::fs::metadata(&path).expect("attributes").nlink();
    assert_eq!(links(), 1);
    std::fs::hard_link(&from, mounted.source.join("backup")).expect("a link");
    let modes = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&from, modes).expect("modes");
    // Attributes are looked at again, and read anew: what was not read before comes from the source.
    let until = Instant::now() + PATIENCE;
    while links() != 2 {
        assert!(Instant::now() < until, "the link is never seen");
        std::thread::sleep(Duration::from_millis(100));
    }
    for at in (0..MIB).step_by(64 << 10) {
        rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
        open.read_exact_at(&mut got, at as u64)
            .expect("the same version");
        assert!(got == [1; 8192]);
    }
    assert_eq!(std::fs::metadata(&path).expect("it is there").ino(), inode);
    // One that writes, and sets the time back, is told from that.
    let before = std::fs::metadata(&from).expect("attributes");
    let writer = File::options().write(true).open(&from).expect("a file");
    writer.write_all_at(&[2; MIB], 0).expect("written");
    let times = FileTimes::new().set_modified(before.modified().expect("a time"));
    writer.set_times(times).expect("times");
    drop(writer);
    let until = Instant::now() + PATIENCE;
    loop {
        match std::fs::read(&path) {
            Ok(now) if now == [2; MIB] => break,
            Ok(now) => assert!(now == [1; MIB], "a mix of versions"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(116), "ESTALE: {error}"),
        }
        assert!(Instant::now() < until, "the new bytes are never seen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Holes and names are shown as the source has them.
#[test]
fn holes_and_links_of_a_source_are_shown() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(1, &[("solid", &[1; MIB])]);
    let sparse = File::create(mounted.source.join("sparse")).expect("a file");
    sparse.set_len(16 * MIB as u64).expect("a length");
    sparse
        .write_all_at(&[7; 4096], 8 * MIB as u64)
        .expect("bytes");
    drop(sparse);
    let seek = |name: &str, to| {
        let file = File::open(mounted.at.join(name)).expect("it is there");
        rustix::fs::seek(&file, to)
    };
    let there = std::fs::metadata(mounted.source.join("sparse")).expect("attributes");
    if there.blocks() * 512 < there.size() {
        let start = 8 * MIB as u64;
        assert_eq!(seek("sparse", SeekFrom::Data(0)), Ok(start));
        assert_eq!(seek("sparse", SeekFrom::Hole(start)), Ok(start + 4096));
        assert_eq!(seek("sparse", SeekFrom::Hole(5)), Ok(5));
        assert_eq!(
            seek("sparse", SeekFrom::Data(start + 4096)),
            Err(Errno::NXIO)
        );
        let shown = std::fs::metadata(mounted.at.join("sparse")).expect("attributes");
        assert!(
            shown.blocks() * 512 < shown.size(),
            "programs look for holes"
        );
    }
    assert_eq!(seek("solid", SeekFrom::Data(5)), Ok(5));
    assert_eq!(seek("solid", SeekFrom::Hole(5)), Ok(MIB as u64));
    assert_eq!(seek("solid", SeekFrom::Data(MIB as u64)), Err(Errno::NXIO));
    std::fs::create_dir_all(mounted.source.join("a/b")).expect("folders");
    std::fs::hard_link(mounted.source.join("solid"), mounted.source.join("a/more"))
        .expect("a link");
    for name in ["", "a", "a/more", "sparse"] {
        let links = |at: &Path| {
            std::fs::metadata(at.join(name))
                .expect("attributes")
                .nlink()
        };
        let until = Instant::now() + PATIENCE;
        while links(&mounted.at) != links(&mounted.source) {
            assert!(Instant::now() < until, "{name}: {}", links(&mounted.at));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
