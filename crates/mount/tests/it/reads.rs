//! The amount that is read of a mount for the reads of programs.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use staves_mount::Options;

use staves_testkit::tools::{missing, skip};

use crate::{Fixture, Seen, Watched, age, noise, settle};

const SIZE: usize = 16 << 20;

fn watched() -> Option<(Fixture, Arc<Seen>)> {
    let seen = Arc::new(Seen::default());
    let fill = |source: &std::path::Path| {
        std::fs::write(source.join("file"), noise(1, SIZE)).unwrap();
        age(&source.join("file"));
        let sparse = File::create(source.join("sparse")).unwrap();
        sparse.set_len(64 << 30).unwrap();
        age(&source.join("sparse"));
        settle();
    };
    let wrap = |folder| Watched {
        folder,
        seen: seen.clone(),
    };
    let fixture = Fixture::with(&Options::default(), fill, wrap)?;
    Some((fixture, seen))
}

#[test]
fn random_reads_fetch_little_more_than_was_asked_for() {
    let Some((fixture, seen)) = watched() else {
        return;
    };
    let file = File::open(fixture.at("file")).unwrap();
    let mut asked = 0;
    for i in 1..1000u64 {
        let at = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (SIZE as u64 - 8192);
        file.read_exact_at(&mut [0; 8192], at).unwrap();
        asked += 8192;
    }
    let fetched = seen.bytes.load(Ordering::Relaxed);
    assert!(fetched <= asked * 4, "{fetched} for {asked}");
    assert_eq!(seen.ahead_bytes.load(Ordering::Relaxed), 0);
}

/// The kernel reads as much around each fault as it is told to at most.
#[test]
fn random_page_faults_fetch_four_pages_each_at_most() {
    let Some((fixture, seen)) = watched() else {
        return;
    };
    let program = "import sys, mmap\n\
        f = open(sys.argv[1], 'rb')\n\
        m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n\
        print(sum(m[i * 1000003 % (len(m) >> 12) << 12] for i in range(4000)))";
    let path = fixture.at("sparse");
    let run = std::process::Command::new("python3")
        .args(["-c", program])
        .arg(path)
        .output();
    match run {
        Ok(output) if output.status.success() => {}
        other => return missing(format_args!("python3 does not run: {other:?}")),
    }
    let fetched = seen.bytes.load(Ordering::Relaxed);
    if !rustix::process::geteuid().is_root() {
        return skip("only root may set how far the kernel reads ahead");
    }
    assert!(fetched <= 4000 * 4 * 4096, "{fetched}");
    assert_eq!(seen.ahead_bytes.load(Ordering::Relaxed), 0, "nor do we");
}

#[test]
fn who_reads_in_order_is_read_for_ahead_in_large_requests() {
    let Some((fixture, seen)) = watched() else {
        return;
    };
    let mut file = File::open(fixture.at("file")).unwrap();
    let mut bytes = vec![0; 1 << 20];
    while file.read(&mut bytes).unwrap() > 0 {}
    let (reads, fetched) = (
        seen.reads.load(Ordering::Relaxed),
        seen.bytes.load(Ordering::Relaxed),
    );
    assert_eq!(fetched, SIZE as u64, "each byte once");
    assert!(fetched / reads >= 100 << 10, "{reads} reads");
    let ahead = seen.ahead_bytes.load(Ordering::Relaxed);
    assert!(ahead > SIZE as u64 / 2 && ahead <= SIZE as u64, "{ahead}");
}

#[test]
fn reading_ahead_ends_with_a_jump_and_begins_again_with_a_run() {
    let Some((fixture, seen)) = watched() else {
        return;
    };
    let file = File::open(fixture.at("file")).unwrap();
    let mut bytes = vec![0; 256 << 10];
    let mut run = |from: u64| {
        for i in 0..12 {
            file.read_exact_at(&mut bytes, from + (i << 18)).unwrap();
        }
        seen.ahead_bytes.load(Ordering::Relaxed)
    };
    let first = run(0);
    assert!(first > 0);
    for i in 1..200u64 {
        // In the last half, so that nothing is near to what was read before.
        let at = (8 << 20) + i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (7 << 20);
        file.read_exact_at(&mut [0; 8192], at).unwrap();
    }
    let jumped = seen.ahead_bytes.load(Ordering::Relaxed);
    assert_eq!(jumped, first, "nothing is read ahead of jumps");
    assert!(run(4 << 20) > jumped);
}

#[test]
fn the_kernel_reads_ahead_as_far_as_it_was_told() {
    for kib in [16, 64] {
        let options = Options {
            kernel_read_ahead_kib: kib,
            ..Options::default()
        };
        let Some(fixture) = Fixture::with(&options, |_| {}, |folder| folder) else {
            return;
        };
        if !rustix::process::geteuid().is_root() {
            return skip("only root may set how far the kernel reads ahead");
        }
        let device = std::fs::metadata(fixture.dir.path()).unwrap().dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        let set = std::fs::read_to_string(knob).unwrap();
        assert_eq!(set.trim(), kib.to_string());
    }
}

#[test]
fn what_the_kernel_has_is_not_read_again_by_the_next_open() {
    let Some((fixture, seen)) = watched() else {
        return;
    };
    std::fs::read(fixture.at("file")).unwrap();
    let fetched = seen.bytes.load(Ordering::Relaxed);
    assert_eq!(std::fs::read(fixture.at("file")).unwrap(), noise(1, SIZE));
    assert_eq!(seen.bytes.load(Ordering::Relaxed), fetched);
}
