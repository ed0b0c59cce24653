//! Volumes and logs by gRPC: the messages, the services, and a client library for volumes.
//!
//! The protocol is [`proto/staves/volumes/v1/volumes.proto`](../proto/staves/volumes/v1/volumes.proto), and that of logs
//! [`proto/staves/logs/v1/logs.proto`](../proto/staves/logs/v1/logs.proto), which any gRPC library can be given;
//! [`v1`] and [`logs_v1`] are what `tonic` makes of them, for the node's door and for [`VolumesClient`]. `build.rs` compiles them without protoc.
//!
//! **Layout.** `client`: reads through any node. `session`: writes, in a session of one node. `error`: what can be wrong.
//!
//! **Invariants.** A write is sent again only where the node says that nothing of it is under way any more, in the same session, by the same
//! connection. A session that is over stays over: its writes are never sent in another.

mod client;
mod error;
mod session;

pub use client::{ClientOptions, VolumesClient};
pub use error::VolumesError;
pub use session::{AttachOptions, AttachedVolume};

/// The messages and the service, as the .proto file says them.
pub mod v1 {
    #![allow(missing_docs, clippy::all)]
    tonic::include_proto!("staves.volumes.v1");
}

/// The messages and the service of logs, as their .proto file says them. For programs in Rust `staves-client` has logs by itself.
pub mod logs_v1 {
    #![allow(missing_docs, clippy::all)]
    tonic::include_proto!("staves.logs.v1");
}

/// The .proto files' descriptors, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
/// Most bytes of one read.
pub const READ_BYTES_MAX: usize = 1 << 20;
/// Most bytes of one write.
pub const WRITE_BYTES_MAX: usize = 4 << 20;
/// The trailer of a failed call of which nothing is under way any more: it may be sent again, in the same session if it has one.
pub const SETTLED: &str = "staves-settled";
/// The trailer of a failed call on a log with the tail that there is, in decimal digits.
pub const TAIL: &str = "staves-tail";
/// The same with the first position that is not trimmed.
pub const TRIM: &str = "staves-trim";
/// The same with the position of the cursor.
pub const POSITION: &str = "staves-position";
