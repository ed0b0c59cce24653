//! The content of data and parity buckets of the baselines: bytes, and the arithmetic of the code.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use staves_erasure::Code;

/// Bytes of a bucket.
pub const BUCKET_BYTES: usize = 1 << 20;
/// Data buckets of the group, of which one is updated.
pub const M: usize = 4;
/// Parity buckets.
pub const K: usize = 2;
/// The data bucket that is updated. Not 0: some of that column's coefficients are 1.
pub const STREAM: usize = 1;

/// The bytes of one bucket.
pub struct Bucket {
    bytes: Vec<u8>,
    code: Code,
}

impl Bucket {
    pub fn new() -> Bucket {
        Bucket {
            bytes: vec![0; BUCKET_BYTES],
            code: Code::new(M, K).expect("4+2 is a shape"),
        }
    }

    /// Puts new bytes and gives the delta: old XOR new.
    pub fn put(&mut self, at: u32, new: &[u8]) -> Bytes {
        let old = &mut self.bytes[at as usize..][..new.len()];
        let mut delta = BytesMut::with_capacity(new.len());
        delta.put_slice(new);
        for (d, o) in delta.iter_mut().zip(old.iter()) {
            *d ^= o;
        }
        old.copy_from_slice(new);
        delta.freeze()
    }

    /// Adds a delta to parity bucket `parity`.
    pub fn apply(&mut self, parity: usize, at: u32, delta: &[u8]) {
        let there = &mut self.bytes[at as usize..][..delta.len()];
        self.code.apply(parity, STREAM, delta, there);
    }
}

/// A delta of the baselines.
#[derive(Clone, Debug)]
pub struct Delta {
    pub seq: u64,
    pub at: u32,
    pub bytes: Bytes,
}

/// Several deltas as one frame's bytes.
pub fn pack<'a>(deltas: impl Iterator<Item = &'a Delta>, out: &mut BytesMut) {
    for delta in deltas {
        out.put_u64_le(delta.seq);
        out.put_u32_le(delta.at);
        out.put_u32_le(delta.bytes.len() as u32);
        out.put_slice(&delta.bytes);
    }
}

/// The deltas of such a frame; ends at the first that is cut off.
pub fn unpack(mut bytes: Bytes) -> impl Iterator<Item = Delta> {
    std::iter::from_fn(move || {
        if bytes.remaining() < 16 {
            return None;
        }
        let (seq, at, len) = (bytes.get_u64_le(), bytes.get_u32_le(), bytes.get_u32_le());
        let len = len as usize;
        (bytes.remaining() >= len).then(|| Delta {
            seq,
            at,
            bytes: bytes.split_to(len),
        })
    })
}
