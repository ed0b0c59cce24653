//! The heap of the process, in which the threads that answer pings wait for no other thread ([`HeapBySize`]).

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use staves_store::HeapBySize;

#[global_allocator]
static HEAP: HeapBySize = HeapBySize;

/// Raised when memory is to be given back.
static TRIMS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// As it was when this thread last gave memory back.
    static SEEN: Cell<usize> = const { Cell::new(0) };
}

/// Each worker gives memory of its heap that is free back to the kernel when it next has nothing to do. For a node's idle moments:
/// otherwise a heap keeps what busy times took.
pub(crate) fn trim() {
    staves_store::trim_heap();
    TRIMS.fetch_add(1, Ordering::Relaxed);
}

/// This thread has nothing to do: for the runtime's `on_thread_park`. True if it gave memory back now.
pub(crate) fn thread_rests() -> bool {
    let trims = TRIMS.load(Ordering::Relaxed);
    let asked = SEEN.replace(trims) != trims;
    if asked {
        staves_store::give_back_small();
    }
    asked
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_store::{SMALL_MAX, is_small_piece};

    /// Of the C library's heaps a thread that answers pings waited for others, and its node was taken for dead.
    #[test]
    fn small_pieces_come_from_the_heap_without_locks_and_large_ones_do_not() {
        let there =
            [1, 100, SMALL_MAX, SMALL_MAX + 1, 1 << 20].map(|len| is_small_piece(&vec![1; len]));
        assert_eq!(there, [true, true, true, false, false]);
    }

    #[test]
    fn what_grows_and_shrinks_past_the_bound_keeps_its_bytes() {
        let byte = |i: usize| (i * 31 % 251) as u8;
        let mut bytes: Vec<u8> = (0..100).map(byte).collect();
        for len in [
            SMALL_MAX - 1,
            SMALL_MAX,
            SMALL_MAX + 1,
            4 * SMALL_MAX,
            1 << 20,
        ] {
            bytes.extend((bytes.len()..len).map(byte));
            bytes.shrink_to_fit();
            assert!((0..len).all(|i| bytes[i] == byte(i)), "{len}");
        }
        for len in [2 * SMALL_MAX, SMALL_MAX, 64] {
            bytes.truncate(len);
            bytes.shrink_to_fit();
            assert!((0..len).all(|i| bytes[i] == byte(i)), "{len}");
        }
        assert!(vec![0u64; SMALL_MAX].iter().all(|word| *word == 0));
    }

    #[test]
    fn a_thread_gives_memory_back_once_each_time_that_it_is_asked_to() {
        thread_rests();
        trim();
        assert!(thread_rests());
        // Others may ask meanwhile, but not without end.
        let again = (0..1000).filter(|_| thread_rests()).count();
        assert!(again < 1000, "{again}");
    }
}
