//! The heap of the process, in which the threads that answer pings wait for no other thread ([`HeapBySize`]).

use staves_store::HeapBySize;

#[global_allocator]
static HEAP: HeapBySize = HeapBySize;

#[cfg(test)]
mod tests {
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
}
