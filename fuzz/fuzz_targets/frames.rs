//! The native protocol.
#![no_main]

#[path = "../shared/seeds.rs"]
mod seeds;
#[path = "../shared/frames.rs"]
mod shared;

/// Each message, as bytes in hex behind its name.
const MESSAGES: &str = include_str!("../../crates/wire/tests/it/golden.txt");

libfuzzer_sys::fuzz_target!(
    init: seeds::write("frames", messages()),
    |data: &[u8]| {
        shared::frames(data);
    }
);

fn messages() -> impl Iterator<Item = Vec<u8>> {
    let hex = MESSAGES.lines().filter_map(|line| line.split_once(' '));
    hex.map(|(_, hex)| {
        let byte = |two: &[u8]| u8::from_str_radix(str::from_utf8(two).ok()?, 16).ok();
        let bytes = hex.as_bytes().chunks(2).filter_map(byte);
        // Checksums are put right first.
        [1].into_iter().chain(bytes).collect()
    })
}
