//! A local folder as [`Files`]: what the others are compared with.
//!
//! A file's version is a digest of size, modification and change time, inode and device. It is compared after each
//! read: a write takes effect on the times before it does on the bytes. Times are as fine as the file system makes them
//! (Linux from 6.13 on: fine enough for each look); writes through a mapping change them only now and then.

use std::ffi::OsStr;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, SeekFrom};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_128;

use crate::files::{FileError, Files, Kind, Seek, Stat, Used, Version};
use crate::listing::Listing;

/// A file that changed this lately may change again within the grain of its times.
const FRESH: Duration = Duration::from_secs(2);

/// A local folder. Nothing outside it is reached: links are shown as they are, and a path with one in it is not there.
/// What is neither file, folder nor link is left out.
#[derive(Debug)]
pub struct Folder {
    root: OwnedFd,
    path: PathBuf,
}

/// An open file of a [`Folder`].
#[derive(Debug)]
pub struct FolderFile {
    descriptor: OwnedFd,
    path: PathBuf,
    stat: Stat,
}

impl Folder {
    /// Opens a folder.
    ///
    /// # Errors
    /// It is not there, not a folder, or must not be read.
    pub fn open(path: &Path) -> Result<Folder, FileError> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let root =
            rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|e| {
                match failed("open", path, e) {
                    FileError::NotFound => {
                        FileError::Io(format!("{} is not there, or no folder", path.display()))
                    }
                    other => other,
                }
            })?;
        let path = path.to_owned();
        Ok(Folder { root, path })
    }

    fn descend(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, FileError> {
        let relative = match path.as_os_str().is_empty() {
            true => Path::new("."),
            false => path,
        };
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let resolve = ResolveFlags::NO_SYMLINKS;
        rustix::fs::openat2(&self.root, relative, flags, Mode::empty(), resolve)
            .map_err(|e| failed("open", &self.path.join(path), e))
    }

    fn look(&self, at: &OwnedFd, name: &OsStr, path: &Path) -> Result<Stat, FileError> {
        let failed = |e| failed("look at", &self.path.join(path).join(name), e);
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        let seen = rustix::fs::statat(at, name, flags).map_err(failed)?;
        let kind = match FileType::from_raw_mode(seen.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Folder,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(at, name, Vec::new()).map_err(failed)?;
                Kind::Link(OsString::from_vec(target.into_bytes()).into())
            }
            _ => return Err(FileError::NotFound),
        };
        Ok(stat_of(kind, &seen))
    }
}

impl Files for Folder {
    type File = FolderFile;

    fn stat(&self, path: &Path) -> Result<Stat, FileError> {
        let at = self.descend(path, OFlags::PATH)?;
        self.look(&at, OsStr::new(""), path)
    }

    fn list(&self, path: &Path) -> Result<Listing, FileError> {
        let at = self.descend(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let failed = |e| failed("list", &self.path.join(path), e);
        let mut found = Listing::default();
        for entry in Dir::read_from(&at).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            match self.look(&at, name, path) {
                Ok(stat) => found.push(name, stat),
                // Gone since, or nothing that we show.
                Err(FileError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn open(&self, path: &Path) -> Result<FolderFile, FileError> {
        // NONBLOCK: a pipe that took the file's place must not hold us up.
        let descriptor = self.descend(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let stat = self.look(&descriptor, OsStr::new(""), path)?;
        if stat.kind != Kind::File {
            return Err(FileError::NotFound);
        }
        let path = self.path.join(path);
        Ok(FolderFile {
            descriptor,
            path,
            stat,
        })
    }

    fn stat_open<'a>(&self, file: &'a FolderFile) -> &'a Stat {
        &file.stat
    }

    fn read(&self, file: &FolderFile, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        let failed = |e| failed("read", &file.path, e);
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&file.descriptor, &mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let now = rustix::fs::fstat(&file.descriptor).map_err(failed)?;
        if version_of(&now) != file.stat.version {
            return Err(FileError::Stale(format!(
                "{} was changed since it was opened: open it again",
                file.path.display()
            )));
        }
        Ok(done)
    }

    fn seek(&self, file: &FolderFile, from: u64, what: Seek) -> Result<Option<u64>, FileError> {
        let to = match what {
            Seek::Data => SeekFrom::Data(from),
            Seek::Hole => SeekFrom::Hole(from),
        };
        match rustix::fs::seek(&file.descriptor, to) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(failed("look for holes of", &file.path, error)),
        }
    }

    fn used(&self) -> Used {
        let Ok(all) = rustix::fs::fstatvfs(&self.root) else {
            return Used::default();
        };
        Used {
            bytes: all.f_blocks.saturating_sub(all.f_bfree) * all.f_frsize,
            files: all.f_files.saturating_sub(all.f_ffree),
        }
    }
}

fn failed(what: &str, path: &Path, error: Errno) -> FileError {
    let text = format!("cannot {what} {}: {error}", path.display());
    match error {
        // A link where a folder was, or a file where one was.
        Errno::NOENT | Errno::LOOP | Errno::NOTDIR => FileError::NotFound,
        Errno::ACCESS | Errno::PERM => FileError::Denied(text),
        Errno::STALE => FileError::Stale(text),
        Errno::TIMEDOUT => FileError::TimedOut(text),
        _ => FileError::Io(text),
    }
}

fn stat_of(kind: Kind, seen: &rustix::fs::Stat) -> Stat {
    Stat {
        size: match &kind {
            Kind::Link(target) => target.as_os_str().len() as u64,
            _ => u64::try_from(seen.st_size).unwrap_or(0),
        },
        kind,
        modified: time(seen.st_mtime, seen.st_mtime_nsec),
        mode: (seen.st_mode & 0o777) as u16,
        version: version_of(seen),
        fresh: is_fresh(seen),
        has_holes: seen.st_blocks < seen.st_size / 512,
        links: u32::try_from(seen.st_nlink).unwrap_or(u32::MAX),
    }
}

/// By the time of the last change of any kind: that of the bytes can be set to anything. One that lies ahead is of another
/// clock, and the file fresh for as long.
fn is_fresh(seen: &rustix::fs::Stat) -> bool {
    let changed = time(seen.st_ctime, seen.st_ctime_nsec);
    let age = SystemTime::now().duration_since(changed);
    age.unwrap_or_default() < FRESH
}

fn version_of(seen: &rustix::fs::Stat) -> Version {
    let parts = [
        seen.st_size as u64,
        seen.st_mtime as u64,
        seen.st_mtime_nsec,
        seen.st_ctime as u64,
        seen.st_ctime_nsec,
        seen.st_ino,
        seen.st_dev,
    ];
    let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
    let digest = xxh3_128(&bytes);
    Version([digest as u64, (digest >> 64) as u64])
}

fn time(seconds: i64, nanoseconds: u64) -> SystemTime {
    let part = Duration::from_nanos(nanoseconds);
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let at = match seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(whole),
        false => SystemTime::UNIX_EPOCH.checked_add(whole),
    };
    at.and_then(|at| at.checked_add(part))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}
