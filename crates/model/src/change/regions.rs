//! Regions of memory pools: made, grown and deleted with their groups.

use std::collections::BTreeSet;
use std::ops::Range;

use super::outcome::{Outcome, Refusal, check_text};
use super::pools::{check_name, unborn};
use super::region_sizes::check_bucket_bytes;
use crate::ids::{GroupId, PoolId, RegionId};
use crate::map::{ClusterMap, PoolKind};
use crate::region::{Region, Stretch, StretchState, Volume, VolumeWriter};
use crate::volume_limit::VolumeLimit;

impl ClusterMap {
    pub(super) fn create_region(
        &mut self,
        pool: &str,
        name: &str,
        (size_bytes, bucket_bytes): (u64, u64),
        volume: Option<Volume>,
    ) -> Result<Outcome, Refusal> {
        let what = if volume.is_some() {
            "volume name"
        } else {
            "region name"
        };
        check_name(what, name)?;
        if self.region_named(name).is_some() {
            return Err(Refusal::RegionExists { name: name.into() });
        }
        check_bucket_bytes(name, bucket_bytes)?;
        let (pool, m) = self.memory_pool(pool)?;
        let max = self.groups_left_for_regions()? * u64::from(m) * bucket_bytes;
        if size_bytes == 0 || size_bytes > max {
            return Err(Refusal::BadRegionSize {
                name: name.into(),
                bytes: size_bytes,
                max,
            });
        }
        let stretch = self.add_groups(pool, m, (size_bytes, bucket_bytes));
        let region = Region {
            id: RegionId(stretch.first.0),
            name: name.into(),
            size_bytes,
            stretches: vec![stretch],
            volume,
        };
        let id = region.id;
        self.regions_of(pool).push(region);
        self.moved(Outcome::Region { id })
    }

    pub(super) fn grow_region(
        &mut self,
        name: &str,
        (size_bytes, bucket_bytes): (u64, u64),
    ) -> Result<Outcome, Refusal> {
        let (pool, m, region) = self.region_to_change(name)?;
        check_bucket_bytes(name, bucket_bytes)?;
        let (now, capacity) = (region.size_bytes, region.capacity_bytes(m));
        self.check_there(&region)?;
        if self.is_snapshot(region.id) {
            return Err(Refusal::IsSnapshot { name: name.into() });
        }
        if size_bytes < now {
            return Err(Refusal::RegionShrinks {
                name: name.into(),
                from: now,
                to: size_bytes,
            });
        }
        if size_bytes == now {
            return Ok(Outcome::Unchanged);
        }
        let mut stretch = None;
        if size_bytes > capacity {
            let left = self.groups_left_for_regions().unwrap_or(0);
            let max = capacity + left * u64::from(m) * bucket_bytes;
            if size_bytes > max {
                return Err(Refusal::RegionTooLarge {
                    name: name.into(),
                    from: now,
                    to: size_bytes,
                    max,
                });
            }
            stretch = Some(self.add_groups(pool, m, (size_bytes - capacity, bucket_bytes)));
        }
        let region = self.region_mut(pool, name);
        region.size_bytes = size_bytes;
        region.stretches.extend(stretch);
        self.moved(Outcome::Done)
    }

    pub(super) fn load_region(
        &mut self,
        name: &str,
        load: Option<Range<u64>>,
    ) -> Result<Outcome, Refusal> {
        let (pool, m, region) = self.region_to_change(name)?;
        let copies = self.copies_min(pool);
        match load {
            Some(_) if region.volume.is_some() => Err(Refusal::IsVolume { name: name.into() }),
            Some(_) if copies > 1 => Err(Refusal::LoadHasNoCopies {
                name: name.into(),
                copies,
            }),
            Some(load) => {
                let loaded = region.loadable(m, load).map(|(_, stretch)| stretch.first);
                let loaded: BTreeSet<GroupId> = loaded.collect();
                self.set_stretches(name, StretchState::Loading, |s| loaded.contains(&s.first))
            }
            None => self.set_stretches(name, StretchState::Written, |s| {
                s.state == StretchState::Loading
            }),
        }
    }

    pub(super) fn write_region(
        &mut self,
        region: RegionId,
        offsets: &Range<u64>,
    ) -> Result<Outcome, Refusal> {
        let (_, m, region) = self.region_of_id(region)?;
        let name = region.name.clone();
        let spans = region.spans(m);
        let meets = |bytes: &Range<u64>| bytes.start < offsets.end && offsets.start < bytes.end;
        let met: Vec<Stretch> = spans.filter(|(b, _)| meets(b)).map(|(_, s)| s).collect();
        if met.iter().any(|s| s.state == StretchState::Loading) {
            return Err(Refusal::RegionIsLoaded { name });
        }
        self.set_stretches(&name, StretchState::Written, |s| met.contains(s))
    }

    /// Gives the session after `after` to a writer, if no other that may live has it. A shared volume is given to all.
    pub(super) fn attach_volume(
        &mut self,
        id: RegionId,
        after: u64,
        writer: &VolumeWriter,
    ) -> Result<Outcome, Refusal> {
        let (pool, _, region) = self.volume_to_change(id)?;
        self.check_at_rest(&region)?;
        if self.is_snapshot(id) {
            return Err(Refusal::IsSnapshot { name: region.name });
        }
        if self.is_shared(id) {
            return self.join_shared(pool, &region, writer);
        }
        let volume = region.volume.clone().unwrap_or_default();
        let is_mine = volume.writer.as_ref() == Some(writer);
        if is_mine && volume.session == after + 1 {
            return Ok(Outcome::Unchanged);
        }
        if let Some(other) = self.live_writer(&region).filter(|_| !is_mine) {
            return Err(attached(&region.name, other));
        }
        if volume.session != after {
            return Err(Refusal::SessionMovedOn {
                name: region.name,
                expected: after,
                found: volume.session,
            });
        }
        if !self.is_up(writer.node, writer.incarnation) {
            return Err(Refusal::UnknownNode { node: writer.node });
        }
        check_text("client address", &writer.client)?;
        self.region_mut(pool, &region.name).volume = Some(Volume {
            session: after + 1,
            writer: Some(writer.clone()),
        });
        self.moved(Outcome::Done)
    }

    /// Ends a session, if it is the present one.
    pub(super) fn detach_volume(&mut self, id: RegionId, session: u64) -> Result<Outcome, Refusal> {
        let (pool, _, region) = self.volume_to_change(id)?;
        let volume = self.region_mut(pool, &region.name).volume.as_mut();
        let ended = volume
            .filter(|volume| volume.session == session)
            .and_then(|volume| volume.writer.take());
        match ended {
            Some(_) => {
                self.clear_doors(id);
                self.moved(Outcome::Done)
            }
            None => Ok(Outcome::Unchanged),
        }
    }

    /// Sets a volume's limit, or takes it away.
    pub(super) fn limit_volume(
        &mut self,
        name: &str,
        limit: Option<VolumeLimit>,
    ) -> Result<Outcome, Refusal> {
        let (_, _, region) = self.region_to_change(name)?;
        self.check_there(&region)?;
        let name = region.name;
        if region.volume.is_none() {
            return Err(Refusal::NotAVolume { name });
        }
        if let Some(reason) = limit.and_then(|limit| limit.wrong()) {
            return Err(Refusal::BadLimit { name, reason });
        }
        let before = match limit {
            Some(limit) => self.volumes.limits.insert(region.id, limit),
            None => self.volumes.limits.remove(&region.id),
        };
        match before == limit {
            true => Ok(Outcome::Unchanged),
            false => self.moved(Outcome::Done),
        }
    }

    /// Forgets what the tables have of pools, volumes and groups that are gone.
    pub(super) fn drop_tables(&mut self) {
        let mut tables = std::mem::take(&mut self.volumes);
        tables.limits.retain(|id, _| self.region(*id).is_some());
        tables.images.retain(|id, _| self.region(*id).is_some());
        tables
            .copies_min
            .retain(|id, _| self.pools.contains_key(id));
        tables.shared.retain(|id, _| self.region(*id).is_some());
        tables.writeback.retain(|id, _| self.region(*id).is_some());
        tables.broken.retain(|id, _| self.groups.contains_key(id));
        self.volumes = tables;
    }

    pub(super) fn volume_to_change(&self, id: RegionId) -> Result<(PoolId, u8, Region), Refusal> {
        let known = self.region_of_id(id)?;
        match known.2.volume {
            Some(_) => Ok(known),
            None => Err(Refusal::NotAVolume { name: known.2.name }),
        }
    }

    /// Sets the state of some stretches of a region. That is of their groups: images that have them, too, say the same.
    fn set_stretches(
        &mut self,
        name: &str,
        state: StretchState,
        which: impl Fn(&Stretch) -> bool,
    ) -> Result<Outcome, Refusal> {
        let (pool, _, region) = self.region_to_change(name)?;
        let set = region.stretches.iter().filter(|s| which(s));
        let set: BTreeSet<GroupId> = set.map(|stretch| stretch.first).collect();
        let regions = self.regions_of(pool).iter_mut();
        let stretches = regions.flat_map(|region| &mut region.stretches);
        let mut is_other = false;
        for stretch in stretches.filter(|s| set.contains(&s.first)) {
            is_other |= stretch.state != state;
            stretch.state = state;
        }
        match is_other {
            true => self.moved(Outcome::Done),
            false => Ok(Outcome::Unchanged),
        }
    }

    pub(super) fn delete_region(&mut self, name: &str) -> Result<Outcome, Refusal> {
        let (pool, _, region) = self.region_to_change(name)?;
        if let Some(writer) = self.live_writer(&region) {
            return Err(attached(&region.name, writer));
        }
        if self.begin_to_delete(&region)? {
            return self.moved(Outcome::Done);
        }
        self.strike_region(pool, name);
        self.moved(Outcome::Done)
    }

    /// Takes a region out of the map, with those of its groups that no other has.
    pub(super) fn strike_region(&mut self, pool: PoolId, name: &str) {
        let Some((_, region)) = self.region_named(name) else {
            return;
        };
        let gone = self.groups_alone(region);
        self.regions_of(pool).retain(|r| r.name != name);
        self.groups.retain(|id, _| !gone.contains(id));
        self.drop_tables();
        let revision = self.revision.next();
        let pool = self.pools.get_mut(&pool).expect("looked up above");
        pool.groups.retain(|id| !gone.contains(id));
        for (bucket, id) in pool.groups.iter().enumerate() {
            let group = self.groups.get_mut(id).expect("a pool's groups are there");
            if group.bucket != bucket as u32 {
                group.bucket = bucket as u32;
                group.revision = revision;
            }
        }
    }

    fn memory_pool(&self, name: &str) -> Result<(PoolId, u8), Refusal> {
        let pool = self.known_pool(name)?;
        match pool.kind {
            PoolKind::Memory { .. } => Ok((pool.id, pool.scheme.m)),
            _ => Err(Refusal::NoMemoryPool { name: name.into() }),
        }
    }

    fn region_to_change(&self, name: &str) -> Result<(PoolId, u8, Region), Refusal> {
        let (pool, region) = self
            .region_named(name)
            .ok_or_else(|| Refusal::UnknownRegion { name: name.into() })?;
        Ok((pool.id, pool.scheme.m, region.clone()))
    }

    fn region_of_id(&self, id: RegionId) -> Result<(PoolId, u8, Region), Refusal> {
        let (pool, region) = self.region(id).ok_or_else(|| Refusal::UnknownRegion {
            name: id.to_string(),
        })?;
        Ok((pool.id, pool.scheme.m, region.clone()))
    }

    pub(super) fn regions_of(&mut self, pool: PoolId) -> &mut Vec<Region> {
        match self.pools.get_mut(&pool).map(|pool| &mut pool.kind) {
            Some(PoolKind::Memory { regions }) => regions,
            _ => unreachable!("looked up as a memory pool"),
        }
    }

    pub(crate) fn region_mut(&mut self, pool: PoolId, name: &str) -> &mut Region {
        let mut regions = self.regions_of(pool).iter_mut();
        regions.find(|r| r.name == name).expect("looked up before")
    }

    /// Further groups at the end of a pool, for so many bytes in data buckets of so many. They start at epoch 0, with no members.
    fn add_groups(&mut self, pool: PoolId, m: u8, (bytes, bucket_bytes): (u64, u64)) -> Stretch {
        let count = bytes.div_ceil(u64::from(m) * bucket_bytes) as u32;
        let first = self.next_group;
        self.next_group = GroupId(first.0 + count);
        let revision = self.revision.next();
        let pool = self.pools.get_mut(&pool).expect("looked up before");
        let state = StretchState::Empty;
        let stretch = Stretch {
            first,
            count,
            state,
            bucket_bytes,
        };
        for id in stretch.groups() {
            let group = unborn(id, pool.id, pool.groups.len() as u32, m, revision);
            pool.groups.push(id);
            self.groups.insert(id, group);
        }
        stretch
    }
}

fn attached(name: &str, writer: &VolumeWriter) -> Refusal {
    Refusal::VolumeAttached {
        name: name.into(),
        client: writer.client.clone(),
        node: writer.node,
    }
}
