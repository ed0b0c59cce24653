//! The fuzzing target `nfs` on inputs from seeds: calls of every procedure, of which some bytes were changed.

#[path = "../../../../fuzz/shared/nfs.rs"]
mod shared;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % end as u64) as usize
    }
}

#[test]
fn five_thousand_rows_of_calls_break_nothing() {
    let seeds = shared::seeds();
    assert!(seeds.iter().all(|seed| shared::nfs(seed) == 1));
    let (mut rng, mut answered) = (Rng(1600), 0);
    for _ in 0..5000 {
        let mut input = Vec::new();
        for _ in 0..=rng.below(4) {
            let start = input.len();
            input.extend_from_slice(&seeds[rng.below(seeds.len())]);
            for _ in 0..rng.below(3) {
                let at = start + rng.below(input.len() - start);
                input[at] =
                    [0, 0xFF, input[at].wrapping_add(1), rng.below(256) as u8][rng.below(4)];
            }
        }
        answered += shared::nfs(&input);
    }
    assert!(answered > 5000, "only {answered} calls were answered");
}
