//! Volumes as the doors serve them, NBD's and gRPC's: sessions, bytes through the node's router, places for clients, figures and limits.
//!
//! **Layout.** `attachment`: a session; `attachments`: all of this node's doors. `blocks`: bytes; `allocation`: which of them take up memory.
//! `memory`: of requests under way. `places`: the clients of a door. `error`: failures, without a door's words for them.
//! `served`: the volumes that were opened here, of both doors. `figures`: what is counted of each, and the facts that are reported of it;
//! `histogram`: durations in fixed buckets. `limit`: token buckets; `throttle`: requests that wait for them.

pub(crate) mod allocation;
pub(crate) mod attachment;
pub(crate) mod attachments;
pub(crate) mod blocks;
pub(crate) mod error;
mod figures;
pub mod histogram;
mod limit;
pub(crate) mod memory;
pub(crate) mod places;
mod served;
mod throttle;

use std::sync::Arc;
use std::time::Duration;

use staves_model::ClusterMap;

pub(crate) use self::figures::VolumeOpFigures;
pub use self::figures::{VolumeFacts, VolumeOp, VolumeOpFacts};
pub(crate) use self::served::{ServedVolume, ServedVolumes};
use crate::running::Running;

/// The pause before another look whether the node goes by the newest map.
const MAP_AGAIN: Duration = Duration::from_millis(2);

/// The map that this node goes by, once that is as new as the directory's: a volume that it is known to have can be opened.
pub(crate) async fn newest_map(running: &Running) -> Arc<ClusterMap> {
    let revision = running.directory.map().borrow().revision;
    loop {
        let map = running.host.routes().map.clone();
        if map.revision >= revision {
            return map;
        }
        tokio::time::sleep(MAP_AGAIN).await;
    }
}
