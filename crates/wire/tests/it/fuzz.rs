//! The fuzzing target `frames` on inputs from seeds: bytes, and messages of every kind that were changed.

#[path = "../../../../fuzz/shared/frames.rs"]
mod shared;

use crate::golden::{all, encoded};
use crate::sample::Rng;

#[test]
fn twenty_thousand_inputs_break_nothing() {
    let messages: Vec<Vec<u8>> = all().iter().map(|(_, m)| encoded(m).to_vec()).collect();
    let (mut rng, mut decoded) = (Rng::new(1600), 0);
    for _ in 0..20_000 {
        let mut input = vec![rng.next() as u8];
        for _ in 0..rng.below(4) {
            if rng.below(4) == 0 {
                input.extend((0..rng.below(120)).map(|_| rng.next() as u8));
            } else {
                let start = input.len();
                input.extend_from_slice(&messages[rng.below(messages.len() as u64) as usize]);
                spoil(&mut input[start..], &mut rng);
            }
        }
        decoded += shared::frames(&input);
    }
    // Without these it would have looked at nothing but checksums that do not fit.
    assert!(decoded > 5_000, "only {decoded} messages were looked into");
}

fn spoil(bytes: &mut [u8], rng: &mut Rng) {
    for _ in 0..rng.below(4) {
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] = match rng.below(4) {
            0 => 0,
            1 => 0xFF,
            2 => bytes[at].wrapping_add(1),
            _ => rng.next() as u8,
        };
    }
}
