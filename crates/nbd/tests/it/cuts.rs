//! Streams that arrive in pieces: the same comes of them, wherever they are cut.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::shared::{converse, seeds};

#[test]
fn the_same_comes_of_a_stream_wherever_it_is_cut() {
    for seed in seeds() {
        let stream = &seed[1..];
        let whole = converse(stream, || usize::MAX);
        assert_eq!(whole.error, None);
        assert!(whole.aborted || whole.chosen.is_some());
        assert_eq!(converse(stream, || 1), whole, "byte by byte");
        for cut in 1..stream.len() {
            let mut reads = [cut, usize::MAX].into_iter();
            let pieces = converse(stream, || reads.next().unwrap_or(usize::MAX));
            assert_eq!(pieces, whole, "cut at {cut}");
        }
        for seed in 0..50 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let pieces = converse(stream, || rng.random_range(1..60));
            assert_eq!(pieces, whole, "seed {seed}");
        }
    }
}

#[test]
fn a_stream_that_breaks_off_is_no_error() {
    for seed in seeds() {
        for end in 1..seed.len() {
            assert_eq!(converse(&seed[1..end], || usize::MAX).error, None);
        }
    }
}
