//! Regions of memory pools: made, grown and deleted with their groups.

use std::collections::BTreeSet;

use super::pools::{check_name, unborn};
use super::{GROUPS_MAX, Outcome, REGION_GROUPS_MAX, Refusal};
use crate::ids::{GroupId, PoolId, RegionId};
use crate::map::{ClusterMap, PoolKind};
use crate::region::{Region, Stretch, stretch_unit};

impl ClusterMap {
    pub(super) fn create_region(
        &mut self,
        pool: &str,
        name: &str,
        size_bytes: u64,
    ) -> Result<Outcome, Refusal> {
        check_name("region name", name)?;
        if self.region_named(name).is_some() {
            return Err(Refusal::RegionExists { name: name.into() });
        }
        let (pool, m) = self.memory_pool(pool)?;
        let count = groups_for(name, size_bytes, m)?;
        let stretch = self.add_groups(pool, m, count)?;
        let region = Region {
            id: RegionId(stretch.first.0),
            name: name.into(),
            size_bytes,
            stretches: vec![stretch],
            loading: false,
        };
        let id = region.id;
        self.regions_of(pool).push(region);
        self.moved(Outcome::Region { id })
    }

    pub(super) fn grow_region(&mut self, name: &str, size_bytes: u64) -> Result<Outcome, Refusal> {
        let (pool, m, region) = self.region_to_change(name)?;
        let (now, capacity) = (region.size_bytes, region.capacity_bytes(m));
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
            let count = groups_for(name, size_bytes - capacity, m)?;
            stretch = Some(self.add_groups(pool, m, count)?);
        }
        let region = self.regions_of(pool).iter_mut().find(|r| r.name == name);
        let region = region.expect("looked up above");
        region.size_bytes = size_bytes;
        region.stretches.extend(stretch);
        self.moved(Outcome::Done)
    }

    pub(super) fn load_region(&mut self, name: &str, on: bool) -> Result<Outcome, Refusal> {
        let (pool, _, region) = self.region_to_change(name)?;
        if region.loading == on {
            return Ok(Outcome::Unchanged);
        }
        let region = self.regions_of(pool).iter_mut().find(|r| r.name == name);
        region.expect("looked up above").loading = on;
        self.moved(Outcome::Done)
    }

    pub(super) fn delete_region(&mut self, name: &str) -> Result<Outcome, Refusal> {
        let (pool, _, region) = self.region_to_change(name)?;
        let gone: BTreeSet<GroupId> = region.groups().collect();
        self.regions_of(pool).retain(|r| r.name != name);
        self.groups.retain(|id, _| !gone.contains(id));
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
        self.moved(Outcome::Done)
    }

    fn memory_pool(&self, name: &str) -> Result<(PoolId, u8), Refusal> {
        let pool = self
            .pool_named(name)
            .ok_or_else(|| Refusal::UnknownPool { name: name.into() })?;
        match pool.kind {
            PoolKind::Memory { .. } => Ok((pool.id, pool.scheme.m)),
            PoolKind::Cache | PoolKind::Files(_) => {
                Err(Refusal::NoMemoryPool { name: name.into() })
            }
        }
    }

    fn region_to_change(&self, name: &str) -> Result<(PoolId, u8, Region), Refusal> {
        let (pool, region) = self
            .region_named(name)
            .ok_or_else(|| Refusal::UnknownRegion { name: name.into() })?;
        Ok((pool.id, pool.scheme.m, region.clone()))
    }

    fn regions_of(&mut self, pool: PoolId) -> &mut Vec<Region> {
        match self.pools.get_mut(&pool).map(|pool| &mut pool.kind) {
            Some(PoolKind::Memory { regions }) => regions,
            _ => unreachable!("looked up as a memory pool"),
        }
    }

    /// Further groups at the end of a pool. They start at epoch 0, with no members.
    fn add_groups(&mut self, pool: PoolId, m: u8, count: u32) -> Result<Stretch, Refusal> {
        if self.groups.len() + count as usize > GROUPS_MAX {
            return Err(Refusal::TooMany {
                what: "groups of all pools".into(),
                max: GROUPS_MAX,
            });
        }
        let in_regions = self.pools.values().flat_map(|p| p.regions());
        let there: usize = in_regions.map(|region| region.groups().count()).sum();
        if there + count as usize > REGION_GROUPS_MAX {
            return Err(Refusal::TooMany {
                what: "groups of all regions".into(),
                max: REGION_GROUPS_MAX,
            });
        }
        let first = self.next_group;
        self.next_group = GroupId(first.0 + count);
        let revision = self.revision.next();
        let pool = self.pools.get_mut(&pool).expect("looked up before");
        let stretch = Stretch { first, count };
        for id in stretch.groups() {
            let group = unborn(id, pool.id, pool.groups.len() as u32, m, revision);
            pool.groups.push(id);
            self.groups.insert(id, group);
        }
        Ok(stretch)
    }
}

/// How many groups so many bytes take.
fn groups_for(name: &str, bytes: u64, m: u8) -> Result<u32, Refusal> {
    let max = REGION_GROUPS_MAX as u64 * stretch_unit(m);
    if bytes == 0 || bytes > max {
        return Err(Refusal::BadRegionSize {
            name: name.into(),
            bytes,
            max,
        });
    }
    Ok(bytes.div_ceil(stretch_unit(m)) as u32)
}
