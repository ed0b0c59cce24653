//! The fuzzing targets `frames`, `changes` and `map` on inputs from seeds: messages of every kind, changes of the map and
//! maps, of which some bytes were changed.

#[path = "../../../../fuzz/shared/map.rs"]
mod map;
#[path = "../../../../fuzz/shared/frames.rs"]
mod shared;

use staves_model::{GroupId, Pool, PoolKind};

use crate::golden::{all, encoded};
use crate::sample::Rng;

#[test]
fn twenty_thousand_inputs_break_nothing() {
    let messages: Vec<Vec<u8>> = all().iter().map(|(_, m)| encoded(m).to_vec()).collect();
    let (mut rng, mut decoded) = (Rng::new(1600), 0);
    for _ in 0..20_000 {
        let mut input = vec![rng.next() as u8];
        for _ in 0..rng.below(4) {
            if rng.below(4) == 0 {
                input.extend((0..rng.below(120)).map(|_| rng.next() as u8));
            } else {
                let start = input.len();
                input.extend_from_slice(&messages[rng.below(messages.len() as u64) as usize]);
                spoil(&mut input[start..], &mut rng);
            }
        }
        decoded += shared::frames(&input);
    }
    // Without these it would have looked at nothing but checksums that do not fit.
    assert!(decoded > 5_000, "only {decoded} messages were looked into");
}

#[test]
fn two_thousand_rows_of_changes_break_no_map() {
    let seeds = map::seeds();
    let (mut rng, mut made) = (Rng::new(1601), 0);
    for _ in 0..2000 {
        let mut input = Vec::new();
        for _ in 0..=rng.below(6) {
            let start = input.len();
            input.extend_from_slice(&seeds[rng.below(seeds.len() as u64) as usize]);
            if rng.below(2) == 0 {
                spoil(&mut input[start..], &mut rng);
            }
        }
        made += map::changes(&input);
    }
    assert!(made > 500, "only {made} changes were made");
}

#[test]
fn ten_thousand_maps_are_refused_or_can_be_gone_by() {
    let seed = map::sent();
    assert!(map::map(&seed));
    let (mut rng, mut read) = (Rng::new(1602), 0);
    for _ in 0..10_000 {
        let mut input = seed.clone();
        spoil(&mut input, &mut rng);
        read += usize::from(map::map(&input));
    }
    assert!(read > 500, "only {read} maps were gone by");
}

/// Regression: whoever was sent one of these ended by it when he looked for bytes.
#[test]
fn pools_that_nobody_can_look_into_are_refused() {
    let spoilt = |spoil: fn(&mut Pool)| {
        let mut map = map::start();
        map.pools.values_mut().for_each(spoil);
        postcard::to_allocvec(&map).expect("it encodes")
    };
    assert!(map::map(&spoilt(|_| {})));
    let without_buckets = |pool: &mut Pool| {
        if let PoolKind::Files(holdings) = &mut pool.kind {
            holdings.buckets.clear();
        }
    };
    let many_groups = |pool: &mut Pool| {
        if let PoolKind::Memory { regions } = &mut pool.kind {
            regions[0].stretches[0].count = u32::MAX;
        }
    };
    let last_groups = |pool: &mut Pool| {
        if let PoolKind::Memory { regions } = &mut pool.kind {
            regions[0].stretches[0].first = GroupId(u32::MAX);
        }
    };
    let no_data = |pool: &mut Pool| pool.scheme.m = 0;
    let wide = |pool: &mut Pool| pool.scheme.m = 255;
    for spoil in [without_buckets, many_groups, last_groups, no_data, wide] {
        assert!(!map::map(&spoilt(spoil)));
    }
}

fn spoil(bytes: &mut [u8], rng: &mut Rng) {
    for _ in 0..rng.below(4) {
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] = match rng.below(4) {
            0 => 0,
            1 => 0xFF,
            2 => bytes[at].wrapping_add(1),
            _ => rng.next() as u8,
        };
    }
}
