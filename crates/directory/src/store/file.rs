//! The store's file as it was opened.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Tells a file from a copy of it, also on another disk: the number of its inode, and when that was made (none where the file system does
/// not say). The device is no part of it: some file systems get another at each mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Mark {
    inode: u64,
    made: Option<Duration>,
}

/// The file of a name, and no other that has taken its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StoreFile {
    pub path: PathBuf,
    device: u64,
    inode: u64,
    pub mark: Mark,
}

impl StoreFile {
    pub fn of(path: &Path) -> io::Result<StoreFile> {
        let metadata = std::fs::metadata(path)?;
        let made = metadata.created().ok();
        Ok(StoreFile {
            path: path.to_owned(),
            device: metadata.dev(),
            inode: metadata.ino(),
            mark: Mark {
                inode: metadata.ino(),
                made: made.and_then(|at| at.duration_since(UNIX_EPOCH).ok()),
            },
        })
    }

    /// True if the name leads to nothing, or to another file. A disk that gives errors says neither.
    pub fn is_gone(&self) -> bool {
        match StoreFile::of(&self.path) {
            Ok(found) => found != *self,
            Err(error) => {
                use io::ErrorKind::{NotADirectory, NotFound};
                matches!(error.kind(), NotFound | NotADirectory)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_removed_or_replaced_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f");
        std::fs::write(&path, "1").expect("written");
        let open = StoreFile::of(&path).expect("there");
        std::fs::write(&path, "2").expect("written");
        assert!(!open.is_gone());
        let aside = folder.path().join("g");
        std::fs::rename(&path, &aside).expect("moved");
        assert!(open.is_gone());
        std::fs::write(&path, "2").expect("another");
        assert!(open.is_gone());
        std::fs::rename(&aside, &path).expect("moved back");
        assert!(!open.is_gone());
    }
}
