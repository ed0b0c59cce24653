//! Requests that are refused, or fail for a while.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use staves_mount::{FileError, Files, Folder, FolderFile, Listing, Options, Stat};

use staves_testkit::wait_until;

use crate::{Fixture, Seen, Watched, age, errno, noise};

#[test]
fn whatever_would_change_something_gets_erofs_and_changes_nothing() {
    let Some(fixture) = Fixture::new(|source| {
        std::fs::write(source.join("file"), "bytes").unwrap();
        std::fs::create_dir(source.join("folder")).unwrap();
    }) else {
        return;
    };
    let file = fixture.at("file");
    let refused: [(&str, io::Result<()>); 10] = [
        ("write", File::options().write(true).open(&file).map(drop)),
        ("append", File::options().append(true).open(&file).map(drop)),
        (
            "truncate",
            File::options()
                .write(true)
                .truncate(true)
                .open(&file)
                .map(drop),
        ),
        ("create", File::create_new(fixture.at("new")).map(drop)),
        ("unlink", std::fs::remove_file(&file)),
        ("mkdir", std::fs::create_dir(fixture.at("new"))),
        ("rmdir", std::fs::remove_dir(fixture.at("folder"))),
        ("rename", std::fs::rename(&file, fixture.at("new"))),
        (
            "link",
            std::os::unix::fs::symlink("file", fixture.at("new")),
        ),
        (
            "chmod",
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o777)),
        ),
    ];
    for (what, result) in refused {
        assert_eq!(errno(&result.expect_err(what)), Errno::ROFS, "{what}");
    }
    assert_eq!(std::fs::read(fixture.source("file")).unwrap(), b"bytes");
    assert_eq!(std::fs::read_dir(fixture.source.path()).unwrap().count(), 2);
}

fn watched() -> Option<(Fixture, Arc<Seen>)> {
    let seen = Arc::new(Seen::default());
    let fill =
        |source: &std::path::Path| std::fs::write(source.join("file"), noise(1, 100_000)).unwrap();
    let wrap = |folder| Watched {
        folder,
        seen: seen.clone(),
    };
    let fixture = Fixture::with(&Options::default(), fill, wrap)?;
    Some((fixture, seen))
}

#[test]
fn a_read_that_nobody_answers_in_time_fails_as_such_and_the_next_succeeds() {
    let Some((fixture, seen)) = watched() else {
        return;
    };
    let file = File::open(fixture.at("file")).unwrap();
    seen.late.store(true, Ordering::Relaxed);
    let mut page = [0; 100];
    let error = file.read_exact_at(&mut page, 50_000).unwrap_err();
    assert_eq!(errno(&error), Errno::TIMEDOUT);
    seen.late.store(false, Ordering::Relaxed);
    file.read_exact_at(&mut page, 50_000).unwrap();
    assert_eq!(page, noise(1, 100_000)[50_000..50_100]);
}

/// Regression: programs ask for a file's size before they read to its end, and could not read what was in memory.
#[test]
fn who_has_a_file_open_reads_to_its_end_while_nobody_answers_for_its_name() {
    let Some((fixture, seen)) = watched() else {
        return;
    };
    let mut file = File::open(fixture.at("file")).unwrap();
    seen.silent.store(true, Ordering::Relaxed);
    // What the kernel was told is over by then.
    std::thread::sleep(Duration::from_millis(1100));
    let error = std::fs::metadata(fixture.at("other")).unwrap_err();
    assert_eq!(errno(&error), Errno::TIMEDOUT);
    let mut whole = Vec::new();
    file.read_to_end(&mut whole).unwrap();
    assert!(whole == noise(1, 100_000));
}

/// Regression: a file that its source refused from some time on ended the list of its folder in the middle, for as long as the kernel
/// knew it.
#[test]
fn a_file_that_is_refused_is_shown_as_such_and_who_has_it_open_reads_on() {
    let Some((fixture, seen)) = watched() else {
        return;
    };
    for at in 0..40 {
        std::fs::write(fixture.source(&format!("other {at}")), "bytes").unwrap();
    }
    let file = File::open(fixture.at("file")).unwrap();
    seen.refused.store(true, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(1100));
    for _ in 0..2 {
        let names = std::fs::read_dir(fixture.dir.path()).unwrap();
        let names: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
        assert_eq!(names.len(), 41, "{names:?}");
        for name in names.iter().filter(|name| *name != "file") {
            assert_eq!(
                std::fs::metadata(fixture.dir.path().join(name))
                    .unwrap()
                    .len(),
                5
            );
        }
        let error = File::open(fixture.at("file")).unwrap_err();
        assert_eq!(errno(&error), Errno::ACCESS);
    }
    let mut page = [0; 100];
    file.read_exact_at(&mut page, 50_000).unwrap();
    assert_eq!(page, noise(1, 100_000)[50_000..50_100]);
    seen.refused.store(false, Ordering::Relaxed);
    let size = || {
        std::fs::metadata(fixture.at("file"))
            .map(|meta| meta.len())
            .ok()
    };
    wait_until("it is seen again", || size() == Some(100_000));
}

/// The kernel would take fewer bytes for the file's end, and show zeroes.
#[test]
fn d9_what_gives_fewer_bytes_than_it_said_is_stale_and_never_zeroes() {
    let Some((fixture, seen)) = watched() else {
        return;
    };
    let file = File::open(fixture.at("file")).unwrap();
    seen.empty.store(true, Ordering::Relaxed);
    let error = file.read_at(&mut [0; 100], 50_000).unwrap_err();
    assert_eq!(errno(&error), Errno::STALE);
}

#[test]
fn df_shows_what_there_is_and_nothing_free() {
    let Some(fixture) = Fixture::new(|source| {
        std::fs::write(source.join("file"), noise(1, 100_000)).unwrap();
    }) else {
        return;
    };
    let shown = rustix::fs::statvfs(fixture.dir.path()).unwrap();
    assert!(shown.f_blocks * shown.f_frsize >= 100_000);
    assert_eq!((shown.f_bfree, shown.f_bavail, shown.f_ffree), (0, 0, 0));
    assert_eq!(shown.f_namemax, 255);
}

/// A folder all of whose reads are held until they are let go, but for the first half of each file, which is at hand.
struct Stuck {
    folder: Folder,
    held: Arc<AtomicU64>,
    go: Arc<AtomicBool>,
}

impl Files for Stuck {
    type File = FolderFile;

    fn stat(&self, path: &Path) -> Result<Stat, FileError> {
        self.folder.stat(path)
    }

    fn list(&self, path: &Path) -> Result<Listing, FileError> {
        self.folder.list(path)
    }

    fn open(&self, path: &Path) -> Result<FolderFile, FileError> {
        self.folder.open(path)
    }

    fn stat_open<'a>(&self, file: &'a FolderFile) -> &'a Stat {
        self.folder.stat_open(file)
    }

    fn read(&self, file: &FolderFile, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        self.held.fetch_add(1, Ordering::SeqCst);
        let since = Instant::now();
        while !self.go.load(Ordering::SeqCst) && since.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.folder.read(file, offset, into)
    }

    fn read_now(&self, file: &FolderFile, offset: u64, into: &mut [u8]) -> bool {
        let half = self.stat_open(file).size / 2;
        let is_here = offset + into.len() as u64 <= half;
        is_here && self.folder.read(file, offset, into) == Ok(into.len())
    }
}

/// Regression: reads that waited for a source took all threads that serve the kernel, and what was in memory could not be read.
#[test]
fn what_is_at_hand_is_read_while_others_wait_for_what_is_not() {
    const FILES: u64 = 40;
    const SIZE: usize = 1 << 20;
    let (held, go) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let fill = |source: &Path| {
        for i in 0..FILES {
            let path = source.join(i.to_string());
            std::fs::write(&path, noise(i, SIZE)).unwrap();
            age(&path);
        }
    };
    let wrap = |folder| Stuck {
        folder,
        held: held.clone(),
        go: go.clone(),
    };
    let Some(fixture) = Fixture::with(&Options::default(), fill, wrap) else {
        return;
    };
    let files: Vec<File> = (0..FILES)
        .map(|i| File::open(fixture.at(&i.to_string())).unwrap())
        .collect();
    std::thread::scope(|scope| {
        // Whatever fails below, nobody waits for ever.
        let _go = Release(&go);
        let waiting: Vec<_> = (0..FILES)
            .map(|i| {
                let file = &files[i as usize];
                scope.spawn(move || {
                    let mut bytes = [0; 4096];
                    file.read_exact_at(&mut bytes, SIZE as u64 - 4096).unwrap();
                    assert_eq!(bytes[..], noise(i, SIZE)[SIZE - 4096..]);
                })
            })
            .collect();
        wait_until("all of them wait", || held.load(Ordering::SeqCst) >= FILES);
        let (done, read) = std::sync::mpsc::channel();
        let file = &files[0];
        scope.spawn(move || {
            let mut bytes = [0; 4096];
            file.read_exact_at(&mut bytes, 0).unwrap();
            let _ = done.send(bytes);
        });
        let bytes = read.recv_timeout(Duration::from_secs(30));
        assert_eq!(bytes.expect("it is at hand")[..], noise(0, SIZE)[..4096]);
        go.store(true, Ordering::SeqCst);
        for one in waiting {
            one.join().unwrap();
        }
    });
}

/// Lets go, however a test ends.
struct Release<'a>(&'a AtomicBool);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
