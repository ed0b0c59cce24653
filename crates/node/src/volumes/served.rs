//! The volumes that this node's doors serve: an entry for each, with its figures and its limit.
//!
//! **Invariants.** An entry is made when a client of either door opens the volume, and dropped when the map does not have the volume any
//! more, so there are at most as many as the cluster has volumes. Both doors have the same entry of a volume, so that its limit holds for
//! them together. NBD's connections and gRPC's sessions hold their volume's entry: a request changes a few numbers of it, takes no lock
//! and allocates nothing. A read by gRPC, which has no session, looks it up.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use staves_model::{ClusterMap, RegionId, Revision, VolumeLimits};

use super::figures::{VolumeFacts, VolumeFigures};
use super::throttle::VolumeThrottle;

/// A volume that was opened here.
#[derive(Debug)]
pub(crate) struct ServedVolume {
    /// Its name, for good.
    pub(crate) name: String,
    pub(crate) figures: VolumeFigures,
    pub(crate) throttle: VolumeThrottle,
}

impl ServedVolume {
    fn new(name: &str) -> ServedVolume {
        ServedVolume {
            name: name.to_owned(),
            figures: VolumeFigures::default(),
            throttle: VolumeThrottle::default(),
        }
    }
}

/// The volumes that were opened at the doors, by their regions.
#[derive(Debug, Default)]
pub(crate) struct ServedVolumes {
    all: Mutex<OpenedVolumes>,
}

#[derive(Debug, Default)]
struct OpenedVolumes {
    by_region: BTreeMap<RegionId, Arc<ServedVolume>>,
    /// The newest map's limits, and its revision: who opens a volume may have an older map.
    limits: VolumeLimits,
    revision: Revision,
}

impl OpenedVolumes {
    /// Takes in the limits of a map, if none was newer.
    fn learn(&mut self, map: &ClusterMap) {
        if map.revision < self.revision {
            return;
        }
        self.revision = map.revision;
        if self.limits != map.volumes.limits {
            self.limits = map.volumes.limits.clone();
        }
    }
}

impl ServedVolumes {
    /// The entry of a volume that is opened. One that the map does not have gets an entry that nobody lists.
    pub(crate) fn open(&self, map: &ClusterMap, id: RegionId) -> Arc<ServedVolume> {
        let Some((_, region)) = map.region(id) else {
            return Arc::new(ServedVolume::new(""));
        };
        let mut all = self.all.lock();
        all.learn(map);
        let limit = all.limits.get(&id).copied();
        let volume = all
            .by_region
            .entry(id)
            .or_insert_with(|| Arc::new(ServedVolume::new(&region.name)));
        volume.throttle.set(limit);
        volume.clone()
    }

    /// Drops the entries of volumes that the map does not have, and goes by the limits of the others.
    pub(crate) fn follow(&self, map: &ClusterMap) {
        let mut all = self.all.lock();
        all.learn(map);
        all.by_region.retain(|id, _| map.region(*id).is_some());
        for (id, volume) in &all.by_region {
            volume.throttle.set(all.limits.get(id).copied());
        }
    }

    /// All entries, in the order of their regions.
    pub(crate) fn list(&self) -> Vec<Arc<ServedVolume>> {
        self.all.lock().by_region.values().cloned().collect()
    }

    /// The facts of all volumes that had a request.
    pub(crate) fn facts(&self) -> Vec<VolumeFacts> {
        let all = self.list();
        let facts = all.iter().map(|volume| volume.figures.facts(&volume.name));
        facts.filter(|facts| !facts.ops.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use staves_model::testing::{cluster, create_memory_pool};
    use staves_model::{Change, VolumeLimit};

    use super::super::figures::VolumeOp;
    use super::*;

    #[test]
    fn a_volume_has_one_entry_until_it_is_deleted() {
        let mut map = cluster(1);
        let mut make = |change: &Change| map.apply(None, change).map(drop).expect("it is made");
        make(&create_memory_pool("memory", "1+0", 1 << 29));
        for name in ["a", "b"] {
            make(&Change::CreateVolume {
                pool: "memory".into(),
                name: name.into(),
                size_bytes: 1 << 20,
            });
        }
        let id = |name: &str| map.region_named(name).map(|(_, region)| region.id);
        let (a, b) = (id("a").expect("made"), id("b").expect("made"));
        let served = ServedVolumes::default();
        for at in [a, b, a] {
            let volume = served.open(&map, at);
            let figures = volume.figures.of(VolumeOp::Read);
            figures.done(4096, Duration::from_millis(2), true);
        }
        let facts = served.facts();
        let counts = facts.iter().map(|v| (&v.volume[..], v.ops[0].requests));
        assert_eq!(counts.collect::<Vec<_>>(), [("a", 2), ("b", 1)]);
        let name = "a".to_owned();
        map.apply(None, &Change::DeleteRegion { name })
            .expect("free");
        served.follow(&map);
        let names: Vec<String> = served.facts().into_iter().map(|v| v.volume).collect();
        assert_eq!(names, ["b"]);
        // A connection that is about to end.
        served
            .open(&map, a)
            .figures
            .of(VolumeOp::Read)
            .done(1, Duration::from_millis(1), false);
        assert_eq!(served.list().len(), 1);
    }

    /// Regression: a connection that came just after a limit was set, by a map of before, had none.
    #[test]
    fn a_volume_that_is_opened_by_an_older_map_has_the_newest_limit() {
        let mut map = cluster(1);
        let mut make = |change: &Change| map.apply(None, change).map(drop).expect("it is made");
        make(&create_memory_pool("memory", "1+0", 1 << 29));
        make(&Change::CreateVolume {
            pool: "memory".into(),
            name: "a".into(),
            size_bytes: 1 << 20,
        });
        let before = map.clone();
        let volume = map.region_named("a").expect("made").1.id;
        let limit = VolumeLimit {
            iops: Some(40),
            bytes_per_second: None,
            burst_ms: 500,
        };
        map.apply(
            None,
            &Change::LimitVolume {
                name: "a".into(),
                limit: Some(limit),
            },
        )
        .expect("it is set");
        let served = ServedVolumes::default();
        served.follow(&map);
        let opened = served.open(&before, volume);
        assert_eq!(opened.throttle.limit(), Some(limit));
    }
}
