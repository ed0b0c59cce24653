//! The segments of a bucket, in numbers; and the place of the next record.

use staves_store::EXTENT_BYTES;

use crate::record::{SEGMENT_HEADER, SEGMENT_ROOM, SegmentKind};

/// Segments that take records at a time: records of mixed sizes fill each other's tails.
const OPEN_MAX: usize = 4;
/// An open segment with less room than this is not worth looking at again.
pub(crate) const ROOM_MIN: usize = 64;
/// Records lie within the first 32 GiB of a bucket, because index entries hold offset / 8 in 32 bits.
pub(crate) const SEGMENTS_MAX: u32 = 1 << 17;

/// One segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Segment {
    pub kind: SegmentKind,
    /// The end of its records.
    pub fill: u32,
    /// Bytes of its live records.
    pub live: u32,
    /// Live records; for a chunk 1 once a live record names it.
    pub records: u32,
    /// Bytes of keys and values of its live records.
    pub payload: u64,
}

/// The place of a new record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentPlace {
    /// At this offset, in an open segment.
    Open(u64),
    /// First in this segment, which must be begun.
    Fresh(u32),
    /// Over the record at this offset, whose place has so many bytes.
    Over(u64, usize),
}

/// All segments of a bucket.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    all: Vec<Segment>,
    /// Those that take records, at a data bucket.
    open: Vec<u32>,
    /// Closed and without a live record: their memory can be given back. Checked again when used.
    empty: Vec<u32>,
    /// No segment below is free.
    free_from: u32,
    /// Segments of kind log.
    logs: u32,
    /// Bytes of live records in all.
    live: u64,
}

/// The segment of an offset.
pub(crate) fn segment_of(offset: u64) -> u32 {
    u32::try_from(offset / EXTENT_BYTES as u64).unwrap_or(u32::MAX)
}

/// The offset of a segment.
pub(crate) fn start_of(segment: u32) -> u64 {
    u64::from(segment) * EXTENT_BYTES as u64
}

impl Segments {
    /// One segment; a free one if it never was.
    pub(crate) fn get(&self, segment: u32) -> Segment {
        self.all.get(segment as usize).copied().unwrap_or_default()
    }

    /// All of them, from 0.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Segment)> {
        self.all.iter().enumerate().map(|(s, x)| (s as u32, x))
    }

    /// Begins a segment. Does nothing beyond the largest bucket.
    pub(crate) fn begin(&mut self, segment: u32, kind: SegmentKind) {
        if segment >= SEGMENTS_MAX {
            return;
        }
        let index = segment as usize;
        if self.all.len() <= index {
            self.all.resize(index + 1, Segment::default());
        }
        self.end(segment);
        if kind == SegmentKind::Log {
            self.logs += 1;
        }
        self.all[index] = Segment {
            kind,
            fill: SEGMENT_HEADER as u32,
            ..Segment::default()
        };
    }

    /// The segment was zeroed: it is free.
    pub(crate) fn end(&mut self, segment: u32) {
        let Some(old) = self.all.get_mut(segment as usize).map(std::mem::take) else {
            return;
        };
        if old.kind == SegmentKind::Log {
            self.logs -= 1;
            self.live -= u64::from(old.live);
            self.open.retain(|s| *s != segment);
        }
        self.free_from = self.free_from.min(segment);
    }

    /// A live record was added, ending at `fill`.
    pub(crate) fn add(&mut self, segment: u32, bytes: usize, payload: u64) {
        self.add_of(segment, bytes, payload, 1);
    }

    fn add_of(&mut self, segment: u32, bytes: usize, payload: u64, records: u32) {
        let Some(s) = self
            .all
            .get_mut(segment as usize)
            .filter(|s| s.kind == SegmentKind::Log)
        else {
            return;
        };
        let before = s.live;
        s.live = s.live.saturating_add(bytes as u32);
        s.records = s.records.saturating_add(records);
        s.payload = s.payload.saturating_add(payload);
        self.live += u64::from(s.live - before);
    }

    /// A live record was written over by another one of its key.
    pub(crate) fn resize(&mut self, segment: u32, bytes: (usize, usize), payload: (u64, u64)) {
        self.remove_of(segment, bytes.0, payload.0, 0);
        self.add_of(segment, bytes.1, payload.1, 0);
    }

    /// Records reach up to `fill`.
    pub(crate) fn fill(&mut self, segment: u32, fill: usize) {
        if let Some(s) = self.all.get_mut(segment as usize) {
            s.fill = s.fill.max(fill as u32);
        }
    }

    /// A live record died.
    pub(crate) fn remove(&mut self, segment: u32, bytes: usize, payload: u64) {
        if self.remove_of(segment, bytes, payload, 1) && !self.open.contains(&segment) {
            self.empty.push(segment);
        }
    }

    /// True if the segment has no live record any more.
    fn remove_of(&mut self, segment: u32, bytes: usize, payload: u64, records: u32) -> bool {
        let Some(s) = self
            .all
            .get_mut(segment as usize)
            .filter(|s| s.kind == SegmentKind::Log)
        else {
            return false;
        };
        let bytes = s.live.min(bytes as u32);
        (s.live, s.records) = (s.live - bytes, s.records.saturating_sub(records));
        s.payload = s.payload.saturating_sub(payload);
        let ended = s.records == 0;
        self.live -= u64::from(bytes);
        ended
    }

    /// A large value's record names these chunks, or no longer does.
    pub(crate) fn name(&mut self, chunks: impl Iterator<Item = u32>, named: bool) {
        for chunk in chunks {
            if let Some(s) = self
                .all
                .get_mut(chunk as usize)
                .filter(|s| s.kind == SegmentKind::Chunk)
            {
                s.records = u32::from(named);
            }
        }
    }

    /// Chunks that no live record names.
    pub(crate) fn unnamed_chunks(&self) -> Vec<u32> {
        let unnamed = |s: &Segment| s.kind == SegmentKind::Chunk && s.records == 0;
        self.iter()
            .filter(|(_, s)| unnamed(s))
            .map(|(i, _)| i)
            .collect()
    }

    /// An open segment's place for a record of so many bytes.
    pub(crate) fn place(&self, bytes: usize) -> Option<SegmentPlace> {
        self.open.iter().find_map(|s| {
            let fill = self.get(*s).fill as usize;
            (EXTENT_BYTES - fill >= bytes).then(|| SegmentPlace::Open(start_of(*s) + fill as u64))
        })
    }

    /// The lowest free segment but for those that a caller has taken already; `None` beyond the
    /// largest bucket.
    pub(crate) fn fresh(&mut self) -> Option<u32> {
        let kind = |s: u32| {
            self.all
                .get(s as usize)
                .map_or(SegmentKind::Free, |x| x.kind)
        };
        let free = (self.free_from..SEGMENTS_MAX).find(|s| kind(*s) == SegmentKind::Free)?;
        self.free_from = free;
        Some(free)
    }

    /// Lets a segment that was begun take records.
    pub(crate) fn open(&mut self, segment: u32) {
        let room = |s: &Segments, i: u32| EXTENT_BYTES - s.get(i).fill as usize;
        if self.get(segment).kind != SegmentKind::Log || self.open.contains(&segment) {
            return;
        }
        self.open.push(segment);
        let full = |s: u32| room(self, s) < ROOM_MIN;
        let mut close: Vec<u32> = self.open.iter().copied().filter(|s| full(*s)).collect();
        if self.open.len() - close.len() > OPEN_MAX {
            close.extend(
                self.open
                    .iter()
                    .copied()
                    .min_by_key(|s| (room(self, *s), *s)),
            );
        }
        for segment in close {
            self.open.retain(|s| *s != segment);
            if self.get(segment).records == 0 {
                self.empty.push(segment);
            }
        }
    }

    /// A copy became the data bucket: the segments with the most room take records, and what is empty
    /// is looked up.
    pub(crate) fn reopen(&mut self) {
        self.open.clear();
        self.empty.clear();
        let logs = self.iter().filter(|(_, s)| s.kind == SegmentKind::Log);
        let mut by_room: Vec<(u32, u32)> = logs
            .filter(|(_, s)| s.records > 0)
            .map(|(i, s)| (s.fill, i))
            .collect();
        by_room.sort_unstable();
        let roomy = |fill: u32| EXTENT_BYTES - fill as usize >= ROOM_MIN;
        let open = by_room
            .iter()
            .filter(|(fill, _)| roomy(*fill))
            .take(OPEN_MAX);
        self.open = open.map(|(_, i)| *i).collect();
        let empty = |s: &Segment| s.kind == SegmentKind::Log && s.records == 0;
        self.empty = self
            .iter()
            .filter(|(_, s)| empty(s))
            .map(|(i, _)| i)
            .collect();
    }

    /// Up to `most` segments without a live record, whose memory can be given back.
    pub(crate) fn take_empty(&mut self, most: usize) -> Vec<u32> {
        let mut taken = Vec::new();
        while taken.len() < most {
            let Some(segment) = self.empty.pop() else {
                break;
            };
            let s = self.get(segment);
            let empty =
                s.kind == SegmentKind::Log && s.records == 0 && !self.open.contains(&segment);
            if empty && !taken.contains(&segment) {
                taken.push(segment);
            }
        }
        taken
    }

    /// They could not be given back now after all.
    pub(crate) fn put_back_empty(&mut self, segments: Vec<u32>) {
        self.empty.extend(segments);
    }

    /// True if there are segments to give back.
    pub(crate) fn has_empty(&self) -> bool {
        !self.empty.is_empty()
    }

    /// Bytes in segments of records that no live record takes up and no new one can.
    pub(crate) fn waste(&self) -> u64 {
        let room: u64 = self
            .open
            .iter()
            .map(|s| EXTENT_BYTES as u64 - u64::from(self.get(*s).fill))
            .sum();
        (u64::from(self.logs) * SEGMENT_ROOM as u64).saturating_sub(self.live + room)
    }

    /// True if some segment has a quarter or more to spare for records, at once or by compaction.
    pub(crate) fn has_room(&self) -> bool {
        let most = SEGMENT_ROOM - SEGMENT_ROOM / 4;
        let sparse = |s: &Segment| s.kind == SegmentKind::Log && s.live as usize <= most;
        self.all.iter().any(sparse)
    }

    /// Segments of records.
    pub(crate) fn logs(&self) -> u32 {
        self.logs
    }

    /// True if a segment takes records now.
    pub(crate) fn is_open(&self, segment: u32) -> bool {
        self.open.contains(&segment)
    }

    /// The numbers that a scan of the pages can find, without trailing free segments: for comparison.
    pub(crate) fn facts(&self) -> &[Segment] {
        let used = self
            .all
            .iter()
            .rposition(|s| s.kind != SegmentKind::Free)
            .map_or(0, |last| last + 1);
        &self.all[..used]
    }
}
