//! Unflushed updates of groups with write-back: kept by an epoch, or given up with the sessions of their time (D-13).
//!
//! Writes that were answered and not flushed live in the members' memory. While m complete members of the last open epoch may live on in the life
//! that they had in it, only an epoch that keeps m of those is committed. When they cannot any more, what was not flushed is given up:
//! the epoch is made from the disks that are there, and every session of the volume so far is over with the same change.

use std::collections::{BTreeMap, BTreeSet};

use super::epochs::sources;
use crate::ids::{Epoch, GroupId, Incarnation, MemberId, NodeId, RegionId};
use crate::map::{ClusterMap, Group, Member, NodeState, whole_buckets};
use crate::mutant::{Mutant, planted};
use crate::region::Region;
use crate::writeback::{Unflushed, Writeback};

impl Unflushed {
    /// The fate of what the last open epoch of a group with write-back has not flushed, if the next one `keeps` certain members. Of `broken` nodes the
    /// member is there in a later life; others `may_live`, seen or unseen.
    pub fn of(
        group: &Group,
        broken: Option<&BTreeSet<NodeId>>,
        keeps: impl Fn(MemberId) -> bool,
        may_live: impl Fn(MemberId) -> bool,
    ) -> Unflushed {
        let is_unbroken = |id: MemberId| {
            let is_broken = broken.is_some_and(|nodes| nodes.contains(&id.node));
            !is_broken && id.incarnation != Incarnation::NONE
        };
        let are_enough = |counts: &dyn Fn(MemberId) -> bool| {
            let counts = |x: &Member| is_unbroken(x.id) && counts(x.id);
            whole_buckets(group.m, sources(group), counts) >= usize::from(group.m)
        };
        match group.last_open.epoch == Epoch(0) || are_enough(&keeps) {
            true => Unflushed::Kept,
            false if are_enough(&may_live) => Unflushed::Awaited,
            false => Unflushed::GivenUp,
        }
    }
}

impl ClusterMap {
    /// The write-back of a volume; `None` if its writes are answered once disks have them.
    pub fn writeback(&self, id: RegionId) -> Option<&Writeback> {
        self.volumes.writeback.get(&id)
    }

    /// The regions with write-back that have a group: a volume, its snapshots and its clones.
    fn writeback_regions(&self, group: GroupId) -> impl Iterator<Item = (&Region, &Writeback)> {
        let has_any = !self.volumes.writeback.is_empty();
        let all = self.regions().filter(move |_| has_any);
        let all = all.filter_map(|(_, region)| Some((region, self.writeback(region.id)?)));
        all.filter(move |(region, _)| region.stretches.iter().any(|s| s.contains(group)))
    }

    /// True if writes to a group are answered before disks have them. It never changes.
    pub fn is_writeback(&self, group: GroupId) -> bool {
        self.writeback_regions(group).next().is_some()
    }

    /// The sessions up to which writes and flushes are refused in a group, by the number of the image.
    pub fn sessions_over(&self, group: GroupId) -> BTreeMap<u32, u64> {
        let regions = self.writeback_regions(group);
        let over = regions.filter(|(_, writeback)| writeback.over > 0);
        over.map(|(region, writeback)| (self.image_number(region.id), writeback.over))
            .collect()
    }

    /// True if the process of a member may run, seen or unseen: its node has not begun another life.
    fn may_live(&self, id: MemberId) -> bool {
        let node = self.nodes.get(&id.node);
        node.is_some_and(|node| node.incarnation == id.incarnation)
    }

    /// The fate of what a group has not flushed, if it `keeps` certain members; those of nodes that are not awaited count as gone.
    pub(crate) fn unflushed(
        &self,
        group: &Group,
        keeps: impl Fn(MemberId) -> bool,
        is_awaited: impl Fn(NodeId) -> bool,
    ) -> Unflushed {
        if !self.is_writeback(group.id) {
            return Unflushed::Kept;
        }
        let broken = self.volumes.broken.get(&group.id);
        let may_live = |id: MemberId| self.may_live(id) && is_awaited(id.node);
        Unflushed::of(group, broken, keeps, may_live)
    }

    /// The nodes that are down and may still run members that hold what was not flushed, if a group waits for those.
    pub(crate) fn unflushed_at(&self, group: &Group) -> Vec<NodeId> {
        if self.unflushed(group, |id| self.runs(id), |_| true) != Unflushed::Awaited {
            return Vec::new();
        }
        let members = sources(group).iter().flatten();
        let broken = self.volumes.broken.get(&group.id);
        let is_broken = |x: &Member| broken.is_some_and(|nodes| nodes.contains(&x.id.node));
        let may_hold = |x: &Member| x.complete && !is_broken(x) && self.may_live(x.id);
        let awaited = members.filter(|x| may_hold(x) && !self.runs(x.id));
        awaited.map(|x| x.id.node).collect()
    }

    /// True if a node is believed to run.
    pub(crate) fn is_node_up(&self, node: NodeId) -> bool {
        let node = self.nodes.get(&node);
        node.is_some_and(|node| node.state == NodeState::Up)
    }

    /// Ends all sessions so far of the volumes that have a group.
    pub(crate) fn end_sessions(&mut self, group: GroupId) {
        if planted(Mutant::GiveUpKeepsSessions) {
            return;
        }
        let regions = self.writeback_regions(group);
        let ids: Vec<RegionId> = regions.map(|(region, _)| region.id).collect();
        for id in ids {
            let Some((pool, name)) = self
                .region(id)
                .map(|(pool, region)| (pool.id, region.name.clone()))
            else {
                continue;
            };
            let Some(volume) = self.region_mut(pool, &name).volume.as_mut() else {
                continue;
            };
            // One that was never attached has nothing to end.
            if volume.session > 0 {
                volume.session += 1;
                volume.writer = None;
                let over = volume.session;
                self.volumes.writeback.insert(id, Writeback { over });
            }
        }
    }
}
