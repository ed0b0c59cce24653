//! The kernel's word on whether anybody may be writing a file.
//!
//! A program that has mapped a file moves the file's times at its first write to a page, and not at the next ones: whoever
//! reads in between sees bytes of which the times tell nothing. A read lease is refused for as long as anybody has the file open for
//! writing, or mapped so. It is given back at once: a program that opens the file for writing waits for that.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

/// NFS, and SMB by its three names. They refuse leases for reasons of their own: that their server promised nothing.
const OF_SERVERS: [u32; 4] = [0x6969, 0xFF53_4D42, 0xFE53_4D42, 0x517B];

/// Names the signal of a lease that somebody waits for: as in Linux's own headers, which our library leaves out.
const F_SETSIG: i32 = 10;

/// True if a lease that is refused means a writer on this file's file system. One that is granted means none, but for overlayfs:
/// there it says nothing of who has mapped the file and closed it. May ask a file server.
pub fn is_about_writers(file: impl AsFd) -> bool {
    let seen = rustix::fs::fstatfs(file);
    seen.is_ok_and(|seen| !OF_SERVERS.contains(&(seen.f_type as u32)))
}

/// The programs of this machine that have a file open for writing, or mapped so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writers {
    /// None.
    None,
    /// Some.
    Some,
    /// It is not known: on file systems without leases, and of files of other owners without CAP_LEASE.
    Unknown,
}

/// The writers of an open file.
pub fn writers(file: impl AsFd) -> Writers {
    // One who opens it meanwhile has a signal sent to this process: not SIGIO, which would end it.
    set(&file, F_SETSIG, libc::SIGURG);
    if set(&file, libc::F_SETLEASE, libc::F_RDLCK) {
        set(&file, libc::F_SETLEASE, libc::F_UNLCK);
        return Writers::None;
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN) => Writers::Some,
        _ => Writers::Unknown,
    }
}

/// True if an open file is known to have a writer.
pub fn has_writer(file: impl AsFd) -> bool {
    writers(file) == Writers::Some
}

fn set(file: &impl AsFd, what: i32, to: i32) -> bool {
    // SAFETY: these take a descriptor, which is borrowed, and a number: they touch no memory.
    unsafe { libc::fcntl(file.as_fd().as_raw_fd(), what, to) == 0 }
}
