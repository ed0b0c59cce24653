//! A file system on a volume on disk, mounted by the kernel: nodes are killed under it, and all of it that was synced is there.
//!
//! The kernel has no client of NBD in most test machines: `nbdfuse` shows the volume as a file, and a loop device that as a disk.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use staves_testkit::tools::{can_mount, runs, skip};
use staves_testkit::{SetAtEnd, wait_until};

use super::disks::{connect, make_volume, start};
use super::{Cluster, tool};

/// True if the test can run: tools are required as everywhere, `/dev/fuse` as for mounts. Loop devices are the kernel's to give.
fn can_run() -> bool {
    let tools = [
        ("nbdfuse", "--version"),
        ("mke2fs", "-V"),
        ("losetup", "-V"),
    ];
    if !tools.iter().all(|(tool, arg)| runs(tool, &[arg])) || !can_mount() {
        return false;
    }
    let control = File::options().write(true).open("/dev/loop-control");
    if let Err(error) = &control {
        skip(format_args!("/dev/loop-control cannot be opened: {error}"));
    }
    control.is_ok()
}

/// A volume as a file, by `nbdfuse`.
struct VolumeFile {
    folder: PathBuf,
    child: Child,
}

impl VolumeFile {
    fn open(folder: &Path, port: u16) -> VolumeFile {
        // It ends where it cannot connect at once.
        drop(connect(port));
        fs::create_dir_all(folder).expect("a folder");
        let child = Command::new("nbdfuse")
            .args(["-C", "1"])
            .arg(folder.join("nbd"))
            .arg(format!("nbd://127.0.0.1:{port}/disk"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let file = VolumeFile {
            folder: folder.to_owned(),
            child: child.expect("nbdfuse starts"),
        };
        wait_until("the volume is a file", || file.folder.join("nbd").exists());
        file
    }

    fn path(&self) -> String {
        self.folder.join("nbd").to_string_lossy().into_owned()
    }
}

impl Drop for VolumeFile {
    fn drop(&mut self) {
        unmount(&self.folder);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The file system of a volume, mounted.
struct FileSystem {
    point: PathBuf,
    device: String,
    _file: VolumeFile,
}

impl FileSystem {
    fn mount(folder: &Path, port: u16) -> FileSystem {
        let file = VolumeFile::open(&folder.join("fuse"), port);
        let device = tool("losetup", &["-f", "--show", &file.path()]);
        let mounted = FileSystem {
            point: folder.join("mounted"),
            device: device.trim().to_owned(),
            _file: file,
        };
        fs::create_dir_all(&mounted.point).expect("a folder");
        let point = mounted.point.to_string_lossy();
        tool("mount", &["-t", "ext4", &mounted.device, &point]);
        mounted
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        unmount(&self.point);
        let detach = Command::new("losetup").args(["-d", &self.device]).output();
        drop(detach);
    }
}

/// Unmounts; a file system whose disk has gone, too.
fn unmount(point: &Path) {
    let unmounts = |more: &[&str]| {
        let done = Command::new("umount").args(more).arg(point).output();
        done.is_ok_and(|done| done.status.success())
    };
    let _ = unmounts(&[]) || unmounts(&["-l"]);
}

/// Files of numbers that follow from their own.
#[derive(Default)]
struct Files {
    /// The files that were synced, with their folder, and not removed.
    synced: Vec<u64>,
    /// The last that was begun.
    last: u64,
}

fn content(number: u64) -> Vec<u8> {
    let words = 500 + number.wrapping_mul(2_654_435_761) % 8000;
    let words = (0..words).map(|word| (number << 32) + word);
    words.flat_map(u64::to_le_bytes).collect()
}

impl Files {
    fn path(folder: &Path, number: u64) -> PathBuf {
        folder.join(number.to_string())
    }

    /// Makes files, and removes most again, until it is stopped or the disk fails.
    fn write_until(
        &mut self,
        folder: &Path,
        stop: &AtomicBool,
        done: &AtomicU64,
    ) -> io::Result<()> {
        let of_folder = File::open(folder)?;
        while !stop.load(Ordering::Relaxed) {
            self.last += 1;
            let mut file = File::create(folder.join("new"))?;
            file.write_all(&content(self.last))?;
            file.sync_all()?;
            fs::rename(folder.join("new"), Self::path(folder, self.last))?;
            of_folder.sync_all()?;
            self.synced.push(self.last);
            done.fetch_add(1, Ordering::SeqCst);
            if self.synced.len() > 100 {
                // From here on it may be there or not.
                let oldest = self.synced.remove(0);
                fs::remove_file(Self::path(folder, oldest))?;
            }
        }
        Ok(())
    }

    fn check(&self, folder: &Path) {
        for number in &self.synced {
            let read = fs::read(Self::path(folder, *number));
            let read = read.unwrap_or_else(|error| panic!("{number} was synced: {error}"));
            assert!(read == content(*number), "{number} is not as it was synced");
        }
    }
}

/// Writes files while `meanwhile` is at work, which is given the count of files synced so far: the outcome of the writer.
fn write_while(
    files: &mut Files,
    folder: &Path,
    meanwhile: impl FnOnce(&AtomicU64),
) -> io::Result<()> {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| files.write_until(folder, &stop, &done));
        {
            let _end = SetAtEnd(&stop);
            meanwhile(&done);
        }
        writer.join().expect("the writer does not panic")
    })
}

/// Waits until more files were synced.
fn some_more(done: &AtomicU64) {
    let before = done.load(Ordering::SeqCst);
    wait_until("files are synced", || {
        done.load(Ordering::SeqCst) >= before + 10
    });
}

/// Row B8 with a file system: it goes on past the death of a node, is mounted again by another when its own has gone, and is whole
/// after a loss of power.
#[test]
fn b8_a_file_system_lives_through_killed_nodes_and_a_loss_of_power() {
    if !can_run() {
        return;
    }
    let (mut cluster, ports) = start(3);
    make_volume(&cluster, "1+1");
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    {
        let file = VolumeFile::open(&folder.join("fuse"), ports[0]);
        tool("mke2fs", &["-q", "-t", "ext4", &file.path()]);
    }
    let mut files = Files::default();
    let mounted = FileSystem::mount(folder, ports[0]);
    let outcome = write_while(&mut files, &mounted.point, |done| {
        some_more(done);
        cluster.end(1, "-KILL");
        some_more(done);
        cluster.up(1);
        some_more(done);
    });
    outcome.expect("the file system goes on past a killed node");
    all_are_whole(&cluster, 0);
    let outcome = write_while(&mut files, &mounted.point, |done| {
        some_more(done);
        cluster.end(0, "-KILL");
    });
    drop(mounted);
    let mounted = FileSystem::mount(folder, ports[2]);
    files.check(&mounted.point);
    let cut = write_while(&mut files, &mounted.point, |done| {
        some_more(done);
        for at in [1, 2] {
            cluster.end(at, "-KILL");
        }
    });
    // An error most often; or the word to stop came first.
    drop((outcome, cut));
    drop(mounted);
    (0..3).for_each(|at| cluster.up(at));
    let file = VolumeFile::open(&folder.join("fuse"), ports[0]);
    let head = tool("dumpe2fs", &["-h", &file.path()]);
    assert!(head.contains("needs_recovery"), "it ended in order: {head}");
    drop(file);
    let mounted = FileSystem::mount(folder, ports[1]);
    files.check(&mounted.point);
    assert!(files.last > 40, "{} files", files.last);
    drop(mounted);
    let file = VolumeFile::open(&folder.join("fuse"), ports[0]);
    tool("e2fsck", &["-fn", &file.path()]);
}

fn all_are_whole(cluster: &Cluster, at: usize) {
    cluster.wait_for("all are up and whole", at, |s| {
        let mut up = s["nodes"].as_array().into_iter().flatten();
        s["state"] == "healthy" && up.all(|node| node["up"] == true)
    });
}
