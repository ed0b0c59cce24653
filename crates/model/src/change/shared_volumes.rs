//! Shared volumes: doors that join their session, and leave it.

use super::Change;
use super::outcome::{Outcome, Refusal};
use crate::ids::{NodeId, PoolId, RegionId};
use crate::map::ClusterMap;
use crate::mutant::{Mutant, planted};
use crate::region::{Region, Volume, VolumeWriter};
use crate::shared_volume::SHARED_CLIENTS;
use crate::volume_entries::{SharedDoor, SharedVolume};

impl ClusterMap {
    /// Makes a volume that several clients write at a time.
    pub(super) fn make_shared_volume(
        &mut self,
        pool: &str,
        name: &str,
        bytes: (u64, u64),
    ) -> Result<Outcome, Refusal> {
        let made = self.create_region(pool, name, bytes, Some(Volume::default()))?;
        if let Outcome::Region { id } = made {
            self.volumes.shared.insert(id, SharedVolume::default());
        }
        Ok(made)
    }

    /// Lets the clients of a door write in the session that others write in; in a new one if nobody does whose door is up.
    pub(super) fn join_shared(
        &mut self,
        pool: PoolId,
        region: &Region,
        door: &VolumeWriter,
    ) -> Result<Outcome, Refusal> {
        if !self.is_up(door.node, door.incarnation) {
            return Err(Refusal::UnknownNode { node: door.node });
        }
        let volume = region.volume.clone().unwrap_or_default();
        let goes_on = self.live_writer(region).is_some();
        let session = volume.session + u64::from(!goes_on);
        let joined = self.revision.next().0;
        let mut shared = self.volumes.shared.remove(&region.id).unwrap_or_default();
        let up = |node: &NodeId, door: &mut SharedDoor| self.is_up(*node, door.incarnation);
        shared.doors.retain(up);
        if !goes_on {
            shared.began = session;
            shared.doors.clear();
        }
        let incarnation = door.incarnation;
        let entry = SharedDoor {
            incarnation,
            joined,
        };
        shared.doors.insert(door.node, entry);
        self.volumes.shared.insert(region.id, shared);
        self.region_mut(pool, &region.name).volume = Some(Volume {
            session,
            writer: Some(VolumeWriter {
                client: SHARED_CLIENTS.into(),
                ..door.clone()
            }),
        });
        self.moved(Outcome::Done)
    }

    /// The last client of a door has gone, unless one has come since. The session ends with the last door.
    pub(super) fn leave_volume(&mut self, change: &Change) -> Result<Outcome, Refusal> {
        let &Change::LeaveVolume {
            volume: id,
            node,
            incarnation,
            joined,
        } = change
        else {
            return Ok(Outcome::Unchanged);
        };
        let (pool, _, region) = self.volume_to_change(id)?;
        let Some(mut shared) = self.volumes.shared.get(&id).cloned() else {
            return Ok(Outcome::Unchanged);
        };
        let left = SharedDoor {
            incarnation,
            joined,
        };
        if shared.doors.get(&node) != Some(&left) {
            return Ok(Outcome::Unchanged);
        }
        shared.doors.remove(&node);
        if planted(Mutant::DoorLeavesForAll) {
            shared.doors.clear();
        }
        // Nor does one that is taken for dead go on, should it come back, in what may have ended meanwhile.
        let up = |node: &NodeId, door: &mut SharedDoor| self.is_up(*node, door.incarnation);
        shared.doors.retain(up);
        self.volumes.shared.insert(id, shared);
        let other = self.shared_doors(id).next();
        let other = other.and_then(|node| self.nodes.get(&node));
        let writer = other.map(|other| VolumeWriter {
            node: other.id,
            incarnation: other.incarnation,
            client: SHARED_CLIENTS.into(),
        });
        if let Some(volume) = self.region_mut(pool, &region.name).volume.as_mut() {
            volume.writer = writer;
        }
        self.moved(Outcome::Done)
    }

    /// The session of a volume was ended: nobody goes on in it.
    pub(super) fn clear_doors(&mut self, id: RegionId) {
        if let Some(shared) = self.volumes.shared.get_mut(&id) {
            shared.doors.clear();
        }
    }
}
