//! Redis's protocol.
#![no_main]

#[path = "../shared/resp.rs"]
mod shared;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    shared::resp(data);
});
