//! Volumes as the doors serve them, NBD's and gRPC's: sessions, bytes through the node's router, places for clients, figures and limits.
//!
//! **Layout.** `attachment`: a session; `renewal`: its writes, also past a copy of the volume; `shared`: the session that several clients have; `directory`: changes of the map; `attachments`: all of this node's doors. `blocks`: bytes; `flush`: until disks have them; `allocation`: which of them take up memory.
//! `images`: snapshots and clones on their way. `memory`: of requests under way. `newest`: the map to open a volume by. `places`: the clients of a door. `error`: failures, without a door's words for them.
//! `served`: the volumes that were opened here, of both doors. `figures`: what is counted of each, and the facts that are reported of it;
//! `histogram`: durations in fixed buckets. `limit`: token buckets; `throttle`: requests that wait for them.

pub(crate) mod allocation;
pub(crate) mod attachment;
pub(crate) mod attachments;
pub(crate) mod blocks;
mod directory;
pub(crate) mod error;
mod figures;
mod flush;
pub mod histogram;
pub(crate) mod images;
mod limit;
pub(crate) mod memory;
pub(crate) mod newest;
pub(crate) mod places;
mod renewal;
mod served;
mod shared;
mod throttle;

pub(crate) use self::figures::VolumeOpFigures;
pub use self::figures::{VolumeFacts, VolumeOp, VolumeOpFacts};
pub(crate) use self::served::{ServedVolume, ServedVolumes};
