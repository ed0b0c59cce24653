//! The block: its parts, its key, its checksums.

/// Bytes of a part, the least that is fetched, and of a frame.
pub const PART_BYTES: usize = 8 << 10;
/// Parts of a block.
pub const BLOCK_PARTS: usize = 32;
/// Bytes of a whole block; a file's last one may be shorter.
pub const BLOCK_BYTES: usize = PART_BYTES * BLOCK_PARTS;
/// Bytes that have a checksum of their own.
pub const SUM_BYTES: usize = 4096;

/// A block's name: a version of a file, and where in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockKey {
    /// The version of the file: a digest of all that identifies it.
    pub file: [u64; 2],
    /// Its place: byte offset / [`BLOCK_BYTES`].
    pub block: u32,
}

impl BlockKey {
    /// Well mixed bits of it, never 0. Digests are mixed already; blocks of a file follow one another.
    pub(super) fn mixed(&self) -> u64 {
        let mut x = self.file[0] ^ self.file[1].rotate_left(32) ^ u64::from(self.block) << 7;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)).max(1)
    }
}

/// CRC32C, as fast as this machine has it: each read waits for it.
pub(super) fn sum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The loss if a bucket's blocks are evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copies {
    /// Another node holds the bucket too.
    Spare,
    /// They would have to come from the source again.
    Last,
}
