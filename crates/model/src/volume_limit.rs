//! Limits of volumes, as the map has them.
//!
//! They lie at the map's end, by region, and not in the regions: postcard names no fields, and what was stored or sent before there were
//! limits ends where they begin. Such a map has none, and a map without any has the bytes that it had before.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
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

/// Reads the limits at the end of a map; none where it ends before them.
pub(crate) fn at_end<'de, D: Deserializer<'de>>(map: D) -> Result<VolumeLimits, D::Error> {
    let mut has_limits = false;
    match map.deserialize_map(LimitsVisitor(&mut has_limits)) {
        Err(_) if !has_limits => Ok(VolumeLimits::new()),
        read => read,
    }
}

/// Reads limits, and notes that there are some.
struct LimitsVisitor<'a>(&'a mut bool);

impl<'de> Visitor<'de> for LimitsVisitor<'_> {
    type Value = VolumeLimits;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("limits by volume")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VolumeLimits, A::Error> {
        *self.0 = true;
        let mut limits = VolumeLimits::new();
        while let Some((id, limit)) = map.next_entry()? {
            limits.insert(id, limit);
        }
        Ok(limits)
    }
}
