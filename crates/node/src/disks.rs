//! The disks of a node: on which of them each bucket lies, and what becomes of it when one fails or is emptied.
//!
//! A member that its disk has no more is *given up*: its bucket is gone here, at once, and the directory is told ([`Change::SetDisks`](staves_model::Change)), which takes
//! it for dead. Only then may the same life have a new member of the group, with nothing in it, as the map's next epochs say. Until then none is made:
//! the map would take it for the one that had everything.

mod ask;
mod list;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf, absolute};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use staves_model::{Claim, ClusterId, Epoch, GroupId, NodeId, PAGE_BYTES};
use staves_store::Residency;
use tokio::sync::Notify;

use self::list::{DiskList, first};
use crate::disk::{
    DiskFacts, DiskState, DrivenJournal, NodeDisk, NodeDiskError, StartedDisk, create,
};

/// The interval of looks whether the node can go on.
const OVER_LOOK: Duration = Duration::from_millis(100);

/// The disks of a node.
pub(crate) struct Disks {
    /// The data folder, with their list.
    data: Option<PathBuf>,
    /// The cluster and the node, once they are known.
    owner: OnceLock<(ClusterId, NodeId)>,
    list: Mutex<DiskList>,
    /// Held by whoever adds a disk, or changes one: that may take minutes. None of the other locks is held while another of them is waited for.
    pub(crate) changing: Mutex<()>,
    open: RwLock<Vec<Arc<NodeDisk>>>,
    /// Those that could not be opened, and why.
    absent: RwLock<Vec<(PathBuf, String)>>,
    places: Mutex<BucketPlaces>,
    /// Pages of all of them that are in memory.
    residency: Arc<Residency>,
    /// Bytes of those that may be.
    memory: u64,
    /// A disk has failed, or something is to be done to one.
    pub(crate) wake: Arc<Notify>,
}

/// The places of buckets.
#[derive(Default)]
struct BucketPlaces {
    /// The disk of each member that is here, or that a start has found.
    homes: BTreeMap<GroupId, Arc<NodeDisk>>,
    /// Members that were given up, and the newest epoch then, until the directory knows.
    given_up: BTreeMap<GroupId, Epoch>,
    /// Those of disks that are emptied: what is on the disk stays until the group is whole again.
    leaving: BTreeMap<GroupId, Arc<NodeDisk>>,
}

/// The disks of a node that has no life yet.
pub(crate) struct StartedDisks {
    pub(crate) disks: Arc<Disks>,
    pub(crate) journals: Vec<(Arc<NodeDisk>, DrivenJournal)>,
    pub(crate) claims: Vec<Claim>,
    pub(crate) owner: Option<(ClusterId, NodeId)>,
    started: Vec<StartedDisk>,
}

impl StartedDisks {
    /// Opens the disks of a data folder: the one in it, which is made with so many bytes of pages if there is none and they are not 0, and those of its list. If
    /// some of several cannot be opened, the node goes on without.
    ///
    /// # Errors
    /// The list cannot be read; of all disks that there are to be, none can be opened.
    pub(crate) fn open(
        data: Option<&Path>,
        page_bytes: u64,
        memory: u64,
    ) -> Result<StartedDisks, NodeDiskError> {
        // Folders of disks are known by their names: those must not depend on where the node was started.
        let data = data.map(|data| absolute(data).unwrap_or_else(|_| data.to_owned()));
        let data = data.as_deref();
        let list = data.map_or_else(|| Ok(DiskList::default()), DiskList::read)?;
        let folders =
            data.map_or_else(|| Ok(Vec::new()), |data| folders(data, &list, page_bytes))?;
        let residency = Arc::new(Residency::new(0));
        let wake = Arc::new(Notify::new());
        let (mut started, mut errors) = (Vec::new(), Vec::new());
        for folder in folders {
            match StartedDisk::open(folder.clone(), residency.clone(), wake.clone()) {
                Ok(disk) => started.push(disk),
                Err(error) => errors.push((folder, error)),
            }
        }
        if started.is_empty() && !errors.is_empty() {
            return Err(errors.swap_remove(0).1);
        }
        let absent = errors.into_iter().map(|(folder, error)| {
            tracing::error!(disk = %folder.display(), %error, "the node goes on without a disk");
            (folder, error.to_string())
        });
        let disks = Disks {
            data: data.map(Path::to_owned),
            owner: OnceLock::new(),
            list: Mutex::new(list),
            changing: Mutex::new(()),
            open: RwLock::new(started.iter().map(|one| one.disk.clone()).collect()),
            absent: RwLock::new(absent.collect()),
            places: Mutex::default(),
            residency,
            memory,
            wake,
        };
        disks.bound_memory();
        let claims = disks.find(&started);
        Ok(StartedDisks {
            owner: started.iter().find_map(|one| one.owner),
            disks: Arc::new(disks),
            journals: Vec::new(),
            claims,
            started,
        })
    }

    /// Refuses disks that are another node's, and marks those that are nobody's yet.
    pub(crate) fn own(&mut self, cluster: ClusterId, node: NodeId) -> Result<(), NodeDiskError> {
        for mut one in self.started.drain(..) {
            one.own(cluster, node)?;
            self.journals.push((one.disk, one.journal));
        }
        // Only this sets it.
        let _ = self.disks.owner.set((cluster, node));
        Ok(())
    }
}

/// The folders of the disks that there are to be.
fn folders(data: &Path, list: &DiskList, page_bytes: u64) -> Result<Vec<PathBuf>, NodeDiskError> {
    let (mut list, mut all) = (list.clone(), Vec::new());
    let own = first(data);
    if !list.first_is_out {
        if !own.exists() && page_bytes > 0 {
            let made = staves_directory::make_folder(data);
            made.map_err(|reason| NodeDiskError::Create {
                bytes: page_bytes,
                path: own.display().to_string(),
                reason,
            })?;
            create(&own, page_bytes)?;
        }
        if own.exists() || list.of(&own).is_some() {
            all.push(own.clone());
        }
    }
    let listed = list.disk.into_iter().map(|disk| disk.folder);
    all.extend(listed.filter(|folder| *folder != own));
    Ok(all)
}

impl Disks {
    /// The places of the members that these have; the claims of them. Of two that have the same group, which is so after a crash on the way from one to the other, the
    /// newer counts.
    fn find(&self, started: &[StartedDisk]) -> Vec<Claim> {
        let mut newest: BTreeMap<GroupId, Claim> = BTreeMap::new();
        let mut places = self.places.lock();
        let mut list = self.list.lock();
        for one in started {
            let entry = list.of(one.disk.folder());
            one.disk
                .set_draining(entry.is_some_and(|entry| entry.draining));
            for claim in &one.claims {
                let known = newest.get(&claim.group);
                if known.is_none_or(|known| known.epoch < claim.epoch) {
                    newest.insert(claim.group, *claim);
                    places.homes.insert(claim.group, one.disk.clone());
                }
            }
            // One that is not claimed, because pages of it are bad, may still save others the sending.
            for group in one.disk.recovered() {
                places
                    .homes
                    .entry(group)
                    .or_insert_with(|| one.disk.clone());
            }
        }
        newest.into_values().collect()
    }

    /// All pages of disks that may be in memory.
    fn bound_memory(&self) {
        let bytes = self.memory.min(self.page_bytes());
        self.residency.set_max(bytes / PAGE_BYTES as u64);
    }

    /// Those that are open, failed ones among them.
    pub(crate) fn open_ones(&self) -> Vec<Arc<NodeDisk>> {
        self.open.read().clone()
    }

    /// Bytes of pages that those take which have not failed.
    pub(crate) fn page_bytes(&self) -> u64 {
        let open = self.open.read();
        let sound = open.iter().filter(|disk| disk.failure().is_none());
        sound.map(|disk| disk.page_bytes()).sum()
    }

    /// Bytes of pages of those that buckets may come to: neither failed nor to be emptied. Where all are to be emptied, of all: a member has its place all the same.
    pub(crate) fn room_bytes(&self) -> u64 {
        let open = self.open.read();
        let homes = open.iter().filter(|disk| disk.is_home());
        match homes.map(|disk| disk.page_bytes()).sum() {
            0 => {
                drop(open);
                self.page_bytes()
            }
            bytes => bytes,
        }
    }

    /// The disk of a group's member, or one for a new member: that with the most room for each bucket; one that is to be emptied only if there is no other. `None` if there is no
    /// such disk, or a former member was given up and the directory does not know yet.
    pub(crate) fn place(&self, group: GroupId) -> Option<Arc<NodeDisk>> {
        let mut places = self.places.lock();
        if places.given_up.contains_key(&group) {
            return None;
        }
        if let Some(home) = places.homes.get(&group) {
            return Some(home.clone())
                .filter(|home| home.failure().is_none() && !home.has_lost(group));
        }
        let home = self.roomiest(&places)?;
        let former = places.leaving.get(&group);
        let returns = former.is_some_and(|former| Arc::ptr_eq(former, &home));
        if returns {
            places.leaving.remove(&group);
        }
        places.homes.insert(group, home.clone());
        drop(places);
        // The former member goes first. Nobody else makes this one: its cell is locked.
        if returns {
            home.end(group);
        }
        Some(home)
    }

    /// The disk with the most pages for each bucket, were there one more. Many come to have places before any of them takes room.
    fn roomiest(&self, places: &BucketPlaces) -> Option<Arc<NodeDisk>> {
        let open = self.open_ones();
        let usable = open
            .into_iter()
            .filter(|disk| disk.failure().is_none() && !disk.is_closed());
        usable.max_by_key(|disk| {
            let homes = places.homes.values();
            let here = homes.filter(|home| Arc::ptr_eq(home, disk)).count() as u64;
            let has_room = disk.free_extents() > 0;
            (disk.is_home(), has_room, disk.page_bytes() / (here + 1))
        })
    }

    /// The disk of a group's member, if it is on one.
    pub(crate) fn home(&self, group: GroupId) -> Option<Arc<NodeDisk>> {
        self.places.lock().homes.get(&group).cloned()
    }

    /// A group's member is given up for good, with all that is kept of it.
    pub(crate) fn end(&self, group: GroupId) {
        let home = self.places.lock().homes.remove(&group);
        if let Some(home) = home {
            home.end(group);
        }
    }

    /// The groups on a disk.
    pub(crate) fn groups_on(&self, disk: &Arc<NodeDisk>) -> Vec<GroupId> {
        let places = self.places.lock();
        let here = places
            .homes
            .iter()
            .filter(|(_, home)| Arc::ptr_eq(home, disk));
        here.map(|(group, _)| *group).collect()
    }

    /// A member is not to be used any more, as of an epoch of its group. What a sound disk has of it stays until the group is whole again.
    pub(crate) fn give_up(&self, group: GroupId, epoch: Epoch) {
        let mut places = self.places.lock();
        let Some(home) = places.homes.remove(&group) else {
            return;
        };
        if home.failure().is_none() {
            places.leaving.insert(group, home);
        }
        places.given_up.insert(group, epoch);
    }

    /// A member that was given up had come to this epoch.
    pub(crate) fn raise_given_up(&self, group: GroupId, reached: Epoch) {
        if let Some(epoch) = self.places.lock().given_up.get_mut(&group) {
            *epoch = reached.max(*epoch);
        }
    }

    /// The members that were given up, as of which epochs.
    pub(crate) fn given_up(&self) -> BTreeMap<GroupId, Epoch> {
        self.places.lock().given_up.clone()
    }

    /// The directory knows that a member was given up.
    pub(crate) fn is_known(&self, group: GroupId) {
        self.places.lock().given_up.remove(&group);
    }

    /// The groups whose members left a disk that has them still.
    pub(crate) fn leaving(&self) -> Vec<GroupId> {
        self.places.lock().leaving.keys().copied().collect()
    }

    /// The disk that a group's member left, if it has its bytes still.
    pub(crate) fn left(&self, group: GroupId) -> Option<Arc<NodeDisk>> {
        self.places.lock().leaving.get(&group).cloned()
    }

    /// The bytes of a member that left a disk are not needed any more.
    pub(crate) fn has_left(&self, group: GroupId) {
        let disk = self.places.lock().leaving.remove(&group);
        if let Some(disk) = disk {
            disk.end(group);
        }
    }

    /// True if the bytes of a member that left a disk are of no use there, or hold up those that have not: its records take too much of the journal.
    pub(crate) fn leaving_is_in_vain(&self, group: GroupId) -> bool {
        let places = self.places.lock();
        let disk = places.leaving.get(&group);
        disk.is_some_and(|disk| disk.failure().is_some() || !disk.room().admits())
    }

    /// The reason why the node cannot go on, if there is one: all its disks have failed, or one in such a way that nothing on it can be given up.
    pub(crate) fn why_over(&self) -> Option<String> {
        let open = self.open.read();
        let failed = |disk: &Arc<NodeDisk>| {
            let text = format!("{}: {}", disk.folder().display(), disk.failure()?);
            Some((text, disk.ends_node()))
        };
        let mut failures: Vec<_> = open.iter().filter_map(failed).collect();
        let all = failures.len() == open.len();
        failures.retain(|(_, ends_node)| *ends_node || all);
        failures.into_iter().next().map(|(text, _)| text)
    }

    /// Waits until the node cannot go on; the reason. It takes no bucket's lock, which whoever reads from a disk that hangs holds.
    pub(crate) async fn over(&self) -> String {
        loop {
            let now = Instant::now();
            let open = self.open_ones();
            open.iter().for_each(|disk| disk.look_at_progress(now));
            if let Some(why) = self.why_over() {
                return why;
            }
            tokio::time::sleep(OVER_LOOK).await;
        }
    }

    /// All of them as they stand.
    pub(crate) fn facts(&self) -> Vec<DiskFacts> {
        let of = |disk: &Arc<NodeDisk>| {
            let buckets = self.groups_on(disk).len() as u64;
            let leaves = {
                let places = self.places.lock();
                places
                    .leaving
                    .values()
                    .any(|other| Arc::ptr_eq(other, disk))
            };
            let mut facts = DiskFacts {
                buckets,
                ..disk.facts()
            };
            if facts.state == DiskState::Draining && buckets == 0 && !leaves {
                facts.state = DiskState::Drained;
            }
            facts
        };
        let of_absent = |(folder, why): &(PathBuf, String)| DiskFacts {
            folder: folder.display().to_string(),
            state: DiskState::Failed,
            why: why.clone(),
            ..DiskFacts::default()
        };
        let open = self.open_ones();
        let absent = self.absent.read();
        let absent = absent.iter().map(of_absent);
        open.iter().map(of).chain(absent).collect()
    }
}

#[cfg(test)]
mod tests;
