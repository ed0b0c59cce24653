//! The memory service: flat bytes in the pages of a data bucket, and what is done to them.
//!
//! **Promises.** Each operation on one bucket is atomic and linearizable, as `staves-service` promises. A
//! write that finds no memory changes nothing anywhere. Bytes that were never written read as zeroes and
//! take up no memory. A lost bucket answers while it is rebuilt: a page that is asked for is rebuilt first
//! (row H6).
//!
//! **Path of the data.** A region's offset names a bucket and an offset in it (`staves_model::Region`).
//! A door submits an operation to the [`Bucket`]. `chunks` says where the chunk lies in the bucket's pages;
//! a write to a chunk that has no place yet takes the next one, in the same delta; `places` knows which that is.
//!
//! **Invariants.** A chunk of an image has at most one place, and a place at most one chunk, in any number of images; what several images have is
//! never written to. Places are taken in
//! order, so that data buckets of a group that hold much take up as many extents at parity as the
//! fullest of them.
//!
//! **Layout.** `chunks`: where chunks lie, drawn. `execute`: what operations do, and `edit`: the changes of pages that they become; `reads`: those that change nothing; `images`: snapshots and clones; `flush`: what waits for disks.
//! `memory`: the service.
//!
//! **Not here.** The bucket around the service (`staves-service`), which bucket a byte is in
//! (`staves-model`), regions and how they are cut into operations (`staves-client`).

mod chunks;
mod edit;
mod execute;
mod extents;
mod flush;
mod images;
mod memory;
mod places;
mod reads;
mod refusals;

pub use memory::{Memory, Stats};

/// A bucket of a memory pool, at a data or a parity bucket.
pub type Bucket = staves_service::Bucket<Memory>;
