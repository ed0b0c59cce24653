//! A source that changes while it is read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use staves_mount::{FileError, Files, Kind, Listing, Options, Stat, Version};

use staves_testkit::tools::can_mount;
use staves_testkit::wait_until;

use crate::{Fixture, Seen, Watched, age, errno, noise};

const SIZE: usize = 1 << 20;

fn fixture() -> Option<Fixture> {
    Fixture::new(|source| {
        std::fs::write(source.join("file"), noise(1, SIZE)).unwrap();
        age(&source.join("file"));
    })
}

/// Writes other bytes of the same size into the same file.
fn overwrite(fixture: &Fixture, seed: u64) {
    let file = File::options()
        .write(true)
        .open(fixture.source("file"))
        .unwrap();
    file.write_all_at(&noise(seed, SIZE), 0).unwrap();
}

#[test]
fn d9_open_handles_get_estale_after_an_overwrite_of_the_same_size() {
    let Some(fixture) = fixture() else { return };
    let old = File::open(fixture.at("file")).unwrap();
    let mut page = vec![0; 4096];
    old.read_exact_at(&mut page, 0).unwrap();
    overwrite(&fixture, 2);
    // What was not read before.
    let error = old
        .read_exact_at(&mut page, SIZE as u64 - 4096)
        .unwrap_err();
    assert_eq!(errno(&error), Errno::STALE);
    // Whoever opens anew has the new version, all of it.
    assert_eq!(std::fs::read(fixture.at("file")).unwrap(), noise(2, SIZE));
    // What was read before: old bytes as long as the kernel has them, then nothing.
    wait_until("the old pages are gone", || {
        match old.read_exact_at(&mut page, 0) {
            Ok(()) => {
                assert_eq!(page, noise(1, 4096));
                false
            }
            Err(error) => errno(&error) == Errno::STALE,
        }
    });
    let new = File::open(fixture.at("file")).unwrap();
    new.read_exact_at(&mut page, 4096).unwrap();
    assert_eq!(page, noise(2, SIZE)[4096..8192]);
}

#[test]
fn d9_a_new_open_sees_the_new_version_although_names_are_remembered() {
    let Some(fixture) = fixture() else { return };
    for seed in 2..12 {
        overwrite(&fixture, seed);
        assert_eq!(
            std::fs::read(fixture.at("file")).unwrap(),
            noise(seed, SIZE),
            "{seed}"
        );
    }
    // Replaced by another file, larger.
    std::fs::write(fixture.source("other"), noise(99, SIZE + 10)).unwrap();
    std::fs::rename(fixture.source("other"), fixture.source("file")).unwrap();
    assert_eq!(
        std::fs::read(fixture.at("file")).unwrap(),
        noise(99, SIZE + 10)
    );
}

#[test]
fn d9_reads_under_constant_overwrites_are_of_one_version_or_fail() {
    let Some(fixture) = fixture() else { return };
    let versions: Vec<_> = (1..4).map(|seed| noise(seed, SIZE)).collect();
    let (mut whole, mut stale) = (0, 0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for i in 0..30u64 {
                overwrite(&fixture, i % 3 + 1);
                std::thread::sleep(Duration::from_millis(i * 2));
            }
        });
        while !writer.is_finished() || whole == 0 {
            match std::fs::read(fixture.at("file")) {
                // A version lasts as long as its times: bytes from amid an overwrite are a version of their own, which
                // no test can know. But what is read twice of one handle is the same.
                Ok(bytes) => whole += usize::from(versions.contains(&bytes)),
                Err(error) => {
                    assert_eq!(errno(&error), Errno::STALE);
                    stale += 1;
                }
            }
            let file = File::open(fixture.at("file")).unwrap_or_else(|error| panic!("{error}"));
            let (mut first, mut second) = (vec![0; 8192], vec![0; 8192]);
            if file.read_exact_at(&mut first, 65536).is_ok()
                && file.read_exact_at(&mut second, 65536).is_ok()
            {
                assert_eq!(first, second, "two versions through one handle");
            }
        }
    });
    assert!(whole > 0, "{whole} whole, {stale} stale");
}

#[test]
fn a_file_that_shrank_is_stale_and_not_short() {
    let Some(fixture) = fixture() else { return };
    let old = File::open(fixture.at("file")).unwrap();
    File::options()
        .write(true)
        .open(fixture.source("file"))
        .unwrap()
        .set_len(100)
        .unwrap();
    let mut page = [0; 4096];
    let error = old.read_exact_at(&mut page, 0).unwrap_err();
    assert_eq!(errno(&error), Errno::STALE);
    assert_eq!(std::fs::read(fixture.at("file")).unwrap(), noise(1, 100));
}

#[test]
fn a_file_that_is_gone_is_gone_for_new_opens_and_stale_for_old_ones() {
    let Some(fixture) = fixture() else { return };
    let old = File::open(fixture.at("file")).unwrap();
    std::fs::remove_file(fixture.source("file")).unwrap();
    let error = File::open(fixture.at("file")).unwrap_err();
    assert_eq!(errno(&error), Errno::NOENT);
    let error = old.read_at(&mut [0; 100], 0).unwrap_err();
    assert_eq!(errno(&error), Errno::STALE);
}

#[test]
fn a_deleted_file_is_read_on_as_far_as_it_is_in_memory_by_who_has_it_open() {
    let seen = Arc::new(Seen::default());
    let options = Options {
        lifetime: Duration::ZERO,
        ..Options::default()
    };
    let fill = |source: &std::path::Path| {
        std::fs::write(source.join("file"), noise(1, SIZE)).unwrap();
        age(&source.join("file"));
    };
    let wrap = |folder| Watched {
        folder,
        seen: seen.clone(),
    };
    let Some(fixture) = Fixture::with(&options, fill, wrap) else {
        return;
    };
    let open = File::open(fixture.at("file")).unwrap();
    seen.gone.store(true, Ordering::Relaxed);
    let error = File::open(fixture.at("file")).unwrap_err();
    assert_eq!(errno(&error), Errno::NOENT);
    let mut page = vec![0; 4096];
    for at in [4096, 65536, 4096] {
        rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        open.read_exact_at(&mut page, at).unwrap();
        assert_eq!(page, noise(1, SIZE)[at as usize..][..4096]);
        assert_eq!(open.metadata().unwrap().len(), SIZE as u64);
        let rest = open.read_exact_at(&mut page, SIZE as u64 - 4096);
        assert_eq!(errno(&rest.unwrap_err()), Errno::STALE);
    }
}

/// One file whose bytes change and whose version does not: it changed twice within the grain of its times.
#[derive(Default)]
struct Sly {
    byte: AtomicU8,
    fresh: AtomicBool,
    reads: AtomicU64,
    ahead: AtomicU64,
}

impl Sly {
    fn seen(&self, kind: Kind) -> Stat {
        Stat {
            fresh: self.fresh.load(Ordering::Relaxed),
            has_holes: false,
            links: 1,
            kind,
            size: SIZE as u64,
            modified: SystemTime::UNIX_EPOCH,
            mode: 0o555,
            version: Version([1, 1]),
        }
    }
}

/// The same, shared with who mounts it.
struct Shared(Arc<Sly>);

impl Files for Shared {
    type File = Stat;

    fn stat(&self, path: &Path) -> Result<Stat, FileError> {
        match path.to_str() {
            Some("") => Ok(self.0.seen(Kind::Folder)),
            Some("file") => Ok(self.0.seen(Kind::File)),
            _ => Err(FileError::NotFound),
        }
    }

    fn list(&self, _: &Path) -> Result<Listing, FileError> {
        Ok(Listing::from_iter([(
            "file".into(),
            self.0.seen(Kind::File),
        )]))
    }

    fn open(&self, path: &Path) -> Result<Stat, FileError> {
        self.stat(path)
    }

    fn stat_open<'a>(&self, file: &'a Stat) -> &'a Stat {
        file
    }

    fn read(&self, _: &Stat, _: u64, into: &mut [u8]) -> Result<usize, FileError> {
        self.0.reads.fetch_add(1, Ordering::Relaxed);
        into.fill(self.0.byte.load(Ordering::Relaxed));
        Ok(into.len())
    }

    fn will_read(&self, _: &Stat, _: u64, _: u64) {
        self.0.ahead.fetch_add(1, Ordering::Relaxed);
    }
}

/// Regression: pages that were read while another change would not have shown were kept for whoever opened the file later.
#[test]
fn d9_pages_read_while_a_file_was_fresh_do_not_outlive_that() {
    if !can_mount() {
        return;
    }
    let sly = Arc::new(Sly::default());
    sly.fresh.store(true, Ordering::Relaxed);
    let dir = tempfile::tempdir().unwrap();
    let mounted =
        staves_mount::mount(Shared(sly.clone()), dir.path(), &Options::default()).unwrap();
    let read = || std::fs::read(dir.path().join("file")).unwrap();
    assert_eq!(read(), vec![0; SIZE]);
    assert_eq!(sly.ahead.load(Ordering::Relaxed), 0, "nor fetched ahead");
    // It changes once more, in the same tick, and nobody opens it until it is not fresh any more.
    sly.byte.store(1, Ordering::Relaxed);
    sly.fresh.store(false, Ordering::Relaxed);
    assert_eq!(read(), vec![1; SIZE]);
    // From then on its pages are kept, once the kernel has let go of the others.
    wait_until("pages are kept", || {
        let before = sly.reads.load(Ordering::Relaxed);
        assert_eq!(read(), vec![1; SIZE]);
        sly.reads.load(Ordering::Relaxed) == before
    });
    mounted.unmount().unwrap();
}

/// Regression: whoever kept a file open that is written without a sign saw the pages of its first look for as long.
#[test]
fn d9_pages_of_an_open_file_that_changes_without_a_sign_do_not_stay() {
    if !can_mount() {
        return;
    }
    let sly = Arc::new(Sly::default());
    sly.fresh.store(true, Ordering::Relaxed);
    let dir = tempfile::tempdir().unwrap();
    let mounted =
        staves_mount::mount(Shared(sly.clone()), dir.path(), &Options::default()).unwrap();
    let open = File::open(dir.path().join("file")).unwrap();
    let byte = || {
        let mut byte = [0];
        open.read_exact_at(&mut byte, 0).unwrap();
        byte[0]
    };
    for value in [3, 4] {
        sly.byte.store(value, Ordering::Relaxed);
        wait_until("its pages go", || byte() == value);
    }
    // Settled, its pages are kept, open or not.
    sly.fresh.store(false, Ordering::Relaxed);
    let reads = || sly.reads.load(Ordering::Relaxed);
    wait_until("its pages stay", || {
        let before = reads();
        for _ in 0..25 {
            assert_eq!(byte(), 4);
            std::thread::sleep(Duration::from_millis(100));
        }
        reads() == before
    });
    mounted.unmount().unwrap();
}
