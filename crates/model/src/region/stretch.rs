//! Stretches: runs of groups whose data buckets hold equally many bytes.
//!
//! A stretch keeps the size of its buckets in the number that says its state, so that one of buckets of 64 MiB has the bytes
//! that it had when there were no others, in maps and logs; and a program that knows no others cannot read a map that has some.

use serde::{Deserialize, Serialize};

use super::{CHUNK_BYTES, Place};
use crate::ids::{GroupId, MemberSlot};

/// The least bytes of a region that one data bucket holds. They take up memory only where they were written.
pub const REGION_BUCKET_BYTES_MIN: u64 = 64 << 20;
/// The most.
pub const REGION_BUCKET_BYTES_MAX: u64 = 1 << 30;
/// Most chunks of one data bucket.
pub const BUCKET_CHUNKS_MAX: u32 = (REGION_BUCKET_BYTES_MAX / CHUNK_BYTES) as u32;
/// A region has at most so many groups, unless its buckets hold the most bytes: enough to keep many nodes busy, and each group
/// costs its members memory and messages.
const GROUPS_WANTED: u64 = 32;

/// A run of groups, with ids that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "StoredStretch", into = "StoredStretch")]
pub struct Stretch {
    /// The first of them.
    pub first: GroupId,
    /// Their number; at least one.
    pub count: u32,
    /// The state of its bytes.
    pub state: StretchState,
    /// Bytes of the region that each of its data buckets holds ([`is_bucket_bytes`]).
    pub bucket_bytes: u64,
}

/// The state of a stretch's bytes, and with it the parity of its groups. It is in the directory's map, so that a load and
/// a first write are put in an order: no byte that was acknowledged outside of a load is ever without parity for its sake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StretchState {
    /// Nothing was ever written to it. A client that writes there first has it marked as `Written`.
    Empty,
    /// A load writes to it: its groups have no parity, so that what is written is neither logged nor sent, and
    /// what a node holds of it is lost with the node. Nobody else writes. Then parity is made in one pass (row H11).
    Loading,
    /// It may hold bytes that were acknowledged, and has parity.
    Written,
}

/// A stretch as it is stored and sent. `state`: 0 to 2 for empty, loading and written, and 3 more for each time that its
/// buckets hold twice the least bytes.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct StoredStretch {
    first: GroupId,
    count: u32,
    state: u32,
}

const STATES: [StretchState; 3] = [
    StretchState::Empty,
    StretchState::Loading,
    StretchState::Written,
];

impl From<Stretch> for StoredStretch {
    fn from(stretch: Stretch) -> StoredStretch {
        let doubled = (stretch.bucket_bytes / REGION_BUCKET_BYTES_MIN)
            .max(1)
            .ilog2();
        StoredStretch {
            first: stretch.first,
            count: stretch.count,
            state: stretch.state as u32 + STATES.len() as u32 * doubled,
        }
    }
}

impl TryFrom<StoredStretch> for Stretch {
    type Error = String;

    fn try_from(stored: StoredStretch) -> Result<Stretch, String> {
        let doubled = stored.state / STATES.len() as u32;
        let bucket_bytes = REGION_BUCKET_BYTES_MIN.checked_shl(doubled);
        match bucket_bytes.filter(|bytes| is_bucket_bytes(*bytes)) {
            Some(bucket_bytes) => Ok(Stretch {
                first: stored.first,
                count: stored.count,
                state: STATES[stored.state as usize % STATES.len()],
                bucket_bytes,
            }),
            None => Err(format!(
                "a part of a region has the state {}, which this version does not know: update this program",
                stored.state
            )),
        }
    }
}

/// Returns whether a data bucket may hold so many bytes of a region: a power of two, from the least to the most.
pub fn is_bucket_bytes(bytes: u64) -> bool {
    bytes.is_power_of_two() && (REGION_BUCKET_BYTES_MIN..=REGION_BUCKET_BYTES_MAX).contains(&bytes)
}

/// Bytes of a region that one group with `m` data buckets holds, where a bucket holds the least.
pub fn stretch_unit(m: u8) -> u64 {
    u64::from(m) * REGION_BUCKET_BYTES_MIN
}

/// Chooses the bytes of a data bucket, in a pool with `m` of them a group, for the stretch that holds the last `new_bytes` of
/// a region of `size_bytes`: the least with which a region of that size, made at once, has 32 groups at most, and the
/// stretch no more than the `groups_left` that regions may still have. The most, if no choice does that.
///
/// So regions up to 2 GiB (`m` = 1) keep the least, larger ones have 17 to 32 groups as far as the most allows, and one that
/// grows by little at a time does not have a group for each little.
pub fn choose_bucket_bytes(size_bytes: u64, new_bytes: u64, m: u8, groups_left: u64) -> u64 {
    let mut bucket_bytes = REGION_BUCKET_BYTES_MIN;
    let groups = |bytes: u64, bucket: u64| bytes.div_ceil(bucket * u64::from(m.max(1)));
    while bucket_bytes < REGION_BUCKET_BYTES_MAX
        && (groups(size_bytes, bucket_bytes) > GROUPS_WANTED
            || groups(new_bytes, bucket_bytes) > groups_left)
    {
        bucket_bytes *= 2;
    }
    bucket_bytes
}

impl Stretch {
    /// Its groups.
    pub fn groups(self) -> impl Iterator<Item = GroupId> {
        (self.first.0..self.first.0.saturating_add(self.count)).map(GroupId)
    }

    /// True if a group is one of them.
    pub fn contains(self, group: GroupId) -> bool {
        (self.first.0..self.first.0.saturating_add(self.count)).contains(&group.0)
    }

    pub(super) fn buckets(self, m: u8) -> u64 {
        u64::from(self.count) * u64::from(m)
    }

    pub(super) fn bytes(self, m: u8) -> u64 {
        self.buckets(m) * self.bucket_bytes
    }

    pub(super) fn place(self, within: u64, m: u8) -> Place {
        let buckets = self.buckets(m);
        let (chunk, rest) = (within / CHUNK_BYTES, within % CHUNK_BYTES);
        let (row, bucket) = (chunk / buckets, chunk % buckets);
        Place {
            group: GroupId(self.first.0 + (bucket / u64::from(m)) as u32),
            slot: MemberSlot((bucket % u64::from(m)) as u8),
            offset: row * CHUNK_BYTES + rest,
            left: CHUNK_BYTES - rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u64 = REGION_BUCKET_BYTES_MIN;
    const MOST: u64 = REGION_BUCKET_BYTES_MAX;
    const GIB: u64 = 1 << 30;

    #[test]
    fn buckets_hold_as_much_as_keeps_the_groups_few() {
        let choose = |size, m| choose_bucket_bytes(size, size, m, 1024);
        for (size, m, bucket_bytes) in [
            (1, 1, LEAST),
            (2 * GIB, 1, LEAST),
            (2 * GIB + 1, 1, 2 * LEAST),
            (10 * GIB, 1, 512 << 20),
            (10 * GIB, 2, 256 << 20),
            (32 * GIB, 1, MOST),
            (200 * GIB, 1, MOST),
            (u64::MAX, 1, MOST),
        ] {
            assert_eq!(choose(size, m), bucket_bytes, "{size} in {m}");
        }
        for size in (GIB..40 * GIB).step_by(999_999_937) {
            for m in 1..=4 {
                let groups = size.div_ceil(u64::from(m) * choose(size, m));
                assert!(groups <= 40 && (groups >= 16 || choose(size, m) == LEAST));
            }
        }
        // Where few groups are left, and of a region that grows by little.
        assert_eq!(choose_bucket_bytes(10 * GIB, 10 * GIB, 1, 12), MOST);
        assert_eq!(choose_bucket_bytes(GIB, GIB, 1, 12), 128 << 20);
        assert_eq!(choose_bucket_bytes(200 * GIB, GIB, 1, 800), MOST);
    }

    #[test]
    fn a_stretch_of_least_buckets_is_stored_as_before_and_others_have_numbers_of_their_own() {
        let mut seen = std::collections::BTreeSet::new();
        for (number, state) in (0..).zip(STATES) {
            for bucket_bytes in (0..5).map(|doubled| LEAST << doubled) {
                let stretch = Stretch {
                    first: GroupId(300),
                    count: 2,
                    state,
                    bucket_bytes,
                };
                let bytes = postcard::to_allocvec(&stretch).expect("plain data");
                if bucket_bytes == LEAST {
                    assert_eq!(bytes, [0xAC, 2, 2, number]);
                }
                assert_eq!(postcard::from_bytes(&bytes), Ok(stretch));
                assert!(seen.insert(bytes));
            }
        }
        for unknown in [15, 16, 127] {
            let read: Result<Stretch, _> = postcard::from_bytes(&[1, 2, unknown]);
            assert!(read.is_err(), "{unknown}");
        }
    }
}
