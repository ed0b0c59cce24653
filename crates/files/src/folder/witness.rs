//! The kernel's word that nobody has written a file since its version was named.
//!
//! A change of modes, names or attributes moves the time of the last change of any kind, and so does a program that writes a file and
//! sets the time of its bytes back: by the times alone the two are the same. So files that are read are watched: a write, and the end of
//! a program that had the file open for writing or mapped so, is an event; one that has it so still is refused a lease
//! (`folder/lease.rs`). Where neither is seen, and size, inode and the time of the bytes are as they were, a file keeps the version that it
//! had when the watch began.
//!
//! Only of file systems of this machine, whose kernel sees every write. Elsewhere each of the times counts. Overlayfs is none of them: a
//! mapping there is of the file below, so that a program that has mapped a file and closed it has a lease of it granted, and ends
//! without an event.

use std::collections::HashMap;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use parking_lot::Mutex;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{Statx, StatxTimestamp};

use super::lease::{self, Writers};
use super::local::{is_fresh, look, version};

/// Files that are watched at a time.
const WATCHED_MAX: usize = 1024;
/// Bytes of events that are taken at a time.
const EVENT_BYTES: usize = 4096;
/// ext2 to ext4, XFS, btrfs, tmpfs, F2FS, ZFS and bcachefs.
const LOCAL: [u32; 7] = [
    0xEF53,
    0x5846_5342,
    0x9123_683E,
    0x0102_1994,
    0xF2F5_2010,
    0x2FC1_2FC1,
    0xCA45_1A4E,
];

/// Device and inode.
type Inode = (u32, u32, u64);
/// Seconds and nanoseconds.
type Time = (i64, u32);

/// The files that are watched.
#[derive(Debug, Default)]
pub struct Witness(Mutex<Watches>);

#[derive(Debug, Default)]
struct Watches {
    inotify: Option<OwnedFd>,
    files: HashMap<Inode, WatchedFile>,
    by_watch: HashMap<i32, Inode>,
    turn: u64,
}

/// A file without a write since the watch began.
#[derive(Clone, Debug)]
struct WatchedFile {
    watch: i32,
    /// The version that it had then.
    version: String,
    size: u64,
    modified: Time,
    /// The time of the last change of any kind that is known to have left the bytes alone.
    changed: Time,
    used: u64,
}

impl Witness {
    /// Watches a file from now on, unless somebody is writing it or has just done so.
    pub fn begin(&self, file: &File) {
        let mut all = self.0.lock();
        all.drain();
        let Ok(seen) = look(file) else { return };
        if all.touch(&seen) || !is_local(file) {
            return;
        }
        let Some(watch) = all.watch(file) else { return };
        // Looked at once it is watched: a write before is in the version, one after that is an event.
        let settled = look(file).ok().filter(|seen| !is_fresh(seen));
        let settled = settled.filter(|_| lease::writers(file) == Writers::None);
        match settled {
            Some(seen) => all.insert(watch, &seen),
            None => all.unwatch(watch),
        }
    }

    /// The version of a file as it was seen: that which it had when the watch began, if no byte of it was written since. `open` opens it for
    /// reading.
    pub fn version(&self, seen: &Statx, open: impl FnOnce() -> Option<File>) -> String {
        let Some(known) = self.known(seen) else {
            return version(seen);
        };
        if known.changed == time(&seen.stx_ctime) {
            return known.version;
        }
        // First the lease, then the events: who let go of the file in between has left one.
        let unwritten = open().is_some_and(|file| {
            let still = look(&file).is_ok_and(|now| {
                inode(&now) == inode(seen) && time(&now.stx_ctime) == time(&seen.stx_ctime)
            });
            still && lease::writers(&file) == Writers::None
        });
        let mut all = self.0.lock();
        all.drain();
        match all.files.get_mut(&inode(seen)) {
            Some(watched) if watched.watch == known.watch && unwritten => {
                watched.changed = time(&seen.stx_ctime);
                known.version
            }
            _ => {
                all.forget(inode(seen));
                version(seen)
            }
        }
    }

    /// A watched file, if it may still be what it was.
    fn known(&self, seen: &Statx) -> Option<WatchedFile> {
        let mut all = self.0.lock();
        all.drain();
        let known = all.files.get(&inode(seen))?.clone();
        let is_same = known.size == seen.stx_size
            && known.modified == time(&seen.stx_mtime)
            && seen.stx_nlink > 0;
        if !is_same {
            all.forget(inode(seen));
        }
        is_same.then_some(known)
    }
}

impl Watches {
    /// True if it is watched already.
    fn touch(&mut self, seen: &Statx) -> bool {
        self.turn += 1;
        let known = self.files.get_mut(&inode(seen));
        known.map(|known| known.used = self.turn).is_some()
    }

    fn watch(&mut self, file: &File) -> Option<i32> {
        if self.inotify.is_none() {
            let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
            self.inotify = inotify::init(flags).ok();
        }
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let events = WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE;
        inotify::add_watch(self.inotify.as_ref()?, path, events).ok()
    }

    fn unwatch(&mut self, watch: i32) {
        if let Some(inotify) = &self.inotify {
            let _ = inotify::remove_watch(inotify, watch);
        }
    }

    fn insert(&mut self, watch: i32, seen: &Statx) {
        if self.files.len() >= WATCHED_MAX {
            let oldest = self.files.iter().min_by_key(|(_, known)| known.used);
            let oldest = oldest.map(|(inode, _)| *inode);
            oldest.into_iter().for_each(|inode| self.forget(inode));
        }
        let watched = WatchedFile {
            watch,
            version: version(seen),
            size: seen.stx_size,
            modified: time(&seen.stx_mtime),
            changed: time(&seen.stx_ctime),
            used: self.turn,
        };
        self.by_watch.insert(watch, inode(seen));
        self.files.insert(inode(seen), watched);
    }

    fn forget(&mut self, inode: Inode) {
        if let Some(known) = self.files.remove(&inode) {
            self.by_watch.remove(&known.watch);
            self.unwatch(known.watch);
        }
    }

    /// Lets go of all files of which an event has come.
    fn drain(&mut self) {
        let Some(inotify) = &self.inotify else { return };
        let mut bytes = [MaybeUninit::uninit(); EVENT_BYTES];
        let mut reader = Reader::new(inotify.as_fd(), &mut bytes);
        let (mut written, mut lost) = (Vec::new(), false);
        while let Ok(event) = reader.next() {
            lost |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            written.push(event.wd());
        }
        if lost {
            written.extend(self.by_watch.keys());
        }
        for watch in written {
            if let Some(inode) = self.by_watch.get(&watch) {
                self.forget(*inode);
            }
        }
    }
}

fn is_local(file: &File) -> bool {
    let seen = rustix::fs::fstatfs(file);
    seen.is_ok_and(|seen| LOCAL.contains(&(seen.f_type as u32)))
}

fn inode(seen: &Statx) -> Inode {
    (seen.stx_dev_major, seen.stx_dev_minor, seen.stx_ino)
}

fn time(at: &StatxTimestamp) -> Time {
    (at.tv_sec, at.tv_nsec)
}
