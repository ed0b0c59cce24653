//! Brings the members of disks that failed, or are being emptied, elsewhere; and tells the directory of the node's disks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_directory::{Directory, Proposal};
use staves_model::{
    Change, ClusterMap, Epoch, Group, GroupId, MemberId, MemberSlot, NodeDisks, NodeId,
};

use super::{Host, Routes};
use crate::disk::{NodeDisk, NodeDiskError};

/// The interval of looks.
const LOOK: Duration = Duration::from_millis(500);
/// The time for which what was given up may be all that there is of a group.
const ALONE_MAX: Duration = Duration::from_secs(30);
/// The time for the directory's leader to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs until the node cannot go on without a disk that failed, or the task is aborted.
pub(super) async fn run(host: Arc<Host>, directory: Directory) {
    let disks = host.disks().clone();
    let mut alone = BTreeMap::new();
    loop {
        let _ = tokio::time::timeout(LOOK, disks.wake.notified()).await;
        // The node ends, and nothing is given up.
        if disks.why_over().is_some() {
            return;
        }
        host.give_up_failed();
        host.give_up_lost();
        host.end_if_alone(&mut alone);
        host.empty_some();
        // By one map: by a newer one a member that is made now could be named.
        let routes = host.routes();
        host.note_known(&routes);
        if let Some(change) = host.disks_changed(&routes) {
            let proposal = Proposal::unconditional(change);
            if let Err(error) = directory.propose(proposal, PATIENCE).await {
                tracing::debug!(%error, "the directory does not know of the disks yet");
            }
        }
    }
}

/// True if the map still gives a group what a life had when it gave its member up in an epoch: it would take a new member for that one.
fn still_names(group: &Group, me: MemberId, epoch: Epoch) -> bool {
    let named = |(slot, member): (MemberSlot, &staves_model::Member)| {
        member.id == me && (group.retained(slot) || group.epoch <= epoch)
    };
    group.last_open.slot_of(me).is_some() || group.listed().any(named)
}

impl Host {
    /// Makes a further disk, and uses it.
    ///
    /// # Errors
    /// See [`Disks::make`](crate::disks::Disks::make); the system gave no threads.
    pub(crate) fn add_disk(
        self: &Arc<Self>,
        folder: PathBuf,
        bytes: u64,
    ) -> Result<(), NodeDiskError> {
        let _alone = self.disks.changing.lock();
        let (disk, journal) = self.disks.make(folder.clone(), bytes)?;
        let driven = super::saver::drive(&disk, journal, self);
        let driven = driven.and_then(|()| super::saver::start(&disk, self));
        let taken = driven.map_err(NodeDiskError::Thread);
        let taken = taken.and_then(|()| self.disks.takes(disk.clone()));
        if taken.is_err() {
            disk.close();
            drop(disk);
            let _ = std::fs::remove_dir_all(&folder);
        }
        taken
    }

    /// The members on disks that failed are given up, all at once.
    fn give_up_failed(&self) {
        let open = self.disks.open_ones();
        for disk in open.iter().filter(|disk| disk.failure().is_some()) {
            let groups = self.disks.groups_on(disk);
            if !groups.is_empty() {
                let (folder, buckets) = (disk.folder().display(), groups.len());
                tracing::warn!(disk = %folder, buckets, "the buckets of a disk that failed are given up here");
            }
            groups.into_iter().for_each(|group| self.give_up(group));
        }
    }

    /// Of buckets with a page that cannot be read the members are given up, if others have all of it: they are filled again. A node that alone has the rest ends, and
    /// comes back with that.
    fn give_up_lost(&self) {
        let map = self.routes().map.clone();
        for disk in self.disks.open_ones() {
            for (group, why) in disk.lost() {
                let known = map.groups.get(&group);
                if known.is_some_and(|group| !self.others_have(group, &map)) {
                    disk.ends_process(&why);
                }
                tracing::warn!(disk = %disk.folder().display(), %why, "the bucket is filled again from other nodes");
                self.give_up(group);
                disk.note_given_up(group);
            }
        }
    }

    /// Other nodes that answer have all of a group.
    fn others_have(&self, group: &Group, map: &ClusterMap) -> bool {
        let silences = self.peers.silences().into_iter();
        let answer = silences.filter(|(_, silent)| *silent < self.options.group.stuck_after);
        let answer: BTreeSet<NodeId> = answer.map(|(node, _)| node).collect();
        let others = group.listed().map(|(_, member)| member);
        let others = others.filter(|x| answer.contains(&x.id.node) && map.runs(x.id));
        others.filter(|x| x.complete).count() >= usize::from(group.m)
    }

    /// Bytes that were given up here, and are on a sound disk yet, may be all that there is of a group: those that were to fill it have ended, too. A start of the node brings it back,
    /// so it ends if they do not come back first.
    fn end_if_alone(&self, alone: &mut BTreeMap<GroupId, Instant>) {
        let map = self.routes().map.clone();
        let has_sources = |group: &GroupId| {
            let known = map.groups.get(group);
            known.is_none_or(|known| map.complete_sources_up(known) >= usize::from(known.m))
        };
        let mut leaving = self.disks.leaving();
        leaving.retain(|group| !has_sources(group));
        alone.retain(|group, _| leaving.contains(group));
        for group in leaving {
            let since = *alone.entry(group).or_insert_with(Instant::now);
            if since.elapsed() >= ALONE_MAX
                && let Some(disk) = self.disks.left(group)
            {
                disk.end_node(&format!(
                    "group {group} is on it, and on no other node that runs"
                ));
            }
        }
    }

    /// A group's member here is not to be used any more.
    fn give_up(&self, group: GroupId) {
        let routes = self.routes();
        let epoch = routes.map.groups.get(&group).map(|group| group.epoch);
        // First, so that nobody makes it again.
        self.disks.give_up(group, epoch.unwrap_or_default());
        let reached = routes.cells_of(group).map(|cell| cell.clear()).max();
        // It may have come further than the map that it was told of.
        self.disks
            .raise_given_up(group, reached.unwrap_or_default());
    }

    /// Of a disk that is to be emptied one member at a time is given up, while others of its group are complete and another disk here has room for it.
    fn empty_some(&self) {
        let map = self.routes().map.clone();
        for group in self.disks.leaving() {
            let known = map.groups.get(&group);
            let pool = known.and_then(|group| map.pools.get(&group.pool));
            let is_whole = known.zip(pool).is_none_or(|(group, pool)| {
                let whole = group.listed().map(|(_, x)| *x);
                let whole: Vec<_> = whole.filter(|x| x.complete && map.runs(x.id)).collect();
                let is_back = whole.iter().any(|x| x.id == self.own_id());
                group.open && (is_back || whole.len() >= pool.scheme.width())
            });
            let is_here = self.disks.given_up().contains_key(&group);
            if (is_whole && !is_here) || self.disks.leaving_is_in_vain(group) {
                self.disks.has_left(group);
            }
        }
        if !self.disks.leaving().is_empty() || !self.disks.given_up().is_empty() {
            return;
        }
        let open = self.disks.open_ones();
        let draining = open.iter().filter(|disk| disk.is_draining());
        let mut groups = draining.flat_map(|disk| self.disks.groups_on(disk));
        let can_go = |group: &GroupId| {
            let known = map.groups.get(group);
            known.is_some_and(|group| {
                let is_quiet = group.open && group.listed().all(|(_, x)| x.complete);
                let is_borne = group.tolerates(|id| map.runs(id)).unwrap_or(0) > 0;
                is_quiet && is_borne && self.has_room_elsewhere(group.id, &open)
            })
        };
        if let Some(group) = groups.find(can_go) {
            tracing::info!(%group, "a bucket is brought to another disk");
            self.give_up(group);
        }
    }

    /// Another disk has room for what a group's member has reserved.
    fn has_room_elsewhere(&self, group: GroupId, open: &[Arc<NodeDisk>]) -> bool {
        let routes = self.routes();
        let needed = routes.cells_of(group).map(|cell| {
            let state = cell.lock();
            let member = state.bucket.as_ref().map(|bucket| bucket.member());
            member.and_then(|member| member.pages().map(|pages| pages.reserved()))
        });
        let needed = needed.flatten().max().unwrap_or(0);
        let mut able = open.iter().filter(|disk| disk.is_home());
        able.any(|disk| disk.free_extents() > needed)
    }

    /// Groups whose members were given up may have new ones once the map says nothing else.
    fn note_known(&self, routes: &Arc<Routes>) {
        let now = self.clock.now();
        for (group, epoch) in self.disks.given_up() {
            let known = routes.map.groups.get(&group);
            if known.is_some_and(|known| still_names(known, self.own_id(), epoch)) {
                continue;
            }
            self.disks.is_known(group);
            for cell in routes.cells_of(group) {
                if let Some(known) = known {
                    self.tell_group(cell, now, known, routes);
                }
            }
        }
        self.peers.flush();
    }

    /// The change that the directory does not know of yet.
    fn disks_changed(&self, routes: &Routes) -> Option<Change> {
        let map = &routes.map;
        let (node, incarnation) = (self.life.node, self.life.incarnation);
        let entry = map.nodes.get(&node)?;
        let disk_bytes = self.disks.room_bytes();
        let gone: BTreeMap<GroupId, Epoch> = self.disks.given_up();
        let gone = gone.keys().filter_map(|id| map.groups.get(id));
        let gone: Vec<(GroupId, Epoch)> = gone.map(|group| (group.id, group.epoch)).collect();
        let is_own = entry.incarnation == incarnation;
        let is_new = entry.disk_bytes != disk_bytes || !gone.is_empty();
        (is_own && is_new).then_some(Change::SetDisks(NodeDisks {
            node,
            incarnation,
            disk_bytes,
            gone,
        }))
    }

    /// The identity of this life's members.
    fn own_id(&self) -> MemberId {
        MemberId::new(self.life.node, self.life.incarnation)
    }
}
