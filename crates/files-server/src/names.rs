//! Walks through the names of a dataset to find what a few digests stand for.
//!
//! A node knows blocks by the digest of their file's version, and nothing leads back from a digest to a name. So no
//! node keeps a table of names for the day when another is lost: on that day the names are gone through once. A file that
//! has changed has another digest by now, and is not found.
//!
//! **Bounds.** The memory of a walk counts in the node's (`room.rs`). Of a folder's names only folders and files that are
//! wanted are kept, so many at a time, in their order: of a folder with more of them the next ones are listed again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use staves_files::{FileVersion, Kind, NameLimits, Source, SourceError, Stat};
use staves_wire::files::FileId;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::mpsc;

/// Folders within folders that are followed.
const DEPTH_MAX: usize = 64;
/// Files that were found and are not taken yet.
const FOUND_MAX: usize = 16;
/// Bytes of a name that is kept: its own, those of a version, and what holds them.
const KEPT_BYTES: usize = 512;
/// The fewest names that are kept of a folder at a time.
const KEPT_MIN: usize = 16;
/// Bytes of a name in the list of a server, which is in memory as a whole. What lies in a larger folder comes when it is asked for.
const LISTED_BYTES: usize = 500;
/// With no name in such a time the source is taken for gone. A server's names of a folder come all at once.
const SILENT_MAX: Duration = Duration::from_secs(120);
/// The longest pass over the names.
const WALK_MAX: Duration = Duration::from_secs(1800);

/// Names of a source that a node caches.
const NAMES_CACHED_MAX: usize = 1000;
/// An answer that lists names is there so many times at once: as it came, parsed, and in the lists that are made of it.
const LIST_COPIES: usize = 4;

/// The source by its words; its names may take so many bytes. It is asked for files by their versions: only a walk lists. A bucket's
/// credentials are read from files, which may be on a file server that does not answer for seconds: others' work goes on meanwhile.
pub(super) fn open_source(source: &str, names_bytes: usize) -> Result<Source, SourceError> {
    let limits = NameLimits {
        cached: NAMES_CACHED_MAX,
        list_bytes: names_bytes / LIST_COPIES,
    };
    let here = Handle::try_current().map(|handle| handle.runtime_flavor());
    match here {
        Ok(RuntimeFlavor::MultiThread) => {
            tokio::task::block_in_place(|| Source::parse_within(source, limits))
        }
        _ => Source::parse_within(source, limits),
    }
}

/// A walk; it ends when this is dropped.
pub(super) struct Names {
    found: mpsc::Receiver<(FileId, FileVersion)>,
    looked: Arc<AtomicU64>,
    until: Instant,
}

impl Names {
    /// Begins one, on a thread that may block, which takes so many bytes of memory.
    pub(super) fn walk(
        source: Source,
        dataset: String,
        wanted: Arc<BTreeSet<FileId>>,
        bytes_max: usize,
    ) -> Names {
        let (found, taken) = mpsc::channel(FOUND_MAX);
        let looked = Arc::new(AtomicU64::new(0));
        let source_lists_whole = matches!(source, Source::Remote(_));
        let walk = NameWalk {
            source,
            dataset,
            wanted,
            found,
            looked: looked.clone(),
            names_max: match source_lists_whole {
                true => bytes_max / LISTED_BYTES,
                false => usize::MAX,
            },
        };
        let kept = bytes_max / 2 / KEPT_BYTES;
        tokio::task::spawn_blocking(move || walk.below(&[], DEPTH_MAX, kept));
        Names {
            found: taken,
            looked,
            until: Instant::now() + WALK_MAX,
        }
    }

    /// The next file that is wanted; `None`: there are no more, or the source does not answer.
    pub(super) async fn next(&mut self) -> Option<(FileId, FileVersion)> {
        while Instant::now() < self.until {
            let before = self.looked.load(Ordering::Relaxed);
            match tokio::time::timeout(SILENT_MAX, self.found.recv()).await {
                Ok(found) => return found,
                Err(_) if self.looked.load(Ordering::Relaxed) == before => return None,
                Err(_) => {}
            }
        }
        None
    }
}

struct NameWalk {
    source: Source,
    dataset: String,
    wanted: Arc<BTreeSet<FileId>>,
    found: mpsc::Sender<(FileId, FileVersion)>,
    looked: Arc<AtomicU64>,
    /// The most names of a folder that is listed.
    names_max: usize,
}

/// Some names of a folder, in their order.
#[derive(Clone, Debug)]
struct SomeNames {
    kept: BTreeMap<Vec<u8>, Option<(FileId, FileVersion)>>,
    kept_max: usize,
    /// There are further ones.
    has_more: bool,
}

impl SomeNames {
    /// Takes in a folder, or a file that is wanted. The last ones go if they are too many.
    fn add(&mut self, name: &[u8], file: Option<(FileId, FileVersion)>) {
        let is_last = |(last, _): (&Vec<u8>, _)| &last[..] < name;
        if self.kept.len() == self.kept_max && self.kept.last_key_value().is_some_and(is_last) {
            self.has_more = true;
            return;
        }
        self.kept.insert(name.to_vec(), file);
        if self.kept.len() > self.kept_max {
            self.kept.pop_last();
            self.has_more = true;
        }
    }
}

impl NameWalk {
    /// False: the caller is gone. So many names are kept at this level and below it.
    fn below(&self, folder: &[u8], depth: usize, kept: usize) -> bool {
        // Each level has half of what is left.
        let kept_max = (kept / 2).max(KEPT_MIN);
        let mut after = None;
        loop {
            let names = match self.next_names(folder, after.take(), kept_max) {
                Ok(names) => names,
                Err(error) => {
                    tracing::debug!(dataset = %self.dataset, %error, "what is in a folder is not known");
                    return !self.found.is_closed();
                }
            };
            let last = names.kept.last_key_value().map(|(name, _)| name.clone());
            for (name, file) in names.kept {
                let goes_on = match file {
                    Some(found) => self.found.blocking_send(found).is_ok(),
                    None if depth == 0 => true,
                    None => self.below(&join(folder, &name), depth - 1, kept / 2),
                };
                if !goes_on {
                    return false;
                }
            }
            if !names.has_more || self.found.is_closed() {
                return !self.found.is_closed();
            }
            after = last;
        }
    }

    /// The next folders and wanted files of a folder, behind a name.
    fn next_names(
        &self,
        folder: &[u8],
        after: Option<Vec<u8>>,
        kept_max: usize,
    ) -> Result<SomeNames, SourceError> {
        let (dataset, wanted, looked) = (
            self.dataset.clone(),
            self.wanted.clone(),
            self.looked.clone(),
        );
        let of = folder.to_vec();
        let add = move |names: &mut SomeNames, name: &[u8], stat: Stat| {
            looked.fetch_add(1, Ordering::Relaxed);
            if after.as_deref().is_some_and(|after| name <= after) {
                return;
            }
            match stat.kind {
                Kind::File { version, .. } => {
                    let file = FileVersion {
                        dataset: dataset.clone(),
                        path: join(&of, name),
                        size: stat.size,
                        version,
                    };
                    let id = file.id();
                    if wanted.contains(&id) {
                        names.add(name, Some((id, file)));
                    }
                }
                Kind::Folder => names.add(name, None),
                Kind::Link(_) | Kind::Unreadable => {}
            }
        };
        let none = SomeNames {
            kept: BTreeMap::new(),
            kept_max,
            has_more: false,
        };
        self.source
            .gather_at_most(folder, self.names_max, none, add)
    }
}

fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    match folder.is_empty() {
        true => name.to_vec(),
        false => [folder, b"/", name].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files are found in folders within folders, whatever else is there; a caller that wants no more ends the walk.
    #[tokio::test]
    async fn files_are_found_by_their_digests() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        for at in 0..50 {
            std::fs::write(below.join(format!("f{at}")), [1]).unwrap();
            std::fs::write(dir.path().join(format!("g{at}")), [1]).unwrap();
        }
        std::os::unix::fs::symlink(dir.path(), below.join("round")).unwrap();
        let source = Source::parse(dir.path().to_str().unwrap()).unwrap();
        let version_of = |path: &str| {
            let stat = source.stat(path.as_bytes()).unwrap();
            let Kind::File { version, .. } = stat.kind else {
                panic!("{path} is a file");
            };
            FileVersion {
                dataset: "data".into(),
                path: path.into(),
                size: stat.size,
                version,
            }
        };
        let wanted = [version_of("a/b/f7"), version_of("g3")];
        let gone = FileId { high: 1, low: 2 };
        let ids = wanted.iter().map(FileVersion::id).chain([gone]);
        let ids = Arc::new(ids.collect::<BTreeSet<_>>());
        let mut names = Names::walk(source.clone(), "data".into(), ids.clone(), 1 << 20);
        let mut found = Vec::new();
        while let Some((id, version)) = names.next().await {
            assert_eq!(id, version.id());
            found.push(version.path);
        }
        found.sort();
        assert_eq!(found, [b"a/b/f7".to_vec(), b"g3".to_vec()]);
        assert_eq!(names.looked.load(Ordering::Relaxed), 103);
        // Another dataset of the same source has other digests.
        let mut other = Names::walk(source.clone(), "other".into(), ids, 1 << 20);
        assert!(other.next().await.is_none());
    }

    /// Regression: all names of a folder were in memory, at each of 64 levels, whatever memory the node had.
    #[tokio::test]
    async fn a_folder_of_very_many_is_gone_through_some_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        for at in 0..100 {
            let below = dir.path().join(format!("d{at:02}"));
            std::fs::create_dir(&below).unwrap();
            std::fs::write(below.join("f"), [1]).unwrap();
        }
        let source = Source::parse(dir.path().to_str().unwrap()).unwrap();
        let version_of = |at: usize| {
            let path = format!("d{at:02}/f").into_bytes();
            let stat = source.stat(&path).unwrap();
            let Kind::File { version, .. } = stat.kind else {
                panic!("{at} is a file");
            };
            let (dataset, size) = ("data".to_owned(), stat.size);
            FileVersion {
                dataset,
                path,
                size,
                version,
            }
        };
        let wanted: Vec<FileVersion> = (0..100).map(version_of).collect();
        let ids = Arc::new(wanted.iter().map(FileVersion::id).collect::<BTreeSet<_>>());
        let mut names = Names::walk(source.clone(), "data".into(), ids, 0);
        let mut found = Vec::new();
        while let Some((_, version)) = names.next().await {
            found.push(version);
        }
        assert_eq!(found, wanted, "each once, in their order");
        // Seven passes of 16 folders, and one over each of these.
        assert_eq!(names.looked.load(Ordering::Relaxed), 7 * 100 + 100);
    }

    #[test]
    fn of_many_names_the_first_are_kept() {
        let mut names = SomeNames {
            kept: BTreeMap::new(),
            kept_max: 3,
            has_more: false,
        };
        for name in ["m", "z", "c"] {
            names.add(name.as_bytes(), None);
        }
        assert!(!names.has_more);
        for name in ["y", "a", "zz", "b"] {
            names.add(name.as_bytes(), None);
        }
        let kept: Vec<&[u8]> = names.kept.keys().map(|name| &name[..]).collect();
        assert_eq!((kept, names.has_more), (vec![&b"a"[..], b"b", b"c"], true));
    }
}
