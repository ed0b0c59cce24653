//! Limits of volumes, as the map has them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::RegionId;
use crate::units::with_unit;

/// The least limit of bytes a second: the longest write, 32 MiB, takes nine minutes then.
pub const LIMIT_BYTES_MIN: u64 = 64 << 10;
/// The shortest and the longest burst, in milliseconds. What is shorter is lost in the waits of timers.
pub const BURST_MS: std::ops::RangeInclusive<u64> = 10..=60_000;

/// The requests and bytes that a volume may have, at each node whose door serves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeLimit {
    /// Most reads, writes, discards and zeroes a second, together; `None` for any number.
    pub iops: Option<u64>,
    /// Most bytes a second, read and written together; `None` for any number.
    pub bytes_per_second: Option<u64>,
    /// A volume at rest saves up what it may have in so many milliseconds.
    pub burst_ms: u64,
}

impl VolumeLimit {
    /// The reason why it is no limit, if it is none.
    pub(crate) fn wrong(&self) -> Option<String> {
        let few_bytes = |bytes: &u64| *bytes < LIMIT_BYTES_MIN;
        if self.iops.is_none() && self.bytes_per_second.is_none() {
            return Some("it limits neither requests nor bytes".into());
        }
        if self.iops == Some(0) {
            return Some("no request would ever be done: give at least 1 a second".into());
        }
        if self.bytes_per_second.as_ref().is_some_and(few_bytes) {
            let least = with_unit(LIMIT_BYTES_MIN);
            return Some(format!("{least} a second are the least"));
        }
        if !BURST_MS.contains(&self.burst_ms) {
            return Some("a burst is from 10ms to 60s".into());
        }
        None
    }
}

/// The limits of a map, by volume.
pub type VolumeLimits = BTreeMap<RegionId, VolumeLimit>;
