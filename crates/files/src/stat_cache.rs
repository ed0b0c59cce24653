//! The cache of a source's answers about names, for the time of an outage: files in memory can be opened and read while the
//! file server, or the web server, is away.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::entry::{Kind, Stat};
use crate::outage::{ANSWER_AGE_MAX, Outage};

/// The most names in the cache, those of lists apart.
const REMEMBERED_MAX: usize = 1 << 14;
/// The most names of all lists together, and of one.
const LISTED_MAX: usize = 1 << 16;

/// The attributes of names and the lists of folders, with the time of each answer.
#[derive(Debug, Default)]
pub struct StatCache {
    stats: Mutex<Answers<Option<Stat>>>,
    lists: Mutex<Answers<Arc<FolderList>>>,
}

/// By path, with the time of each.
type Answers<T> = HashMap<Vec<u8>, (Instant, T)>;

/// The names in a folder.
type FolderList = BTreeMap<Vec<u8>, Stat>;

/// A list while it is received: empty for good once it has too many names to be kept.
#[derive(Debug, Default)]
pub struct ListRecord {
    names: FolderList,
    is_too_long: bool,
}

impl ListRecord {
    /// Adds a name.
    pub fn add(&mut self, name: &[u8], stat: &Stat) {
        if self.names.len() >= LISTED_MAX {
            self.is_too_long = true;
            self.names.clear();
        }
        if !self.is_too_long {
            self.names.insert(name.to_vec(), stat.clone());
        }
    }
}

impl StatCache {
    /// Records the source's answer; `None`: there is no such name, or nothing that can be shown.
    pub fn insert(&self, path: &[u8], stat: Option<&Stat>) {
        let mut all = self.stats.lock();
        if all.len() >= REMEMBERED_MAX && !all.contains_key(path) {
            all.retain(|_, (at, _)| at.elapsed() < ANSWER_AGE_MAX);
            if all.len() >= REMEMBERED_MAX {
                all.clear();
            }
        }
        all.insert(path.to_owned(), (Instant::now(), stat.cloned()));
    }

    /// Records the names in a folder.
    pub fn insert_list(&self, folder: &[u8], list: ListRecord) {
        let mut all = self.lists.lock();
        all.remove(folder);
        if list.is_too_long {
            return;
        }
        let count = |all: &Answers<Arc<FolderList>>| -> usize {
            all.values().map(|(_, list)| list.len() + 1).sum()
        };
        let more = list.names.len() + 1;
        if count(&all) + more > LISTED_MAX {
            all.retain(|_, (at, _)| at.elapsed() < ANSWER_AGE_MAX);
            if count(&all) + more > LISTED_MAX {
                all.clear();
            }
        }
        all.insert(folder.to_owned(), (Instant::now(), Arc::new(list.names)));
    }

    /// The last answer for a path, its own or its folder's list, if it counts in an outage.
    pub fn get(&self, path: &[u8], outage: &Outage) -> Option<Stat> {
        let own = self.stats.lock().get(path).cloned();
        self.newest(path, own, outage)
    }

    /// The newer one of a path's own answer and its folder's list, if it counts in an outage.
    pub fn newest(
        &self,
        path: &[u8],
        own: Option<(Instant, Option<Stat>)>,
        outage: &Outage,
    ) -> Option<Stat> {
        let slash = path.iter().rposition(|byte| *byte == b'/');
        let (folder, name) = slash.map_or((&path[..0], path), |at| (&path[..at], &path[at + 1..]));
        let listed = match path.is_empty() {
            true => None,
            false => self.lists.lock().get(folder).cloned(),
        };
        let listed = listed.map(|(at, names)| (at, names.get(name).cloned()));
        // Of a name that could not be read then, the list knows nothing.
        let says =
            |stat: &Option<Stat>| !matches!(stat, Some(stat) if stat.kind == Kind::Unreadable);
        let listed = listed.filter(|(_, stat)| says(stat));
        let last = own.into_iter().chain(listed).max_by_key(|(at, _)| *at);
        last.filter(|(at, _)| outage.admits(*at))?.1
    }

    /// True if a folder was listed before, not too long ago to count in an outage that begins now.
    pub fn has_list(&self, folder: &[u8]) -> bool {
        let lists = self.lists.lock();
        let known = lists.get(folder);
        known.is_some_and(|(at, _)| at.elapsed() < ANSWER_AGE_MAX)
    }

    /// The last list of a folder, if it counts in an outage.
    pub fn list(&self, folder: &[u8], outage: &Outage) -> Option<Arc<FolderList>> {
        let all = self.lists.lock();
        let (at, names) = all.get(folder)?;
        outage.admits(*at).then(|| names.clone())
    }
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
        let mut record = ListRecord::default();
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
        let cache = StatCache::default();
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
        let cache = StatCache::default();
        let names = |count: usize| list((0..count).map(|i| (format!("f{i:06}"), 1)));
        cache.insert_list(b"long", names(LISTED_MAX + 1));
        assert!(cache.list(b"long", &now()).is_none());
        for folder in 0..10 {
            cache.insert_list(format!("{folder}").as_bytes(), names(LISTED_MAX / 4));
        }
        let known = cache.lists.lock();
        let known: usize = known.values().map(|(_, list)| list.len() + 1).sum();
        assert!(known <= LISTED_MAX, "{known}");
    }
}
