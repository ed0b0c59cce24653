//! Bits of chunks, as buckets answer with them.

use bytes::Bytes;

/// A bit for each of some chunks that follow each other; in a byte the lowest bit is the first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChunkBits(Vec<u8>);

impl ChunkBits {
    /// Bytes of so many bits.
    pub fn bytes_of(chunks: u64) -> usize {
        chunks.div_ceil(8) as usize
    }

    /// So many bits, none of them set.
    pub fn new(chunks: u64) -> ChunkBits {
        ChunkBits(vec![0; ChunkBits::bytes_of(chunks)])
    }

    /// Sets a bit of those that there are.
    pub fn set(&mut self, chunk: u64) {
        if let Some(byte) = self.0.get_mut((chunk / 8) as usize) {
            *byte |= 1 << (chunk % 8);
        }
    }

    /// Returns whether a bit is set in bytes of an answer; one that is not there is not.
    pub fn is_set(bytes: &[u8], chunk: u64) -> bool {
        let byte = bytes.get((chunk / 8) as usize);
        byte.is_some_and(|byte| byte & 1 << (chunk % 8) != 0)
    }

    /// The bytes.
    pub fn into_bytes(self) -> Bytes {
        self.0.into()
    }
}
