//! The index over a bucket's records, kept up by looking at each delta; and what a key's value is.
//!
//! [`Kv::note`] is the way in which it changes, at the data bucket and at its copies alike. So what
//! a copy knows when it is promoted is what the data bucket knew, and both are what [`Kv::scan`] would
//! find in the pages: [`Kv::check`] compares them. For a plain write the data bucket knows already what
//! `note` would find out from the delta, and says so ([`Kv::put`]).

use std::cell::Cell;

use bytes::Bytes;
use staves_service::KeyHash;
use staves_store::{EXTENT_BYTES, Pages};
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
    pub(crate) payload: u64,
    /// Segments whose records could not be read to their end.
    pub(crate) damaged: u32,
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
    pub place: RecordPlace,
    pub value: Value<'a>,
}

/// The place of a record, and its numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordPlace {
    pub offset: u64,
    /// Bytes up to the next record.
    pub bytes: usize,
    /// Bytes of them that it takes up.
    pub size: usize,
    /// Bytes of key and value.
    pub payload: u64,
    pub large: bool,
}

impl RecordPlace {
    pub(crate) fn of(offset: u64, record: &Record<'_>) -> RecordPlace {
        let size = record.size();
        RecordPlace {
            offset,
            bytes: size + record.spare,
            size,
            payload: record.payload(),
            large: record.large,
        }
    }
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
        let place = RecordPlace::of(offset, &record);
        Some(Found { place, value })
    }

    /// Does as [`Kv::note`] for a delta that puts one small value's record, and ends that of its key's old one, which
    /// was small, too, or lies in the same place.
    pub(crate) fn put(&mut self, key_hash: KeyHash, new: RecordPlace, old: Option<RecordPlace>) {
        let segment = segment_of(new.offset);
        self.payload += new.payload;
        if let Some(old) = old {
            self.payload = self.payload.saturating_sub(old.payload);
        }
        if let Some(old) = old.filter(|old| old.offset == new.offset) {
            let (bytes, payload) = ((old.size, new.size), (old.payload, new.payload));
            return self.segments.resize(segment, bytes, payload);
        }
        let end = (new.offset - start_of(segment)) as usize + new.bytes;
        self.segments.fill(segment, end);
        self.segments.add(segment, new.size, new.payload);
        match old {
            None => self.index.insert(key_hash, new.offset),
            Some(old) => {
                self.index.change(key_hash, old.offset, new.offset);
                let was = segment_of(old.offset);
                self.segments.remove(was, old.size, old.payload);
            }
        }
    }

    /// The segments of a record's chunks; none for a small value.
    pub(crate) fn chunks_of(pages: &Pages, offset: u64) -> Vec<u32> {
        let large = record_at(pages, offset).and_then(|r| r.as_large());
        large.map_or_else(Vec::new, |l| l.chunks().collect())
    }

    /// Takes in a delta's runs before the pages have them: what is written over is still there.
    pub(crate) fn note(&mut self, pages: &Pages, runs: &[Run], bytes: &[u8]) {
        if runs.iter().any(|r| r.kind == RunKind::Zero) {
            self.note_zeroes(runs, bytes);
        }
        for (offset, part) in written(runs, bytes) {
            if part == [record::DEAD] {
                self.note_death(pages, offset);
            } else {
                self.note_written(pages, offset, part);
            }
        }
    }

    // A segment that still has records is zeroed only when the same delta writes them all again, with
    // their keys (compaction). So their entries are found by the key hashes of the new ones.
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

    fn note_written(&mut self, pages: &Pages, offset: u64, part: &[u8]) {
        let segment = segment_of(offset);
        if offset == start_of(segment) {
            let (kind, bytes) = record::segment_kind(part);
            self.segments.begin(segment, kind);
            if kind == SegmentKind::Chunk {
                self.segments.fill(segment, SEGMENT_HEADER + bytes);
            }
        }
        for (at, record) in records_of(offset, part) {
            if !self.note_record(at, &record) {
                self.note_overwrite(pages, at, &record);
            }
        }
    }

    // False if a live record of the key lies there already.
    pub(crate) fn note_record(&mut self, offset: u64, record: &Record<'_>) -> bool {
        let segment = segment_of(offset);
        let end = (offset - start_of(segment)) as usize + record.place();
        let fits = offset.is_multiple_of(8) && end <= EXTENT_BYTES;
        if !fits || self.segments.get(segment).kind != SegmentKind::Log {
            return true;
        }
        self.segments.fill(segment, end);
        if !record.live {
            return true;
        }
        if !self.index.add(KeyHash::of(record.key), offset) {
            return false;
        }
        self.segments.add(segment, record.size(), record.payload());
        self.payload += record.payload();
        if let Some(large) = record.as_large() {
            self.segments.name(large.chunks(), true);
        }
        true
    }

    // In its place, by one of the same key. No delta of ours does that to or by a large value.
    fn note_overwrite(&mut self, pages: &Pages, offset: u64, record: &Record<'_>) {
        let Some(old) = record_at(pages, offset) else {
            return;
        };
        let (old, new) = (
            RecordPlace::of(offset, &old),
            RecordPlace::of(offset, record),
        );
        self.put(KeyHash::of(record.key), new, Some(old));
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
