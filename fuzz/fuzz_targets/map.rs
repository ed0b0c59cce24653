//! The cluster's map, as somebody sends it.
#![no_main]

#[path = "../shared/seeds.rs"]
mod seeds;
#[path = "../shared/map.rs"]
#[allow(dead_code)] // the rest is for others
mod shared;

libfuzzer_sys::fuzz_target!(
    init: seeds::write("map", [shared::sent()]),
    |data: &[u8]| {
        shared::map(data);
    }
);
