//! A folder as a source.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::source::{Keep, Kind, SourceError, Stat};
use crate::version::FileVersion;

/// Files that are kept open.
const OPEN_MAX: usize = 256;
/// A file that changed this lately may change again within the grain of its times.
const FRESH: Duration = Duration::from_secs(2);
/// Longest text of a symbolic link.
const LINK_BYTES: usize = 4096;

/// A folder of this machine.
#[derive(Debug)]
pub struct Folder {
    place: String,
    root: OwnedFd,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    files: HashMap<Vec<u8>, (Arc<File>, u64)>,
    turn: u64,
}

impl Folder {
    /// Opens it.
    pub fn open(place: &str) -> Result<Folder, SourceError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(place, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT | Errno::NOTDIR => SourceError::Malformed {
                text: place.to_owned(),
                reason: "there is no such folder".into(),
            },
            errno => error(place, b"", errno),
        })?;
        Ok(Folder {
            place: place.to_owned(),
            root,
            open: Mutex::default(),
        })
    }

    /// Its path.
    pub fn place(&self) -> &str {
        &self.place
    }

    fn error(&self, path: &[u8], errno: Errno) -> SourceError {
        error(&self.place, path, errno)
    }

    /// Opens a name below the root; links that lead out of it are refused.
    fn open_at(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, SourceError> {
        let at = match path {
            b"" => b".",
            path => path,
        };
        let flags = flags | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.root, at, flags, Mode::empty(), within)
            .map_err(|errno| self.error(path, errno))
    }

    /// See [`crate::Source::stat`].
    pub fn stat(&self, path: &[u8]) -> Result<Stat, SourceError> {
        let name = self.open_at(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        self.stat_of(&name, path)
    }

    fn stat_of(&self, name: &OwnedFd, path: &[u8]) -> Result<Stat, SourceError> {
        let stat = rustix::fs::fstat(name).map_err(|errno| self.error(path, errno))?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Kind::Folder,
            FileType::RegularFile => Kind::File {
                version: version(&stat),
                fresh: is_fresh(&stat),
            },
            FileType::Symlink => {
                let link = rustix::fs::readlinkat(name, c"", Vec::with_capacity(LINK_BYTES))
                    .map_err(|errno| self.error(path, errno))?;
                Kind::Link(link.into_bytes())
            }
            _ => {
                return Err(SourceError::Denied {
                    path: text(path),
                    reason: "it is neither a file nor a folder nor a link".into(),
                });
            }
        };
        Ok(Stat {
            kind,
            size: stat.st_size as u64,
            modified: (stat.st_mtime, stat.st_mtime_nsec as u32),
            executable: stat.st_mode & 0o100 != 0,
        })
    }

    /// See [`crate::Source::list`]. What is neither file nor folder nor link, or goes meanwhile, is left out.
    pub fn list(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Stat)>, SourceError> {
        let folder = self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let entries = Dir::read_from(&folder).map_err(|errno| self.error(path, errno))?;
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|errno| self.error(path, errno))?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let Ok(at) = rustix::fs::openat(&folder, name, flags, Mode::empty()) else {
                continue;
            };
            if let Ok(stat) = self.stat_of(&at, name) {
                all.push((name.to_vec(), stat));
            }
        }
        Ok(all)
    }

    /// See [`crate::Source::read`]. The file's version is looked at before and after.
    pub fn read(
        &self,
        file: &FileVersion,
        from: u64,
        len: usize,
    ) -> Result<(Bytes, Keep), SourceError> {
        let open = self.file(file)?;
        let changed = || SourceError::Changed {
            path: text(&file.path),
        };
        if from
            .checked_add(len as u64)
            .is_none_or(|end| end > file.size)
        {
            return Err(changed());
        }
        let mut bytes = BytesMut::zeroed(len);
        open.read_exact_at(&mut bytes, from)
            .map_err(|e| match e.raw_os_error() {
                Some(errno) => self.error(&file.path, Errno::from_raw_os_error(errno)),
                None => changed(), // it ends before
            })?;
        let stat = rustix::fs::fstat(&*open).map_err(|errno| self.error(&file.path, errno))?;
        if version(&stat) != file.version {
            self.open.lock().files.remove(&file.path);
            return Err(changed());
        }
        Ok((bytes.freeze(), keep(&stat)))
    }

    /// The file, open, in that version.
    fn file(&self, file: &FileVersion) -> Result<Arc<File>, SourceError> {
        let mut known = None;
        {
            let mut open = self.open.lock();
            open.turn += 1;
            let turn = open.turn;
            if let Some((file, used)) = open.files.get_mut(&file.path) {
                *used = turn;
                known = Some(file.clone());
            }
        }
        let is_it = |file_now: &File| match rustix::fs::fstat(file_now) {
            Ok(stat) => Ok(version(&stat) == file.version),
            Err(errno) => Err(self.error(&file.path, errno)),
        };
        if let Some(known) = known
            && is_it(&known)?
        {
            return Ok(known);
        }
        let now = File::from(self.open_at(&file.path, OFlags::RDONLY | OFlags::NONBLOCK)?);
        if !is_it(&now)? {
            return Err(SourceError::Changed {
                path: text(&file.path),
            });
        }
        let now = Arc::new(now);
        let mut open = self.open.lock();
        let turn = open.turn;
        if open.files.len() >= OPEN_MAX {
            let oldest = open.files.iter().min_by_key(|(_, (_, used))| *used);
            let oldest = oldest.map(|(path, _)| path.clone());
            oldest.map(|path| open.files.remove(&path));
        }
        open.files.insert(file.path.clone(), (now.clone(), turn));
        Ok(now)
    }
}

fn version(stat: &rustix::fs::Stat) -> String {
    format!(
        "{}-{}.{:09}-{}.{:09}-{}",
        stat.st_size,
        stat.st_mtime,
        stat.st_mtime_nsec,
        stat.st_ctime,
        stat.st_ctime_nsec,
        stat.st_ino
    )
}

fn keep(stat: &rustix::fs::Stat) -> Keep {
    match stat.st_mode & 0o004 {
        0 => Keep::Never,
        _ if is_fresh(stat) => Keep::NotYet,
        _ => Keep::Yes,
    }
}

fn is_fresh(stat: &rustix::fs::Stat) -> bool {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    // The time of the last change of any kind: that of the bytes can be set to anything, and be years ahead. One that lies
    // ahead is of another clock: the file is fresh for as long.
    let nanos = (stat.st_ctime_nsec as i64).clamp(0, 999_999_999) as u32;
    now.saturating_sub(Duration::new(stat.st_ctime.max(0) as u64, nanos)) < FRESH
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

fn error(place: &str, path: &[u8], errno: Errno) -> SourceError {
    let full = match path {
        b"" => place.to_owned(),
        path => format!("{place}/{}", text(path)),
    };
    match errno {
        Errno::NOENT | Errno::NOTDIR => SourceError::NotFound {
            path: text(path),
            place: place.to_owned(),
        },
        Errno::STALE => SourceError::Changed { path: full },
        Errno::ACCESS | Errno::PERM => SourceError::Denied {
            path: full,
            reason: errno.to_string(),
        },
        Errno::XDEV | Errno::LOOP => SourceError::Denied {
            path: full,
            reason: "it leads out of the dataset by a link".into(),
        },
        _ => SourceError::Unreachable {
            place: full,
            reason: errno.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn at(folder: &Folder, path: &[u8]) -> FileVersion {
        let stat = folder.stat(path).unwrap();
        let Kind::File { version, .. } = stat.kind else {
            panic!("{stat:?}")
        };
        FileVersion {
            dataset: "d".into(),
            path: path.to_vec(),
            size: stat.size,
            version,
        }
    }

    fn age(path: &Path) {
        let then = SystemTime::now() - Duration::from_secs(60);
        File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_modified(then)
            .unwrap();
    }

    #[test]
    fn names_of_all_kinds_are_listed_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let odd = std::ffi::OsStr::from_bytes(b"odd \xff name");
        std::fs::write(dir.path().join(odd), b"hello").unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/x"), b"").unwrap();
        symlink("sub/x", dir.path().join("link")).unwrap();
        let folder = Folder::open(dir.path().to_str().unwrap()).unwrap();
        let mut all = folder.list(b"").unwrap();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        let names: Vec<&[u8]> = all.iter().map(|(name, _)| &name[..]).collect();
        assert_eq!(names, [&b"link"[..], b"odd \xff name", b"sub"]);
        assert_eq!(all[0].1.kind, Kind::Link(b"sub/x".to_vec()));
        assert_eq!((all[1].1.size, all[2].1.kind.clone()), (5, Kind::Folder));
        let file = at(&folder, b"odd \xff name");
        assert_eq!(&folder.read(&file, 1, 3).unwrap().0[..], b"ell");
        assert!(folder.read(&file, 3, 3).is_err(), "past its end");
        assert!(folder.read(&file, u64::MAX, 3).is_err());
        assert_eq!(folder.list(b"sub").unwrap().len(), 1);
        assert!(matches!(
            folder.stat(b"none"),
            Err(SourceError::NotFound { .. })
        ));
        assert!(matches!(
            folder.list(b"sub/x"),
            Err(SourceError::NotFound { .. })
        ));
    }

    #[test]
    fn what_is_no_folder_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for place in [file.path().to_str().unwrap(), "/nowhere/at/all"] {
            let error = Folder::open(place).unwrap_err().to_string();
            assert!(
                error.contains(place) && error.contains("no such folder"),
                "{error}"
            );
        }
    }

    #[test]
    fn nothing_outside_of_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(dir.path().join("secret"), b"secret").unwrap();
        symlink("../secret", inside.join("out")).unwrap();
        symlink("/etc/passwd", inside.join("far")).unwrap();
        let folder = Folder::open(inside.to_str().unwrap()).unwrap();
        for path in [
            &b"../secret"[..],
            b"/etc/passwd",
            b"out",
            b"far",
            b"x/../../secret",
        ] {
            let file = FileVersion {
                dataset: "d".into(),
                path: path.to_vec(),
                size: 6,
                version: String::new(),
            };
            let read = folder.read(&file, 0, 1);
            let refused = matches!(
                read,
                Err(SourceError::Denied { .. } | SourceError::NotFound { .. })
            );
            assert!(refused, "{path:?}: {read:?}");
        }
        assert!(matches!(folder.stat(b"out").unwrap().kind, Kind::Link(_)));
    }

    /// Row D9: whatever happens to a file, a version's bytes are its own or an error.
    #[test]
    fn d9_another_version_is_never_read_as_this_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"one").unwrap();
        age(&path);
        let folder = Folder::open(dir.path().to_str().unwrap()).unwrap();
        let one = at(&folder, b"f");
        assert!(folder.read(&one, 0, 3).is_ok());
        // The same size, in place, its time put back: the time of change tells.
        std::fs::write(&path, b"two").unwrap();
        age(&path);
        assert!(matches!(
            folder.read(&one, 0, 3),
            Err(SourceError::Changed { .. })
        ));
        let two = at(&folder, b"f");
        assert_ne!(one.id(), two.id());
        assert_eq!(&folder.read(&two, 0, 3).unwrap().0[..], b"two");
        // Another file under the name: whoever has the old one open may go on, and its bytes are its own.
        std::fs::write(dir.path().join("g"), b"six").unwrap();
        std::fs::rename(dir.path().join("g"), &path).unwrap();
        match folder.read(&two, 0, 3) {
            Ok((bytes, _)) => assert_eq!(&bytes[..], b"two"),
            Err(error) => assert!(matches!(error, SourceError::Changed { .. }), "{error}"),
        }
        assert_eq!(
            &folder.read(&at(&folder, b"f"), 0, 3).unwrap().0[..],
            b"six"
        );
        std::fs::remove_file(&path).unwrap();
        assert!(folder.stat(b"f").is_err());
    }

    #[test]
    fn what_changed_just_now_is_not_to_be_kept() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), b"one").unwrap();
        let folder = Folder::open(dir.path().to_str().unwrap()).unwrap();
        let file = at(&folder, b"f");
        let (bytes, keep) = folder.read(&file, 0, 3).unwrap();
        assert_eq!((&bytes[..], keep), (&b"one"[..], Keep::NotYet));
        // Where its own time of change is set to does not matter.
        let ahead = SystemTime::now() + Duration::from_secs(1 << 20);
        File::options()
            .write(true)
            .open(dir.path().join("f"))
            .unwrap()
            .set_modified(ahead)
            .unwrap();
        std::thread::sleep(FRESH + Duration::from_millis(100));
        let file = at(&folder, b"f");
        assert_eq!(folder.read(&file, 0, 3).unwrap().1, Keep::Yes);
        let owners = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(dir.path().join("f"), owners).unwrap();
        let file = at(&folder, b"f");
        assert_eq!(folder.read(&file, 0, 3).unwrap().1, Keep::Never);
    }

    #[test]
    fn no_more_files_stay_open_than_allowed() {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..OPEN_MAX + 20 {
            std::fs::write(dir.path().join(i.to_string()), i.to_string()).unwrap();
        }
        let folder = Folder::open(dir.path().to_str().unwrap()).unwrap();
        for i in 0..OPEN_MAX + 20 {
            let file = at(&folder, i.to_string().as_bytes());
            let bytes = folder.read(&file, 0, file.size as usize).unwrap().0;
            assert_eq!(bytes, i.to_string());
        }
        assert_eq!(folder.open.lock().files.len(), OPEN_MAX);
    }
}
