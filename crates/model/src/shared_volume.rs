//! Volumes that several clients write at a time, as the map has them.
//!
//! All of their connections write in one session. It begins with the first door through which a client writes, and goes on while there is
//! a door whose node is up: doors come and go. What ends it for all is that it is taken away.

use crate::ids::{NodeId, RegionId};
use crate::map::ClusterMap;
use crate::region::{Region, VolumeWriter};

/// The client that a shared volume is said to be attached to.
pub const SHARED_CLIENTS: &str = "several clients";

impl ClusterMap {
    /// True if several clients may write to a volume at a time.
    pub fn is_shared(&self, id: RegionId) -> bool {
        self.volumes.shared.contains_key(&id)
    }

    /// The nodes through which clients write to a shared volume, and which are up.
    pub fn shared_doors(&self, id: RegionId) -> impl Iterator<Item = NodeId> + '_ {
        let shared = self.volumes.shared.get(&id);
        let doors = shared.into_iter().flat_map(|shared| &shared.doors);
        let up = doors.filter(|(node, door)| self.is_up(**node, door.incarnation));
        up.map(|(node, _)| *node)
    }

    /// The writer of a volume, if its door is up: of a shared one, if any of its doors is.
    pub fn live_writer<'a>(&self, region: &'a Region) -> Option<&'a VolumeWriter> {
        let writer = region.volume.as_ref()?.writer.as_ref()?;
        let is_up = match self.is_shared(region.id) {
            true => self.shared_doors(region.id).next().is_some(),
            false => self.is_up(writer.node, writer.incarnation),
        };
        is_up.then_some(writer)
    }
}
