//! Each request of the kernel: what it asks for is found or read by `serve`, and answered here.
//!
//! What would change something is not here: the kernel refuses it by itself, for the mount is read-only.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, Request,
};

use crate::files::{Files, Kind, Seek, Stat, Version};
use crate::handles::OpenFile;
use crate::listing::Listing;
use crate::serve::Serve;

/// Most bytes of a request: the kernel's default.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel sends ahead of programs at most.
const BACKGROUND_MAX: u16 = 64;

/// The two seeks of lseek that a mount is asked for, by Linux's numbers.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

thread_local! {
    /// Bytes on their way to the kernel: one buffer for each thread that serves, never freed.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The kernel's offsets count `.` and `..` before what is listed.
const DOTS: [&str; 2] = [".", ".."];
const DOTS_STAT: Stat = Stat {
    kind: Kind::Folder,
    size: 0,
    modified: SystemTime::UNIX_EPOCH,
    mode: 0o755,
    version: Version([0, 0]),
    fresh: false,
    has_holes: false,
    links: 2,
};

/// An entry of a listing by the kernel's offset, or the name of one of the two before.
fn entry(listing: &Listing, at: u64) -> Option<Result<(&OsStr, &Stat), &'static str>> {
    let at = usize::try_from(at).ok()?;
    match DOTS.get(at) {
        Some(dots) => Some(Err(dots)),
        None => listing.get(at - DOTS.len()).map(Ok),
    }
}

/// The kernel's requests.
pub struct Requests<S: Files>(pub Arc<Serve<S>>);

impl<S: Files> Deref for Requests<S> {
    type Target = Serve<S>;

    fn deref(&self) -> &Serve<S> {
        &self.0
    }
}

impl<S: Files> Requests<S> {
    /// Has a thread of its own wait for bytes.
    fn read_elsewhere(
        &self,
        open: Arc<OpenFile<S::File>>,
        offset: u64,
        bytes: usize,
        reply: ReplyData,
    ) {
        let serve = self.0.clone();
        self.waiters.wait(move || {
            let mut into = vec![0; bytes];
            match serve.read_file(&open, offset, &mut into) {
                Ok(()) => reply.data(&into),
                Err(errno) => reply.error(errno),
            }
        });
    }
}

impl<S: Files> Filesystem for Requests<S> {
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
            let into = &mut buffer[..bytes];
            let read = match self.read_now(&open, offset, into) {
                Ok(true) => Ok(()),
                Ok(false) => match self.waiters.seat() {
                    Some(_seat) => self.read_file(&open, offset, into),
                    None => return self.read_elsewhere(open, offset, bytes, reply),
                },
                Err(errno) => Err(errno),
            };
            match read {
                Ok(()) => reply.data(into),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Some(open) = self.handles.file(fh.0) else {
            return reply.error(Errno::EBADF);
        };
        let (what, from) = match (whence, u64::try_from(offset)) {
            (SEEK_DATA, Ok(from)) => (Seek::Data, from),
            (SEEK_HOLE, Ok(from)) => (Seek::Hole, from),
            _ => return reply.error(Errno::EINVAL),
        };
        match self.seek(&open, from, what) {
            Ok(found) => reply.offset(found),
            Err(errno) => reply.error(errno),
        }
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
        let mut some = false;
        for (at, entry) in (offset..).map_while(|at| entry(&listing, at).map(|e| (at, e))) {
            let full = match entry {
                // The kernel does not count these as look-ups.
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
                    // It went since the folder was opened.
                    Err(errno) if errno == Errno::ENOENT => continue,
                    Err(errno) if !some => return reply.error(errno),
                    Err(_) => true,
                },
            };
            some = true;
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
