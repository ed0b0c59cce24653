//! The native protocol.
#![no_main]

#[path = "../shared/frames.rs"]
mod shared;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    shared::frames(data);
});
