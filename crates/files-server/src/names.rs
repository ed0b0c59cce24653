//! Walks through the names of a dataset to find what a few digests stand for.
//!
//! A node knows blocks by the digest of their file's version, and nothing leads back from a digest to a name. So no
//! node keeps a table of names for the day when another is lost: on that day the names are gone through once. A file that
//! has changed has another digest by now, and is not found.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use staves_files::{FileVersion, Kind, Source};
use staves_wire::files::FileId;
use tokio::sync::mpsc;

/// Folders within folders that are followed.
const DEPTH_MAX: usize = 64;
/// Files that were found and are not taken yet.
const FOUND_MAX: usize = 16;
/// Names of a folder, which are in memory at once: some 20 MB. What lies in a larger one comes when it is asked for.
const NAMES_MAX: usize = 100_000;
/// With no name in such a time the source is taken for gone. A folder's names come all at once.
const SILENT_MAX: Duration = Duration::from_secs(120);
/// The longest pass over the names.
const WALK_MAX: Duration = Duration::from_secs(1800);

/// A walk; it ends when this is dropped.
pub(super) struct Names {
    found: mpsc::Receiver<(FileId, FileVersion)>,
    looked: Arc<AtomicU64>,
    until: Instant,
}

impl Names {
    /// Begins one, on a thread that may block.
    pub(super) fn walk(source: Source, dataset: String, wanted: Arc<BTreeSet<FileId>>) -> Names {
        let (found, taken) = mpsc::channel(FOUND_MAX);
        let looked = Arc::new(AtomicU64::new(0));
        let walk = NameWalk {
            source,
            dataset,
            wanted,
            found,
            looked: looked.clone(),
        };
        tokio::task::spawn_blocking(move || walk.below(Vec::new(), DEPTH_MAX));
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
}

impl NameWalk {
    /// False: the caller is gone.
    fn below(&self, folder: Vec<u8>, depth: usize) -> bool {
        let names = match self.source.list_at_most(&folder, NAMES_MAX) {
            Ok(names) => names,
            Err(error) => {
                tracing::debug!(dataset = %self.dataset, %error, "what is in a folder is not known");
                return !self.found.is_closed();
            }
        };
        self.looked.fetch_add(1, Ordering::Relaxed);
        for (name, stat) in names {
            let path = match folder.is_empty() {
                true => name,
                false => [&folder[..], b"/", &name].concat(),
            };
            let goes_on = match stat.kind {
                Kind::File { version, .. } => self.file(path, stat.size, version),
                Kind::Folder => depth == 0 || self.below(path, depth - 1),
                Kind::Link(_) | Kind::Unreadable => true,
            };
            if !goes_on {
                return false;
            }
        }
        true
    }

    fn file(&self, path: Vec<u8>, size: u64, version: String) -> bool {
        self.looked.fetch_add(1, Ordering::Relaxed);
        let version = FileVersion {
            dataset: self.dataset.clone(),
            path,
            size,
            version,
        };
        let id = version.id();
        match self.wanted.contains(&id) {
            true => self.found.blocking_send((id, version)).is_ok(),
            false => !self.found.is_closed(),
        }
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
        let mut names = Names::walk(source.clone(), "data".into(), ids.clone());
        let mut found = Vec::new();
        while let Some((id, version)) = names.next().await {
            assert_eq!(id, version.id());
            found.push(version.path);
        }
        found.sort();
        assert_eq!(found, [b"a/b/f7".to_vec(), b"g3".to_vec()]);
        assert_eq!(names.looked.load(Ordering::Relaxed), 103);
        // Another dataset of the same source has other digests.
        let mut other = Names::walk(source.clone(), "other".into(), ids);
        assert!(other.next().await.is_none());
    }
}
