//! The process's heap: how many threads share one, how memory that is free goes back to the kernel, and a heap in which small pieces
//! take no lock. With C libraries other than glibc the first two do nothing.
#![allow(unsafe_code)]

#[cfg(feature = "heap")]
pub(crate) mod by_size;

/// A larger piece of memory has pages of its own: more than the frame of a large message, which comes and goes all the time.
#[cfg(target_env = "gnu")]
const OWN_PAGES_BYTES: libc::c_int = 2 << 20;
/// Free memory at the end of a heap goes back beyond so much of it.
#[cfg(target_env = "gnu")]
const TRIM_BYTES: libc::c_int = 4 << 20;

/// Lets all threads share so many heaps.
///
/// Otherwise there are up to eight for each processor, and what was freed in one serves no thread of another: each keeps the buffers of the
/// busiest moment that its threads had. With one for each worker, little more is kept than was used at once. And what is larger than
/// [`OWN_PAGES_BYTES`] has pages of its own, which go back as soon as it is free: glibc raises that bound to 32 MiB by itself, and
/// freed values of that size then lie between small pieces until all is idle. To be called before there are threads.
pub fn share_heaps(heaps: usize) {
    #[cfg(target_env = "gnu")]
    {
        let heaps = libc::c_int::try_from(heaps.max(1)).unwrap_or(libc::c_int::MAX);
        // SAFETY: sets a number of the allocator's, under its own lock; no memory of ours is touched.
        let set = unsafe { libc::mallopt(libc::M_ARENA_MAX, heaps) };
        debug_assert_eq!(set, 1, "glibc knows this option");
        for (option, bytes) in [
            (libc::M_MMAP_THRESHOLD, OWN_PAGES_BYTES),
            (libc::M_TRIM_THRESHOLD, TRIM_BYTES),
        ] {
            // SAFETY: as above.
            let set = unsafe { libc::mallopt(option, bytes) };
            debug_assert_eq!(set, 1, "glibc knows this option");
        }
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
