//! A node's memory of blocks, as mounts map it.
#![no_main]

#[path = "../shared/seeds.rs"]
mod seeds;
#[path = "../shared/blocks.rs"]
#[allow(dead_code)] // the rest is for others
mod shared;

libfuzzer_sys::fuzz_target!(
    init: seeds::write("blocks", [vec![0; 7], vec![9; 14]]),
    |data: &[u8]| {
        shared::blocks(data);
    }
);
