//! A source that a program writes through a shared mapping.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
