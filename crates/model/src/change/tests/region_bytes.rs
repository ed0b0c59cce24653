//! The bytes of regions: their places never change, and none that is not overwritten loses its parity to a load (row H11).

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::*;
use crate::map::ClusterMap;
use crate::mutant::{Mutant, plant};
use crate::region::{
    CHUNK_BYTES, Place, REGION_BUCKET_BYTES_MIN, Region, StretchState, stretch_unit,
};
use crate::testing::*;

fn memory(scheme: &str) -> ClusterMap {
    let mut map = cluster(3);
    let pool = create_memory_pool("memory", scheme, 1 << 29);
    map.apply(None, &pool).expect("new");
    map
}

fn make(map: &mut ClusterMap, name: &str, size_bytes: u64) {
    let (pool, name) = ("memory".into(), name.into());
    let create = Change::CreateRegion {
        pool,
        name,
        size_bytes,
    };
    map.apply(None, &create).expect("new");
}

fn grow(map: &mut ClusterMap, name: &str, size_bytes: u64) {
    let name = name.into();
    let grow = Change::GrowRegion { name, size_bytes };
    map.apply(None, &grow).expect("there are groups left");
}

fn load(map: &mut ClusterMap, load: Option<Range<u64>>) -> Outcome {
    let name = "a".into();
    let load = Change::LoadRegion { name, load };
    map.apply(None, &load).expect("the region is there")
}

fn write(map: &mut ClusterMap, offsets: Range<u64>) -> Result<Outcome, Refusal> {
    let region = region(map, "a").id;
    map.apply(None, &Change::WriteRegion { region, offsets })
}

fn region<'a>(map: &'a ClusterMap, name: &str) -> &'a Region {
    map.region_named(name).expect("made").1
}

/// Numbers by chance, the same for the same seed.
fn chance(state: &mut u64, below: u64) -> u64 {
    *state = state
        .wrapping_mul(0x5851_F42D_4C95_7F2D)
        .wrapping_add(0x1405_7B7E_F767_814F);
    (*state >> 33) % below
}

/// Two regions grow in turns by chance, by groups whose buckets hold more or less. Each byte stays where it was when it came, and no two bytes have one place.
fn bytes_stay(seed: u64) -> Result<(), String> {
    let m = 1 + (seed % 3) as u8;
    let mut map = memory(&format!("{m}+0"));
    let (mut random, mut known) = (seed, BTreeMap::<(&str, u64), Place>::new());
    for name in ["a", "b"] {
        make(&mut map, name, 1 + chance(&mut random, 2 * stretch_unit(m)));
    }
    for _ in 0..6 {
        for name in ["a", "b"] {
            let of = region(&map, name);
            let mut taken = BTreeMap::new();
            // A byte within each chunk, and the region's last.
            let chunks = (0..of.size_bytes).step_by(CHUNK_BYTES as usize);
            let within = chunks.map(|at| at + chance(&mut random, CHUNK_BYTES));
            let within = within.filter(|at| *at < of.size_bytes);
            for at in within.chain([of.size_bytes - 1]) {
                let place = of.place(at, m).ok_or(format!("no place for {at}"))?;
                // By its chunk, so that it is found again.
                let first = Place {
                    offset: place.offset / CHUNK_BYTES,
                    left: 0,
                    ..place
                };
                if place.offset % CHUNK_BYTES != at % CHUNK_BYTES {
                    return Err(format!("byte {at} of '{name}' lies at {place:?}"));
                }
                let before = known.insert((name, at / CHUNK_BYTES), first);
                if before.is_some_and(|before| before != first) {
                    return Err(format!("byte {at} of '{name}' moved to {place:?}"));
                }
                let key = (first.group, first.slot, first.offset);
                let other = taken.insert(key, at / CHUNK_BYTES);
                if other.is_some_and(|other| other != at / CHUNK_BYTES) {
                    return Err(format!("byte {at} of '{name}' has the place of another"));
                }
            }
        }
        let name = if chance(&mut random, 2) == 0 {
            "a"
        } else {
            "b"
        };
        let size = region(&map, name).size_bytes;
        let more = chance(&mut random, 2 * stretch_unit(m));
        let extend = Change::ExtendRegion {
            name: name.into(),
            size_bytes: size + more,
            bucket_bytes: REGION_BUCKET_BYTES_MIN << chance(&mut random, 3),
        };
        map.apply(None, &extend).expect("there are groups left");
    }
    Ok(())
}

#[test]
fn bytes_of_regions_stay_where_they_are_however_they_grow() {
    for seed in 0..12 {
        assert_eq!(bytes_stay(seed), Ok(()), "seed {seed}");
    }
    for (mutant, shows) in [
        (Mutant::GrowthGoesRoundAnew, "moved"),
        (Mutant::GrowthBeginsInFront, "moved"),
        (Mutant::StretchesOverlap, "the place of another"),
    ] {
        plant(Some(mutant));
        let found = (0..12).find_map(|seed| bytes_stay(seed).err());
        plant(None);
        let found = found.expect("the bug is found");
        assert!(found.contains(shows), "{mutant:?}: {found}");
    }
}

/// The offsets without parity.
fn bare(map: &ClusterMap, m: u8) -> Vec<(u64, u64)> {
    let loading = |(_, s): &(Range<u64>, crate::region::Stretch)| s.state == StretchState::Loading;
    let spans = region(map, "a").spans(m).filter(loading);
    spans.map(|(b, _)| (b.start, b.end)).collect()
}

/// Row H11: a load takes no parity of a byte that was acknowledged before and stays.
#[test]
fn h11_a_load_leaves_other_bytes_their_parity() {
    let unit = stretch_unit(2);
    let mut map = memory("2+1");
    make(&mut map, "a", unit);
    make(&mut map, "b", unit);
    write(&mut map, 5..6).expect("the first write");
    grow(&mut map, "a", 2 * unit);
    grow(&mut map, "a", 3 * unit - 1);
    // What a part of it overwrites is logged; what holds nothing yet is not.
    assert_eq!(load(&mut map, Some(4..unit + 9)), Outcome::Done);
    assert_eq!(bare(&map, 2), [(unit, 2 * unit)]);
    let groups: Vec<GroupId> = {
        let pool = map.pool_named("memory").expect("made");
        let all = pool.groups.iter().copied();
        all.filter(|id| pool.is_loading(*id)).collect()
    };
    assert_eq!(groups, [region(&map, "a").stretches[1].first]);
    // A load that was broken off goes on, and nobody else writes there.
    let again = load(&mut map, Some(unit + 9..unit + 10));
    assert_eq!(again, Outcome::Unchanged);
    let refused = write(&mut map, unit..unit + 1);
    assert!(matches!(refused, Err(Refusal::RegionIsLoaded { .. })));
    assert_eq!(write(&mut map, 0..unit), Ok(Outcome::Unchanged));
    assert_eq!(load(&mut map, None), Outcome::Done);
    assert_eq!(bare(&map, 2), []);
    assert_eq!(load(&mut map, None), Outcome::Unchanged);
    // Now it holds bytes, of which all must be overwritten.
    assert_eq!(load(&mut map, Some(unit + 1..2 * unit)), Outcome::Unchanged);
    assert_eq!(load(&mut map, Some(unit..2 * unit)), Outcome::Done);
    assert_eq!(bare(&map, 2), [(unit, 2 * unit)]);
    load(&mut map, None);
    // The last ends where the region ends.
    write(&mut map, 3 * unit - 2..3 * unit - 1).expect("the first write");
    let all = 2 * unit..3 * unit - 1;
    assert_eq!(load(&mut map, Some(all)), Outcome::Done);
    assert_eq!(bare(&map, 2), [(2 * unit, 3 * unit)]);
    let refused = map.apply(
        None,
        &Change::LoadRegion {
            name: "c".into(),
            load: None,
        },
    );
    assert!(matches!(refused, Err(Refusal::UnknownRegion { .. })));
}

/// Loads, writes and growth by chance: no byte that a plain write was acknowledged for lies bare, but while all of
/// its stretch is overwritten.
fn acknowledged_bytes_keep_parity(seed: u64) -> Result<(), String> {
    let unit = stretch_unit(2);
    let mut map = memory("2+1");
    make(&mut map, "a", unit);
    let (mut random, mut acknowledged) = (seed, Vec::<u64>::new());
    for _ in 0..60 {
        let size = region(&map, "a").size_bytes;
        // Often whole stretches.
        let mut edge = || match chance(&mut random, 3) {
            0 => chance(&mut random, size),
            _ => (chance(&mut random, size.div_ceil(unit) + 1) * unit).min(size),
        };
        let (one, other) = (edge(), edge());
        let range = one.min(other)..one.max(other);
        match chance(&mut random, 6) {
            0 => grow(
                &mut map,
                "a",
                (size + chance(&mut random, unit)).min(12 * unit),
            ),
            1..3 if !range.is_empty() => {
                let before = bare(&map, 2);
                load(&mut map, Some(range.clone()));
                let new = bare(&map, 2);
                let new = new.iter().filter(|bytes| !before.contains(bytes));
                let hit = |at: &&u64| new.clone().any(|(from, to)| (from..to).contains(at));
                if let Some(at) = acknowledged
                    .iter()
                    .find(|at| hit(at) && !range.contains(at))
                {
                    return Err(format!("byte {at} lies bare for a load of {range:?}"));
                }
            }
            3 => drop(load(&mut map, None)),
            _ => {
                let at = chance(&mut random, size);
                if write(&mut map, at..at + 1).is_ok() {
                    acknowledged.push(at);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn h11_no_order_of_loads_and_writes_costs_an_acknowledged_byte_its_parity() {
    for seed in 0..200 {
        assert_eq!(acknowledged_bytes_keep_parity(seed), Ok(()), "seed {seed}");
    }
    plant(Some(Mutant::LoadTakesAll));
    let found = (0..200).any(|seed| acknowledged_bytes_keep_parity(seed).is_err());
    plant(None);
    assert!(found, "a load that takes all parity is found");
}
