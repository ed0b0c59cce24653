//! Blocks of files in RAM, read by other processes of the machine without a message.
//!
//! A block is 256 KiB of one version of one file; it never changes under its [`BlockKey`], it only comes,
//! part by part, and goes. A part is 8 KiB: what a miss fetches at least. Every 4 KiB have a
//! CRC32C that is made when they come in and checked each time that they are read, after they were copied.
//!
//! **Path of the data.** [`Blocks::new`] makes a memfd: a header, a table, frames of a part each. The node
//! puts parts in ([`Blocks::put`]) and reads them ([`Shelf::read`], by [`Blocks::shelf`]). A mount on the same machine is given the
//! descriptor, opened anew for reading only ([`Blocks::descriptor`]), maps it ([`Shelf::open`]) and reads the same way.
//!
//! **Promises.** A read gives the bytes that were put under that key, or says [`Miss`]: never others, whatever is put and evicted
//! meanwhile, and whatever befell the memory. Frames in use never pass the limit. What is evicted goes in the order of S3-FIFO,
//! blocks of which another node has a copy before those that are the last, pinned ones never.
//!
//! **How.** One lock orders all that put and evict; what is done to many blocks takes it for some at a time. Readers take none: an entry of the table has a sequence number, odd while it
//! changes; a reader that finds it changed once it has copied begins again. A frame is written only while no entry names it, and it
//! is no entry's before the number of the one that named it went up.

mod buckets;
mod changes;
mod many;
mod policy;
mod shared;
#[cfg(test)]
mod tests;
mod writer;

pub use self::changes::Changed;
pub use self::shared::{Miss, Shelf};
pub use self::writer::{Blocks, Checked, Figures, Listed, PutError};

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
    fn mixed(&self) -> u64 {
        let mut x = self.file[0] ^ self.file[1].rotate_left(32) ^ u64::from(self.block) << 7;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)).max(1)
    }
}

/// CRC32C, as fast as this machine has it: each read waits for it.
fn sum(bytes: &[u8]) -> u32 {
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
