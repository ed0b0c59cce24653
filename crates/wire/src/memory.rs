//! The memory service's operations, each on the bytes of one data bucket, and their bodies on the wire.

use bytes::Bytes;
use staves_model::CHUNK_BYTES;

pub use crate::chunk_bits::ChunkBits;

/// An operation on the bytes of one data bucket. Offsets count from the bucket's first byte
/// (`staves_model::Place`); what is touched lies within one chunk, but for
/// `Allocated`, `Changed`, `Copy`, `Drop` and `Sync`. A bucket has several images where a volume has snapshots and clones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// `Value`: the bytes. What was never written reads as zeroes.
    Read {
        /// The image: 0 for the volume that the buckets were made for, or for a plain region.
        image: u32,
        /// The first byte.
        offset: u64,
        /// The length; at least one.
        len: u32,
    },
    /// `Ok`.
    Write {
        /// The first byte.
        offset: u64,
        /// The bytes; at least one.
        bytes: Bytes,
    },
    /// `Ok`: a write by whoever loads the stretch, where no other may write: what it writes has no parity until the load ends.
    Load {
        /// The first byte.
        offset: u64,
        /// The bytes; at least one.
        bytes: Bytes,
    },
    /// `Int`: the word that was there, which is `expected` if and only if it was replaced.
    CompareSwap {
        /// The word's first byte, a multiple of 8.
        offset: u64,
        /// The word that must be there.
        expected: u64,
        /// The word that replaces it.
        new: u64,
    },
    /// `Int`: the word that was there.
    FetchAdd {
        /// The word's first byte, a multiple of 8.
        offset: u64,
        /// The summand; past 64 bits the sum wraps around.
        by: u64,
    },
    /// `Ok`: a write in a session of a volume. `Error` of `Fenced` where a later session was seen.
    Put {
        /// The image: 0 for the volume that the buckets were made for, or for a plain region.
        image: u32,
        /// The session.
        session: u64,
        /// The first byte.
        offset: u64,
        /// The bytes; at least one.
        bytes: Bytes,
    },
    /// `Ok`: the bytes read as zeroes from now on. A whole chunk gives its memory back. `Error` as for `Put`.
    Zero {
        /// The image: 0 for the volume that the buckets were made for, or for a plain region.
        image: u32,
        /// The session.
        session: u64,
        /// The first byte.
        offset: u64,
        /// The length; at least one.
        len: u32,
    },
    /// `Ok`: nothing of an earlier session takes effect from now on. `Error` as for `Put`.
    Fence {
        /// The image: 0 for the volume that the buckets were made for, or for a plain region.
        image: u32,
        /// The session.
        session: u64,
    },
    /// `Value`: a bit for each chunk that the range touches, as [`ChunkBits`] has them: set if the chunk takes up memory. The others
    /// read as zeroes. The range may be all of the bucket.
    Allocated {
        /// The image: 0 for the volume that the buckets were made for, or for a plain region.
        image: u32,
        /// The first byte.
        offset: u64,
        /// The length; at least one.
        len: u32,
    },
    /// `Ok`: `image` holds what `of` holds now, and nothing of an earlier session of `of` takes effect from now on. If there is such
    /// an image, nothing is done. `Error` as for `Put`.
    Copy {
        /// The image that is copied.
        of: u32,
        /// Its next session; 0 if nobody writes to it.
        session: u64,
        /// The number of the copy; not 0.
        image: u32,
    },
    /// `Int`: 0 once nothing of the image is left; else its sender asks for more. What other images have stays.
    Drop {
        /// The image.
        image: u32,
    },
    /// `Value`: as for `Allocated`, set if the chunk may read other than in the image `since`: whether it has the same place in both.
    Changed {
        /// The image.
        image: u32,
        /// The other one, a copy of it or copied from it.
        since: u32,
        /// The first byte.
        offset: u64,
        /// The length; at least one.
        len: u32,
    },
    /// `Ok` once all that was answered before is on the disks of all members, whoever wrote it. `Error` as for `Put` where the session
    /// is over because something that it had not flushed may be gone.
    Sync {
        /// The image: 0 for the volume that the buckets were made for, or for a plain region.
        image: u32,
        /// The session; 0 for none.
        session: u64,
    },
}

impl Action {
    /// Returns true if it may change anything, and so needs a request number.
    pub fn is_write(&self) -> bool {
        !matches!(
            self,
            Action::Read { .. }
                | Action::Allocated { .. }
                | Action::Changed { .. }
                | Action::Sync { .. }
        )
    }

    /// The image that it reads or changes; of a copy the one that is copied.
    pub fn image(&self) -> u32 {
        match self {
            Action::Read { image, .. }
            | Action::Put { image, .. }
            | Action::Zero { image, .. }
            | Action::Fence { image, .. }
            | Action::Allocated { image, .. }
            | Action::Copy { of: image, .. }
            | Action::Drop { image }
            | Action::Changed { image, .. }
            | Action::Sync { image, .. } => *image,
            _ => 0,
        }
    }

    /// The session of a volume that it belongs to; 0 for an operation on a plain region.
    pub fn session(&self) -> u64 {
        match self {
            Action::Put { session, .. }
            | Action::Zero { session, .. }
            | Action::Fence { session, .. }
            | Action::Copy { session, .. }
            | Action::Sync { session, .. } => *session,
            _ => 0,
        }
    }

    /// The number of chunks that its bytes lie in.
    pub fn chunks(&self) -> u64 {
        let (offset, len) = self.range();
        (offset % CHUNK_BYTES + len).div_ceil(CHUNK_BYTES)
    }

    /// The bytes that it touches: the first, and how many.
    pub fn range(&self) -> (u64, u64) {
        match self {
            Action::Read { offset, len, .. }
            | Action::Zero { offset, len, .. }
            | Action::Allocated { offset, len, .. }
            | Action::Changed { offset, len, .. } => (*offset, u64::from(*len)),
            Action::Write { offset, bytes }
            | Action::Load { offset, bytes }
            | Action::Put { offset, bytes, .. } => (*offset, bytes.len() as u64),
            Action::Fence { .. }
            | Action::Copy { .. }
            | Action::Drop { .. }
            | Action::Sync { .. } => (0, 1),
            Action::CompareSwap { offset, .. } | Action::FetchAdd { offset, .. } => (*offset, 8),
        }
    }
}
