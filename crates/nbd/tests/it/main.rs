//! The codec byte by byte, beyond its limits, as the fuzzing target meets it, and as real clients do.

mod cuts;
mod fuzz;
mod handshake;
mod hex;
mod libnbd;
mod limits;
mod qemu;
mod replies;
mod server;
mod tls;
mod transmission;

#[path = "../../../../fuzz/shared/nbd.rs"]
mod shared;
