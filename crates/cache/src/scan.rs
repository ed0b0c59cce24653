//! The index as the pages have it: read out of them when a bucket begins, and compared with.

use staves_store::{EXTENT_BYTES, EXTENT_PAGES, Pages};

use crate::kv::{Kv, record_at};
use crate::record::{self, Records, SEGMENT_HEADER, SegmentKind};
use crate::segments::start_of;

impl Kv {
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
                    .is_none_or(|f| f.place.offset != *offset)
            })
        });
        if keys_twice {
            Err("one key has two live records".into())
        } else {
            Ok(())
        }
    }
}
