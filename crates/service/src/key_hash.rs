//! Hashes of the keys that operations touch.

use xxhash_rust::xxh3::xxh3_64;

/// 32 bits of a key's hash. Operations on two keys with one hash keep their order, too, which only costs time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KeyHash(pub u32);

impl KeyHash {
    /// The hash of a key.
    #[inline]
    pub fn of(key: &[u8]) -> KeyHash {
        KeyHash((xxh3_64(key) >> 32) as u32)
    }

    /// A hash for a table, which takes a position from the low bits and a fingerprint from the top ones:
    /// its 32 bits are spread over both.
    #[inline]
    pub fn spread(self) -> u64 {
        u64::from(self.0)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_right(16)
    }
}
