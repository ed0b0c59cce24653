//! The fuzzing target `blocks` on inputs from seeds: memory of which some bytes have changed.

#[path = "../../../../fuzz/shared/blocks.rs"]
mod shared;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

#[test]
fn eight_hundred_changed_memories_break_nothing() {
    assert_eq!(shared::blocks(&[]), Some(shared::READS), "untouched");
    let (mut rng, mut mapped, mut missed) = (Rng(1600), 0, 0);
    for turn in 0..800 {
        // Half of them lose one bit only; half change the head and the tables rather than the frames.
        let changes = if turn % 2 == 0 { 1 } else { 1 + rng.next() % 5 };
        let mut input = Vec::new();
        for _ in 0..changes {
            let at = rng.next()
                % if rng.next().is_multiple_of(2) {
                    9000
                } else {
                    1 << 20
                };
            let at = if rng.next().is_multiple_of(16) {
                rng.next() % 24
            } else {
                at
            };
            let how = if changes == 1 {
                rng.next() % 8
            } else {
                rng.next() % 40
            };
            input.extend((at as u32).to_le_bytes());
            input.push(how as u8);
            input.extend((rng.next() as u16).to_le_bytes());
        }
        let read = shared::blocks(&input);
        mapped += usize::from(read.is_some());
        missed += usize::from(read.is_some_and(|read| read < shared::READS));
    }
    // Without these it would have looked at nothing but memory that is refused, or that reads well.
    assert!(
        mapped > 400 && missed > 50,
        "{mapped} mapped, {missed} missed"
    );
}
