//! The inodes that the kernel knows: a number for each version of each path.
//!
//! A number stands for one version of a file, so that the kernel's pages of two versions never mix: a new version is
//! another inode. Numbers are digests of path and version, the same at each mount. The table holds the inodes that the kernel
//! has looked up and not yet forgotten. Past a limit the kernel is asked to forget names ([`Inodes::surplus`]); past twice
//! the limit, look-ups fail. A folder is forgotten only if no known inode lies in it: the kernel would drop all
//! that is below, in use or not.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::files::{Kind, Stat, Version};

/// The root's number, by the kernel's protocol.
pub const ROOT: u64 = 1;
/// Numbers below are not given out.
const FIRST: u64 = 16;
/// The time that the kernel is given to drop pages, once an open was answered that requires it.
const LET_GO: Duration = Duration::from_secs(2);

/// The number of a version of a path, if no other has the same.
pub fn digest(path: &Path, version: Option<Version>) -> u64 {
    let seed = version.map_or(0, |Version([a, b])| a ^ b.rotate_left(1) | 1);
    xxh3_64_with_seed(path.as_os_str().as_bytes(), seed).max(FIRST)
}

#[derive(Debug)]
struct Inode {
    path: Arc<Path>,
    /// None for folders: they stay the same inode whatever is in them.
    version: Option<Version>,
    /// The lookups that the kernel has not forgotten.
    told: u64,
    /// Another version of the path was seen since.
    stale: bool,
    pages: Pages,
}

/// The pages of a file in the kernel.
#[derive(Clone, Copy, Debug)]
enum Pages {
    /// Bytes of this version, if any.
    Sound,
    /// They may have been read while the file was fresh: it may have changed since, and have the same version.
    Doubtful,
    /// It was asked then to drop such pages.
    LetGo(Instant),
}

impl Inode {
    fn new(path: Arc<Path>, version: Option<Version>) -> Inode {
        Inode {
            path,
            version,
            told: 1,
            stale: false,
            pages: Pages::Sound,
        }
    }
}

/// The inode of a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownInode {
    /// Its path.
    pub path: Arc<Path>,
    /// Its version, if it is no folder.
    pub version: Option<Version>,
    /// Another version of the path was seen since.
    pub stale: bool,
}

/// The answer to a look-up.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// The inode.
    pub number: u64,
    /// The inode of another version of the same path, which is stale from now on.
    pub replaced: Option<u64>,
}

/// The table.
#[derive(Debug)]
pub struct Inodes {
    by_number: HashMap<u64, Inode>,
    /// The newest inode of each path.
    newest: HashMap<Arc<Path>, u64>,
    /// The number of inodes right in a folder.
    within: HashMap<Arc<Path>, usize>,
    limit: usize,
    /// The place for the next search for surplus inodes.
    cursor: usize,
}

impl Inodes {
    /// Only the root.
    pub fn new(limit: usize) -> Inodes {
        let root: Arc<Path> = Path::new("").into();
        let inode = Inode::new(root.clone(), None);
        Inodes {
            by_number: HashMap::from([(ROOT, inode)]),
            newest: HashMap::from([(root, ROOT)]),
            within: HashMap::new(),
            limit,
            cursor: 0,
        }
    }

    /// The inode of a number.
    pub fn get(&self, number: u64) -> Option<KnownInode> {
        let inode = self.by_number.get(&number)?;
        Some(KnownInode {
            path: inode.path.clone(),
            version: inode.version,
            stale: inode.stale,
        })
    }

    /// Counts one more look-up of an entry by the kernel, which is the newest of its path from then on. None if the table is full.
    pub fn tell(&mut self, path: &Path, stat: &Stat) -> Option<Found> {
        let number = self.tell_aside(path, stat)?;
        let inode = self.by_number.get_mut(&number)?;
        // It may be a version that was there before: then it is the newest again.
        inode.stale = false;
        let path = inode.path.clone();
        let replaced = self.newest.insert(path, number).filter(|&n| n != number);
        if let Some(old) = replaced.and_then(|n| self.by_number.get_mut(&n)) {
            old.stale = true;
        }
        Some(Found { number, replaced })
    }

    /// Counts one more look-up of an entry by the kernel, beside the newest of its path. None if the table is full.
    pub fn tell_aside(&mut self, path: &Path, stat: &Stat) -> Option<u64> {
        let version = (stat.kind != Kind::Folder).then_some(stat.version);
        let number = self.number(path, version);
        let full = self.by_number.len() >= self.limit.saturating_mul(2);
        match self.by_number.entry(number) {
            Entry::Occupied(mut known) => {
                known.get_mut().told += 1;
            }
            Entry::Vacant(_) if full => return None,
            Entry::Vacant(free) => {
                free.insert(Inode::new(path.into(), version));
                self.count_in(path);
            }
        }
        Some(number)
    }

    /// The number of an entry that is shown without a look-up.
    pub fn number(&self, path: &Path, version: Option<Version>) -> u64 {
        let mut number = digest(path, version);
        // Two of 2^64 that are the same: the later one is moved on.
        while let Some(other) = self.by_number.get(&number)
            && (&*other.path != path || other.version != version)
        {
            number = number.wrapping_add(1).max(FIRST);
        }
        number
    }

    /// Another version of this inode's path was seen. False if that was known.
    pub fn outdate(&mut self, number: u64) -> bool {
        match self.by_number.get_mut(&number) {
            Some(inode) => !std::mem::replace(&mut inode.stale, true),
            None => false,
        }
    }

    /// The kernel has forgotten so many tellings.
    pub fn forget(&mut self, number: u64, times: u64) {
        if number == ROOT {
            return;
        }
        let Entry::Occupied(mut known) = self.by_number.entry(number) else {
            return;
        };
        known.get_mut().told = known.get().told.saturating_sub(times);
        if known.get().told > 0 {
            return;
        }
        let inode = known.remove();
        if self.newest.get(&inode.path) == Some(&number) {
            self.newest.remove(&inode.path);
        }
        self.count_out(&inode.path);
    }

    fn count_in(&mut self, path: &Path) {
        let Some(folder) = path.parent() else { return };
        match self.within.get_mut(folder) {
            Some(count) => *count += 1,
            None => drop(self.within.insert(folder.into(), 1)),
        }
    }

    fn count_out(&mut self, path: &Path) {
        let Some(folder) = path.parent() else { return };
        if let Some(count) = self.within.get_mut(folder) {
            *count -= 1;
            if *count == 0 {
                self.within.remove(folder);
            }
        }
    }

    /// A file is opened, which is fresh or not. Whether the kernel may keep the pages that it has of it: never those that it may
    /// have read while the file was fresh.
    pub fn opened(&mut self, number: u64, fresh: bool, now: Instant) -> bool {
        let Some(inode) = self.by_number.get_mut(&number) else {
            return false;
        };
        inode.pages = match inode.pages {
            _ if fresh => Pages::Doubtful,
            Pages::Doubtful => Pages::LetGo(now),
            Pages::LetGo(since) if now.duration_since(since) >= LET_GO => Pages::Sound,
            same => same,
        };
        matches!(inode.pages, Pages::Sound)
    }

    /// The number of inodes.
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// True if the newest known version of a path is another than this.
    pub fn is_news(&self, path: &Path, stat: &Stat) -> bool {
        let version = (stat.kind != Kind::Folder).then_some(stat.version);
        let known = self.newest.get(path).and_then(|n| self.by_number.get(n));
        known.is_some_and(|inode| inode.version != version)
    }

    /// Names that the kernel should forget, by the number of their folder, if there are more than the limit:
    /// an eighth of the limit at a time, other ones each time.
    pub fn surplus(&mut self) -> Vec<(u64, OsString)> {
        let mut names = Vec::new();
        if self.len() <= self.limit {
            return names;
        }
        let some = self.limit / 8 + 1;
        self.cursor = (self.cursor + some) % self.len();
        let (before, after) = (self.cursor, self.len() - self.cursor);
        let from = self.by_number.values().skip(before);
        let round = from.take(after).chain(self.by_number.values().take(before));
        let loose = |i: &&Inode| i.version.is_some() || !self.within.contains_key(&i.path);
        for inode in round.filter(loose).take(some) {
            let folder = inode.path.parent().and_then(|p| self.newest.get(p));
            let name = inode.path.file_name().map(OsStr::to_owned);
            if let (Some(&folder), Some(name)) = (folder, name) {
                names.push((folder, name));
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn stat(version: u64) -> Stat {
        Stat {
            kind: Kind::File,
            size: 1,
            modified: SystemTime::UNIX_EPOCH,
            mode: 0o644,
            version: Version([version, 0]),
            fresh: false,
            has_holes: false,
            links: 1,
        }
    }

    fn folder() -> Stat {
        Stat {
            kind: Kind::Folder,
            ..stat(0)
        }
    }

    #[test]
    fn a_number_is_the_same_for_a_version_and_another_for_the_next() {
        let path = Path::new("a/b");
        let mut one = Inodes::new(100);
        let mut two = Inodes::new(100);
        let first = one.tell(path, &stat(1)).unwrap();
        assert_eq!(two.tell(path, &stat(1)).unwrap().number, first.number);
        let second = one.tell(path, &stat(2)).unwrap();
        assert_ne!(second.number, first.number);
        assert_eq!(second.replaced, Some(first.number));
        assert!(one.get(first.number).unwrap().stale);
        assert!(!one.get(second.number).unwrap().stale);
        // Back to what was there before.
        assert_eq!(one.tell(path, &stat(1)).unwrap().number, first.number);
        assert!(!one.get(first.number).unwrap().stale);
        assert!(one.get(second.number).unwrap().stale);
    }

    #[test]
    fn a_folder_stays_the_same_inode_whatever_its_version() {
        let mut inodes = Inodes::new(100);
        let first = inodes.tell(Path::new("a"), &folder()).unwrap();
        let changed = Stat {
            version: Version([9, 9]),
            ..folder()
        };
        let second = inodes.tell(Path::new("a"), &changed).unwrap();
        assert_eq!(second.number, first.number);
        assert_eq!(second.replaced, None);
    }

    #[test]
    fn what_the_kernel_forgot_is_gone_and_no_sooner() {
        let mut inodes = Inodes::new(100);
        let number = inodes.tell(Path::new("a"), &stat(1)).unwrap().number;
        inodes.tell(Path::new("a"), &stat(1)).unwrap();
        inodes.forget(number, 1);
        assert!(inodes.get(number).is_some());
        inodes.forget(number, 1);
        assert!(inodes.get(number).is_none());
        inodes.forget(number, 1);
        inodes.forget(ROOT, 1_000);
        assert_eq!(inodes.len(), 1, "the root stays");
    }

    #[test]
    fn the_table_is_bounded() {
        let mut inodes = Inodes::new(100);
        let root_names = |i: u32| std::path::PathBuf::from(format!("f{i}"));
        for i in 0..99 {
            inodes.tell(&root_names(i), &stat(1)).unwrap();
        }
        assert!(inodes.surplus().is_empty());
        for i in 99..199 {
            inodes.tell(&root_names(i), &stat(1)).unwrap();
        }
        let surplus = inodes.surplus();
        assert!(surplus.len() > 10 && surplus.iter().all(|(folder, _)| *folder == ROOT));
        assert_eq!(inodes.tell(&root_names(199), &stat(1)), None, "full");
        let known = inodes.tell(&root_names(7), &stat(1)).unwrap();
        inodes.forget(known.number, 2);
        assert!(inodes.tell(&root_names(199), &stat(1)).is_some());
    }
    #[test]
    fn folders_are_given_up_from_the_leaves_on_and_the_table_stays_bounded() {
        let mut inodes = Inodes::new(100);
        let name = |i: u32| std::path::PathBuf::from(format!("a/f{i}"));
        let top = inodes.tell(Path::new("a"), &folder()).unwrap().number;
        for i in 0..10_000 {
            let known = inodes.tell(&name(i), &folder());
            assert!(known.is_some(), "full at {i}");
            for (within, name) in inodes.surplus() {
                assert_eq!(within, top, "what is known within another");
                let path = Path::new("a").join(name);
                let number = inodes.number(&path, None);
                inodes.forget(number, 1);
            }
            assert!(inodes.len() <= 102, "{} at {i}", inodes.len());
        }
        for i in 0..10_000 {
            inodes.forget(inodes.number(&name(i), None), 1);
        }
        assert_eq!((inodes.len(), inodes.within.len()), (2, 1));
        inodes.forget(top, 1);
        assert_eq!((inodes.len(), inodes.within.len()), (1, 0));
    }

    #[test]
    fn pages_that_may_have_been_read_while_a_file_was_fresh_are_not_kept() {
        let mut inodes = Inodes::new(100);
        let number = inodes.tell(Path::new("a"), &stat(1)).unwrap().number;
        let now = Instant::now();
        assert!(inodes.opened(number, false, now));
        assert!(!inodes.opened(number, true, now));
        assert!(!inodes.opened(number, false, now), "let go first");
        assert!(!inodes.opened(number, false, now), "it may not have yet");
        assert!(!inodes.opened(number, true, now + LET_GO));
        assert!(!inodes.opened(number, false, now + LET_GO));
        assert!(inodes.opened(number, false, now + LET_GO * 2));
        assert!(!inodes.opened(99, false, now), "not known");
    }
}
