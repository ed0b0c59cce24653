//! Loads: is there memory for a region's new bytes and for its parity?

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::memory::FreeMemory;
use crate::ids::{GroupId, MemberSlot, NodeId};
use crate::map::{ClusterMap, Group, Member, NodeState, Pool};
use crate::region::{CHUNK_BYTES, Region};
use crate::scheme::{EXTENT_BYTES, Scheme};
use crate::units::bytes;

/// A region, with the memory that its members report.
pub struct RegionUsage<'a> {
    map: &'a ClusterMap,
    pool: &'a Pool,
    region: &'a Region,
    /// Extents that each member has reserved, of those that reported.
    extents: BTreeMap<(GroupId, MemberSlot), u32>,
}

/// The bucket that has no room for a load, and the bytes that it needs and has.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[allow(missing_docs)] // the texts say it
pub enum LoadRefusal {
    #[error(
        "region '{region}' cannot be loaded with {}: its part on node {node} takes {} more then, and that node has {} \
         left for pool '{pool}'; {}",
        bytes(*load), bytes(*needs), bytes(*has), remedy(pool)
    )]
    Data {
        region: String,
        pool: String,
        load: u64,
        node: String,
        needs: u64,
        has: u64,
    },
    /// `has`: the room of the emptiest node that may hold the parity.
    #[error(
        "region '{region}' cannot be loaded with {}: the parity ({scheme}) of its group {group} takes {} then on a node \
         that holds no data of that group, and none of those has more than {} for it in pool '{pool}'; {}",
        bytes(*load), bytes(*needs), bytes(*has), remedy(pool)
    )]
    Parity {
        region: String,
        pool: String,
        load: u64,
        group: GroupId,
        scheme: Scheme,
        needs: u64,
        has: u64,
    },
}

fn remedy(pool: &str) -> String {
    format!(
        "nothing was written; give the pool more memory ('staves pool set {pool} --memory'), add nodes, or delete what \
         is not needed"
    )
}

fn are_down(nodes: &[String]) -> String {
    match nodes.len() {
        1 => "a node is".to_owned(),
        n => format!("{n} nodes are"),
    }
}

/// The reason why a region's parity is not all there yet.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[allow(missing_docs)] // the texts say it
pub enum MissingParity {
    #[error(
        "what is missing of its parity takes {} on nodes that have no part in the same group, and {} of that find no \
         room (all nodes have {} left for pool '{pool}'): give the pool more memory ('staves pool set {pool} \
         --memory'), add nodes, or delete what is not needed; then it is made by itself, and 'staves memory protect \
         {region}' waits for it",
        bytes(*needs), bytes(*missing), bytes(*left)
    )]
    NoRoom {
        region: String,
        pool: String,
        needs: u64,
        missing: u64,
        left: u64,
    },
    #[error(
        "{} down ({}), and there is no other node that its buckets could go to: bring it back, add one, or strike it \
         ('staves node forget'); then ask again",
are_down(.0),
        .0.join(", ")
    )]
    NodesDown(Vec<String>),
    #[error(
        "its parity is still being made: 'staves status' shows how far it is; 'staves memory protect {region} \
         --deadline 10m' waits for it"
    )]
    BeingMade { region: String },
}

impl<'a> RegionUsage<'a> {
    /// The region of this name, with the extents that its members have reserved: of those that reported them.
    pub fn new(
        map: &'a ClusterMap,
        region: &str,
        extents: BTreeMap<(GroupId, MemberSlot), u32>,
    ) -> Option<RegionUsage<'a>> {
        let (pool, region) = map.region_named(region)?;
        Some(RegionUsage {
            map,
            pool,
            region,
            extents,
        })
    }

    fn groups(&self) -> impl Iterator<Item = &'a Group> {
        let map = self.map;
        self.region.groups().filter_map(|id| map.groups.get(&id))
    }

    fn bytes_of(&self, group: &Group, slot: MemberSlot) -> u64 {
        let extents = self.extents.get(&(group.id, slot));
        u64::from(extents.copied().unwrap_or(0)) * EXTENT_BYTES as u64
    }

    /// Rejects a load for which a data bucket has no room, or after which the region's parity could not be made: by the
    /// memory that is certainly taken then, as if the load went to places that are written already. Groups that keep their
    /// parity keep it where it is.
    pub fn may_load(
        &self,
        mut free: FreeMemory,
        offset: u64,
        load: u64,
    ) -> Result<(), LoadRefusal> {
        // The memory of a member that does not report is in its node's report, and cannot be told from the rest.
        let reported = |group: &Group| {
            let mut listed = group.listed();
            listed.all(|(slot, _)| self.extents.contains_key(&(group.id, slot)))
        };
        if !self.groups().all(reported) {
            return Ok(());
        }
        let parity = self.parity(free.nodes());
        let m = self.pool.scheme.m;
        let loaded = loaded(self.region, m, offset, load);
        let range = offset..offset.saturating_add(load);
        let spans = self.region.loadable(m, range);
        let bare: BTreeSet<GroupId> = spans.flat_map(|(_, s)| s.groups()).collect();
        let bare = |group: &Group| bare.contains(&group.id);
        // Their parity is given up first.
        for group in self.groups().filter(|group| bare(group)) {
            for slot in group.parity_slots() {
                if let Some(member) = group.member(slot) {
                    free.free(member.id.node, self.bytes_of(group, slot));
                }
            }
        }
        let mut sizes = Vec::new();
        let mut more: BTreeMap<NodeId, u64> = BTreeMap::new();
        for group in self.groups() {
            let mut largest = 0;
            for slot in (0..group.m).map(MemberSlot) {
                let now = self.bytes_of(group, slot);
                let then = match loaded.get(&(group.id, slot)) {
                    // One more, for the table of chunks.
                    Some(chunks) => (chunks + 1) * CHUNK_BYTES,
                    None => 0,
                };
                let then = now.max(then.next_multiple_of(EXTENT_BYTES as u64));
                largest = largest.max(then);
                if let Some(member) = group.member(slot) {
                    *more.entry(member.id.node).or_default() += then - now;
                }
            }
            if bare(group) {
                sizes.push((group, largest));
                continue;
            }
            for slot in group.parity_slots() {
                if let Some(member) = group.member(slot) {
                    let grows = largest.saturating_sub(self.bytes_of(group, slot));
                    *more.entry(member.id.node).or_default() += grows;
                }
            }
        }
        let (region, pool) = (self.region.name.clone(), self.pool.name.clone());
        for (node, needs) in more {
            // A node that drains gives its bucket to another.
            let Some(has) = free.left_on(node) else {
                continue;
            };
            if free.take(node, needs) > 0 {
                let node = self.map.nodes.get(&node).map_or("-", |node| &*node.name);
                return Err(LoadRefusal::Data {
                    region,
                    pool,
                    load,
                    node: node.to_owned(),
                    needs,
                    has,
                });
            }
        }
        for (group, needs) in sizes {
            let taken = |node| holds_data(group, node);
            // Where parity is now it finds room in any case, if it does not grow.
            let now = |node| holds_parity(group, node);
            if free.place_first_on(now, needs, parity, taken) > 0 {
                return Err(LoadRefusal::Parity {
                    region,
                    pool,
                    load,
                    group: group.id,
                    scheme: self.pool.scheme,
                    needs,
                    has: free.most(taken),
                });
            }
        }
        Ok(())
    }

    /// Parity buckets that each group can have on so many nodes.
    fn parity(&self, nodes: usize) -> usize {
        let m = usize::from(self.pool.scheme.m);
        usize::from(self.pool.scheme.k).min(nodes.saturating_sub(m))
    }

    /// The reason why the region's parity is not all there yet.
    pub fn missing_parity(&self, free: FreeMemory) -> MissingParity {
        let region = self.region.name.clone();
        let left = free.left();
        let (needs, missing) = self.needs_of_missing(free);
        if missing > 0 {
            let pool = self.pool.name.clone();
            return MissingParity::NoRoom {
                region,
                pool,
                needs,
                missing,
                left,
            };
        }
        let is_up = |x: &Member| self.map.runs(x.id);
        let is_vacant = |group: &Group| {
            let here = !group.lost && group.listed().all(|(_, x)| is_up(x));
            here && group.listed().count() < self.pool.scheme.width()
        };
        let down = self.map.nodes.values();
        let down = down.filter(|node| node.state == NodeState::Down);
        let down: Vec<String> = down.map(|node| node.name.clone()).collect();
        match self.groups().any(is_vacant) && !down.is_empty() {
            true => MissingParity::NodesDown(down),
            false => MissingParity::BeingMade { region },
        }
    }

    /// Bytes that the missing parity takes, and those of them that find no room.
    fn needs_of_missing(&self, mut free: FreeMemory) -> (u64, u64) {
        let parity = self.parity(free.nodes());
        let (mut needs, mut missing) = (0, 0);
        for group in self.groups().filter(|group| !group.lost) {
            let there = group.parity_slots().count();
            let data = (0..group.m).map(|slot| self.bytes_of(group, MemberSlot(slot)));
            let size = data.max().unwrap_or(0);
            let members = parity.saturating_sub(there);
            needs += members as u64 * size;
            missing += free.place(size, members, |node| group.lists(node));
        }
        (needs, missing)
    }
}

fn holds_data(group: &Group, node: NodeId) -> bool {
    let data = (0..group.m).filter_map(|slot| group.member(MemberSlot(slot)));
    data.into_iter().any(|x| x.id.node == node)
}

fn holds_parity(group: &Group, node: NodeId) -> bool {
    let parity = group.parity_slots().filter_map(|slot| group.member(slot));
    parity.into_iter().any(|x| x.id.node == node)
}

/// Chunks of each data bucket that a load touches.
fn loaded(region: &Region, m: u8, offset: u64, count: u64) -> BTreeMap<(GroupId, MemberSlot), u64> {
    let end = offset.saturating_add(count).min(region.size_bytes);
    let chunks = offset / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES);
    let parts = region.bucket_parts(chunks, m);
    parts
        .map(|part| ((part.group, part.slot), part.count))
        .collect()
}

#[cfg(test)]
mod tests;
