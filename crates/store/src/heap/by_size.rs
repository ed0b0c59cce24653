//! A heap of two: small pieces of memory are mimalloc's, in which each thread has its own and waits for no other one.
//!
//! In the C library's heap a thread that allocates, or frees what another one allocated, takes a lock. Where a machine lacks
//! processor time, an ordinary thread loses its turn while it holds it, and the threads that answer pings wait, however
//! high their priority: for 300 to 700 ms beside 32 busy loops, after which others take the node for dead. They need small pieces
//! only. Large ones stay the C library's, which joins free neighbours: of a client's values as little as possible is to be kept
//! that nobody uses.

use std::alloc::{GlobalAlloc, Layout, System};

use mimalloc::MiMalloc;

/// Bytes of the largest piece that counts as small.
pub const SMALL_MAX: usize = 8 << 10;

/// The heap. For a program's `global_allocator`.
#[derive(Clone, Copy, Debug)]
pub struct HeapBySize;

// SAFETY: who frees a piece gives the layout that it was made with, so that each goes back to where it came from.
unsafe impl GlobalAlloc for HeapBySize {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise, passed on; so below.
        match layout.size() <= SMALL_MAX {
            true => unsafe { MiMalloc.alloc(layout) },
            false => unsafe { System.alloc(layout) },
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match layout.size() <= SMALL_MAX {
            true => unsafe { MiMalloc.alloc_zeroed(layout) },
            false => unsafe { System.alloc_zeroed(layout) },
        }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match layout.size() <= SMALL_MAX {
            true => unsafe { MiMalloc.dealloc(at, layout) },
            false => unsafe { System.dealloc(at, layout) },
        }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match (layout.size() <= SMALL_MAX, size <= SMALL_MAX) {
            (true, true) => unsafe { MiMalloc.realloc(at, layout, size) },
            (false, false) => unsafe { System.realloc(at, layout, size) },
            // It moves from one to the other.
            _ => unsafe {
                let new = Layout::from_size_align_unchecked(size, layout.align());
                let moved = self.alloc(new);
                if !moved.is_null() {
                    std::ptr::copy_nonoverlapping(at, moved, layout.size().min(size));
                    self.dealloc(at, layout);
                }
                moved
            },
        }
    }
}

/// True if these bytes lie where small pieces do.
pub fn is_small_piece(bytes: &[u8]) -> bool {
    // SAFETY: it compares addresses.
    unsafe { libmimalloc_sys::mi_is_in_heap_region(bytes.as_ptr().cast()) }
}
