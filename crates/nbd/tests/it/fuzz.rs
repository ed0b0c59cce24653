//! The fuzzing target `nbd` on inputs from seeds: random bytes, and streams that were changed.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::shared::{nbd, seeds};

#[test]
fn twenty_thousand_inputs_break_nothing() {
    let (mut rng, mut understood) = (SmallRng::seed_from_u64(10_809), 0);
    let streams = seeds();
    for round in 0..20_000 {
        let mut input = match round % 4 {
            0 => (0..rng.random_range(0..200))
                .map(|_| rng.random())
                .collect(),
            _ => streams[rng.random_range(0..streams.len())].clone(),
        };
        for _ in 0..rng.random_range(0..4) {
            if input.is_empty() {
                continue;
            }
            let at = rng.random_range(0..input.len());
            match rng.random_range(0..4) {
                0 => input.truncate(at),
                1 => drop(input.remove(at)),
                2 => input.insert(at, rng.random()),
                _ => input[at] = rng.random(),
            }
        }
        understood += nbd(&input);
    }
    assert!(
        understood > 20_000,
        "only {understood} requests were understood"
    );
}
