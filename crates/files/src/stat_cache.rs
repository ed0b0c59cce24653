//! The cache of a source's answers about names, for the time of an outage: files in memory can be opened and read while the
//! file server, or the web server, is away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::answers::Answers;
use crate::entry::{Kind, Stat};
use crate::outage::{ANSWER_AGE_MAX, Outage};

/// The most names of a folder that a mount knows: as many as a server's may have (`remote/bounded.rs`).
const NAMES_MAX: usize = 250_000;
/// Bytes of the longest answer that lists names: a WebDAV server sends a folder's all at once, some 700 bytes each.
const LIST_BYTES_MAX: usize = 64 << 20;

/// The bounds of what a process holds of the names of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NameLimits {
    /// Names that are cached for outages: so many that were asked for (some 440 bytes each), and as many of lists (some 280).
    pub cached: usize,
    /// Bytes of one answer that lists names, and of a manifest.
    pub list_bytes: usize,
}

impl Default for NameLimits {
    /// Those of a mount, which has no bound on its memory but these.
    fn default() -> NameLimits {
        NameLimits {
            cached: NAMES_MAX,
            list_bytes: LIST_BYTES_MAX,
        }
    }
}

/// The attributes of names and the lists of folders, with the time of each answer.
#[derive(Debug)]
pub struct StatCache {
    stats: Mutex<Answers<Option<Stat>>>,
    lists: Mutex<Answers<Arc<FolderList>>>,
    names_max: usize,
}

/// The names in a folder.
type FolderList = BTreeMap<Vec<u8>, Stat>;

/// A list while it is received: empty for good once it has too many names to be kept.
#[derive(Debug)]
pub struct ListRecord {
    names: FolderList,
    names_max: usize,
    is_too_long: bool,
}

impl ListRecord {
    /// Adds a name.
    pub fn add(&mut self, name: &[u8], stat: &Stat) {
        if self.names.len() >= self.names_max {
            self.is_too_long = true;
            self.names.clear();
        }
        if !self.is_too_long {
            self.names.insert(name.to_vec(), stat.clone());
        }
    }
}

impl StatCache {
    /// Of so many names that were asked for, and as many of all lists together.
    pub fn new(names_max: usize) -> StatCache {
        StatCache {
            stats: Mutex::new(Answers::new(names_max)),
            lists: Mutex::new(Answers::new(names_max + 1)),
            names_max,
        }
    }

    /// A list that is to be recorded, without names yet.
    pub fn record(&self) -> ListRecord {
        ListRecord {
            names: FolderList::new(),
            names_max: self.names_max,
            is_too_long: false,
        }
    }

    /// Records the source's answer; `None`: there is no such name, or nothing that can be shown.
    pub fn insert(&self, path: &[u8], stat: Option<&Stat>) {
        self.stats.lock().insert(path, stat.cloned(), 1);
    }

    /// Records the names in a folder.
    pub fn insert_list(&self, folder: &[u8], list: ListRecord) {
        let mut all = self.lists.lock();
        match list.is_too_long {
            true => all.remove(folder),
            false => {
                let names = list.names.len() + 1;
                all.insert(folder, Arc::new(list.names), names);
            }
        }
    }

    /// The last answer for a path, its own or its folder's list, if it counts in an outage.
    pub fn get(&self, path: &[u8], outage: &Outage) -> Option<Stat> {
        let own = {
            let stats = self.stats.lock();
            stats.get(path).map(|own| (own.at, own.value.clone()))
        };
        self.newest(path, own, outage)
    }

    /// The newer one of a path's own answer and its folder's list, if it counts in an outage.
    pub fn newest(
        &self,
        path: &[u8],
        own: Option<(Instant, Option<Stat>)>,
        outage: &Outage,
    ) -> Option<Stat> {
        let (folder, name) = split(path);
        let listed = match path.is_empty() {
            true => None,
            false => {
                let lists = self.lists.lock();
                let listed = lists.get(folder);
                listed.map(|listed| (listed.at, listed.value.get(name).cloned()))
            }
        };
        // Of a name that could not be read then, the list knows nothing.
        let says =
            |stat: &Option<Stat>| !matches!(stat, Some(stat) if stat.kind == Kind::Unreadable);
        let listed = listed.filter(|(_, stat)| says(stat));
        let last = own.into_iter().chain(listed).max_by_key(|(at, _)| *at);
        last.filter(|(at, _)| outage.admits(*at))?.1
    }

    /// True if a path was a file when its folder was listed last, however long ago.
    pub fn has_file(&self, path: &[u8]) -> bool {
        let (folder, name) = split(path);
        let lists = self.lists.lock();
        let stat = lists.get(folder).and_then(|listed| listed.value.get(name));
        stat.is_some_and(|stat| matches!(stat.kind, Kind::File { .. }))
    }

    /// True if a folder was listed before, not too long ago to count in an outage that begins now.
    pub fn has_list(&self, folder: &[u8]) -> bool {
        let lists = self.lists.lock();
        let known = lists.get(folder);
        known.is_some_and(|known| known.at.elapsed() < ANSWER_AGE_MAX)
    }

    /// The last list of a folder, if it counts in an outage.
    pub fn list(&self, folder: &[u8], outage: &Outage) -> Option<Arc<FolderList>> {
        let all = self.lists.lock();
        let listed = all.get(folder)?;
        outage.admits(listed.at).then(|| listed.value.clone())
    }
}

/// A path's folder, and its name there.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    slash.map_or((&path[..0], path), |at| (&path[..at], &path[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(size: u64) -> Stat {
        Stat {
            kind: Kind::Folder,
            size,
            modified: (0, 0),
            executable: false,
            for_all: true,
            links: 1,
            has_holes: false,
        }
    }

    fn list(names: impl IntoIterator<Item = (String, u64)>) -> ListRecord {
        let mut record = StatCache::new(NAMES_MAX).record();
        let mut add = |(name, size): (String, u64)| record.add(name.as_bytes(), &stat(size));
        names.into_iter().for_each(&mut add);
        record
    }

    fn now() -> Outage {
        Outage {
            since: Instant::now(),
            why: String::new(),
            was_reached: true,
        }
    }

    #[test]
    fn the_newest_answer_counts_be_it_of_the_name_or_of_its_folder() {
        let cache = StatCache::new(NAMES_MAX);
        let size = |path: &str| cache.get(path.as_bytes(), &now()).map(|stat| stat.size);
        cache.insert_list(b"", list([("a".into(), 1), ("b".into(), 2)]));
        cache.insert_list(b"a", list([("x".into(), 3)]));
        assert_eq!(
            [size("a"), size("b"), size("a/x")],
            [Some(1), Some(2), Some(3)]
        );
        cache.insert(b"a", Some(&stat(7)));
        cache.insert(b"b", None);
        assert_eq!([size("a"), size("b"), size("c")], [Some(7), None, None]);
        cache.insert_list(b"", list([("b".into(), 9)]));
        assert_eq!([size("a"), size("b")], [None, Some(9)], "'a' was deleted");
        assert_eq!(cache.list(b"a", &now()).expect("it is known").len(), 1);
        assert!(cache.list(b"c", &now()).is_none());
        cache.insert(b"", Some(&stat(5)));
        cache.insert_list(b"", list([]));
        assert_eq!(size(""), Some(5), "no list has the root");
    }

    #[test]
    fn lists_are_bounded() {
        let cache = StatCache::new(NAMES_MAX);
        let names = |count: usize| list((0..count).map(|i| (format!("f{i:06}"), 1)));
        cache.insert_list(b"long", names(NAMES_MAX + 1));
        assert!(cache.list(b"long", &now()).is_none());
        cache.insert_list(b"longest", names(NAMES_MAX));
        assert!(cache.list(b"longest", &now()).is_some());
        for folder in 0..10 {
            cache.insert_list(format!("{folder}").as_bytes(), names(NAMES_MAX / 4 - 1));
        }
        let all = (0..10).filter(|folder| cache.has_list(format!("{folder}").as_bytes()));
        assert_eq!(all.collect::<Vec<_>>(), [6, 7, 8, 9], "the latest");
        assert!(cache.list(b"longest", &now()).is_none());
    }

    /// A node's own memory is for blocks: it caches few names, and none of a long list while it comes.
    #[test]
    fn a_small_cache_keeps_few_names() {
        let cache = StatCache::new(10);
        let mut record = cache.record();
        (0..11).for_each(|i| record.add(format!("f{i:02}").as_bytes(), &stat(i)));
        assert!(record.names.is_empty() && record.is_too_long);
        cache.insert_list(b"long", record);
        assert!(!cache.has_list(b"long"));
        (0..100).for_each(|i| cache.insert(format!("f{i:02}").as_bytes(), Some(&stat(i))));
        let known = |i: &usize| cache.get(format!("f{i:02}").as_bytes(), &now()).is_some();
        assert_eq!((0..100).filter(known).count(), 10);
    }

    /// Regression: of 100,000 files that were looked at, few could be opened in an outage.
    #[test]
    fn as_many_names_are_known_as_a_folder_may_have() {
        let cache = StatCache::new(NAMES_MAX);
        let path = |i: usize| format!("folder/f{i:06}").into_bytes();
        for i in 0..NAMES_MAX + 1000 {
            cache.insert(&path(i), Some(&stat(i as u64)));
        }
        let known = |i| cache.get(&path(i), &now()).map(|stat| stat.size);
        assert_eq!(known(999), None, "the oldest");
        for i in (1000..NAMES_MAX + 1000).step_by(997) {
            assert_eq!(known(i), Some(i as u64));
        }
    }
}
