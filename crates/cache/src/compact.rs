//! Compaction: one delta that zeroes a few sparse segments and writes their live records, packed, into
//! fewer of them.
//!
//! Zeroes and bytes take effect together, so nothing must be copied first and no spare extent is
//! needed: even a bucket whose every extent is in use can make room. The delta is bounded, and so is the
//! work of a step. (The design lets compaction at m = 1 send "move" instead of bytes; that is to come.)

use staves_store::{EXTENT_BYTES, Pages};

use crate::edit::Edit;
use crate::kv::Kv;
use crate::record::{self, Records, SEGMENT_HEADER, SEGMENT_ROOM, SegmentKind};
use crate::segments::{ROOM_MIN, Segment, start_of};

/// Segments that one compaction takes in, at most.
const VICTIMS_MAX: usize = 8;
/// A tail worth the rewriting of its segment when nobody is in need.
const TAIL_WORTH: usize = SEGMENT_ROOM / 4;
/// The least tail that a segment is rewritten for, however small the record: one with less takes no records, and whoever writes many
/// small ones would have all of a segment copied for each.
const TAIL_MIN: usize = 512;
const _: () = assert!(TAIL_MIN > ROOM_MIN);

/// The aim of a compaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Aim {
    /// Waste has piled up.
    Tidy,
    /// A record of so many bytes must find a place.
    SegmentPlace(usize),
    /// An extent must come free.
    Extent,
}

/// A compaction, ready to be a delta.
#[derive(Debug)]
pub(crate) struct Compaction {
    pub edit: Edit,
    /// The segments that have the records then, to be opened.
    pub targets: Vec<u32>,
}

/// The best compaction for an aim whose delta brings at most `bytes_max`; `None` if there is none.
pub(crate) fn plan(kv: &Kv, pages: &Pages, aim: Aim, bytes_max: usize) -> Option<Compaction> {
    let victims = sparsest(kv);
    let pack = |count: usize, into: usize| {
        let live: usize = victims
            .get(..count)?
            .iter()
            .map(|(live, _)| *live as usize)
            .sum();
        let fits = live <= into * SEGMENT_ROOM && live + into * SEGMENT_HEADER <= bytes_max;
        if fits {
            pack(pages, &victims[..count], into)
        } else {
            None
        }
    };
    let rewrite = |tail_min: usize| {
        let (live, segment) = *victims.first()?;
        let tail = SEGMENT_ROOM - live as usize;
        let was = kv.segments.get(segment);
        let had = if kv.segments.is_open(segment) {
            EXTENT_BYTES - was.fill as usize
        } else {
            0
        };
        if tail >= tail_min && tail > had {
            pack(1, 1)
        } else {
            None
        }
    };
    // From cheap to dear: drop what is empty, join two, rewrite one, join many.
    let cheap = pack(1, 0).or_else(|| pack(2, 1));
    let many = || (3..=VICTIMS_MAX).find_map(|count| pack(count, count - 1));
    match aim {
        Aim::Tidy => cheap.or_else(|| rewrite(TAIL_WORTH)),
        Aim::Extent => cheap.or_else(many),
        Aim::SegmentPlace(bytes) => {
            let roomy = cheap.or_else(|| rewrite(bytes.max(TAIL_WORTH)));
            roomy.or_else(many).or_else(|| rewrite(bytes.max(TAIL_MIN)))
        }
    }
}

/// The segments with the fewest live bytes, fewest first, with those bytes.
fn sparsest(kv: &Kv) -> Vec<(u32, u32)> {
    let mut least: Vec<(u32, u32)> = Vec::with_capacity(VICTIMS_MAX + 1);
    let sparse = |s: &Segment| s.kind == SegmentKind::Log && (s.live as usize) < SEGMENT_ROOM;
    for (index, segment) in kv.segments.iter().filter(|(_, s)| sparse(s)) {
        let candidate = (segment.live, index);
        if least.len() == VICTIMS_MAX && least.last().is_some_and(|worst| candidate > *worst) {
            continue;
        }
        let at = least.partition_point(|l| *l < candidate);
        least.insert(at, candidate);
        least.truncate(VICTIMS_MAX);
    }
    least
}

/// Packs the live records of `victims` into the first `into` of them; `None` if they do not fit, because
/// records do not break.
fn pack(pages: &Pages, victims: &[(u32, u32)], into: usize) -> Option<Compaction> {
    let mut targets: Vec<Vec<u8>> = (0..into)
        .map(|_| record::segment_header(SegmentKind::Log, 0).to_vec())
        .collect();
    for (_, victim) in victims {
        let first = start_of(*victim) + SEGMENT_HEADER as u64;
        let bytes = pages.slice(first, SEGMENT_ROOM);
        for (at, record) in Records::new(bytes).filter(|(_, r)| r.live) {
            let size = record.size();
            let target = targets
                .iter_mut()
                .find(|t| t.len() + size <= EXTENT_BYTES)?;
            record::append_packed(target, &bytes[at..at + size]);
        }
    }
    let mut edit = Edit::default();
    edit.zero(victims.iter().map(|(_, s)| *s));
    let mut opened = Vec::new();
    for ((_, segment), target) in victims.iter().zip(&targets) {
        if target.len() > SEGMENT_HEADER {
            let from = edit.bytes.len();
            edit.bytes.extend_from_slice(target);
            edit.run(start_of(*segment), from);
            opened.push(*segment);
        }
    }
    Some(Compaction {
        edit,
        targets: opened,
    })
}
