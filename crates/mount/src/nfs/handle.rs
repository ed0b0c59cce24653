//! File handles: what a client keeps of a file, and shows at each request, perhaps years later.
//!
//! ```text
//! byte  0      the form of this handle, 1
//!       1..3   the path's depth: how many names it has
//!       3..11  digest of dataset and path
//!       11..19 the inode's number: a digest of path and version
//!       19..64 of each name, beginning at the root, some bytes of its digest: 45 / depth, four at most
//! ```
//!
//! Nothing of it is remembered for long: a server that has just started finds the path again, by listing folders and going
//! on into those whose names fit. Shallow paths are found with a listing for each name. So any server of the same dataset
//! understands the handles of any other. No secret is in them: a client that reaches the server may read all of it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::files::{Kind, Stat};
use crate::inodes;
use crate::listing::Listing;

const FORM: u8 = 1;
const HEAD: usize = 19;
/// Longest handle, by the protocol.
pub const HANDLE_BYTES_MAX: usize = 64;
const LEVELS: usize = HANDLE_BYTES_MAX - HEAD;
/// Folders that are listed at most to find a path.
const LISTINGS_MAX: u32 = 4096;

/// Lists a folder; None if there is none.
type Lists<'a, E> = dyn FnMut(&Path, bool) -> Result<Option<Arc<Listing>>, E> + 'a;

/// A handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle {
    bytes: [u8; HANDLE_BYTES_MAX],
    len: usize,
}

/// The number of what is at a path now.
pub fn number(path: &Path, stat: &Stat) -> u64 {
    let version = (stat.kind != Kind::Folder).then_some(stat.version);
    inodes::digest(path, version)
}

impl Handle {
    /// The handle of an inode.
    pub fn new(dataset: u64, path: &Path, number: u64) -> Handle {
        let depth = path.iter().count();
        let width = width(depth);
        let mut bytes = [0; HANDLE_BYTES_MAX];
        bytes[0] = FORM;
        // Deeper paths than this end up at the digest, and are not found.
        let told = u16::try_from(depth).unwrap_or(u16::MAX);
        bytes[1..3].copy_from_slice(&told.to_be_bytes());
        bytes[3..11].copy_from_slice(&digest(dataset, path).to_be_bytes());
        bytes[11..19].copy_from_slice(&number.to_be_bytes());
        let mut len = HEAD;
        for name in path.iter().take(LEVELS / width) {
            bytes[len..len + width].copy_from_slice(&mark(name)[..width]);
            len += width;
        }
        Handle { bytes, len }
    }

    /// Decodes a client's handle; None if it is none of ours.
    pub fn parse(sent: &[u8]) -> Option<Handle> {
        let mut bytes = [0; HANDLE_BYTES_MAX];
        bytes.get_mut(..sent.len())?.copy_from_slice(sent);
        let len = sent.len();
        let handle = Handle { bytes, len };
        let depth = handle.depth();
        let width = width(depth);
        let ours = bytes[0] == FORM && len == HEAD + width * depth.min(LEVELS / width);
        ours.then_some(handle)
    }

    /// As it is sent.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The inode's number.
    pub fn number(&self) -> u64 {
        u64::from_be_bytes(self.bytes[11..19].try_into().expect("eight bytes"))
    }

    /// True if it is of this path.
    pub fn is_of(&self, dataset: u64, path: &Path) -> bool {
        self.bytes[3..11] == digest(dataset, path).to_be_bytes()
    }

    fn depth(&self) -> usize {
        usize::from(u16::from_be_bytes([self.bytes[1], self.bytes[2]]))
    }

    /// True if the name at a level may be this one.
    fn fits(&self, level: usize, name: &OsStr) -> bool {
        let width = width(self.depth());
        let marks = &self.bytes[HEAD..self.len];
        let told = marks.get(level * width..(level + 1) * width);
        told.is_none_or(|told| told == &mark(name)[..width])
    }

    /// Its path, if it is that of a name in this folder.
    pub fn find_in(&self, dataset: u64, folder: &Path, names: &Listing) -> Option<PathBuf> {
        let level = folder.iter().count();
        if level + 1 != self.depth() {
            return None;
        }
        let fit = names.iter().filter(|(name, _)| self.fits(level, name));
        let mut paths = fit.map(|(name, _)| folder.join(name));
        paths.find(|path| self.is_of(dataset, path))
    }

    /// Finds its path by listing folders, of which `list` is also told whether it is the one that the name itself should be in. None if
    /// there is none any more, or if too many names fit.
    pub fn find<E>(&self, dataset: u64, list: &mut Lists<'_, E>) -> Result<Option<PathBuf>, E> {
        self.find_below(dataset, list, PathBuf::new(), 0, &mut { LISTINGS_MAX })
    }

    fn find_below<E>(
        &self,
        dataset: u64,
        list: &mut Lists<'_, E>,
        path: PathBuf,
        level: usize,
        listings_left: &mut u32,
    ) -> Result<Option<PathBuf>, E> {
        let last = level + 1 == self.depth();
        if level == self.depth() {
            return Ok(self.is_of(dataset, &path).then_some(path));
        }
        if *listings_left == 0 {
            return Ok(None);
        }
        *listings_left -= 1;
        let Some(names) = list(&path, last)? else {
            return Ok(None);
        };
        let fit = |(name, stat): &(&OsStr, &Stat)| {
            self.fits(level, name) && (last || stat.kind == Kind::Folder)
        };
        let fitting = names.iter().filter(fit).map(|(name, _)| path.join(name));
        if last {
            let mut paths = fitting;
            return Ok(paths.find(|path| self.is_of(dataset, path)));
        }
        // Of a folder of very many, no more than may be listed; and its own list is not held while those below it are looked at.
        let fitting: Vec<PathBuf> = fitting.take(*listings_left as usize).collect();
        drop(names);
        for below in fitting {
            let found = self.find_below(dataset, list, below, level + 1, listings_left)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// Bytes that a handle has for each name.
fn width(depth: usize) -> usize {
    (LEVELS / depth.max(1)).clamp(1, 4)
}

fn mark(name: &OsStr) -> [u8; 8] {
    xxh3_64(name.as_bytes()).to_be_bytes()
}

fn digest(dataset: u64, path: &Path) -> u64 {
    xxh3_64_with_seed(path.as_os_str().as_bytes(), dataset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{FileError, Files};
    use crate::folder::Folder;

    fn find(handle: &Handle, dataset: u64, folder: &Folder) -> Result<Option<PathBuf>, FileError> {
        let mut list = |path: &Path, _| folder.list(path).map(|names| Some(Arc::new(names)));
        handle.find(dataset, &mut list)
    }

    fn deep(depth: usize) -> PathBuf {
        (0..depth).map(|i| format!("f{i}")).collect()
    }

    #[test]
    fn a_handle_is_what_it_was_after_its_journey_and_nothing_else_is_one() {
        for depth in [0, 1, 2, 9, 11, 12, 22, 23, 45, 46, 300] {
            let handle = Handle::new(7, &deep(depth), 99);
            assert!(handle.as_bytes().len() <= HANDLE_BYTES_MAX);
            assert_eq!(Handle::parse(handle.as_bytes()), Some(handle), "{depth}");
            assert_eq!(handle.number(), 99);
            assert!(handle.is_of(7, &deep(depth)) && !handle.is_of(8, &deep(depth)));
            let sent = handle.as_bytes();
            assert_eq!(Handle::parse(&sent[..sent.len() - 1]), None);
            assert_eq!(Handle::parse(&[sent, &[0]].concat()), None);
        }
        assert_eq!(Handle::parse(&[]), None);
        assert_eq!(Handle::parse(&[FORM; 65]), None);
        assert_eq!(Handle::parse(&[9; 19]), None);
    }

    #[test]
    fn a_path_is_found_by_its_handle_alone_among_many_and_at_any_depth() {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..40 {
            std::fs::create_dir_all(dir.path().join(format!("{i}/x/y"))).unwrap();
            std::fs::write(dir.path().join(format!("{i}/x/y/file")), b"").unwrap();
        }
        std::fs::create_dir_all(dir.path().join(deep(100))).unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        for path in ["", "17", "39/x", "23/x/y/file"].map(PathBuf::from) {
            let handle = Handle::new(7, &path, 1);
            assert_eq!(find(&handle, 7, &folder), Ok(Some(path)));
            assert_eq!(find(&handle, 8, &folder), Ok(None), "of another dataset");
        }
        for depth in [45, 46, 100] {
            let handle = Handle::new(7, &deep(depth), 1);
            assert_eq!(find(&handle, 7, &folder), Ok(Some(deep(depth))));
        }
        // Regression: the list of each folder on the way was held, whatever number of names it had.
        let mut listed: Vec<std::sync::Weak<Listing>> = Vec::new();
        let mut list = |path: &Path, _| {
            assert!(
                listed.iter().all(|list| list.strong_count() == 0),
                "one at a time"
            );
            let names = folder.list(path).map(Arc::new)?;
            listed.push(Arc::downgrade(&names));
            Ok::<_, FileError>(Some(names))
        };
        let handle = Handle::new(7, Path::new("23/x/y/file"), 1);
        let found = handle.find(7, &mut list);
        assert_eq!(found, Ok(Some(PathBuf::from("23/x/y/file"))));
        std::fs::remove_file(dir.path().join("3/x/y/file")).unwrap();
        let gone = Handle::new(7, Path::new("3/x/y/file"), 1);
        assert_eq!(find(&gone, 7, &folder), Ok(None));
        assert_eq!(find(&Handle::new(7, &deep(101), 1), 7, &folder), Ok(None));
    }
}
