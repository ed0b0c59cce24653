//! Read-ahead: a plain machine for one open file.
//!
//! The kernel asks for the bytes that a program reads, and a little ahead of that, in requests that several threads take and that
//! may so come a little out of order. A reader in order gets a window ahead, which doubles up to a limit; a jump ends it.

use std::ops::Range;

/// Read in order so far before anything is fetched ahead.
const RUN_MIN: u64 = 1 << 20;
/// First window.
const WINDOW_MIN: u64 = 1 << 20;
/// A position this near to the expected one is no jump.
const NEAR: u64 = 512 << 10;

/// The machine.
#[derive(Debug)]
pub struct Ahead {
    window_max: u64,
    /// The expected position of the next read.
    next: u64,
    /// Bytes read in order since the last jump.
    run: u64,
    /// The window, 0 before there is one.
    window: u64,
    /// The end of the bytes that were announced.
    said: u64,
}

impl Ahead {
    /// For a file just opened; a limit of 0 turns it off.
    pub fn new(window_bytes_max: u64) -> Ahead {
        Ahead {
            window_max: window_bytes_max,
            next: 0,
            run: 0,
            window: 0,
            said: 0,
        }
    }

    /// Records a read, and returns the bytes to fetch ahead, if any.
    pub fn step(&mut self, offset: u64, bytes: u64, size: u64) -> Option<Range<u64>> {
        let end = offset + bytes;
        if offset.abs_diff(self.next) > NEAR {
            let window_max = self.window_max;
            *self = Ahead::new(window_max);
            self.next = end;
            self.run = bytes;
            return None;
        }
        self.run += bytes;
        self.next = self.next.max(end);
        if self.run < RUN_MIN || self.window_max == 0 {
            return None;
        }
        // Half a window is left: time for the next half.
        let from = self.said.max(self.next);
        if from > self.next + self.window / 2 || self.window == 0 && from > self.next {
            return None;
        }
        self.window = (self.window * 2).clamp(WINDOW_MIN.min(self.window_max), self.window_max);
        let to = (self.next + self.window).min(size);
        if to <= from {
            return None;
        }
        self.said = to;
        Some(from..to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const SIZE: u64 = 1 << 40;

    #[test]
    fn who_reads_in_order_gets_each_byte_once_and_ahead_of_time() {
        let mut ahead = Ahead::new(8 * MIB);
        let (mut covered, mut widest) = (0, 0);
        for i in 0..1000 {
            let said = ahead.step(i * 128 * KIB, 128 * KIB, SIZE);
            if let Some(range) = said {
                assert!(range.start >= covered && range.start >= (i + 1) * 128 * KIB);
                assert!(covered == 0 || range.start == covered, "no gap");
                covered = range.end;
                widest = widest.max(range.end - (i + 1) * 128 * KIB);
            }
            assert!(i < 8 || covered > (i + 1) * 128 * KIB, "ahead at {i}");
        }
        assert_eq!(widest, 8 * MIB, "never further than the limit");
    }

    #[test]
    fn random_reads_fetch_nothing_ahead_and_a_jump_ends_it() {
        let mut ahead = Ahead::new(8 * MIB);
        for i in 1..10_000u64 {
            let at = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (SIZE / 8192) * 8192;
            assert_eq!(ahead.step(at, 8192, SIZE), None);
        }
        for i in 0..100 {
            ahead.step(i * 128 * KIB, 128 * KIB, SIZE);
        }
        assert_eq!(ahead.step(SIZE / 2, 128 * KIB, SIZE), None);
        assert_eq!(
            ahead.step(SIZE / 2 + 128 * KIB, 128 * KIB, SIZE),
            None,
            "begins anew"
        );
    }

    #[test]
    fn requests_that_overtake_one_another_are_in_order_still() {
        let mut ahead = Ahead::new(8 * MIB);
        let mut said = 0;
        for pair in 0..20 {
            said += usize::from(
                ahead
                    .step((pair * 2 + 1) * 128 * KIB, 128 * KIB, SIZE)
                    .is_some(),
            );
            said += usize::from(ahead.step(pair * 2 * 128 * KIB, 128 * KIB, SIZE).is_some());
        }
        assert!(said > 2, "{said}");
    }

    #[test]
    fn nothing_beyond_the_end_and_nothing_if_turned_off() {
        let mut ahead = Ahead::new(8 * MIB);
        for i in 0..16 {
            if let Some(range) = ahead.step(i * 128 * KIB, 128 * KIB, 2 * MIB) {
                assert!(range.end <= 2 * MIB);
            }
        }
        let mut off = Ahead::new(0);
        for i in 0..100 {
            assert_eq!(off.step(i * 128 * KIB, 128 * KIB, SIZE), None);
        }
    }
}
