//! The index over a bucket's records, kept up by looking at each delta; and what a key's value is.
//!
//! [`Kv::note`] is the one way in which it changes, at the data bucket and at its copies alike. So what
//! a copy knows when it is promoted is what the data bucket knew, and both are what [`Kv::scan`] would
//! find in the pages: [`Kv::check`] compares them.

use std::cell::Cell;

use bytes::Bytes;
use staves_service::KeyHash;
use staves_store::{EXTENT_BYTES, EXTENT_PAGES, Pages};
use staves_wire::group::{Run, RunKind};

use crate::index::Index;
use crate::record::{self, Large, Record, Records, SEGMENT_HEADER, SegmentKind};
use crate::segments::{Segments, segment_of, start_of};

/// Index and segments of one bucket.
#[derive(Clone, Debug, Default)]
pub struct Kv {
    pub(crate) index: Index,
    pub(crate) segments: Segments,
    /// Bytes of keys and values.
    payload: u64,
    /// Segments whose records could not be read to their end.
    damaged: u32,
}

/// A value where it lies.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Inline(&'a [u8]),
    Large(&'a Pages, Large<'a>),
}

impl Value<'_> {
    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Value::Inline(bytes) => bytes.len(),
            Value::Large(_, large) => usize::try_from(large.total).unwrap_or(usize::MAX),
        }
    }

    /// Appends it to `into`.
    pub(crate) fn copy_to(&self, into: &mut Vec<u8>) {
        let (pages, large) = match self {
            Value::Inline(bytes) => return into.extend_from_slice(bytes),
            Value::Large(pages, large) => (pages, large),
        };
        // Chunks exist, so their bytes are bounded by memory that is there; `total` is only a number.
        let mut left = self.len() - large.tail.len();
        for chunk in large.chunks() {
            let part = left.min(large.chunk_bytes as usize);
            into.extend_from_slice(pages.slice(start_of(chunk) + SEGMENT_HEADER as u64, part));
            left -= part;
        }
        into.extend_from_slice(large.tail);
    }

    /// A copy of it.
    pub(crate) fn to_bytes(self) -> Bytes {
        match self {
            Value::Inline(bytes) => Bytes::copy_from_slice(bytes),
            Value::Large(..) => {
                let mut bytes = Vec::new();
                self.copy_to(&mut bytes);
                Bytes::from(bytes)
            }
        }
    }
}

/// A key's live record.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    pub offset: u64,
    pub value: Value<'a>,
}

impl Kv {
    /// Keys.
    pub fn count(&self) -> u64 {
        self.index.len() as u64
    }

    /// Bytes of keys and values.
    pub fn payload(&self) -> u64 {
        self.payload
    }

    /// A key's record, if it has a value.
    #[inline]
    pub(crate) fn find<'a>(
        &self,
        pages: &'a Pages,
        key_hash: KeyHash,
        key: &[u8],
    ) -> Option<Found<'a>> {
        let found = Cell::new(None);
        let is = |offset| {
            found.set(record_at(pages, offset).filter(|r| r.key == key));
            found.get().is_some()
        };
        let offset = self.index.find(key_hash, is)?;
        let record = found.get()?;
        let value = match record.as_large() {
            Some(large) => Value::Large(pages, large),
            None => Value::Inline(record.body),
        };
        Some(Found { offset, value })
    }

    /// The segments of a record's chunks; none for a small value.
    pub(crate) fn chunks_of(pages: &Pages, offset: u64) -> Vec<u32> {
        let large = record_at(pages, offset).and_then(|r| r.as_large());
        large.map_or_else(Vec::new, |l| l.chunks().collect())
    }

    /// Takes in a delta's runs: before the pages have them (at the data bucket) or after (at a copy).
    pub(crate) fn note(&mut self, pages: &Pages, runs: &[Run], bytes: &[u8]) {
        if runs.iter().any(|r| r.kind == RunKind::Zero) {
            self.note_zeroes(runs, bytes);
        }
        for (offset, part) in written(runs, bytes) {
            if part == [record::DEAD] {
                self.note_death(pages, offset);
            } else {
                self.note_written(offset, part);
            }
        }
    }

    // A segment that still has records is zeroed only when the same delta writes them all again, with
    // their keys (compaction). So their entries are found by the key hashes of the new ones; the pages may be
    // gone already.
    fn note_zeroes(&mut self, runs: &[Run], bytes: &[u8]) {
        let zeroes = runs.iter().filter(|r| r.kind == RunKind::Zero);
        let zeroed: Vec<u32> = zeroes.flat_map(segments_in).collect();
        let moved = |s: &&u32| {
            self.segments.get(**s).kind == SegmentKind::Log && self.segments.get(**s).records > 0
        };
        let mut from: Vec<u32> = zeroed.iter().filter(moved).copied().collect();
        from.sort_unstable();
        if !from.is_empty() {
            let before = self.index.len() as u64;
            let expected: u64 = from
                .iter()
                .map(|s| u64::from(self.segments.get(*s).records))
                .sum();
            for (offset, part) in written(runs, bytes) {
                for (_, record) in records_of(offset, part) {
                    let key_hash = KeyHash::of(record.key);
                    let was = |o| from.binary_search(&segment_of(o)).is_ok();
                    while self.index.remove(key_hash, was).is_some() {}
                }
            }
            if before - (self.index.len() as u64) < expected {
                // No delta of ours does this: whatever is left of those segments goes the slow way.
                self.index
                    .retain(|o| from.binary_search(&segment_of(o)).is_err());
            }
            for segment in &from {
                self.payload = self
                    .payload
                    .saturating_sub(self.segments.get(*segment).payload);
            }
        }
        for segment in zeroed {
            self.segments.end(segment);
        }
    }

    fn note_death(&mut self, pages: &Pages, offset: u64) {
        let Some(record) = record_at(pages, offset) else {
            return;
        };
        if self
            .index
            .remove(KeyHash::of(record.key), |o| o == offset)
            .is_none()
        {
            return;
        }
        self.payload = self.payload.saturating_sub(record.payload());
        self.segments
            .remove(segment_of(offset), record.size(), record.payload());
        if let Some(large) = record.as_large() {
            self.segments.name(large.chunks(), false);
        }
    }

    fn note_written(&mut self, offset: u64, part: &[u8]) {
        let segment = segment_of(offset);
        if offset == start_of(segment) {
            let (kind, bytes) = record::segment_kind(part);
            self.segments.begin(segment, kind);
            if kind == SegmentKind::Chunk {
                self.segments.fill(segment, SEGMENT_HEADER + bytes);
            }
        }
        for (at, record) in records_of(offset, part) {
            self.note_record(at, &record);
        }
    }

    fn note_record(&mut self, offset: u64, record: &Record<'_>) {
        let segment = segment_of(offset);
        let aligned = offset.is_multiple_of(8);
        if !aligned || self.segments.get(segment).kind != SegmentKind::Log {
            return;
        }
        let end = (offset - start_of(segment)) as usize + record.size();
        self.segments.fill(segment, end);
        if record.live && self.index.add(KeyHash::of(record.key), offset) {
            self.segments.add(segment, record.size(), record.payload());
            self.payload += record.payload();
            if let Some(large) = record.as_large() {
                self.segments.name(large.chunks(), true);
            }
        }
    }

    /// Reads the index out of the pages.
    pub fn scan(pages: &Pages) -> Kv {
        let mut kv = Kv::default();
        let extents = (pages.end_page() / EXTENT_PAGES).min(crate::segments::SEGMENTS_MAX);
        let each = || (0..extents).filter(|s| pages.exists(start_of(*s)));
        // Kinds first: a record may name chunks that lie behind it.
        for segment in each() {
            let (kind, bytes) =
                record::segment_kind(pages.slice(start_of(segment), SEGMENT_HEADER));
            if kind != SegmentKind::Free {
                kv.segments.begin(segment, kind);
            }
            if kind == SegmentKind::Chunk {
                kv.segments.fill(segment, SEGMENT_HEADER + bytes);
            }
        }
        for segment in each()
            .filter(|s| kv.segments.get(*s).kind == SegmentKind::Log)
            .collect::<Vec<_>>()
        {
            let first = start_of(segment) + SEGMENT_HEADER as u64;
            let mut records = Records::new(pages.slice(first, EXTENT_BYTES - SEGMENT_HEADER));
            for (at, record) in &mut records {
                kv.note_record(first + at as u64, &record);
            }
            kv.damaged += u32::from(records.malformed);
        }
        kv
    }

    /// Compares with a scan of the pages, and says what differs.
    pub fn check(&self, pages: &Pages) -> Result<(), String> {
        let scan = Kv::scan(pages);
        if scan.damaged > 0 {
            return Err(format!(
                "{} segments hold bytes that are no records",
                scan.damaged
            ));
        }
        if (self.payload, self.count()) != (scan.payload, scan.count()) {
            return Err(format!(
                "the index has {} keys of {} bytes, the pages have {} of {}",
                self.count(),
                self.payload,
                scan.count(),
                scan.payload
            ));
        }
        let (ours, theirs) = (self.segments.facts(), scan.segments.facts());
        if ours != theirs {
            let differs = ours.iter().zip(theirs).position(|(o, t)| o != t);
            let at = differs.unwrap_or(ours.len().min(theirs.len()));
            return Err(format!(
                "segment {at} is {:?} by the index and {:?} by the pages",
                ours.get(at),
                theirs.get(at)
            ));
        }
        if self.index.sorted() != scan.index.sorted() {
            return Err("the index and a scan of the pages name different records".into());
        }
        let keys_twice = scan.index.sorted().iter().any(|(key_hash, offset)| {
            let record = record_at(pages, *offset);
            record.is_none_or(|r| {
                scan.find(pages, *key_hash, r.key)
                    .is_none_or(|f| f.offset != *offset)
            })
        });
        if keys_twice {
            Err("one key has two live records".into())
        } else {
            Ok(())
        }
    }
}

/// The record at an offset, whatever lies there.
#[inline]
pub(crate) fn record_at(pages: &Pages, offset: u64) -> Option<Record<'_>> {
    let within = (offset % EXTENT_BYTES as u64) as usize;
    Record::parse(pages.slice(offset, EXTENT_BYTES - within))
        .ok()
        .flatten()
}

/// Offset and bytes of each run that writes.
fn written<'a>(runs: &'a [Run], bytes: &'a [u8]) -> impl Iterator<Item = (u64, &'a [u8])> {
    let mut rest = bytes;
    runs.iter()
        .filter(|r| r.kind == RunKind::Bytes)
        .map(move |r| {
            let (part, tail) = rest.split_at(rest.len().min(r.len as usize));
            rest = tail;
            (r.offset, part)
        })
}

/// The records in bytes that are written at an offset, with the offset of each.
fn records_of(offset: u64, part: &[u8]) -> impl Iterator<Item = (u64, Record<'_>)> {
    let starts_segment = offset == start_of(segment_of(offset));
    let skip = match starts_segment.then(|| record::segment_kind(part).0) {
        None => 0,
        Some(SegmentKind::Log) => SEGMENT_HEADER.min(part.len()),
        Some(SegmentKind::Chunk | SegmentKind::Free) => part.len(),
    };
    Records::new(&part[skip..]).map(move |(at, record)| (offset + (skip + at) as u64, record))
}

/// The segments that a run covers.
fn segments_in(run: &Run) -> impl Iterator<Item = u32> + use<> {
    let end = run
        .offset
        .saturating_add(u64::from(run.len))
        .div_ceil(EXTENT_BYTES as u64);
    segment_of(run.offset)..u32::try_from(end).unwrap_or(u32::MAX)
}
