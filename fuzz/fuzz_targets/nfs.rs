//! NFS.
#![no_main]

#[path = "../shared/seeds.rs"]
mod seeds;
#[path = "../shared/nfs.rs"]
mod shared;

libfuzzer_sys::fuzz_target!(
    init: seeds::write("nfs", shared::seeds()),
    |data: &[u8]| {
        shared::nfs(data);
    }
);
