//! The answers to the kernel's requests, found in [`Files`] and kept in mind.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fuser::{Errno, FileAttr, FileType, FopenFlags, INodeNo, OpenAccMode, OpenFlags};
use parking_lot::Mutex;

use crate::ahead::Ahead;
use crate::complaints::Complaints;
use crate::files::{FileError, Files, Kind, Seek, Stat, Version};
use crate::handles::{Handles, OpenFile};
use crate::inodes::{Inodes, KnownInode};
use crate::mount::Options;
use crate::outdated::{Outdated, OutdatedQueue};
use crate::waiters::Waiters;

/// The server of a mount.
pub struct Serve<S: Files> {
    /// The mounted tree.
    pub files: S,
    /// The inodes that the kernel knows.
    pub inodes: Mutex<Inodes>,
    /// The files and folders that programs have open.
    pub handles: Handles<S::File>,
    complaints: Complaints,
    outdated: OutdatedQueue,
    /// The time that the kernel may cache an answer.
    pub lifetime: Duration,
    read_ahead_bytes: u64,
    owner: (u32, u32),
    /// The threads that wait for bytes that are not at hand.
    pub waiters: Waiters,
}

impl<S: Files> Serve<S> {
    /// Nothing is open yet.
    pub fn new(files: S, options: &Options, outdated: OutdatedQueue) -> Serve<S> {
        Serve {
            files,
            inodes: Mutex::new(Inodes::new(options.inodes_max)),
            handles: Handles::default(),
            complaints: Complaints::default(),
            outdated,
            lifetime: options.lifetime,
            read_ahead_bytes: options.read_ahead_bytes,
            owner: (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
            waiters: Waiters::new(options.threads),
        }
    }

    /// Attributes as the kernel wants them.
    pub fn attr(&self, number: u64, stat: &Stat) -> FileAttr {
        let kind = match stat.kind {
            Kind::File => FileType::RegularFile,
            Kind::Folder => FileType::Directory,
            Kind::Link(_) => FileType::Symlink,
        };
        // Programs look for holes where a file takes less than its bytes; how much less is not known here.
        let holes = u64::from(stat.has_holes);
        FileAttr {
            ino: INodeNo(number),
            size: stat.size,
            blocks: stat.size.div_ceil(512).saturating_sub(holes),
            atime: stat.modified,
            mtime: stat.modified,
            ctime: stat.modified,
            crtime: SystemTime::UNIX_EPOCH,
            kind,
            perm: stat.mode & 0o777,
            nlink: stat.links,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            // What programs take for a good size to read at a time. A large one makes those that
            // jump about (htslib among them) read that much at each jump.
            blksize: 4096,
            flags: 0,
        }
    }

    /// The inode of a number; ESTALE if it was forgotten.
    pub fn known(&self, number: INodeNo) -> Result<KnownInode, Errno> {
        self.inodes.lock().get(number.0).ok_or(Errno::ESTALE)
    }

    /// Counts a look-up of an entry by the kernel.
    fn tell(&self, path: &Path, stat: &Stat) -> Result<FileAttr, Errno> {
        let (found, surplus) = {
            let mut inodes = self.inodes.lock();
            let found = inodes.tell(path, stat);
            let surplus = match self.outdated.at_names() {
                true => Vec::new(),
                false => inodes.surplus(),
            };
            (found, surplus)
        };
        if !surplus.is_empty() {
            self.outdated.push(Outdated::Names(surplus));
        }
        let found = found.ok_or_else(|| self.full(path))?;
        if let Some(old) = found.replaced {
            self.drop_version(old);
        }
        Ok(self.attr(found.number, stat))
    }

    fn full(&self, path: &Path) -> Errno {
        let text = "more files are in use than Options::inodes_max allows twice over".into();
        self.errno(path, &FileError::Io(text), Errno::ENFILE)
    }

    /// Counts an entry of a listing as looked up; the listing may have been made some time ago. One that is there and cannot be looked at
    /// now is shown as the listing has it: whoever has it open reads on.
    pub fn tell_listed(&self, path: &Path, stat: &Stat) -> Result<FileAttr, Errno> {
        if !self.inodes.lock().is_news(path, stat) {
            return self.tell(path, stat);
        }
        // Of one that cannot be read, its source was asked just now.
        let unreadable =
            stat.kind == Kind::File && (stat.mode, stat.version) == (0, Version([0; 2]));
        let seen = match unreadable {
            true => Err(FileError::Denied("its source refuses it".into())),
            false => self.files.stat(path),
        };
        match seen {
            Ok(stat) => self.tell(path, &stat),
            Err(FileError::NotFound) => Err(Errno::ENOENT),
            Err(error) => {
                self.fail(path, &error);
                let number = self.inodes.lock().tell_aside(path, stat);
                number
                    .map(|number| self.attr(number, stat))
                    .ok_or_else(|| self.full(path))
            }
        }
    }

    /// A version is over: its handles are refused, and the kernel lets go of its pages.
    fn drop_version(&self, inode: u64) {
        self.handles.outdate(inode);
        self.outdated.push(Outdated::Pages(inode));
    }

    fn outdate(&self, inode: u64) {
        if self.inodes.lock().outdate(inode) {
            self.drop_version(inode);
        }
    }

    /// Drops the kernel's pages of open files that may be changing without a sign, and looks whether they still are. What is
    /// read after such a file is found settled is kept.
    pub fn settle(&self) {
        for open in self.handles.unsettled() {
            let is_settled = match self.files.open(&open.path) {
                Ok(now) => {
                    let (now, then) =
                        (self.files.stat_open(&now), self.files.stat_open(&open.file));
                    if now.version != then.version {
                        self.outdate(open.inode);
                    }
                    now.version != then.version || !now.fresh
                }
                Err(_) => false,
            };
            // After the look: pages of before it go.
            let dropped = self.outdated.push(Outdated::Pages(open.inode));
            open.unsettled
                .store(!(is_settled && dropped), Ordering::Relaxed);
        }
    }

    fn errno(&self, path: &Path, error: &FileError, errno: Errno) -> Errno {
        self.complaints.log(path, error);
        errno
    }

    fn fail(&self, path: &Path, error: &FileError) -> Errno {
        let errno = match error {
            FileError::NotFound => Errno::ENOENT,
            FileError::Stale(_) => Errno::ESTALE,
            FileError::TimedOut(_) => Errno::ETIMEDOUT,
            FileError::Denied(_) => Errno::EACCES,
            FileError::Io(_) => Errno::EIO,
        };
        self.errno(path, error, errno)
    }

    /// Finds a name in a folder, and counts the kernel's look-up.
    pub fn look_up(&self, folder: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let path = self.known(folder)?.path.join(name);
        match self.files.stat(&path) {
            Ok(stat) => self.tell(&path, &stat),
            Err(error) => Err(self.fail(&path, &error)),
        }
    }

    /// The current attributes of an inode. ESTALE makes the kernel look the name up anew.
    pub fn stat(&self, number: INodeNo) -> Result<Stat, Errno> {
        let known = self.known(number)?;
        if known.stale {
            return Err(Errno::ESTALE);
        }
        let stat = match self.files.stat(&known.path) {
            Ok(stat) => stat,
            // Deleted, and not replaced: a program that has it open reads on what is in memory.
            Err(FileError::NotFound) => {
                let open = self.handles.open_of(number.0).ok_or(Errno::ESTALE)?;
                return Ok(self.files.stat_open(&open.file).clone());
            }
            // The source is silent: a program that reads to a file's end asks for this before each read, and its bytes may be in memory.
            Err(error @ FileError::TimedOut(_)) => {
                let errno = self.fail(&known.path, &error);
                let open = self.handles.open_of(number.0).ok_or(errno)?;
                return Ok(self.files.stat_open(&open.file).clone());
            }
            Err(error) => return Err(self.fail(&known.path, &error)),
        };
        let is_folder = stat.kind == Kind::Folder;
        if known.version != (!is_folder).then_some(stat.version) {
            self.outdate(number.0);
            return Err(Errno::ESTALE);
        }
        Ok(stat)
    }

    /// Opens the version that the inode stands for, or fails with ESTALE.
    pub fn open_file(&self, number: INodeNo, flags: OpenFlags) -> Result<(u64, FopenFlags), Errno> {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return Err(Errno::EROFS);
        }
        let known = self.known(number)?;
        let path = known.path;
        let file = match self.files.open(&path) {
            Ok(file) => file,
            // The kernel looks the name up again, and reports that there is none.
            Err(FileError::NotFound) => return Err(Errno::ESTALE),
            Err(error) => return Err(self.fail(&path, &error)),
        };
        let stat = self.files.stat_open(&file);
        if known.stale || known.version != Some(stat.version) {
            self.outdate(number.0);
            return Err(Errno::ESTALE);
        }
        let fresh = stat.fresh;
        let kept = self.inodes.lock().opened(number.0, fresh, Instant::now());
        let keep = match kept {
            true => FopenFlags::FOPEN_KEEP_CACHE,
            false => FopenFlags::empty(),
        };
        // What is read ahead may be given to the kernel when the file is not fresh any more.
        let ahead_bytes = if fresh { 0 } else { self.read_ahead_bytes };
        let open = OpenFile {
            file,
            inode: number.0,
            path,
            ahead: Mutex::new(Ahead::new(ahead_bytes)),
            stale: AtomicBool::new(false),
            unsettled: AtomicBool::new(fresh),
        };
        let handle = self.handles.add_file(open).ok_or(Errno::ENFILE)?;
        Ok((handle, keep | FopenFlags::FOPEN_NOFLUSH))
    }

    /// Reads what is at hand: all of it, or none, and whether it did. What is not can be [waited for](Serve::read_file).
    pub fn read_now(
        &self,
        open: &OpenFile<S::File>,
        offset: u64,
        into: &mut [u8],
    ) -> Result<bool, Errno> {
        if open.stale.load(Ordering::Relaxed) {
            return Err(Errno::ESTALE);
        }
        let size = self.files.stat_open(&open.file).size;
        let ahead = open.ahead.lock().step(offset, into.len() as u64, size);
        if let Some(range) = ahead {
            let bytes = range.end - range.start;
            self.files.will_read(&open.file, range.start, bytes);
        }
        Ok(into.is_empty() || self.files.read_now(&open.file, offset, into))
    }

    /// Reads all that was asked for and is there: to the kernel, fewer bytes mean the end of the file.
    pub fn read_file(
        &self,
        open: &OpenFile<S::File>,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Errno> {
        let mut done = 0;
        while done < into.len() {
            let read = self
                .files
                .read(&open.file, offset + done as u64, &mut into[done..]);
            match read {
                Ok(0) => {
                    let text = format!(
                        "{} is shorter than it was: open it again",
                        open.path.display()
                    );
                    self.outdate(open.inode);
                    return Err(self.fail(&open.path, &FileError::Stale(text)));
                }
                Ok(read) => done += read,
                // Deleted: other bytes of it may be in memory still.
                Err(FileError::NotFound) => return Err(Errno::ESTALE),
                Err(error) => {
                    if matches!(error, FileError::Stale(_)) {
                        self.outdate(open.inode);
                    }
                    return Err(self.fail(&open.path, &error));
                }
            }
        }
        Ok(())
    }

    /// The place of the next data or hole: ENXIO if there is none.
    pub fn seek(&self, open: &OpenFile<S::File>, from: u64, what: Seek) -> Result<i64, Errno> {
        if open.stale.load(Ordering::Relaxed) {
            return Err(Errno::ESTALE);
        }
        match self.files.seek(&open.file, from, what) {
            Ok(found) => found
                .and_then(|found| i64::try_from(found).ok())
                .ok_or(Errno::ENXIO),
            Err(FileError::NotFound) => Err(Errno::ESTALE),
            Err(error) => {
                if matches!(error, FileError::Stale(_)) {
                    self.outdate(open.inode);
                }
                Err(self.fail(&open.path, &error))
            }
        }
    }

    /// Lists a folder, for as long as it is open.
    pub fn open_folder(&self, number: INodeNo) -> Result<u64, Errno> {
        let path = self.known(number)?.path;
        let listing = match self.files.list(&path) {
            Ok(listing) => listing,
            Err(error) => return Err(self.fail(&path, &error)),
        };
        let names = listing.len();
        self.handles.add_folder(listing).ok_or_else(|| {
            let text = format!(
                "its {names} names are too many beside those of the folders that are open: try again when fewer are listed at a time"
            );
            self.errno(&path, &FileError::Io(text), Errno::ENFILE)
        })
    }
}
