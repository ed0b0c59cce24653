//! A folder of this machine. Every call may hold its thread for as long as the file system likes.
//!
//! The folder is where its path leads: something may be mounted there later, or anew. Whether the path still leads to what is
//! open is looked at once a second, if anybody asks for anything.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, SeekFrom, Statx, StatxAttributes,
    StatxFlags,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::lease;
use super::witness::Witness;
use crate::crossing;
use crate::entry::{Keep, Kind, Reader, Seek, SourceError, Stat};
use crate::version::FileVersion;

/// Files that are kept open.
const OPEN_MAX: usize = 256;
/// And only such whose descriptors are in this part of all that the process may have: the rest is for sockets. The kernel gives the lowest free
/// number, so that this bounds those of all folders together.
const OPEN_PART: u64 = 4;
/// A file that changed this lately may change again within the grain of its times.
const FRESH: Duration = Duration::from_secs(2);
/// The interval between two checks that the path still leads to the folder that is open.
const LOOK: Duration = Duration::from_secs(1);
/// Folders of which it is remembered whether everybody may enter them; when there are more, all are forgotten.
const WAYS_MAX: usize = 4096;
/// File systems of which it is remembered whether they report writers; when there are more, all are forgotten.
const DEVICES_MAX: usize = 64;
/// Bytes in which the kernel counts what a file takes.
const BLOCK_UNIT: u64 = 512;
/// Longest text of a symbolic link.
const LINK_BYTES: usize = 4096;
/// Nothing outside of the folder, and nothing by way of a link: kernels follow links themselves, and who may enter the folders on
/// the way is asked of the path as it is.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// A folder of this machine.
#[derive(Debug)]
pub struct LocalFolder {
    place: String,
    root: Mutex<Option<Root>>,
    /// Something was mounted at the path: a folder without that is not the source.
    was_mounted: AtomicBool,
    open: Mutex<Open>,
    /// Of folders: whether everybody may enter them, and when that was looked at.
    ways: Mutex<HashMap<Vec<u8>, (bool, Instant)>>,
    /// Of file systems, by their device: whether their leases are about writers.
    leases: Mutex<HashMap<(u32, u32), bool>>,
    /// The files of which every write is known.
    witness: Witness,
}

/// The target of the folder's path.
#[derive(Clone, Debug)]
struct Root {
    folder: Arc<OwnedFd>,
    /// Its device and inode.
    is: (u64, u64),
    /// The time of the last check of the path.
    looked: Instant,
}

/// The reason that the path leads to no folder.
#[derive(Debug)]
enum NoWay {
    Failed(Errno),
    /// To one on which something was mounted, and is no more.
    Unmounted,
}

impl From<Errno> for NoWay {
    fn from(errno: Errno) -> NoWay {
        NoWay::Failed(errno)
    }
}

#[derive(Debug, Default)]
struct Open {
    files: HashMap<Vec<u8>, (Arc<File>, u64)>,
    turn: u64,
}

impl LocalFolder {
    /// Looks at nothing yet.
    pub fn new(place: &str) -> LocalFolder {
        LocalFolder {
            place: place.to_owned(),
            root: Mutex::default(),
            was_mounted: AtomicBool::new(false),
            open: Mutex::default(),
            ways: Mutex::default(),
            leases: Mutex::default(),
            witness: Witness::default(),
        }
    }

    /// Its path.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Checks that the folder is there and answers for itself.
    pub fn probe(&self) -> Result<(), SourceError> {
        let root = self.root()?;
        look_anew(&root).map_err(|errno| self.error(b"", errno))?;
        Ok(())
    }

    fn error(&self, path: &[u8], errno: Errno) -> SourceError {
        error(&self.place, path, errno)
    }

    /// The folder itself.
    fn root(&self) -> Result<Arc<OwnedFd>, SourceError> {
        let known = {
            let mut root = self.root.lock();
            match root.as_mut() {
                Some(root) if root.looked.elapsed() < LOOK => return Ok(root.folder.clone()),
                // The others go on with it meanwhile.
                Some(root) => {
                    root.looked = Instant::now();
                    Some(root.clone())
                }
                None => None,
            }
        };
        match known {
            // What came over the folder since may be what shows it.
            Some(known) if crossing::leads_to_ours(&self.place) => Ok(known.folder),
            Some(known) if self.leads_to() == Ok(known.is) => Ok(known.folder),
            Some(known) => match self.enter() {
                // Where nothing else is, it goes on with what is open.
                Err(NoWay::Failed(_)) => Ok(known.folder),
                entered => entered.map_err(|no_way| self.no_way(no_way)),
            },
            None if crossing::leads_to_ours(&self.place) => Err(SourceError::Absent {
                place: self.place.clone(),
                reason: "it is in a mount of Staves: give the source that was mounted there".into(),
            }),
            None => self.enter().map_err(|no_way| self.no_way(no_way)),
        }
    }

    fn no_way(&self, no_way: NoWay) -> SourceError {
        let was_mounted = self.was_mounted.load(Ordering::Relaxed);
        match no_way {
            NoWay::Failed(errno) if !(was_mounted && is_absent(errno)) => {
                no_folder(&self.place, errno)
            }
            NoWay::Failed(_) | NoWay::Unmounted => SourceError::Unreachable {
                place: self.place.clone(),
                reason: "nothing is mounted there any more: mount there again what was, or, if the folder itself is meant now, restart \
                         what reads it (its mount, and nodes on that machine)"
                    .into(),
            },
        }
    }

    /// The device and inode of what is at the path now.
    fn leads_to(&self) -> Result<(u64, u64), Errno> {
        let stat = rustix::fs::stat(&*self.place)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Opens what is at the path now, and goes on with that. Regression: once a file server that was away was unmounted, the empty folder
    /// beneath was the source, and well.
    fn enter(&self) -> Result<Arc<OwnedFd>, NoWay> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = Arc::new(rustix::fs::open(&*self.place, flags, Mode::empty())?);
        let stat = rustix::fs::fstat(&folder)?;
        let is_mounted = is_mount(&folder);
        let is_unmounted = !is_mounted && self.was_mounted.load(Ordering::Relaxed);
        if is_mounted {
            self.was_mounted.store(true, Ordering::Relaxed);
        }
        let root = Root {
            folder: folder.clone(),
            is: (stat.st_dev, stat.st_ino),
            looked: Instant::now(),
        };
        // Files of the former one would keep what it is on from being unmounted. To close them may take long.
        let former_files = std::mem::take(&mut *self.open.lock());
        let now = (!is_unmounted).then_some(root);
        let former = std::mem::replace(&mut *self.root.lock(), now);
        drop((former_files, former));
        match is_unmounted {
            true => Err(NoWay::Unmounted),
            false => Ok(folder),
        }
    }

    /// Opens a name below the root; links that lead out of it are refused.
    fn open_at(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, SourceError> {
        let at = match path {
            b"" => b".",
            path => path,
        };
        let flags = flags | OFlags::CLOEXEC;
        let root = self.root()?;
        let open = |within| rustix::fs::openat2(&root, at, flags, Mode::empty(), within);
        let opened = match open(WITHIN | ResolveFlags::NO_XDEV) {
            // It leads into another mount, or out.
            Err(Errno::XDEV) => refuse_ours(&root, path).and_then(|()| open(WITHIN)),
            opened => opened,
        };
        opened.map_err(|errno| self.error(path, errno))
    }

    /// See [`crate::Source::stat`].
    pub fn stat(&self, path: &[u8]) -> Result<Stat, SourceError> {
        let name = self.open_at(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        self.stat_of(&name, path)
    }

    /// See [`crate::Source::stat_to_open`].
    pub fn stat_to_open(&self, path: &[u8]) -> Result<Stat, SourceError> {
        let name = self.open_at(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        let mut stat = self.stat_of(&name, path)?;
        if let Kind::File { fresh, .. } = &mut stat.kind
            && !*fresh
            && self.reports_writers(&name)
            && let Ok(file) = self.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK)
        {
            let file = File::from(file);
            self.witness.begin(&file);
            *fresh = lease::has_writer(file);
        }
        Ok(stat)
    }

    /// True if a lease that is refused means a writer, where a file is. Asked of each file system once.
    fn reports_writers(&self, file: impl AsFd) -> bool {
        let Ok(seen) = look(&file) else {
            return false;
        };
        let device = (seen.stx_dev_major, seen.stx_dev_minor);
        let known = self.leases.lock().get(&device).copied();
        known.unwrap_or_else(|| {
            let reports = lease::is_about_writers(file);
            let mut leases = self.leases.lock();
            if leases.len() >= DEVICES_MAX {
                leases.clear();
            }
            leases.insert(device, reports);
            reports
        })
    }

    fn stat_of(&self, name: &OwnedFd, path: &[u8]) -> Result<Stat, SourceError> {
        let seen = look(name).map_err(|errno| self.error(path, errno))?;
        self.stat_seen(name, path, &seen)
    }

    /// The attributes of what was seen; denied if it is nothing that is shown.
    fn stat_seen(&self, name: &OwnedFd, path: &[u8], stat: &Statx) -> Result<Stat, SourceError> {
        let kind = match FileType::from_raw_mode(stat.stx_mode.into()) {
            FileType::Directory => Kind::Folder,
            FileType::RegularFile => Kind::File {
                version: self.witness.version(stat, || reopened(name)),
                fresh: is_fresh(stat),
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
            size: stat.stx_size,
            modified: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
            executable: stat.stx_mode & 0o100 != 0,
            for_all: path.is_empty() || is_for_all(stat),
            links: stat.stx_nlink,
            has_holes: is_file(stat) && stat.stx_blocks < stat.stx_size / BLOCK_UNIT,
        })
    }

    /// See [`crate::Source::list`]. What is neither file nor folder nor link, or is a mount of Staves, or goes meanwhile, is
    /// left out. `each` is given the others; `goes_on` is called at each entry: large folders take long.
    pub fn list(
        &self,
        path: &[u8],
        goes_on: impl Fn(),
        names_max: usize,
        mut each: impl FnMut(&[u8], Stat),
    ) -> Result<(), SourceError> {
        let folder = self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let device_here = crossing::device(&folder);
        // Not by way of `.`, which needs the right to enter.
        let entries = rustix::io::fcntl_dupfd_cloexec(&folder, 0).and_then(Dir::new);
        let entries = entries.map_err(|errno| self.error(path, errno))?;
        let mut names = 0;
        for entry in entries {
            goes_on();
            let entry = entry.map_err(|errno| self.error(path, errno))?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let stat = self.listed(&folder, device_here.as_deref(), name);
            let Some(stat) = stat.map_err(|errno| self.error(path, errno))? else {
                continue;
            };
            if names == names_max {
                return Err(SourceError::Denied {
                    path: text(path),
                    reason: format!(
                        "it has more than {names_max} names, and cannot be listed: its files can be opened by their names; or spread \
                         them over folders below it"
                    ),
                });
            }
            names += 1;
            each(name, stat);
        }
        Ok(())
    }

    /// The attributes of a name in a folder's list. `None`: it is not in it. An error: nothing can be looked at now.
    fn listed(
        &self,
        folder: &OwnedFd,
        device_here: Option<&str>,
        name: &[u8],
    ) -> Result<Option<Stat>, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let at = match rustix::fs::openat(folder, name, flags, Mode::empty()) {
            Ok(at) => at,
            Err(errno) => return unopened(errno),
        };
        let device = crossing::device(&at);
        if device.as_deref() != device_here && device.as_deref().is_some_and(crossing::is_ours) {
            return Ok(None);
        }
        Ok(
            match look(&at).map(|seen| self.stat_seen(&at, name, &seen)) {
                Ok(Err(SourceError::Denied { .. })) | Err(Errno::NOENT) => None,
                Ok(Ok(stat)) => Some(stat),
                Ok(Err(_)) | Err(_) => Some(Stat::UNREADABLE),
            },
        )
    }

    /// See [`crate::Source::read`]. The file's version is looked at before and after.
    pub fn read(
        &self,
        file: &FileVersion,
        from: u64,
        len: usize,
        reader: Reader,
    ) -> Result<(Bytes, Keep), SourceError> {
        let changed = || SourceError::Changed {
            path: text(&file.path),
        };
        if from
            .checked_add(len as u64)
            .is_none_or(|end| end > file.size)
        {
            return Err(changed());
        }
        let (open, seen) = self.file(file)?;
        let for_all = is_for_all(&seen) && self.way_is_for_all(&file.path)?;
        if reader == Reader::AnyClient && !for_all {
            return Err(SourceError::Private {
                path: text(&file.path),
            });
        }
        // Before the bytes: what a program maps from now on moves the times at its first write.
        let reports_writers = self.reports_writers(&open);
        if reports_writers {
            self.witness.begin(&open);
        }
        let has_writer = reports_writers && lease::has_writer(&open);
        let read = self
            .read_open(&open, file, from, len)
            .map(|read| read.map(|(bytes, seen)| (bytes, keep(&seen, for_all, has_writer))));
        if let Ok(Some(read)) = read {
            return Ok(read);
        }
        let former = self.open.lock().files.remove(&file.path);
        // To close it may take long: not under the lock.
        drop(former);
        Err(match read {
            Err(errno) => self.error(&file.path, errno),
            Ok(_) => changed(),
        })
    }

    /// See [`crate::Source::seek`].
    pub fn seek(
        &self,
        file: &FileVersion,
        from: u64,
        what: Seek,
    ) -> Result<Option<u64>, SourceError> {
        let (open, _) = self.file(file)?;
        let to = match what {
            Seek::Data => SeekFrom::Data(from),
            Seek::Hole => SeekFrom::Hole(from),
        };
        // Reads name their place: the one that is moved here is nobody's.
        let found = match rustix::fs::seek(&open, to) {
            Ok(found) => Some(found),
            Err(Errno::NXIO) => None,
            // A file system that knows no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => what.in_solid(file.size, from),
            Err(errno) => return Err(self.error(&file.path, errno)),
        };
        let seen = look_anew(&open).map_err(|errno| self.error(&file.path, errno))?;
        match self.version_of(&open, &seen) == file.version {
            true => Ok(found),
            false => Err(SourceError::Changed {
                path: text(&file.path),
            }),
        }
    }

    /// True if everybody may enter the folders that lead to a file, below the dataset's own: that one was made public by
    /// mounting it.
    fn way_is_for_all(&self, path: &[u8]) -> Result<bool, SourceError> {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (end, _) in slashes {
            if !self.folder_is_for_all(&path[..end])? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn folder_is_for_all(&self, path: &[u8]) -> Result<bool, SourceError> {
        let known = self.ways.lock().get(path).copied();
        if let Some((for_all, looked)) = known
            && looked.elapsed() < LOOK
        {
            return Ok(for_all);
        }
        let looked = Instant::now();
        let folder = self.open_at(path, OFlags::PATH | OFlags::DIRECTORY)?;
        let stat = look(&folder).map_err(|errno| self.error(path, errno))?;
        let for_all = stat.stx_mode & 0o001 != 0;
        let mut ways = self.ways.lock();
        if ways.len() >= WAYS_MAX {
            ways.clear();
        }
        ways.insert(path.to_owned(), (for_all, looked));
        Ok(for_all)
    }

    /// The file, open, in that version.
    fn file(&self, file: &FileVersion) -> Result<(Arc<File>, Statx), SourceError> {
        self.root()?;
        if let Some(known) = self.known(&file.path)
            && let Ok(seen) = look(&known)
            && self.version_of(&known, &seen) == file.version
        {
            return Ok((known, seen));
        }
        // To open what is no file may do something: rewind a tape, wake a waiting writer.
        let name = self.open_at(&file.path, OFlags::PATH)?;
        let seen = look(&name).map_err(|errno| self.error(&file.path, errno))?;
        if !is_file(&seen) || self.witness.version(&seen, || reopened(&name)) != file.version {
            return Err(SourceError::Changed {
                path: text(&file.path),
            });
        }
        // Its descriptor is the lowest that is free.
        drop(name);
        let now = File::from(self.open_at(&file.path, OFlags::RDONLY | OFlags::NONBLOCK)?);
        let seen = look(&now).map_err(|errno| self.error(&file.path, errno))?;
        if self.version_of(&now, &seen) != file.version {
            return Err(SourceError::Changed {
                path: text(&file.path),
            });
        }
        let now = Arc::new(now);
        self.remember(&file.path, now.clone());
        Ok((now, seen))
    }

    /// Bytes of a file, if they are those of that version, and what was seen of it after.
    fn read_open(
        &self,
        open: &File,
        file: &FileVersion,
        from: u64,
        len: usize,
    ) -> Result<Option<(Bytes, Statx)>, Errno> {
        let mut bytes = BytesMut::zeroed(len);
        match open.read_exact_at(&mut bytes, from) {
            Ok(()) => {}
            Err(error) => match error.raw_os_error() {
                Some(errno) => return Err(Errno::from_raw_os_error(errno)),
                None => return Ok(None), // it ends before
            },
        }
        let seen = look_anew(open)?;
        let is_it = self.version_of(open, &seen) == file.version;
        Ok(is_it.then(|| (bytes.freeze(), seen)))
    }

    fn version_of(&self, open: &File, seen: &Statx) -> String {
        self.witness.version(seen, || open.try_clone().ok())
    }

    fn known(&self, path: &[u8]) -> Option<Arc<File>> {
        let mut open = self.open.lock();
        open.turn += 1;
        let turn = open.turn;
        let (file, used) = open.files.get_mut(path)?;
        *used = turn;
        Some(file.clone())
    }

    fn remember(&self, path: &[u8], file: Arc<File>) {
        let mut open = self.open.lock();
        let turn = open.turn;
        let mut surplus = None;
        let may_stay = may_stay_open(&file);
        if open.files.len() >= OPEN_MAX || !may_stay {
            // Where descriptors are few, the next one has its place.
            let oldest = open.files.iter().min_by_key(|(_, (_, used))| *used);
            let oldest = oldest.map(|(path, _)| path.clone());
            surplus = oldest.and_then(|path| open.files.remove(&path));
        }
        let former = match may_stay {
            true => open.files.insert(path.to_owned(), (file, turn)),
            false => open.files.remove(path),
        };
        // To close a file may take long, too.
        drop(open);
        drop((surplus, former));
    }
}

/// True if so many descriptors are free that this one may be kept.
fn may_stay_open(file: &File) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    u64::try_from(file.as_raw_fd()).is_ok_and(|number| number < limit / OPEN_PART)
}

/// Refuses a path that leads through a mount of Staves. Each folder on the way is looked at before a name in it is,
/// for which its server would be asked.
fn refuse_ours(root: &OwnedFd, path: &[u8]) -> Result<(), Errno> {
    let mut device = crossing::device(root);
    let ends = (0..path.len()).filter(|&at| path[at] == b'/');
    for end in ends.chain([path.len()]).filter(|&end| end > 0) {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let name = rustix::fs::openat2(root, &path[..end], flags, Mode::empty(), WITHIN);
        // Why it cannot be opened is found again where it is.
        let Ok(name) = name else { return Ok(()) };
        let here = crossing::device(&name);
        if here != device && here.as_deref().is_some_and(crossing::is_ours) {
            return Err(Errno::DEADLK);
        }
        device = here;
    }
    Ok(())
}

/// A file for reading, of a name that was opened as such.
fn reopened(name: &OwnedFd) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", name.as_raw_fd());
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    Some(file.into())
}

pub(super) fn look(file: impl AsFd) -> Result<Statx, Errno> {
    rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

/// As the file server sees it now. What this machine remembers of it (of NFS: up to a minute) may be older than bytes that
/// were read since.
fn look_anew(file: impl AsFd) -> Result<Statx, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    rustix::fs::statx(file, c"", flags, StatxFlags::BASIC_STATS)
}

/// True if a folder is where something is mounted, as far as the kernel says (from Linux 5.8 on). A device of its own would not show that:
/// subvolumes have one, and bind mounts none.
fn is_mount(folder: impl AsFd) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let seen = rustix::fs::statx(folder, c"", flags, StatxFlags::empty());
    seen.is_ok_and(|seen| seen.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

fn is_absent(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR)
}

fn is_file(seen: &Statx) -> bool {
    FileType::from_raw_mode(seen.stx_mode.into()) == FileType::RegularFile
}

/// The version by all that was seen.
pub(super) fn version(seen: &Statx) -> String {
    format!(
        "{}-{}.{:09}-{}.{:09}-{}",
        seen.stx_size,
        seen.stx_mtime.tv_sec,
        seen.stx_mtime.tv_nsec,
        seen.stx_ctime.tv_sec,
        seen.stx_ctime.tv_nsec,
        seen.stx_ino
    )
}

fn is_for_all(seen: &Statx) -> bool {
    let all = match FileType::from_raw_mode(seen.stx_mode.into()) {
        FileType::Directory => 0o005,
        _ => 0o004,
    };
    seen.stx_mode & all == all
}

fn keep(seen: &Statx, for_all: bool, has_writer: bool) -> Keep {
    match for_all && is_for_all(seen) {
        false => Keep::Never,
        true if has_writer || is_fresh(seen) => Keep::NotYet,
        true => Keep::Yes,
    }
}

pub(super) fn is_fresh(seen: &Statx) -> bool {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    // The time of the last change of any kind: that of the bytes can be set to anything, and be years ahead. One that lies
    // ahead is of another clock: the file is fresh for as long.
    let nanos = seen.stx_ctime.tv_nsec.min(999_999_999);
    now.saturating_sub(Duration::new(seen.stx_ctime.tv_sec.max(0) as u64, nanos)) < FRESH
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// The error for a place without a readable folder.
pub fn no_folder(place: &str, errno: Errno) -> SourceError {
    let reason = match errno {
        Errno::NOENT => "there is no such folder",
        Errno::NOTDIR => "there is no such folder: a file is there, or above it",
        errno => return error(place, b"", errno),
    };
    SourceError::Absent {
        place: place.to_owned(),
        reason: reason.into(),
    }
}

/// The entry of a list for a name that cannot be looked at. Regression: a list of a process without descriptors was short, or empty.
fn unopened(errno: Errno) -> Result<Option<Stat>, Errno> {
    match errno {
        Errno::NOENT => Ok(None),
        // It is not about the name.
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Err(errno),
        _ => Ok(Some(Stat::UNREADABLE)),
    }
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
        Errno::LOOP => SourceError::Denied {
            path: full,
            reason: "a link is on the way, and links within a source are not followed: give the path of what it leads to".into(),
        },
        Errno::XDEV => SourceError::Denied {
            path: full,
            reason: "it leads out of the dataset".into(),
        },
        Errno::DEADLK => SourceError::Denied {
            path: full,
            reason: "a dataset is mounted there, and no source is read through a mount of Staves, which might wait for itself".into(),
        },
        _ => SourceError::Unreachable {
            place: full,
            reason: errno.to_string(),
        },
    }
}

#[cfg(test)]
mod tests;
