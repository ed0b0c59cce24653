//! The mapping, extents as owned pieces of it, and what the kernel is asked for beside. All of the crate's `unsafe` is in this file.
//!
//! The one argument that everything here rests on: the arena hands out each index at most once until
//! it comes back (`arena.rs` asserts it), and an [`Extent`] can be made only there. Distinct extents
//! are disjoint ranges of the mapping, so an `Extent` is to its range what a `Box` is to its heap block.
#![allow(unsafe_code)]

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use staves_model::PAGE_BYTES;

use crate::{Arena, EXTENT_BYTES};

/// The arena's memory could not be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot map {bytes} bytes of memory for pages: {step}: {reason}")]
pub struct MapError {
    bytes: u64,
    step: &'static str,
    reason: io::Error,
}

/// A memfd, mapped whole, shared, readable and writable.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    memfd: OwnedFd,
}

// SAFETY: a mapping is address space and a descriptor; neither belongs to a thread. Who may touch
// which bytes is settled by `Extent`, not by `Mapping`.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives no access to bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `extents` extents. Memory is provided by the kernel as it is touched: in large pieces if `huge`, else page by page, as it is to be
    /// given back.
    pub(crate) fn new(extents: u32, huge: bool) -> Result<Mapping, MapError> {
        let bytes = u64::from(extents) * EXTENT_BYTES as u64;
        let failed = |step, reason| MapError {
            bytes,
            step,
            reason,
        };
        let too_many = |_| failed("mmap", io::Error::from(io::ErrorKind::OutOfMemory));
        let len = usize::try_from(bytes).map_err(too_many)?;
        // SAFETY: the name is a C string; the call touches no memory of ours.
        let raw = unsafe {
            libc::memfd_create(
                c"staves-arena".as_ptr(),
                libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
            )
        };
        if raw < 0 {
            return Err(failed("memfd_create", io::Error::last_os_error()));
        }
        // SAFETY: `raw` was made just now and nobody else owns it.
        let memfd = unsafe { OwnedFd::from_raw_fd(raw) };
        let size = i64::try_from(bytes).unwrap_or(i64::MAX);
        // SAFETY: plain system call on a descriptor that we own.
        if unsafe { libc::ftruncate(raw, size) } != 0 {
            return Err(failed("ftruncate", io::Error::last_os_error()));
        }
        // Whoever is given the descriptor (a mount on this machine) must not be able to shrink the
        // file under us: touching the lost part would be a SIGBUS.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        // SAFETY: plain system call on a descriptor that we own.
        if unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, seals) } != 0 {
            return Err(failed("seal", io::Error::last_os_error()));
        }
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses; nothing of ours is replaced.
        // A length of 0 is refused by the kernel, and `Arena::new` never asks for it.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, raw, 0) };
        if base == libc::MAP_FAILED {
            return Err(failed("mmap", io::Error::last_os_error()));
        }
        let base =
            NonNull::new(base.cast::<u8>()).expect("mmap without MAP_FIXED never maps page 0");
        let advice = match huge {
            true => libc::MADV_HUGEPAGE,
            false => libc::MADV_NOHUGEPAGE,
        };
        // SAFETY: the range is the mapping just made. A hint only: failure changes speed, not meaning.
        unsafe { libc::madvise(base.as_ptr().cast(), len, advice) };
        Ok(Mapping {
            base,
            bytes: len,
            memfd,
        })
    }

    pub(crate) fn memfd(&self) -> RawFd {
        self.memfd.as_raw_fd()
    }

    /// Gives the memory of an extent that nobody owns back to the kernel. False if the kernel would not.
    pub(crate) fn punch(&self, index: u32) -> bool {
        // The caller took the extent off the free list, so no `Extent` refers to these bytes.
        self.punch_part(index, 0, EXTENT_BYTES)
    }

    /// The same with a range of an extent, of which nobody holds a reference: it reads as zeroes afterwards.
    fn punch_part(&self, index: u32, from: usize, len: usize) -> bool {
        let offset = index as usize * EXTENT_BYTES;
        assert!(
            offset + EXTENT_BYTES <= self.bytes && from + len <= EXTENT_BYTES,
            "extent {index} is not of this arena, or has no {len} bytes at {from}"
        );
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (at, len) = ((offset + from) as i64, len as i64);
        // SAFETY: plain system call on our descriptor. No reference to these bytes exists while they become zero.
        unsafe { libc::fallocate(self.memfd(), mode, at, len) == 0 }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping that `new` made. Extents hold an `Arc` of the arena that
        // owns this mapping, so none is alive.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// 256 KiB of the arena, owned. Dereferences to its bytes. Goes back to the arena when dropped.
pub struct Extent {
    start: NonNull<u8>,
    arena: Arc<Arena>,
}

// SAFETY: an extent owns its bytes as a `Box<[u8]>` does (see the head of this file).
unsafe impl Send for Extent {}
// SAFETY: `&Extent` only reads, and writing takes `&mut Extent`.
unsafe impl Sync for Extent {}

impl Extent {
    /// The extent at an index that the arena has just taken off its free list.
    pub(crate) fn own(arena: Arc<Arena>, index: u32) -> Extent {
        let mapping = arena.mapping();
        let offset = index as usize * EXTENT_BYTES;
        assert!(
            offset + EXTENT_BYTES <= mapping.bytes,
            "extent {index} is not of this arena"
        );
        // SAFETY: the offset lies within the mapping, as just asserted.
        let start = unsafe { mapping.base.add(offset) };
        Extent { start, arena }
    }

    /// Asks the kernel for the memory of a range at once, which is then not asked for page by page as it is touched.
    /// Memory that is there stays as it is.
    ///
    /// # Panics
    /// If the range leaves the extent.
    pub(crate) fn provide(&mut self, from: usize, len: usize) {
        let range = &mut self[from..from + len];
        // SAFETY: the range is mapped, and this value alone owns it; the call changes none of its bytes. A kernel that
        // does not know it (before Linux 5.14) refuses, and the pages come by page faults as without it.
        unsafe { libc::madvise(range.as_mut_ptr().cast(), len, libc::MADV_POPULATE_WRITE) };
    }

    /// Gives the memory of a range back to the kernel; it reads as zeroes afterwards. False, and all is as it was, if the kernel would not.
    pub(crate) fn punch(&mut self, from: usize, len: usize) -> bool {
        self.arena.mapping().punch_part(self.index(), from, len)
    }

    /// A range of its bytes, through which no other byte is referred to.
    ///
    /// # Panics
    /// If the range leaves the extent.
    #[inline]
    pub(crate) fn part(&self, from: usize, len: usize) -> &[u8] {
        assert!(
            len <= EXTENT_BYTES && from <= EXTENT_BYTES - len,
            "{len} bytes at {from} leave their extent"
        );
        // SAFETY: the range lies within the EXTENT_BYTES mapped bytes that this value alone owns. `fill_page` writes to bytes only that nobody has a
        // reference to.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(from), len) }
    }

    /// Fills a page of a shared extent that nobody may refer to yet: `Keeping` gives references to a page out only once it is marked as here, which
    /// it is after this call, and makes this call under the lock whose guard is passed, for pages that are not. Returns what `fill` does.
    pub(crate) fn fill_page<R>(
        &self,
        from: usize,
        fill: impl FnOnce(&mut [u8]) -> R,
        _reading: &parking_lot::MutexGuard<'_, ()>,
    ) -> R {
        assert!(from.is_multiple_of(PAGE_BYTES) && from < EXTENT_BYTES);
        // SAFETY: the page lies within the extent, is mapped and zero, hence initialised. Nobody else has a reference to its bytes, as said above: other
        // pages of the extent are referred to by `part`, whose slices do not reach into it.
        let page =
            unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(from), PAGE_BYTES) };
        fill(page)
    }

    /// Returns whether the page at an offset has memory behind it.
    #[cfg(test)]
    pub(crate) fn has_memory(&self, from: usize) -> bool {
        let mut there = 0u8;
        let page = self[from..].as_ptr().cast_mut().cast();
        // SAFETY: the page is mapped, and `there` has room for what is said of one page.
        let said = unsafe { libc::mincore(page, 1, &mut there) };
        assert_eq!(said, 0, "mincore: {}", io::Error::last_os_error());
        there & 1 == 1
    }

    /// Its place in the arena (and, times the extent's size, in the memfd).
    pub fn index(&self) -> u32 {
        let base = self.arena.mapping().base.as_ptr() as usize;
        let offset = self.start.as_ptr() as usize - base;
        (offset / EXTENT_BYTES) as u32
    }
}

impl Deref for Extent {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is the start of EXTENT_BYTES mapped bytes that this value alone owns; the
        // arena keeps them mapped. Fresh memory of a memfd is zero, so the bytes are initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), EXTENT_BYTES) }
    }
}

impl DerefMut for Extent {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), EXTENT_BYTES) }
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.arena.give_back(self.index());
    }
}

impl std::fmt::Debug for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Extent({})", self.index())
    }
}
