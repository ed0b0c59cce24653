//! Claims: a node that starts names the groups of which its disk has the member, whole.
//!
//! A claim is a hint. One that the map has no use for changes nothing; one that it takes makes a member of the last open epoch
//! a source again, in the node's new life. Only a further epoch lists that life, and before it is listed it serves nothing.
//!
//! The other way round a node that runs says which members it has no more, because their disk failed or is to be taken out: from then on
//! they are of no life, which runs nowhere, as if the node had ended for them alone. A start of the node may claim them again.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::bounds::GROUPS_MAX;
use super::epochs::sources;
use super::outcome::{Outcome, Refusal, too_many};
use crate::ids::{DiskId, Epoch, GroupId, Incarnation, MemberId, NodeId};
use crate::map::{ClusterMap, Group, Medium, Member, Node, whole_buckets};
use crate::mutant::{Mutant, planted};

/// A starting node's claim to have a group's member on its disk, whole, as of an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Claim {
    /// The group.
    pub group: GroupId,
    /// The epoch to whose cut the member on disk stands.
    pub epoch: Epoch,
}

/// The disks of a running node, as they are now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeDisks {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// Bytes of pages that its disks take.
    pub disk_bytes: u64,
    /// The groups on disk whose members it has no more, each as of the epoch that was the newest then: another one may list a new member.
    /// As many as there may be groups, at most.
    pub gone: Vec<(GroupId, Epoch)>,
}

impl Claim {
    /// Refuses claims that no node makes: more than there may be groups, or two for one group.
    pub fn check_all(claims: &[Claim]) -> Result<(), Refusal> {
        if claims.len() > GROUPS_MAX {
            return Err(too_many("claims of a node", GROUPS_MAX));
        }
        let mut seen = BTreeSet::new();
        match claims.iter().find(|claim| !seen.insert(claim.group)) {
            Some(Claim { group, .. }) => Err(Refusal::NamedTwice { group: *group }),
            None => Ok(()),
        }
    }
}

impl ClusterMap {
    /// Retains members of the node's former lives in its present one (rule D-11): those of last open epochs that were complete,
    /// and whose disk stands at that epoch or behind it. The newest epoch goes on naming the life that it was committed with.
    pub(super) fn take_claims(&mut self, node: &Node, claims: &[Claim]) {
        let (node, life) = (node.id, node.incarnation);
        let revision = self.revision.next();
        for claim in claims {
            let is_writeback = self.is_writeback(claim.group);
            let Some(group) = self.groups.get_mut(&claim.group) else {
                continue;
            };
            let pool = self.pools.get(&group.pool);
            let on_disk = pool.is_some_and(|pool| pool.medium == Medium::Disk);
            let is_older = claim.epoch < group.last_open.epoch;
            if !on_disk || (is_older && !planted(Mutant::OlderDiskRetained)) {
                continue;
            }
            let is_claimed = |x: &&mut Member| {
                let same = x.id.place() == (node, DiskId::MEMORY);
                same && x.complete && x.id.incarnation < life
            };
            let mut members = group.last_open.members.iter_mut().flatten();
            if let Some(x) = members.find(is_claimed) {
                x.id.incarnation = life;
                group.revision = revision;
                // What this member held and its disk did not have is gone (D-13).
                if is_writeback && !planted(Mutant::BrokenLivesAtOnce) {
                    let broken = self.volumes.broken.entry(group.id).or_default();
                    broken.insert(node);
                }
            }
        }
    }

    /// Notes a node's disks as they are now, and takes its life from the members that are gone: the planner takes that for a death. In a later epoch
    /// the same life may be listed again, as a joiner.
    pub(super) fn set_disks(&mut self, disks: &NodeDisks) -> Result<Outcome, Refusal> {
        let NodeDisks {
            node,
            incarnation,
            disk_bytes,
            ref gone,
        } = *disks;
        let me = MemberId::new(node, incarnation);
        if gone.len() > GROUPS_MAX {
            return Err(too_many("groups of a disk", GROUPS_MAX));
        }
        let entry = self.known_node(me.node)?;
        if entry.incarnation != me.incarnation {
            return Err(Refusal::OldIncarnation {
                node: me.node,
                incarnation: me.incarnation,
                present: entry.incarnation,
            });
        }
        let mut any = std::mem::replace(&mut entry.disk_bytes, disk_bytes) != disk_bytes;
        let revision = self.revision.next();
        for (group, epoch) in gone {
            let known = self.groups.get_mut(group);
            let Some(group) = known.filter(|group| group.epoch == *epoch) else {
                continue;
            };
            let pool = self.pools.get(&group.pool);
            if pool.is_none_or(|pool| pool.medium != Medium::Disk) {
                continue;
            }
            let listed = group.members.iter_mut().flatten();
            let all = listed.chain(group.last_open.members.iter_mut().flatten());
            for x in all.filter(|x| x.id == me) {
                x.id.incarnation = Incarnation::NONE;
                group.revision = revision;
                any = true;
            }
        }
        match any {
            true => self.moved(Outcome::Done),
            false => Ok(Outcome::Unchanged),
        }
    }

    /// The nodes whose disks may bring back a group on disk of which too few complete members run, or that may hold what a group with write-back
    /// has not flushed. None, if nobody is waited for: enough members run, or those that may return are too few as well.
    pub fn awaited_disks(&self, group: &Group) -> Vec<NodeId> {
        let m = usize::from(group.m);
        let pool = self.pools.get(&group.pool);
        let on_disk = pool.is_some_and(|pool| pool.medium == Medium::Disk);
        let may_return = |x: &Member| self.may_return(x.id);
        let enough = || whole_buckets(group.m, sources(group), may_return) >= m;
        if self.complete_sources_up(group) >= m {
            return self.unflushed_at(group);
        }
        if !on_disk || !enough() {
            return Vec::new();
        }
        let sources = sources(group).iter().flatten();
        let awaited = sources.filter(|x| x.complete && may_return(x) && !self.runs(x.id));
        awaited.map(|x| x.id.node).collect()
    }

    /// True if a member runs, or its node is down in the life that the member is of: only a start tells whether its disk is there.
    fn may_return(&self, id: MemberId) -> bool {
        let node = self.nodes.get(&id.node);
        node.is_some_and(|node| node.incarnation == id.incarnation)
    }
}
