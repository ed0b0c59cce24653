//! Versions of files.

use staves_wire::files::FileId;

/// One version of one file of a dataset. Its bytes never change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileVersion {
    /// The dataset's name.
    pub dataset: String,
    /// Relative to the dataset's root, without `.` and `..`; bytes, since a folder's names need not be UTF-8.
    pub path: Vec<u8>,
    /// Its bytes.
    pub size: u64,
    /// The mark of the version, in the source's words. A folder: size, times of change in nanoseconds and
    /// inode, as they were when its bytes last changed or it was first watched. A server: the ETag, or the time of the last change.
    pub version: String,
}

impl FileVersion {
    /// Its name in the pool.
    pub fn id(&self) -> FileId {
        let mut hash = blake3::Hasher::new();
        for part in [self.dataset.as_bytes(), &self.path, self.version.as_bytes()] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update(&self.size.to_le_bytes());
        let digest = hash.finalize();
        let half = |at: usize| {
            let bytes = digest.as_bytes()[at..at + 8].try_into();
            u64::from_le_bytes(bytes.expect("eight bytes"))
        };
        FileId {
            high: half(0),
            low: half(8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_version_counts_and_none_runs_into_the_next() {
        let of = |dataset: &str, path: &str, size, version: &str| {
            let (dataset, path, version) = (dataset.into(), path.into(), version.into());
            FileVersion {
                dataset,
                path,
                size,
                version,
            }
            .id()
        };
        let all = [
            of("a", "b", 1, "c"),
            of("ab", "", 1, "c"),
            of("", "ab", 1, "c"),
            of("a", "bc", 1, ""),
            of("a", "b", 2, "c"),
            of("a", "b", 1, "d"),
        ];
        for (i, id) in all.iter().enumerate() {
            assert!(!all[..i].contains(id), "{i}");
        }
        assert_eq!(all[0], of("a", "b", 1, "c"));
    }
}
