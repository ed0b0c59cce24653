//! Mounting and unmounting, by this and by other processes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use staves_mount::{EndSignals, Folder, MountError, Options, mount, ready, unmount};

use staves_testkit::tools::can_mount;
use staves_testkit::wait_until;

use crate::{Fixture, noise};

/// Not a test: mounts in a process of its own, for the tests below, which start it.
#[test]
#[ignore = "the other tests start it"]
fn a_process_that_mounts() {
    let var = |name| std::env::var_os(name).expect("started by a test");
    let files = Folder::open(Path::new(&var("STAVES_TEST_SOURCE"))).unwrap();
    let dir = var("STAVES_TEST_DIR");
    let signals = EndSignals::catch().unwrap();
    let mounted = mount(files, Path::new(&dir), &Options::default()).unwrap();
    println!("\nmounted");
    // A signal may come before it serves.
    std::thread::sleep(std::time::Duration::from_millis(300));
    mounted.serve(signals).unwrap();
    println!("\nended");
}

struct Process(Child);

impl Process {
    fn start(source: &Path, dir: &Path) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "points::a_process_that_mounts",
                "--ignored",
                "--nocapture",
            ])
            .env("STAVES_TEST_SOURCE", source)
            .env("STAVES_TEST_DIR", dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.as_mut().unwrap());
        assert!(
            out.lines().any(|line| line.unwrap() == "mounted"),
            "it did not mount"
        );
        Process(child)
    }

    fn signal(&mut self, signal: Signal) {
        let id = Pid::from_child(&self.0);
        kill_process(id, signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn source() -> tempfile::TempDir {
    let source = tempfile::tempdir().unwrap();
    std::fs::write(source.path().join("file"), noise(1, 100_000)).unwrap();
    source
}

#[test]
fn what_a_killed_process_left_is_repaired_by_the_next_mount() {
    if !can_mount() {
        return;
    }
    let (source, dir) = (source(), tempfile::tempdir().unwrap());
    let mut killed = Process::start(source.path(), dir.path());
    assert_eq!(
        std::fs::read(dir.path().join("file")).unwrap(),
        noise(1, 100_000)
    );
    killed.signal(Signal::KILL);
    killed.0.wait().unwrap();
    let error = std::fs::read_dir(dir.path()).unwrap_err();
    assert_eq!(crate::errno(&error), rustix::io::Errno::NOTCONN);
    let files = Folder::open(source.path()).unwrap();
    let mounted = mount(files, dir.path(), &Options::default()).unwrap();
    assert_eq!(
        std::fs::read(dir.path().join("file")).unwrap(),
        noise(1, 100_000)
    );
    mounted.unmount().unwrap();
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "nothing is left there"
    );
}

#[test]
fn a_process_told_to_end_unmounts_although_a_file_is_open() {
    if !can_mount() {
        return;
    }
    let (source, dir) = (source(), tempfile::tempdir().unwrap());
    let mut process = Process::start(source.path(), dir.path());
    let open = File::open(dir.path().join("file")).unwrap();
    process.signal(Signal::TERM);
    assert!(process.0.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    // The handle fails; it does not hang.
    assert!(open.read_at(&mut [0; 4096], 50_000).is_err());
}

#[test]
fn a_mount_is_unmounted_by_another_process_and_its_own_ends() {
    if !can_mount() {
        return;
    }
    let (source, dir) = (source(), tempfile::tempdir().unwrap());
    let mut process = Process::start(source.path(), dir.path());
    let open = File::open(dir.path().join("file")).unwrap();
    let busy = unmount(dir.path(), false).unwrap_err();
    assert!(matches!(busy, MountError::Busy { .. }), "{busy}");
    drop(open);
    // Closing is told to the process that serves a moment later.
    wait_until("it is not busy any more", || {
        unmount(dir.path(), false).is_ok()
    });
    assert!(process.0.wait().unwrap().success());
    let none = unmount(dir.path(), false).unwrap_err();
    assert!(matches!(none, MountError::NotMounted { .. }), "{none}");
}

#[test]
fn a_file_that_is_open_is_read_on_after_unmounting_and_the_mount_ends_with_it() {
    let Some(mut fixture) = Fixture::new(|source| {
        std::fs::write(source.join("file"), noise(1, 100_000)).unwrap();
    }) else {
        return;
    };
    let open = File::open(fixture.at("file")).unwrap();
    fixture.mounted.take().unwrap().unmount().unwrap();
    assert_eq!(std::fs::read_dir(fixture.dir.path()).unwrap().count(), 0);
    let mut page = [0; 100];
    open.read_exact_at(&mut page, 50_000).unwrap();
    assert_eq!(page, noise(1, 100_000)[50_000..50_100]);
}

#[test]
fn what_cannot_be_mounted_is_said_and_harms_nothing() {
    let Some(fixture) = Fixture::new(|source| {
        std::fs::write(source.join("file"), noise(1, 1000)).unwrap();
    }) else {
        return;
    };
    let try_at = |dir: &Path| {
        let files = Folder::open(fixture.source.path()).unwrap();
        mount(files, dir, &Options::default())
            .map(drop)
            .unwrap_err()
    };
    let absent = try_at(&fixture.source("absent"));
    assert!(matches!(absent, MountError::NoFolder { .. }), "{absent}");
    let file = try_at(&fixture.source("file"));
    assert!(matches!(file, MountError::NotAFolder { .. }), "{file}");
    let twice = try_at(fixture.dir.path());
    assert!(matches!(twice, MountError::Mounted { .. }), "{twice}");
    assert!(twice.to_string().contains("alive"), "{twice}");
    assert_eq!(
        std::fs::read(fixture.at("file")).unwrap(),
        noise(1, 1000),
        "the first one serves on"
    );
    let ordinary = unmount(fixture.source.path(), true).unwrap_err();
    assert!(
        matches!(ordinary, MountError::NotMounted { .. }),
        "{ordinary}"
    );
}

#[test]
fn a_link_to_a_mount_point_stands_for_it_alive_or_dead() {
    if !can_mount() {
        return;
    }
    let (source, dir) = (source(), tempfile::tempdir().unwrap());
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink("real", &link).unwrap();
    let mut killed = Process::start(source.path(), &link);
    killed.signal(Signal::KILL);
    killed.0.wait().unwrap();
    let files = Folder::open(source.path()).unwrap();
    let mounted = mount(files, &link, &Options::default()).unwrap();
    assert_eq!(mounted.dir(), real.canonicalize().unwrap());
    assert_eq!(std::fs::read(real.join("file")).unwrap(), noise(1, 100_000));
    unmount(&link, true).unwrap();
    assert!(link.is_symlink());
    assert_eq!(std::fs::read_dir(&real).unwrap().count(), 0);
    drop(mounted);
    // A dead one, too, is unmounted by the link.
    let mut killed = Process::start(source.path(), &real);
    killed.signal(Signal::KILL);
    killed.0.wait().unwrap();
    unmount(&link, false).unwrap();
    assert_eq!(std::fs::read_dir(&real).unwrap().count(), 0);
}

#[test]
fn what_others_have_mounted_is_not_unmounted_and_is_named() {
    let refused = unmount(Path::new("/proc"), false).unwrap_err();
    assert!(matches!(refused, MountError::NotOurs { .. }), "{refused}");
    assert!(refused.to_string().contains("proc (proc)"), "{refused}");
}

#[test]
fn a_folder_with_something_in_it_is_refused_and_the_first_thing_named() {
    if !can_mount() {
        return;
    }
    let (source, dir) = (source(), tempfile::tempdir().unwrap());
    std::fs::write(dir.path().join("results.txt"), "there").unwrap();
    let try_it = || {
        let files = Folder::open(source.path()).unwrap();
        mount(files, dir.path(), &Options::default())
    };
    let refused = try_it().map(drop).unwrap_err();
    assert!(matches!(refused, MountError::NotEmpty { .. }), "{refused}");
    assert!(refused.to_string().contains("results.txt"), "{refused}");
    assert_eq!(
        std::fs::read(dir.path().join("results.txt")).unwrap(),
        b"there"
    );
    std::fs::remove_file(dir.path().join("results.txt")).unwrap();
    try_it().unwrap().unmount().unwrap();
}

/// Regression: a process whose mount was taken away lazily unmounted at its end whatever was at the folder by then.
#[test]
fn a_process_that_ends_late_leaves_its_successor_at_the_same_folder_alone() {
    if !can_mount() {
        return;
    }
    let (source, dir) = (source(), tempfile::tempdir().unwrap());
    let mut first = Process::start(source.path(), dir.path());
    let open = File::open(dir.path().join("file")).unwrap();
    unmount(dir.path(), true).unwrap();
    let files = Folder::open(source.path()).unwrap();
    let second = mount(files, dir.path(), &Options::default()).unwrap();
    drop(open);
    assert!(first.0.wait().unwrap().success());
    assert_eq!(
        std::fs::read(dir.path().join("file")).unwrap(),
        noise(1, 100_000)
    );
    // Nor does one that is told to end while its files are open.
    let third = tempfile::tempdir().unwrap();
    let mut told = Process::start(source.path(), third.path());
    let _open = File::open(third.path().join("file")).unwrap();
    unmount(third.path(), true).unwrap();
    let files = Folder::open(source.path()).unwrap();
    let fourth = mount(files, third.path(), &Options::default()).unwrap();
    told.signal(Signal::TERM);
    assert!(told.0.wait().unwrap().success());
    assert!(std::fs::read(third.path().join("file")).is_ok());
    fourth.unmount().unwrap();
    second.unmount().unwrap();
}

/// Regression: a process whose mount had come elsewhere with a folder above left it there, dead.
#[test]
fn a_mount_whose_folder_was_moved_is_taken_away_where_it_is() {
    if !can_mount() {
        return;
    }
    let (source, dir) = (source(), tempfile::tempdir().unwrap());
    let at = |path: &str| dir.path().join(path);
    for signal in [Signal::TERM, Signal::INT] {
        std::fs::create_dir_all(at("before/mnt")).unwrap();
        let mut process = Process::start(source.path(), &at("before/mnt"));
        std::fs::rename(at("before"), at("after")).unwrap();
        let whole = std::fs::read(at("after/mnt/file")).unwrap();
        assert_eq!(whole, noise(1, 100_000));
        // What is at its old path by then is another's.
        std::fs::create_dir_all(at("before/mnt")).unwrap();
        let files = Folder::open(source.path()).unwrap();
        let other = mount(files, &at("before/mnt"), &Options::default()).unwrap();
        process.signal(signal);
        assert!(process.0.wait().unwrap().success());
        assert_eq!(std::fs::read_dir(at("after/mnt")).unwrap().count(), 0);
        assert!(std::fs::read(at("before/mnt/file")).is_ok());
        other.unmount().unwrap();
        std::fs::remove_dir_all(at("before")).unwrap();
        std::fs::remove_dir_all(at("after")).unwrap();
    }
    // Whoever unmounts it says where it is now.
    std::fs::create_dir_all(at("before/mnt")).unwrap();
    let mut process = Process::start(source.path(), &at("before/mnt"));
    std::fs::rename(at("before"), at("after")).unwrap();
    let none = unmount(&at("before/mnt"), false).unwrap_err();
    assert!(matches!(none, MountError::NotMounted { .. }), "{none}");
    unmount(&at("after/mnt"), false).unwrap();
    assert!(process.0.wait().unwrap().success());
}

/// Regression: a mount within its own source waited for itself, for good.
#[test]
fn a_folder_within_what_it_shows_is_refused() {
    let source = source();
    let inner = source.path().join("mnt");
    std::fs::create_dir(&inner).unwrap();
    let link = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(&inner, link.path().join("link")).unwrap();
    let whole = source.path().canonicalize().unwrap();
    for dir in [&inner, source.path(), &link.path().join("link")] {
        let refused = ready(dir, Some(&whole)).unwrap_err();
        let is = matches!(refused, MountError::WithinSource { .. });
        assert!(is && refused.to_string().contains("outside"), "{refused}");
    }
    // A name that only begins alike is another folder.
    assert!(ready(&inner, Some(&whole.join("mn"))).is_ok());
}
