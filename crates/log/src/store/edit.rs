//! A change of a unit's pages on its way to becoming a delta.

use staves_store::EXTENT_BYTES;
use staves_wire::group::{Run, RunKind};

use super::frame::{segment_of, start_of};
use super::segments::Contents;

/// The first bytes of a unit's bucket.
pub(crate) const MAGIC: [u8; 16] = *b"staveslg\x02\0\0\0\0\0\0\0";
/// The offset of the table of segments.
pub(crate) const TABLE_AT: u64 = 4096;

/// Runs and their bytes, as a delta has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageEdit {
    /// The runs.
    pub runs: Vec<Run>,
    /// The bytes of those that put some.
    pub bytes: Vec<u8>,
    /// The number of extents that exist by it, those that it frees not counted.
    pub begun: u32,
    /// The number of extents that it frees.
    pub freed: u32,
    /// The segments of entries and of data that are appended to from then on.
    pub(crate) open: (Option<u32>, Option<u32>),
}

impl PageEdit {
    /// Returns whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Puts bytes; behind those of the last run, the run becomes longer.
    pub(crate) fn put(&mut self, offset: u64, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let len = bytes.len() as u32;
        let follows = |run: &&mut Run| {
            let same = segment_of(run.offset) == segment_of(offset);
            same && run.kind == RunKind::Bytes && run.offset + u64::from(run.len) == offset
        };
        match self.runs.last_mut().filter(follows) {
            Some(run) => run.len += len,
            None => self.runs.push(Run {
                offset,
                len,
                kind: RunKind::Bytes,
            }),
        }
    }

    /// Puts the bytes of segments in the table, and the head of a bucket that was never written.
    pub(crate) fn put_table(&mut self, mut changed: Vec<(u32, Contents)>, is_new: bool) {
        if is_new {
            self.put(0, &MAGIC);
        }
        changed.sort_unstable_by_key(|(segment, _)| *segment);
        for (segment, contents) in changed {
            self.put(TABLE_AT + u64::from(segment), &[contents.to_byte()]);
        }
    }

    /// Zeroes segments.
    pub(crate) fn zero(&mut self, segments: &[u32]) {
        for segment in segments {
            let offset = start_of(*segment);
            let follows = |run: &&mut Run| {
                run.kind == RunKind::Zero && run.offset + u64::from(run.len) == offset
            };
            match self.runs.last_mut().filter(follows) {
                Some(run) => run.len += EXTENT_BYTES as u32,
                None => self.runs.push(Run {
                    offset,
                    len: EXTENT_BYTES as u32,
                    kind: RunKind::Zero,
                }),
            }
        }
        self.freed += segments.len() as u32;
    }

    /// Puts all of another edit behind this one.
    pub(crate) fn join(&mut self, other: PageEdit) {
        self.runs.extend(other.runs);
        self.bytes.extend(other.bytes);
        self.begun += other.begun;
        self.freed += other.freed;
    }

    /// Offset and bytes of each run that puts some.
    pub(crate) fn written<'a>(
        runs: &'a [Run],
        bytes: &'a [u8],
    ) -> impl Iterator<Item = (u64, &'a [u8])> {
        let mut rest = bytes;
        let puts = |run: &&Run| run.kind == RunKind::Bytes;
        runs.iter().filter(puts).map(move |run| {
            let (part, tail) = rest.split_at(rest.len().min(run.len as usize));
            rest = tail;
            (run.offset, part)
        })
    }
}
