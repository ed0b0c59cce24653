//! The sizes of regions and of their data buckets.

use std::collections::BTreeSet;

use super::Change;
use super::bounds::{GROUPS_MAX, REGION_GROUPS_MAX};
use super::outcome::{Outcome, Refusal, too_many};
use crate::ids::GroupId;
use crate::map::{ClusterMap, Medium};
use crate::region::{REGION_BUCKET_BYTES_MIN, Volume, choose_bucket_bytes, is_bucket_bytes};
use crate::writeback::Writeback;

impl ClusterMap {
    /// A region or a volume. Changes that say nothing of data buckets are of a time when all held the least.
    pub(super) fn make_region(&mut self, change: &Change) -> Result<Outcome, Refusal> {
        const LEAST: u64 = REGION_BUCKET_BYTES_MIN;
        let volume = Some(Volume::default());
        match change {
            Change::CreateRegion {
                pool,
                name,
                size_bytes,
            } => self.create_region(pool, name, (*size_bytes, LEAST), None),
            Change::CreateVolume {
                pool,
                name,
                size_bytes,
            } => self.create_region(pool, name, (*size_bytes, LEAST), volume),
            Change::MakeRegion {
                pool,
                name,
                size_bytes,
                bucket_bytes,
                is_volume,
            } => {
                let bytes = (*size_bytes, *bucket_bytes);
                self.create_region(pool, name, bytes, volume.filter(|_| *is_volume))
            }
            Change::MakeSharedVolume {
                pool,
                name,
                size_bytes,
                bucket_bytes,
            } => self.make_shared_volume(pool, name, (*size_bytes, *bucket_bytes)),
            Change::MakeWriteback {
                pool,
                name,
                size_bytes,
                bucket_bytes,
            } => {
                let known = self.known_pool(pool)?;
                if known.medium != Medium::Disk {
                    return Err(Refusal::NotOnDisk { name: pool.clone() });
                }
                let made = self.create_region(pool, name, (*size_bytes, *bucket_bytes), volume)?;
                if let Outcome::Region { id } = made {
                    self.volumes.writeback.insert(id, Writeback::default());
                }
                Ok(made)
            }
            _ => unreachable!("called for these alone"),
        }
    }

    pub(super) fn extend_region(&mut self, change: &Change) -> Result<Outcome, Refusal> {
        match change {
            Change::GrowRegion { name, size_bytes } => {
                self.grow_region(name, (*size_bytes, REGION_BUCKET_BYTES_MIN))
            }
            Change::ExtendRegion {
                name,
                size_bytes,
                bucket_bytes,
            } => self.grow_region(name, (*size_bytes, *bucket_bytes)),
            _ => unreachable!("called for these alone"),
        }
    }

    /// Groups that all regions together may still get.
    ///
    /// # Errors
    /// None.
    pub(super) fn groups_left_for_regions(&self) -> Result<u64, Refusal> {
        let of_all = GROUPS_MAX.saturating_sub(self.groups.len());
        let in_regions = self.pools.values().flat_map(|p| p.regions());
        // Images have groups that others have.
        let there: BTreeSet<GroupId> = in_regions.flat_map(|region| region.groups()).collect();
        let of_regions = REGION_GROUPS_MAX.saturating_sub(there.len());
        match (of_all, of_regions) {
            (0, _) => Err(too_many("groups of all pools", GROUPS_MAX)),
            (_, 0) => Err(too_many("groups of all regions", REGION_GROUPS_MAX)),
            _ => Ok(of_all.min(of_regions) as u64),
        }
    }

    /// Chooses the bytes of a data bucket for a new region of a pool ([`choose_bucket_bytes`]).
    pub fn bucket_bytes_to_create(&self, pool: &str, size_bytes: u64) -> u64 {
        let m = self.pool_named(pool).map_or(1, |pool| pool.scheme.m);
        let left = self.groups_left_for_regions().unwrap_or(0);
        choose_bucket_bytes(size_bytes, size_bytes, m, left)
    }

    /// The same for the groups that a region needs to end at `size_bytes`.
    pub fn bucket_bytes_to_grow(&self, region: &str, size_bytes: u64) -> u64 {
        let Some((pool, region)) = self.region_named(region) else {
            return REGION_BUCKET_BYTES_MIN;
        };
        let m = pool.scheme.m;
        let new_bytes = size_bytes.saturating_sub(region.capacity_bytes(m));
        let left = self.groups_left_for_regions().unwrap_or(0);
        choose_bucket_bytes(size_bytes, new_bytes, m, left)
    }
}

pub(super) fn check_bucket_bytes(name: &str, bytes: u64) -> Result<(), Refusal> {
    match is_bucket_bytes(bytes) {
        true => Ok(()),
        false => Err(Refusal::BadBucketBytes {
            name: name.into(),
            bytes,
        }),
    }
}
