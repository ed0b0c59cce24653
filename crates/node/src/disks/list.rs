//! The list of a node's disks, in its data folder: those beyond the one that lies there, and what an operator wants of each.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf, absolute};

use serde::{Deserialize, Serialize};
use staves_net::read_small_file;

use crate::disk::NodeDiskError;

/// The file.
const FILE: &str = "disks.toml";
/// The folder of the disk that lies in the data folder itself.
const FIRST: &str = "disk";
/// Most disks of a node.
pub(crate) const DISKS_MAX: usize = 32;
const BYTES_MAX: usize = 1 << 20;

/// A disk in the list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListedDisk {
    /// Its folder, from the root.
    pub(crate) folder: PathBuf,
    /// Its buckets are to be brought elsewhere.
    #[serde(default)]
    pub(crate) draining: bool,
}

/// All of them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiskList {
    /// The disk in the data folder was taken out: none is looked for or made there.
    #[serde(default)]
    pub(crate) first_is_out: bool,
    #[serde(default)]
    pub(crate) disk: Vec<ListedDisk>,
}

/// The folder of the disk that lies in a data folder.
pub(crate) fn first(data: &Path) -> PathBuf {
    data.join(FIRST)
}

fn wrong(path: &Path, reason: String) -> NodeDiskError {
    let path = path.display().to_string();
    NodeDiskError::List { path, reason }
}

impl DiskList {
    /// The list in a data folder; empty if there is none.
    pub(crate) fn read(data: &Path) -> Result<DiskList, NodeDiskError> {
        let path = data.join(FILE);
        let text = match read_small_file(&path, BYTES_MAX) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            // A data folder that is none is refused by who makes it.
            Err(error)
                if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory]
                    .contains(&error.kind()) =>
            {
                return Ok(DiskList::default());
            }
            Err(error) => return Err(wrong(&path, error.to_string())),
        };
        let mut list: DiskList = toml::from_str(&text).map_err(|e| wrong(&path, e.to_string()))?;
        if list.disk.len() > DISKS_MAX {
            let reason = format!("it has more than {DISKS_MAX} disks");
            return Err(wrong(&path, reason));
        }
        for disk in &mut list.disk {
            // Written by a program that kept what it was started with.
            let known = absolute(&disk.folder).ok().filter(|folder| folder.exists());
            disk.folder = known.unwrap_or(std::mem::take(&mut disk.folder));
        }
        for (at, disk) in list.disk.iter().enumerate() {
            let twice = list.disk[..at]
                .iter()
                .any(|other| other.folder == disk.folder);
            if twice || !disk.folder.is_absolute() {
                let what = if twice {
                    "stands twice"
                } else {
                    "is no path from the root"
                };
                return Err(wrong(&path, format!("'{}' {what}", disk.folder.display())));
            }
        }
        Ok(list)
    }

    /// Writes it: as it was, or as it is, whatever happens.
    pub(crate) fn write(&self, data: &Path) -> Result<(), NodeDiskError> {
        let path = data.join(FILE);
        let text = toml::to_string(self).map_err(|error| wrong(&path, error.to_string()))?;
        let write = || {
            let new = data.join(format!("{FILE}.new"));
            std::fs::write(&new, text)?;
            File::open(&new)?.sync_all()?;
            std::fs::rename(&new, &path)?;
            File::open(data)?.sync_all()
        };
        write().map_err(|error: io::Error| wrong(&path, error.to_string()))
    }

    /// The entry of a folder, if it is listed.
    pub(crate) fn of(&mut self, folder: &Path) -> Option<&mut ListedDisk> {
        self.disk.iter_mut().find(|disk| disk.folder == folder)
    }

    /// Notes whether a disk is to be emptied. The one in the data folder is listed for that alone.
    pub(crate) fn set_draining(&mut self, folder: &Path, draining: bool) {
        match self.of(folder) {
            Some(disk) => disk.draining = draining,
            None => self.disk.push(ListedDisk {
                folder: folder.to_owned(),
                draining,
            }),
        }
    }

    /// Strikes a disk out.
    pub(crate) fn strike(&mut self, data: &Path, folder: &Path) {
        self.disk.retain(|disk| disk.folder != folder);
        self.first_is_out |= folder == first(data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let data = tempfile::tempdir().expect("a folder");
        let data = data.path();
        assert_eq!(DiskList::read(data).expect("none"), DiskList::default());
        let mut list = DiskList::default();
        list.set_draining(&first(data), true);
        list.set_draining(Path::new("/mnt/b"), false);
        list.write(data).expect("room");
        assert_eq!(DiskList::read(data).expect("written"), list);
        list.strike(data, &first(data));
        list.strike(data, Path::new("/mnt/b"));
        assert!(list.first_is_out && list.disk.is_empty(), "{list:?}");
        list.write(data).expect("room");
        assert_eq!(DiskList::read(data).expect("written"), list);
    }

    #[test]
    fn folders_of_a_relative_data_folder_are_found_again() {
        let here = std::env::current_dir().expect("it is there");
        let data = tempfile::tempdir_in(&here).expect("a folder");
        let name = data.path().strip_prefix(&here).expect("in it");
        let mut list = DiskList::default();
        list.set_draining(name, true);
        list.write(data.path()).expect("room");
        let mut read = DiskList::read(data.path()).expect("it is there");
        assert!(read.of(data.path()).is_some_and(|disk| disk.draining));
    }

    #[test]
    fn a_list_that_makes_no_sense_is_refused_by_name() {
        let data = tempfile::tempdir().expect("a folder");
        let many: String = (0..=DISKS_MAX)
            .map(|at| format!("[[disk]]\nfolder = '/{at}'\n"))
            .collect();
        for (text, why) in [
            ("disk = 1", "invalid type"),
            ("[[disk]]\nfolder = 'b'", "'b' is no path from the root"),
            (
                "[[disk]]\nfolder = '/b'\n[[disk]]\nfolder = '/b'",
                "'/b' stands twice",
            ),
            ("[[disk]]\nfolder = '/b'\nsize = 3", "unknown field"),
            (&many, "more than 32"),
        ] {
            std::fs::write(data.path().join(FILE), text).expect("room");
            let error = DiskList::read(data.path())
                .expect_err("refused")
                .to_string();
            assert!(error.contains(why) && error.contains(FILE), "{error}");
        }
    }
}
