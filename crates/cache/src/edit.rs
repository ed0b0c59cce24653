//! A change of a bucket's bytes on its way to becoming a delta.

use staves_store::EXTENT_BYTES;
use staves_wire::group::{Run, RunKind};

use crate::record::{self, SegmentKind};
use crate::segments::{SegmentPlace, start_of};

/// Most bytes of an edit whose memory is kept for the next one.
const KEPT_BYTES_MAX: usize = 4 << 10;
/// Most runs of one.
const KEPT_RUNS_MAX: usize = 16;

/// Runs and their bytes, as [`staves_group::Member::update`] takes them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edit {
    pub runs: Vec<Run>,
    pub bytes: Vec<u8>,
}

impl Edit {
    /// An empty edit in the memory of this one, unless that is much.
    pub(crate) fn emptied(mut self) -> Edit {
        if self.bytes.capacity() > KEPT_BYTES_MAX || self.runs.capacity() > KEPT_RUNS_MAX {
            return Edit::default();
        }
        self.runs.clear();
        self.bytes.clear();
        self
    }

    /// Puts a live record, and its segment's head if it is the first there. `ends_one`: another record is marked dead
    /// beside. The offset of the record.
    pub(crate) fn put(
        &mut self,
        place: SegmentPlace,
        key: &[u8],
        large: bool,
        body: &[&[u8]],
        ends_one: bool,
    ) -> u64 {
        let body_len = body.iter().map(|part| part.len()).sum();
        let size = record::size(key.len(), body_len);
        let (head, spare) = match place {
            SegmentPlace::Open(_) => (0, 0),
            SegmentPlace::Fresh(_) => (record::SEGMENT_HEADER, 0),
            SegmentPlace::Over(_, bytes) => (0, bytes.saturating_sub(size)),
        };
        // All at once, with the byte that ends the record before it: no further memory is asked for, and
        // none is left over.
        let bytes = head + size + usize::from(ends_one);
        self.bytes.reserve_exact(bytes);
        let from = self.bytes.len();
        let offset = match place {
            SegmentPlace::Open(offset) | SegmentPlace::Over(offset, _) => offset,
            SegmentPlace::Fresh(segment) => {
                self.bytes
                    .extend_from_slice(&record::segment_header(SegmentKind::Log, 0));
                start_of(segment)
            }
        };
        record::append(&mut self.bytes, key, large, body, spare);
        self.run(offset, from);
        offset + head as u64
    }

    /// Puts a chunk of a large value.
    pub(crate) fn chunk(&mut self, segment: u32, bytes: &[u8]) {
        let from = self.bytes.len();
        self.bytes.reserve(record::SEGMENT_HEADER + bytes.len());
        self.bytes
            .extend_from_slice(&record::segment_header(SegmentKind::Chunk, bytes.len()));
        self.bytes.extend_from_slice(bytes);
        self.run(start_of(segment), from);
    }

    /// Puts what was already appended to `bytes` from `from` on.
    pub(crate) fn run(&mut self, offset: u64, from: usize) {
        let len = (self.bytes.len() - from) as u32;
        self.runs.push(Run {
            offset,
            len,
            kind: RunKind::Bytes,
        });
    }

    /// Marks a record dead.
    pub(crate) fn kill(&mut self, offset: u64) {
        self.bytes.push(record::DEAD);
        self.runs.push(Run {
            offset,
            len: 1,
            kind: RunKind::Bytes,
        });
    }

    /// Gives segments back.
    pub(crate) fn zero(&mut self, segments: impl IntoIterator<Item = u32>) {
        let run = |s| Run {
            offset: start_of(s),
            len: EXTENT_BYTES as u32,
            kind: RunKind::Zero,
        };
        self.runs.extend(segments.into_iter().map(run));
    }
}
