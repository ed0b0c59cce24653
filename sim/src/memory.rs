//! The memory worlds: each node's seat holds the real service (`staves_memory::Bucket`) around its
//! member, with a short log and little memory. The world has one **region** at a time, of one group. It
//! grows while it is used, and now and then it is deleted and another begins, with a group of its own:
//! nodes and clients learn of that late, and who still has the old one goes on with it.

use std::collections::BTreeMap;

use staves_model::{CHUNK_BYTES, Change, GroupId, Region};

use crate::check::{Done, Ghost};
use crate::event::Happening;
use crate::kv::Open;
use crate::memory_history::{Act, Seen};
use crate::world::World;

/// Bytes that a stream's log may hold: a few writes that cross pages. A longer one goes alone.
pub const LOG_BYTES_MAX: usize = 40_000;
/// Most chunks of one data bucket that are used: three extents of a node's eight.
const ROWS_MAX: u64 = 10;

/// An operation of the history.
#[derive(Clone, Debug)]
pub struct MemoryOperation {
    /// On which of the regions there were.
    pub region: usize,
    /// The chunk of the region.
    pub chunk: u64,
    /// What was asked.
    pub act: Act,
    /// When.
    pub called: u64,
    /// When it was answered, and what.
    pub seen: Option<(u64, Seen)>,
    /// It was refused for lack of memory, so it certainly did not take effect.
    pub refused: bool,
}

/// What a memory world knows beside the nodes.
#[derive(Default)]
pub struct MemoryWorld {
    /// What clients saw.
    pub history: Vec<MemoryOperation>,
    /// Chunks whose history was too tangled to be decided.
    pub undecided: usize,
    /// The regions that there were, the present one last, each with its size of late.
    pub regions: Vec<Region>,
    pub(crate) open: BTreeMap<(usize, u64), Open>,
    pub(crate) tokens: u64,
}

impl MemoryWorld {
    /// Which of the regions has this group.
    pub(crate) fn region_of(&self, group: GroupId) -> Option<usize> {
        let has = |r: &Region| r.groups().any(|g| g == group);
        self.regions.iter().position(has)
    }
}

/// A region's chunks.
pub(crate) fn chunks_of(region: &Region) -> u64 {
    region.size_bytes / CHUNK_BYTES
}

impl World {
    /// The pool's first region, or the next after one that was deleted.
    pub(crate) fn create_region(&mut self) {
        let Some(memory) = &self.memory else { return };
        let create = Change::CreateRegion {
            pool: "cache".into(),
            name: format!("region-{}", memory.regions.len()),
            size_bytes: 2 * self.m as u64 * CHUNK_BYTES,
        };
        let made = self.directory.map.apply(None, &create);
        made.expect("a memory pool takes a region");
        self.look_at_region(true);
    }

    // Takes over what the map says of the newest region.
    fn look_at_region(&mut self, new: bool) {
        let pool = self.directory.map.pool_named("cache");
        let region = pool.and_then(|p| p.regions().last()).cloned();
        let region = region.expect("a memory world always has a region");
        let Some(memory) = &mut self.memory else {
            return;
        };
        if new {
            self.group = GroupId(region.id.0);
            memory.regions.push(region);
        } else if let Some(last) = memory.regions.last_mut() {
            *last = region;
        }
    }

    /// Somebody lets the region grow, or deletes it and makes another.
    pub(crate) fn tend_region(&mut self) {
        if self.memory.is_none() || self.healing {
            return;
        }
        match self.rng.below(1000) {
            0..15 => self.grow_region(),
            15..18 if self.committed().last_open.epoch.0 > 0 => self.replace_region(),
            _ => {}
        }
    }

    fn grow_region(&mut self) {
        let m = self.m as u64;
        let Some(region) = self.memory.as_ref().and_then(|w| w.regions.last()) else {
            return;
        };
        let size_bytes = region.size_bytes + self.rng.below(2 * m + 1) * CHUNK_BYTES;
        let grow = Change::GrowRegion {
            name: region.name.clone(),
            size_bytes: size_bytes.min(ROWS_MAX * m * CHUNK_BYTES),
        };
        if self.directory.map.apply(None, &grow).is_ok() {
            self.cover.count("memory: region grown");
            self.look_at_region(false);
        }
    }

    // What is judged of the group begins anew; whoever holds the old one learns of it when it may.
    fn replace_region(&mut self) {
        let Some(region) = self.memory.as_ref().and_then(|w| w.regions.last()) else {
            return;
        };
        let name = region.name.clone();
        self.note(|| format!("DELETE {name}"));
        self.cover.count(match self.protocol_step() {
            "steady" => "memory: region deleted",
            _ => "memory: region deleted amid a recovery",
        });
        let deleted = self
            .directory
            .map
            .apply(None, &Change::DeleteRegion { name });
        deleted.expect("the region is there");
        self.create_region();
        self.ghost = Ghost::default();
        self.purged = vec![vec![Default::default(); self.m]; self.nodes.len()];
        self.done = vec![Done::default(); self.nodes.len()];
        self.island = None;
        self.queue
            .remove(|h| matches!(h, Happening::TakeoverDue(_)));
        self.directory.forget_group();
        self.entry_changed();
        self.propose(&Default::default(), false);
    }
}
