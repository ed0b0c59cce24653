//! The dataset's source: a folder of files that are overwritten by others of the same size.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;

use super::block;
use crate::load::Shared;

/// The number of files.
pub const FILES: usize = 24;
/// Bytes of each.
pub const FILE_BYTES: u64 = 1 << 20;
/// Rest between two that are overwritten.
const REST: Duration = Duration::from_millis(15);

/// The folder, and what is known of each file.
pub struct Source {
    folder: PathBuf,
    files: Vec<Known>,
    shared: Arc<Shared>,
}

struct Known {
    /// Odd while it is being overwritten; else the double of its version.
    count: AtomicU64,
    /// The time of the last change, in nanoseconds of the run.
    changed_ns: AtomicU64,
}

/// The state of a file at a time.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// Odd while it is being overwritten; else the double of its version.
    pub count: u64,
    /// The time of the last overwrite.
    pub changed_ns: u64,
    /// The time.
    pub now_ns: u64,
}

/// A file's name.
pub fn name(number: usize) -> String {
    format!("f{number:02}")
}

/// True if a file is overwritten in place; others are replaced by renaming.
pub fn in_place(number: usize) -> bool {
    number.is_multiple_of(2)
}

fn contents(number: usize, version: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FILE_BYTES as usize);
    for offset in (0..FILE_BYTES).step_by(block::BYTES as usize) {
        block::put(&mut bytes, number as u32, version, offset);
    }
    bytes
}

impl Source {
    /// Writes all files in their version 0.
    pub fn make(folder: &Path, shared: &Arc<Shared>) -> anyhow::Result<Source> {
        std::fs::create_dir(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for number in 0..FILES {
            let path = folder.join(name(number));
            std::fs::write(&path, contents(number, 0))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let known = |_| Known {
            count: AtomicU64::new(0),
            changed_ns: AtomicU64::new(0),
        };
        Ok(Source {
            folder: folder.to_owned(),
            files: (0..FILES).map(known).collect(),
            shared: shared.clone(),
        })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The state of a file now.
    pub fn state(&self, number: usize) -> State {
        let now_ns = self.shared.now();
        let known = &self.files[number];
        State {
            count: known.count.load(Ordering::SeqCst),
            changed_ns: known.changed_ns.load(Ordering::SeqCst),
            now_ns,
        }
    }

    /// Overwrites all files, one after the other, with the version after.
    pub fn overwrite(&self) -> anyhow::Result<()> {
        for number in 0..FILES {
            let path = self.folder.join(name(number));
            self.replace(number, &path)
                .with_context(|| format!("cannot overwrite {}", path.display()))?;
            std::thread::sleep(REST);
        }
        Ok(())
    }

    fn replace(&self, number: usize, path: &Path) -> std::io::Result<()> {
        let known = &self.files[number];
        let version = known.count.load(Ordering::SeqCst) / 2 + 1;
        let bytes = contents(number, version as u32);
        let beside = self.folder.join(format!(".{}", name(number)));
        if !in_place(number) {
            std::fs::write(&beside, &bytes)?;
        }
        // Before it begins and when it is done: a file is not steady between the two.
        known.changed_ns.store(u64::MAX >> 1, Ordering::SeqCst);
        known.count.fetch_add(1, Ordering::SeqCst);
        match in_place(number) {
            true => File::options()
                .write(true)
                .open(path)?
                .write_all_at(&bytes, 0)?,
            false => std::fs::rename(&beside, path)?,
        }
        known.count.fetch_add(1, Ordering::SeqCst);
        known.changed_ns.store(self.shared.now(), Ordering::SeqCst);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_overwritten_in_place_and_by_renaming() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().expect("a folder");
        let source = Source::make(&folder.path().join("s"), &Shared::new(false)).expect("made");
        let look = |number| {
            let path = source.folder().join(name(number));
            let inode = std::fs::metadata(&path).expect("there").ino();
            let bytes = std::fs::read(path).expect("there");
            assert_eq!(bytes.len() as u64, FILE_BYTES);
            (inode, block::version_of_all(&bytes, number as u32))
        };
        let before = [look(0), look(1)];
        source.overwrite().expect("overwritten");
        let after = [look(0), look(1)];
        assert_eq!([&before[0].1, &before[1].1], [&Ok(0), &Ok(0)]);
        assert_eq!([&after[0].1, &after[1].1], [&Ok(1), &Ok(1)]);
        assert_eq!(before[0].0, after[0].0, "in place");
        assert_ne!(before[1].0, after[1].0, "another file");
        assert_eq!(source.state(0).count, 2);
    }
}
