//! The kernel's requests, answered from [`Files`].

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, Request,
};
use parking_lot::Mutex;

use crate::ahead::Ahead;
use crate::complaints::Complaints;
use crate::files::{FileError, Files, Kind, Stat, Version};
use crate::handles::{Handles, Listing, Open};
use crate::inodes::{Inodes, Known};
use crate::mount::Options;
use crate::outdated::{Outdated, Queue};

/// Most bytes of a request: what the kernel allows without being told otherwise.
pub const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel sends ahead of programs at most.
const BACKGROUND_MAX: u16 = 64;
/// The page cache does not outlive an open file that was changed this recently: its next change might show the same time.
const SETTLED: Duration = Duration::from_secs(2);

thread_local! {
    /// Bytes on their way to the kernel: one buffer for each thread that serves, never freed.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What answers.
pub struct Serve<S: Files> {
    files: S,
    inodes: Mutex<Inodes>,
    handles: Handles<S::File>,
    complaints: Complaints,
    outdated: Queue,
    lifetime: Duration,
    read_ahead_bytes: u64,
    owner: (u32, u32),
}

impl<S: Files> Serve<S> {
    /// Nothing is open yet.
    pub fn new(files: S, options: &Options, outdated: Queue) -> Serve<S> {
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
        }
    }

    fn attr(&self, number: u64, stat: &Stat) -> FileAttr {
        let (kind, type_links) = match stat.kind {
            Kind::File => (FileType::RegularFile, 1),
            Kind::Folder => (FileType::Directory, 2),
            Kind::Link(_) => (FileType::Symlink, 1),
        };
        FileAttr {
            ino: INodeNo(number),
            size: stat.size,
            blocks: stat.size.div_ceil(512),
            atime: stat.modified,
            mtime: stat.modified,
            ctime: stat.modified,
            crtime: SystemTime::UNIX_EPOCH,
            kind,
            perm: stat.mode & 0o777,
            nlink: type_links,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            // What programs take for a good size to read at a time. A large one makes those that
            // jump about (htslib among them) read that much at each jump.
            blksize: 4096,
            flags: 0,
        }
    }

    fn known(&self, number: INodeNo) -> Result<Known, Errno> {
        self.inodes.lock().get(number.0).ok_or(Errno::ESTALE)
    }

    /// The kernel is told of an entry.
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
        let Some(found) = found else {
            let text = "more files are in use than Options::inodes_max allows twice over".into();
            return Err(self.errno(path, &FileError::Io(text), Errno::ENFILE));
        };
        if let Some(old) = found.replaced {
            self.drop_version(old);
        }
        Ok(self.attr(found.number, stat))
    }

    /// The kernel is told of an entry of a listing, which may have been made some time ago.
    fn tell_listed(&self, path: &Path, stat: &Stat) -> Result<FileAttr, Errno> {
        if !self.inodes.lock().is_news(path, stat) {
            return self.tell(path, stat);
        }
        match self.files.stat(path) {
            Ok(stat) => self.tell(path, &stat),
            Err(error) => Err(self.fail(path, &error)),
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

    fn look_up(&self, folder: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let path = self.known(folder)?.path.join(name);
        match self.files.stat(&path) {
            Ok(stat) => self.tell(&path, &stat),
            Err(error) => Err(self.fail(&path, &error)),
        }
    }

    /// What an inode is now. ESTALE makes the kernel look the name up anew.
    fn stat(&self, number: INodeNo) -> Result<Stat, Errno> {
        let known = self.known(number)?;
        if known.stale {
            return Err(Errno::ESTALE);
        }
        let stat = match self.files.stat(&known.path) {
            Ok(stat) => stat,
            Err(FileError::NotFound) => {
                self.outdate(number.0);
                return Err(Errno::ESTALE);
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

    fn open_file(&self, number: INodeNo, flags: OpenFlags) -> Result<(u64, FopenFlags), Errno> {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return Err(Errno::EROFS);
        }
        let known = self.known(number)?;
        let path = known.path;
        let file = match self.files.open(&path) {
            Ok(file) => file,
            Err(FileError::NotFound) => {
                self.outdate(number.0);
                return Err(Errno::ESTALE);
            }
            Err(error) => return Err(self.fail(&path, &error)),
        };
        let stat = self.files.stat_open(&file);
        if known.stale || known.version != Some(stat.version) {
            self.outdate(number.0);
            return Err(Errno::ESTALE);
        }
        let age = SystemTime::now().duration_since(stat.modified);
        let keep = match age.is_ok_and(|age| age >= SETTLED) {
            true => FopenFlags::FOPEN_KEEP_CACHE,
            false => FopenFlags::empty(),
        };
        let open = Open {
            file,
            inode: number.0,
            path,
            ahead: Mutex::new(Ahead::new(self.read_ahead_bytes)),
            stale: AtomicBool::new(false),
        };
        let handle = self.handles.add_file(open).ok_or(Errno::ENFILE)?;
        Ok((handle, keep | FopenFlags::FOPEN_NOFLUSH))
    }

    /// Reads all that was asked for and is there: to the kernel, fewer bytes mean the end of the file.
    fn read_file(&self, open: &Open<S::File>, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        if open.stale.load(Ordering::Relaxed) {
            return Err(Errno::ESTALE);
        }
        let size = self.files.stat_open(&open.file).size;
        let ahead = open.ahead.lock().step(offset, into.len() as u64, size);
        if let Some(range) = ahead {
            let bytes = range.end - range.start;
            self.files.will_read(&open.file, range.start, bytes);
        }
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

    fn open_folder(&self, number: INodeNo) -> Result<u64, Errno> {
        let path = self.known(number)?.path;
        let listing = match self.files.list(&path) {
            Ok(listing) => listing,
            Err(error) => return Err(self.fail(&path, &error)),
        };
        self.handles.add_folder(listing).ok_or(Errno::ENFILE)
    }
}

/// The kernel's offsets count `.` and `..` before what is listed.
const DOTS: [&str; 2] = [".", ".."];
const DOTS_STAT: Stat = Stat {
    kind: Kind::Folder,
    size: 0,
    modified: SystemTime::UNIX_EPOCH,
    mode: 0o755,
    version: Version([0, 0]),
};

/// An entry of a listing by the kernel's offset, or the name of one of the two before.
fn entry(listing: &Listing, at: u64) -> Option<Result<&(OsString, Stat), &'static str>> {
    let at = usize::try_from(at).ok()?;
    match DOTS.get(at) {
        Some(dots) => Some(Err(dots)),
        None => listing.get(at - DOTS.len()).map(Ok),
    }
}

impl<S: Files> Filesystem for Serve<S> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
        ] {
            // An older kernel does without.
            let _ = config.add_capabilities(wanted);
        }
        // The size of a read, too, is bounded by this.
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.look_up(parent, name) {
            Ok(attr) => reply.entry(&self.lifetime, &attr, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        self.inodes.lock().forget(ino.0, nlookup);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.stat(ino) {
            Ok(stat) => reply.attr(&self.lifetime, &self.attr(ino.0, &stat)),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.stat(ino).map(|stat| stat.kind) {
            Ok(Kind::Link(target)) => reply.data(target.as_os_str().as_bytes()),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(ino, flags) {
            Ok((handle, flags)) => reply.opened(FileHandle(handle), flags),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(open) = self.handles.file(fh.0) else {
            return reply.error(Errno::EBADF);
        };
        let left = self.files.stat_open(&open.file).size.saturating_sub(offset);
        let bytes = u64::from(size.min(REQUEST_BYTES_MAX)).min(left) as usize;
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < bytes {
                buffer.resize(bytes.next_power_of_two(), 0);
            }
            match self.read_file(&open, offset, &mut buffer[..bytes]) {
                Ok(()) => reply.data(&buffer[..bytes]),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.handles.close_file(fh.0);
        reply.ok();
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.open_folder(ino) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let (folder, listing) = match (self.known(ino), self.handles.folder(fh.0)) {
            (Ok(known), Some(listing)) => (known.path, listing),
            _ => return reply.error(Errno::EBADF),
        };
        for (at, entry) in (offset..).map_while(|at| entry(&listing, at).map(|e| (at, e))) {
            let full = match entry {
                Err(dots) => reply.add(ino, at + 1, FileType::Directory, dots),
                Ok((name, stat)) => {
                    let version = (stat.kind != Kind::Folder).then_some(stat.version);
                    let number = self.inodes.lock().number(&folder.join(name), version);
                    reply.add(INodeNo(number), at + 1, self.attr(number, stat).kind, name)
                }
            };
            if full {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let (folder, listing) = match (self.known(ino), self.handles.folder(fh.0)) {
            (Ok(known), Some(listing)) => (known.path, listing),
            _ => return reply.error(Errno::EBADF),
        };
        let dots_attr = self.attr(ino.0, &DOTS_STAT);
        for (at, entry) in (offset..).map_while(|at| entry(&listing, at).map(|e| (at, e))) {
            let full = match entry {
                // The kernel does not count these as told.
                Err(dots) => reply.add(
                    ino,
                    at + 1,
                    dots,
                    &Duration::ZERO,
                    &dots_attr,
                    Generation(0),
                ),
                Ok((name, stat)) => match self.tell_listed(&folder.join(name), stat) {
                    Ok(attr) => {
                        let full =
                            reply.add(attr.ino, at + 1, name, &self.lifetime, &attr, Generation(0));
                        if full {
                            self.forget(request, attr.ino, 1);
                        }
                        full
                    }
                    Err(errno) if at == offset => return reply.error(errno),
                    Err(_) => true,
                },
            };
            if full {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.handles.close_folder(fh.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        // All that there is, and nothing free: nothing can be written.
        let used = self.files.used();
        let block = 4096;
        let blocks = used.bytes.div_ceil(u64::from(block));
        reply.statfs(blocks, 0, 0, used.files, 0, block, 255, block);
    }
}
