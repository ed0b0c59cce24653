//! The region of a group of the memory service. It has one region at a time, of one group. It grows while it is used,
//! and now and then it is deleted and another begins, with a group of its own: nodes and clients learn of that
//! late, and those that still have the old one go on with it.

use std::collections::BTreeSet;

use staves_model::{
    CHUNK_BYTES, Change, GroupId, Place, REGION_BUCKET_BYTES_MIN, Region, stretch_unit,
};

use crate::event::Happening;
use crate::ghost::{Done, Ghost};
use crate::world::World;

/// Most chunks of one data bucket that are used: three extents of a node's eight.
const ROWS_MAX: u64 = 10;

/// The number of a region's chunks.
pub(crate) fn chunks_of(region: &Region) -> u64 {
    region.size_bytes / CHUNK_BYTES
}

impl World {
    /// The pool's first region, or the next after one that was deleted.
    pub(crate) fn create_region(&mut self, g: usize) {
        let of = &self.groups[g];
        if !of.has_regions {
            return;
        }
        let create = Change::CreateRegion {
            pool: of.pool_name.clone(),
            name: format!("region-{}-of-{}", of.regions.len(), of.pool_name),
            size_bytes: 2 * of.m as u64 * CHUNK_BYTES,
        };
        let made = self.directory.map.apply(None, &create);
        made.expect("a memory pool takes a region");
        let region = self.newest_region(g);
        self.groups[g].id = GroupId(region.id.0);
        self.groups[g].regions.push(region);
    }

    // As the map has it.
    fn newest_region(&self, g: usize) -> Region {
        let pool = self.directory.map.pools.get(&self.groups[g].pool);
        let region = pool.and_then(|p| p.regions().last());
        region.expect("a memory world always has a region").clone()
    }

    /// An operator lets the region grow, or deletes it and makes another.
    pub(crate) fn tend_region(&mut self, g: usize) {
        if !self.groups[g].has_regions || self.healing {
            return;
        }
        match self.rng.below(1000) {
            0..15 => self.grow_region(g),
            15..18 if self.committed(g).last_open.epoch.0 > 0 => self.replace_region(g),
            _ => {}
        }
    }

    fn grow_region(&mut self, g: usize) {
        let m = self.groups[g].m as u64;
        let Some(region) = self.groups[g].regions.last() else {
            return;
        };
        let size_bytes = region.size_bytes + self.rng.below(2 * m + 1) * CHUNK_BYTES;
        let grow = Change::GrowRegion {
            name: region.name.clone(),
            size_bytes: size_bytes.min(ROWS_MAX * m * CHUNK_BYTES),
        };
        if self.directory.map.apply(None, &grow).is_ok() {
            self.cover.count("memory: region grown");
            let region = self.newest_region(g);
            self.groups[g].regions.pop();
            self.groups[g].regions.push(region);
            self.check_growth(g);
        }
    }

    // The region stays within its first group here. Were it to grow by further ones, its clients would still find each
    // chunk where they know it, by maps of any age, and no chunk in the place of another.
    fn check_growth(&mut self, g: usize) {
        let (m, small) = (self.groups[g].m as u8, self.newest_region(g));
        let mut map = self.directory.map.clone();
        for groups in 1..=2 {
            // The second by groups of larger buckets.
            let grow = Change::ExtendRegion {
                name: small.name.clone(),
                size_bytes: small.size_bytes + groups * (groups + 1) / 2 * stretch_unit(m),
                bucket_bytes: groups * REGION_BUCKET_BYTES_MIN,
            };
            let grown = map.apply(None, &grow).is_ok();
            let Some((_, large)) = map.region_named(&small.name).filter(|_| grown) else {
                return self.violation("a region of few groups does not grow".into());
            };
            let place = |of: &Region, chunk| of.place(chunk * CHUNK_BYTES, m);
            let mut moved =
                (0..chunks_of(&small)).filter(|c| place(&small, *c) != place(large, *c));
            if let Some(chunk) = moved.next() {
                return self.violation(format!("chunk {chunk} of a region moves when it grows"));
            }
            let mut taken = BTreeSet::new();
            let is_new = |p: Place| taken.insert((p.group, p.slot, p.offset));
            let apart = (0..chunks_of(large))
                .filter_map(|c| place(large, c))
                .all(is_new);
            if !apart {
                return self.violation("two chunks of a region have one place".into());
            }
        }
    }

    // Judging of the group begins anew; a node that holds the old one lets go of it when it learns of that.
    fn replace_region(&mut self, g: usize) {
        let (name, old) = (self.newest_region(g).name, self.groups[g].id);
        self.note(|| format!("DELETE {name}"));
        self.cover.count(match self.step_of(g) {
            "steady" => "memory: region deleted",
            _ => "memory: region deleted amid a recovery",
        });
        let delete = Change::DeleteRegion { name };
        let deleted = self.directory.map.apply(None, &delete);
        deleted.expect("the region is there");
        self.create_region(g);
        let of = &mut self.groups[g];
        of.ghost = Ghost::default();
        // Who sees the map late sees the old entry still.
        of.opened = None;
        of.stuck.clear();
        self.directory.reports.retain(|report| report.group != old);
        for (node, n) in self.nodes.iter().enumerate().filter(|(_, n)| n.group == g) {
            self.purged[node] = vec![Default::default(); self.groups[n.group].m];
            self.done[node] = Done::default();
        }
        self.island = None;
        self.queue
            .remove(|h| matches!(h, Happening::TakeoverDue(of, _) if *of == g));
        self.entry_changed(g);
        self.propose(g, &Default::default(), false);
    }

    /// A node learns of a group that is newer than the one of its bucket: it lets go of that.
    pub(crate) fn take_seat(&mut self, node: usize, group: GroupId) {
        let seat = self.nodes[node].member.as_deref();
        if !self.group_at(node).has_regions || seat.is_none_or(|member| member.id() >= group) {
            return;
        }
        self.nodes[node].member = None;
        self.forget_tokens(node);
        self.cover
            .count("memory: a node lets go of a deleted region");
        self.make_seat(node, group);
    }
}
