//! Volumes by gRPC: the messages, the service, and a client library.
//!
//! The protocol is [`proto/staves/volumes/v1/volumes.proto`](../proto/staves/volumes/v1/volumes.proto), which any gRPC library can be given;
//! [`v1`] is what `tonic` makes of it, for the node's door and for [`VolumesClient`]. `build.rs` compiles it without protoc.
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

/// The .proto file's descriptors, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
/// Most bytes of one read.
pub const READ_BYTES_MAX: usize = 1 << 20;
/// Most bytes of one write.
pub const WRITE_BYTES_MAX: usize = 4 << 20;
/// The trailer of a failed call of which nothing is under way any more: it may be sent again, in the same session if it has one.
pub const SETTLED: &str = "staves-settled";
