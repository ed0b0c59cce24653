//! The most of each thing that a map may have.

/// Most nodes that a cluster may know, up or down.
pub const NODES_MAX: usize = 1024;
/// Most pools.
pub const POOLS_MAX: usize = 64;
/// Most buckets of one pool.
pub const BUCKETS_MAX: u32 = 4096;
/// Most groups of all pools together.
pub const GROUPS_MAX: usize = 16_384;
/// Most groups of all regions together. Each is renewed, watched and led on its own, and whoever is given the map is given all of
/// them: four times as many were measured, and take too long to spread anew (docs/decisions/volumes.md).
pub const REGION_GROUPS_MAX: usize = 1024;
/// Longest name, zone or address, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
