//! The process's heap: how many threads share one, how memory that is free goes back to the kernel, and a heap in which small pieces
//! take no lock. With C libraries other than glibc the first two do nothing.
#![allow(unsafe_code)]

#[cfg(feature = "heap")]
pub(crate) mod by_size;

/// Lets all threads share so many heaps.
///
/// Otherwise there are up to eight for each processor, and what was freed in one serves no thread of another: each keeps the buffers of the
/// busiest moment that its threads had. With one for each worker, little more is kept than was used at once. To be called
/// before there are threads.
pub fn share_heaps(heaps: usize) {
    #[cfg(target_env = "gnu")]
    {
        let heaps = libc::c_int::try_from(heaps.max(1)).unwrap_or(libc::c_int::MAX);
        // SAFETY: sets a number of the allocator's, under its own lock; no memory of ours is touched.
        let set = unsafe { libc::mallopt(libc::M_ARENA_MAX, heaps) };
        debug_assert_eq!(set, 1, "glibc knows this option");
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = heaps;
}

/// Gives memory of the heap that is free back to the kernel, of which the allocator otherwise keeps what busy times
/// took. For a node's idle moments: it takes some milliseconds, and whoever allocates meanwhile may wait for it.
pub fn trim_heap() {
    // SAFETY: the allocator's own function, from any thread; it moves nothing that is in use.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
