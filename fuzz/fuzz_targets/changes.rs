//! Changes of the cluster's map.
#![no_main]

#[path = "../shared/seeds.rs"]
mod seeds;
#[path = "../shared/map.rs"]
#[allow(dead_code)] // the rest is for others
mod shared;

libfuzzer_sys::fuzz_target!(
    init: seeds::write("changes", shared::seeds()),
    |data: &[u8]| {
        shared::changes(data);
    }
);
