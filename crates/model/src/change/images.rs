//! Images of volumes: copied, and deleted while others have what they have.

use std::collections::{BTreeMap, BTreeSet};

use super::bounds::NAME_BYTES_MAX;
use super::outcome::{Outcome, Refusal, bad_name, too_many};
use super::pools::check_name;
use crate::ids::{GroupId, PoolId, RegionId};
use crate::image::{
    IMAGES_MAX, IMAGES_OF_ALL_MAX, Image, ImageKind, ImageState, VolumeCopy, snapshot_name,
};
use crate::map::ClusterMap;
use crate::region::{Region, Volume};
use crate::writeback::Writeback;

impl ClusterMap {
    /// Begins to copy volumes, all at one instant: those that are written to get a new session, in which no write is done before every bucket
    /// has its copy.
    pub(super) fn copy_volumes(
        &mut self,
        copies: &[VolumeCopy],
        kind: ImageKind,
        at_ms: u64,
    ) -> Result<Outcome, Refusal> {
        if copies.is_empty() || kind == ImageKind::Original {
            return Err(bad_name("copy", "", "it copies nothing"));
        }
        if self.volumes.images.len() + copies.len() > IMAGES_OF_ALL_MAX {
            return Err(too_many("snapshots and clones", IMAGES_OF_ALL_MAX));
        }
        let first = RegionId(self.next_group.0);
        let mut names = BTreeSet::new();
        let mut origins = BTreeSet::new();
        let mut made = Vec::new();
        let mut counts = self.count_images();
        for (index, copy) in (0..).zip(copies) {
            let (pool, of) = self.origin(&copy.of)?;
            count_one(&mut counts, &of)?;
            let name = self.name_of_copy(copy, &of, kind)?;
            if self.region_named(&name).is_some() || !names.insert(name.clone()) {
                return Err(Refusal::RegionExists { name });
            }
            if !origins.insert(of.id) {
                return Err(bad_name("volume", &of.name, "it is copied twice at once"));
            }
            let session = match self.is_snapshot(of.id) {
                true => 0,
                false => of.volume.as_ref().map_or(0, |volume| volume.session) + 1,
            };
            let (id, together) = (RegionId(first.0 + index), first);
            let image = Image {
                number: id.0,
                of: of.id,
                kind,
                state: ImageState::Copying { session, together },
                at_ms,
            };
            let region = Region {
                id,
                name,
                volume: Some(Volume::default()),
                ..of.clone()
            };
            made.push((pool, of, region, image));
        }
        self.next_group = GroupId(first.0 + made.len() as u32);
        for (pool, of, region, image) in made {
            if let ImageState::Copying { session, .. } = image.state
                && session > 0
                && let Some(volume) = self.region_mut(pool, &of.name).volume.as_mut()
            {
                volume.session = session;
            }
            self.add_image(pool, &of, region, image);
        }
        self.moved(Outcome::Region { id: first })
    }

    fn add_image(&mut self, pool: PoolId, of: &Region, region: Region, image: Image) {
        self.volumes.images.insert(region.id, image);
        // It has the origin's groups, whose writes are answered one way.
        if self.volumes.writeback.contains_key(&of.id) {
            let fresh = Writeback::default();
            self.volumes.writeback.insert(region.id, fresh);
        }
        self.regions_of(pool).push(region);
    }

    fn name_of_copy(
        &self,
        copy: &VolumeCopy,
        of: &Region,
        kind: ImageKind,
    ) -> Result<String, Refusal> {
        check_name("name of a copy", &copy.name)?;
        let name = match kind {
            ImageKind::Snapshot => snapshot_name(&copy.of, &copy.name),
            _ => copy.name.clone(),
        };
        if name.len() > NAME_BYTES_MAX {
            return Err(bad_name("name of a copy", &name, "it is too long"));
        }
        match kind == ImageKind::Snapshot && self.is_snapshot(of.id) {
            true => Err(Refusal::IsSnapshot {
                name: of.name.clone(),
            }),
            false => Ok(name),
        }
    }

    pub(super) fn is_snapshot(&self, id: RegionId) -> bool {
        self.image(id)
            .is_some_and(|i| i.kind == ImageKind::Snapshot)
    }

    /// A volume that may be copied.
    fn origin(&self, name: &str) -> Result<(PoolId, Region), Refusal> {
        let (pool, region) = self
            .region_named(name)
            .ok_or_else(|| Refusal::UnknownRegion { name: name.into() })?;
        if region.volume.is_none() {
            return Err(Refusal::NotAVolume { name: name.into() });
        }
        self.check_at_rest(region)?;
        Ok((pool.id, region.clone()))
    }

    /// The images that share buckets, by their first group: whatever is copied, and grows, keeps that.
    fn count_images(&self) -> BTreeMap<Option<GroupId>, usize> {
        let mut counts = BTreeMap::new();
        let regions = self.regions().map(|(_, region)| region);
        for region in regions.filter(|region| self.image(region.id).is_some()) {
            *counts.entry(region.groups().next()).or_default() += 1;
        }
        counts
    }

    /// Refuses changes of a volume that is being deleted.
    pub(super) fn check_there(&self, region: &Region) -> Result<(), Refusal> {
        let name = region.name.clone();
        match self.image(region.id).map(|image| image.state) {
            Some(ImageState::Deleting) => Err(Refusal::VolumeIsDeleted { name }),
            _ => Ok(()),
        }
    }

    /// Refuses what may not be done while a volume is copied, or deleted.
    pub(super) fn check_at_rest(&self, region: &Region) -> Result<(), Refusal> {
        self.check_there(region)?;
        let name = region.name.clone();
        let mut images = self.volumes.images.iter();
        let copies = images
            .any(|(id, image)| image.is_copying() && (image.of == region.id || *id == region.id));
        match copies {
            true => Err(Refusal::VolumeIsCopied { name }),
            false => Ok(()),
        }
    }

    /// Ends copies that were begun together: every bucket has them, or they are given up.
    pub(super) fn end_copies(
        &mut self,
        together: RegionId,
        are_good: bool,
    ) -> Result<Outcome, Refusal> {
        let images = self.volumes.images.values_mut();
        let copying = images.filter(|image| {
            matches!(image.state, ImageState::Copying { together: of, .. } if of == together)
        });
        let mut count = 0;
        for image in copying {
            image.state = match are_good {
                true => ImageState::Ready,
                false => ImageState::Deleting,
            };
            count += 1;
        }
        match count {
            0 => Ok(Outcome::Unchanged),
            _ => self.moved(Outcome::Done),
        }
    }

    /// Lets the buckets of a region give back what no other has, if any shares them: false if none does.
    pub(super) fn begin_to_delete(&mut self, region: &Region) -> Result<bool, Refusal> {
        self.check_at_rest(region)?;
        if self.groups_alone(region).len() == region.groups().count() {
            return Ok(false);
        }
        let id = region.id;
        let image = self.volumes.images.entry(id).or_insert(Image {
            number: 0,
            of: id,
            kind: ImageKind::Original,
            state: ImageState::Ready,
            at_ms: 0,
        });
        image.state = ImageState::Deleting;
        Ok(true)
    }

    /// Strikes an image of which the buckets have nothing any more.
    pub(super) fn forget_image(&mut self, id: RegionId) -> Result<Outcome, Refusal> {
        match self.image(id).map(|image| image.state) {
            Some(ImageState::Deleting) => {}
            _ => return Ok(Outcome::Unchanged),
        }
        let Some((pool, region)) = self.region(id) else {
            return Ok(Outcome::Unchanged);
        };
        let (pool, name) = (pool.id, region.name.clone());
        self.strike_region(pool, &name);
        self.moved(Outcome::Done)
    }

    /// The groups of a region that no other has.
    pub(super) fn groups_alone(&self, region: &Region) -> BTreeSet<GroupId> {
        let others = self.regions().map(|(_, other)| other);
        let others = others.filter(|other| other.id != region.id);
        let theirs: BTreeSet<GroupId> = others.flat_map(Region::groups).collect();
        region.groups().filter(|g| !theirs.contains(g)).collect()
    }
}

/// Counts a copy of a volume, and refuses one too many.
fn count_one(counts: &mut BTreeMap<Option<GroupId>, usize>, of: &Region) -> Result<(), Refusal> {
    let count = counts.entry(of.groups().next()).or_default();
    *count += 1;
    match *count > IMAGES_MAX {
        true => Err(too_many("snapshots and clones of a volume", IMAGES_MAX)),
        false => Ok(()),
    }
}
