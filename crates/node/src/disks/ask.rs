//! The changes of a node's disks that operators ask for.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use staves_model::units::count;
use staves_model::{ClusterId, NodeId};

use super::Disks;
use super::list::{DISKS_MAX, DiskList};
use crate::disk::{ClosedDisk, DrivenJournal, NodeDisk, NodeDiskError, StartedDisk, create};

/// Fewest bytes of pages of a disk.
const BYTES_MIN: u64 = 1 << 20;

impl Disks {
    /// Makes a further disk of so many bytes of pages in a folder that is not there yet, and opens it; [`Disks::takes`] has it used. May take long; the caller holds `changing`.
    ///
    /// # Errors
    /// The folder is none for a disk, or there is no room: nothing is left of it.
    pub(crate) fn make(
        &self,
        folder: PathBuf,
        bytes: u64,
    ) -> Result<(Arc<NodeDisk>, DrivenJournal), NodeDiskError> {
        let owner = self.owner.get().filter(|_| self.data.is_some());
        let Some((cluster, node)) = owner else {
            return Err(NodeDiskError::NoFolder);
        };
        let parent = folder.parent().filter(|_| folder.is_absolute());
        let whole: PathBuf = folder.components().collect();
        let is_plain = folder
            .components()
            .all(|c| matches!(c, Component::RootDir | Component::Normal(_)))
            && whole.as_os_str() == folder.as_os_str();
        let reason = match parent {
            None => Some("give a path from the root"),
            Some(_) if !is_plain || folder.file_name().is_none() => {
                Some("give it without '..', '.' and doubled slashes")
            }
            Some(_) if folder.exists() && !self.was_left(&folder, (*cluster, *node)) => {
                Some("it is there already: give the name of a new folder")
            }
            Some(parent) if !parent.is_dir() => Some("the folder around it is not there"),
            Some(_) if bytes < BYTES_MIN => Some("it is to take 1 MiB at least"),
            Some(_) => None,
        };
        if let Some(reason) = reason {
            return Err(bad_folder(&folder, reason));
        }
        if self.known().len() >= DISKS_MAX {
            return Err(NodeDiskError::TooMany { most: DISKS_MAX });
        }
        let made = || {
            if folder.exists() {
                tracing::info!(disk = %folder.display(), "an empty disk of this node that is not in use is made anew");
                let removed = std::fs::remove_dir_all(&folder);
                removed.map_err(|error| bad_folder(&folder, &error.to_string()))?;
            }
            create(&folder, bytes)?;
            let opened =
                StartedDisk::open(folder.clone(), self.residency.clone(), self.wake.clone());
            let mut started = opened?;
            started.own(*cluster, *node)?;
            Ok((started.disk, started.journal))
        };
        let made = made();
        if made.is_err() {
            let _ = std::fs::remove_dir_all(&folder);
        }
        made
    }

    /// True if a folder is a disk that this node made, and does not use, and that has nothing: the node ended before it was listed, or it was taken out.
    fn was_left(&self, folder: &Path, own: (ClusterId, NodeId)) -> bool {
        let is_used = self.known().iter().any(|known| known == folder);
        let is_empty = |disk: ClosedDisk| {
            disk.owner.is_none_or(|owner| owner == own) && disk.opened.members.is_empty()
        };
        !is_used && ClosedDisk::open(folder.to_owned()).is_ok_and(is_empty)
    }

    /// A disk that was made, and whose threads run, is listed, and takes buckets from now on.
    ///
    /// # Errors
    /// The list cannot be written.
    pub(crate) fn takes(&self, disk: Arc<NodeDisk>) -> Result<(), NodeDiskError> {
        self.change_list(|list, _| list.set_draining(disk.folder(), false))?;
        self.open.write().push(disk);
        self.bound_memory();
        self.wake.notify_one();
        Ok(())
    }

    fn change_list(&self, change: impl FnOnce(&mut DiskList, &Path)) -> Result<(), NodeDiskError> {
        let data = self.data.as_ref().ok_or(NodeDiskError::NoFolder)?;
        let mut list = self.list.lock();
        let mut then = list.clone();
        change(&mut then, data);
        then.write(data)?;
        *list = then;
        Ok(())
    }

    /// Has all that is on a disk brought elsewhere, or lets it take buckets again.
    ///
    /// # Errors
    /// There is no such disk, or no other; the list cannot be written.
    pub(crate) fn drain(&self, folder: &Path, on: bool) -> Result<(), NodeDiskError> {
        let _alone = self.changing.lock();
        let open = self.open_ones();
        let Some(disk) = open.iter().find(|disk| disk.folder() == folder) else {
            return Err(self.unknown(folder));
        };
        let mut others = open.iter().filter(|other| other.folder() != folder);
        if on && !others.any(|other| other.is_home()) {
            let path = folder.display().to_string();
            return Err(NodeDiskError::Only { path });
        }
        self.change_list(|list, _| list.set_draining(folder, on))?;
        disk.set_draining(on);
        self.wake.notify_one();
        Ok(())
    }

    /// Takes a disk out that has nothing any more, or has failed. Its files stay.
    ///
    /// # Errors
    /// There is no such disk, or it has buckets; the list cannot be written.
    pub(crate) fn take_out(&self, folder: &Path) -> Result<(), NodeDiskError> {
        let _alone = self.changing.lock();
        let open = self.open_ones();
        let disk = open.iter().find(|disk| disk.folder() == folder);
        let is_absent = self
            .absent
            .read()
            .iter()
            .any(|(absent, _)| absent == folder);
        if disk.is_none() && !is_absent {
            return Err(self.unknown(folder));
        }
        if let Some(disk) = disk {
            self.close_empty(disk)?;
        }
        if let Err(error) = self.change_list(|list, data| list.strike(data, folder)) {
            disk.iter().for_each(|disk| disk.set_closed(false));
            return Err(error);
        }
        self.absent.write().retain(|(absent, _)| absent != folder);
        self.open.write().retain(|disk| disk.folder() != folder);
        disk.iter().for_each(|disk| disk.close());
        self.bound_memory();
        self.wake.notify_one();
        Ok(())
    }

    /// From now on a disk has no members; an error if it has some.
    fn close_empty(&self, disk: &Arc<NodeDisk>) -> Result<(), NodeDiskError> {
        let places = self.places.lock();
        let homes = places.homes.values().chain(places.leaving.values());
        let buckets = homes.filter(|home| Arc::ptr_eq(home, disk)).count();
        if buckets > 0 || disk.is_home() {
            let path = disk.folder().display().to_string();
            return Err(NodeDiskError::Holds { path, buckets });
        }
        disk.set_closed(true);
        Ok(())
    }

    /// The folders of all.
    fn known(&self) -> Vec<PathBuf> {
        let open = self.open_ones();
        let open = open.iter().map(|disk| disk.folder().to_owned());
        let absent = self.absent.read();
        open.chain(absent.iter().map(|(folder, _)| folder.clone()))
            .collect()
    }

    fn unknown(&self, folder: &Path) -> NodeDiskError {
        let known = self.known();
        let names: Vec<String> = known.iter().map(|one| one.display().to_string()).collect();
        NodeDiskError::Unknown {
            path: folder.display().to_string(),
            known: match names.len() {
                0 => "none".to_owned(),
                1..=4 => names.join(", "),
                many => format!("{}, {} among them", count(many as u64, "disk"), names[0]),
            },
        }
    }
}

fn bad_folder(folder: &Path, reason: &str) -> NodeDiskError {
    NodeDiskError::BadFolder {
        path: folder.display().to_string(),
        reason: reason.to_owned(),
    }
}
