//! NBD.
#![no_main]

#[path = "../shared/seeds.rs"]
mod seeds;
#[path = "../shared/nbd.rs"]
mod shared;

libfuzzer_sys::fuzz_target!(
    init: seeds::write("nbd", shared::seeds()),
    |data: &[u8]| {
        shared::nbd(data);
    }
);
