//! Mount points: what is mounted where, and how to take it away.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// Begins the name of everything that we mount, so that we know it again.
pub const MARK: &str = "staves:";
/// Links that are followed to where one mounts, as many as the kernel follows.
const LINKS_MAX: usize = 40;
/// A mount that does not answer for so long is taken for alive and stuck.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// One line of the kernel's table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    /// The folder.
    pub dir: PathBuf,
    /// Its device, `MAJOR:MINOR`.
    pub device: String,
    /// The file system's type.
    pub kind: String,
    /// The source, as it was named.
    pub source: OsString,
}

impl Point {
    /// The name that one of ours was mounted under.
    pub fn ours(&self) -> Option<&OsStr> {
        let rest = self.source.as_bytes().strip_prefix(MARK.as_bytes())?;
        self.kind
            .starts_with("fuse")
            .then(|| OsStr::from_bytes(rest))
    }
}

/// The health of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// It answers.
    Alive,
    /// The process that served it is gone.
    Dead,
    /// It does not answer in time.
    Silent,
}

/// The mount at a folder: the topmost, if there are several. The path has no links (see [`resolve`]).
///
/// # Errors
/// /proc cannot be read.
pub fn at(dir: &Path) -> io::Result<Option<Point>> {
    Ok(table()?.into_iter().find(|point| point.dir == dir))
}

/// The places of a device with nothing mounted over them: its mount point, unless somebody renamed a folder above, and any place
/// else it is shown.
///
/// # Errors
/// /proc cannot be read.
pub fn of_device(device: &str) -> io::Result<Vec<PathBuf>> {
    let mut covered = BTreeSet::new();
    let topmost = table()?
        .into_iter()
        .filter(|point| covered.insert(point.dir.clone()));
    let ours = topmost.filter(|point| point.device == device);
    Ok(ours.map(|point| point.dir).collect())
}

/// All that is mounted, the last first.
fn table() -> io::Result<Vec<Point>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table.rsplit(|&b| b == b'\n').filter_map(parse).collect())
}

/// A folder's path without links, which may be a dead mount point, or a link to one: its own last part is not looked at if its
/// folder has it in the kernel's table.
///
/// # Errors
/// A folder above is not there, or links lead in a circle.
pub fn resolve(dir: &Path) -> io::Result<PathBuf> {
    let mut absolute = std::path::absolute(dir)?;
    for _ in 0..LINKS_MAX {
        let (Some(folder), Some(name)) = (absolute.parent(), absolute.file_name()) else {
            break;
        };
        let folder = folder.canonicalize()?;
        let plain = folder.join(name);
        if at(&plain)?.is_some() {
            return Ok(plain);
        }
        match std::fs::read_link(&plain) {
            Ok(target) => absolute = folder.join(target),
            Err(_) => break,
        }
    }
    absolute.canonicalize()
}

/// The health of the mount at a folder. Asks from a thread of its own, for such a question cannot be cancelled.
pub fn health(dir: &Path) -> Health {
    let (sender, receiver) = mpsc::sync_channel(1);
    let dir = dir.to_owned();
    let asking = std::thread::Builder::new().spawn(move || {
        // A listing is not answered from what the kernel remembers.
        let seen = std::fs::read_dir(dir).map(drop);
        let _ = sender.send(seen);
    });
    if asking.is_err() {
        return Health::Silent;
    }
    match receiver.recv_timeout(ANSWER_WITHIN) {
        Ok(Err(error)) if dead(&error) => Health::Dead,
        Ok(_) => Health::Alive,
        Err(_) => Health::Silent,
    }
}

fn dead(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    code == Some(Errno::NOTCONN.raw_os_error()) || code == Some(Errno::CONNABORTED.raw_os_error())
}

/// Takes away what is mounted at a folder. `lazily`: at once, even if it is in use.
///
/// # Errors
/// EBUSY if it is in use, EINVAL if nothing is mounted there, EPERM if we must not and fusermount3 is not there or fails.
pub fn unmount(dir: &Path, lazily: bool) -> Result<(), Errno> {
    let flags = match lazily {
        true => UnmountFlags::DETACH | UnmountFlags::NOFOLLOW,
        false => UnmountFlags::NOFOLLOW,
    };
    match rustix::mount::unmount(dir, flags) {
        Err(Errno::PERM) => by_helper(dir, lazily),
        other => other,
    }
}

/// Unmounts by a helper of FUSE, for a user who is not root.
fn by_helper(dir: &Path, lazily: bool) -> Result<(), Errno> {
    let flags: &[&str] = if lazily { &["-u", "-z"] } else { &["-u"] };
    for program in ["fusermount3", "fusermount"] {
        let Ok(output) = Command::new(program)
            .args(flags)
            .arg("--")
            .arg(dir)
            .output()
        else {
            continue;
        };
        let said = String::from_utf8_lossy(&output.stderr);
        return match output.status.success() {
            true => Ok(()),
            false if said.contains("busy") => Err(Errno::BUSY),
            false => Err(Errno::PERM),
        };
    }
    Err(Errno::PERM)
}

/// `36 35 0:59 / /mnt rw,nosuid shared:1 - fuse staves:x rw`
fn parse(line: &[u8]) -> Option<Point> {
    let mut fields = line.split(|&b| b == b' ');
    let device = fields.nth(2)?;
    let dir = fields.nth(1)?;
    let mut fields = fields.skip_while(|&f| f != b"-").skip(1);
    let kind = fields.next()?;
    let source = fields.next()?;
    Some(Point {
        dir: unescape(dir).into(),
        device: String::from_utf8_lossy(device).into_owned(),
        kind: String::from_utf8_lossy(kind).into_owned(),
        source: unescape(source),
    })
}

/// Blanks and backslashes are written as `\` and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\');
        let code = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        out.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernels_table_is_read() {
        let line = br"36 35 0:59 / /mnt/my\040genome rw,nosuid shared:1 master:2 - fuse.staves staves:a\134b rw,user_id=0";
        let point = parse(line).unwrap();
        assert_eq!(point.dir, Path::new("/mnt/my genome"));
        assert_eq!(point.device, "0:59");
        assert_eq!(point.ours(), Some(OsStr::new(r"a\b")));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"1 2 3 4 5 6 - "), None);
        let other = Point {
            kind: "ext4".into(),
            ..point
        };
        assert_eq!(other.ours(), None);
    }

    #[test]
    fn links_to_a_mount_point_lead_there_and_circles_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, at(name)).unwrap();
        std::fs::create_dir(at("real")).unwrap();
        let real = at("real").canonicalize().unwrap();
        link(Path::new("real"), "relative");
        link(&at("relative"), "twice");
        link(Path::new("/proc"), "proc");
        link(&at("circle"), "circle");
        for name in ["real", "relative", "twice", "twice/", "./real/../real"] {
            assert_eq!(resolve(&at(name)).unwrap(), real, "{name}");
        }
        assert_eq!(resolve(&at("proc")).unwrap(), Path::new("/proc"));
        assert_eq!(resolve(&at("proc/..")).unwrap(), Path::new("/"));
        assert!(resolve(&at("circle")).is_err());
        assert!(resolve(&at("absent")).is_err());
    }

    #[test]
    fn the_root_is_mounted_and_an_ordinary_folder_is_not() {
        assert!(at(Path::new("/")).unwrap().is_some());
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(at(&resolve(dir.path()).unwrap()).unwrap(), None);
        assert_eq!(unmount(dir.path(), false), Err(Errno::INVAL));
        assert_eq!(unmount(dir.path(), true), Err(Errno::INVAL));
        assert_eq!(health(dir.path()), Health::Alive);
    }
}
