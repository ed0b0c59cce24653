//! The places of the load are in all data buckets, whatever the scheme.

use std::collections::BTreeSet;

use staves_model::{GroupId, Region, RegionId, Stretch, StretchState};

use super::*;

/// The data buckets that a range touches.
fn buckets(region: &Region, m: u8, (offset, len): (u64, u64)) -> BTreeSet<(GroupId, u8)> {
    let ends = [offset, offset + len - 1];
    let places = ends.map(|at| region.place(at, m).expect("within the volume"));
    places.into_iter().map(|at| (at.group, at.slot.0)).collect()
}

#[test]
fn places_are_in_all_data_buckets_of_every_scheme() {
    for volume in [VolumeLoad::first(), VolumeLoad::second()] {
        for m in [1, 2, 4] {
            let count = volume
                .size_bytes
                .div_ceil(u64::from(m) * REGION_BUCKET_BYTES_MIN);
            let region = Region {
                id: RegionId(1),
                name: volume.name.to_owned(),
                size_bytes: volume.size_bytes,
                stretches: vec![Stretch {
                    first: GroupId(1),
                    count: count as u32,
                    state: StretchState::Written,
                    bucket_bytes: REGION_BUCKET_BYTES_MIN,
                }],
                volume: None,
            };
            let run = |run: u64| (offset(run), RUN * BLOCK_BYTES as u64);
            let mut all = BTreeSet::new();
            for at in 0..volume.runs() {
                let touched = buckets(&region, m, run(at));
                let (_, len) = run(at);
                assert!(offset(at) + len <= volume.size_bytes, "place {at}");
                assert_eq!(touched.len() as u64, 1 + at % 2, "place {at} of {m}+k");
                all.extend(touched);
            }
            // The shorter one may end before its last group does.
            let data = volume.size_bytes / REGION_BUCKET_BYTES_MIN;
            assert!(all.len() as u64 >= data, "{m}+k: {all:?}");
        }
    }
}
