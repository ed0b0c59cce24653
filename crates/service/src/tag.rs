//! Tags of what operations touch.

use xxhash_rust::xxh3::xxh3_64;

/// 32 bits of a key's hash. Two keys with one tag wait for each other, which only costs time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Tag(pub u32);

impl Tag {
    /// The tag of a key.
    #[inline]
    pub fn of(key: &[u8]) -> Tag {
        Tag((xxh3_64(key) >> 32) as u32)
    }

    /// The hash for a table, which takes a position from the low bits and a fingerprint from the top ones:
    /// the tag's 32 bits are spread over both.
    #[inline]
    pub fn hash(self) -> u64 {
        u64::from(self.0)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_right(16)
    }
}
