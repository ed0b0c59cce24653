//! Regions of a memory pool: flat bytes spread over groups.
//!
//! A region's bytes lie in **stretches**: runs of whole groups, one from when it was made and one for each
//! time that it grew. Within a stretch its **chunks** go round over all data buckets of all its groups,
//! so that a long read or write keeps every node busy, and chunks that follow each other lie on different
//! nodes.
//!
//! ```text
//!   stretch of 2 groups, 2+1        chunk   0   1   2   3   4   5 ...
//!   group 7: data buckets 0, 1       7.0 ---+       +---- 7.0
//!   group 8: data buckets 0, 1           7.1-+ 8.0-+ 8.1-+
//! ```
//!
//! The data buckets of a stretch hold equally many bytes, as many as were chosen when it was made ([`choose_bucket_bytes`]).
//! The place of a byte never changes: a region that grows gets further groups and moves nothing.

mod stretch;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, Incarnation, MemberSlot, NodeId, RegionId};
use crate::mutant::{Mutant, planted};

pub use self::stretch::{
    BUCKET_CHUNKS_MAX, REGION_BUCKET_BYTES_MAX, REGION_BUCKET_BYTES_MIN, Stretch, StretchState,
    choose_bucket_bytes, is_bucket_bytes, stretch_unit,
};

/// Bytes of a chunk: what goes to one data bucket before the next one's turn, and the unit in which a
/// bucket takes memory for bytes that were never written before. Half of it makes blocks of 64 KiB slower by a
/// fifth, four times as much makes nothing faster (bench/RESULTS.md).
pub const CHUNK_BYTES: u64 = 64 << 10;

/// Flat bytes with a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Region {
    /// Its id, never used again: the number of its first group.
    pub id: RegionId,
    /// Its name, unique among the regions of all pools.
    pub name: String,
    /// Its size in bytes. Its groups may hold more; growth up to there costs nothing.
    pub size_bytes: u64,
    /// Its groups, in order of offset.
    pub stretches: Vec<Stretch>,
    /// The state of its attachment, if it is a volume.
    pub volume: Option<Volume>,
}

/// The attachment of a volume: a region that one client writes at a time.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Volume {
    /// The number of the last session; 0 if it was never attached. Buckets that know of a session refuse writes of older ones.
    pub session: u64,
    /// The writer of that session, until it lets go.
    pub writer: Option<VolumeWriter>,
}

/// The client that a volume is attached to, and the door that it came to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeWriter {
    /// The door's node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// The client's address.
    pub client: String,
}

/// The place of a byte of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The group.
    pub group: GroupId,
    /// The data bucket.
    pub slot: MemberSlot,
    /// The byte in the bucket's part of the region.
    pub offset: u64,
    /// Bytes from there to the chunk's end.
    pub left: u64,
}

/// The chunks of a range of a region that lie in one data bucket: one behind the other there, and equally far apart in the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BucketPart {
    /// The group.
    pub group: GroupId,
    /// The data bucket.
    pub slot: MemberSlot,
    /// The first byte of the first of them in the bucket's part of the region.
    pub offset: u64,
    /// Their number; at least one.
    pub count: u64,
    /// The number of the first of them in the region.
    pub first: u64,
    /// The chunks of the region from one of them to the next.
    pub step: u64,
}

impl Region {
    /// Bytes that its groups can hold.
    pub fn capacity_bytes(&self, m: u8) -> u64 {
        self.stretches.iter().map(|s| s.bytes(m)).sum()
    }

    /// All its groups.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.stretches.iter().flat_map(|s| s.groups())
    }

    /// Its stretches, each with the offsets that it holds; the last may reach beyond the region's end.
    pub fn spans(&self, m: u8) -> impl Iterator<Item = (Range<u64>, Stretch)> + '_ {
        self.stretches.iter().scan(0, move |end, stretch| {
            let from = *end;
            *end += stretch.bytes(m);
            Some((from..*end, *stretch))
        })
    }

    /// True if it is being loaded, or part of it.
    pub fn is_loading(&self) -> bool {
        let mut states = self.stretches.iter().map(|stretch| stretch.state);
        states.any(|state| state == StretchState::Loading)
    }

    /// The stretches that a load of these bytes may leave without parity, each with what it holds: those that hold
    /// nothing yet, and those of which no byte stays that is not overwritten. A load that was broken off goes on.
    pub fn loadable(&self, m: u8, load: Range<u64>) -> impl Iterator<Item = (Range<u64>, Stretch)> {
        let size = self.size_bytes;
        self.spans(m).filter(move |(bytes, stretch)| {
            let end = bytes.end.min(size);
            let meets = bytes.start.max(load.start) < end.min(load.end);
            let whole = load.start <= bytes.start && end <= load.end;
            meets
                && (whole
                    || stretch.state != StretchState::Written
                    || planted(Mutant::LoadTakesAll))
        })
    }

    /// The data buckets that these chunks lie in, each once for each stretch, as far as there are groups.
    pub fn bucket_parts(&self, chunks: Range<u64>, m: u8) -> impl Iterator<Item = BucketPart> + '_ {
        self.spans(m).flat_map(move |(bytes, stretch)| {
            let begin = bytes.start / CHUNK_BYTES;
            let from = chunks.start.max(begin);
            let end = chunks.end.min(bytes.end / CHUNK_BYTES);
            let step = stretch.buckets(m);
            (from..end.min(from + step)).map(move |first| {
                let place = stretch.place((first - begin) * CHUNK_BYTES, m);
                BucketPart {
                    group: place.group,
                    slot: place.slot,
                    offset: place.offset,
                    count: (end - first).div_ceil(step),
                    first,
                    step,
                }
            })
        })
    }

    /// The place of the byte at `offset`; `None` beyond the groups there are.
    pub fn place(&self, offset: u64, m: u8) -> Option<Place> {
        let mut spans = self.spans(m);
        let (bytes, stretch) = spans.find(|(bytes, _)| bytes.contains(&offset))?;
        if planted(Mutant::GrowthGoesRoundAnew) {
            let count = self.stretches.iter().map(|stretch| stretch.count).sum();
            let all = Stretch {
                count,
                ..self.stretches[0]
            };
            return Some(all.place(offset, m));
        }
        if planted(Mutant::GrowthBeginsInFront) {
            let newest = self.stretches.last().copied()?;
            let left = self.capacity_bytes(m) - newest.bytes(m);
            return Some(match offset.checked_sub(newest.bytes(m)) {
                None => newest.place(offset, m),
                Some(within) => self.stretches[0].place(within.min(left), m),
            });
        }
        if planted(Mutant::StretchesOverlap) {
            return Some(stretch.place(offset % stretch_unit(m), m));
        }
        Some(stretch.place(offset - bytes.start, m))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const LEAST: u64 = REGION_BUCKET_BYTES_MIN;

    /// Stretches by their first group, the number of groups, and the bytes of a data bucket.
    fn region(stretches: &[(u32, u32, u64)]) -> Region {
        Region {
            id: RegionId(stretches[0].0),
            name: "r".into(),
            size_bytes: 0,
            stretches: stretches
                .iter()
                .map(|(first, count, bucket_bytes)| Stretch {
                    first: GroupId(*first),
                    count: *count,
                    state: StretchState::Empty,
                    bucket_bytes: *bucket_bytes,
                })
                .collect(),
            volume: None,
        }
    }

    /// Regions that grew by stretches of equal buckets, of larger and of smaller ones.
    fn mixed() -> [Region; 3] {
        [
            region(&[(7, 2, LEAST), (20, 1, LEAST)]),
            region(&[(7, 2, LEAST), (20, 1, 4 * LEAST)]),
            region(&[(7, 1, 2 * LEAST), (20, 2, LEAST), (30, 1, 16 * LEAST)]),
        ]
    }

    #[test]
    fn every_chunk_has_a_place_of_its_own_within_its_bucket() {
        for (region, m) in mixed().iter().flat_map(|r| [1, 2, 3].map(|m| (r, m))) {
            let chunks = region.capacity_bytes(m) / CHUNK_BYTES;
            let of_buckets = |s: &Stretch| u64::from(s.count) * s.bucket_bytes / CHUNK_BYTES;
            let rows: u64 = region.stretches.iter().map(of_buckets).sum();
            assert_eq!(chunks, rows * u64::from(m));
            let mut seen = BTreeSet::new();
            for chunk in 0..chunks {
                let place = region.place(chunk * CHUNK_BYTES, m).expect("within");
                let mut stretches = region.stretches.iter();
                let stretch = stretches.find(|s| s.contains(place.group));
                let end = stretch.map_or(0, |s| s.bucket_bytes);
                assert!(place.slot.0 < m && place.offset < end);
                assert_eq!(place.left, CHUNK_BYTES);
                assert!(seen.insert((place.group, place.slot, place.offset)));
            }
            assert_eq!(region.place(chunks * CHUNK_BYTES, m), None);
        }
    }

    #[test]
    fn a_range_is_cut_into_the_chunks_of_each_bucket() {
        for (region, m) in mixed().iter().flat_map(|r| [1, 2, 3].map(|m| (r, m))) {
            let end = region.capacity_bytes(m) / CHUNK_BYTES;
            let border = u64::from(m) * 2 * LEAST / CHUNK_BYTES;
            let ranges = [
                0..end,
                0..1,
                5..6,
                3..200,
                border - 1..border + 1,
                border - 100..end,
                border + 7..border + 8,
                end - 2..end + 9,
                end..end + 1,
                7..7,
            ];
            for range in ranges {
                let mut seen = BTreeSet::new();
                let mut buckets = BTreeSet::new();
                for part in region.bucket_parts(range.clone(), m) {
                    assert!(buckets.insert((part.group, part.slot)), "{range:?}");
                    for row in 0..part.count {
                        let chunk = part.first + row * part.step;
                        let place = region.place(chunk * CHUNK_BYTES, m).expect("within");
                        let of_part = (part.group, part.slot, part.offset + row * CHUNK_BYTES);
                        assert_eq!((place.group, place.slot, place.offset), of_part);
                        assert!(seen.insert(chunk), "{range:?}");
                    }
                }
                let all: BTreeSet<u64> = (range.start..range.end.min(end)).collect();
                assert_eq!(seen, all, "{range:?} of {m}");
            }
        }
    }

    #[test]
    fn chunks_go_round_over_the_buckets_and_growth_moves_nothing() {
        let small = region(&[(7, 2, LEAST)]);
        let grown = region(&[(7, 2, LEAST), (9, 4, 8 * LEAST)]);
        let place = |region: &Region, offset| region.place(offset, 2).expect("within");
        let buckets: Vec<(u32, u8)> = (0..5)
            .map(|chunk| place(&small, chunk * CHUNK_BYTES))
            .map(|p| (p.group.0, p.slot.0))
            .collect();
        assert_eq!(buckets, [(7, 0), (7, 1), (8, 0), (8, 1), (7, 0)]);
        let end = small.capacity_bytes(2);
        for offset in (0..end).step_by(999_983) {
            assert_eq!(place(&small, offset), place(&grown, offset));
        }
        assert_eq!(place(&grown, end).group, GroupId(9));
        let last = place(&small, 5 * CHUNK_BYTES - 1);
        assert_eq!(
            (last.group, last.offset, last.left),
            (GroupId(7), 2 * CHUNK_BYTES - 1, 1)
        );
    }
}
